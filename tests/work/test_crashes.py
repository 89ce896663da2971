"""Workers that crash or are killed, and orders that are left running or cancelled by Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.remote_objects import wait_until
from tests.support.selection import one_in
from tests.support.work_orders import TILES, require_sound
from vfsd.api.store import Store
from vfsd.catalog.work_log import BEGUN
from vfsd.work import Order, find_order

WORKER = """
import os, signal, sys, threading, time
from vfsd.api.store import Store
from vfsd.work import find_order, perform_at

home, number, name = sys.argv[1:]
with Store.open(home) as store:
    order = find_order(store, number)
    (unit,) = order.units()

    def end():
        while not any(one.host.endswith(f":{os.getpid()}") for one in order.results()):
            time.sleep(0.001)
        os.kill(os.getpid(), getattr(signal, name))

    threading.Thread(target=end, daemon=True).start()
    print(perform_at(home, unit.to_json())["outcome"])
    time.sleep(60)
"""


def run_worker(order: Order, end: str) -> subprocess.CompletedProcess[str]:
    """Perform the only unit of an order in a process that a signal ends."""
    command = [sys.executable, "-c", WORKER, order.root, order.id, end]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("catalog", one_in(2, ["postgresql", "sqlite"]))
def test_a_file_that_crashes_workers_is_refused(
    make_store: Callable[..., Store], catalog: str
) -> None:
    store = make_store(catalog)
    order = store.order("retile", "a.mp4", **TILES)
    original = store["a.mp4"].original
    for count in (1, 2, 3):
        assert run_worker(order, "SIGSEGV").returncode == -signal.SIGSEGV
        assert len([one for one in order.results() if one.outcome == "crashed"]) == count - 1
    assert order.run_part().counts == {"refused": 1}
    ((_, row),) = order.state().failures.items()
    assert row.error == "3 workers crashed while they performed the unit"
    crashes = [one.error for one in order.results() if one.outcome == "crashed"]
    assert crashes == 3 * ["Segmentation fault"]
    # All hosts refuse to decode the file for any other order, but verify it.
    with Store.open(store.path) as other:
        entry = other.parts.quarantine.of(original, now=True)
        assert entry is not None
        assert (entry.crashes, entry.barred) == (3, True)
        later = other.order("detect", detector="motion")
        assert later.run_part().counts == {"made": 1, "refused": 1}
        assert "Segmentation fault" in str(later.state().failures)
    order.retry(failed=True)
    assert store.parts.quarantine.of(original, now=True) is None
    assert order.run_part().counts == {"made": 1}
    later = find_order(store, later.id)
    later.retry(failed=True)
    assert later.run_part().counts == {"made": 2}
    require_sound(store)


@pytest.mark.thorough
def test_killed_workers_do_not_count_as_crashes(store: Store) -> None:
    order = store.order("retile", "a.mp4", **TILES)
    for _ in range(4):
        assert run_worker(order, "SIGKILL").returncode == -signal.SIGKILL
    state = order.run_part()
    assert state.counts.keys() <= {"made", "skipped"}
    assert (state.again, state.running) == (4, {})
    assert store.parts.quarantine.of(store["a.mp4"].original) is None
    assert list((store.path / "cache" / "work").glob("*.json")) == []


class Command:
    """``vfsd retile --on local:1`` in a terminal."""

    def __init__(self, store: Store) -> None:
        own, terminal = pty.openpty()
        command = [sys.executable, "-m", "vfsd", "-s", str(store.path), "retile", "*.mp4"]
        command += ["--layout", "uniform:2x2", "--on", "local:1"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=terminal
        )
        os.close(terminal)
        os.set_blocking(own, False)
        self._own = own
        self.shown = ""

    def text(self) -> str:
        with suppress(OSError):  # nothing new, or the end
            self.shown += os.read(self._own, 1 << 16).decode(errors="replace")
        return self.shown

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> bool:
        self.text()  # the terminal must not be full
        return self._process.poll() is not None

    def close(self) -> int:
        wait_until(self.ended, 60)
        os.close(self._own)
        return self._process.returncode


def begun_order(store: Store, command: Command) -> Order:
    """Wait until a unit of the command's order has begun."""
    wait_until(lambda: re.search(r"order ([0-9a-f]{8}):", command.text()), 60)
    (found,) = re.findall(r"order ([0-9a-f]{8}):", command.text())[:1]
    order = find_order(store, found)
    wait_until(lambda: any(one.outcome == BEGUN for one in order.results()), 60)
    return order


def test_ctrl_c_leaves_an_order_running(store: Store) -> None:
    command = Command(store)
    order = begun_order(store, command)
    command.interrupt()
    assert command.close() == 130
    assert f"leaving order {order.id} running" in command.shown
    assert "goes on" in command.shown
    wait_until(lambda: order.state().ended == order.record.units, 120)
    assert set(order.state().counts) == {"made"}
    require_sound(store)


@pytest.mark.thorough
def test_ctrl_c_twice_cancels_an_order(store: Store) -> None:
    command = Command(store)
    order = begun_order(store, command)
    while not command.ended():
        command.interrupt()
        time.sleep(0.2)
    assert command.close() in (130, -signal.SIGINT)
    assert "is cancelled" in command.shown
    assert find_order(store, order.id).record.cancelled_ns is not None
