"""The endpoints of the library: lists of videos and directories, and changes of videos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vfsd.api.video import Video
from vfsd.catalog import Transaction
from vfsd.catalog.video_pages import FoundVideo
from vfsd.catalog.video_query import Interval, make_video_filter
from vfsd.core.model import LogicalVideo
from vfsd.errors import NotFoundError, UsageError
from vfsd.records.info_record import INFO_FIELDS, info_record
from vfsd.records.video_records import FOUND_FIELDS, found_record
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.query_values import (
    MAX_PAGE,
    PAGE,
    flag_in,
    moment_in,
    number_in,
    require_keys,
    text_in,
    words_in,
)
from vfsd.web.users import UserRole

LIST_FIELDS = {"items": "list of objects", "next": "`after` of the next page, or null"}
PAGE_PARAMETERS = (
    Parameter("limit", f"most items, up to {MAX_PAGE}; default {PAGE}", "integer"),
    Parameter("after", "the `next` of the page before"),
)
VIDEO_ITEM_FIELDS: Mapping[str, str] = {
    **FOUND_FIELDS,
    "labels": "list of the labels of its boxes",
    "damaged_frames": "number of frames with damage; null before the first full decode",
    "held": "whether it has a hold",
    "verified": "whether a full decode has verified its frames",
}
_RANGES = ("bytes", "seconds", "width", "height")


def _interval(query: Mapping[str, str], key: str) -> Interval | None:
    found = []
    for name in (f"min_{key}", f"max_{key}"):
        text = query.get(name)
        try:
            found.append(None if text is None else float(text))
        except ValueError:
            raise UsageError(f"{name} must be a number, got {text!r}") from None
    return None if found == [None, None] else (found[0], found[1])


def videos(call: Call) -> object:
    query = call.query
    limit = number_in(query, "limit", PAGE, 1, MAX_PAGE)
    captured = moment_in(query, "from"), moment_in(query, "to")
    metadata = dict(_pair(text) for text in call.request.query_params.getlist("meta"))
    what = make_video_filter(
        query.get("glob") or None,
        set(call.request.query_params.getlist("tag")),
        metadata,
        query.get("codec"),
        query.get("container"),
        **{key: _interval(query, key) for key in _RANGES},
        modified_ns=(moment_in(query, "since"), None) if "since" in query else None,
        captured_ns=None if captured == (None, None) else captured,
    )
    is_deep = "dir" not in query or flag_in(query, "deep")
    with call.web.store.catalog.reading() as seen:
        pages = seen.lists.pages(
            what,
            label=query.get("label"),
            directory=query.get("dir", ""),
            is_deep=is_deep,
        )
        found = [
            one
            for one in pages.page(query.get("sort", "name"), query.get("after"), limit)
            if call.user.may_see(one.name)
        ]
        items = _items(seen, found)
    return {"items": items, "next": found[-1].key if len(found) == limit else None}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"meta must be KEY=VALUE, got {text!r}")
    return key, value


def _items(seen: Transaction, found: Sequence[FoundVideo]) -> list[dict[str, object]]:
    names = {one.ino: one.name for one in found}
    known = {video.ino: video for video in seen.videos.by_inodes(names)}
    numbers = [video.id for video in known.values()]
    labels, held = seen.lists.labels(numbers), seen.lists.held(numbers)
    return [
        _item(known[one.ino], labels[known[one.ino].id], known[one.ino].id in held)
        for one in found
        if one.ino in known
    ]


def _item(video: LogicalVideo, labels: Sequence[str], is_held: bool) -> dict[str, object]:
    return {
        "kind": "video",
        **found_record(video),
        "labels": list(labels),
        "damaged_frames": video.original.damaged_frames,
        "held": is_held,
        "verified": video.original.verified,
    }


def directories(call: Call) -> object:
    under = call.query.get("under", "")
    with call.web.store.catalog.reading() as seen:
        found = seen.lists.directories(under)
    above = f"{under.strip('/')}/" if under.strip("/") else ""
    items = [
        {"name": name, "path": above + name, "videos": count, "directories": inner}
        for name, count, inner in found
        if call.user.may_see(above + name)
    ]
    return {"items": items, "next": None}


def info(call: Call) -> object:
    parts, name = call.web.store.parts, call.name
    with parts.catalog.reading() as seen:
        node = seen.tree.resolve(name)
        names = seen.tree.paths_of(node.ino)
    video = None
    try:
        video = parts.catalog.video(name)
    except NotFoundError:
        if node.is_dir:
            raise
    record = info_record(parts, name, node, names, video)
    if video is None:
        return {**record, "labels": [], "verified": False, "held": False}
    with parts.catalog.reading() as seen:
        labels = seen.lists.labels([video.id])[video.id]
    held = bool(record["holds"])
    return {**record, "labels": labels, "verified": video.original.verified, "held": held}


_CHANGES = {
    "tags": "list of all its tags",
    "metadata": "object with all its metadata",
    "policy": "policy as in `vfsd policy set`, or null for none of its own",
    "name": "its new name",
    "hold": "the reason of a new hold, or null to lift all holds",
    "reason": "why holds are lifted; required for that",
}


def change(call: Call) -> object:
    """Each key is a separate change; all are checked before the first one is made."""
    body, store = call.body, call.web.store
    require_keys(body, _CHANGES)
    video = store[call.name]
    tags = set(words_in(body, "tags")) if "tags" in body else None
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise UsageError("metadata must be an object")
    if call.user.role < UserRole.ADMIN and set(body) - {"tags", "metadata"}:
        raise UsageError("the role label may change tags and metadata only")
    if "policy" in body and body["policy"] is not None:
        from vfsd.core.retention_policy import RetentionPolicy

        RetentionPolicy.parse(text_in(body, "policy"))
    name = text_in(body, "name") if "name" in body else call.name
    if not call.user.may_see(name):
        raise NotFoundError(f"no such directory: {name!r}")
    reason = text_in(body, "reason") if body.get("hold", "") is None else ""
    if tags is not None or metadata is not None:
        _change_facts(video, tags, metadata)
    if "policy" in body:
        store.set_policy(call.name, body["policy"])  # type: ignore[arg-type]  # was parsed above
    if body.get("hold") is not None and "hold" in body:
        video.policy.hold(text_in(body, "hold"))
    elif "hold" in body:
        video.policy.release(reason)
    if name != call.name:
        store.move(call.name, name)
    call.request.path_params["name"] = name
    return info(call)


def _change_facts(video: Video, tags: set[str] | None, metadata: Mapping[str, Any] | None) -> None:
    from vfsd.api.video import context_of

    with context_of(video).parts.catalog.writing() as change:
        now = change.videos.get(video.info.id)
        if tags is not None:
            change.videos.remove_tags(now.id, now.tags - tags)
            change.videos.add_tags(now.id, tags - now.tags)
        if metadata is not None:
            change.videos.set_metadata(now.id, metadata)


def remove(call: Call) -> object:
    store = call.web.store
    store[call.name]  # a directory can only be removed file by file
    return {"path": call.name, "files": store.remove(call.name)}


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/videos",
        videos,
        "Videos by name, tags, labels, contents and time of recording.",
        {**LIST_FIELDS, **{f"items[].{key}": text for key, text in VIDEO_ITEM_FIELDS.items()}},
        (
            Parameter("glob", "pattern for the whole path: `*` stops at a slash, `**` does not"),
            Parameter("dir", "directory: only videos in it, or with deep=1 below it"),
            Parameter("deep", "1: with the directories below `dir`", "boolean"),
            Parameter("tag", "only videos with this tag; may be repeated"),
            Parameter("label", "a label of their boxes"),
            Parameter("meta", "only videos with this KEY=VALUE in their metadata; may be repeated"),
            Parameter("codec", "codec"),
            Parameter("container", "container"),
            *(
                Parameter(f"{end}_{key}", f"{end} {key}", "number")
                for key in _RANGES
                for end in ("min", "max")
            ),
            Parameter("from", "recorded at this time or later, at least in part, ISO 8601"),
            Parameter("to", "recorded at this time or earlier, at least in part, ISO 8601"),
            Parameter("since", "changed at this time or later, ISO 8601"),
            Parameter("sort", "name, captured, modified, size or frames; -size: largest first"),
            *PAGE_PARAMETERS,
        ),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/api/1/dirs",
        directories,
        "The directories in a directory.",
        {
            **LIST_FIELDS,
            "items[].name": "last part of the path",
            "items[].path": "path from the root of the store",
            "items[].videos": "number of videos below it",
            "items[].directories": "number of directories in it",
        },
        (Parameter("under", "directory; default: the root"),),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/api/1/videos/{name:path}",
        info,
        "All that the store knows about a file, as `vfsd info --json`.",
        {**INFO_FIELDS, **{key: VIDEO_ITEM_FIELDS[key] for key in ("labels", "verified", "held")}},
        is_scoped=True,
    ),
    Endpoint(
        "PATCH",
        "/api/1/videos/{name:path}",
        change,
        "Change tags, metadata, policy, name or holds of a video.",
        INFO_FIELDS,
        body=_CHANGES,
        role=UserRole.LABEL,
        is_change=True,
        is_scoped=True,
    ),
    Endpoint(
        "DELETE",
        "/api/1/videos/{name:path}",
        remove,
        "Remove a video.",
        {"path": "path from the root of the store", "files": "number of files removed"},
        role=UserRole.ADMIN,
        is_change=True,
        is_scoped=True,
    ),
)
