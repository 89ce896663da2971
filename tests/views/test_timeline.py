"""Views at rates such as 30000/1001: correct times, to the nearest tick.

Views of videos with pauses of hours or days: correct, or refused with a message.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from math import ceil
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.audio_clips import make_pausing, make_talking
from tests.support.selection import examples, one_in
from tests.support.stores import new_store
from tests.support.writing import smooth
from tests.views.conftest import Shelf, decoded
from tests.views.test_audio import packets, rendition, shelved
from tests.views.test_transcode import numbers, shown
from vfsd.api.video import context_of
from vfsd.errors import UsageError
from vfsd.views import Views

RATES = (
    "29.97002997002997",
    "23.976023976023978",
    "33.333333333333336",
    "14.985014985014985",
    "999.999999999999999999",
    "0.333333333333333333",
    "0.999999999999999999",
    "123.456789012",
)
TICKS = {"mp4": Fraction(1, 90_000), "mkv": Fraction(1, 10_000)}
DURATION = 3  # seconds
SOUND_RATE = 48_000


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """Three seconds at 25 fps with audio."""
    folder = tmp_path_factory.mktemp("rates")
    with shelved(folder, make_talking(folder / "talking.mp4", "aac")) as shelf:
        yield shelf


def require_times(data: bytes, rate: Fraction, tick: Fraction, duration: Fraction) -> None:
    """Check the time of each frame, and that the last one has the usual duration."""
    with av.open(io.BytesIO(data), mode="r") as opened:
        stream = opened.streams.video[0]
        base = stream.time_base or Fraction(0)
        found = [(packet.pts, packet.duration) for packet in opened.demux(stream) if packet.size]
    assert base == tick
    times = [(pts or 0) * base for pts, _ in found]
    assert len(times) == ceil(duration * rate)
    assert all(one < other for one, other in pairwise(times))
    assert all(abs(time - k / rate) <= tick / 2 for k, time in enumerate(times))
    # Matroska rounds the duration of the last one separately.
    assert abs(times[-1] + (found[-1][1] or 0) * base - len(times) / rate) <= 2 * tick


@pytest.mark.parametrize("container", one_in(4, TICKS))
@pytest.mark.parametrize("asked", ["", ",sound=no"])
@pytest.mark.parametrize("rate", one_in(4, RATES))
def test_times_follow_the_rate(talking: Shelf, rate: str, asked: str, container: str) -> None:
    data = talking.read("talking.mp4", f"fps={rate},size=48x32{asked}.{container}")
    require_times(data, Fraction(rate), TICKS[container], Fraction(DURATION))
    if "sound=no" in asked:
        return
    wanted = packets(talking.store.path.parent / "talking.mp4")
    wanted = [(time, packet) for time, packet in wanted if time >= 0]
    heard = packets(data)
    assert [packet for _, packet in heard] == [packet for _, packet in wanted][: len(heard)]
    assert float(heard[-1][0]) > DURATION - 0.1  # the frames do not end earlier
    # Matroska rounds them to its own tick.
    off = TICKS["mkv"] / 2 + Fraction(1, SOUND_RATE)
    assert all(abs(a[0] - b[0]) <= off for a, b in zip(heard, wanted, strict=False))


@settings(max_examples=examples(15), deadline=None)
@given(
    st.integers(1, 60),
    st.text("0123456789", min_size=12, max_size=18),
    st.sampled_from(sorted(TICKS)),
)
def test_rates_with_many_digits(talking: Shelf, whole: int, digits: str, container: str) -> None:
    rate = Fraction(f"{whole}.{digits}")
    assume(rate.numerator >= 1 << 31)
    path = f"t=0.5-2.5,size=48x32,fps={whole}.{digits}.{container}"
    data = talking.read("talking.mp4", path)
    require_times(data, rate, TICKS[container], Fraction(2))


@pytest.mark.parametrize("ending", one_in(4, ["mp4", "mkv", "y4m"]))
@pytest.mark.parametrize("rate", ["29.97002997002997", "7.142857142857143", "59.94005994005994"])
def test_frames_follow_the_exact_rate(shelf: Shelf, rate: str, ending: str) -> None:
    found = numbers(shelf.read("traffic.mp4", f"t=1-3,fps={rate}.{ending}"))
    exact = Fraction(rate)
    assert found == [30 + int(k * 30 / exact) for k in range(ceil(2 * exact))]


def test_random_access_equals_sequential_read(talking: Shelf) -> None:
    rng = random.Random(3)
    for container in TICKS:
        path = f"fps=23.976023976023978,size=48x32.{container}"
        with talking.video("talking.mp4").views.open(path) as file:
            offsets = list(range(0, file.seek(0, io.SEEK_END), 1000))
            rng.shuffle(offsets)
            parts: dict[int, bytes] = {}
            for offset in offsets:
                file.seek(offset)
                parts[offset] = file.read(1000)
        whole = talking.read("talking.mp4", path)
        assert b"".join(parts[offset] for offset in sorted(parts)) == whole


@pytest.mark.parametrize("container", TICKS)
@pytest.mark.parametrize("fps", [24000 / 1001, 30000 / 1001, 100 / 3])
def test_fractional_rate_is_saved_exactly(
    talking: Shelf, tmp_path: Path, fps: float, container: str
) -> None:
    target = tmp_path / f"o.{container}"
    talking.video("talking.mp4").save(target, fps=fps)
    rate = Fraction(repr(fps))
    require_times(target.read_bytes(), rate, TICKS[container], Fraction(DURATION))


def test_headers_have_the_exact_rate(talking: Shelf) -> None:
    head = talking.read("talking.mp4", "fps=29.97002997002997.y4m").split(b"\n", 1)[0]
    assert b" F30000:1001 " in head


def test_usual_rates_keep_their_ticks(talking: Shelf) -> None:
    for rate in ("5", "29.97", "30000:1001", "24000:1001", "999.999999"):
        data = talking.read("talking.mp4", f"t=0-1,fps={rate}.mp4")
        exact = Fraction(rate.replace(":", "/"))
        require_times(data, exact, Fraction(1, exact.numerator), Fraction(1))


def test_equivalent_rate_notations(talking: Shelf) -> None:
    video = talking.video("talking.mp4")

    def key(rate: str) -> str:
        return rendition(video, f"fps={rate}.mp4").key

    assert key("29.970029970029970") == key("29.97002997002997") != key("30000:1001")
    assert key("5.000000000000") == key("5")


def test_ticks_are_at_most_a_millisecond(talking: Shelf) -> None:
    """Frames that are whole seconds apart have equally coarse ticks, exactly."""
    for container in TICKS:
        data = talking.read("talking.mp4", f"fps=1:999999999,sound=no.{container}")
        tick = TICKS["mkv"] if container == "mkv" else Fraction(1)
        with av.open(io.BytesIO(data), mode="r") as opened:
            assert opened.streams.video[0].time_base == tick
            assert opened.duration == 999_999_999 * av.time_base
    for rate in ("0.000000123456789123", "0.000000000000000001"):
        with pytest.raises(UsageError, match="at most 2147483 s"):
            talking.read("talking.mp4", f"fps={rate}.mp4")
    assert talking.read("talking.mp4", "fps=0.000000123456789123.mkv")
    with pytest.raises(UsageError, match="mkv allows at most"):
        talking.read("talking.mp4", "fps=0.000000000000000001.mkv")


# --------------------------------------------------------------------------------------------------
# Views of videos with pauses of hours or days: correct, or refused with a message


HOUR = 3600
DAY = 24 * HOUR
VIEWS = ("full", "codec=hevc", "codec=h264,size=32x24", "frames=1-5")
"""Copied, encoded, and from another frame on, which is spliced where there are groups of two."""


def times_of(data: bytes) -> list[Fraction]:
    """Seconds from the first frame on."""
    found = shown(data)
    return [time - found[0] for time in found]


def written(shelf: Shelf, name: str, tick: Fraction, pts: list[int], key_interval: int) -> None:
    data = smooth(len(pts), 64, 48)
    shelf.store.write(name, data, time_base=tick, pts=pts, key_interval=key_interval)


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Shelf]:
    with new_store(tmp_path / "store") as store:
        views = Views(store.parts, store.tools)
        yield Shelf(store, views)
        views.close()


@pytest.mark.parametrize("key_interval", one_in(4, [1, 2, 100]))
@pytest.mark.parametrize(
    ("name", "tick", "pts", "off"),
    [
        ("hour.mkv", Fraction(1, 1000), [0, 40, 80, 3600_000, 3600_040], 0),
        ("weeks.mkv", Fraction(1, 1000), [0, 40, 80, 24 * DAY * 1000, 24 * DAY * 1000 + 40], 0),
        # In ticks of 1/12800 s; 2**31 of them are 46 hours.
        ("days.mp4", Fraction(1, 25), [n * 40 * HOUR * 25 for n in range(5)], Fraction(1, 2000)),
    ],
)
def test_times_are_kept_over_long_pauses(
    empty: Shelf, name: str, tick: Fraction, pts: list[int], off: Fraction, key_interval: int
) -> None:
    written(empty, name, tick, pts, key_interval)
    how = {1: "copied", 2: "spliced", 100: "encoded"}[key_interval]
    assert rendition(empty.video(name), "frames=1-5.mp4").method == how
    for view in VIEWS:
        wanted = [(at - pts[1]) * tick for at in pts[1:]] if "frames" in view else None
        wanted = wanted or [at * tick for at in pts]
        for ending in ("mp4", "mkv"):
            found = times_of(empty.read(name, f"{view}.{ending}"))
            assert len(found) == len(wanted)
            assert all(abs(a - b) <= off for a, b in zip(found, wanted, strict=True)), (
                view,
                ending,
            )


@pytest.mark.parametrize("key_interval", [1, 2, 100])
def test_pause_of_a_month_is_refused_in_mp4(empty: Shelf, key_interval: int) -> None:
    pts = [0, 40, 80, 30 * DAY * 1000, 30 * DAY * 1000 + 40]
    written(empty, "month.mkv", Fraction(1, 1000), pts, key_interval)
    for view in VIEWS:
        with pytest.raises(UsageError, match="2592000 s") as refused:
            empty.read("month.mkv", f"{view}.mp4")
        assert "mkv" in (refused.value.hint or "")
        found = times_of(empty.read("month.mkv", f"{view}.mkv"))
        assert found[-1] - found[-2] == Fraction(40, 1000)
        assert found[-1] > 30 * DAY - 1
    # A part without such a gap is possible.
    assert times_of(empty.read("month.mkv", "frames=0-2.mp4")) == [0, Fraction(40, 1000)]
    with pytest.raises(UsageError, match="2592000 s"):
        empty.video("month.mkv").save(empty.store.path / "out.mp4")
    assert not (empty.store.path / "out.mp4").exists()


@pytest.mark.parametrize("place", one_in(3, range(20, 26)))
def test_times_are_exact_around_a_pause_among_b_frames(tmp_path: Path, place: int) -> None:
    """The frame after the pause may be decoded before frames in front of the pause."""
    with paused_among_b_frames(tmp_path, place, 10) as shelf:
        pts = context_of(shelf.video("clip.mkv")).table.pts()
        assert max(np.diff(pts)) > 10 * DAY * 1000 - 100
        wanted = [Fraction(int(at - pts[0]), 1000) for at in pts]
        for path in ("sound=no.mkv", "sound=no.mp4", "codec=hevc,sound=no.mp4"):
            assert times_of(shelf.read("clip.mkv", path)) == wanted


def test_pause_in_decoding_and_display_counts_twice(tmp_path: Path) -> None:
    """One frame is decoded 20 days before its display, while others are 20 days late."""
    with paused_among_b_frames(tmp_path, 20, 20) as shelf:
        with pytest.raises(UsageError, match="mp4"):
            shelf.read("clip.mkv", "sound=no.mp4")
        for path in ("sound=no.mkv", "codec=hevc,sound=no.mp4"):
            found = times_of(shelf.read("clip.mkv", path))
            assert found[-1] == 20 * DAY + Fraction(49, 25)


@contextmanager
def paused_among_b_frames(tmp_path: Path, place: int, days: int) -> Iterator[Shelf]:
    talking = make_talking(tmp_path / "talking.mkv", "aac", frames=50, group=50)
    clip = make_pausing(tmp_path / "clip.mkv", talking, Fraction(place, 25), days * DAY)
    with shelved(tmp_path, clip) as shelf:
        yield shelf


def test_audio_with_a_long_pause_is_left_out_of_mp4(tmp_path: Path) -> None:
    talking = make_talking(tmp_path / "talking.mkv", "aac", frames=50)
    for hours, carried in ((12, True), (13, False)):
        folder = tmp_path / str(hours)
        folder.mkdir()
        clip = make_pausing(folder / "clip.mkv", talking, Fraction(1), hours * HOUR)
        wanted = [float(time) for time, _ in packets(clip) if time >= 0]
        with shelved(folder, clip) as shelf:
            found = [float(time) for time, _ in packets(shelf.read(clip.name, "full.mkv"))]
            assert found == pytest.approx(wanted, abs=0.002)
            told = json.loads(shelf.read(clip.name, "explain/full.mp4.json"))
            assert (told["sound"] == "aac") == carried
            data = shelf.read(clip.name, "full.mp4")
            assert len(decoded(data)) == 50
            if carried:
                found = [float(time) for time, _ in packets(data)]
                assert found == pytest.approx(wanted, abs=0.002)
                continue
            assert "mp4 cannot store" in told["silence"]
            with av.open(io.BytesIO(data)) as opened:
                assert not opened.streams.audio
