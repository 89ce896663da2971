"""The endpoints of layers: their list, counts of pixels, and the frames with the most."""

from __future__ import annotations

from collections.abc import Mapping

from vfsd.api.layer import BoxOptions, layers_of, top_of_layers
from vfsd.errors import NotFoundError, UsageError
from vfsd.records.label_records import (
    HIT_FIELDS,
    LAYER_FIELDS,
    UNKNOWN_LABELS_FIELDS,
    hit_record,
    layer_record,
)
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.label_api import IN_PARAMETER, chosen_videos, unknown_labels_in
from vfsd.web.query_values import flag_in, number_in, region_in, span_in

_MOST_HITS = 1000
_MOST_MAPS = 100_000


def listing(call: Call) -> object:
    """All layers that the user may see, by video."""
    store, chosen = call.web.store, chosen_videos(call)
    wanted = None if chosen is None else {name for _, name in chosen}
    with store.catalog.reading() as seen:
        ids = sorted({one.video_id for one in seen.layers.all()})
        names = sorted(seen.lists.names_of_videos(ids).values())
    videos = [store[name] for name in names if wanted is None or name in wanted]
    return {"layers": [layer_record(one) for video in videos for one in video.layers.values()]}


def counts(call: Call) -> object:
    """One count for each map of a layer."""
    layer = call.web.store[call.name].layers[_text(call.query, "layer")]
    span = span_in(call.query)
    frames = layer.frames_in(span)
    if len(frames) > _MOST_MAPS:
        raise UsageError(f"from and to must choose at most {_MOST_MAPS} maps, got {len(frames)}")
    found = layer.count(
        region_in(call.query),
        low=_number(call.query, "low"),
        high=_number(call.query, "high"),
        span=span,
    )
    return {"frames": frames.tolist(), "counts": found.tolist()}


def top(call: Call) -> object:
    """The frames, or boxes, with the most pixels."""
    query, store, chosen = call.query, call.web.store, chosen_videos(call)
    names = list(store) if chosen is None else [name for _, name in chosen]
    options: BoxOptions = {"source": query["source"]} if query.get("source") else {}
    labels = query.get("q") or None
    hits = top_of_layers(
        layers_of([store[name] for name in names], _text(query, "layer")),
        number_in(query, "n", 25, 1, _MOST_HITS),
        region_in(query),
        low=_number(query, "low"),
        high=_number(query, "high"),
        boxes=labels,
        ascending=flag_in(query, "ascending"),
        **options,
    )
    return {"hits": [hit_record(one) for one in hits]} | unknown_labels_in(call)


def _number(query: Mapping[str, str], key: str) -> float | None:
    text = query.get(key)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{key} must be a number, got {text!r}") from None


def _text(query: Mapping[str, str], key: str) -> str:
    text = query.get(key)
    if not text:
        raise NotFoundError(f"no {key} was named", hint=f"add {key}=NAME")
    return text


_VALUES = (
    Parameter("layer", "name of the layer", required=True),
    Parameter("low", "count values from it on", "number"),
    Parameter("high", "count values below it", "number"),
    Parameter("region", "pixels of the displayed frame: WxH+X+Y; default: all"),
)

ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/layers",
        listing,
        "Layers: masks, depth and other maps of the frames of videos.",
        {"layers": "list of objects: " + ", ".join(LAYER_FIELDS)},
        (IN_PARAMETER,),
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/api/1/videos/{name:path}/layer_counts",
        counts,
        "Numbers of pixels with certain values on each map of a layer.",
        {
            "frames": "list of frame numbers with a map",
            "counts": "list of numbers of pixels of the map, one for each frame",
        },
        (
            *_VALUES,
            Parameter("from", "seconds", "number"),
            Parameter("to", "seconds, exclusive", "number"),
        ),
        is_work=True,
        is_scoped=True,
    ),
    Endpoint(
        "GET",
        "/api/1/layers/top",
        top,
        "The frames or boxes of videos with the most pixels of certain values.",
        {
            "hits": "list of objects, the best first: " + ", ".join(HIT_FIELDS),
            **UNKNOWN_LABELS_FIELDS,
        },
        (
            *_VALUES,
            IN_PARAMETER,
            Parameter("q", "labels of boxes to search, instead of a region"),
            Parameter("source", "source of the boxes"),
            Parameter("n", "most hits; default: 25", "integer"),
            Parameter("ascending", "1: the fewest pixels instead", "integer"),
        ),
        is_work=True,
        is_scoped=True,
    ),
)
