"""The endpoints of boxes of many videos and of moments: counts over time, lists and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from vfsd.api.moments import When, find_moments
from vfsd.api.store_labels import StoreDetections
from vfsd.api.video import Video, context_of
from vfsd.catalog.detection_counts import BinCount
from vfsd.catalog.video_query import make_video_filter
from vfsd.core.capture_time import NS
from vfsd.core.detections import DetectionColumns
from vfsd.core.label_query import clauses_of
from vfsd.core.model import LogicalVideo
from vfsd.core.moments import Moment
from vfsd.core.timebase import iso_time
from vfsd.errors import NotFoundError, UsageError
from vfsd.read.read_context import VideoContext
from vfsd.records.label_records import (
    LABEL_TOTAL_FIELDS,
    UNKNOWN_LABELS_FIELDS,
    label_total_record,
    moment_record,
    unknown_labels_record,
)
from vfsd.validation import is_pattern
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.query_values import (
    moment_in,
    region_in,
    require_keys,
    seconds_in,
    text_in,
    words_in,
)
from vfsd.web.users import UserRole

_MAX_BINS = 5000
_DEFAULT_BINS = 200
_VIDEOS_AT_ONCE = 400


def chosen_videos(call: Call) -> list[tuple[int, str]] | None:
    """Return (inode, name) of the videos of ``in``; None for all that the store has."""
    where = call.query.get("in", "").strip()
    if not where and not call.user.directories:
        return None
    with call.web.store.catalog.reading() as seen:
        if is_pattern(where):
            pages = seen.lists.pages(make_video_filter(where, set(), None, None, None))
        else:
            try:
                seen.tree.resolve(where.rstrip("/"))
                is_video = where in call.web.store
            except NotFoundError:
                return []
            if is_video:
                return [(seen.tree.resolve(where).ino, where)]
            pages = seen.lists.pages(
                make_video_filter(None, set(), None, None, None), directory=where.rstrip("/")
            )
        found = pages.page("name", None, 1 << 30)
    return [(one.ino, one.name) for one in found if call.user.may_see(one.name)]


def unknown_labels_in(call: Call) -> dict[str, object]:
    """Return the labels of ``q`` that the store does not have, as a record.

    It lists those of the store only for users who may see all of it.
    """
    found = call.web.store.catalog.detections.unknown_labels(call.query.get("q") or None)
    return unknown_labels_record(found._replace(known=()) if call.user.directories else found)


def counts(call: Call) -> object:
    query, store = call.query, call.web.store
    clauses = clauses_of(query.get("q") or None)
    start, end = moment_in(query, "from"), moment_in(query, "to")
    step = float(seconds_in(query, "res") or 0) or _usual_step(start, end)
    chosen = chosen_videos(call)
    span = None if start is None and end is None else (start, end)
    is_plain = not clauses or (len(clauses) == 1 and clauses[0].is_plain)
    rows: list[BinCount] = []
    with store.catalog.reading() as seen:
        names = {} if chosen is None else seen.lists.ids_of(dict(chosen))
        ids = None if chosen is None else set(names)
        if is_plain:
            words = clauses[0].labels if clauses else None
            rows = seen.box_counts.count(ids, words, step=step, region=region_in(query), span=span)
        unknown = seen.box_counts.unexamined(ids)
    if not is_plain:
        infos = _chosen_infos(call, chosen)
        for at in range(0, len(infos), _VIDEOS_AT_ONCE):
            rows += _bins_of_combinations(call, infos[at : at + _VIDEOS_AT_ONCE], step)
    if chosen is None:
        with store.catalog.reading() as seen:
            names = seen.lists.names_of_videos({row.video_id for row in rows})
    by_video: dict[int, int] = {}
    by_bin: dict[int, int] = {}
    for row in rows:
        by_video[row.video_id] = by_video.get(row.video_id, 0) + row.boxes
        by_bin[row.bin] = by_bin.get(row.bin, 0) + row.boxes
    videos = sorted(
        ((names[number], count) for number, count in by_video.items() if number in names),
        key=lambda pair: (-pair[1], pair[0]),
    )
    record = _counts_record(videos, by_bin, step, unknown, is_clock=span is not None)
    return record | unknown_labels_in(call)


def totals(call: Call) -> object:
    """Numbers of boxes by label and source."""
    store, chosen = call.web.store, chosen_videos(call)

    def videos() -> list[VideoContext]:
        return [context_of(store.open_video(one)) for one in _chosen_infos(call, chosen)]

    found = StoreDetections(
        store,
        None if chosen is None else videos,
        call.query.get("q") or None,
        None,
        region=region_in(call.query),
        source=call.query.get("source") or None,
    )
    said = unknown_labels_in(call)
    return {"items": [label_total_record(one) for one in found.counts()]} | said


def _counts_record(
    videos: Sequence[tuple[str, int]],
    by_bin: dict[int, int],
    step: float,
    unknown: dict[int, float],
    *,
    is_clock: bool,
) -> dict[str, Any]:
    first = min(by_bin, default=0) if is_clock else 0
    length = max(by_bin, default=-1) + 1 - first
    if length > _MAX_BINS:
        raise UsageError(
            f"res must be larger: {length} parts of {step:g} s", hint=f"at most {_MAX_BINS}"
        )
    start = iso_time(int(first * step * NS)) if is_clock else 0
    return {
        "total": sum(count for _, count in videos),
        "bins": {
            "start": start,
            "step": step,
            "counts": [by_bin.get(first + place, 0) for place in range(length)],
        },
        "videos": [{"video": name, "count": count} for name, count in videos[:1000]],
        "unknown": {"seconds": sum(unknown.values()), "videos": len(unknown)},
    }


def _usual_step(start: int | None, end: int | None) -> float:
    if start is not None and end is not None and end > start:
        return max(1.0, (end - start) / NS / _DEFAULT_BINS)
    return 60.0


def _chosen_infos(call: Call, chosen: Sequence[tuple[int, str]] | None) -> list[LogicalVideo]:
    catalog = call.web.store.catalog
    if chosen is None:
        return list(catalog.find())
    found: list[LogicalVideo] = []
    for at in range(0, len(chosen), _VIDEOS_AT_ONCE):
        with catalog.reading() as seen:
            found += seen.videos.by_inodes(dict(chosen[at : at + _VIDEOS_AT_ONCE]))
    return found


def _bins_of_combinations(call: Call, infos: Sequence[LogicalVideo], step: float) -> list[BinCount]:
    """Count boxes by a whole expression, as `BoxCounts.count` counts those of some labels."""
    start, end = moment_in(call.query, "from"), moment_in(call.query, "to")
    is_clock = start is not None or end is not None
    if is_clock:
        infos = [one for one in infos if one.captured is not None]
    places, rows = call.web.store.catalog.detections.find_in(
        infos, call.query.get("q"), region=region_in(call.query)
    )
    frame_seconds = [float(one.original.duration / one.original.frames) for one in infos]
    shown = rows.frames * np.array(frame_seconds)[places]
    if is_clock:
        shown += np.array([one.captured.ns / NS if one.captured else 0.0 for one in infos])[places]
        kept = (shown >= (start or 0) / NS) & (shown < (end / NS if end else np.inf))
        places, shown = places[kept], shown[kept]
    keys = np.stack([places, (shown // step).astype(np.int64)])
    (videos, bins), counts = np.unique(keys, axis=1, return_counts=True)
    return [
        BinCount(infos[video].id, part, boxes)
        for video, part, boxes in zip(videos.tolist(), bins.tolist(), counts.tolist(), strict=True)
    ]


def seconds_of(video: Video, rows: DetectionColumns) -> Any:
    original = video.original
    ticks = context_of(video).table.pts_of(rows.frames) - original.first_pts
    return ticks * float(original.time_base)


# ---------------------------------------------------------------------------------------- changes


_BOXES = {
    "video": "path of the video",
    "boxes": "list of objects: frame, box ([x1, y1, x2, y2]), label, and confidence, track and "
    "attributes if known",
    "source": "name of their source; default: manual",
    "model": "model of the source",
    "version": "version of the model",
    "replace": "true: remove the other boxes of the source from these frames first",
}
_REMOVED = {
    "video": "path of the video",
    "labels": "only boxes with one of these labels",
    "frames": "only boxes in these frames: [first, end)",
    "source": "only boxes of this source",
}


def add(call: Call) -> object:
    from vfsd.core.detections import Detection, Source

    body = call.body
    require_keys(body, _BOXES)
    video = _changed_video(call)
    given = body.get("boxes")
    if not isinstance(given, list) or not given:
        raise UsageError("boxes must be a list of objects")
    source = Source(
        text_in(body, "source", "manual"),
        str(body.get("model") or ""),
        str(body.get("version") or ""),
    )
    try:
        boxes = [
            Detection(
                one["frame"],
                one["label"],
                tuple(one["box"]),
                one.get("confidence"),
                one.get("track"),
                source,
                one.get("attributes") or {},
            )
            for one in given
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            f"a box must have a frame, a label and a box: {error}",
            hint='for example {"frame": 3, "label": "car", "box": [10, 20, 50, 60]}',
        ) from None
    columns = DetectionColumns.from_detections(boxes)
    catalog = call.web.store.catalog
    frames = sorted({int(one) for one in columns.frames})
    if body.get("replace"):
        for frame in frames:
            catalog.detections.remove(video.info, frames=range(frame, frame + 1), source=source)
    count = catalog.detections.add(video.info, columns, source)
    return {"name": video.name, "boxes": count}


def remove(call: Call) -> object:
    body = call.body
    require_keys(body, _REMOVED)
    video = _changed_video(call)
    words = words_in(body, "labels")
    frames = body.get("frames")
    if not (words or frames or body.get("source")):
        raise UsageError("no boxes selected", hint="give labels, frames or a source")
    chosen = None
    if frames is not None:
        if (
            not isinstance(frames, list)
            or len(frames) != 2
            or not all(type(one) is int for one in frames)
            or not 0 <= frames[0] < frames[1]
        ):
            raise UsageError(f"frames must be [first, end], got {frames!r}")
        chosen = range(frames[0], frames[1])
    source = text_in(body, "source") if body.get("source") else None
    gone = video.labels.remove(labels=words or None, frames=chosen, source=source)
    return {"name": video.name, "boxes": gone}


def _changed_video(call: Call) -> Video:
    name = text_in(call.body, "video")
    if not call.user.may_see(name):
        raise NotFoundError(f"no such video: {name!r}")
    return call.web.store[name]


# ---------------------------------------------------------------------------------------- moments


_MOMENTS = {
    "video": "path of the video",
    "moments": "list of objects: frames ([first, end)) or span ([from, to] in seconds), label, and "
    "confidence and attributes if known",
    "source": "name of their source; default: manual",
    "merge": "true: join moments of a label that overlap or follow each other",
}
_REMOVED_MOMENTS = {
    "video": "path of the video",
    "labels": "only moments with one of these labels",
    "span": "only moments within these seconds: [from, to]",
    "source": "only moments of this source",
}


def moments(call: Call) -> object:
    store = call.web.store
    chosen = chosen_videos(call)
    names = list(store) if chosen is None else [name for _, name in chosen]
    source = call.query.get("source") or None
    videos = [context_of(store[name]) for name in names]
    found = find_moments(videos, call.query.get("q") or None, source=source)
    return {"moments": [moment_record(one) for one in found], **unknown_labels_in(call)}


def add_moments(call: Call) -> object:
    from vfsd.core.detections import source_from

    body = call.body
    require_keys(body, _MOMENTS)
    video = _changed_video(call)
    given = body.get("moments")
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise UsageError("moments must be a list of objects")
    source = source_from(text_in(body, "source", "manual"))
    rows = [
        Moment(
            video.name,
            video.moments.frames_of(_when(one)),
            (Fraction(0), Fraction(0)),
            one.get("label"),
            source,
            one.get("confidence"),
            one.get("attributes", {}),
        )
        for one in given
    ]
    count = video.moments.add_many(rows, merge=body.get("merge") is True)
    return {"name": video.name, "moments": count}


def remove_moments(call: Call) -> object:
    body = call.body
    require_keys(body, _REMOVED_MOMENTS)
    video = _changed_video(call)
    words = words_in(body, "labels")
    if not (words or body.get("span") or body.get("source")):
        raise UsageError("no moments selected", hint="give labels, span or a source")
    when = None if body.get("span") is None else _when({"span": body["span"]})
    source = text_in(body, "source") if body.get("source") else None
    gone = video.moments.remove(labels=words or None, when=when, source=source)
    return {"name": video.name, "moments": gone}


def _when(one: Mapping[str, Any]) -> When:
    frames, span = one.get("frames"), one.get("span")
    edges = span if frames is None else frames
    if not isinstance(edges, list) or len(edges) != 2 or (frames is None) == (span is None):
        raise UsageError(
            "a moment must have frames or span, each of two numbers",
            hint='for example {"span": [1.5, 3], "label": "queue"}',
        )
    if span is not None:
        return edges[0], edges[1]
    if not all(type(edge) is int for edge in edges):
        raise UsageError(f"frames must be [first, end], got {frames!r}")
    return range(*edges)


IN_PARAMETER = Parameter("in", "a directory, a name or a pattern; default: the whole store")
QUERY_PARAMETER = Parameter("q", "labels: car|truck & not red & lane=3")

ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/detections",
        counts,
        "Numbers of boxes over time and by video.",
        {
            "total": "number of boxes",
            "bins": "object: start (ISO 8601 with `from` or `to`, else 0: the first frame of each "
            "video), step (seconds) and counts",
            "videos": "list of objects: video and count, largest first, at most 1000",
            "unknown": "object: seconds and number of videos that no source has examined",
            **UNKNOWN_LABELS_FIELDS,
        },
        (
            IN_PARAMETER,
            QUERY_PARAMETER,
            Parameter("region", "only boxes that overlap it: WxH+X+Y"),
            Parameter("from", "recorded at this time or later, ISO 8601"),
            Parameter("to", "recorded before this time, ISO 8601"),
            Parameter("res", "seconds of a part", "number"),
        ),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/api/1/labels",
        totals,
        "Numbers of boxes by label and source, in many videos together.",
        {
            "items": "list of objects, one for each label of each source",
            **{f"items[].{key}": text for key, text in LABEL_TOTAL_FIELDS.items()},
            **UNKNOWN_LABELS_FIELDS,
        },
        (
            IN_PARAMETER,
            QUERY_PARAMETER,
            Parameter("region", "only boxes that overlap it: WxH+X+Y"),
            Parameter("source", "only boxes of sources with this name"),
        ),
        is_scoped=True,
    ),
    Endpoint(
        "POST",
        "/api/1/detections",
        add,
        "Add boxes to a video.",
        {"name": "path of the video", "boxes": "number of boxes added"},
        body=_BOXES,
        role=UserRole.LABEL,
        is_change=True,
        is_scoped=True,
    ),
    Endpoint(
        "POST",
        "/api/1/detections/remove",
        remove,
        "Remove boxes of a video.",
        {"name": "path of the video", "boxes": "number of boxes removed"},
        body=_REMOVED,
        role=UserRole.LABEL,
        is_change=True,
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/api/1/moments",
        moments,
        "Moments by video, then by first frame.",
        {"moments": "list of objects, as of `vfsd moments query --json`", **UNKNOWN_LABELS_FIELDS},
        (
            IN_PARAMETER,
            Parameter("q", "labels: queue|red light & not night"),
            Parameter("source", "only moments of this source"),
        ),
        is_scoped=True,
    ),
    Endpoint(
        "POST",
        "/api/1/moments",
        add_moments,
        "Add moments to a video.",
        {"name": "path of the video", "moments": "number of moments added"},
        body=_MOMENTS,
        role=UserRole.LABEL,
        is_change=True,
        is_scoped=True,
    ),
    Endpoint(
        "POST",
        "/api/1/moments/remove",
        remove_moments,
        "Remove moments of a video.",
        {"name": "path of the video", "moments": "number of moments removed"},
        body=_REMOVED_MOMENTS,
        role=UserRole.LABEL,
        is_change=True,
        is_scoped=True,
    ),
)
