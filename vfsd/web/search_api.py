"""The endpoints of saved searches."""

from __future__ import annotations

from itertools import islice

from vfsd.api.events import EventList
from vfsd.core.detections import Detection
from vfsd.errors import UsageError
from vfsd.records.label_records import (
    SEARCH_FIELDS,
    UNKNOWN_LABELS_FIELDS,
    event_record,
    search_record,
    unknown_labels_record,
)
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.query_values import number_in, require_keys, text_in
from vfsd.web.users import UserRole

_MAX_RESULTS = 1000

_SAVED = {
    "name": "name of the search",
    "kind": "boxes or events",
    "arguments": "object: as in the answer of GET",
    "replace": "true: replace the search of that name",
}


def searches(call: Call) -> object:
    return {"items": [search_record(one) for one in call.web.store.searches.all()]}


def save(call: Call) -> object:
    body = call.body
    require_keys(body, _SAVED)
    arguments = body.get("arguments")
    if not isinstance(arguments, dict):
        raise UsageError(f"arguments must be an object, got {arguments!r}")
    saved = call.web.store.searches.save(
        text_in(body, "name"),
        text_in(body, "kind"),
        arguments,
        replace=body.get("replace") is True,
    )
    return search_record(saved)


def remove(call: Call) -> object:
    require_keys(call.body, {"name": ""})
    name = text_in(call.body, "name")
    call.web.store.searches.remove(name)
    return {"name": name}


def results(call: Call) -> object:
    """The first results of a search."""
    limit = number_in(call.query, "n", 100, 1, _MAX_RESULTS)
    found = call.web.store.searches.find(call.query.get("name", ""))
    if isinstance(found, EventList):
        items = [event_record(one) for one in found[:limit]]
    else:
        items = [_box_item(name, box) for name, box in islice(found, limit)]
    said = unknown_labels_record(found.unknown_labels)
    return {"total": len(found), "items": items, **said}


def _box_item(name: str, box: Detection) -> dict[str, object]:
    return {
        "name": name,
        "frame": box.frame,
        "label": box.label,
        "box": list(box.box),
        "confidence": box.confidence,
        "track": box.track,
        "source": str(box.source or ""),
    }


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/searches",
        searches,
        "The saved searches.",
        {
            "items": "list of objects",
            **{f"items[].{key}": text for key, text in SEARCH_FIELDS.items()},
        },
    ),
    Endpoint(
        "GET",
        "/api/1/searches/results",
        results,
        "The results of a saved search.",
        {
            "total": "number of boxes or events",
            "items": "list of objects: name (of a video), frame, label, box, confidence, track and "
            "source of a box; or name, frames, span, steps, tracks and view of an event",
            **UNKNOWN_LABELS_FIELDS,
        },
        (
            Parameter("name", "name of the search", required=True),
            Parameter("n", f"number of items, up to {_MAX_RESULTS}; default 100", "integer"),
        ),
        is_work=True,
    ),
    Endpoint(
        "POST",
        "/api/1/searches",
        save,
        "Save a search of boxes or events.",
        SEARCH_FIELDS,
        body=_SAVED,
        role=UserRole.LABEL,
        is_change=True,
    ),
    Endpoint(
        "POST",
        "/api/1/searches/remove",
        remove,
        "Remove a saved search.",
        {"name": "name of the search"},
        body={"name": "name of the search"},
        role=UserRole.LABEL,
        is_change=True,
    ),
)
