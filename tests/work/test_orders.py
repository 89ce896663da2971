"""Orders of work: planning, performing in processes of this machine, and their results."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.selection import one_in
from tests.support.work_orders import FIXED, MOTION, TILES, contents, orders, require_sound
from vfsd.api.store import Store
from vfsd.catalog.work_log import BEGUN, WorkResult
from vfsd.errors import NotFoundError, UsageError
from vfsd.labels.detectors import make_detector
from vfsd.work import Unit, create_order, find_order, make_units, perform
from vfsd.work.orders import parse_part
from vfsd.work.plan import segments_from_json


def by_plain_calls(store: Store) -> dict[str, Any]:
    """The data that the same work makes without orders."""
    for video in store.find():
        video.tiles.retile("uniform:1x2", settings=FIXED, jobs=1)
        video.labels.detect(make_detector("motion"))
    return contents(store)


@pytest.mark.parametrize("verb", ["retile", "render", "detect", "verify", "scrub", "replace"])
def test_plan_depends_on_the_catalog_only(store: Store, verb: str) -> None:
    videos = list(store.find())
    spec: dict[str, Any] = {"retile": TILES, "render": {"size": (160, 120)}, "detect": MOTION}.get(
        verb, {}
    )
    first, again = (list(make_units(verb, videos, spec, seconds=1)) for _ in range(2))
    assert [one.frames for one in first] == [one.frames for one in again]
    for video in videos:
        frames = [one.frames for one in first if one.video == video.info.id and one.frames]
        # Together they cover each frame once.
        assert [end for _, end in frames[:-1]] == [start for start, _ in frames[1:]]
        assert (frames[0][0], frames[-1][1]) == (0, len(video))
    for one in first:
        text = json.dumps(one.to_json())
        assert len(text) < 2000
        assert str(store.path) not in text
        assert Unit.from_json(json.loads(text)) == one
        assert one.cost > 0


def test_units_have_the_planned_segments(store: Store) -> None:
    video = store["a.mp4"]
    (unit,) = make_units("retile", [video], {"layout": "uniform:2x2"}, seconds=100)
    planned = segments_from_json(unit.spec["segments"])
    assert [one.frames for one in planned] == video.tiles.sequences()
    region = (100, 90, 180, 150)
    (unit,) = make_units("retile", [video], {"roi": region}, seconds=100)
    (stored,) = {one.stored for one in segments_from_json(unit.spec["segments"])}
    assert len(stored) == 1


@pytest.mark.parametrize("catalog", one_in(2, ["postgresql", "sqlite"]))
def test_processes_make_what_plain_calls_make(
    make_store: Callable[..., Store], catalog: str
) -> None:
    store = make_store(catalog)
    for order in orders(store):
        state = order.run("local:2")
        assert state.counts == {"made": len(order.units())}
        assert state.ended == state.runs == state.units > 1
        assert (state.failures, order.pending()) == ({}, [])
        assert state.cpu_seconds > 0
        again = order.run("local:2")
        assert again.runs == state.runs
    assert contents(store) == by_plain_calls(make_store("sqlite", "plain"))
    require_sound(store)


def test_performing_twice_changes_nothing(store: Store) -> None:
    for order in orders(store):
        for unit in order.units():
            assert perform(store, unit).outcome == "made"
        before = contents(store)
        for unit in order.units():
            done = perform(store, unit)
            assert (done.outcome, done.made) == ("skipped", 0)
        assert contents(store) == before
    require_sound(store)


@pytest.mark.thorough
def test_two_processes_perform_the_same_units(make_store: Callable[..., Store]) -> None:
    store = make_store("postgresql")
    made = orders(store)
    command = [sys.executable, "-m", "vfsd", "-s", str(store.path), "work", "run"]
    for order in made:
        both = [subprocess.Popen([*command, order.id]) for _ in range(2)]
        assert [one.wait() for one in both] == [0, 0]
        assert set(order.state().counts) <= {"made", "skipped"}
        assert order.state().ended == order.record.units
    assert contents(store) == by_plain_calls(make_store("sqlite", "plain"))
    require_sound(store)


def test_errors_of_a_video_are_results(store: Store) -> None:
    order = store.order("verify")
    broken = store["b.mp4"]
    path = store.parts.objects.path(broken.original.object_key or "")
    path.chmod(0o600)
    path.write_bytes(bytes(broken.info.size))
    state = order.run_part()
    assert state.counts == {"failed": 1, "made": 1}
    ((number, row),) = state.failures.items()
    assert order.units()[number].video == broken.info.id
    assert (row.exit_code, bool(row.error)) == (30, True)
    assert order.pending() == []
    order.retry(failed=True)
    assert [one.number for one in order.pending()] == [number]
    assert order.run_part().counts == {"failed": 1, "made": 1}


def test_other_bytes_are_outdated(store: Store) -> None:
    order = store.order("detect", "a.mp4", **MOTION)
    store.remove("a.mp4")
    assert order.run_part().counts == {"outdated": 1}


def test_a_unit_that_ends_its_worker_is_refused(store: Store) -> None:
    order = store.order("verify", "a.mp4")
    log = store.catalog.work
    # A host that is gone reports no end, so these may have been killed by chance.
    log.append(order.id, [WorkResult(0, str(one), BEGUN, "x:1", 0) for one in range(10)])
    state = order.run_part()
    assert state.counts == {"refused": 1}
    assert "10 workers ended" in (state.failures[0].error or "")
    order.retry(failed=True)
    assert order.run_part().counts == {"made": 1}


def test_a_killed_process_is_started_again(store: Store) -> None:
    order = store.order("retile", "a.mp4", unit_seconds=1, layout="uniform:1x2")
    killed: list[int] = []

    def kill(_: object) -> None:
        begun = [one for one in order.results() if one.outcome == BEGUN]
        if begun and not killed:
            pid = int(begun[-1].host.rpartition(":")[2])
            subprocess.run(["kill", "-9", str(pid)], check=False)
            killed.append(pid)

    assert order.run("local:1", on_progress=kill).counts.keys() <= {"made", "skipped"}
    assert killed
    require_sound(store)


def test_cancel_and_retry(store: Store) -> None:
    order = store.order("retile", "a.mp4", unit_seconds=1, **TILES)
    order.cancel()
    assert order.run_part().counts == {"waiting": order.record.units}
    assert find_order(store, order.id[:5]).record.cancelled_ns is not None
    order.retry()
    assert order.run_part().counts == {"made": order.record.units}
    store.catalog.work.remove(order.id)
    with pytest.raises(NotFoundError, match="does not exist"):
        find_order(store, order.id)


def test_parts_are_disjoint(store: Store) -> None:
    order = store.order("detect", unit_seconds=1, **MOTION)
    parts = [{one.number for one in order.units((at, 3))} for at in range(3)]
    assert sorted(number for part in parts for number in part) == list(range(order.record.units))
    order.run_part((1, 3))
    assert set(order.state().outcomes) == parts[1]
    assert parse_part("2/3") == (2, 3)
    for text in ("3/3", "1", "-1/2", "1/0"):
        with pytest.raises(UsageError, match="part must be I/N"):
            parse_part(text)


def test_dear_units_come_first_and_are_spread_over_parts(store: Store) -> None:
    video = store["a.mp4"]
    (unit,) = make_units("detect", [video], MOTION)
    units = [replace(unit, cost=float(7 * at % 20)) for at in range(20)]
    order = create_order(store, "detect", [video.name], spec={}, units=units)
    costs = [one.cost for one in order.units()]
    assert costs == sorted(costs, reverse=True)
    for count in (2, 3):
        parts = [sum(one.cost for one in order.units((at, count))) for at in range(count)]
        assert max(parts) - min(parts) <= max(costs)


def test_wrong_orders(store: Store, make_store: Callable[..., Store]) -> None:
    with pytest.raises(UsageError, match="verb must be one of"):
        store.order("dance")
    with pytest.raises(UsageError, match="give one of layout, roi"):
        store.order("retile")
    with pytest.raises(UsageError, match="engine must be one of"):
        store.order("verify").run("spark://host")
    with pytest.raises(UsageError, match="number of processes"):
        store.order("verify").run("local:many")


def test_results_do_not_wait_for_writers(make_store: Callable[..., Store]) -> None:
    store = make_store("postgresql")
    order = store.order("verify", "a.mp4")
    row = WorkResult(0, "x", BEGUN, "x:1", time.time_ns())
    with Store.open(store.path) as other, other.catalog.writing():
        store.catalog.work.append(order.id, [row])
    assert order.state().runs == 1
