"""From times to frames: every frame once, despite rounding; equal to FFmpeg's fps filter.

Files are written by ffmpeg itself.  Each frame is a flat gray that encodes its number.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.test_timestamps import rounded
from tests.support.selection import one_in
from vfsd.codecs.probing.probe import examine
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.frames import FrameTimes
from vfsd.core.model import Access, MediaInfo, PhysicalVideo, Role
from vfsd.errors import OutOfRangeError
from vfsd.write.ingest_file import describe_original

MILLISECOND = Fraction(1, 1000)
FILM, NTSC = Fraction(24000, 1001), Fraction(30000, 1001)
RATES = [FILM, Fraction(25), NTSC, Fraction(30), Fraction(50), Fraction(60000, 1001), Fraction(60)]
BASES = [MILLISECOND, Fraction(1, 600), Fraction(1, 90_000), Fraction(1, 15_360)]
SIDE = 32
LEVELS = 3  #: difference in gray between successive frames


def times_of(
    shown: Ints, base: Fraction, rate: Fraction | None, last: int | None = None
) -> FrameTimes:
    """Frame times at these ticks; `rate` is the nominal rate, None if it varies."""
    step = last or (round(1 / (rate * base)) if rate else 40)
    flags = np.full(len(shown), int(PacketFlag.KEY), np.uint8)
    zeros = np.zeros(len(shown), np.int64)
    columns = PacketColumns(shown, shown, zeros, zeros, flags)
    end = int(shown[-1]) + step
    order = np.arange(len(shown))
    table = FrameTable.in_memory(columns, order, time_base=base, end_pts=end, page_packets=16)
    media = MediaInfo(
        container="matroska",
        codec="h264",
        profile=None,
        width=SIDE,
        height=SIDE,
        pixel_format="yuv420p",
        time_base=base,
        average_rate=rate,
        variable_rate=rate is None,
    )
    physical = PhysicalVideo(
        id=1,
        video_id=1,
        role=Role.ORIGINAL,
        media=media,
        access=Access.EXTENT,
        frames=len(shown),
        packets=len(shown),
        first_pts=int(shown[0]),
        end_pts=end,
        object_key=None,
        link_path="/x",
        size=1,
        verified=True,
        parent_id=None,
        parameters={},
        software="",
        created_ns=0,
    )
    return FrameTimes(physical, table)


@pytest.mark.thorough
@given(
    rate=st.sampled_from(RATES),
    base=st.sampled_from(BASES),
    count=st.integers(1, 200),
    phase=st.fractions(0, 1),
)
def test_every_frame_once(rate: Fraction, base: Fraction, count: int, phase: Fraction) -> None:
    times = times_of(rounded(rate, base, count, phase) + 7, base, rate)
    assert times.at_rate(rate, Fraction(0)).tolist() == list(range(count))
    assert times.at_rate(2 * rate, Fraction(0)).tolist() == [k // 2 for k in range(2 * count)]
    assert times.at_rate(rate / 2, Fraction(0)).tolist() == list(range(0, count, 2))
    for number in range(count):
        assert times.at(number / rate) == number
        assert times.at((number + Fraction(1, 2)) / rate) == number
        assert times.between(number / rate, (number + 1) / rate) == range(number, number + 1)


@given(
    rate=st.sampled_from(RATES),
    base=st.sampled_from(BASES),
    digits=st.integers(6, 12),
    number=st.integers(0, 99),
)
def test_printed_times_round_trip(rate: Fraction, base: Fraction, digits: int, number: int) -> None:
    shown = rounded(rate, base, 100)
    times = times_of(shown, base, rate)
    for time in (number / rate, int(shown[number]) * base):
        assert times.at(Fraction(f"{float(time):.{digits}f}")) == number
    first = Fraction(f"{float(number / rate):.{digits}f}")
    frames = times.at_rate(rate, first, first + 10 / rate)
    assert frames[: 100 - number].tolist() == list(range(number, min(100, number + 10)))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("base", BASES)
def test_float_rate_equals_the_rate(rate: Fraction, base: Fraction) -> None:
    times = times_of(rounded(rate, base, 1000), base, rate)
    for given_as in (repr(float(rate)), f"{float(rate):.7f}"):
        assert times.at_rate(Fraction(given_as), Fraction(0)).tolist() == list(range(1000))


@given(
    steps=st.lists(st.integers(5, 90), min_size=1, max_size=40),
    cuts=st.lists(st.fractions(0, 2, max_denominator=5000), max_size=6),
)
def test_adjacent_spans_share_no_frame(steps: list[int], cuts: list[Fraction]) -> None:
    times = times_of(np.cumsum([0, *steps]), MILLISECOND, None)
    edges = [Fraction(0), *sorted(cuts), None]
    found = [
        frame
        for start, stop in itertools.pairwise(edges)
        if start is not None
        for frame in times.between(start, stop)
    ]
    assert found == list(range(len(steps) + 1))


def test_half_a_tick_at_variable_rates() -> None:
    times = times_of(np.array([0, 33, 68, 100]), MILLISECOND, None)
    assert times.at(Fraction("0.0324")) == 0
    assert times.at(Fraction("0.0325")) == 1  # midway between two ticks: the later one
    assert times.at(Fraction("0.033")) == 1
    assert times.between(Fraction("0.0325"), Fraction("0.0675")) == range(1, 2)
    assert times.between(Fraction("0.0335"), Fraction("0.0685")) == range(2, 3)


def test_tick_as_long_as_a_frame_is_exact() -> None:
    base = Fraction(1, 30)
    for rate in (Fraction(30), None):
        shown = np.array([0, 1, 2, 3] if rate else [0, 1, 3, 4])
        times = times_of(shown, base, rate, last=1)
        assert times.at(Fraction("0.02")) == 0
        assert times.at(Fraction("0.0333333")) == 1
        assert times.at_rate(Fraction(60), Fraction(0)).tolist()[:4] == [0, 0, 1, 1]


def test_table_that_contradicts_its_rate() -> None:
    times = times_of(np.array([0, 40, 200, 240]), MILLISECOND, Fraction(25))
    assert times.at(Fraction("0.1")) == 1
    assert times.at(Fraction("0.2")) == 2


@pytest.mark.parametrize("time", [Fraction(-1), Fraction(4, 30), Fraction(10**30)])
def test_outside_the_video(time: Fraction) -> None:
    times = times_of(np.array([0, 33, 67, 100]), MILLISECOND, Fraction(30))
    with pytest.raises(OutOfRangeError, match=r"less than 0\.133333"):
        times.at(time)
    assert times.between(Fraction(0), Fraction(10**30)) == range(4)


# ------------------------------------------------------------------------- held against ffmpeg


def ffmpeg(*arguments: str, given: bytes = b"") -> bytes:
    command = shutil.which("ffmpeg")
    if command is None:
        pytest.skip("no ffmpeg")
    return subprocess.run(
        [command, "-v", "error", "-y", *arguments],
        input=given,
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    ).stdout


def encoded(path: Path, rate: Fraction, count: int, *options: str) -> Path:
    """Flat frames of rising levels."""
    chroma = bytes([128]) * (SIDE * SIDE // 2)
    raw = b"".join(bytes([20 + LEVELS * n]) * (SIDE * SIDE) + chroma for n in range(count))
    size = f"{SIDE}x{SIDE}"
    source = ("-f", "rawvideo", "-pix_fmt", "yuv420p", "-s", size, "-r", str(rate), "-i", "-")
    ffmpeg(*source, "-q:v", "2", *options, str(path), given=raw)
    return path


def shown_by_ffmpeg(path: Path, filters: str) -> list[int]:
    """The numbers of the frames that a filter chain outputs."""
    raw = ffmpeg(
        *("-i", str(path), "-vf", filters, "-fps_mode", "passthrough"),
        *("-f", "rawvideo", "-pix_fmt", "yuv420p", "-"),
    )
    picture = SIDE * SIDE * 3 // 2
    levels = [np.frombuffer(raw[at : at + SIDE * SIDE], np.uint8).mean() for at in
              range(0, len(raw), picture)]  # fmt: skip
    return [round((float(level) - 20) / LEVELS) for level in levels]


def examined(path: Path) -> tuple[PhysicalVideo, FrameTimes]:
    found = examine(path)
    physical = describe_original(found, object_key=None, link_path=str(path), size=1, now_ns=0)
    table = FrameTable.in_memory(
        found.columns, found.order, time_base=physical.time_base, end_pts=physical.end_pts
    )
    return physical, FrameTimes(physical, table)


CONTAINERS = {
    "mkv": ("a.mkv", "-c:v", "ffv1"),
    "webm": ("a.webm", "-c:v", "libvpx", "-b:v", "2M"),
    "flv": ("a.flv", "-c:v", "flv1"),
    "avi": ("a.avi", "-c:v", "mpeg4"),
    "ts": ("a.ts", "-c:v", "libx264", "-qp", "4"),
    "mov": ("a.mov", "-c:v", "mjpeg"),
    "mp4": ("a.mp4", "-c:v", "libx264", "-qp", "4"),
    "mp4 of milliseconds": ("a.mp4", "-c:v", "libx264", "-qp", "4", "-video_track_timescale",
                            "1000"),
    "mp4 of 1/600 s": ("a.mp4", "-c:v", "libx264", "-qp", "4", "-video_track_timescale", "600"),
}  # fmt: skip
SOME = [("mkv", FILM), ("mkv", Fraction(30)), ("mp4 of milliseconds", NTSC), ("avi", Fraction(30))]
ALL = [
    pytest.param(container, rate, marks=() if (container, rate) in SOME else pytest.mark.slow)
    for container in CONTAINERS
    for rate in RATES
]


def require_as_ffmpeg(path: Path, rate: Fraction, count: int) -> None:
    physical, times = examined(path)
    assert (physical.constant_rate, physical.mean_rate) == (rate, rate)
    assert physical.duration == count / rate
    start = Fraction(0)
    all_of_them = list(range(count))
    assert times.at_rate(rate, start).tolist() == all_of_them
    # FFmpeg may drop the last frame, as it does not know when that ends.
    assert shown_by_ffmpeg(path, f"fps={rate}") in (all_of_them, all_of_them[:-1])
    # At other rates FFmpeg needs the times of the frames as they were before they were rounded.
    exact = f"settb=1/3000000,setpts=N*3000000/({rate})"
    for other in (rate / 2, 2 * rate, rate / 3, Fraction(12), Fraction(1000, 7)):
        expected = shown_by_ffmpeg(path, f"{exact},fps=fps={other}:round=up")
        found = times.at_rate(other, start).tolist()
        shared = min(len(found), len(expected))  # FFmpeg does not know when the last frame ends
        assert abs(len(found) - len(expected)) <= max(Fraction(1), other / rate)
        assert found[:shared] == expected[:shared]


@pytest.mark.parametrize(("container", "rate"), ALL)
def test_constant_rates_equal_ffmpeg(tmp_path: Path, container: str, rate: Fraction) -> None:
    name, *options = CONTAINERS[container]
    path = encoded(tmp_path / name, rate, 60, *options)
    require_as_ffmpeg(path, rate, 60)


@pytest.mark.thorough
@pytest.mark.parametrize("ending", ["mp4", "ts"])
@pytest.mark.parametrize(
    "rate", [Fraction(30), *(pytest.param(one, marks=pytest.mark.slow) for one in (FILM, NTSC))]
)
def test_milliseconds_copied_into_a_finer_timebase(
    tmp_path: Path, rate: Fraction, ending: str
) -> None:
    made = encoded(tmp_path / "a.mkv", rate, 60, "-c:v", "libx264", "-qp", "4", "-bf", "0")
    path = tmp_path / f"b.{ending}"
    ffmpeg("-i", str(made), "-c", "copy", str(path))
    require_as_ffmpeg(path, rate, 60)


@pytest.mark.parametrize("other", one_in(2, [Fraction(30), Fraction(24), NTSC, Fraction(60)]))
def test_variable_rates_equal_ffmpeg(tmp_path: Path, other: Fraction) -> None:
    path = tmp_path / "vfr.mkv"
    made = encoded(tmp_path / "a.mkv", Fraction(30), 60, "-c:v", "ffv1")
    uneven = "setpts=(N*37+mod(N*N\\,17))/1000/TB"
    ffmpeg(
        "-i",
        str(made),
        "-vf",
        uneven,
        "-fps_mode",
        "vfr",
        "-enc_time_base",
        "1/1000",
        "-c:v",
        "ffv1",
        str(path),
    )
    physical, times = examined(path)
    assert physical.constant_rate is None
    earlier = "settb=1/2000,setpts=PTS-STARTPTS-1"  # by half a tick
    expected = shown_by_ffmpeg(path, f"{earlier},fps=fps={other}:round=up:start_time=0")
    found = times.at_rate(other, Fraction(0)).tolist()
    shared = min(len(found), len(expected))
    assert shared > 40
    assert found[:shared] == expected[:shared]
