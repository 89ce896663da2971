"""Many clients, and slow ones: bounded memory, threads and encoders, and right bytes for all."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from sample_videos import FOLDER
from tests.support.web_client import TOKEN, RunningServer, serving
from vfsd.api.store import Store
from vfsd.core.process_control import resident_bytes
from vfsd.web.settings import RequestLimits

TRAFFIC = "/v/cam1/traffic.mp4"
VIEW = f"{TRAFFIC}@/size=160x120,fps=60.raw"


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def open_sockets() -> int:
    folder = Path("/proc/self/fd")
    found = 0
    for one in folder.iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found += os.readlink(one).startswith("socket:")
    return found


def opened(running: RunningServer, path: str, receive_bytes: int = 4096) -> socket.socket:
    """Send a request, and read nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    raw.settimeout(60)
    raw.connect(("127.0.0.1", running.port))
    raw.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\n"
        f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
    )
    return raw


@pytest.fixture
def filled(store: Store) -> Store:
    store.ingest(FOLDER / "traffic.mp4", "cam1/traffic.mp4")
    return store


def test_client_that_goes(filled: Store) -> None:
    """Its request ends, and with it the work for it."""
    with serving(filled) as running:
        raw = opened(running, VIEW)
        assert raw.recv(100).startswith(b"HTTP/1.1 200")
        raw.close()
        wait_until(lambda: running.web.clients.total == 0)
        assert running.web.work.running == 0


def test_client_that_reads_nothing(filled: Store) -> None:
    """It holds no encoder, and its connection is closed."""
    limits = RequestLimits(idle_seconds=1.0, encodes=1)
    with serving(filled, limits=limits) as running:
        stalled = opened(running, VIEW)
        assert stalled.recv(100).startswith(b"HTTP/1.1 200")
        other = running.client().get(f"{TRAFFIC}@/size=80x60,t=0-0.2.mp4")
        assert other.status == 200
        wait_until(lambda: running.web.clients.total == 0)
        stalled.close()


def test_too_much_work(filled: Store) -> None:
    """Requests beyond the queue are refused with a status, before any byte."""
    limits = RequestLimits(encodes=1, queue=1, queue_seconds=0.2, work_per_client=100)
    with serving(filled, limits=limits) as running, ThreadPoolExecutor(12) as threads:
        paths = [f"{TRAFFIC}@/size={80 + 4 * n}x60,t=0-0.5.mp4" for n in range(12)]
        done = list(threads.map(running.client().get, paths))
        statuses = Counter(one.status for one in done)
        assert set(statuses) <= {200, 503}
        assert statuses[200] >= 1
        assert all("retry-after" in one.headers for one in done if one.status == 503)
        assert running.web.work.running == 0
        assert running.web.work.waiting == 0
        assert running.client().get(paths[0]).status == 200


@pytest.mark.thorough
def test_five_hundred_ranges(filled: Store) -> None:
    """Each answer is right or refused; afterwards nothing is left."""
    whole = (FOLDER / "traffic.mp4").read_bytes()
    with serving(filled) as running, ThreadPoolExecutor(100) as threads:
        running.client().get(TRAFFIC)
        before, sockets = resident_bytes(os.getpid()), open_sockets()

        def read(number: int) -> int:
            begin = number * 997 % len(whole)
            header = f"bytes={begin}-{begin + 5000}"
            done = running.client().get(TRAFFIC, range=header)
            if done.status == 206:
                assert done.body == whole[begin : begin + 5001]
            return done.status

        statuses = Counter(threads.map(read, range(500)))
        assert set(statuses) <= {206, 429}
        assert statuses[206] >= 64
        wait_until(lambda: running.web.clients.total == 0)
        wait_until(lambda: open_sockets() <= sockets)
        assert resident_bytes(os.getpid()) - before < 100 << 20


@pytest.mark.thorough
def test_slow_readers_cost_little_memory(filled: Store) -> None:
    with serving(filled) as running:
        running.client().get(VIEW, range="bytes=0-0")
        before = resident_bytes(os.getpid())
        stalled = [opened(running, VIEW) for _ in range(8)]
        for raw in stalled:
            assert raw.recv(100).startswith(b"HTTP/1.1 200")
        time.sleep(1)  # they fill what they can
        assert resident_bytes(os.getpid()) - before < 8 * (60 << 20)
        for raw in stalled:
            raw.close()
        wait_until(lambda: running.web.clients.total == 0)
