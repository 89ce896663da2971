"""The render process: its clients survive any end of it."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.render_starter import RenderStarter
from tests.support.stores import new_store
from tests.views.conftest import Shelf
from vfsd.errors import DamagedFileError, IntegrityError, MountError, NotFoundError
from vfsd.mount import render_client, render_server
from vfsd.mount.background_work import LOWEST, ORDINARY, PriorityControl
from vfsd.mount.render_client import RenderProcess
from vfsd.mount.render_protocol import (
    FAILED,
    MADE,
    BufferMappings,
    BufferPool,
    RenderReply,
    error_of,
)
from vfsd.views import Views
from vfsd.views.render_cache import RenderCancelledError
from vfsd.views.rendering import SlotRenderer, SlotRequest

pytestmark = pytest.mark.skipif(not render_server.can_start(), reason="needs Linux")

NAME = "traffic.mp4"
PATHS = [
    "frames/000007.png",
    "frames/000007.jpg",
    "frames/000007.npy",
    "t=0-1.rgb",
    "t=0-1,size=96x54.y4m",
    "size=96x54,codec=hevc.mp4",
    "t=0.5-1.mkv",
    "full.mp4",
    "t=0-1.wav",
    "info.json",
]


@dataclass
class Made:
    """Views rendered by another process."""

    shelf: Shelf
    process: RenderProcess
    accused: list[bool]

    def order(self, path: str, slot: int = 1) -> SlotRequest:
        key = self.shelf.open(NAME, path).version
        return SlotRequest(self.shelf.video(NAME).info.ino, path, key, slot, 0)


@pytest.fixture(scope="module")
def starting() -> Iterator[RenderStarter]:
    starter = RenderStarter()
    yield starter
    starter.close()


@pytest.fixture
def made(tmp_path: Path, starting: RenderStarter) -> Iterator[Made]:
    with new_store(tmp_path / "elsewhere") as store:
        store.ingest(FOLDER / NAME, NAME)
        accused: list[bool] = []
        deference = PriorityControl(lambda: False)
        starter = starting.start(store.path)
        process = RenderProcess(starter, lambda: accused.append(True), deference)
        views = Views(store.parts, store.tools, remote=process)
        yield Made(Shelf(store, views), process, accused)
        views.close()
        process.close()
        assert starting.exit_code() == 0


def nobody_gives_up() -> None:
    pass


def test_failed_start_is_reported(tmp_path: Path, starting: RenderStarter) -> None:
    with new_store(tmp_path / "store") as store:
        store.parts.directory.settings.write_text("bogus = 1\n")
    starter = starting.start(store.path)
    process = RenderProcess(starter, lambda: None, PriorityControl(lambda: False))
    with pytest.raises(MountError, match=r"a setting must be one of .*, got 'bogus'"):
        process.require_start()
    process.close()
    assert starting.exit_code() == 0


def test_trial_start_ends(made: Made) -> None:
    for _ in range(3):
        made.process.require_start()
        assert made.process.pid is None
    assert made.process.make(made.order("frames/000007.png"), nobody_gives_up) is not None


def test_remote_bytes_equal_local_bytes(made: Made, fresh: Shelf) -> None:
    for path in PATHS:
        mine, theirs = fresh.read(NAME, path), made.shelf.read(NAME, path)
        assert mine == theirs or path == "info.json", path  # which measures its own times
    assert made.shelf.store.tools.pool.memory == 0  # nothing was decoded here
    assert made.process.decoder_memory > 0


def test_open_view_is_stable_while_tiles_are_made(made: Made, fresh: Shelf) -> None:
    right = fresh.read(NAME, "t=0-1.rgb")
    video = made.shelf.video(NAME)
    for is_known_there in (False, True):
        file = made.shelf.open(NAME, "t=0-1.rgb")
        first = memoryview(bytearray(right[:1000]))
        if is_known_there:
            assert file.readinto(first, 0) == 1000
        video.tiles.retile("uniform:2x2")
        data = memoryview(bytearray(len(right)))
        assert file.readinto(data, 0) == len(right)
        file.close()
        assert bytes(data) == right
        right = fresh_tiled(made, fresh)


def fresh_tiled(made: Made, fresh: Shelf) -> bytes:
    """The same view of the video with its tiles, rendered in this process."""
    views = Views(made.shelf.store.parts, made.shelf.store.tools)
    try:
        return Shelf(made.shelf.store, views).read(NAME, "t=0-1.rgb")
    finally:
        views.close()


def end(pid: int, number: signal.Signals) -> None:
    """Wait until it has ended; it may still answer before."""
    place = os.pidfd_open(pid)
    try:
        os.kill(pid, number)
        assert select.select([place], [], [], 30)[0]
    finally:
        os.close(place)


def test_killed_renderer_is_replaced(made: Made) -> None:
    before = made.shelf.read(NAME, "frames/000001.png")
    first = made.process.pid
    assert first is not None
    end(first, signal.SIGKILL)
    assert made.shelf.read(NAME, "frames/000002.png") != before
    assert made.process.pid not in (None, first)
    assert not made.accused


def test_crashed_renderer_is_reported(made: Made) -> None:
    made.shelf.read(NAME, "frames/000001.png")
    assert made.process.pid is not None
    end(made.process.pid, signal.SIGSEGV)
    assert made.shelf.read(NAME, "frames/000002.png")
    assert made.accused


def is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_hung_renderer_is_killed_after_cancellation(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render_client, "_STUCK_SECONDS", 0.2)
    order = made.order("frames/000001.png")
    assert made.process.make(order, nobody_gives_up)
    stuck = made.process.pid
    assert stuck is not None
    os.kill(stuck, signal.SIGSTOP)
    end = time.monotonic() + 30
    while not all(is_stopped(thread) for thread in Path(f"/proc/{stuck}/task").iterdir()):
        assert time.monotonic() < end
    asked = 0

    def gives_up() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise RenderCancelledError

    with pytest.raises(RenderCancelledError):
        made.process.make(order, gives_up)
    assert not Path(f"/proc/{stuck}").exists()
    assert made.process.make(order, nobody_gives_up)


def test_another_process_at_the_socket_is_not_trusted(made: Made) -> None:
    order = made.order("frames/000001.png")
    assert made.process.make(order._replace(key="another"), nobody_gives_up) is None
    assert made.process.make(order._replace(slot=2), nobody_gives_up) is None
    nowhere = order._replace(path="nothing/of/that", key="x")
    assert made.process.make(nowhere, nobody_gives_up) is None
    assert made.process.make(order, nobody_gives_up)


def test_views_render_in_process_without_a_renderer(made: Made, fresh: Shelf) -> None:
    made.process.close()
    path = "frames/000007.png"
    assert made.shelf.read(NAME, path) == fresh.read(NAME, path)


def test_damage_is_reported_as_in_process(made: Made) -> None:
    video = made.shelf.video(NAME)
    path = made.shelf.store.parts.originals.path_of(video.original)
    whole = path.read_bytes()
    copy = path.with_name("copy")
    middle = len(whole) // 2
    copy.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    shutil.copystat(path, copy)
    copy.replace(path)
    with pytest.raises(IntegrityError, match="damaged"):
        made.shelf.read(NAME, "full.rgb")


# ------------------------------------------------------------------------------ what is said


def test_errors_keep_their_type() -> None:
    for error in (NotFoundError("no", hint="look"), OSError(5, "broken"), IntegrityError("bad")):
        told = RenderReply.parse(RenderReply(FAILED, 0, 7, error).message())
        assert type(told.error) is type(error)
        assert str(told.error) == str(error)
        assert told.decoders == 7
    damage = DamagedFileError("block 3", [range(3)], is_proven=True, hint="restore it")
    told = RenderReply.parse(RenderReply(FAILED, 0, 0, damage).message())
    assert type(told.error) is IntegrityError
    assert told.error.hint == "restore it"


@pytest.mark.parametrize(
    "told", [b"", b"SystemExit {}", b"NotFoundError []", b'NotFoundError {"text": 1}', b"\xff {}"]
)
def test_replies_are_validated(told: bytes) -> None:
    with pytest.raises(IntegrityError):
        error_of(told)
    with pytest.raises(IntegrityError):
        RenderReply.parse(RenderReply(FAILED, 0, 0).message() + told)
    with pytest.raises(IntegrityError):
        RenderReply.parse(MADE)


# --------------------------------------------------------------------------- what it is put on


def test_unused_buffers_are_reused() -> None:
    sheets, size = BufferPool(), 3 << 20
    first = sheets.acquire(size)
    os.pwrite(first.fd, b"hello", 0)
    shown = sheets.detach(first, size)
    part = shown[1:5]
    del shown
    second = sheets.acquire(size)
    assert second is not first  # a part of it is still in use
    assert bytes(part) == b"ello"
    del part
    assert sheets.acquire(size) is first
    small = sheets.detach(first, 5)
    assert sheets.acquire(size) is first
    os.pwrite(first.fd, b"other", 0)
    assert bytes(small) == b"hello"
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(second.fd, 0)
    with pytest.raises(IntegrityError):
        sheets.detach(second, second.room + 1)
    sheets.release(first)
    sheets.close()


def mapped(pid: int | str = "self") -> int:
    """The number of buffers that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().count("/memfd:view ")


def test_reused_buffer_is_mapped_once() -> None:
    sheets, desk, before = BufferPool(), BufferMappings(), mapped()
    sheet = sheets.acquire(3 << 20)
    with_mine = mapped()
    for word in (b"hello", b"other"):
        desk.place(sheet.number, sheet.fd, 1 << 20)[:5] = np.frombuffer(word, np.uint8)
        assert bytes(sheet.memory[:5]) == word
        assert mapped() == with_mine + 1
    desk.place(sheet.number, sheet.fd, 3 << 20)[-5:] = np.frombuffer(b"at the end"[-5:], np.uint8)
    assert bytes(sheet.memory[-5:]) == b"e end"
    assert mapped() == with_mine + 1
    with pytest.raises(ValueError, match="greater than file size"):
        desk.place(sheet.number, sheet.fd, (3 << 20) + 1)
    used = desk.place(sheet.number, sheet.fd, 5)
    sheets.drop(sheet)
    gone = sheets.closed()
    assert gone == [sheet.number]
    assert sheets.closed() == []
    assert sheets.acquire(3 << 20).number != sheet.number
    desk.clear([*gone, 12345])
    used[:5] = 1  # the reader there continues
    del used, sheet
    assert mapped() == before


def test_unused_mappings_are_released(made: Made) -> None:
    """More sizes that no other view has than the number of idle buffers."""
    for number in range(16):
        made.shelf.read(NAME, f"t=0-0.1,size={1000 + 80 * number}x{700 + 40 * number}.rgb")
    pid = made.process.pid
    assert pid is not None
    assert mapped(pid) <= mapped()  # each of these is mapped here, idle or in the cache


def test_mappings_of_unsent_orders_are_released(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = made.order("size=1000x700.rgb")
    kept = [made.process.make(order._replace(slot=1 + slot), nobody_gives_up) for slot in range(12)]
    pid = made.process.pid
    assert pid is not None
    refused: list[bool] = []

    def order_another() -> None:
        """Order a view while the only connection is busy and there are no descriptors for
        another."""
        if refused:
            return
        refused.append(True)
        kept.clear()  # more than the number of idle buffers
        with monkeypatch.context() as without:
            without.setattr(socket, "socketpair", no_descriptors)
            with pytest.raises(OSError, match="too many"):
                made.process.make(order._replace(slot=20), nobody_gives_up)

    assert made.process.make(order._replace(slot=21), order_another)
    assert made.process.make(order._replace(slot=22), nobody_gives_up)
    assert refused
    assert made.process.pid == pid
    assert mapped(pid) <= mapped()


def no_descriptors(*_: object) -> None:
    raise OSError(errno.EMFILE, "too many open files")


def test_descriptors_do_not_accumulate(made: Made) -> None:
    made.shelf.read(NAME, "t=0-1.rgb")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(30):
        made.shelf.read(NAME, f"frames/{number:06}.png")
        made.shelf.read(NAME, f"t=0-0.1,size={64 + 2 * number}x36.rgb")
    assert len(os.listdir("/proc/self/fd")) < before + 20


# ----------------------------------------------------------------------------- who goes first


def test_renderer_starts_in_its_own_session(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its CPU share would be taken from the mount."""
    sessions: list[tuple[int, int]] = []

    def update(_deference: PriorityControl, pid: int) -> None:
        sessions.append((pid, os.getsid(pid)))

    monkeypatch.setattr(PriorityControl, "update", update)
    for frame in range(5):
        made.shelf.read(NAME, f"frames/{frame:06}.png")
        assert made.process.pid is not None
        end(made.process.pid, signal.SIGKILL)
    assert len({pid for pid, _ in sessions}) == 5
    assert all(pid == session for pid, session in sessions)


@dataclass
class Other:
    """An idle process in its own session."""

    pid: int

    @property
    def share(self) -> str:
        return Path(f"/proc/{self.pid}/autogroup").read_text().split()[-1]

    def comes_to(self, share: int, deference: PriorityControl) -> bool:
        """Whether the process finally has that share, with repeated adjustment."""
        end = time.monotonic() + 20
        while self.share != str(share) and time.monotonic() < end:
            deference.update(self.pid)
            time.sleep(0.02)
        return self.share == str(share)


@pytest.fixture
def other() -> Iterator[Other]:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        try:
            if not Path(f"/proc/{process.pid}/autogroup").exists():
                pytest.skip("this system shares out its cores by threads only")
            yield Other(process.pid)
        finally:
            process.kill()


def test_renderer_yields_to_file_reads(other: Other) -> None:
    reads = [True]
    deference = PriorityControl(lambda: reads[0], least=0.0)
    deference.update(other.pid)
    assert other.share == str(LOWEST)
    reads[0] = False
    deference.update(other.pid)
    assert other.share == str(LOWEST)  # the reader returns
    assert other.comes_to(ORDINARY, deference)


def test_starved_renderer_yields_briefly_only(other: Other) -> None:
    deference = PriorityControl(lambda: True, least=0.01)  # which a sleeping process does not have
    deference.update(other.pid)
    assert other.share == str(LOWEST)
    assert other.comes_to(ORDINARY, deference)


@pytest.mark.parametrize("seconds", [0, 3600])
def test_late_render_is_identical(fresh: Shelf, seconds: float) -> None:
    """This holds with and without a decoder at that position."""
    path = "full.rgb"
    video, pool = fresh.video(NAME), fresh.store.tools.pool
    right = video.read().data.tobytes()
    file = fresh.open(NAME, path)
    maker = SlotRenderer(fresh.store.parts, fresh.store.tools)
    size = len(right) // len(video)
    made = np.zeros(len(right), np.uint8).reshape(-1, size)
    places = iter(made)
    for number in range(len(video)):
        order = SlotRequest(video.info.ino, path, file.version, number + 1, 0)
        assert maker.make(order, nobody_gives_up, lambda _: next(places)) == size
        if number == 7:
            assert pool.memory > 0
            maker.evict_idle(seconds)
            assert (pool.memory > 0) is (seconds > 0)
    assert made.tobytes() == right
    maker.close()
    file.close()
