"""The endpoints of one video: frames, labels, boxes, tiles, reads and history."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from vfsd.api.labels import find_boxes
from vfsd.api.video import Video, context_of
from vfsd.core.detections import NO_TRACK, DetectionColumns
from vfsd.core.frame_table_pages import Ints
from vfsd.core.timebase import human_bytes, iso_time
from vfsd.core.view_request import parse_size
from vfsd.errors import UsageError
from vfsd.records.label_records import LABELS_FIELDS, UNKNOWN_LABELS_FIELDS, labels_record
from vfsd.records.read_records import (
    EXPLAIN_FIELDS,
    READ_FIELDS,
    explanation_record,
    read_record,
)
from vfsd.records.tile_records import (
    RENDITION_FIELDS,
    SHOW_FIELDS,
    layout_record,
    rendition_records,
)
from vfsd.views.layout_facts import layout_facts
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.label_api import QUERY_PARAMETER, unknown_labels_in
from vfsd.web.library_api import LIST_FIELDS
from vfsd.web.query_values import number_in, region_in, seconds_in, span_in

_MAX_BINS = 4000
_MAX_BOXES = 20_000
_HEAT_COLUMNS, _HEAT_ROWS = 64, 36
_HISTORY = 500


def _video(call: Call) -> Video:
    return call.web.store[call.name]


def frames(call: Call) -> object:
    video = _video(call)
    original = video.original
    table = context_of(video).table
    ticks = table.pts(0, len(table)) - original.first_pts
    base = original.time_base
    return {
        "name": video.name,
        "time_base": [base.numerator, base.denominator],
        "runs": _runs(ticks),
        "end": original.end_pts - original.first_pts,
        "key": table.keyframes().tolist(),
    }


def _runs(ticks: Ints) -> list[list[int]]:
    """Return [first, step, count] of each run of equal steps."""
    found: list[list[int]] = []
    at = 0
    steps = np.diff(ticks)
    edges = np.flatnonzero(np.diff(steps)) + 1
    for edge in [*edges.tolist(), len(steps)]:
        # The first step after an edge leads out of the run before it.
        if edge < at or at >= len(ticks):
            continue
        step = int(steps[at]) if at < len(steps) else 0
        stop = edge + 1
        found.append([int(ticks[at]), step, stop - at])
        at = stop
    if at < len(ticks):
        found.append([int(ticks[at]), 0, len(ticks) - at])
    return found


def labels(call: Call) -> object:
    video, catalog = _video(call), call.web.store.catalog
    bins = number_in(call.query, "bins", 0, 0, _MAX_BINS)
    record = {"name": video.name, **labels_record(catalog, video.info)}
    if bins:
        for one in record["labels"]:
            # Sources that differ in their parameters alone are one lane of the page.
            one["bins"] = _bins(video, one, bins)
    return record


def _bins(video: Video, one: Mapping[str, Any], bins: int) -> list[int]:
    named = (one["source"], one["model"], one["version"])
    frames = [
        find_boxes(context_of(video), [[one["label"]]], source=source).columns().frames
        for source in video.labels.sources()
        if (source.name, source.model, source.version) == named
    ]
    shown = context_of(video).table.pts_of(np.concatenate(frames))
    original = video.original
    span = max(1, original.end_pts - original.first_pts)
    places = ((shown - original.first_pts) * bins // span).clip(0, bins - 1)
    counts: list[int] = np.bincount(places, minlength=bins).tolist()
    return counts


def detections(call: Call) -> object:
    video, query = _video(call), call.query
    limit = number_in(query, "limit", _MAX_BOXES, 1, _MAX_BOXES)
    after = number_in(query, "after", 0, 0, 1 << 40)
    span, source = span_in(query), query.get("source") or None
    said = unknown_labels_in(call)
    if span is not None and span[0] >= video.duration:
        nothing = boxes_columns(DetectionColumns.from_detections([]), video)
        return {"columns": nothing, "next": None, **said}
    found = find_boxes(
        context_of(video),
        query.get("q") or None,
        span=span,
        region=region_in(query),
        source=source,
    ).columns()
    page = found.select(slice(after, after + limit))
    following = after + limit if after + limit < len(found) else None
    return {
        "columns": boxes_columns(page, video),
        "next": None if following is None else str(following),
        **said,
    }


def boxes_columns(rows: DetectionColumns, video: Video) -> dict[str, list[Any]]:
    """Return boxes as one list for each property."""
    tracks = rows.tracks.tolist()
    confidences = rows.confidences.tolist()
    sources = [rows.source_of(at) for at in range(len(rows))]
    return {
        "frame": rows.frames.tolist(),
        **{
            key: rows.boxes[:, place].tolist() for place, key in enumerate(("x1", "y1", "x2", "y2"))
        },
        "label": rows.labels.tolist(),
        "source": [None if one is None else one.name for one in sources],
        "confidence": [None if value != value else value for value in confidences],
        "track": [None if one == NO_TRACK else one for one in tracks],
    }


def layout(call: Call) -> object:
    video = _video(call)
    found = call.web.store.catalog.segments(video.info)
    moment = seconds_in(call.query, "t")
    if moment is not None:
        index = video.index_at(moment)
        found = [one for one in found if index in one.frames]
    return layout_record(video, found)


def renditions(call: Call) -> object:
    video = _video(call)
    return {"items": list(rendition_records(call.web.store.catalog, video)), "next": None}


def explain(call: Call) -> object:
    from vfsd.api.reading import fetch_of_read

    video, query = _video(call), call.query
    view = query.get("view")
    if view is not None:
        given = sorted({"region", "span", "size", "fps", "psnr"} & set(query))
        if given:
            raise UsageError(f"a view takes no {given[0]}", hint="put it into the name of the view")
        found = video.views.explain(view)
        return {"name": video.name, **found.record, "fetch": None, "measured": None}
    psnr, fps, size = query.get("psnr"), seconds_in(query, "fps"), query.get("size")
    done = video.explain(
        span=query.get("span") or None,
        region=region_in(query),
        size=None if not size else parse_size(size),
        fps=fps,
        psnr=None if not psnr else _decibels(psnr),
    )
    return explanation_record(video, done, fetch_of_read(context_of(video), done), None)


def _decibels(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"psnr must be a number of decibels, got {text!r}") from None


def heat(call: Call) -> object:
    """How often each part of the frame was read, in the segment around a time, or in all."""
    video = _video(call)
    moment, chosen, segment = seconds_in(call.query, "t"), range(len(video)), None
    if moment is not None:
        index = video.index_at(moment)
        here = [one for one in call.web.store.catalog.segments(video.info) if index in one.frames]
        segment = max(here, key=lambda one: one.created_ns, default=None)
        around = next(one for one in context_of(video).sequences(None) if index in one)
        chosen = around if segment is None else segment.frames
    facts = layout_facts(
        call.web.store.catalog,
        video.info,
        context_of(video).table,
        segment,
        chosen,
        chosen.start,
    )
    most = int(facts.heat.max())
    rows = min(_HEAT_ROWS, video.height)
    columns = min(_HEAT_COLUMNS, video.width)
    tops = np.arange(rows) * video.height // rows
    lefts = np.arange(columns) * video.width // columns
    reduced = np.maximum.reduceat(np.maximum.reduceat(facts.heat, tops, axis=0), lefts, axis=1)
    return {
        "columns": columns,
        "rows": rows,
        "values": (reduced / max(1, most)).round(4).ravel().tolist(),
        "most": most,
        "reads": facts.reads,
        "frames": [chosen.start, chosen.stop],
    }


def reads(call: Call) -> object:
    video = _video(call)
    limit = number_in(call.query, "limit", 200, 1, 10_000)
    found = islice(call.web.store.catalog.reads(video.info), limit)
    return {"items": [read_record(video.name, read) for read in found], "next": None}


def history(call: Call) -> object:
    """The events of a video: its arrival, changes of its original, its tiles."""
    video, catalog = _video(call), call.web.store.catalog
    info = video.info
    events = [(info.created_ns, "added", f"became a video of {human_bytes(info.size)}")]
    if info.captured is not None:
        events.append((info.captured.ns, "recorded", f"by the clock: {info.captured.clock.value}"))
    with catalog.reading() as seen:
        log = seen.retention.log(info.id)
        segments = [
            *seen.segments.active(info.original.id),
            *seen.segments.retired(info.original.id),
        ]
    for entry in log:
        events.append((entry.at_ns, entry.action.value, entry.reason))
    made: dict[tuple[int, str], list[int]] = {}
    for one in segments:
        made.setdefault((one.created_ns // 10**9, one.profile), []).append(one.size)
    for (second, profile), sizes in made.items():
        text = f"{len(sizes)} segments of {profile} tiles, {human_bytes(sum(sizes))}"
        events.append((second * 10**9, "tiles", text))
    for decision in catalog.decisions(info):
        if decision.undone_ns is not None:
            text = f"decision {decision.id} was undone"
            events.append((decision.undone_ns, "undone", text))
    newest = sorted(events, reverse=True)[:_HISTORY]
    items = [{"at": iso_time(ns), "kind": kind, "text": text} for ns, kind, text in newest]
    return {"items": items, "next": None}


_OF = "/api/1/videos/{name:path}"
_ITEMS = {**LIST_FIELDS}

ENDPOINTS = (
    Endpoint(
        "GET",
        f"{_OF}/frames",
        frames,
        "The exact times of all frames, and the key frames.",
        {
            "name": "path from the root of the store",
            "time_base": "[numerator, denominator] of a tick in seconds",
            "runs": "list of [first, step, count]: ticks at which frames are shown, from 0",
            "end": "tick at which the last frame ends",
            "key": "numbers of the frames at which decoding can start",
        },
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/labels",
        labels,
        "The labels of a video, and the frames that each source has examined.",
        {**LABELS_FIELDS, "labels[].bins": "with `bins`: boxes in equal parts of the duration"},
        (Parameter("bins", f"number of parts, up to {_MAX_BINS}", "integer"),),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/detections",
        detections,
        "The boxes of a video, by frame.",
        {
            "columns": "object of lists: frame, x1, y1, x2, y2 (pixels of the displayed frame), "
            "label, source, confidence and track",
            "next": "`after` of the next page, or null",
            **UNKNOWN_LABELS_FIELDS,
        },
        (
            QUERY_PARAMETER,
            Parameter("from", "seconds", "number"),
            Parameter("to", "seconds, exclusive", "number"),
            Parameter("region", "only boxes that overlap it: WxH+X+Y"),
            Parameter("source", "only boxes of this source"),
            Parameter("limit", f"most boxes, up to {_MAX_BOXES}", "integer"),
            Parameter("after", "the `next` of the page before"),
        ),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/layout",
        layout,
        "The tiles that reads may use, as `vfsd layout show --json`.",
        SHOW_FIELDS,
        (Parameter("t", "only the tiles of the frame at this time in seconds", "number"),),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/renditions",
        renditions,
        "The renditions of a video, as `vfsd rendition ls --json`.",
        {
            **_ITEMS,
            **{f"items[].{key}": text for key, text in RENDITION_FIELDS.items()},
        },
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/explain",
        explain,
        "The work of a read or a view, as `vfsd explain --json`.  Nothing is decoded.",
        EXPLAIN_FIELDS,
        (
            Parameter("region", "WxH+X+Y of the displayed frame"),
            Parameter("span", "A-B in seconds"),
            Parameter("size", "WxH of the result"),
            Parameter("fps", "frames per second", "number"),
            Parameter("psnr", "minimum dB", "number"),
            Parameter("view", "name of a view, such as t=1-3.mp4, instead of the others"),
        ),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/heat",
        heat,
        "How often each part of the frame was read.",
        {
            "columns": "number of columns",
            "rows": "number of rows",
            "values": "share of the most frequent part, 0 to 1, row by row",
            "most": "number of reads of the most frequent part",
            "reads": "number of reads of these frames",
            "frames": "[first, end) of the frames",
        },
        (Parameter("t", "only the second around this time", "number"),),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/reads",
        reads,
        "The logged reads of a video, newest first, as `vfsd reads --json`.",
        {**_ITEMS, **{f"items[].{key}": text for key, text in READ_FIELDS.items()}},
        (Parameter("limit", "most reads; default 200", "integer"),),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        f"{_OF}/history",
        history,
        "The events of a video, newest first.",
        {
            **_ITEMS,
            "items[].at": "ISO 8601, UTC",
            "items[].kind": "added, recorded, replaced, decayed, deleted, left, held, released, "
            "tiles or undone",
            "items[].text": "a description",
        },
        is_scoped=True,
    ),
)
