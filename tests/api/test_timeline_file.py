"""Files of a span of time across the videos of a camera: `Timeline.save` and `Timeline.open`."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import av
import numpy as np
import pytest

from tests.support.clips import pictures
from vfsd.api.store import Store
from vfsd.api.timeline import Timeline
from vfsd.core.model import psnr_from_mse
from vfsd.errors import ExistsError, NotFoundError, UsageError

START = datetime(2026, 5, 1, 10, tzinfo=UTC)
RATE, SECONDS = 25, 3


def record(store: Store, name: str, at: float, seed: int, width: int = 96) -> None:
    """Add a video of three seconds with a key frame each second."""
    frames = np.stack([one.to_ndarray() for one in pictures(RATE * SECONDS, width, 64, seed=seed)])
    store.write(name, frames, fps=RATE, quality=20)
    store.set_captured(name, START + timedelta(seconds=at))


@pytest.fixture
def camera(store: Store) -> Timeline:
    """Two videos one after the other, and a third after a gap of two seconds."""
    for number, at in enumerate((0, 3, 8)):
        record(store, f"cam/{number}.mp4", at, number + 1)
    return store.timeline("cam")


def span(first: float, end: float) -> tuple[datetime, datetime]:
    return START + timedelta(seconds=first), START + timedelta(seconds=end)


def decoded(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The RGB pictures of a file, and their times in seconds."""
    with av.open(io.BytesIO(data), "r") as container:
        frames = list(container.decode(video=0))
    times = [float((frame.pts or 0) * (frame.time_base or 0)) for frame in frames]
    return np.stack([frame.to_ndarray(format="rgb24") for frame in frames]), np.array(times)


def packets_of(data: bytes) -> list[bytes]:
    with av.open(io.BytesIO(data), "r") as container:
        return [bytes(one) for one in container.demux(video=0) if one.size]


def stored_packets(store: Store, name: str) -> list[bytes]:
    assert store[name].views.explain("full.mp4").made == "copied"
    with store[name].views.open("full.mp4") as file:
        return packets_of(file.read())


def test_frames_and_times_are_those_of_a_read(camera: Timeline, tmp_path: Path) -> None:
    chosen = span(0.5, 9.3)
    size = camera.save(tmp_path / "clip.mp4", span=chosen)
    data = (tmp_path / "clip.mp4").read_bytes()
    assert size == len(data)
    with camera.open(span=chosen) as file:
        assert file.read() == data
        file.seek(size // 2)
        assert file.read(1000) == data[size // 2 :][:1000]
    wanted = camera.read(span=chosen, missing="skip")
    seen, times = decoded(data)
    assert seen.shape == wanted.data.shape
    passed = (wanted.times_ns - wanted.times_ns[0]) / 1e9
    assert times == pytest.approx(passed, abs=1e-3)
    for one, other in zip(seen, wanted.data, strict=True):
        assert psnr_from_mse(float(((one - other.astype(float)) ** 2).mean()), 255) > 30


def test_packets_are_copied_but_at_the_ends(camera: Timeline, store: Store) -> None:
    made = packets_of(camera.open(span=span(0.5, 9.3)).read())
    copied = sum(one in set(made) for one in stored_packets(store, "cam/1.mp4"))
    assert copied == RATE * SECONDS
    first = stored_packets(store, "cam/0.mp4")
    assert set(first[RATE:]) <= set(made)
    assert len(made) == round((3 - 0.5) * RATE) + RATE * SECONDS + round(1.3 * RATE) + 1
    # Whole videos: every packet.
    whole = packets_of(camera.open().read())
    assert whole == [
        one for number in range(3) for one in stored_packets(store, f"cam/{number}.mp4")
    ]


def test_gaps(camera: Timeline, tmp_path: Path) -> None:
    kept, closed = (decoded(camera.open(gaps=gaps).read())[1] for gaps in ("keep", "close"))
    assert np.diff(kept).max() == pytest.approx(2 + 1 / RATE)
    assert np.diff(closed).max() == pytest.approx(1 / RATE)
    with pytest.raises(NotFoundError, match="no video at"):
        camera.save(tmp_path / "a.mp4", gaps="raise")
    camera.save(tmp_path / "a.mp4", span=span(0, 6), gaps="raise")
    with pytest.raises(ExistsError):
        camera.save(tmp_path / "a.mp4", span=span(0, 6))


def test_piece_without_a_whole_gop(camera: Timeline) -> None:
    for chosen in (span(0.3, 0.6), span(2.5, 4.1), span(2.3, 8.5)):
        wanted = camera.read(span=chosen, missing="skip")
        seen, _ = decoded(camera.open(span=chosen).read())
        assert len(seen) == len(wanted)


def test_refusals(camera: Timeline, store: Store, tmp_path: Path) -> None:
    target = tmp_path / "a.mp4"
    with pytest.raises(UsageError, match="gaps must be"):
        camera.save(target, gaps="fill")
    with pytest.raises(UsageError, match=r"must end in \.mp4"):
        camera.save(tmp_path / "a.mkv")
    with pytest.raises(NotFoundError, match="no video at"):
        camera.save(target, span=span(20, 30))
    record(store, "cam/9.mp4", 12, 9, width=128)
    with pytest.raises(UsageError, match="different sizes"):
        store.timeline("cam").save(target)
    assert not target.exists()
