"""Views of videos in which nothing happens for hours or days: right, or refused in words."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.codecs.talking import make_pausing, make_talking
from tests.selection import one_in
from tests.stores import new_store
from tests.views.conftest import Shelf, decoded
from tests.views.test_encoded import shown
from tests.views.test_sound import packets, rendition, shelved
from tests.writing import smooth
from vfsd.api.video import context_of
from vfsd.errors import UsageError
from vfsd.views import Views

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
        # In ticks of 1/12800 s, of which 2**31 are 46 hours.
        ("days.mp4", Fraction(1, 25), [n * 40 * HOUR * 25 for n in range(5)], Fraction(1, 2000)),
    ],
)
def test_times_are_kept_over_long_pauses(
    empty: Shelf, name: str, tick: Fraction, pts: list[int], off: Fraction, key_interval: int
) -> None:
    written(empty, name, tick, pts, key_interval)
    how = {1: "copied", 2: "spliced", 100: "encoded"}[key_interval]
    assert rendition(empty.video(name), "frames=1-5.mp4").made == how
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
def test_a_month_without_a_picture_does_not_go_into_mp4(empty: Shelf, key_interval: int) -> None:
    pts = [0, 40, 80, 30 * DAY * 1000, 30 * DAY * 1000 + 40]
    written(empty, "month.mkv", Fraction(1, 1000), pts, key_interval)
    for view in VIEWS:
        with pytest.raises(UsageError, match="2592000 s") as refused:
            empty.read("month.mkv", f"{view}.mp4")
        assert "mkv" in (refused.value.hint or "")
        found = times_of(empty.read("month.mkv", f"{view}.mkv"))
        assert found[-1] - found[-2] == Fraction(40, 1000)
        assert found[-1] > 30 * DAY - 1
    # A part of it that has no such gap goes.
    assert times_of(empty.read("month.mkv", "frames=0-2.mp4")) == [0, Fraction(40, 1000)]
    with pytest.raises(UsageError, match="2592000 s"):
        empty.video("month.mkv").save(empty.store.path / "out.mp4")
    assert not (empty.store.path / "out.mp4").exists()


@pytest.mark.parametrize("place", one_in(3, range(20, 26)))
def test_pictures_are_exact_around_a_pause_among_b_frames(tmp_path: Path, place: int) -> None:
    """The one after the pause may be decoded before those that come before it."""
    with paused_among_b_frames(tmp_path, place, 10) as shelf:
        pts = context_of(shelf.video("clip.mkv")).table.pts()
        assert max(np.diff(pts)) > 10 * DAY * 1000 - 100
        wanted = [Fraction(int(at - pts[0]), 1000) for at in pts]
        for path in ("sound=no.mkv", "sound=no.mp4", "codec=hevc,sound=no.mp4"):
            assert times_of(shelf.read("clip.mkv", path)) == wanted


def test_a_pause_that_is_waited_for_twice_counts_twice(tmp_path: Path) -> None:
    """A picture that is decoded 20 days before it is shown, while others are 20 days late."""
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


def test_sound_that_pauses_for_too_long_is_left_out_of_mp4(tmp_path: Path) -> None:
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
