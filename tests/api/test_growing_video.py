"""Reading videos while they are written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import vfsd.disk.tempfiles
from sample_videos import FOLDER
from tests.support.forking import exit_code_of_child
from tests.support.selection import one_in
from tests.support.writing import is_as_before, smooth
from vfsd.api.growing_video import GrowingVideo
from vfsd.api.store import Store
from vfsd.codecs.probing import growing_fmp4
from vfsd.codecs.probing.growing_fmp4 import GrowingFmp4
from vfsd.codecs.probing.probe import Examination, examine, examine_source
from vfsd.core.frames import Frame
from vfsd.core.model import Access
from vfsd.core.pixel_array import Pixels
from vfsd.disk.tempfiles import new_name
from vfsd.errors import (
    BusyError,
    IntegrityError,
    NotFoundError,
    OutdatedError,
    RefusedMediaError,
    UsageError,
)
from vfsd.maintenance import fsck
from vfsd.mount.fs import Caller, Filesystem
from vfsd.mount.fs.unlinked_files import recover
from vfsd.write.unfinished_files import active_partials

CLIP = FOLDER / "traffic.mp4"


def grown(store: Store, name: str) -> GrowingVideo | None:
    try:
        return store.growing(name)
    except BusyError:
        return None


@pytest.mark.parametrize("codec", one_in(2, ["h264", "hevc", "av1", "ffv1"]))
@pytest.mark.parametrize("ending", one_in(2, ["mp4", "mov"]))
def test_each_prefix_equals_the_finished_video(store: Store, codec: str, ending: str) -> None:
    if (codec, ending) in (("ffv1", "mov"), ("av1", "mov")):
        pytest.skip("mov does not hold it")
    data = smooth(100, 96, 64)
    name = f"cam/a.{ending}"
    growing: GrowingVideo | None = None
    seen: list[Pixels] = []
    lengths = set()
    with store.writer(name, width=96, height=64, fps=20, codec=codec) as writer:
        for picture in data:
            writer.write(picture)
            growing = growing or grown(store, name)
            if growing is not None:
                assert growing.refresh()
                lengths.add(len(growing))
                if len(growing) > len(seen):
                    seen += list(growing[len(seen) :].data)
        assert growing is not None
        assert name not in store
        assert len(growing.keyframes) > 1
        middle = growing[len(growing) // 2 + 3]
    assert len(lengths) > 2
    assert not growing.refresh()
    assert len(growing) == 100
    seen += list(growing[len(seen) :].data)
    whole = writer.video
    assert np.array_equal(np.stack(seen), whole.read().data)
    assert np.array_equal(middle.data, whole[middle.index].data)
    assert np.array_equal(growing.keyframes, whole.keyframes)
    assert growing.duration == whole.duration
    assert growing.read(span=(1, 2), region=(10, 10, 50, 40)).data.shape == (20, 30, 40, 3)
    assert [frame.seconds for frame in growing] == whole.read().seconds.tolist()
    growing.close()
    with pytest.raises(UsageError):
        growing.refresh()


def test_frames_with_explicit_times(store: Store) -> None:
    times = np.cumsum(np.random.default_rng(0).integers(1, 120, 200)).tolist()
    data = smooth(200, 64, 48)
    with store.writer("a.mp4", width=64, height=48, time_base="0.001") as writer:
        writer.write(data[:150], pts=times[:150])
        growing = store.growing("a.mp4")
        before = growing.read().seconds
        writer.write(data[150:], pts=times[150:])
    growing.refresh()
    wanted = [(time - times[0]) / 1000 for time in times]
    assert before.tolist() == pytest.approx(wanted[: len(before)])
    assert growing.read().seconds.tolist() == pytest.approx(wanted)
    assert writer.video.read().seconds.tolist() == pytest.approx(wanted)


def test_follower_receives_every_frame_once(store: Store) -> None:
    data = smooth(120, 64, 48)
    got: list[int] = []
    started, ready = threading.Event(), threading.Event()

    def follow() -> None:
        started.wait()
        with store.growing("a.mp4") as growing:
            for frame in growing.follow():
                got.append(frame.index)
                ready.set()

    thread = threading.Thread(target=follow)
    thread.start()
    with store.writer("a.mp4", width=64, height=48, fps=20, codec="ffv1") as writer:
        writer.write(data[:60])
        started.set()
        assert ready.wait(60)  # the follower has some frames before the rest is written
        writer.write(data[60:])
    thread.join(60)
    assert got == list(range(120))


def test_follower_sees_frames_already_read_elsewhere(store: Store) -> None:
    data = smooth(120, 64, 48)
    with store.writer("a.mp4", width=64, height=48, fps=20, codec="ffv1") as writer:
        writer.write(data[:60])
        growing = store.growing("a.mp4")
        following = growing.follow()
        got = [next(following).index]
        writer.write(data[60:])
        growing.refresh()
    got += [frame.index for frame in following]
    assert got == list(range(120))
    with pytest.raises(UsageError, match="start must be 0 or more, got -3"):
        growing.follow(-3)


def test_unreadable_growing_files(store: Store) -> None:
    with pytest.raises(NotFoundError):
        store.growing("a.mp4")
    store.ingest(CLIP, "done.mp4")
    with pytest.raises(NotFoundError, match="no writer has"):
        store.growing("done.mp4")
    with store.writer("a.mp4", width=64, height=48, fps=20) as writer:
        with pytest.raises(BusyError):
            store.growing("/a.mp4")
        writer.write(smooth(3, 64, 48))
    with store.writer("a.mkv", width=64, height=48, fps=20) as writer:
        writer.write(smooth(100, 64, 48))
        with pytest.raises(BusyError, match="yet"):
            store.growing("a.mkv")


def test_groups_need_the_finished_video(store: Store) -> None:
    with store.writer("a.mp4", width=64, height=48, fps=20) as writer:
        writer.write(smooth(60, 64, 48))
        growing = store.growing("a.mp4")
        for use in (
            lambda: growing.labels,
            lambda: growing.tiles,
            lambda: growing.renditions,
            lambda: growing.budget,
            lambda: growing.policy,
            lambda: growing.views,
            lambda: growing.save("b.mp4"),
            lambda: growing.verify(),
            lambda: growing.scan("car"),
        ):
            with pytest.raises(UsageError, match="must be finished"):
                use()
        growing.close()


def test_abandoned_video_stays_readable_for_open_readers(store: Store) -> None:
    writer = store.writer("a.mp4", width=64, height=48, fps=20, codec="ffv1")
    data = smooth(60, 64, 48)
    writer.write(data)
    growing = store.growing("a.mp4")
    count = len(growing)
    writer.abandon()
    assert not growing.refresh()
    assert len(growing) >= count
    assert np.array_equal(growing.read().data, data[: len(growing)])
    assert is_as_before(store, [])


def test_abandoned_recording_is_reported_by_name(store: Store) -> None:
    with store.writer("cam/a.mp4", width=64, height=48, fps=20, codec="ffv1") as writer:
        writer.write(smooth(60, 64, 48))
        with store.growing("cam/a.mp4") as growing:
            os.truncate(writer.unfinished.path, 6000)
            with pytest.raises(IntegrityError, match=r"^cam/a\.mp4: packet \d+ .* beyond the end"):
                list(growing.follow())
        writer.abandon()


_WRITER = """
    import sys
    import numpy as np
    from vfsd import Store
    with Store.open(sys.argv[1]) as store:
        with store.writer("live.mp4", width=64, height=48, fps=20, codec="ffv1") as writer:
            for number in range(100000):
                writer.write(np.full((48, 64, 3), number % 251, np.uint8))
                print(number, flush=True)
"""


def test_another_process_and_its_death(store: Store) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_WRITER), str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while int(process.stdout.readline()) < 50:
            pass
        growing = store.growing("live.mp4")
        first = len(growing)
        assert first > 10
        while len(growing) <= first:
            process.stdout.readline()
            assert growing.refresh()
        process.send_signal(signal.SIGKILL)
    assert not growing.refresh()
    got = growing.read().data
    assert got[:, 0, 0, 0].tolist() == [number % 251 for number in range(len(growing))]
    with pytest.raises(NotFoundError):
        store.growing("live.mp4")
    assert list(store) == []


def test_writer_of_unknown_pid_is_detected_by_its_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer may run in another container, with its own pids."""
    monkeypatch.setattr(vfsd.disk.tempfiles, "is_alive", lambda name: False)
    parts = store.parts
    pictures = smooth(8, 96, 64)
    with store.writer("live.mp4", width=96, height=64, fps=20) as writer:
        for picture in pictures:
            writer.write(picture)
        assert fsck.collect(parts).files == []
        assert recover(parts).stray == 0
        assert [one.name for one in active_partials(parts.objects)] == ["live.mp4"]
        with pytest.raises(BusyError):
            store.writer("live.mp4", width=96, height=64, fps=20)
        # A child that lives longer than its parent does not hold the file.
        held = writer.unfinished.held
        assert held is not None
        assert exit_code_of_child(lambda: os._exit(not held.is_unlocked)) == 0
        assert fsck.collect(parts).files == []
    assert len(store["live.mp4"]) == 8

    found: list[Path] = []
    source = parts.originals.path_of(store["live.mp4"].original)
    parts.objects.put_file(source, on_progress=lambda _: found.extend(parts.objects.leftovers()))
    assert found == []
    left = parts.directory.objects_tmp / new_name()
    left.write_bytes(b"of somebody who died")
    assert fsck.collect(parts).files == [left]


# -------------------------------------------------------------------------------- through a mount


_BY_KEY_PICTURES = {"movflags": "frag_keyframe+empty_moov"}
_X264 = "scenecut=0:b-adapt=0"


def _recorded(
    path: Path,
    times: Sequence[int],
    muxing: dict[str, str],
    *,
    codec: str = "libx264",
    coding: str = _X264,
    tick: Fraction = Fraction(1, 1000),
    b_frames: int = 2,
    with_sound: bool = False,
    pixel_format: str = "yuv420p",
) -> bytes:
    """A file as ffmpeg writes it with these options; `times` are in milliseconds."""
    with av.open(str(path), "w", options=muxing) as output:
        sound = output.add_stream("aac", rate=48000) if with_sound else None
        options = {f"{codec[3:]}-params": coding} if coding else {}
        stream = output.add_stream(codec, rate=20, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pixel_format
        stream.codec_context.time_base = tick
        stream.codec_context.gop_size = 20
        stream.codec_context.max_b_frames = b_frames
        heard = 0
        for time, picture in zip(times, smooth(len(times), 64, 48), strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            output.mux(stream.encode(frame))
            while sound is not None and heard < 48 * time:
                samples = av.AudioFrame.from_ndarray(
                    np.zeros((2, 1024), np.float32), format="fltp", layout="stereo"
                )
                samples.sample_rate, samples.pts = 48000, heard
                heard += 1024
                output.mux(sound.encode(samples))
        output.mux(stream.encode(None))
        if sound is not None:
            output.mux(sound.encode(None))
    return path.read_bytes()


def _regular(count: int) -> Sequence[int]:
    """Times of 20 frames a second."""
    return range(0, 50 * count, 50)


def _fragments(data: bytes) -> list[bytes]:
    """The beginning of a file with its first fragment, and each other fragment."""
    at, ends = 0, [0]
    while at < len(data):
        kind = data[at + 4 : at + 8]
        at += int.from_bytes(data[at : at + 4])
        if kind == b"mdat":
            ends.append(at)
    ends.append(len(data))
    return [data[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize("b_frames", [0, 2])
def test_growing_video_written_through_a_mount(store: Store, tmp_path: Path, b_frames: int) -> None:
    data = _recorded(tmp_path / "a.mp4", _regular(100), _BY_KEY_PICTURES, b_frames=b_frames)
    pieces = [data[at : at + 3000] for at in range(0, len(data), 3000)]
    filesystem = Filesystem(store.parts)
    growing: GrowingVideo | None = None
    with store.parts.directory.mounted("here"):
        handle = filesystem.create("/a.mp4", 0o644, 2, Caller(0, 0))
        at, seen = 0, set()
        for piece in pieces:
            at += filesystem.write(handle, piece, at)
            growing = growing or grown(store, "a.mp4")
            if growing is not None:
                assert growing.refresh()
                seen.add(len(growing))
        assert growing is not None
        assert len(seen) > 2
        filesystem.flush(handle)
        filesystem.release(handle)
        whole = store["a.mp4"]
        assert not growing.refresh()
        assert np.array_equal(growing.read().data, whole[: len(growing)].data)
        assert len(growing) == 100
        filesystem.close()


_X265 = "keyint=12:min-keyint=12:log-level=none"
_OPEN = f"{_X264}:open-gop=1:keyint=12:min-keyint=12"
_MOVABLE = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
_BY_TIME = {"movflags": "empty_moov", "frag_duration": "300000"}
_BY_FRAME = {"movflags": "frag_every_frame+empty_moov"}
_TRACK_BY_TRACK = {"movflags": "frag_keyframe+empty_moov+separate_moof"}
_WITH_EDIT_LIST = {"movflags": "frag_keyframe+delay_moov"}
_WITHOUT_EDIT_LIST = {"movflags": "frag_keyframe+empty_moov+negative_cts_offsets"}
_REGULAR = _regular(40)
_IRREGULAR = np.cumsum(np.random.default_rng(0).integers(5, 120, 40)).tolist()


@pytest.mark.parametrize(
    ("codec", "coding", "muxing", "times"),
    one_in(
        4,
        [
            # Leading frames of a key frame need the previous fragment.
            ("libx265", _X265, _BY_KEY_PICTURES, _REGULAR),
            ("libx264", _OPEN, _BY_KEY_PICTURES, _REGULAR),
            ("mpeg2video", "", _BY_KEY_PICTURES, _REGULAR),  # decoded in full
            # Fragments begin anywhere, and their first frames are shown before earlier ones.
            ("libx265", _X265, _BY_TIME, _REGULAR),
            ("libx264", _X264, _BY_TIME, _IRREGULAR),
            ("libx264", _OPEN, _BY_FRAME, _REGULAR),
            ("mpeg4", "", _BY_TIME, _REGULAR),
            # Each track has its own fragments; times are shifted.
            ("libx264", _X264, _TRACK_BY_TRACK, _REGULAR),
            ("libx264", _X264, _WITH_EDIT_LIST, _REGULAR),
            ("libx264", _X264, _WITHOUT_EDIT_LIST, _IRREGULAR),
        ],
    ),
)
def test_growing_frames_equal_finished_frames(
    store: Store,
    tmp_path: Path,
    codec: str,
    coding: str,
    muxing: dict[str, str],
    times: Sequence[int],
) -> None:
    data = _recorded(
        tmp_path / "a.mp4",
        times,
        muxing,
        codec=codec,
        coding=coding,
        tick=Fraction(1, 1000) if coding else Fraction(1, 20),
        with_sound=muxing is _TRACK_BY_TRACK,
    )
    filesystem = Filesystem(store.parts)
    growing: GrowingVideo | None = None
    seen: list[Frame] = []  # by a follower
    ends: list[Frame] = []  # by a reader that opens it and reads the last frame
    with store.parts.directory.mounted("here"):
        handle = filesystem.create("/a.mp4", 0o644, 2, Caller(0, 0))
        at = 0
        for number, piece in enumerate(_fragments(data)):
            at += filesystem.write(handle, piece, at)
            growing = growing or grown(store, "a.mp4")
            if growing is not None:
                assert growing.refresh()
                seen += growing[len(seen) :]
                if number % 3 == 0:
                    with store.growing("a.mp4") as opened:
                        ends.append(opened[-1])
        assert growing is not None
        assert len(times) > len(seen) > 20
        filesystem.flush(handle)
        filesystem.release(handle)
        seen += growing.follow(len(seen))
        whole = store["a.mp4"]
        wanted = whole.read()
        assert len(seen) == len(whole) == len(times)
        for frame in (*seen, *ends):
            assert np.array_equal(frame.data, wanted.data[frame.index])
            assert frame.seconds == wanted.seconds[frame.index]
        assert np.array_equal(growing.keyframes, whole.keyframes)
        assert growing.duration == whole.duration
        assert np.array_equal(growing.read().data, wanted.data)
        growing.close()
        filesystem.close()


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_samples_listed_in_the_movie_box(store: Store, tmp_path: Path, codec: str) -> None:
    """A part shown to the demuxer without the movie box may be unreadable although the whole is
    a video."""
    data = _recorded(
        tmp_path / "a.mp4",
        _regular(45),
        {"movflags": "frag_keyframe"},
        codec=codec,
        coding=f"{_X264}:keyint=7:min-keyint=7:bframes=0" if codec == "libx264" else "",
        tick=Fraction(1, 20),
    )
    filesystem = Filesystem(store.parts)
    growing: GrowingVideo | None = None
    seen: list[Frame] = []
    with store.parts.directory.mounted("here"):
        handle = filesystem.create("/a.mp4", 0o644, 2, Caller(0, 0))
        at = 0
        while at < len(data):
            at += filesystem.write(handle, data[at : at + 700], at)
            growing = growing or grown(store, "a.mp4")
            if growing is not None:
                growing.refresh()
                seen += growing[len(seen) :]
        assert growing is not None
        filesystem.flush(handle)
        filesystem.release(handle)
        seen += growing.follow(len(seen))
        wanted = store["a.mp4"].read()
        assert len(seen) == len(wanted.data) == 45
        for frame in seen:
            assert np.array_equal(frame.data, wanted.data[frame.index])
        growing.close()
        filesystem.close()


@pytest.mark.parametrize("muxing", one_in(4, ["frag_keyframe", "frag_keyframe+empty_moov"]))
@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg4", "mpeg2video"])
def test_appended_data_is_scanned_incrementally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, muxing: str
) -> None:
    """This includes files with samples listed in the movie box."""
    data = _recorded(
        tmp_path / "a.mp4",
        _regular(210),
        {"movflags": muxing},
        codec=codec,
        coding=f"{_X264 if codec == 'libx264' else _X265}:keyint=7:min-keyint=7:open-gop=0"
        if codec.startswith("libx")
        else "",
        tick=Fraction(1, 20),
    )
    looked_at = 0

    def examined(*given: Any, **how: Any) -> Examination:
        nonlocal looked_at
        found = examine_source(*given, **how)
        looked_at += len(found.columns)
        return found

    monkeypatch.setattr(growing_fmp4, "examine_source", examined)
    path = tmp_path / "grows.mp4"
    got: list[Examination | None] = []
    with path.open("w+b", buffering=0) as file:
        growing = GrowingFmp4(file.fileno(), "grows.mp4")
        for piece in _fragments(data):
            file.write(piece)
            got.append(growing.advance())
        got.append(growing.finish())
    found = [one.columns for one in got if one is not None]
    assert len(found) > 8
    whole = examine(tmp_path / "a.mp4").columns
    assert sum(map(len, found)) == len(whole) == 210
    for name in ("pts", "dts", "position", "size"):
        parts = np.concatenate([getattr(one, name) for one in found])
        assert np.array_equal(parts, getattr(whole, name)), name
    assert looked_at < 4 * len(whole)


@pytest.mark.thorough
@pytest.mark.parametrize(("codec", "pixel_format"), [("qtrle", "rgb24"), ("rawvideo", "gray")])
def test_growing_file_that_needs_the_demuxer(
    store: Store, tmp_path: Path, codec: str, pixel_format: str
) -> None:
    """A demuxer that has reached the end of the file returns nothing more."""
    data = _recorded(
        tmp_path / "a.mov",
        _regular(40),
        {"movflags": "empty_moov", "frag_duration": "250000"},
        codec=codec,
        coding="",
        tick=Fraction(1, 20),
        pixel_format=pixel_format,
    )
    filesystem = Filesystem(store.parts)
    growing: GrowingVideo | None = None
    seen: list[Frame] = []
    lengths = set()
    opened: list[int] = []
    with store.parts.directory.mounted("here"):
        handle = filesystem.create("/a.mov", 0o644, 2, Caller(0, 0))
        at = 0
        for piece in _fragments(data):
            for part in (piece[:-500], piece[-500:]):  # the first is an incomplete fragment
                at += filesystem.write(handle, part, at)
                growing = growing or grown(store, "a.mov")
                if growing is not None:
                    assert growing.original.access is not Access.EXTENT
                    assert growing.refresh()
                    seen += growing[len(seen) :]
                    lengths.add(len(seen))
                    opened.append(_descriptors_of(os.stat(growing.original.link_path or "")))
        assert growing is not None
        assert len(lengths) > 4
        assert max(opened) <= opened[0] + 1  # no decoder of the earlier part is left
        filesystem.flush(handle)
        filesystem.release(handle)
        seen += growing.follow(len(seen))
        file = os.stat(growing.original.link_path or "")
        growing.close()
        assert _descriptors_of(file) == 0
        wanted = store["a.mov"].read()
        assert len(seen) == len(wanted.data) == 40
        for frame in seen:
            assert np.array_equal(frame.data, wanted.data[frame.index])
        filesystem.close()


def _descriptors_of(file: os.stat_result) -> int:
    """How many this process has."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the folder itself
            count += os.path.samestat(os.stat(f"/proc/self/fd/{name}"), file)
    return count


def _has_holes(folder: Path) -> bool:
    """Whether the disk reports holes in a file."""
    with (folder / "hole").open("w+b") as file:
        file.truncate(1 << 20)
        return os.lseek(file.fileno(), 0, os.SEEK_HOLE) == 0


def test_preallocated_space_is_not_read_as_data(store: Store, tmp_path: Path) -> None:
    if not _has_holes(store.path):
        pytest.skip("the disk tells of no holes")
    data = _recorded(tmp_path / "a.mp4", _regular(100), _BY_FRAME)
    filesystem = Filesystem(store.parts)
    growing: GrowingVideo | None = None
    seen: list[Frame] = []
    with store.parts.directory.mounted("here"):
        handle = filesystem.create("/a.mp4", 0o644, 2, Caller(0, 0))
        filesystem.write(handle, data[-1:], len(data) - 1)
        for at in range(0, len(data), 1000):
            filesystem.write(handle, data[at : at + 1000], at)
            growing = growing or grown(store, "a.mp4")
            if growing is not None:
                assert growing.refresh()
                assert growing.original.size <= at + 1000
                seen += growing[len(seen) :]
        assert growing is not None
        assert len(seen) > 20
        filesystem.flush(handle)
        filesystem.release(handle)
        seen += growing.follow(len(seen))
        wanted = store["a.mp4"].read()
        assert len(seen) == len(wanted.data) == 100
        for frame in seen:
            assert np.array_equal(frame.data, wanted.data[frame.index])
        growing.close()
        filesystem.close()


def _with_boxes_between(pieces: list[bytes], between: bytes) -> list[bytes]:
    return [pieces[0], *(between + piece for piece in pieces[1:])]


def _going_to_the_end(pieces: list[bytes]) -> list[bytes]:
    """The last media data have no length, and no index follows."""
    *others, last, _ = pieces
    at = last.rindex(b"mdat") - 4
    return [*others, last[:at] + bytes(4) + last[at + 4 :]]


@pytest.mark.parametrize(
    "between",
    one_in(4, [b"ssix" + bytes(12), b"abcd", b"udta", b"mdat" + bytes(2), b"moov", b"mfra", b""]),
)
def test_boxes_between_fragments_are_skipped(store: Store, tmp_path: Path, between: bytes) -> None:
    """This includes the boxes of a repeated header, and a box without a length."""
    pieces = _fragments(_recorded(tmp_path / "a.mp4", _regular(60), _MOVABLE))
    if between == b"moov":
        again = pieces[0][: pieces[0].index(b"moof") - 4]
        pieces = _with_boxes_between(pieces[:-1], again)
    elif between:
        pieces = _with_boxes_between(pieces[:-1], (4 + len(between)).to_bytes(4) + between)
    else:
        pieces = _going_to_the_end(pieces)
    filesystem = Filesystem(store.parts)
    with store.parts.directory.mounted("here"):
        handle = filesystem.create("/a.mp4", 0o644, 2, Caller(0, 0))
        at = filesystem.write(handle, pieces[0], 0)
        with store.growing("a.mp4") as growing:
            for piece in pieces[1:]:
                at += filesystem.write(handle, piece, at)
                assert growing.refresh()
            filesystem.flush(handle)
            filesystem.release(handle)
            seen = list(growing.follow())
            whole = store["a.mp4"].read()
            assert len(seen) == len(whole.data) == 60
            assert np.array_equal(growing.read().data, whole.data)
        filesystem.close()


def _boxes(data: bytes) -> list[bytes]:
    at, boxes = 0, list[bytes]()
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        boxes.append(data[at : at + size])
        at += size
    return boxes


def _with_data_later(fragment: bytes, by: int) -> bytes:
    """A moof box with media data that many bytes further behind it."""
    at = fragment.index(b"trun") + 12
    there = int.from_bytes(fragment[at : at + 4]) + by
    return fragment[:at] + there.to_bytes(4) + fragment[at + 4 :]


def _by_pairs(boxes: list[bytes]) -> list[bytes]:
    """``moof mdat moof mdat`` as ``moof moof mdat mdat``; an odd last pair is left out."""
    paired: list[bytes] = []
    for at in range(0, len(boxes) - 3, 4):
        one, its_data, other, others_data = boxes[at : at + 4]
        one = _with_data_later(one, len(other))
        other = _with_data_later(other, len(its_data))
        paired += [one, other, its_data, others_data]
    return paired


def _in_halves(boxes: list[bytes]) -> list[bytes]:
    """Two tracks with a common fragment box get separate media data."""
    halved: list[bytes] = []
    for fragment, data in zip(boxes[::2], boxes[1::2], strict=True):
        first = fragment.index(b"trun") + 12
        second = fragment.index(b"trun", first) + 12
        ends = [int.from_bytes(fragment[at : at + 4]) - len(fragment) for at in (first, second)]
        cut = max(ends)
        later = first if ends[0] == cut else second
        moved = (cut + len(fragment) + 8).to_bytes(4)
        halved += [
            fragment[:later] + moved + fragment[later + 4 :],
            cut.to_bytes(4) + data[4:cut],
            (len(data) - cut + 8).to_bytes(4) + b"mdat" + data[cut:],
        ]
    return halved


@pytest.mark.thorough
@pytest.mark.parametrize("with_sound", [False, True])
def test_media_data_in_several_boxes(store: Store, tmp_path: Path, with_sound: bool) -> None:
    """The data of two fragments follow both, or each track has its own data box."""
    file = tmp_path / "a.mp4"
    data = _recorded(file, _regular(80), _MOVABLE, b_frames=0, with_sound=with_sound)
    boxes = _boxes(data)
    first = next(at for at, box in enumerate(boxes) if box[4:8] == b"moof")
    fragments = [box for box in boxes[first:] if box[4:8] in (b"moof", b"mdat")]
    pieces = (_in_halves if with_sound else _by_pairs)(fragments)
    filesystem = Filesystem(store.parts)
    growing: GrowingVideo | None = None
    seen: list[Frame] = []
    with store.parts.directory.mounted("here"):
        handle = filesystem.create("/a.mp4", 0o644, 2, Caller(0, 0))
        at = filesystem.write(handle, b"".join(boxes[:first]), 0)
        for piece in pieces:
            at += filesystem.write(handle, piece, at)
            growing = growing or grown(store, "a.mp4")
            if growing is not None:
                assert growing.refresh()
                seen += growing[len(seen) :]
        assert growing is not None
        assert len(seen) > 60  # the reader does not wait for the end
        filesystem.flush(handle)
        filesystem.release(handle)
        seen += growing.follow(len(seen))
        whole = store["a.mp4"].read()
        assert len(seen) == len(whole.data) > 60
        for frame in seen:
            assert np.array_equal(frame.data, whole.data[frame.index])
        growing.close()
        filesystem.close()


@pytest.mark.parametrize("is_over", [False, True])
def test_data_moved_by_faststart_is_not_reused(store: Store, tmp_path: Path, is_over: bool) -> None:
    """At its end, ffmpeg puts an index in front of all fragments."""
    data = _recorded(
        tmp_path / "a.mp4",
        _regular(60),
        {"movflags": "dash+global_sidx+empty_moov", "frag_duration": "300000"},
        codec="mjpeg",
        coding="",
        tick=Fraction(1, 20),
        b_frames=0,
        pixel_format="yuvj420p",
    )
    boxes = _boxes(data)
    index = next(at for at, box in enumerate(boxes) if box[4:8] == b"sidx")
    before, rest = b"".join(boxes[:index]), b"".join(boxes[index:])
    recorded = before + b"".join(box for box in boxes[index + 1 :] if box[4:8] != b"mfra")
    filesystem = Filesystem(store.parts)
    with store.parts.directory.mounted("here"):
        handle = filesystem.create("/a.mp4", 0o644, 2, Caller(0, 0))
        filesystem.write(handle, recorded, 0)
        with store.growing("a.mp4") as growing, growing.file() as file:
            assert len(growing) > 50
            frames = growing.iterate()
            first = next(frames)
            # The first fragments are moved first, and the index is written last of all.
            kept = len(boxes[index])
            filesystem.write(handle, rest[kept:], len(before) + kept)
            if is_over:
                filesystem.write(handle, rest[:kept], len(before))
                filesystem.flush(handle)
                filesystem.release(handle)
            for again in range(2):
                with pytest.raises(OutdatedError, match="moved"):
                    growing[again]
                with pytest.raises(RefusedMediaError, match="moved"):
                    list(growing.follow(len(growing)))
            with pytest.raises(OutdatedError, match="moved"):
                next(frames)
            with pytest.raises(OSError, match="moved"):
                file.read()
        if is_over:
            assert np.array_equal(store["a.mp4"][0].data, first.data)
        filesystem.close()


def test_inconsistent_continuation_is_refused(store: Store, tmp_path: Path) -> None:
    """The third fragment shows that frames are displayed later than their own times."""
    muxing = {"movflags": "frag_every_frame+empty_moov+negative_cts_offsets"}
    pieces = _fragments(_recorded(tmp_path / "a.mp4", _regular(20), muxing))
    filesystem = Filesystem(store.parts)
    with store.parts.directory.mounted("here"):
        handle = filesystem.create("/a.mp4", 0o644, 2, Caller(0, 0))
        filesystem.write(handle, pieces[0], 0)
        with store.growing("a.mp4") as growing:
            first = growing[0]
            filesystem.write(handle, b"".join(pieces[1:]), len(pieces[0]))
            with pytest.raises(RefusedMediaError, match="does not continue as it began"):
                growing.refresh()
            assert np.array_equal(growing.read().data[0], first.data)
        filesystem.release(handle)
        assert np.array_equal(store["a.mp4"][0].data, first.data)
        filesystem.close()
