"""Videos by the time of their recording: where it comes from, and reads by it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from vfsd.api.store import Store
from vfsd.api.timeline import Timeline
from vfsd.core.capture_time import CaptureClock, to_ns
from vfsd.errors import NotFoundError, UsageError

START = datetime(2026, 5, 1, 10, tzinfo=UTC)
FPS = 10
SECONDS = 2


def make_clip(
    path: Path, shade: int, tag: str | None = None, size: tuple[int, int] = (32, 24)
) -> Path:
    """A lossless clip; frame N of it is gray with value ``shade + N``."""
    with av.open(str(path), "w", options={"write_tmcd": "0"}) as out:
        if tag is not None:
            out.metadata["creation_time"] = tag
        stream = out.add_stream("libx264", rate=FPS, options={"qp": "0", "g": "5"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv444p"
        stream.color_range = 2
        for number in range(FPS * SECONDS):
            frame = av.VideoFrame(*size, "yuv444p")
            for plane, value in zip(frame.planes, (shade + number, 128, 128), strict=True):
                plane.update(bytes([value]) * plane.buffer_size)
            frame.color_range = 2
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Three clips of one camera: at 0 s, at 2 s, and at 10 s after `START`; one of another."""
    folder = tmp_path_factory.mktemp("timeline")
    with Store.create(folder / "store") as store:
        for second, shade in ((0, 0), (2, 50), (10, 100)):
            name = f"cam1/{(START + timedelta(seconds=second)):%Y-%m-%d/%H-%M-%S}.mp4"
            store.ingest(make_clip(folder / "a.mp4", shade), name)
        store.ingest(make_clip(folder / "a.mp4", 150), "cam2/a.mp4")
        store.set_captured("cam1/**", "name:%Y-%m-%d/%H-%M-%S")
        store.set_captured("cam2/a.mp4", START + timedelta(seconds=1))
        yield store


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def shades(pixels: np.ndarray) -> list[int]:
    return [int(one) for one in pixels[:, 0, 0, 1]]


def test_parts_and_gaps(filled: Store) -> None:
    line = filled.timeline("cam1")
    assert [(part.start, part.end) for part in line.parts] == [
        (at(0), at(2)),
        (at(2), at(4)),
        (at(10), at(12)),
    ]
    assert {part.clock for part in line.parts} == {CaptureClock.NAME}
    assert (line.start, line.end) == (at(0), at(12))
    assert line.gaps() == [(at(4), at(10))]
    assert line.gaps(at_least=7) == []
    assert line.unknown == ()
    assert "3 videos" in repr(line)
    assert repr(filled.timeline("cam1/")) == repr(line)
    assert len(filled.timeline(["cam1/**", "cam2/**"]).parts) == 4  # cam2 starts inside


def test_frames_by_time(filled: Store) -> None:
    line = filled.timeline("cam1")
    for seconds, shade in ((0, 0), (0.05, 0), (0.1, 1), (1.99, 19), (2, 50), (3.95, 69), (11, 110)):
        frame = line.frame_at(at(seconds))
        assert frame.data[0, 0, 1] == shade, seconds
    for seconds in (-0.1, 4, 9.99, 12):
        with pytest.raises(NotFoundError, match="no video at 2026-05-01T"):
            line.frame_at(at(seconds))
    with pytest.raises(UsageError, match="time zone"):
        line.frame_at(START.replace(tzinfo=None))


def test_spans_across_videos(filled: Store) -> None:
    line = filled.timeline("cam1")
    frames = line.read(span=(at(1.5), at(2.5)))
    assert shades(frames.data) == [*range(15, 20), *range(50, 55)]
    assert frames.times_ns.tolist() == [to_ns(at(1.5 + step / FPS)) for step in range(10)]
    assert [name[-12:] for name in frames.names] == ["10-00-00.mp4"] * 5 + ["10-00-02.mp4"] * 5
    assert frames.index.tolist() == [*range(15, 20), *range(5)]
    assert frames.times[0] == np.datetime64("2026-05-01T10:00:01.5")
    assert len(frames) == len(np.asarray(frames)) == 10
    halves = line.read(span=(at(1), at(3)), fps=2, size=12, region=(0, 0, 16, 24))
    assert shades(halves.data) == [10, 15, 50, 55]
    assert halves.shape == (4, 18, 12, 3)
    with pytest.raises(NotFoundError, match="no video at 2026-05-01T10:00:04"):
        line.read(span=(at(3), at(11)))
    skipped = line.read(span=(at(3), at(11)), fps=1, missing="skip")
    assert shades(skipped.data) == [60, 100]
    with pytest.raises(NotFoundError):
        line.read(span=(at(5), at(6)), missing="skip")
    assert len(line.read(missing="skip")) == 60


def test_times_in_any_order(filled: Store) -> None:
    line = filled.timeline("cam1")
    wanted = [at(11), at(0.5), at(3), at(0.5), at(10)]
    frames = line.read(times=wanted)
    assert shades(frames.data) == [110, 5, 60, 5, 100]
    assert frames.times_ns.tolist() == list(map(to_ns, wanted))
    with pytest.raises(NotFoundError):
        line.read(times=[at(1), at(5)])
    assert shades(line.read(times=[at(5), at(1)], missing="skip").data) == [10]


def test_arguments_are_checked(filled: Store) -> None:
    line = filled.timeline("cam1")
    for options, message in (
        ({"span": (at(1), at(1))}, "end after its start"),
        ({"span": at(1)}, "span must be"),
        ({"span": (1.0, 2.0)}, "datetime with a time zone"),
        ({"span": (at(1), at(2)), "times": [at(1)]}, "not both"),
        ({"missing": "black"}, "missing must be"),
        ({"span": (at(0), at(1)), "fps": 0}, "fps must be"),
    ):
        with pytest.raises(UsageError, match=message):
            line.read(**options)
    with pytest.raises(NotFoundError):
        filled.timeline("cam9")


def test_cameras_at_one_time(filled: Store) -> None:
    found = filled.together(["cam1", "cam2"], at(2.1))
    assert {name: frame and int(frame.data[0, 0, 1]) for name, frame in found.items()} == {
        "cam1": 51,
        "cam2": 161,
    }
    assert filled.together(["cam1", "cam2"], at(10))["cam2"] is None


def test_search_by_time(filled: Store) -> None:
    def names(start: float | None, end: float | None) -> list[str]:
        first, last = (None if one is None else to_ns(at(one)) for one in (start, end))
        return [video.name[-12:] for video in filled.find("cam1/**", captured_ns=(first, last))]

    assert names(None, None) == ["10-00-00.mp4", "10-00-02.mp4", "10-00-10.mp4"]
    assert names(1, 3) == ["10-00-00.mp4", "10-00-02.mp4"]
    assert names(5, 9) == []
    assert names(11, None) == ["10-00-10.mp4"]
    assert names(None, 1) == ["10-00-00.mp4"]


def test_later_start_counts_where_videos_overlap(store: Store, tmp_path: Path) -> None:
    names = ("a.mp4", "b.mp4", "c.mp4")
    for name, second, shade in zip(names, (0, 0.5, 5), (0, 50, 100), strict=True):
        store.ingest(make_clip(tmp_path / name, shade), name)
        store.set_captured(name, at(second))
    line = Timeline("x", store.named(names[:2]))
    assert [(part.video.name, part.start, part.end) for part in line.parts] == [
        ("a.mp4", at(0), at(0.5)),
        ("b.mp4", at(0.5), at(2.5)),
    ]
    assert line.frame_at(at(0.5)).data[0, 0, 1] == 50
    with av.open(str(tmp_path / "long.mp4"), "w") as out:
        stream = out.add_stream("libx264", rate=1, options={"qp": "0"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv444p"
        for _ in range(10):
            out.mux(stream.encode(av.VideoFrame(32, 24, "yuv444p")))
        out.mux(stream.encode(None))
    store.ingest(tmp_path / "long.mp4", "long.mp4")
    store.set_captured("long.mp4", at(-1))
    parts = Timeline("y", store.named(["long.mp4", "b.mp4"])).parts
    assert [(part.video.name, part.start, part.end) for part in parts] == [
        ("long.mp4", at(-1), at(0.5)),
        ("b.mp4", at(0.5), at(2.5)),
        ("long.mp4", at(2.5), at(9)),
    ]
    # The second part of a divided video still counts its frames from its beginning.
    assert Timeline("y", store.named(["long.mp4", "b.mp4"])).frame_at(at(4.5)).index == 5


def test_different_sizes_need_a_size(store: Store, tmp_path: Path) -> None:
    store.ingest(make_clip(tmp_path / "a.mp4", 0), "a.mp4")
    store.ingest(make_clip(tmp_path / "b.mp4", 50, size=(64, 48)), "b.mp4")
    store.set_captured("a.mp4", at(0))
    store.set_captured("b.mp4", at(2))
    line = store.timeline("")
    with pytest.raises(UsageError, match="different sizes: 32x24, 64x48"):
        line.read(fps=1)
    assert shades(line.read(fps=1, size=(32, 24)).data) == [0, 10, 50, 60]


def test_time_of_a_container(store: Store, tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mp4", 0, "2026-05-01T10:00:00Z")
    video = store.ingest(path, "a.mp4")
    assert video.captured_at == START
    assert video.info.captured is not None
    assert video.info.captured.clock == CaptureClock.CONTAINER
    assert store.ingest(make_clip(tmp_path / "b.mp4", 0), "b.mp4").captured_at is None
    assert store.timeline("").unknown == ("b.mp4",)
    # New bytes have a new time, unless a user gave it.
    later = make_clip(tmp_path / "c.mp4", 9, "2026-05-01T11:00:00Z")
    assert store.ingest(later, "a.mp4", replace=True).captured_at == START + timedelta(hours=1)
    assert store.set_captured("*.mp4", START) == 2
    assert store["b.mp4"].captured_at == START
    store.set_captured("a.mp4", "container")
    assert store["a.mp4"].captured_at == START + timedelta(hours=1)
    with pytest.raises(NotFoundError, match=r"'b\.mp4' has no time of recording in its container"):
        store.set_captured("*.mp4", "container")
    with pytest.raises(NotFoundError, match="in its name"):
        store.set_captured("*.mp4", "name:%s")
    for wrong in ("now", "name:", 5):
        with pytest.raises(UsageError):
            store.set_captured("*.mp4", wrong)  # type: ignore[arg-type]
    assert store["b.mp4"].captured_at == START
    store.set_captured("b.mp4", None)
    assert store["b.mp4"].captured_at is None


def test_times_are_exact_in_long_videos(filled: Store) -> None:
    video = filled["cam2/a.mp4"]
    part = filled.timeline("cam2").parts[0]
    assert part.seconds_at(to_ns(at(1.1))) == Fraction(1, 10)
    assert video.duration == SECONDS
