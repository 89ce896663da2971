"""The endpoints of cameras: timelines, playlists, exports and events."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from starlette.responses import Response

from vfsd.api.labels import find_boxes
from vfsd.api.video import Video, context_of
from vfsd.core.capture_time import NS, time_zone
from vfsd.core.timebase import iso_time
from vfsd.core.view_request import View, ViewForm, ViewSpec, format_view_path
from vfsd.errors import NotFoundError, UsageError
from vfsd.records.label_records import UNKNOWN_LABELS_FIELDS
from vfsd.views.segment_layout import segment_layout
from vfsd.web.camera_index import Camera, CameraPart
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.label_api import unknown_labels_in
from vfsd.web.library_api import LIST_FIELDS
from vfsd.web.query_values import moment_in, number_in
from vfsd.web.view_playlists import codecs_of

_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
PLAYLIST_TYPE = "application/vnd.apple.mpegurl"
_MOST_EVENTS = 500
_PAUSE_SECONDS = 2
# A camera whose last video ended so recently is probably still recording.
_LIVE_SECONDS = 180


def _camera(call: Call) -> Camera:
    name = call.name.strip("/")
    if not call.user.may_see(name):
        raise NotFoundError(f"there is no camera {name!r}")
    return call.web.cameras.get(name)


def _window(call: Call, camera: Camera) -> tuple[int, int]:
    start, end = moment_in(call.query, "from"), moment_in(call.query, "to")
    start = camera.first_ns if start is None else start
    end = camera.last_ns if end is None else end
    if end <= start:
        raise UsageError("to must be after from")
    return start, end


def cameras(call: Call) -> object:
    items = []
    for camera in call.web.cameras.all():
        if not call.user.may_see(camera.name):
            continue
        newest = camera.newest
        items.append(
            {
                "name": camera.name,
                "first": iso_time(camera.first_ns),
                "last": iso_time(camera.last_ns),
                "videos": len(camera.videos),
                "gaps": sum(1 for _ in camera.gaps(camera.first_ns, camera.last_ns)),
                "seconds": camera.seconds,
                "latest": {
                    "name": newest.name,
                    "frame": newest.frames - 1,
                    "at": iso_time(newest.end_ns),
                },
            }
        )
    return {"items": items, "next": None}


def spans(call: Call) -> object:
    camera = _camera(call)
    start, end = _window(call, camera)
    resolution = number_in(call.query, "res", 0, 0, 86_400) * NS
    items: list[dict[str, Any]] = []
    for part in camera.between(start, end):
        last = items[-1] if items else None
        if resolution and last is not None and part.start_ns - last["_end"] < resolution:
            last["_end"], last["end"] = part.end_ns, iso_time(part.end_ns)
            last["name"], last["videos"] = None, last["videos"] + 1
            continue
        items.append(
            {
                "kind": "video",
                "start": iso_time(part.start_ns),
                "end": iso_time(part.end_ns),
                "name": part.video.name,
                "videos": 1,
                # When the first frame of the video was recorded.
                "origin": iso_time(part.video.start_ns),
                "_end": part.end_ns,
            }
        )
    for one in items:
        del one["_end"]
    items += [
        {
            "kind": "gap",
            "start": iso_time(first),
            "end": iso_time(last),
            "name": None,
            "videos": 0,
            "origin": None,
        }
        for first, last in camera.gaps(start, end)
        if last - first >= resolution
    ]
    items.sort(key=lambda one: str(one["start"]))
    return {
        "items": items,
        "next": None,
        "first": iso_time(camera.first_ns),
        "last": iso_time(camera.last_ns),
    }


def calendar(call: Call) -> object:
    camera = _camera(call)
    month = call.query.get("month", "")
    found = _MONTH.fullmatch(month)
    if found is None or found[1] in ("0000", "9999"):
        raise UsageError(f"month must be like 2026-05, got {month!r}")
    zone = call.query.get("zone", "UTC")
    items = [
        {
            "day": day.day.isoformat(),
            "hours": day.hours,
            "kept": day.kept_ns / NS,
            "gaps": day.gaps,
            "start": iso_time(day.start_ns),
            "end": iso_time(day.end_ns),
        }
        for day in camera.days(int(found[1]), int(found[2]), time_zone(zone))
    ]
    return {
        "items": items,
        "next": None,
        "zone": zone,
        "first": iso_time(camera.first_ns),
        "last": iso_time(camera.last_ns),
    }


def playlist(call: Call) -> Response:
    camera = _camera(call)
    start, end = _window(call, camera)
    if call.query.get("q", "auto") not in ("auto", "original"):
        raise UsageError("q must be auto or original")
    parts = camera.between(start, end)
    if not parts:
        raise NotFoundError("the camera has no video in that time")
    is_live = end >= camera.last_ns and camera.last_ns > time.time_ns() - _LIVE_SECONDS * NS
    text = call.web.playlists.of_parts(
        parts, codecs_of(call.query.get("can")), has_ended=not is_live
    )
    return Response(text, headers={"Cache-Control": "private, no-cache"}, media_type=PLAYLIST_TYPE)


def video_playlist(call: Call) -> Response:
    text = call.web.playlists.of_video(call.name, codecs_of(call.query.get("can")))
    return Response(text, headers={"Cache-Control": "private, no-cache"}, media_type=PLAYLIST_TYPE)


def export_plan(call: Call) -> object:
    """The files that together show a time, each with its size and how it is made."""
    camera = _camera(call)
    start, end = _window(call, camera)
    items = [
        _export(call.web.store[part.video.name], low, high)
        for part, low, high in _shown(camera, start, end)
    ]
    gaps = [[iso_time(first), iso_time(last)] for first, last in camera.gaps(start, end)]
    return {"parts": items, "bytes": sum(one["bytes"] for one in items), "gaps": gaps}


def _shown(camera: Camera, start: int, end: int) -> Iterator[tuple[CameraPart, Fraction, Fraction]]:
    """Yield each part with the seconds of its video that a time shows."""
    for part in camera.between(start, end):
        low, high = max(start, part.start_ns), min(end, part.end_ns)
        origin = part.video.start_ns
        yield part, Fraction(low - origin, NS), Fraction(high - origin, NS)


def _export(video: Video, low: Fraction, high: Fraction) -> dict[str, Any]:
    high = min(high, video.duration)
    whole = low == 0 and high >= video.duration
    request = ViewSpec(View(span=None if whole else (low, high)), ViewForm("mp4"))
    context = context_of(video)
    size = int(segment_layout(context.parts, context.tools, video.info, request).offsets[-1])
    return {
        "name": video.name,
        "span": [float(low), float(high)],
        "view": format_view_path(request),
        "made": video.views.explain_request(request).made,
        "bytes": size,
    }


def events(call: Call) -> object:
    """Runs of boxes with one label; a pause of more than two seconds begins another one."""
    camera = _camera(call)
    start, end = _window(call, camera)
    found: list[dict[str, Any]] = []
    for part, low, high in _shown(camera, start, end):
        video = call.web.store[part.video.name]
        if low >= video.duration:
            continue
        rows = find_boxes(
            context_of(video), call.query.get("q") or None, span=(low, min(high, video.duration))
        ).columns()
        if not len(rows):
            continue
        original = video.original
        seconds = (context_of(video).table.pts_of(rows.frames) - original.first_pts) * float(
            original.time_base
        )
        words = rows.labels
        for label in np.unique(words):
            chosen = words == label
            frames, times = rows.frames[chosen], seconds[chosen]
            cuts = np.flatnonzero(np.diff(times) > _PAUSE_SECONDS) + 1
            for first, stop in zip([0, *cuts], [*cuts, len(times)], strict=True):
                found.append(
                    {
                        "start": part.video.start_ns + int(times[first] * NS),
                        "end": part.video.start_ns + int(times[stop - 1] * NS),
                        "label": str(label),
                        "count": int(stop - first),
                        "video": part.video.name,
                        "frame": int(frames[first]),
                    }
                )
    found.sort(key=lambda one: (one["start"], one["label"]))
    newest = found[-number_in(call.query, "limit", _MOST_EVENTS, 1, _MOST_EVENTS) :]
    for one in newest:
        one["start"], one["end"] = iso_time(one["start"]), iso_time(one["end"])
    return {"items": newest, "next": None, **unknown_labels_in(call)}


_OF = "/api/1/cameras/{name:path}"
_WINDOW = (
    Parameter("from", "ISO 8601; default: the first video"),
    Parameter("to", "ISO 8601, exclusive; default: the end of the last video"),
)
_CAN = Parameter("can", "codecs that the player supports, such as h264,av1; default: all")

ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/cameras",
        cameras,
        "The directories of videos with a time of recording, and what they cover.",
        {
            **LIST_FIELDS,
            "items[].name": "path of the directory",
            "items[].first": "when the first video starts, ISO 8601, UTC",
            "items[].last": "when the last video ends",
            "items[].videos": "number of videos",
            "items[].gaps": "number of times without a video, of a second or more",
            "items[].seconds": "time with a video",
            "items[].latest": "object: name of the newest video, its last frame, and its time",
        },
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/spans",
        spans,
        "The videos of a camera and the gaps between them.",
        {
            **LIST_FIELDS,
            "items[].kind": "video or gap",
            "items[].start": "ISO 8601, UTC",
            "items[].end": "exclusive",
            "items[].name": "path of the video; null for a gap, and for several videos",
            "items[].videos": "number of videos",
            "items[].origin": "when the first frame of the video was recorded",
            "first": "start of the first video of the camera",
            "last": "end of the last video of the camera",
        },
        (*_WINDOW, Parameter("res", "seconds: shorter gaps are left out", "integer")),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/calendar",
        calendar,
        "How much of each day of a month has video.",
        {
            **LIST_FIELDS,
            "items[].day": "local day",
            "items[].hours": "23, 24 or 25",
            "items[].kept": "seconds with video",
            "items[].gaps": "number of gaps",
            "items[].start": "when the day begins, ISO 8601, UTC",
            "items[].end": "when it ends",
            "zone": "the time zone",
        },
        (
            Parameter("month", "such as 2026-05", required=True),
            Parameter("zone", "time zone of the days, such as Europe/Zurich; default UTC"),
        ),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/index.m3u8",
        playlist,
        "An HLS playlist over all videos of a time: a discontinuity is a new file or a gap.",
        {},
        (*_WINDOW, Parameter("q", "auto or original"), _CAN),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/export-plan",
        export_plan,
        "The views that together show a time.",
        {
            "parts": "list of objects: name, span (seconds of the video), view (its name), made "
            "(copied, spliced or encoded) and bytes",
            "bytes": "of all parts",
            "gaps": "list of [start, end] without a video",
        },
        _WINDOW,
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/events",
        events,
        "Runs of boxes by label.",
        {
            **LIST_FIELDS,
            **UNKNOWN_LABELS_FIELDS,
            "items[].start": "ISO 8601, UTC",
            "items[].end": "time of its last box",
            "items[].label": "label",
            "items[].count": "number of boxes",
            "items[].video": "path of the video",
            "items[].frame": "frame of the first box",
        },
        (*_WINDOW, Parameter("q", "labels"), Parameter("limit", "most events", "integer")),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/v/{name:path}@/index.m3u8",
        video_playlist,
        "An HLS playlist of a video.",
        {},
        (_CAN,),
        is_scoped=True,
    ),
)
