"""Lossless tiles: the original's pixels at every compression level."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.composed_tiles import take_tiles
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.catalog.segments import Segments
from vfsd.codecs.cells.lossless import LosslessCellDecoder
from vfsd.core.model import Segment
from vfsd.derive.deferred_compression import (
    compress_segments,
    compressible,
    is_compression_due,
    level_for,
    pending_compressions,
    recompress_segment,
)
from vfsd.derive.derived_data import drop_tiles, rollback_layouts
from vfsd.derive.retile import missing_segments
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.disk.object_store import Digest, ObjectStore
from vfsd.errors import IntegrityError, NoSpaceError, NotFoundError, UsageError
from vfsd.maintenance import fsck
from vfsd.tiling import Rect, TileLayout

CLIPS = ("traffic.mp4", "portrait.mp4", "odd-size.webm", "variable-rate.mp4", "mjpeg.avi")
RAW = TileSettings("lossless", quality=0)


@pytest.fixture
def video(store: Store) -> Video:
    return added(store, "traffic.mp4")


def added(store: Store, clip: str) -> Video:
    """Raise the budget: raw frames are more than ten times as large as such a clip."""
    video = store.ingest(FOLDER / clip)
    video.budget.set("none")
    return video


def same_keys(store: Store, video: Video) -> bool:
    """Whether the packs on disk are exactly those in the catalog."""
    segments = store.catalog.segments(video.info) + store.catalog.renditions(video.info)
    keys = {segment.object_key for segment in segments}
    return set(store.parts.objects.all_keys()) == keys | {video.original.object_key}


@pytest.mark.parametrize("level", one_in(2, [0, 1]))
@pytest.mark.parametrize("clip", one_in(5, CLIPS))
def test_lossless_tiles_are_bit_exact(store: Store, clip: str, level: int) -> None:
    video = added(store, clip)
    media = video.original.media
    heights = f"80+{media.height - 80}" if media.height >= 144 else f"{media.height}"
    layout = TileLayout.parse(f"64+{media.width - 64}x{heights}")
    segments = video.tiles.retile(layout, settings=TileSettings("lossless", quality=level))
    assert {segment.psnr for segment in segments} == {100.0}
    take_tiles(store)
    rng = np.random.default_rng(len(clip))
    for form in ("rgb24", "bgr24", "gray", "rgb48", "yuv444p", "yuv420p"):
        for _ in range(3):
            x1, y1 = (int(rng.integers(0, side - 20)) // 2 * 2 for side in video_size(video))
            x2, y2 = (
                int(rng.integers(start + 10, side)) // 2 * 2
                for start, side in zip((x1, y1), video_size(video), strict=True)
            )
            region = Rect(x1, y1, x2, y2)
            assert all(
                s.segment for s in video.explain(region=region, format=form, psnr=99).sources
            )
            near = video.read(region=region, format=form, psnr=99)
            exact = video.read(region=region, format=form, psnr=math.inf)
            assert np.array_equal(near.data, exact.data)
            assert np.array_equal(near.pts, exact.pts)
            assert near.psnr == 100
            assert exact.psnr == math.inf
    whole = video.read(psnr=99)
    assert whole.psnr == 100
    assert np.array_equal(whole.data, video.read(psnr=math.inf).data)


def video_size(video: Video) -> tuple[int, int]:
    return video.width, video.height


@pytest.mark.thorough
def test_raw_frames_are_read_individually(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    video.tiles.retile("uniform:1x1", settings=RAW)
    take_tiles(store)
    exact = video.frames([20, 50, 51], psnr=math.inf).data
    decoded = []
    decode = LosslessCellDecoder.decode

    def counted(self: LosslessCellDecoder, payload: memoryview) -> object:
        decoded.append(self.fed)
        return decode(self, payload)

    monkeypatch.setattr(LosslessCellDecoder, "decode", counted)
    assert np.array_equal(video.frames([20], psnr=99).data, exact[:1])
    assert decoded == [20]
    assert np.array_equal(video.frames([50, 51], psnr=99).data, exact[1:])
    assert decoded == [20, 20, 21]


@pytest.mark.thorough
def test_recompression_to_any_level(store: Store, video: Video) -> None:
    assert video.tiles.retile("uniform:2x2", settings=RAW)
    planned = [
        PlannedSegment(f, TileLayout.parse("160+160x128+112")) for f in video.tiles.sequences()
    ]
    for settings in (RAW, TileSettings("lossless"), TileSettings("lossless", psnr=45, quality=19)):
        assert missing_segments(store.parts, video.info, planned, settings) == []
    with pytest.raises(UsageError, match="0 to 19"):
        video.tiles.retile("uniform:1x1", settings=TileSettings("lossless", quality=20))


@pytest.mark.thorough
def test_raw_tiles_have_lower_cost(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:1x1", settings=RAW)
    raw = video.explain(psnr=99).seconds
    video.tiles.compress(1)
    assert raw < video.explain(psnr=99).seconds


# -------------------------------------------------------------------------- compressing them later


@pytest.mark.thorough
def test_compression_keeps_samples_and_saves_space(store: Store, video: Video) -> None:
    before = video.tiles.retile("uniform:2x2", settings=RAW)
    rendered = video.renditions.make((160, 120), settings=RAW)
    take_tiles(store)
    exact = video.read(psnr=math.inf).data
    small = video.read(size=(160, 120), psnr=99).data
    assert len(compressible(store.parts, video.info, 1)) == len(before) + len(rendered)
    after = video.tiles.compress(1)
    assert compressible(store.parts, video.info, 1) == []
    assert {one.id for one in after} == {one.id for one in before + rendered}
    assert sum(s.size for s in after) < sum(s.size for s in before + rendered) / 2
    assert {cell.quality for segment in after for cell in segment.cells} == {1}
    known = store.catalog.segments(video.info) + store.catalog.renditions(video.info)
    assert sorted(known, key=lambda s: s.id) == sorted(after, key=lambda s: s.id)
    assert same_keys(store, video)
    for physical in store.catalog.physicals(video.info)[1:]:
        assert physical.size == sum(s.size for s in known if s.physical_id == physical.id)
    assert np.array_equal(video.read(psnr=99).data, exact)
    assert np.array_equal(video.read(size=(160, 120), psnr=99).data, small)
    assert [one.frames for one in video.tiles.compress(12)]
    assert video.tiles.compress(3) == []
    assert np.array_equal(video.read(psnr=99).data, exact)
    assert list(fsck.run(store.parts, repair=False, deep=True)) == []


def test_open_readers_survive_compression(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:1x1", settings=RAW, span=(0, 1))
    take_tiles(store)
    exact = video.read(frames=slice(0, 30), psnr=math.inf).data
    reading = video.iterate(frames=slice(0, 30), psnr=99)
    shown = [next(reading).data]
    video.tiles.compress(1)
    shown += [frame.data for frame in reading]
    assert np.array_equal(np.stack(shown), exact)


@pytest.mark.thorough
def test_retired_tiles_are_compressed(store: Store, video: Video) -> None:
    old = video.tiles.retile("uniform:1x1", settings=RAW)
    new = video.tiles.retile("uniform:2x1", settings=RAW)
    assert len(video.tiles.compress(1)) == len(old) + len(new)
    rollback_layouts(store.parts, video.info, range(len(video)))
    back = store.catalog.segments(video.info)
    assert {segment.id for segment in back} == {segment.id for segment in old}
    take_tiles(store)
    assert np.array_equal(video.read(psnr=99).data, video.read(psnr=math.inf).data)


def test_only_lossless_tiles_can_be_compressed(store: Store, video: Video) -> None:
    (first, *_) = video.tiles.retile("uniform:1x1")
    assert compressible(store.parts, video.info, 19) == []
    with pytest.raises(UsageError, match="'fast'"):
        recompress_segment(store.parts, first, 1)
    for level in (0, 20):
        with pytest.raises(UsageError, match="1 to 19"):
            video.tiles.compress(level)


def unchanged(store: Store, video: Video, before: list[Segment]) -> None:
    assert store.catalog.segments(video.info) == before
    assert same_keys(store, video)
    take_tiles(store)
    assert np.array_equal(video.read(psnr=99).data, video.read(psnr=math.inf).data)


def test_full_disk_changes_nothing(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = video.tiles.retile("uniform:1x1", settings=RAW)

    def full(*_: object) -> tuple[str, int]:
        raise NoSpaceError("no room")

    monkeypatch.setattr(ObjectStore, "put_bytes", full)
    with pytest.raises(NoSpaceError):
        video.tiles.compress(1)
    unchanged(store, video, before)


def test_failed_transaction_changes_nothing(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = video.tiles.retile("uniform:1x1", settings=RAW)

    class BrokenError(Exception):
        pass

    def broken(*_: object, **__: object) -> None:
        raise BrokenError

    with monkeypatch.context() as patched:
        patched.setattr(Segments, "_update_totals", broken)
        with pytest.raises(BrokenError):
            video.tiles.compress(1)
    unchanged(store, video, before)


def test_stopped_compression_resumes(store: Store, video: Video) -> None:
    before = video.tiles.retile("uniform:1x1", settings=RAW)
    assert len(before) > 2

    def stop(done: int, total: int) -> None:
        if done >= total / 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        video.tiles.compress(1, jobs=1, on_progress=stop)
    left = compressible(store.parts, video.info, 1)
    done = [one for one in store.catalog.segments(video.info) if one not in left]
    assert same_keys(store, video)
    rest = video.tiles.compress(1)
    assert {one.id for one in rest} == {one.id for one in left}
    assert len(done) + len(rest) == len(before)
    unchanged(store, video, store.catalog.segments(video.info))


def test_damaged_segments_are_reported_and_skipped(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:1x1", settings=TileSettings("lossless"))
    first, second, *others = store.catalog.segments(video.info)
    for segment, damage in ((first, True), (second, False)):
        path = store.parts.objects.path(segment.object_key)
        path.chmod(0o600)
        if damage:
            content = bytearray(path.read_bytes())
            content[-100] ^= 4
            path.write_bytes(content)
        else:
            path.unlink()
    with pytest.raises(IntegrityError, match="damaged"):
        recompress_segment(store.parts, first, 9)
    with pytest.raises(IntegrityError, match="missing"):
        recompress_segment(store.parts, second, 9)
    assert store.catalog.segments(video.info) == [first, second, *others]


def test_segments_removed_in_between_are_skipped(store: Store, video: Video) -> None:
    before = video.tiles.retile("uniform:1x1", settings=RAW)
    first, second, *_ = before
    drop_tiles(store.parts, video.info, first.frames)
    changed = recompress_segment(store.parts, second, 3)
    for stale in (first, second):
        with pytest.raises(NotFoundError):
            recompress_segment(store.parts, stale, 1)
    made = compress_segments(store.parts, before, 1)
    assert {one.id for one in made} == {one.id for one in before[2:]}
    assert changed in store.catalog.segments(video.info)
    assert same_keys(store, video)


def test_concurrent_compressions_store_one_result(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have compressed the same segment when the first one publishes it."""
    (segment,) = video.tiles.retile("uniform:1x1", settings=RAW, span=(0, 0.5))
    both = threading.Barrier(2)
    put = ObjectStore.put_bytes

    def together(objects: ObjectStore, data: bytes, what: str) -> Digest:
        both.wait(20)
        return put(objects, data, what)

    monkeypatch.setattr(ObjectStore, "put_bytes", together)
    outcomes: list[object] = []

    def work(level: int) -> None:
        try:
            outcomes.append(recompress_segment(store.parts, segment, level))
        except NotFoundError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work, args=(level,)) for level in (1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kinds = sorted(type(outcome).__name__ for outcome in outcomes)
    assert kinds == ["NotFoundError", "Segment"]
    (won,) = (outcome for outcome in outcomes if isinstance(outcome, Segment))
    unchanged(store, video, [won])


# ------------------------------------------------------------------------------------- how hard


@given(st.integers(0, 10**13), st.integers(0, 10**13), st.integers(1, 10**12))
def test_level_rises_with_usage(one: int, other: int, budget: int) -> None:
    low, high = sorted((one, other))
    assert 0 <= level_for(low, budget) <= level_for(high, budget) <= 19


def test_pinned_segments_are_compressed_first(store: Store, video: Video) -> None:
    made = video.tiles.retile("uniform:1x1", settings=RAW)
    take_tiles(store)
    for _ in range(3):
        video.frames([made[1].first_frame], psnr=99)
    store.tools.read_log.flush()
    assert pending_compressions(store.parts) == []  # unlimited budget
    video.budget.set(2 * sum(segment.size for segment in made))
    found = pending_compressions(store.parts)
    assert found[0].segment.id == made[1].id
    assert {one.segment.id for one in found} == {segment.id for segment in made}
    assert {one.level for one in found} == {1}
    for one in found:
        if is_compression_due(store.parts, one):
            recompress_segment(store.parts, one.segment, one.level)
    left = pending_compressions(store.parts)
    assert len(left) < len(made)  # the first segments were enough
    assert not any(is_compression_due(store.parts, one) for one in left)
    video.budget.pin()
    assert pending_compressions(store.parts) == []


def test_levels_by_budget_usage() -> None:
    assert [level_for(used, 1000) for used in (0, 249, 250, 625, 999, 1000, 2000)] == [
        *(0, 0, 1),
        *(10, 18, 19, 19),
    ]
    assert level_for(0, 0) == level_for(5, 0) == 19
