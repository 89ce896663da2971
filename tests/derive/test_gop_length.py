"""GOP lengths of tiles and renditions: what a read decodes, and that its result is the same."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from sample_videos import FOLDER, Encoding, Scene, write
from tests.support.composed_tiles import take_tiles
from tests.support.remembered_reads import region_read, remember
from tests.support.selection import covering, one_in
from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.cells.cell_decoders import StreamCellDecoder
from vfsd.core.model import LoggedRead, Role
from vfsd.core.view_request import View
from vfsd.derive.derived_data import drop_renditions
from vfsd.derive.rendition_plan import GopLength
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.derive.workload import frame_runs
from vfsd.errors import UsageError
from vfsd.read.read_log import ReadTiming, describe_planned_read
from vfsd.tiling import TileLayout
from vfsd.tiling.cost import decoded_spans

SMALL = (160, 120)
FRAME_TOLERANCE = 3.0  # dB: a PSNR is that of a segment, and a frame may have less
CLIPS = ("traffic.mp4", "variable-rate.mp4", "open-gop.mov")


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4")  # 320x240, 30 frames per second


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The packets of tiles that were decoded."""
    found: list[int] = []
    decode = StreamCellDecoder.decode

    def counted(self: StreamCellDecoder, payload: memoryview) -> list[tuple[int, av.VideoFrame]]:
        found.append(self.fed)
        return decode(self, payload)

    monkeypatch.setattr(StreamCellDecoder, "decode", counted)
    return found


def make(video: Video, gop: GopLength) -> None:
    video.renditions.make(SMALL, gop=gop)


def psnr_of(data: np.ndarray, exact: np.ndarray) -> float:
    error = np.square(data.astype(float) - exact.astype(float)).mean(axis=(1, 2))
    return float(10 * np.log10(255**2 / np.maximum(error, 1e-9)).min())


@pytest.mark.parametrize(("gop", "codec"), covering(1, [1, 4, 7], ["fast", "small", "lossless"]))
def test_random_frames_equal_a_sequential_read(store: Store, codec: str, gop: int) -> None:
    video = store.ingest(FOLDER / "traffic.mp4")
    take_tiles(store)
    size = (80, 60) if codec == "lossless" else SMALL  # within the budget
    video.renditions.make(size, settings=TileSettings(codec), gop=gop)
    expected = video.read(size=size).data
    exact = video.read(size=size, psnr=float("inf")).data
    store.tools.packs.empty()
    rng = np.random.default_rng(gop)
    for _ in range(8):
        numbers = sorted(set(rng.integers(0, len(video), int(rng.integers(1, 6))).tolist()))
        found = video.read(frames=numbers, size=size)
        assert found.psnr > 28
        assert psnr_of(found.data, exact[numbers]) > found.psnr - FRAME_TOLERANCE
        assert np.array_equal(found.data, expected[numbers])
        start, stop, step = numbers[0], numbers[0] + 40, int(rng.integers(1, 12))
        part = video.read(frames=slice(start, min(stop, len(video)), step), size=size).data
        assert np.array_equal(part, expected[start:stop:step])


@pytest.mark.parametrize("clip", one_in(3, CLIPS))
def test_every_gop_length_gives_the_same_frames(store: Store, clip: str) -> None:
    video = store.ingest(FOLDER / clip)
    take_tiles(store)
    size = (video.width // 4 * 2, video.height // 4 * 2)
    exact = video.read(size=size, psnr=float("inf"))
    for gop in (1, 5, 12, None):
        video.renditions.make(size, gop=gop)
        found = video.read(size=size, psnr=20)
        assert {one.segment is not None for one in video.explain(size=size).sources} == {True}
        assert list(found.pts) == list(exact.pts)
        assert list(found.index) == list(exact.index)
        assert found.psnr >= 28
        assert psnr_of(found.data, exact.data) > found.psnr - FRAME_TOLERANCE


def test_single_frame_decodes_from_the_last_key_frame(video: Video, fed: list[int]) -> None:
    make(video, 4)
    fed.clear()
    video.read(frames=[14], size=SMALL)
    assert fed == [12, 13, 14]
    (source,) = video.explain(frames=slice(14, 15), size=SMALL).sources
    assert (source.work.starts, source.work.pictures) == (1, 3)
    assert source.segment is not None
    assert source.segment.gop == source.segment.gop_frames == 4


def test_frames_in_between_are_skipped(video: Video, fed: list[int]) -> None:
    make(video, 4)
    fed.clear()
    video.read(frames=[1, 2, 9, 12, 27], size=SMALL)
    assert fed == [0, 1, 2, 8, 9, 12, 24, 25, 26, 27]
    (source,) = video.explain(frames=slice(1, 28, 13), size=SMALL).sources  # 1, 14, 27
    assert (source.work.starts, source.work.pictures) == (3, 9)


def test_next_frame_continues_the_decoder(video: Video, fed: list[int]) -> None:
    make(video, 8)
    video.read(frames=[10], size=SMALL)
    fed.clear()
    video.read(frames=[12], size=SMALL)
    assert fed == [11, 12]


@pytest.mark.parametrize("seed", range(20))
def test_decoded_spans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, gop = int(rng.integers(0, 50)), int(rng.integers(1, 20))
    some = rng.integers(first, first + 100, int(rng.integers(1, 30))).tolist()
    frames: Sequence[int] = sorted(set(some))
    needed = {
        other for frame in frames for other in range(frame - (frame - first) % gop, frame + 1)
    }
    spans = decoded_spans(frames, first, gop)
    assert [at for span in spans for at in span] == sorted(needed)
    assert all(a.stop < b.start for a, b in itertools.pairwise(spans))


def test_new_length_replaces_the_rendition(store: Store, video: Video) -> None:
    make(video, None)
    make(video, 4)
    assert {one.gop for one in store.catalog.renditions(video.info)} == {4}
    make(video, 4)
    assert len(store.catalog.renditions(video.info)) == len(video.tiles.sequences())


def test_whole_frames_in_full_size_are_a_rendition(store: Store, video: Video) -> None:
    full = (video.width, video.height)
    with pytest.raises(UsageError, match="differ from that of the video"):
        video.renditions.make(full)
    video.tiles.retile("uniform:2x2")
    made = video.renditions.make(full, gop=1)
    assert {store.catalog.physicals(video.info)[-1].role} == {Role.RENDITION}
    # The tiles stay.
    assert len(store.catalog.segments(video.info)) == len(made)
    explained = video.explain(frames=slice(17, 18))
    assert explained.sources[0].segment in store.catalog.renditions(video.info)
    assert explained.work.pictures == 1
    exact = video.read(frames=[17], psnr=float("inf")).data
    assert psnr_of(video.read(frames=[17]).data, exact) >= 33
    drop_renditions(store.parts, video.info, full)
    assert len(store.catalog.segments(video.info)) == len(made)


def test_tiles_have_a_gop_length(store: Store, video: Video, fed: list[int]) -> None:
    take_tiles(store)
    video.tiles.retile("uniform:2x2", gop=5)
    segments = store.catalog.segments(video.info)
    assert {one.gop for one in segments} == {5}
    assert store.catalog.physicals(video.info)[-1].role is Role.TILED
    fed.clear()
    region = (8, 8, 40, 40)
    data = video.read(frames=[23], region=region).data
    assert fed == [20, 21, 22, 23]
    assert psnr_of(data, video.read(frames=[23], region=region, psnr=float("inf")).data) > 34


def test_long_gops_make_long_segments(store: Store, video: Video) -> None:
    video.renditions.make(SMALL, gop=60)
    assert max(one.gop_frames for one in store.catalog.renditions(video.info)) == 60


def test_rendition_in_full_size_keeps_the_tiles(store: Store, video: Video) -> None:
    """Also where its GOP is as long as a segment, or longer."""
    tiles = video.tiles.retile("uniform:2x2")
    full = (video.width, video.height)
    for gop in (8, 40, 100):
        video.renditions.make(full, gop=gop)
        assert store.catalog.segments(video.info) == tiles
        assert sum(len(one.frames) for one in store.catalog.renditions(video.info)) == len(video)


def test_lengths_are_compared_within_their_segment() -> None:
    layout = TileLayout.untiled(64, 64)
    assert PlannedSegment(range(10, 40), layout, gop=31) == PlannedSegment(
        range(10, 40), layout, gop=30
    )
    assert PlannedSegment(range(10, 40), layout, gop=29).gop == 29


@pytest.mark.parametrize("gop", [0, -1, 301, 2.5, "short", True])
def test_wrong_lengths(video: Video, gop: GopLength) -> None:
    with pytest.raises(UsageError, match="gop must be"):
        make(video, gop)


def test_stitchable_tiles_have_one_key_picture(video: Video, kvazaar: None) -> None:
    with pytest.raises(UsageError, match="one key picture"):
        video.tiles.retile("untiled", settings=TileSettings("stitchable"), gop=4)


def test_auto_follows_the_reads(store: Store, video: Video) -> None:
    def made() -> set[int | None]:
        video.renditions.make(SMALL, gop="auto")
        return {one.gop for one in store.catalog.renditions(video.info)}

    assert made() == {None}  # no reads
    for _ in range(3):
        for frame in np.random.default_rng(1).permutation(len(video)).tolist():
            video.read(frames=[frame], size=SMALL)
    (gop,) = made()
    assert gop is not None
    assert gop <= 8


def test_tuner_chooses_a_gop_length(store: Store, video: Video) -> None:
    numbers = np.random.default_rng(2).permutation(len(video)).tolist()
    reads = [random_read(video, frame, SMALL) for frame in numbers]
    remember(store, video, *reads, times=10)
    (decision, *_) = store.tune()
    assert decision.gop is not None
    assert decision.picture == SMALL
    segments = store.catalog.renditions(video.info)
    assert {one.gop_frames for one in segments} <= {1, 4, 8}
    assert not store.tune()  # the same reads justify nothing more
    exact = video.read(frames=numbers[:5], size=SMALL, psnr=float("inf")).data
    found = video.read(frames=numbers[:5], size=SMALL)
    assert psnr_of(found.data, exact) > found.psnr - FRAME_TOLERANCE


def test_tuner_makes_random_frames_in_full_size_cheaper(store: Store, video: Video) -> None:
    full = (video.width, video.height)
    reads = [random_read(video, frame, full) for frame in range(29, 120, 30)]
    remember(store, video, *reads, times=100)
    store.tune()
    renditions = store.catalog.renditions(video.info)
    assert {one.picture for one in renditions} == {full}
    assert all(one.gop_frames <= 8 for one in renditions)
    assert not store.catalog.segments(video.info)


def test_renditions_for_random_reads_have_the_gops_of_the_original(
    store: Store, tmp_path: Path
) -> None:
    scene = Scene(320, 240, frames=240, rate=Fraction(30), density=0.03, noise=0.0, seed=3)
    write(scene, Encoding(gop=120), tmp_path / "long.mp4")
    video = store.ingest(tmp_path / "long.mp4")
    numbers = np.random.default_rng(2).permutation(len(video)).tolist()
    remember(store, video, *[random_read(video, one, SMALL) for one in numbers], times=10)
    store.tune()
    renditions = store.catalog.renditions(video.info)
    assert sorted(one.first_frame for one in renditions) == [0, 120]
    assert {one.gop_frames for one in renditions} <= {1, 4, 8, 30}
    exact = video.read(frames=numbers[:5], size=SMALL, psnr=float("inf")).data
    found = video.read(frames=numbers[:5], size=SMALL)
    assert psnr_of(found.data, exact) > found.psnr - FRAME_TOLERANCE


def test_sequential_reads_in_full_size_need_no_rendition(store: Store, video: Video) -> None:
    remember(store, video, region_read(video, range(120), video.original.media.frame_rect))
    assert not store.tuner().proposals()


def test_log_has_the_runs_of_a_read(store: Store, video: Video) -> None:
    video.read(frames=[3, 5, 7, 9, 50, 51, 52, 100], size=SMALL)
    video.read(frames=slice(4, 40, 3), size=SMALL)
    store.tools.read_log.flush()
    newest, before = store.catalog.reads(video.info)
    assert newest.runs is None
    assert frame_runs(newest) == [range(4, 38, 3)]
    assert before.runs == ((3, 10, 2), (50, 53, 1), (100, 101, 1))
    assert [at for run in frame_runs(before) for at in run] == [3, 5, 7, 9, 50, 51, 52, 100]


def random_read(video: Video, frame: int, size: tuple[int, int]) -> LoggedRead:
    plan = plan_view(context_of(video), View(frames=(frame, frame + 1, 1), size=size))
    context = context_of(video)
    return describe_planned_read(
        "api", plan, context.table, context.costs, ReadTiming(time.time_ns(), 0.01)
    )
