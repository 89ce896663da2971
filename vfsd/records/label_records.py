"""Records of labelled boxes, of the labels of a video, of events, saved searches and moments."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.timebase import iso_time

if TYPE_CHECKING:
    from vfsd.api.events import Event
    from vfsd.api.layer import Layer, LayerHit
    from vfsd.api.layer_maps import LayerWork
    from vfsd.catalog import Catalog
    from vfsd.catalog.searches import SavedSearch
    from vfsd.core.detections import BoxTotal, Detection, Ints, Source
    from vfsd.core.label_query import UnknownLabels
    from vfsd.core.model import LogicalVideo
    from vfsd.core.moments import FrameRun, Moment


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
                **one.record(),
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


LAYER_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path of the video from the root of the store",
        "layer": "name of the layer",
        "file": "path of the video with the maps",
        "maps": "number of maps",
        "frames": "list of frames that have a map, as [first, end] pairs",
        "size": "width and height of a map",
        "bits": "bits of a sample: 8 or 16",
        "scale": "a sample stands for zero + scale * sample",
        "zero": "see scale",
        "unit": "unit of the values, or empty",
        "source": "object: name, model and version of the source of the maps; or null",
        "index": "bytes of the index, or null",
    }
)


def layer_record(layer: Layer) -> dict[str, Any]:
    """The values of `LAYER_FIELDS`."""
    source = layer.source
    return {
        "name": layer.video,
        "layer": layer.name,
        "file": layer.file,
        "maps": len(layer),
        "frames": _pairs(layer.frames),
        "size": list(layer.size),
        "bits": layer.bits,
        "scale": layer.meaning.scale,
        "zero": layer.meaning.zero,
        "unit": layer.meaning.unit,
        "source": None if source is None else source.record(),
        "index": layer.index_bytes,
    }


COUNT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path of the video from the root of the store",
        "frame": "number of the frame, from 0",
        "count": "number of pixels of its map",
    }
)

WHERE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path of the video from the root of the store",
        "layer": "name of the layer",
        "frames": "list of frames, as [first, end] pairs",
        "maps": "number of maps searched",
        "by_runs": "maps that the index decided in runs",
        "by_maps": "maps that the index decided one by one",
        "decoded": "maps that were decoded",
    }
)


def where_record(layer: Layer, frames: Ints, work: LayerWork) -> dict[str, Any]:
    """The values of `WHERE_FIELDS`."""
    return {
        "name": layer.video,
        "layer": layer.name,
        "frames": _pairs(frames),
        "maps": work.maps,
        "by_runs": work.by_runs,
        "by_maps": work.by_maps,
        "decoded": work.decoded,
    }


HIT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        **COUNT_FIELDS,
        "box": "x1, y1, x2, y2 in pixels of the displayed frame; null: the region",
        "label": "label of the box, or null",
    }
)


def hit_record(one: LayerHit) -> dict[str, Any]:
    """The values of `HIT_FIELDS`."""
    return {
        "name": one.video,
        "frame": one.frame,
        "count": one.count,
        "box": None if one.box is None else list(one.box.box),
        "label": None if one.box is None else one.box.label,
    }


def _pairs(frames: Ints) -> list[list[int]]:
    from vfsd.core.detections import contiguous_ranges  # imports numpy

    return [[part.start, part.stop] for part in contiguous_ranges(frames)]


MOMENT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "frames": "[first, end) of the frames",
        "span": "[from, to] in seconds",
        "view": "name of the view with these frames, without its ending",
        "label": "the label",
        "confidence": "on the scale of the source, or null",
        "source": "name of the source",
        "model": "model of the source; empty: unknown",
        "version": "version of the model; empty: unknown",
        "attributes": "object: other properties",
    }
)
WINDOW_FIELDS: Mapping[str, str] = MappingProxyType(
    {key: MOMENT_FIELDS[key] for key in ("name", "frames", "span", "view")}
)


def window_record(one: FrameRun) -> dict[str, object]:
    return {
        "name": one.video,
        "frames": [one.frames.start, one.frames.stop],
        "span": [float(edge) for edge in one.span],
        "view": one.name,
    }


def moment_record(one: Moment) -> dict[str, object]:
    return {
        **window_record(one),
        "label": one.label,
        "confidence": one.confidence,
        "source": one.source.name,
        "model": one.source.model,
        "version": one.source.version,
        "attributes": dict(one.attributes),
    }
