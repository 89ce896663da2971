"""The endpoints of overlap: pairs of videos that show the same place."""

from __future__ import annotations

from vfsd.errors import UsageError
from vfsd.overlap import joined, overlap, overlaps, split
from vfsd.records.overlap_records import JOINED_FIELDS, PAIR_FIELDS, joined_record, pair_record
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.query_values import require_keys, text_in, words_in
from vfsd.web.users import UserRole

_MOST_VIDEOS = 50


def joined_pairs(call: Call) -> object:
    return {"items": [joined_record(one) for one in joined(call.web.store)], "next": None}


def pair(call: Call) -> object:
    names = [call.query.get(side, "") for side in ("left", "right")]
    if not all(names):
        raise UsageError("left and right must name videos")
    found = overlap(call.web.store, *names)
    return {"pair": None if found is None else pair_record(found)}


def find(call: Call) -> object:
    require_keys(call.body, _FIND_BODY)
    store = call.web.store
    names = [video.name for video in store.named(words_in(call.body, "names") or ["**"])]
    if len(names) > _MOST_VIDEOS:
        raise UsageError(
            f"names must mean at most {_MOST_VIDEOS} videos, got {len(names)}",
            hint="`vfsd overlap find` takes any number",
        )
    report = overlaps(store, names)
    return {
        "items": [pair_record(one) for one in report.pairs],
        "videos": report.videos,
        "compared": report.compared,
        "unreadable": {name: str(error) for name, error in report.unreadable.items()},
    }


_FIND_BODY = {"names": "list of names and patterns; empty: all videos"}


def split_pair(call: Call) -> object:
    require_keys(call.body, _SPLIT_BODY)
    left, right = text_in(call.body, "left"), text_in(call.body, "right")
    items = [joined_record(one) for one in split(call.web.store, left, right)]
    return {"items": items, "next": None}


_SPLIT_BODY = {"left": "name of one video", "right": "name of the other"}
_JOINED_ITEMS = {
    "items": "list of objects",
    "next": "null",
    **{f"items[].{key}": text for key, text in JOINED_FIELDS.items()},
}

ENDPOINTS = (
    Endpoint("GET", "/api/1/overlap", joined_pairs, "The joined pairs of videos.", _JOINED_ITEMS),
    Endpoint(
        "GET",
        "/api/1/overlap/pair",
        pair,
        "How two videos overlap; decodes a few frames of each.",
        {
            "pair": "null if they do not show the same place, else an object",
            **{f"pair.{key}": text for key, text in PAIR_FIELDS.items()},
        },
        (
            Parameter("left", "name of one video", required=True),
            Parameter("right", "name of the other", required=True),
        ),
        is_work=True,
    ),
    Endpoint(
        "POST",
        "/api/1/overlap/find",
        find,
        "Pairs of videos that show the same place; decodes a few frames of each video.",
        {
            **{f"items[].{key}": text for key, text in PAIR_FIELDS.items()},
            "videos": "number of examined videos",
            "compared": "number of compared pairs",
            "unreadable": "object: errors by name",
        },
        body=_FIND_BODY,
        role=UserRole.LABEL,
        is_work=True,
    ),
    Endpoint(
        "POST",
        "/api/1/overlap/split",
        split_pair,
        "Delete the joined data of two videos.",
        _JOINED_ITEMS,
        body=_SPLIT_BODY,
        role=UserRole.ADMIN,
        is_change=True,
    ),
)
