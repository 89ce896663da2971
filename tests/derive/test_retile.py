"""Tiles: reading them, making them, and handling errors."""

from __future__ import annotations

import dataclasses
import math
import threading
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.composed_tiles import DEAR_ORIGINALS, Composed, take_tiles
from tests.support.selection import one_in
from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.cells import cell_encoders
from vfsd.codecs.cells.cell_decoders import CellDecoder, StreamCellDecoder, cell_decoder
from vfsd.codecs.cells.cell_encoders import TILE_CODECS, tile_codec
from vfsd.codecs.cells.pack import PackedCell
from vfsd.codecs.stitching import kvazaar as kvazaar_program
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE, TileStream
from vfsd.codecs.stitching.kvazaar import encode_tiled
from vfsd.core.model import Role, Segment
from vfsd.core.pixel_array import Pixels
from vfsd.core.view_request import View
from vfsd.derive import tile_encoder
from vfsd.derive.derived_data import (
    drop_retired_tiles,
    drop_tiles,
    layout_history,
    rollback_layouts,
)
from vfsd.derive.retile import missing_segments, sample_segment
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.errors import ExtraMissingError, IntegrityError, NotFoundError, UsageError
from vfsd.read import pack_pool, readahead
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import AvailableTiles, plan_frames
from vfsd.tiling import Rect, TileLayout

CLIPS = ("traffic.mp4", "portrait.mp4", "odd-size.webm", "variable-rate.mp4", "open-gop.mov")
FORMATS = ("rgb24", "bgr24", "gray", "rgb48", "yuv444p", "yuv420p")


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4")


def some_layout(rng: np.random.Generator, width: int, height: int, align: int = 16) -> TileLayout:
    def cuts(length: int) -> list[int]:
        places: list[int] = []
        for at in range(64, length - 63, align):
            if at - (places[-1] if places else 0) >= 64 and rng.random() < 0.3:
                places.append(at)
        return places

    return TileLayout.cut_at(width, height, cuts(width), cuts(height))


def some_tiles(rng: np.random.Generator, count: int) -> tuple[int, ...]:
    chosen = np.flatnonzero(rng.random(count) < 0.6)
    return tuple(chosen.tolist()) or (int(rng.integers(count)),)


def tile_anyhow(video: Video, rng: np.random.Generator, codec: str = "fast") -> list[Segment]:
    """Make a different layout for every second: some with a part of the tiles, some without
    tiles."""
    media = video.original.media
    align = TILE_CODECS[codec].rules.align
    planned = [
        PlannedSegment(frames, some_layout(rng, media.width, media.height, align))
        for number, frames in enumerate(video.tiles.sequences(None, 0.4))
        if number != 1
    ]
    if TILE_CODECS[codec].takes_parts:
        planned = [
            dataclasses.replace(plan, tiles=some_tiles(rng, plan.layout.count))
            if rng.random() < 0.5
            else plan
            for plan in planned
        ]
    settings = TileSettings(codec, quality=45 if codec == "small" else 28)
    return video.tiles.retile(planned, settings=settings)


def from_tiles(
    store: Store, video: Video, frames: list[int], view: View, form: str
) -> tuple[Pixels, set[int]]:
    """A read that uses tiles wherever possible, and the frames that were read from tiles."""
    tiles = AvailableTiles(store.catalog.segments(video.info), DEAR_ORIGINALS, 0.0)
    plan = plan_frames(
        np.array(frames),
        view,
        video.original,
        context_of(video).table,
        pixel_format=form,
        tiles=tiles,
    )
    reader = PlanExecutor(context_of(video).table, store.tools)
    tiled = {frame for run in plan.tiled for frame in run.frames}
    return reader.execute(plan, pixel_format=form), tiled


def some_view(rng: np.random.Generator, video: Video, form: str) -> View:
    x1, y1 = int(rng.integers(0, video.width - 2)), int(rng.integers(0, video.height - 2))
    x2 = int(rng.integers(x1 + 2, video.width + 1))
    y2 = int(rng.integers(y1 + 2, video.height + 1))
    if form == "yuv420p":
        x2, y2 = x2 - (x2 - x1) % 2, y2 - (y2 - y1) % 2
    size = (64, 48) if rng.random() < 0.3 else None
    return View(region=Rect(x1, y1, x2, y2), size=size)


@pytest.mark.parametrize(
    ("clip", "codec"),
    one_in(
        9,
        [
            (CLIPS[0], "small"),
            *((clip, codec) for clip in CLIPS for codec in ("fast", STITCHABLE)),
            ("mjpeg.avi", STITCHABLE),  # full range
        ],
    ),
)
def test_reads_equal_composed_tiles(
    store: Store, clip: str, codec: str, request: pytest.FixtureRequest
) -> None:
    if codec == STITCHABLE:
        request.getfixturevalue("kvazaar")
    rng = np.random.default_rng(len(clip))
    video = store.ingest(FOLDER / clip)
    segments = tile_anyhow(video, rng, codec)
    assert len(segments) >= 2
    composed = Composed(store, video)
    tiled = sorted(composed.pictures)
    used = 0
    for turn in range(48):
        form = FORMATS[turn % len(FORMATS)]
        view = some_view(rng, video, form)
        frames = rng.choice(tiled, int(rng.integers(1, 12))).tolist()
        data, from_them = from_tiles(store, video, frames, view, form)
        for place, frame in enumerate(frames):
            # The original may already be decoded near frames without tiles.
            show = composed.convert if frame in from_them else composed.original
            assert np.array_equal(data[place], show(frame, view, form)), (form, view, frame)
        used += len(from_them)
    assert used > 24


@pytest.mark.parametrize("clip", one_in(3, CLIPS))
def test_reads_are_close_to_the_original(store: Store, clip: str) -> None:
    """Frames with and without tiles, single and in runs, iterated and read at once."""
    rng = np.random.default_rng(1)
    video = store.ingest(FOLDER / clip)
    tile_anyhow(video, rng)
    worst = min(segment.psnr for segment in store.catalog.segments(video.info))
    assert worst > 30
    for turn in range(16):
        form = FORMATS[turn % 3]
        view = some_view(rng, video, form)
        frames = np.sort(rng.integers(0, len(video), 20)).tolist()
        data, _ = from_tiles(store, video, frames, view, form)
        exact = video.frames(frames, region=view.region, size=view.size, format=form, psnr=math.inf)
        assert exact.psnr == math.inf
        error = np.square(data.astype(float) - exact.data).mean()
        # RGB of sharp colors may be worse than luma.
        assert 10 * math.log10(255**2 / max(error, 1e-9)) > worst - 12, view


def test_reads_use_tiles_when_cheaper(store: Store, video: Video) -> None:
    segments = video.tiles.retile("uniform:3x4")
    assert [segment.frames for segment in segments] == video.tiles.sequences()
    region = Rect(20, 20, 60, 60)
    near = video.read(region=region)
    assert 28 <= near.psnr < 100
    assert 34 <= video.read(region=region, format="yuv420p").psnr < 100
    exact = video.read(region=region, psnr=math.inf)
    assert np.array_equal(exact.pts, near.pts)
    assert np.abs(exact.data.astype(int) - near.data).mean() < 2
    pieces = [frame.data for frame in video.iterate(region=region)]
    assert np.array_equal(np.stack(pieces), near.data)
    assert video.read(region=region, psnr=99).psnr == math.inf  # no tile has this quality
    plan = plan_view(context_of(video), View(region=region))
    assert [run.tiles for run in plan.tiled] == [(0,)] * len(segments)


@pytest.mark.parametrize("form", one_in(2, ["rgb24", "yuv420p"]))
def test_sequential_frames_are_decoded_once(
    store: Store, video: Video, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for any number of partial reads and any limit of idle decoders."""
    segments = video.tiles.retile("uniform:3x3")
    take_tiles(store)
    exact = video.read(format=form).data
    monkeypatch.setattr(readahead, "_AHEAD_BYTES", 4 * exact[0].nbytes)
    monkeypatch.setattr(pack_pool, "_MAX_IDLE_PIXELS", 0)
    store.tools.packs.empty()
    decoded = []
    decode = StreamCellDecoder.decode

    def counted(self: StreamCellDecoder, payload: memoryview) -> list[tuple[int, av.VideoFrame]]:
        decoded.append(self.fed)
        return decode(self, payload)

    monkeypatch.setattr(StreamCellDecoder, "decode", counted)
    shown = [frame.data for frame in video.iterate(format=form)]
    assert np.array_equal(np.stack(shown), exact)
    assert len(decoded) == 9 * sum(len(segment.frames) for segment in segments)


def test_tiles_are_a_stored_encoding_with_a_parent(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:2x2")
    original, tiled = store.catalog.physicals(video.info)
    assert tiled.role is Role.TILED
    assert [one.id for one in store.catalog.provenance(tiled)] == [tiled.id, original.id]
    assert tiled.parameters == {"profile": "fast", "psnr": 40.0}
    assert tiled.frames == len(video)
    segments = store.catalog.segments(video.info)
    assert tiled.size == sum(segment.size for segment in segments)
    for segment in segments:
        data = store.parts.objects.path(segment.object_key).read_bytes()
        assert len(data) == segment.size
        last = segment.cells[-1]
        assert last.position + last.size == segment.size
        assert all(cell.psnr >= 40 for cell in segment.cells)


def test_second_retile_keeps_tiles(store: Store, video: Video) -> None:
    first = video.tiles.retile("uniform:2x2", span=(0, 2))
    assert first
    again = video.tiles.retile("uniform:2x2")
    assert {segment.frames for segment in again}.isdisjoint(segment.frames for segment in first)
    assert video.tiles.retile("uniform:2x2") == []
    assert len(video.tiles.retile("uniform:2x2", settings=TileSettings(psnr=44))) == len(
        video.tiles.sequences()
    )
    assert store.parts.catalog.damage() == []


def test_new_layout_replaces_the_first(store: Store, video: Video) -> None:
    first = video.tiles.retile("uniform:2x2")
    reading = video.iterate(region=Rect(0, 0, 50, 50))
    next(reading)
    video.tiles.retile("uniform:3x3")
    active = store.catalog.segments(video.info)
    assert {str(segment.layout) for segment in active} == {"112+96+112x80+80+80"}
    with store.catalog.reading() as seen:
        retired = seen.segments.retired(video.original.id)
    assert {segment.id for segment in retired} == {segment.id for segment in first}
    video.tiles.retile("uniform:1x2")
    keys = set(store.parts.objects.all_keys())
    assert keys.isdisjoint(segment.object_key for segment in first)  # two steps back
    assert len(list(reading)) == len(video) - 1


def test_damaged_and_missing_tiles_are_read_from_the_original(
    store: Store, video: Video, caplog: pytest.LogCaptureFixture
) -> None:
    segments = video.tiles.retile("uniform:3x4")
    region = Rect(20, 20, 60, 60)
    exact = video.read(region=region, psnr=math.inf)
    path = store.parts.objects.path(segments[0].object_key)
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    cell = segments[0].cells[0]
    content[cell.position : cell.position + cell.size] = bytes(cell.size)
    path.write_bytes(content)
    store.parts.objects.path(segments[1].object_key).unlink()
    read = video.read(region=region)
    assert read.psnr == math.inf
    assert np.array_equal(read.data, exact.data)
    shown = np.stack([frame.data for frame in video.iterate(region=region)])
    assert np.array_equal(shown, exact.data)
    assert "not from tiles" in caplog.text
    assert segments[0] not in store.catalog.segments(video.info)  # the damage was detected


def test_damage_in_mid_run_switches_to_the_original_in_order(store: Store, video: Video) -> None:
    """Despite prefetching, frames before the damage still come from tiles."""
    segments = video.tiles.retile("uniform:2x2")
    take_tiles(store)
    near = [frame.data for frame in video.iterate()]
    exact = video.read(psnr=math.inf).data
    bad = segments[2]
    path = store.parts.objects.path(bad.object_key)
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    cell = bad.cells[1]
    end = cell.position + cell.size
    content[end - cell.size // 4 : end] = bytes(cell.size // 4)
    path.write_bytes(content)
    store.tools.packs.empty()
    shown = list(video.iterate())
    assert [frame.index for frame in shown] == list(range(len(video)))
    from_tiles = [np.array_equal(frame.data, near[frame.index]) for frame in shown]
    changes = [n for n in range(1, len(shown)) if from_tiles[n] != from_tiles[n - 1]]
    assert from_tiles[0]
    assert all(from_tiles[: bad.first_frame])
    assert len(changes) == 1
    assert changes[0] < bad.end_frame
    assert np.array_equal(
        np.stack([frame.data for frame in shown[changes[0] :]]), exact[changes[0] :]
    )


def test_stopped_read_leaves_no_thread_or_decoder(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:2x2")
    take_tiles(store)
    store.tools.pool.empty()
    before = set(threading.enumerate())
    whole = [frame.data for frame in video.iterate()]
    for taken in (0, 1, 2, 5, len(video) // 2):
        shown = [frame.data for frame in islice(video.iterate(), taken)]
        assert all(map(np.array_equal, shown, whole))
    store.tools.pool.empty()
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if thread.name.startswith("decode")]
    again = [frame.data for frame in video.iterate()]
    assert np.array_equal(np.stack(again), np.stack(whole))


def test_idle_tile_decoders_are_released(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def recorded(cell: PackedCell) -> CellDecoder:
        made.append(cell)
        return cell_decoder(cell)

    monkeypatch.setattr(pack_pool, "cell_decoder", recorded)
    video.tiles.retile("uniform:2x2")
    take_tiles(store)
    region = (8, 8, 56, 40)  # one tile and one frame: larger reads use several decoders
    before = video.frames([3], region=region).data
    assert made
    for seconds, anew in ((3600, False), (0, True)):
        made.clear()
        store.tools.evict_idle(seconds)
        assert np.array_equal(video.frames([3], region=region).data, before)
        assert bool(made) is anew


def test_new_bytes_drop_old_tiles(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:2x2")
    other = store.ingest(FOLDER / "portrait.mp4", video.name, replace=True)
    assert store.catalog.segments(other.info) == []
    with pytest.raises(NotFoundError, match="was removed"):
        video.tiles.retile("uniform:3x3")  # the earlier handle


def test_tiles_are_removed_with_their_video(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:2x2")
    store.remove(video.name)
    assert list(store.parts.objects.all_keys()) == []


def test_error_keeps_finished_segments_only(store: Store, video: Video) -> None:
    sequences = video.tiles.sequences()

    class StopError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise StopError

    with pytest.raises(StopError):
        video.tiles.retile("uniform:2x2", jobs=1, on_progress=stop)
    there = store.catalog.segments(video.info)
    assert 0 < len(there) < len(sequences)
    assert {segment.object_key for segment in there} | {video.original.object_key} == set(
        store.parts.objects.all_keys()
    )
    rest = video.tiles.retile("uniform:2x2")
    assert sorted([*there, *rest], key=lambda one: one.first_frame) == store.catalog.segments(
        video.info
    )


def test_layouts_unsupported_by_the_codec_are_refused(store: Store, video: Video) -> None:
    with pytest.raises(UsageError, match="16"):
        video.tiles.retile(TileLayout.cut_at(320, 240, [70], []))
    with pytest.raises(UsageError, match="320x240"):
        video.tiles.retile(TileLayout.cut_at(640, 480, [320], []))
    with pytest.raises(UsageError, match="tile codec must be"):
        video.tiles.retile("uniform:2x2", settings=TileSettings("best"))
    for nonsense in ([1], 5, None, ["uniform:2x2"]):
        with pytest.raises(UsageError, match="layout must be"):
            video.tiles.retile(nonsense)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="60 dB at most"):
        video.tiles.retile("uniform:2x2", settings=TileSettings(psnr=math.inf))
    assert store.catalog.segments(video.info) == []


@pytest.mark.parametrize(
    ("psnr", "quality"), [(math.nan, None), (-1, None), ("fine", None), (40, 2.5), (40, "fine")]
)
def test_quality_must_be_a_number(psnr: Any, quality: Any) -> None:
    with pytest.raises(UsageError):
        TileSettings("fast", psnr, quality)


def _still(store: Store, seconds: int) -> Video:
    """Frames that any rate factor encodes well enough."""
    black = np.zeros((2 * seconds, 64, 128, 3), np.uint8)
    return store.write("still.mp4", black, fps=2, codec="h264")


@pytest.mark.parametrize("codec", one_in(2, ["small", STITCHABLE]))
def test_still_frames_reach_the_coarsest_quality(store: Store, codec: str) -> None:
    if codec == STITCHABLE and not kvazaar_program.kvazaar_available():
        pytest.skip("kvazaar is not there: pip install 'vfsd[stitch]'")
    video = _still(store, 18)
    layout = TileLayout.cut_at(128, 64, [64], [])
    planned = [PlannedSegment(range(at, at + 2), layout) for at in range(0, len(video), 2)]
    segments = video.tiles.retile(planned, settings=TileSettings(codec), jobs=1)
    assert len(segments) == 18
    assert all(cell.psnr >= 40 for segment in segments for cell in segment.cells)
    assert segments[-1].cells[0].quality > segments[0].cells[0].quality


@pytest.mark.parametrize("codec", one_in(2, ["fast", "small"]))
def test_only_the_first_tiles_exceed_the_target_psnr(video: Video, codec: str) -> None:
    segments = video.tiles.retile("uniform:2x2", settings=TileSettings(codec), jobs=1)
    first, *others = ([cell.psnr - 40 for cell in segment.cells] for segment in segments)
    assert max(first) > 6  # otherwise the later ones cannot adapt
    assert all(0 <= spare < 5 for segment in others for spare in segment)


def test_stitchable_tiles_reach_the_target_psnr(store: Store, video: Video, kvazaar: None) -> None:
    segments = video.tiles.retile("uniform:2x2", settings=TileSettings(STITCHABLE))
    assert {segment.profile for segment in segments} == {STITCHABLE}
    assert {str(segment.layout) for segment in segments} == {"192+128x128+112"}
    cells = [cell for segment in segments for cell in segment.cells]
    assert all(cell.psnr >= 40 for cell in cells)
    assert len({cell.quality for cell in cells}) > 1
    region = Rect(20, 20, 60, 60)
    near, exact = video.read(region=region), video.read(region=region, psnr=math.inf)
    assert 22 <= near.psnr < 100
    assert np.abs(exact.data.astype(int) - near.data).mean() < 2


def test_wrongly_encoded_tile_is_not_published(
    store: Store, video: Video, kvazaar: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = encode_tiled

    def short(*arguments: Any) -> list[TileStream]:
        return [
            dataclasses.replace(stream, pictures=stream.pictures[:-1])
            for stream in made(*arguments)
        ]

    monkeypatch.setattr(cell_encoders, "encode_tiled", short)
    # Tiles of other tests are not to be remembered here.
    monkeypatch.setattr(tile_encoder, "encode_cells", cell_encoders.encode_cells)
    with pytest.raises(IntegrityError, match="30 pictures gave 29 packets"):
        video.tiles.retile("uniform:2x2", settings=TileSettings(STITCHABLE))
    assert store.catalog.segments(video.info) == []


@pytest.mark.measured
def test_decoding_cost_is_measured_while_tiling(store: Store, video: Video) -> None:
    assert store.catalog.cost_factor(video.info) is None
    video.tiles.retile("uniform:2x2")
    factor = store.catalog.cost_factor(video.info)
    assert factor is not None
    assert 0.25 <= factor <= 4
    assert context_of(video).costs.factors[video.original.id] == factor


def test_tiles_are_readable_without_the_encoder(
    store: Store, video: Video, kvazaar: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    video.tiles.retile("uniform:2x2", settings=TileSettings(STITCHABLE))

    def missing() -> str:
        raise ExtraMissingError("kvazaar is not there")

    monkeypatch.setattr(kvazaar_program, "_program", missing)
    assert video.read(region=Rect(20, 20, 60, 60)).psnr < 100
    assert tile_codec(STITCHABLE, video.original.media).rules.align == 64  # for planning
    with pytest.raises(ExtraMissingError):
        video.tiles.retile("uniform:2x1", settings=TileSettings(STITCHABLE))


def test_inner_edges_are_multiples_of_64(video: Video, kvazaar: None) -> None:
    layout = TileLayout.cut_at(320, 240, [96], [])
    with pytest.raises(UsageError, match="multiples of 64"):
        video.tiles.retile(layout, settings=TileSettings(STITCHABLE))


def test_formats_unsupported_by_tile_codecs_are_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "rgb.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 128, 128, "bgr0"
        for value in range(5):
            picture = av.VideoFrame.from_ndarray(np.full((128, 128, 3), value, np.uint8))
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    video = store.ingest(path)
    with pytest.raises(UsageError, match="does not support pixel format"):
        video.tiles.retile("uniform:2x2")
    assert store.catalog.segments(video.info) == []


def test_concurrent_reads_during_retile(store: Store, video: Video) -> None:
    region, frames = Rect(100, 100, 140, 140), slice(0, 30)
    exact = video.read(region=region, frames=frames, psnr=math.inf).data.astype(int)
    stop = threading.Event()
    wrong: list[float] = []

    def read() -> None:
        while not stop.wait(0.01):
            found = video.read(region=region, frames=frames)
            wrong.append(float(np.abs(found.data - exact).mean()))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for thread in readers:
        thread.start()
    try:
        for layout in ("uniform:2x2", "uniform:1x4"):
            video.tiles.retile(layout, span=(0, 1))
    finally:
        stop.set()
        for thread in readers:
            thread.join()
    assert len(wrong) > 3
    assert max(wrong) < 3


def layouts(store: Store, video: Video) -> set[str]:
    return {str(segment.layout) for segment in store.catalog.segments(video.info)}


def test_rollback_and_redo(store: Store, video: Video) -> None:
    two, three = "160+160x128+112", "112+96+112x80+80+80"
    video.tiles.retile("uniform:2x2")
    video.tiles.retile("uniform:3x3", span=(0, 1))
    assert layouts(store, video) == {two, three}
    first = video.tiles.sequences()[0]
    assert rollback_layouts(store.parts, video.info, first) == (1, 1)
    assert layouts(store, video) == {two}
    assert rollback_layouts(store.parts, video.info, first) == (1, 1)
    assert layouts(store, video) == {two, three}
    assert len(layout_history(store.parts, video.info)) == len(video.tiles.sequences()) + 1


def test_dropped_tiles_leave_no_bytes(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:2x2")
    video.tiles.retile("uniform:3x3")
    assert len(drop_retired_tiles(store.parts, video.info)) == len(video.tiles.sequences())
    everything = range(len(video))
    assert len(drop_tiles(store.parts, video.info, everything)) == len(video.tiles.sequences())
    assert list(store.parts.objects.all_keys()) == [video.original.object_key]
    assert [one.role for one in store.catalog.physicals(video.info)] == [Role.ORIGINAL]
    assert video.read(region=Rect(0, 0, 9, 9)).psnr == math.inf
    with pytest.raises(NotFoundError, match="no tiles"):
        rollback_layouts(store.parts, video.info, everything)


def test_sample_equals_the_result_and_leaves_nothing(store: Store, video: Video) -> None:
    layout = TileLayout.cut_at(320, 240, [160], [])
    planned = [PlannedSegment(frames, layout) for frames in video.tiles.sequences()]
    settings = TileSettings(psnr=42)
    before = sorted(store.parts.objects.all_keys())
    video.verify()
    found = sample_segment(
        store.parts, store.tools.pool, video.info, context_of(video).table, planned[1], settings
    )
    assert sorted(store.parts.objects.all_keys()) == before
    assert missing_segments(store.parts, video.info, planned, settings) == planned
    made = video.tiles.retile(planned, settings=settings)[1]
    assert missing_segments(store.parts, video.info, planned, settings) == []
    assert found.psnr >= 42
    assert found.bytes == pytest.approx(made.size, rel=0.5)
    assert [cell.rect for cell in found.cells] == list(layout.tiles)
    assert len(found.qualities) == 2
    assert found.seconds > 0


def test_progress_is_reported_in_the_calling_thread(store: Store, video: Video) -> None:
    told: list[tuple[int, int, threading.Thread]] = []
    video.tiles.retile(
        "uniform:2x2",
        jobs=2,
        on_progress=lambda done, total: told.append((done, total, threading.current_thread())),
    )
    assert {thread for _, _, thread in told} == {threading.current_thread()}
    assert told[-1][:2] == (len(video), len(video))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


def test_shorter_segments_replace_longer_ones(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:2x2")
    finer = TileLayout.cut_at(320, 240, [96], [96])
    halves = video.tiles.sequences(None, 0.5)
    video.tiles.retile([PlannedSegment(frames, finer) for frames in halves[:1]])
    assert layouts(store, video) == {"160+160x128+112", str(finer)}  # the rest is still needed
    video.tiles.retile([PlannedSegment(frames, finer) for frames in halves])
    assert layouts(store, video) == {str(finer)}


@pytest.mark.parametrize("checked", one_in(2, [False, True]))
def test_removal_during_tiling_is_reported(store: Store, video: Video, checked: bool) -> None:
    """The video is removed while its frames are checked, which comes first, or while it is
    encoded."""

    def remove(*_: int) -> None:
        with suppress(NotFoundError):  # an earlier progress callback has removed it
            store.remove(video.name)

    assert len(video.keyframes) == 4
    if checked:
        video.verify()
    tiled = partial(video.tiles.retile, "uniform:2x2") if checked else video.verify
    with pytest.raises(NotFoundError, match=r"was removed|been removed or replaced"):
        tiled(on_progress=remove)
