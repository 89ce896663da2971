"""Videos of two cameras that are stored together.

Frames that were taken at the same time.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from tests.support.composed_tiles import take_tiles
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.cells.pack import open_pack
from vfsd.codecs.frames.planes import plane_samples
from vfsd.core.model import Segment
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import NotFoundError, OverBudgetError, ReadOnlyError, UsageError
from vfsd.maintenance.fsck import run as check
from vfsd.overlap import join, joined, split
from vfsd.overlap.join_encoder import JoinSettings
from vfsd.overlap.join_worker import MIN_RUN_FRAMES, Seconds, pair_frames
from vfsd.overlap.overlap_pair import Verdict

FRAMES = 36
FILMED = FilmedScene.of(Cameras(overlap=0.6), frames=2 * FRAMES, seed=1)
WEST, EAST = "west.mp4", "east.mp4"


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    write_pictures(folder / WEST, map(FILMED.left, range(FRAMES)))
    write_pictures(folder / EAST, map(FILMED.right, range(FRAMES)))
    write_pictures(folder / "later.mp4", map(FILMED.left, range(FRAMES, 2 * FRAMES)))
    write_pictures(folder / "again.mp4", map(FILMED.left, range(FRAMES)), crf=26)
    half = Fraction(15)
    write_pictures(folder / "half.mp4", map(FILMED.right, range(0, FRAMES, 2)), half)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, clips: Path) -> Path:
    """A store in which two videos are joined."""
    place = tmp_path_factory.mktemp("made") / "store"
    with new_store(place) as store:
        for path in sorted(clips.iterdir()):
            store.ingest(path)
        report = join(store, EAST, WEST, seconds_each=0.3)
        assert (report.left, report.right) == (WEST, EAST)
        assert report.overlap.verdict is Verdict.JOIN
        assert (report.frames, report.before, report.unpaired) == (FRAMES, 0, 0)
    return place


@pytest.fixture
def store(tmp_path: Path, made: Path) -> Iterator[Store]:
    shutil.copytree(made, tmp_path / "store")
    with Store.open(tmp_path / "store") as opened:
        yield opened


def originals(video: Video) -> list[list[np.ndarray]]:
    """The planes of all frames, decoded without vfsd."""
    with av.open(str(context_of(video).parts.originals.path_of(video.original))) as file:
        return [[p.copy() for p in plane_samples(frame)] for frame in file.decode(video=0)]


def kept(store: Store, segment: Segment) -> Iterator[tuple[int, list[np.ndarray]]]:
    for frame, picture in store.tools.packs.pictures(segment, 0, list(segment.frames)):
        yield frame, [plane.copy() for plane in plane_samples(picture)]


def worst_psnr(shown: list[np.ndarray], seen: list[np.ndarray]) -> float:
    return min(
        10 * math.log10(255**2 / max(np.square(a.astype(float) - b).mean(), 1e-9))
        for a, b in zip(shown, seen, strict=True)
    )


def packs_of(store: Store) -> list[Path]:
    (pair,) = joined(store)
    return [store.parts.objects.path(left.object_key) for left, _ in pair.segments]


def faults(store: Store) -> list[str]:
    return [found.message for found in check(store.parts, deep=True)]


def test_joined_frames_reach_their_reported_psnr(store: Store) -> None:
    for name in (WEST, EAST):
        exact = originals(store[name])
        shown = 0
        for segment in store.catalog.joined(store[name].info):
            found = [worst_psnr(planes, exact[at]) for at, planes in kept(store, segment)]
            assert min(found) == pytest.approx(segment.psnr, abs=0.01)
            assert min(found) >= 30
            shown += len(found)
        assert shown == FRAMES
    assert faults(store) == []


def test_reads_use_joints_of_sufficient_quality(store: Store) -> None:
    take_tiles(store)
    for name in (WEST, EAST):
        video = store[name]
        assert {source.kind for source in video.explain(psnr=30).sources} == {"joined"}
        exact, region = video.read(psnr=math.inf), (48, 32, 240, 200)
        found = video.read(psnr=30)
        assert found.psnr < 100
        assert not np.array_equal(found.data, exact.data)
        error = np.square(found.data.astype(float) - exact.data).mean()
        assert 10 * math.log10(255**2 / error) > 28  # of RGB
        part = video.read(region=region, frames=slice(5, 30, 3), psnr=30)
        np.testing.assert_array_equal(part.data, found.data[5:30:3, 32:200, 48:240])
        streamed = [picture.data for picture in video.iterate(psnr=30)]
        np.testing.assert_array_equal(np.stack(streamed), found.data)
        best = max(segment.psnr for segment in store.catalog.joined(video.info))
        sources = video.explain(psnr=best + 0.1).sources
        assert {source.kind for source in sources} == {"original"}


def test_joint_is_smaller_than_both_videos(store: Store) -> None:
    settings = JoinSettings(quality=24)
    split(store, WEST)
    join(store, WEST, EAST, settings)
    (pair,) = joined(store)
    coded = TileSettings(quality=24)
    apart = sum(
        one.size
        for name in (WEST, EAST)
        for one in store[name].tiles.retile("uniform:1x1", settings=coded)
    )
    assert pair.bytes < 0.85 * apart
    # The tiles still exist, and neither replaces the other.
    assert store.catalog.segments(store[WEST].info)
    assert len(joined(store)) == 1


def test_unprojected_merge_favors_the_left_frame(store: Store) -> None:
    split(store, WEST)
    report = join(store, WEST, EAST, JoinSettings(merge="unprojected", quality=4))
    assert report.psnr is not None
    assert report.psnr[0] > report.psnr[1] + 3
    assert report.psnr[0] > 44


def test_repeated_join_changes_nothing(store: Store) -> None:
    before = joined(store)
    report = join(store, WEST, EAST, seconds_each=0.3)
    assert (report.frames, report.before) == (0, FRAMES)
    assert joined(store) == before


def test_already_joined_frames_are_skipped_and_reported(store: Store) -> None:
    """Each frame can be joined only once."""
    before = joined(store)
    report = join(store, WEST, "again.mp4", seconds_each=0.3)
    assert (report.frames, report.before) == (0, 0)
    assert report.reasons == {f"already joined with {EAST}": FRAMES}
    assert joined(store) == before


def test_copies_are_stored_once(store: Store) -> None:
    split(store, WEST)
    report = join(store, WEST, "again.mp4")
    assert all(run.is_copy for run in report.joined)
    assert report.frames == FRAMES
    (pair,) = joined(store, "again.mp4")
    assert pair.copied == FRAMES
    reader, table = open_pack(store.parts.objects, pair.segments[0][0].object_key)
    reader.close()
    assert len(table.cells) == 1
    left, right = (store[name] for name in (pair.left, pair.right))
    one, other = (
        np.stack([planes[0] for s in store.catalog.joined(v.info) for _, planes in kept(store, s)])
        for v in (left, right)
    )
    assert np.abs(one.astype(int) - other).max() <= 1  # their exposure differs slightly
    assert faults(store) == []


def test_rotated_cameras_are_joined_upright(store: Store, tmp_path: Path) -> None:
    write_pictures(tmp_path / "lying.mp4", map(FILMED.left, range(12)), rotation=90)
    write_pictures(tmp_path / "hanging.mp4", map(FILMED.right, range(12)), rotation=180)
    for name in ("lying.mp4", "hanging.mp4"):
        store.ingest(tmp_path / name)
    report = join(store, "lying.mp4", "hanging.mp4")
    assert (report.left, report.frames) == ("lying.mp4", 12)
    take_tiles(store)
    for name in ("lying.mp4", "hanging.mp4"):
        video = store[name]
        exact = originals(video)
        (segment,) = store.catalog.joined(video.info)
        assert segment.picture == (video.original.media.width, video.original.media.height)
        found = [worst_psnr(planes, exact[at]) for at, planes in kept(store, segment)]
        assert min(found) == pytest.approx(segment.psnr, abs=0.01)
        read, original = video.read(psnr=30), video.read(psnr=math.inf)
        assert read.data.shape == (12, 240, 320, 3)
        assert not np.array_equal(read.data, original.data)
        error = np.square(read.data.astype(float) - original.data).mean()
        assert 10 * math.log10(255**2 / error) > 28
    assert faults(store) == []


def test_invalid_joins_are_refused(store: Store, clips: Path) -> None:
    with pytest.raises(NotFoundError):
        join(store, EAST, "later.mp4")
    with pytest.raises(UsageError):
        join(store, EAST, EAST)
    with pytest.raises(UsageError):
        JoinSettings(psnr=20)
    with pytest.raises(UsageError):
        JoinSettings(codec="lossless")
    split(store, EAST)
    report = join(store, WEST, EAST, JoinSettings(psnr=60))
    assert (report.frames, report.psnr) == (0, None)
    assert sum(report.reasons.values()) == FRAMES
    assert join(store, WEST, "half.mp4").unpaired == FRAMES
    assert joined(store) == []
    with pytest.raises(NotFoundError):
        split(store, EAST)


def test_dry_run_stores_nothing(store: Store, tmp_path: Path) -> None:
    split(store, WEST)
    objects = set(store.parts.objects.all_keys())
    store.close()
    with Store.open(tmp_path / "store", read_only=True) as opened:
        report = join(opened, WEST, EAST, dry_run=True)
        assert report.frames == FRAMES
        assert report.bytes > 0
        assert set(opened.parts.objects.all_keys()) == objects
        with pytest.raises(ReadOnlyError):
            join(opened, WEST, EAST)


def test_split_keeps_the_originals(store: Store, clips: Path) -> None:
    packs = packs_of(store)
    (gone,) = split(store, EAST, WEST)
    assert gone.frames == FRAMES
    assert not any(path.exists() for path in packs)
    for name in (WEST, EAST):
        video = store[name]
        assert store.catalog.joined(video.info) == []
        assert [one.role.value for one in store.catalog.physicals(video.info)] == ["original"]
        assert (
            context_of(video).parts.originals.path_of(video.original).read_bytes()
            == (clips / name).read_bytes()
        )
    assert faults(store) == []


@pytest.mark.parametrize("name", [WEST, EAST])
def test_removing_one_video_keeps_the_other(store: Store, name: str, clips: Path) -> None:
    packs = packs_of(store)
    store.remove(name)
    assert joined(store) == []
    assert not any(path.exists() for path in packs)
    other = store[EAST if name == WEST else WEST]
    assert store.catalog.joined(other.info) == []
    assert len(other.read().data) == FRAMES
    assert faults(store) == []


def test_overwriting_a_video_splits_its_pair(store: Store, clips: Path) -> None:
    store.ingest(clips / "later.mp4", EAST, replace=True)
    assert joined(store) == []
    assert store.catalog.joined(store[WEST].info) == []
    assert faults(store) == []


def test_both_halves_are_charged_and_evicted_together(store: Store) -> None:
    (pair,) = joined(store)
    size = sum(path.stat().st_size for path in packs_of(store))
    west, east = store[WEST], store[EAST]
    assert west.budget.usage().joined + east.budget.usage().joined == size
    assert store.budget.usage().used == size == pair.bytes
    east.budget.pin(span=(0, 0.1))  # holds its first segment, and so also the other half
    pinned = pair.segments[0][0].size + pair.segments[0][1].size
    assert store.budget.usage().pinned == pinned
    west.budget.set(0)
    (left,) = joined(store)
    assert left.segments == pair.segments[:1]
    assert store.budget.usage().used == 0
    assert len(store.budget.evictions()) == 2 * (len(pair.segments) - 1)
    assert faults(store) == []
    with pytest.raises(OverBudgetError):
        join(store, WEST, EAST, seconds_each=0.3)
    assert joined(store) == [left]
    assert faults(store) == []


def test_pinning_a_pair_evicts_in_both_budgets(store: Store) -> None:
    (pair,) = joined(store)
    west, east = store[WEST], store[EAST]
    east.budget.pin()
    assert west.budget.set(0) == []
    gone = east.budget.unpin()
    assert {one.id for one in gone} == {one.id for both in pair.segments for one in both}
    assert joined(store) == []
    assert west.budget.usage().used == 0
    # Only this budget was full.
    assert {one.why for one in west.budget.evictions()} == {"video"}
    assert {one.why for one in east.budget.evictions()} == {"partner"}
    assert faults(store) == []


def test_eviction_removes_whole_pairs_and_no_more(store: Store) -> None:
    (pair,) = joined(store)
    costs = [left.size + right.size for left, right in pair.segments]
    limit = store.budget.usage().used - max(costs) // 2
    foretold = store.budget.what_if(limit)
    gone = store.budget.set(limit)
    assert {one.id for one in gone} == {one.id for one in foretold.gone}
    assert len(gone) == 2
    assert len({one.object_key for one in gone}) == 1
    assert store.budget.usage().used == foretold.usage.used
    # Eviction by one video's budget also evicts the other half, and reports it.
    west = store[WEST]
    foretold = west.budget.what_if(0)
    assert {one.video_id for one in foretold.gone} == {west.info.id, store[EAST].info.id}
    assert {one.id for one in west.budget.set(0)} == {one.id for one in foretold.gone}
    assert joined(store) == []


@pytest.mark.thorough
def test_pairs_with_equal_bytes_are_independent(store: Store, clips: Path) -> None:
    for name in (WEST, EAST):
        store.ingest(clips / name, f"twin/{name}")
    join(store, f"twin/{WEST}", f"twin/{EAST}", seconds_each=0.3)
    assert [pair.frames for pair in joined(store)] == [FRAMES, FRAMES]
    assert faults(store) == []
    twin, first = joined(store)
    assert not {one.object_key for both in first.segments for one in both} & {
        one.object_key for both in twin.segments for one in both
    }
    store[WEST].budget.pin()
    store[f"twin/{WEST}"].budget.set(0)
    assert joined(store) == [first]
    store[f"twin/{WEST}"].budget.set("none")
    join(store, f"twin/{WEST}", f"twin/{EAST}", seconds_each=0.3)
    split(store, f"twin/{EAST}")
    assert joined(store) == [first]
    assert faults(store) == []


@pytest.mark.thorough
def test_still_frames_are_joined_run_by_run(store: Store, tmp_path: Path) -> None:
    for name, picture in ((WEST, FILMED.left), (EAST, FILMED.right)):
        write_pictures(tmp_path / name, [picture(0)] * FRAMES)
        store.ingest(tmp_path / name, f"still/{name}")
    join(store, f"still/{WEST}", f"still/{EAST}", seconds_each=0.3)
    still = next(pair for pair in joined(store) if pair.left == f"still/{WEST}")
    assert still.frames == FRAMES
    assert faults(store) == []


def test_damaged_joint_is_found_and_removed(store: Store) -> None:
    first, second, *others = packs_of(store)
    first.unlink()
    data = bytearray(second.read_bytes())
    data[-1] ^= 255
    second.chmod(0o600)
    second.write_bytes(data)
    assert len(faults(store)) >= 2
    assert all(found.repaired for found in check(store.parts, repair=True, deep=True))
    assert faults(store) == []
    assert packs_of(store) == others
    assert len(store[EAST].read().data) == FRAMES


def test_damaged_joint_is_not_read(store: Store) -> None:
    take_tiles(store)
    (pair,) = joined(store)
    first, *others = packs_of(store)
    data = bytearray(first.read_bytes())
    data[-100] ^= 255  # of the right piece
    first.chmod(0o600)
    first.write_bytes(data)
    video = store[EAST]
    exact = video.read(psnr=math.inf)
    found = video.read(psnr=30)
    run = pair.segments[0][1].frames
    np.testing.assert_array_equal(found.data[: len(run)], exact.data[: len(run)])
    assert packs_of(store) == others
    assert faults(store) == []


def test_single_half_is_found(store: Store) -> None:
    (pair,) = joined(store)
    (left, _), *_ = pair.segments
    database = sqlite3.connect(store.path / "catalog.sqlite3")
    with database:
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("DELETE FROM segments WHERE id = ?", (left.id,))
    database.close()
    (fault,) = faults(store)
    assert "joined tiles of the other camera are missing" in fault
    check(store.parts, repair=True)
    assert faults(store) == []
    (again,) = joined(store)
    assert again.segments == pair.segments[1:]


@pytest.mark.thorough
def test_interrupted_join_keeps_finished_segments(store: Store) -> None:
    split(store, WEST)

    def give_up(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        join(store, WEST, EAST, seconds_each=0.3, jobs=1, on_progress=give_up)
    (pair,) = joined(store)
    assert 0 < pair.frames < FRAMES
    report = join(store, WEST, EAST, seconds_each=0.3)
    assert (report.before, report.frames) == (pair.frames, FRAMES - pair.frames)
    assert faults(store) == []


@pytest.mark.thorough
@pytest.mark.parametrize(("step", "frames"), one_in(3, [("stored", 9), ("half", 9), ("both", 9)]))
def test_killed_join_leaves_whole_segments(store: Store, step: str, frames: int) -> None:
    split(store, WEST)
    _die(store, step)
    (pair,) = joined(store)
    assert pair.frames == frames
    assert all("not in the catalog" in fault for fault in faults(store))
    check(store.parts, repair=True)
    assert faults(store) == []
    assert join(store, WEST, EAST, seconds_each=0.3).frames == FRAMES - frames
    assert faults(store) == []


@pytest.mark.thorough
def test_concurrent_joins_of_the_same_pair(store: Store) -> None:
    split(store, WEST)
    program = [sys.executable, "-m", "tests.support.killed_join"]
    command = [*program, str(store.path), WEST, EAST, "none"]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [one.wait(120) for one in both] == [0, 0]
    (pair,) = joined(store)
    assert pair.frames == FRAMES
    frames = [frame for left, _ in pair.segments for frame in left.frames]
    assert frames == list(range(FRAMES))
    assert faults(store) == []


@pytest.mark.thorough
def test_split_is_atomic(store: Store) -> None:
    before = joined(store)
    _die(store, "split")
    assert joined(store) == before
    assert faults(store) == []


def _die(store: Store, step: str) -> None:
    command = [sys.executable, "-m", "tests.support.killed_join", str(store.path), WEST, EAST, step]
    done = subprocess.run(command, check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL


def beginning(path: Path, folder: Path, frames: int) -> Path:
    """The packets of the first frames; the next frame must be a key frame."""
    with av.open(str(path)) as file, av.open(str(folder / path.name), "w") as out:
        stream = file.streams.video[0]
        target = out.add_stream_from_template(stream)
        for packet in itertools.islice(file.demux(stream), frames):
            packet.stream = target
            out.mux(packet)
    return folder / path.name


@pytest.mark.slow
@pytest.mark.footage
def test_filmed_pairs(tmp_path: Path, footage: Path) -> None:
    with new_store(tmp_path / "store") as store:
        for path in sorted((footage / "pairs").glob("*.mp4")):
            name = path.stem.rpartition("_")[0]
            clip = beginning(path, tmp_path, 30) if "futsal" in name else path
            store.ingest(clip, name, link=True)
        report = join(store, "derived_futsal_left", "derived_futsal_right")
        assert (report.frames, report.unpaired) == (30, 0)
        assert report.psnr is not None
        assert min(report.psnr) > 36
        moving = join(store, "roof_left", "roof_right")
        assert 0 < moving.frames < 296
        assert moving.psnr is not None
        assert min(moving.psnr) >= 30
        with pytest.raises(NotFoundError):
            join(store, "office_a", "office_b")
        assert faults(store) == []


# --------------------------------------------------------------------------------------------------
# Frames that were taken at the same time


def times(count: int, rate: float, start: float = 0.0) -> Seconds:
    return start + np.arange(count) / rate


SEQUENCES = [range(0, 30), range(30, 60), range(60, 90)]


def test_cameras_of_one_rate() -> None:
    found = pair_frames(SEQUENCES, times(90, 30), times(90, 30))
    assert [(pair.left, pair.right) for pair in found] == [(run, run) for run in SEQUENCES]


def test_pairing_ends_with_the_shorter_video() -> None:
    found = pair_frames(SEQUENCES, times(90, 30), times(70, 30))
    assert [pair.left for pair in found] == [range(0, 30), range(30, 60), range(60, 70)]
    last = pair_frames(SEQUENCES, times(90, 30), times(60 + MIN_RUN_FRAMES - 1, 30))
    assert [pair.left for pair in last] == SEQUENCES[:2]


def test_different_rates_have_too_short_runs() -> None:
    assert pair_frames(SEQUENCES, times(90, 30), times(45, 15)) == []
    assert pair_frames(SEQUENCES, times(90, 30), times(1, 30)) == []


def test_missing_frame_shifts_later_pairs() -> None:
    right = np.delete(times(90, 30), 40)
    found = pair_frames(SEQUENCES, times(90, 30), right)
    assert [(pair.left, pair.right) for pair in found] == [
        (range(0, 30), range(0, 30)),
        (range(41, 60), range(40, 59)),
        (range(60, 90), range(59, 89)),
    ]


def test_drifting_clocks_use_no_frame_twice() -> None:
    long = [range(start, start + 30) for start in range(0, 3000, 30)]
    left, right = times(3000, 30), times(3000, 29.97)
    found = pair_frames(long, left, right)
    assert len(found) == len(long)
    used = [frame for pair in found for frame in pair.right]
    assert len(used) == len(set(used))
    for pair in found:
        assert len(pair.left) == len(pair.right)
        apart = np.abs(left[list(pair.left)] - right[list(pair.right)])
        assert apart.max() <= 0.5 / 29.97 + 1e-9
