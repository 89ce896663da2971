"""The endpoints of storage: bytes by kind and directory, budgets, ageing, policies and holds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice

from vfsd.core.budgets import DEFAULT_VIDEO_LIMIT, Limit
from vfsd.core.timebase import iso_time
from vfsd.derive.derived_data import DerivedBudget
from vfsd.errors import NotFoundError, UsageError, VfsdError
from vfsd.maintenance.age import RetentionExecutor, RetentionPlan
from vfsd.maintenance.due_rules import FreedSpace, RetentionCandidate, due_by_age
from vfsd.records.budget_records import (
    EVICTION_FIELDS,
    LIMIT_FIELDS,
    USAGE_FIELDS,
    WHAT_IF_FIELDS,
    eviction_record,
    limit_record,
    usage_record,
    what_if_record,
)
from vfsd.records.original_records import (
    AGE_FIELDS,
    HOLD_FIELDS,
    LOG_FIELDS,
    POLICY_FIELDS,
    forecast_record,
    hold_record,
    log_record,
    policy_record,
    unchanged_record,
)
from vfsd.records.store_stats import STORE_FIELDS, store_stats
from vfsd.web.endpoint import Call, Endpoint, Parameter
from vfsd.web.library_api import LIST_FIELDS
from vfsd.web.query_values import MAX_PAGE, PAGE, number_in, require_keys, text_in, words_in
from vfsd.web.users import UserRole

_MOST_LATER = 60


def storage(call: Call) -> object:
    store = call.web.store
    return {**asdict(store_stats(store)), "dirs": _directories(call)}


def _directories(call: Call) -> list[dict[str, object]]:
    """Sums of the first level of directories."""
    store = call.web.store
    with store.catalog.reading() as seen:
        derived: dict[int, int] = defaultdict(int)
        for segment in seen.derived_usage.segments(None):
            derived[segment.video_id] += segment.bytes
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for video in store.catalog.find():
        head, slash, _ = video.name.partition("/")
        entry = sums[head if slash else ""]
        entry[0] += 1
        entry[1] += video.original.size
        entry[2] += derived[video.id]
    return [
        {"dir": name, "videos": count, "originals": originals, "derived": extra}
        for name, (count, originals, extra) in sorted(sums.items(), key=lambda one: -one[1][1])
    ]


def budgets(call: Call) -> object:
    """The store, and the videos with derived data or a budget of their own."""
    store = call.web.store
    items = [usage_record(None, store.budget.usage(), ())]
    with store.catalog.reading() as seen:
        used = {segment.video_id for segment in seen.derived_usage.segments(None)}
    for video in store.find():
        budget = video.budget
        if video.info.id in used or budget.usage().limit != DEFAULT_VIDEO_LIMIT:
            items.append(usage_record(video.name, budget.usage(), budget.pins()))
    return {"items": items, "next": None}


def set_budget(call: Call) -> object:
    require_keys(call.body, _SET_BODY)
    name = call.body.get("name")
    limit = _limit(call.body)
    store = call.web.store
    budget = store.budget if name is None else store[text_in(call.body, "name")].budget
    evicted = budget.set(limit)
    return {
        **limit_record(None if name is None else str(name), budget.usage()),
        "evicted": len(evicted),
        "bytes": sum(one.bytes for one in evicted),
    }


_SET_BODY = {
    "name": "name of a video; null for the whole store",
    "limit": "bytes such as 20G, Nx, none or default",
}


def _limit(body: Mapping[str, object]) -> Limit | None:
    text = text_in(body, "limit")
    return None if text == "default" else Limit.parse(text)


def what_if(call: Call) -> object:
    require_keys(call.body, _WHAT_IF_BODY)
    limit = _limit(call.body)
    if limit is None:
        raise UsageError("limit must be a size, a multiple or none, such as 20M or 10x")
    store, names = call.web.store, words_in(call.body, "names")
    of_number = {video.id: video.name for video in store.catalog.find()}
    chosen: list[tuple[str | None, DerivedBudget]] = [(name, store[name].budget) for name in names]
    items = [
        what_if_record(name, budget.what_if(limit), of_number)
        for name, budget in chosen or [(None, store.budget)]
    ]
    return {"items": items, "next": None}


_WHAT_IF_BODY = {
    "limit": "bytes such as 20G, Nx or none",
    "names": "list of names of videos; empty: the whole store",
}


def budget_log(call: Call) -> object:
    store = call.web.store
    limit = number_in(call.query, "limit", PAGE, 1, MAX_PAGE)
    of_number = {video.id: video.name for video in store.catalog.find()}
    found = store.budget.evictions(limit)
    items = [eviction_record(of_number.get(one.video_id, ""), one) for one in found]
    return {"items": items, "next": None}


def age(call: Call) -> object:
    """The steps that policies require now and later; encodes nothing."""
    store = call.web.store
    executor = RetentionExecutor(store.parts, list(store.find()))
    with store.catalog.reading() as seen:
        log = [log_record(one) for one in seen.retention.log(limit=PAGE)]
    try:
        plan = executor.plan()
    except VfsdError as error:
        # The clock is wrong, or most videos would be deleted: `vfsd age` refuses, and says why.
        return {"due": [], "later": [], "log": log, "refused": str(error), "hint": error.hint}
    return {
        "due": list(_due_records(plan)),
        "later": _later(plan.waiting),
        "log": log,
        "refused": None,
        "hint": None,
    }


def _due_records(plan: RetentionPlan) -> Iterable[dict[str, object]]:
    freed = FreedSpace()
    made: set[object] = set()
    for due in plan.due:
        yield forecast_record(due, None, None, freed, made, plan.now_ns)
    for held in plan.held:
        yield unchanged_record(held, "held", None, plan.now_ns)
    for left in plan.left:
        yield unchanged_record(left.candidate, "left", left.reason, plan.now_ns)


def _later(waiting: Sequence[tuple[int, RetentionCandidate]]) -> list[dict[str, object]]:
    """The next steps of videos; those of one day, directory and reason are one."""
    now = time.time_ns()
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for left, candidate in waiting:
        steps = due_by_age([candidate], now + left)
        if not steps:
            continue
        day = datetime.fromtimestamp((now + left) / 1e9, UTC).strftime("%Y-%m-%d")
        folder = candidate.name.rpartition("/")[0]
        key = (day, folder, steps[0].stage.value, steps[0].reason)
        entry = groups.setdefault(key, [now + left, 0, 0])
        entry[1] += 1
        entry[2] += candidate.size
    rows = [
        {
            "at": iso_time(first),
            "dir": folder,
            "stage": stage,
            "reason": reason,
            "videos": count,
            "bytes": size,
        }
        for (_, folder, stage, reason), (first, count, size) in groups.items()
    ]
    return list(islice(rows, _MOST_LATER))


def policies(call: Call) -> object:
    store = call.web.store
    with store.catalog.reading() as seen:
        own = seen.retention.policies()
        names = [(path, own[ino]) for ino in own for path in seen.tree.paths_of(ino)[:1]]
    items = [policy_record(name, policy, True) for name, policy in sorted(names)]
    return {"items": items, "next": None}


def set_policy(call: Call) -> object:
    require_keys(call.body, _POLICY_BODY)
    name, policy = call.body.get("name"), call.body.get("policy")
    if not isinstance(name, str):
        raise UsageError(f"name must be text, got {name!r}")
    if policy is not None and not isinstance(policy, str):
        raise UsageError(f"policy must be text or null, got {policy!r}")
    found = call.web.store.set_policy(name, policy)
    return policy_record(name, found, policy is not None)


_POLICY_BODY = {
    "name": "path of a video or a directory; empty for the whole store",
    "policy": "as in `vfsd policy set`, or null for none of its own",
}


def holds(call: Call) -> object:
    store = call.web.store
    with store.catalog.reading() as seen:
        found = seen.retention.holds()
        videos = {one.video_id: seen.videos.get(one.video_id).name for one in found}
    items = [hold_record(videos[one.video_id], one) for one in found]
    return {"items": items, "next": None}


def add_hold(call: Call) -> object:
    require_keys(call.body, _HOLD_BODY)
    video = call.web.store[text_in(call.body, "name")]
    return hold_record(video.name, video.policy.hold(text_in(call.body, "reason")))


_HOLD_BODY = {"name": "name of a video", "reason": "why it is held"}


def remove_hold(call: Call) -> object:
    number = int(call.request.path_params["id"])
    store = call.web.store
    with store.catalog.reading() as seen:
        held = [one for one in seen.retention.holds() if one.id == number]
        names = [seen.videos.get(one.video_id).name for one in held]
    if not held:
        raise NotFoundError(f"there is no hold {number}")
    reason = call.query.get("reason", "")
    if not reason:
        raise UsageError("reason must be given", hint="the log keeps it")
    store[names[0]].policy.release(reason, number)
    return hold_record(names[0], held[0])


def _listed(fields: Mapping[str, str]) -> dict[str, str]:
    return {**LIST_FIELDS, **{f"items[].{key}": text for key, text in fields.items()}}


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/1/storage",
        storage,
        "The bytes of the store by kind and by directory.",
        {
            **STORE_FIELDS,
            "dirs": "list of objects for the first level of directories: dir, videos, originals "
            "and derived (bytes); dir is empty for videos in the root",
        },
    ),
    Endpoint(
        "GET",
        "/api/1/budget",
        budgets,
        "The budget of the store, and those of videos with derived data.",
        _listed(USAGE_FIELDS),
    ),
    Endpoint(
        "PUT",
        "/api/1/budget",
        set_budget,
        "Set a budget; derived data above it is deleted at once.",
        {**LIMIT_FIELDS, "evicted": "number of segments deleted", "bytes": "their size"},
        body=_SET_BODY,
        role=UserRole.ADMIN,
        is_change=True,
    ),
    Endpoint(
        "POST",
        "/api/1/budget/what-if",
        what_if,
        "The cost of another budget; changes nothing.",
        _listed(WHAT_IF_FIELDS),
        body=_WHAT_IF_BODY,
    ),
    Endpoint(
        "GET",
        "/api/1/budget/log",
        budget_log,
        "Segments deleted for lack of space, newest first.",
        _listed(EVICTION_FIELDS),
        (Parameter("limit", f"most items, up to {MAX_PAGE}; default {PAGE}", "integer"),),
    ),
    Endpoint(
        "GET",
        "/api/1/age",
        age,
        "The steps of policies now and later, and those done. Encodes nothing.",
        {
            **{f"due[].{key}": text for key, text in AGE_FIELDS.items()},
            "later": "list of objects: at (ISO 8601, UTC), dir, stage, reason, videos and bytes; "
            "the steps of a day, directory and reason are one",
            **{f"log[].{key}": text for key, text in LOG_FIELDS.items()},
            "refused": "why no plan can be made, or null",
            "hint": "what to do about that, or null",
        },
    ),
    Endpoint(
        "GET",
        "/api/1/policy",
        policies,
        "The policies of directories and videos that have their own.",
        _listed(POLICY_FIELDS),
    ),
    Endpoint(
        "PUT",
        "/api/1/policy",
        set_policy,
        "Set the policy of a video or a directory.",
        POLICY_FIELDS,
        body=_POLICY_BODY,
        role=UserRole.ADMIN,
        is_change=True,
    ),
    Endpoint("GET", "/api/1/holds", holds, "The holds of all videos.", _listed(HOLD_FIELDS)),
    Endpoint(
        "POST",
        "/api/1/holds",
        add_hold,
        "Hold a video: nothing deletes, replaces or writes it.",
        HOLD_FIELDS,
        body=_HOLD_BODY,
        role=UserRole.ADMIN,
        is_change=True,
    ),
    Endpoint(
        "DELETE",
        "/api/1/holds/{id:int}",
        remove_hold,
        "Lift a hold.",
        HOLD_FIELDS,
        (Parameter("reason", "why it is lifted", required=True),),
        role=UserRole.ADMIN,
        is_change=True,
    ),
)
