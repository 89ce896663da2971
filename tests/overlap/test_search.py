"""Search for videos of a store that show the same scene.  Candidates by color."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext

from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from sample_videos.scene import Scene
from tests.support.camera_pairs import pictures
from tests.support.stores import new_store
from vfsd import Store
from vfsd.errors import IntegrityError, NotFoundError, UsageError
from vfsd.overlap import join, joined, overlap, overlaps
from vfsd.overlap.overlap_pair import Verdict
from vfsd.overlap.overlap_search import (
    RADIUS,
    Signature,
    candidate_pairs,
    color_signature,
    sample_times,
)

FRAMES = 36
FILMED = FilmedScene.of(Cameras(overlap=0.6), frames=2 * FRAMES, seed=1)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    write_pictures(folder / "west.mp4", map(FILMED.left, range(FRAMES)))
    write_pictures(folder / "east.mp4", map(FILMED.right, range(FRAMES)))
    write_pictures(folder / "later.mp4", map(FILMED.left, range(FRAMES, 2 * FRAMES)))
    other = Scene(frames=FRAMES, seed=9)
    write_pictures(folder / "other.mp4", map(other.frame, range(FRAMES)))
    return folder


@pytest.fixture
def store(tmp_path: Path, clips: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as opened:
        for path in sorted(clips.iterdir()):
            opened.ingest(path)
        yield opened


def test_only_cameras_at_one_place_are_found(store: Store) -> None:
    told: list[tuple[str, int, int]] = []
    report = overlaps(store, on_progress=lambda *what: told.append(what))
    (pair,) = report.joinable
    assert (pair.left.name, pair.right.name) == ("west.mp4", "east.mp4")
    assert pair.overlap.verdict is Verdict.JOIN
    assert pair.overlap.shares == pytest.approx((0.6, 0.6), abs=0.03)
    np.testing.assert_allclose(
        pair.overlap.matrices[0], FILMED.cameras.homography, rtol=0.02, atol=2
    )
    assert pair.common_share == pytest.approx(0.3, abs=0.05)
    for refused in report.pairs:
        assert "other.mp4" not in (refused.left.name, refused.right.name)
    assert (report.videos, report.unreadable) == (4, {})
    assert {what for what, _, _ in told} == {"examining videos", "comparing pairs"}
    assert told[-1][1] == told[-1][2] == report.compared
    assert repr(report) == (
        f"<OverlapReport: 4 videos, {report.compared} pairs compared, {len(report.pairs)} show the "
        "same place, 1 can be joined, 0 videos unreadable>"
    )
    assert (
        repr(pair)
        == f"<VideoPair 'west.mp4' and 'east.mp4': join, {pair.common_share:.2f} in common>"
    )


def test_same_camera_at_another_time_is_rejected(store: Store) -> None:
    pair = overlap(store, "later.mp4", "west.mp4")
    assert pair is not None
    assert pair.overlap.verdict is Verdict.REFUSED


def test_different_places_do_not_overlap(store: Store) -> None:
    assert overlap(store, "other.mp4", "west.mp4") is None
    with pytest.raises(NotFoundError):
        overlap(store, "nothing.mp4", "west.mp4")


def test_search_is_limited_to_the_named_videos(store: Store) -> None:
    report = overlaps(store, ["west.mp4", "other.mp4"])
    assert (report.videos, list(report.pairs)) == (2, [])


def test_search_is_not_logged_as_a_read(store: Store, tmp_path: Path) -> None:
    overlaps(store)
    store.close()
    with Store.open(tmp_path / "store") as again:
        assert list(again.catalog.reads(None)) == []


def test_unreadable_video_is_skipped(tmp_path: Path, clips: Path) -> None:
    copies = [tmp_path / name for name in ("west.mp4", "east.mp4", "gone.mp4")]
    for path in copies:
        path.write_bytes((clips / path.name.replace("gone", "later")).read_bytes())
    with new_store(tmp_path / "store") as store:
        for path in copies:
            store.ingest(path, link=True)
        copies[-1].unlink()
        report = overlaps(store)
        assert [pair.right.name for pair in report.joinable] == ["east.mp4"]
        assert list(report.unreadable) == ["gone.mp4"]
        assert isinstance(report.unreadable["gone.mp4"], IntegrityError)
        with pytest.raises(IntegrityError):
            overlap(store, "gone.mp4", "west.mp4")


def test_compared_moments_of_any_two_videos() -> None:
    assert [float(time) for time in sample_times(Fraction(1, 3))] == [0]
    assert [float(time) for time in sample_times(Fraction(5))] == [0.5, 1, 2, 4]
    assert len(sample_times(Fraction(86400))) == len(sample_times(Fraction(5000)))
    short, long = sample_times(Fraction(7)), sample_times(Fraction(3600))
    assert short == long[: len(short)]


@pytest.mark.slow
@pytest.mark.footage
def test_filmed_pairs(tmp_path: Path, footage: Path) -> None:
    with new_store(tmp_path / "store") as store:
        for path in sorted((footage / "pairs").glob("*.mp4")):
            store.ingest(path, path.stem.rpartition("_")[0], link=True)
        report = overlaps(store)
    verdicts = {(pair.left.name, pair.right.name): pair.overlap.verdict for pair in report.joinable}
    assert verdicts == {
        ("derived_futsal_left", "derived_futsal_right"): Verdict.JOIN,
        ("roof_left", "roof_right"): Verdict.PARTLY,
    }


def retold(source: Path, target: Path, **told: int) -> Path:
    """A copy with other color properties in its stream, given as options of FFmpeg's filter."""
    options = ":".join(f"{name}={value}" for name, value in told.items())
    with av.open(str(source)) as opened, av.open(str(target), "w") as out:
        stream = opened.streams.video[0]
        copy = out.add_stream_from_template(stream)
        filtering = BitStreamFilterContext(f"h264_metadata={options}", stream, copy)
        for packet in opened.demux(stream):
            for changed in filtering.filter(packet if packet.size else None):
                changed.stream = copy
                out.mux(changed)
    return target


def test_equal_videos_are_not_paired(store: Store, clips: Path) -> None:
    store.ingest(clips / "west.mp4", "copy.mp4")
    (pair,) = overlaps(store, ["west.mp4", "copy.mp4"]).joinable
    assert (pair.overlap.verdict, pair.is_one_file) == (Verdict.SAME, True)
    assert (pair.common_share, pair.overlap.common_bytes) == (0, 0)
    objects = sorted(store.path.rglob("*.pack"))
    report = join(store, "copy.mp4", "west.mp4")
    assert (report.is_one_file, report.frames, report.bytes, report.runs) == (True, 0, 0, ())
    assert sorted(store.path.rglob("*.pack")) == objects
    assert joined(store) == []


@pytest.mark.thorough
def test_unjoinable_pairs_are_refused_early(store: Store, clips: Path, tmp_path: Path) -> None:
    """The default color coding is limited range and BT.601."""
    store.ingest(retold(clips / "east.mp4", tmp_path / "told.mp4", video_full_range_flag=0))
    assert store["told.mp4"].original.media.color_range == "limited"
    assert store["west.mp4"].original.media.color_range is None
    (pair,) = overlaps(store, ["west.mp4", "told.mp4"]).joinable
    assert pair.overlap.verdict is Verdict.JOIN
    assert join(store, "west.mp4", "told.mp4", dry_run=True).frames == FRAMES
    other = retold(
        clips / "east.mp4", tmp_path / "hd.mp4", video_full_range_flag=0, matrix_coefficients=1
    )
    store.ingest(other)
    (pair,) = overlaps(store, ["west.mp4", "hd.mp4"]).pairs
    assert (pair.overlap.verdict, pair.common_share) == (Verdict.REFUSED, 0)
    with pytest.raises(UsageError) as refusal:
        join(store, "west.mp4", "hd.mp4")
    assert pair.overlap.why == str(refusal.value)
    assert "None" not in str(refusal.value)
    assert "yuv420p of limited range and bt709" in str(refusal.value)


# --------------------------------------------------------------------------------------------------
# Candidates by colour


def plain(red: int, green: int, blue: int) -> Signature:
    return color_signature([np.full((20, 30, 3), (red, green, blue), np.uint8)])


def test_cameras_at_one_place_are_candidates() -> None:
    left, right = pictures(FilmedScene.of(Cameras(overlap=0.3), seed=1))
    red = plain(200, 30, 30)
    assert candidate_pairs([color_signature(left), red, color_signature(right)]) == [(0, 2)]


def test_shared_half_suffices() -> None:
    rng = np.random.default_rng(1)
    wide = np.concatenate(
        [rng.integers(low, low + 60, (90, 100, 3)) for low in (10, 90, 180)], axis=1
    ).astype(np.uint8)
    assert candidate_pairs(
        [color_signature([wide[:, :200]]), color_signature([wide[:, 100:]])]
    ) == [(0, 1)]


def test_only_the_nearest_are_compared() -> None:
    """For many similar videos, the number of pairs grows with the number of neighbors only."""
    rng = np.random.default_rng(2)
    some = [
        color_signature([rng.normal(100, 10 + index % 7, (30, 40, 3)).astype(np.uint8)])
        for index in range(300)
    ]
    found = candidate_pairs(some, most=4)
    assert 300 <= len(found) <= 4 * 300
    assert all(i < j for i, j in found)
    assert {i for pair in found for i in pair} == set(range(300))


def test_single_video_has_no_candidates() -> None:
    assert candidate_pairs([]) == []
    assert candidate_pairs([plain(1, 2, 3)]) == []
    assert candidate_pairs([plain(255, 0, 0), plain(0, 0, 255)], radius=RADIUS) == []
