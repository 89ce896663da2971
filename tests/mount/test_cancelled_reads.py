"""Rendering a view stops after its last reader has gone, and never blocks plain reads."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.support.selection import one_in

pytestmark = pytest.mark.mount

SHORT = "size=96x54.mp4"
_LEFT_SECONDS = 1.0
"""CPU seconds that the daemon may use after its last reader has gone: a picture per thread."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, wide_clip: Path) -> Iterator[Mounted]:
    """A mount with one video of two seconds."""
    place = Mounted(tmp_path_factory.mktemp("views"))
    place.mount()
    shutil.copyfile(wide_clip, place.at / "a.mp4")
    assert os.getxattr(place.at / "a.mp4", "user.vfsd.state") == b"video"
    yield place
    place.unmount()
    assert "Traceback" not in place.log.read_text()


@pytest.fixture
def mounted(place: Mounted) -> Mounted:
    return place


@pytest.fixture
def clip(place: Mounted) -> Path:
    return place.at / "a.mp4"


@pytest.fixture
def long(clip: Path) -> Path:
    """A view that was not read before, and takes five seconds of CPU for three segments."""
    return view(clip, f"size={3840 - 2 * next(_numbers)}x2160.mp4")


@pytest.fixture
def shorter(clip: Path) -> Path:
    return view(clip, f"size={1600 - 2 * next(_numbers)}x900.mp4")


_numbers = itertools.count()


def view(clip: Path, name: str) -> Path:
    return clip.with_name("a.mp4@") / name


def reader(path: Path) -> subprocess.Popen[bytes]:
    # A test run in the background may have inherited a disposition that ignores SIGINT.
    command = ["env", "--default-signal=INT", "cat", str(path)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def threads(mounted: Mounted) -> int:
    """The number of threads of the daemon; each handles one request, or is permanent."""
    return len(os.listdir(f"/proc/{mounted.pid}/task"))


def descriptors(mounted: Mounted) -> int:
    return len(os.listdir(f"/proc/{mounted.pid}/fd"))


def answers(mounted: Mounted) -> int:
    """The number of answered requests of all kinds."""
    return sum(found.count for found in mounted.standing.operations.values())


def cached(mounted: Mounted) -> int:
    """The number of cached segments."""
    return sum(path.is_file() for path in (mounted.store / "cache").rglob("*"))


def begun(mounted: Mounted) -> None:
    """Wait until the daemon is rendering."""
    before = mounted.cpu_seconds
    mounted.wait_for(lambda: mounted.cpu_seconds > before + 0.3, "nothing is made")


def cpu_left(mounted: Mounted) -> float:
    """CPU seconds that the mount uses until it is idle."""
    first = last = mounted.cpu_seconds
    end = time.monotonic() + 120
    while time.monotonic() < end:
        time.sleep(0.4)
        now = mounted.cpu_seconds
        if now - last < 0.05:
            return now - first
        last = now
    raise AssertionError(f"it goes on: {now - first:.1f} s")


@pytest.mark.parametrize("number", one_in(2, [signal.SIGKILL, signal.SIGINT]))
def test_killed_reader(mounted: Mounted, long: Path, number: int) -> None:
    before = cached(mounted)
    process = reader(long)
    begun(mounted)
    process.send_signal(number)
    assert process.wait(60) == -number
    assert cpu_left(mounted) < _LEFT_SECONDS
    assert cached(mounted) - before < 3


def test_reader_closes_file(mounted: Mounted, long: Path) -> None:
    fd = os.open(long, os.O_RDONLY)
    size = os.fstat(fd).st_size
    os.posix_fadvise(fd, size // 2, 1 << 19, os.POSIX_FADV_WILLNEED)  # does not wait
    begun(mounted)
    os.close(fd)
    assert cpu_left(mounted) < _LEFT_SECONDS


def test_other_readers_served(mounted: Mounted, shorter: Path) -> None:
    victims = [reader(shorter) for _ in range(2)]
    begun(mounted)
    found: list[bytes] = []
    with open(shorter, "rb", buffering=0) as file:
        other = threading.Thread(target=lambda: found.append(file.readall()))
        other.start()
        mounted.wait_for(
            lambda: bool(found) or is_in_a_call_on(file.fileno(), other),
            "the view is not requested",
        )
        for victim in victims:
            victim.kill()
            victim.wait(60)
        while other.is_alive():
            before = mounted.cpu_seconds
            other.join(10)
            assert not other.is_alive() or mounted.cpu_seconds > before, "it is not made"
    assert len(found[0]) == shorter.stat().st_size
    assert found[0] == asked_again(shorter)


def is_in_a_call_on(fd: int, thread: threading.Thread) -> bool:
    """Whether a thread of this process is blocked in a system call on a descriptor."""
    try:
        call = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended
    return len(call) > 1 and int(call[1], 16) == fd


def asked_again(path: Path) -> bytes:
    """Read a file again from the mount instead of the kernel's cache."""
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file.read()


def test_shared_file_of_killed_process(mounted: Mounted, shorter: Path) -> None:
    """A process that ends closes its descriptors, but another process may share the open file."""
    with open(shorter, "rb", buffering=0) as file:
        command = [sys.executable, "-c", _READ_AND_WAIT, str(file.fileno())]
        child = subprocess.Popen(command, pass_fds=[file.fileno()])
        begun(mounted)
        killer = threading.Timer(0.2, child.kill)
        killer.start()
        size = os.fstat(file.fileno()).st_size
        data = bytearray()
        while part := os.pread(file.fileno(), 1 << 17, len(data)):
            data += part
        child.wait(60)
    assert len(data) == size
    assert bytes(data) == asked_again(shorter)


_READ_AND_WAIT = """
import os, sys
while os.read(int(sys.argv[1]), 1 << 17):
    pass
"""


@pytest.mark.thorough
def test_plain_reads_during_views(mounted: Mounted, clip: Path) -> None:
    """More requests than libfuse has in flight by default take minutes each.  Their threads end
    afterwards, and the counts of these threads are kept."""
    before, asked = threads(mounted), answers(mounted)
    names = [f"size={2400 + 2 * number}x1350.mp4" for number in range(70)]
    crowd = [reader(view(clip, name)) for name in names]
    try:
        mounted.wait_for(lambda: threads(mounted) >= len(names), "requests are not made")
        right = (mounted.at / "a.mp4").stat().st_size
        fd = os.open(clip, os.O_RDONLY)
        for _ in range(5):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.monotonic()
            assert sum(len(os.pread(fd, 1 << 17, at)) for at in range(0, right, 1 << 17)) == right
            assert time.monotonic() - began < 60  # a view takes minutes
        os.close(fd)
        assert all(process.poll() is None for process in crowd[-10:])
    finally:
        for process in crowd:
            process.kill()
    for process in crowd:
        process.wait(60)
    assert len(view(clip, SHORT).read_bytes()) == view(clip, SHORT).stat().st_size
    assert cpu_left(mounted) < 3 * _LEFT_SECONDS
    assert threads(mounted) < before + len(names) // 2
    assert answers(mounted) >= asked + len(names)
    assert descriptors(mounted) < 60
