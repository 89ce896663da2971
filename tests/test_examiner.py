"""Files are examined in processes of their own, and do no harm in there either."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.codecs.reference import alike
from tests.selection import one_in
from vfsd.codecs.probing.probe import Examination, examine
from vfsd.codecs.probing.serialize import pack_examination, unpack_examination
from vfsd.errors import IntegrityError, RefusedMediaError
from vfsd.storage.sandbox_pool import Examiner
from vfsd.storage.sandbox_protocol import SandboxLimits

SAMPLES = ("traffic.mp4", "open-gop.mkv", "elementary.h264", "transport.ts", "late-start.mp4")


@pytest.fixture(scope="module")
def examiner() -> Iterator[Examiner]:
    made = Examiner(SandboxLimits())
    yield made
    made.close()


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


class Signalling:
    """Sends a signal to whoever examines, as soon as it is at work."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.sent = False

    def __call__(self, done: int, total: int) -> None:
        for child in children(os.getpid()):
            line = Path(f"/proc/{child}/cmdline").read_bytes()
            for at_work in children(child) if b"vfsd.storage.sandbox_start" in line else ():
                os.kill(at_work, self._number)
                self.sent = True


def refusal(examiner: Examiner, clip: Path, number: int) -> str:
    """What is said of a file in whose examination a signal comes, before it is through."""
    for _ in range(200):
        send = Signalling(number)
        try:
            examiner.examine(clip, full=True, on_progress=send)
        except RefusedMediaError as error:
            assert send.sent
            return str(error)
    raise AssertionError("it is through before anybody comes to it")


@pytest.mark.parametrize("name", SAMPLES)
def test_another_process_finds_what_this_one_finds(examiner: Examiner, name: str) -> None:
    assert alike(examiner.examine(FOLDER / name), examine(FOLDER / name))


def test_what_is_refused_is_refused_in_the_same_words(examiner: Examiner, tmp_path: Path) -> None:
    cut = tmp_path / "cut.mp4"
    cut.write_bytes((FOLDER / "traffic.mp4").read_bytes()[:3000])
    text = tmp_path / "notes.txt"
    text.write_text("no video")
    for path in (cut, text):
        told = []
        for way in (examine, examiner.examine):
            with pytest.raises(RefusedMediaError) as caught:
                way(path)
            told.append(str(caught.value))
        assert told[0] == told[1]


def many_streams(path: Path, count: int) -> Path:
    """The same pictures so many times side by side."""
    with av.open(str(FOLDER / "traffic.mp4")) as clip, av.open(str(path), "w") as made:
        pictures = clip.streams.video[0]
        streams = [made.add_stream_from_template(pictures) for _ in range(count)]
        for packet in islice(clip.demux(pictures), 6):
            for stream in streams:
                copied = av.Packet(bytes(packet))
                copied.pts, copied.dts = packet.pts, packet.dts
                copied.time_base, copied.is_keyframe = packet.time_base, packet.is_keyframe
                copied.stream = stream
                made.mux(copied)
    return path


@pytest.mark.parametrize("suffix", one_in(3, ["mkv", "mov", "ts"]))
def test_a_file_has_200_streams_at_most(examiner: Examiner, tmp_path: Path, suffix: str) -> None:
    """Whether FFmpeg says nothing of more, or that memory ran out."""
    most = examiner.examine(many_streams(tmp_path / f"most.{suffix}", 200))
    assert len(most.media.side_streams) == 199
    for count in (201, 400):
        more = many_streams(tmp_path / f"more.{suffix}", count)
        for way in (examine, examiner.examine):
            with pytest.raises(RefusedMediaError, match="the file has more than 200 streams"):
                way(more)


def test_a_file_that_crashes_the_decoder_is_refused_and_the_next_is_not(
    examiner: Examiner, wide_clip: Path
) -> None:
    assert "crashes (SIGSEGV)" in refusal(examiner, wide_clip, signal.SIGSEGV)
    assert "crashes (SIGABRT)" in refusal(examiner, wide_clip, signal.SIGABRT)
    assert "was killed" in refusal(examiner, wide_clip, signal.SIGKILL)
    assert len(examiner.examine(wide_clip).order) == 60


@pytest.mark.thorough
def test_a_file_on_which_the_decoder_hangs_is_refused(wide_clip: Path) -> None:
    impatient = Examiner(SandboxLimits(silent_seconds=2))
    try:
        assert "hangs" in refusal(impatient, wide_clip, signal.SIGSTOP)
        assert len(impatient.examine(wide_clip).order) == 60
    finally:
        impatient.close()


def raw(path: Path, width: int, height: int, frames: int) -> Path:
    """Black pictures that take no room on the disk."""
    head = f"YUV4MPEG2 W{width} H{height} F25:1\n".encode()
    with open(path, "wb") as file:
        file.write(head)
        for number in range(frames):
            file.seek(len(head) + number * (6 + width * height * 3 // 2))
            file.write(b"FRAME\n")
        file.truncate(len(head) + frames * (6 + width * height * 3 // 2))
    return path


def test_memory_and_time_are_limited(tmp_path: Path) -> None:
    large = raw(tmp_path / "large.y4m", 16384, 8192, 1)
    with pytest.raises(RefusedMediaError, match="MiB of memory"):
        _examined_within(SandboxLimits(memory=300 << 20), large)
    long = raw(tmp_path / "long.y4m", 3840, 2160, 2000)
    with pytest.raises(RefusedMediaError, match="more than 1 seconds of CPU time"):
        _examined_within(SandboxLimits(seconds=1, seconds_per_gigabyte=0), long)


def _examined_within(limits: SandboxLimits, path: Path) -> Examination:
    examiner = Examiner(limits)
    try:
        return examiner.examine(path)
    finally:
        examiner.close()


@pytest.mark.thorough
def test_who_gives_up_ends_the_work(examiner: Examiner, wide_clip: Path) -> None:
    class EnoughError(Exception):
        pass

    def give_up(done: int, total: int) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        examiner.examine(wide_clip, full=True, on_progress=give_up)
    assert len(examiner.examine(wide_clip).order) == 60


def test_a_process_that_was_killed_while_idle_is_replaced(examiner: Examiner) -> None:
    examiner.examine(FOLDER / "portrait.mp4")
    idle = [c for c in children(os.getpid()) if b"sandbox_start" in _command(c)]
    assert idle
    for child in idle:
        os.kill(child, signal.SIGKILL)
    assert len(examiner.examine(FOLDER / "portrait.mp4").order)


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_process_with_thousands_of_files_open_has_files_examined() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 4096:
        pytest.skip("not so many files may be open")
    crowded = Examiner(SandboxLimits())
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
        held += [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        assert len(crowded.examine(FOLDER / "portrait.mp4").order)
    finally:
        for fd in held:
            os.close(fd)
        crowded.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# ------------------------------------------------------------------- what the process hands over


EXAMINED = {name: examine(FOLDER / name) for name in ("traffic.mp4", "late-start.mp4")}


@pytest.mark.parametrize("name", EXAMINED)
def test_an_examination_is_the_same_when_it_arrives(name: str) -> None:
    size = (FOLDER / name).stat().st_size
    packed = pack_examination(EXAMINED[name])
    assert alike(unpack_examination(packed, size), EXAMINED[name])
    with pytest.raises(IntegrityError):
        unpack_examination(packed, size // 2)  # of a file that is shorter than what it tells of


@given(data=st.data())
def test_no_answer_does_more_than_be_refused(data: st.DataObject) -> None:
    size = (FOLDER / "late-start.mp4").stat().st_size
    packed = bytearray(pack_examination(EXAMINED["late-start.mp4"]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(packed) - 1))
        packed[at] = data.draw(st.integers(0, 255))
    try:
        found = unpack_examination(bytes(packed[: data.draw(st.integers(0, len(packed)))]), size)
    except IntegrityError:
        return
    assert found.order.max() < len(found.columns)
    assert (np.diff(found.columns.pts[found.order]) > 0).all()
    assert (found.columns.position + found.columns.size).max() <= size
