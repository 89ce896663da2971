"""Records of labelled boxes, of the labels of a video, of events and of saved searches."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.timebase import iso_time

if TYPE_CHECKING:
    from vfsd.api.events import Event
    from vfsd.catalog import Catalog
    from vfsd.catalog.searches import SavedSearch
    from vfsd.core.detections import BoxTotal, Detection, Source
    from vfsd.core.label_query import UnknownLabels
    from vfsd.core.model import LogicalVideo


BOX_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "frame": "number of the frame, from 0",
        "seconds": "time at which the frame is shown",
        "label": "label of the box",
        "box": "x1, y1, x2, y2 in pixels of the displayed frame, x2 and y2 exclusive",
        "confidence": "confidence from its source, or null",
        "track": "number of the object within its source, or null",
        "source": "source of the box",
        "model": "model of the source, or empty",
        "version": "version of the model, or empty",
        "attributes": "object with further values",
    }
)


def box_record(one: Detection, seconds: float) -> dict[str, object]:
    assert one.source is not None
    return {
        "frame": one.frame,
        "seconds": seconds,
        "label": one.label,
        "box": list(one.box),
        "confidence": one.confidence,
        "track": one.track,
        "source": one.source.name,
        "model": one.source.model,
        "version": one.source.version,
        "attributes": dict(one.attributes),
    }


UNKNOWN_LABELS_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "unknown_labels": "labels of the query that no box in the store has ever had",
        "known_labels": "the labels of the store; empty where none is unknown",
    }
)


def unknown_labels_record(found: UnknownLabels) -> dict[str, object]:
    return {"unknown_labels": list(found.unknown), "known_labels": list(found.known)}


LABEL_TOTAL_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "label": "label of the boxes",
        "source": "source of the boxes",
        "model": "model of the source, or empty",
        "version": "version of the model, or empty",
        "boxes": "number of boxes in all videos together",
    }
)


def label_total_record(one: BoxTotal) -> dict[str, Any]:
    assert one.source is not None
    return {
        "label": one.label,
        "source": one.source.name,
        "model": one.source.model,
        "version": one.source.version,
        "boxes": one.boxes,
    }


LABELS_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "labels": "list of objects, one for each label of each source: label, source, model, "
        "version, boxes, frames (with boxes), tracks, first_frame, end_frame (exclusive)",
        "sources": "list of objects: name, model, version, parameters, examined (list of [first, "
        "end) frames)",
    }
)


def labels_record(catalog: Catalog, video: LogicalVideo) -> dict[str, Any]:
    ranges: dict[Source, list[list[int]]] = {one: [] for one in catalog.detections.sources(video)}
    for one in catalog.detections.examined(video):
        ranges.setdefault(one.source, []).append([one.frames.start, one.frames.stop])
    return {
        "labels": [
            {
                "label": one.label,
                "source": source.name,
                "model": source.model,
                "version": source.version,
                "boxes": one.boxes,
                "frames": one.frames,
                "tracks": one.tracks,
                "first_frame": one.first_frame,
                "end_frame": one.end_frame,
            }
            for source in ranges
            for one in catalog.detections.labels(video, source=source)
        ],
        "sources": [
            {
                "name": one.name,
                "model": one.model,
                "version": one.version,
                "parameters": dict(one.parameters),
                "examined": examined,
            }
            for one, examined in ranges.items()
        ],
    }


EVENT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "frames": "[first, end), numbers of frames",
        "span": "[from, to] in seconds",
        "steps": "[first, end) of each step, in frames",
        "tracks": "object: the track of each variable, or null",
        "view": "name of the view with these frames, without extension",
    }
)

UNKNOWN_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "unknown": "list of [first, end): frames that no source examined for a variable",
    }
)


def event_record(one: Event) -> dict[str, Any]:
    return {
        "name": one.video,
        "frames": [one.frames.start, one.frames.stop],
        "span": [float(edge) for edge in one.span],
        "steps": [[step.start, step.stop] for step in one.steps],
        "tracks": dict(one.tracks),
        "view": one.name,
    }


SEARCH_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "name of the search",
        "kind": "boxes or events",
        "arguments": "object: labels or event and variables, names of videos, and conditions; "
        "times are seconds as text",
        "saved": "when it was saved, ISO 8601",
    }
)


def search_record(one: SavedSearch) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "arguments": dict(one.arguments),
        "saved": iso_time(one.saved_ns),
    }
