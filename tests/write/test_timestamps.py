"""Times of written frames: they are read back exactly, or refused before anything is stored."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.selection import examples, one_in
from tests.support.writing import is_as_before, smooth
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.containers.file_timestamps import MAX_MATROSKA_TIME, MAX_STEP, FileTimestamps
from vfsd.errors import IntegrityError, UsageError
from vfsd.write.ingest_file import SourceFile, ingest_own_file

MICROSECOND = Fraction(1, 10**6)
IN_MP4 = [
    (ending, tick, factor)
    for ending in ("mp4", "mov")
    for tick, factor in (
        (MICROSECOND, 1),
        (Fraction(1, 25), 512),
        (Fraction(1001, 30000), 1001),
        (Fraction(1), 16384),
    )
]
"""Endings, ticks that are given, and into how many of the file's each becomes."""


def times_of(video: Video) -> list[Fraction]:
    """Seconds from the first frame on; the last is the end."""
    original, pts = video.original, context_of(video).table.pts().tolist()
    return [(tick - original.first_pts) * original.time_base for tick in (*pts, original.end_pts)]


def written(store: Store, name: str, tick: Fraction, pts: list[int]) -> Video:
    return store.write(name, smooth(len(pts), 64, 48), time_base=tick, pts=pts)


@pytest.mark.parametrize(("ending", "tick", "factor"), one_in(4, IN_MP4))
def test_longest_gap_is_exact_and_longer_ones_are_refused(
    store: Store, ending: str, tick: Fraction, factor: int
) -> None:
    gap = MAX_STEP // factor
    for name, pts in (
        ("early", [0, gap, gap + 1, gap + 2]),
        ("between", [7, 8, 8 + gap, 9 + gap, 10 + gap]),
        ("last", [0, 1, 1 + gap]),
        ("only", [0, gap]),
        ("every", [number * gap for number in range(5)]),
    ):
        video = written(store, f"{name}.{ending}", tick, pts)
        wanted = [*pts, 2 * pts[-1] - pts[-2]]
        assert times_of(video) == [(at - pts[0]) * tick for at in wanted]
        assert video.original.time_base * factor == tick
    before = sorted(store)
    for pts in ([0, 1, gap + 2, gap + 3], [0, gap + 1], [0, 1, 2 + gap], [0, 3, 2**62]):
        with pytest.raises(UsageError, match=r"frame \d is at .* previous frame at .* at most"):
            written(store, f"a.{ending}", tick, pts)
    assert is_as_before(store, before)


@pytest.mark.parametrize("ending", ["mp4", "mov"])
def test_refusal_names_the_times_and_a_remedy(store: Store, ending: str) -> None:
    pts = [0, 10**6, 2201 * 10**6, 2202 * 10**6]
    with pytest.raises(UsageError) as refused:
        written(store, f"a.{ending}", MICROSECOND, pts)
    assert "frame 2 is at 2201.000000 s, and the previous frame at 1.0000" in str(refused.value)
    assert "2147.483646 s" in str(refused.value)
    assert "coarser time_base" in (refused.value.hint or "")
    assert ".mkv" in (refused.value.hint or "")
    # Both suggested remedies work.
    coarser = written(store, f"a.{ending}", Fraction(1, 1000), [at // 1000 for at in pts])
    matroska = written(store, "a.mkv", MICROSECOND, pts)
    assert times_of(coarser) == times_of(matroska) == [0, 1, 2201, 2202, 2203]
    with pytest.raises(UsageError) as refused:
        written(store, f"b.{ending}", Fraction(1, 25), [0, 60 * 3600 * 25])
    assert "coarser" not in (refused.value.hint or "")


@pytest.mark.parametrize("ending", ["mp4", "mov", "mkv"])
@pytest.mark.parametrize("far", [2**62, 2**63, 2**70, 10**400])
def test_implausible_times_are_refused(store: Store, ending: str, far: int) -> None:
    with pytest.raises(UsageError, match="previous frame at"):
        written(store, f"a.{ending}", Fraction(1, 25), [0, 1, far])
    assert is_as_before(store, [])
    # Their origin does not matter.
    video = written(store, f"a.{ending}", Fraction(1, 25), [far, far + 1, far + 3])
    assert times_of(video) == [Fraction(at, 25) for at in (0, 1, 3, 5)]


def test_matroska_is_exact_over_long_times(store: Store) -> None:
    last = MAX_MATROSKA_TIME
    millisecond = Fraction(1, 1000)
    for pts in ([0, 1, last - 5, last - 4, last], [0, last], [0, 1, 2**31, 2**32 + 1]):
        video = store.write(
            "a.mkv", smooth(len(pts), 64, 48), time_base=millisecond, pts=pts, replace=True
        )
        assert times_of(video) == [at * millisecond for at in (*pts, 2 * pts[-1] - pts[-2])]
    with pytest.raises(UsageError, match="Matroska ends at"):
        written(store, "b.mkv", millisecond, [0, 1, last + 1])
    assert is_as_before(store, ["a.mkv"])


@pytest.mark.parametrize("ending", ["mp4", "mov"])
def test_too_long_tick_is_refused_before_any_frame(store: Store, ending: str) -> None:
    with pytest.raises(UsageError, match="1000000"):
        store.writer(f"a.{ending}", width=64, height=48, time_base=10**6)
    with pytest.raises(UsageError, match="1000000"):
        store.writer(f"a.{ending}", width=64, height=48, fps=Fraction(1, 10**6))
    assert is_as_before(store, [])
    assert times_of(written(store, "a.mkv", Fraction(10**6), [0])) == [0, 10**6]


def test_matroska_rounds_to_the_nearest_millisecond(store: Store) -> None:
    half = Fraction(1, 2000)
    video = written(store, "a.mkv", half, [0, 1, 3, 6, 7])
    assert [time * 1000 for time in times_of(video)] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(UsageError, match=r"0\.003000 s, which is not after .* at 0\.002500"):
        written(store, "b.mkv", half, [0, 5, 6])


def test_last_frame_may_be_shorter_than_a_millisecond(store: Store) -> None:
    assert times_of(written(store, "a.mkv", MICROSECOND, [0])) == [0, Fraction(1, 1000)]
    assert times_of(written(store, "a.mp4", MICROSECOND, [0])) == [0, MICROSECOND]


def test_refused_frames_are_not_in_the_video(store: Store) -> None:
    data = smooth(3, 64, 48)
    with store.writer("a.mp4", width=64, height=48, time_base=MICROSECOND, codec="ffv1") as writer:
        writer.write(data[0], 5)
        for wrong in (5, 2**31 + 4, 2**40, 1.5, float("nan"), float("inf"), "soon", None):
            with pytest.raises(UsageError, match=r"frame 1|pts must be"):
                writer.write(data[1], wrong)  # type: ignore[arg-type]
        writer.write(data[1:], [7, 2**31 + 5])
    assert times_of(writer.video) == [at * MICROSECOND for at in (0, 2, 2**31, 2**32 - 2)]
    assert np.array_equal(writer.video.read().data, data)


def test_constant_rate_excludes_explicit_times(store: Store) -> None:
    data = smooth(4, 64, 48)
    shown: list[int] = []
    with pytest.raises(UsageError, match="constant rate"):
        store.write("a.mp4", data, fps=25, pts=[0, 10, 20, 500], on_progress=shown.append)
    with (
        pytest.raises(UsageError, match="constant rate"),
        store.writer("a.mp4", width=64, height=48, fps=25) as writer,
    ):
        writer.write(data, pts=[0, 10, 20, 500])
    assert not shown
    assert is_as_before(store, [])
    # Timestamps of the frames themselves are ignored.
    timed = written(store, "timed.mp4", MICROSECOND, [0, 10, 20, 500])
    rated = store.write("rated.mp4", timed.read(), fps=25)
    assert times_of(rated) == [Fraction(at, 25) for at in range(5)]


def test_ticks_may_be_numpy_numbers(store: Store) -> None:
    with store.writer("a.mp4", width=64, height=48, time_base=MICROSECOND) as writer:
        least = -(2**63)
        for picture, pts in zip(
            smooth(3, 64, 48), np.array([least, least + 5, least + 9]), strict=True
        ):
            writer.write(picture, pts)
    assert times_of(writer.video) == [at * MICROSECOND for at in (0, 5, 9, 13)]


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ending=st.sampled_from(["mp4", "mov", "mkv"]),
    tick=st.builds(
        Fraction,
        st.sampled_from([1, 7, 1001, 2**31 - 1]),
        st.sampled_from([1, 3, 25, 600, 1000, 30000, 10**6, 10**9, 2**31 - 1]),
    ),
    steps=st.lists(
        st.one_of(st.integers(1, 1000), st.integers(1, 60).map(lambda bits: 2**bits - 1)),
        max_size=8,
    ),
    key_interval=st.sampled_from([1, 3, 100]),
)
def test_times_are_exact_or_refused(
    store: Store, ending: str, tick: Fraction, steps: list[int], key_interval: int
) -> None:
    pts = np.cumsum([0, *steps], dtype=object).tolist()
    try:
        video = store.write(
            f"a.{ending}",
            smooth(len(pts), 64, 48),
            time_base=tick,
            pts=pts,
            replace=True,
            key_interval=key_interval,
        )
    except UsageError:
        return
    off = Fraction(1, 2000) if ending == "mkv" else 0
    found = times_of(video)
    assert len(found) == len(pts) + 1
    assert all(abs(at - want * tick) <= off for at, want in zip(found, pts, strict=False))
    last = max(pts[-1] - pts[-2] if steps else 1, 0) * tick
    assert abs(found[-1] - found[-2] - last) <= 2 * off


# ------------------------------------------------------------------------------------ comparing


def given_times(container: str, tick: Fraction, pts: list[int]) -> FileTimestamps:
    times = FileTimestamps(container, tick)
    for at in pts:
        times.require(at)
        times.add(at)
    return times


@pytest.mark.parametrize(
    ("pts", "what"),
    one_in(
        3,
        [
            ([0, 1, 2, 4], r"frame 3 at 0\.120000 s, not at 0\.160000"),
            ([0, 2, 3, 4], r"frame 1 at 0\.040000 s, not at 0\.080000"),
            ([0, 1, 2], "the new file must have 3 pictures, got 4"),
        ],
    ),
)
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_file_with_wrong_times_is_not_published(
    store: Store, container: str, pts: list[int], what: str
) -> None:
    """The given times, and a file with other times, in any time base."""
    made = store.write("made.mp4", smooth(4, 64, 48), fps=25)
    path = store.parts.originals.path_of(made.original)
    given = given_times(container, Fraction(1, 25), pts)
    with pytest.raises(IntegrityError, match=what):
        ingest_own_file(
            store.parts,
            SourceFile(path, "other.mp4", path.stat().st_size),
            check=lambda found: given.require_written(
                found.columns.pts[found.order], found.media.time_base
            ),
        )
    assert is_as_before(store, ["made.mp4"])


def test_times_are_compared_in_seconds_from_the_first() -> None:
    given = given_times("mp4", Fraction(1, 25), [0, 1, 3])
    given.require_written(np.array([90, 602, 1626]), Fraction(1, 12800))
    given.require_written(np.array([-40, 0, 80]), Fraction(1, 1000))
