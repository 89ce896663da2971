"""The endpoints of jobs: start, list, pause and stop work, and undo decisions of the tuner."""

from __future__ import annotations

from typing import Any

from vfsd.errors import UsageError
from vfsd.records.tile_records import (
    DECISION_FIELDS,
    PROPOSAL_FIELDS,
    decision_record,
    proposal_record,
)
from vfsd.records.work_records import ORDER_FIELDS
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.job_commands import KINDS
from vfsd.web.library_api import LIST_FIELDS
from vfsd.web.query_values import number_in, require_keys, text_in
from vfsd.web.users import UserRole

_JOB = {
    "id": "eight hexadecimal digits",
    "kind": f"one of {', '.join(KINDS)}; or the verb of an order",
    "what": "names of its videos, for display",
    "state": "waiting, running, paused, done, failed or cancelled",
    "progress": "[done, all] units of its order, or null",
    "created": "ISO 8601, UTC",
    "started": "ISO 8601, UTC, or null",
    "ended": "ISO 8601, UTC, or null",
    "error": "why it failed, or null",
    "order": "its order as in `vfsd work ls --json`, or null: "
    + "; ".join(f"{key}: {text}" for key, text in ORDER_FIELDS.items()),
}
_RESULTS = {"results": "list of the objects that the command has printed with --json"}
_NEW = {
    "kind": "one of " + "; ".join(f"{name} ({kind.about})" for name, kind in KINDS.items()),
    "args": "object: names (list of videos, patterns or directories), and arguments of the kind",
    "dry_run": "true: only return what would be done",
}


def jobs(call: Call) -> object:
    return {"items": call.web.jobs.all(), "next": None}


def job(call: Call) -> object:
    return call.web.jobs.get(str(call.request.path_params["id"]))


def start(call: Call) -> object:
    require_keys(call.body, _NEW)
    kind = text_in(call.body, "kind")
    args = call.body.get("args", {})
    if not isinstance(args, dict):
        raise UsageError("args must be an object")
    if call.body.get("dry_run"):
        items = call.web.jobs.dry_run(kind, args)
        # One object for the usual case of one video.
        return {**(items[0] if items else {}), "items": items}
    return call.web.jobs.get(call.web.jobs.start(kind, args).id)


def cancel(call: Call) -> object:
    return call.web.jobs.cancel(str(call.request.path_params["id"]))


def pause(call: Call) -> object:
    return call.web.jobs.pause(str(call.request.path_params["id"]))


def resume(call: Call) -> object:
    return call.web.jobs.resume(str(call.request.path_params["id"]))


def tune(call: Call) -> object:
    store = call.web.store
    limit = number_in(call.query, "limit", 200, 1, 1000)
    proposals = []
    for proposal in store.proposals()[:limit]:
        video = store.open_video(proposal.video)
        proposals.append(proposal_record(video, proposal, allowed=True))
    history: list[dict[str, Any]] = []
    for decision in store.catalog.decisions()[:limit]:
        with store.catalog.reading() as seen:
            info = seen.videos.get(decision.video_id)
        history.append(decision_record(store.open_video(info), decision))
    return {"proposals": proposals, "history": history}


def undo(call: Call) -> object:
    number = call.body.get("id")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise UsageError(f"id must be the number of a decision, got {number!r}")
    store = call.web.store
    decision = store.undo(number)
    with store.catalog.reading() as seen:
        info = seen.videos.get(decision.video_id)
    return decision_record(store.open_video(info), decision)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/jobs",
        jobs,
        "The jobs of the server and the orders of work, newest first.",
        {**LIST_FIELDS, **{f"items[].{key}": text for key, text in _JOB.items()}},
    ),
    Endpoint(
        "POST",
        "/api/1/jobs",
        start,
        "Start a job, or estimate what it would do.",
        {**_JOB, **_RESULTS, "items": "with dry_run: list of objects as the command prints them"},
        body=_NEW,
        role=UserRole.ADMIN,
        is_change=True,
    ),
    Endpoint("GET", "/api/1/jobs/{id}", job, "A job and its results.", {**_JOB, **_RESULTS}),
    Endpoint(
        "DELETE",
        "/api/1/jobs/{id}",
        cancel,
        "Stop a job; the results of its order stay.",
        {**_JOB, **_RESULTS},
        role=UserRole.ADMIN,
        is_change=True,
    ),
    Endpoint(
        "POST",
        "/api/1/jobs/{id}/pause",
        pause,
        "Stop a job until it is resumed.",
        {**_JOB, **_RESULTS},
        body={},
        role=UserRole.ADMIN,
        is_change=True,
    ),
    Endpoint(
        "POST",
        "/api/1/jobs/{id}/resume",
        resume,
        "Continue a job that is paused, failed or cancelled.",
        {**_JOB, **_RESULTS},
        body={},
        role=UserRole.ADMIN,
        is_change=True,
    ),
    Endpoint(
        "GET",
        "/api/1/tune",
        tune,
        "Tiles that would pay for the logged reads, and the tiles made so far.",
        {
            "proposals": "list of objects as `vfsd tune --json`: "
            + "; ".join(f"{key}: {text}" for key, text in PROPOSAL_FIELDS.items()),
            "history": "list of objects as `vfsd tune history --json`: "
            + "; ".join(f"{key}: {text}" for key, text in DECISION_FIELDS.items()),
        },
        (Parameter("limit", "most objects of each list; default 200", "integer"),),
    ),
    Endpoint(
        "POST",
        "/api/1/tune/undo",
        undo,
        "Undo a decision of the tuner: reads use the data from before.",
        DECISION_FIELDS,
        body={"id": "number of the decision; default: the latest in use"},
        role=UserRole.ADMIN,
        is_change=True,
    ),
)
