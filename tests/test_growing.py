"""Videos that are read while they are written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

import vfsd.inhand
from sample_videos import FOLDER
from tests.forking import exit_code_of_child
from tests.writing import is_as_before, smooth
from vfsd import check
from vfsd.errors import BusyError, IntegrityError, NotFoundError, UsageError
from vfsd.frames import Pixels
from vfsd.fs import Caller, Filesystem
from vfsd.fs.recovery import recover
from vfsd.inhand import new_name
from vfsd.making.unfinished import unfinished
from vfsd.store import Store
from vfsd.videos.growing import GrowingVideo

CLIP = FOLDER / "traffic.mp4"


def grown(store: Store, name: str) -> GrowingVideo | None:
    try:
        return store.growing(name)
    except BusyError:
        return None


@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "ffv1"])
@pytest.mark.parametrize("ending", ["mp4", "mov"])
def test_each_prefix_is_what_the_whole_is(store: Store, codec: str, ending: str) -> None:
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


def test_frames_with_times_of_their_own(store: Store) -> None:
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


def test_a_follower_gets_every_frame_once(store: Store) -> None:
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
        assert ready.wait(60)  # the follower has some before the rest is there
        writer.write(data[60:])
    thread.join(60)
    assert got == list(range(120))


def test_nothing_to_be_read(store: Store) -> None:
    with pytest.raises(NotFoundError):
        store.growing("a.mp4")
    store.ingest(CLIP, "done.mp4")
    with pytest.raises(NotFoundError, match="nobody writes"):
        store.growing("done.mp4")
    with store.writer("a.mp4", width=64, height=48, fps=20) as writer:
        with pytest.raises(BusyError):
            store.growing("/a.mp4")
        writer.write(smooth(3, 64, 48))
    with store.writer("a.mkv", width=64, height=48, fps=20) as writer:
        writer.write(smooth(100, 64, 48))
        with pytest.raises(BusyError, match="yet"):
            store.growing("a.mkv")


def test_what_was_given_up_can_be_read_to_the_end_by_who_has_it(store: Store) -> None:
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


def test_what_was_cut_off_meanwhile_is_told_by_its_name(store: Store) -> None:
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


def test_whose_pid_says_nothing_is_known_by_the_lock_on_the_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in another container, which has pids of its own."""
    monkeypatch.setattr(vfsd.inhand, "is_alive", lambda name: False)
    parts = store.parts
    pictures = smooth(8, 96, 64)
    with store.writer("live.mp4", width=96, height=64, fps=20) as writer:
        for picture in pictures:
            writer.write(picture)
        assert check.collect(parts).files == []
        assert recover(parts).stray == 0
        assert [one.name for one in unfinished(parts.objects)] == ["live.mp4"]
        with pytest.raises(BusyError):
            store.writer("live.mp4", width=96, height=64, fps=20)
        # A child that lives longer than its parent does not hold the file.
        held = writer.unfinished.held
        assert held is not None
        assert exit_code_of_child(lambda: os._exit(not held.is_let_go)) == 0
        assert check.collect(parts).files == []
    assert len(store["live.mp4"]) == 8

    found: list[Path] = []
    source = parts.bytes_of(store["live.mp4"].original)
    parts.objects.put_file(source, on_progress=lambda _: found.extend(parts.objects.leftovers()))
    assert found == []
    left = parts.directory.objects_tmp / new_name()
    left.write_bytes(b"of somebody who died")
    assert check.collect(parts).files == [left]


# -------------------------------------------------------------------------------- through a mount


def _fragments(path: Path, count: int, *, b_frames: int) -> list[bytes]:
    """A file as `ffmpeg -movflags frag_keyframe+empty_moov` writes it, in pieces."""
    with av.open(str(path), "w", options={"movflags": "frag_keyframe+empty_moov"}) as output:
        stream = output.add_stream("libx264", rate=20, options={"x264-params": "scenecut=0"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        stream.codec_context.gop_size = 20
        stream.codec_context.max_b_frames = b_frames
        for number, picture in enumerate(smooth(count, 96, 64)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 20)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    data = path.read_bytes()
    return [data[at : at + 3000] for at in range(0, len(data), 3000)]


@pytest.mark.parametrize("b_frames", [0, 2])
def test_what_somebody_writes_through_a_mount(store: Store, tmp_path: Path, b_frames: int) -> None:
    pieces = _fragments(tmp_path / "a.mp4", 100, b_frames=b_frames)
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
