"""Renditions: whole frames in another size, used by reads where the result is the same."""

from __future__ import annotations

import math
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.composed_tiles import take_tiles
from tests.support.selection import one_in
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.catalog import Transaction
from vfsd.codecs.cells.cell_decoders import StreamCellDecoder
from vfsd.codecs.cells.pack import open_pack
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.core.model import Role, Segment
from vfsd.core.pixel_array import Pixels
from vfsd.derive.derived_data import drop_renditions, rollback_layouts
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import NotFoundError, UsageError
from vfsd.tiling import Rect

CLIPS = ("traffic.mp4", "portrait.mp4", "variable-rate.mp4", "open-gop.mov", "av1.mp4")


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / "traffic.mp4")  # 320x240


def psnr_of(data: Pixels, exact: Pixels) -> float:
    peak = np.iinfo(exact.dtype).max
    error = np.square(data.astype(float) - exact.astype(float)).mean()
    return 10 * math.log10(peak**2 / max(error, 1e-9))


def worst_psnr(data: Pixels, exact: Pixels) -> float:
    """PSNR of the worst channel of the worst frame."""
    return min(
        psnr_of(one[..., channel], other[..., channel])
        for one, other in zip(data, exact, strict=True)
        for channel in range(data.shape[-1])
    )


def is_from_rendition(video: Video, size: tuple[int, int], region: Rect | None = None) -> bool:
    sources = video.explain(size=size, region=region).sources
    found = {source.segment is not None for source in sources}
    assert len(found) == 1
    return found.pop()


def by_hand(store: Store, segments: list[Segment], video: Video, form: str) -> Pixels:
    """A rendition decoded packet by packet and converted frame by frame."""
    shown = []
    media = store.catalog.physicals(video.info)[-1].media
    converter = PixelConverter(media, pixel_format=form)
    for segment in segments:
        reader, table = open_pack(store.parts.objects, segment.object_key)
        (packed,) = table.cells
        with closing(reader):
            decoder = StreamCellDecoder(packed)
            for start, end in zip(packed.offsets, packed.offsets[1:], strict=False):
                pictures = decoder.decode(memoryview(reader.read(start, end - start)))
                shown += [converter.convert(picture).copy() for _, picture in pictures]
            shown += [converter.convert(picture).copy() for _, picture in decoder.drain()]
    return np.stack(shown)


@pytest.mark.parametrize("clip", one_in(3, CLIPS))
def test_read_in_the_size_of_a_rendition(store: Store, clip: str) -> None:
    video = store.ingest(FOLDER / clip)
    size = (video.width // 4 * 2, video.height // 4 * 2)
    segments = video.renditions.make(size)
    assert store.catalog.renditions(video.info) == segments
    assert store.catalog.segments(video.info) == []
    take_tiles(store)
    for form in ("rgb24", "gray"):
        found = video.read(size=size, format=form)
        if size == (video.width / 2, video.height / 2):
            assert is_from_rendition(video, size)
            assert np.array_equal(found.data, by_hand(store, segments, video, form))
        exact = video.read(size=size, format=form, psnr=math.inf)
        assert np.array_equal(found.pts, exact.pts)
        assert 28 < found.psnr <= worst_psnr(found.data, exact.data) + 0.01
        assert exact.psnr == math.inf


def test_matching_rendition_is_the_only_source(store: Store, video: Video) -> None:
    video.renditions.make((160, 120))
    take_tiles(store)
    assert is_from_rendition(video, (160, 120))
    assert is_from_rendition(video, (80, 60))
    assert is_from_rendition(video, (40, 30))
    assert is_from_rendition(video, (50, 40), Rect(20, 40, 120, 120))
    assert not is_from_rendition(video, (50, 40), Rect(21, 40, 121, 120)), "between pixels"
    assert not is_from_rendition(video, (320, 240)), "enlarged"
    assert not is_from_rendition(video, (150, 110)), "no whole number"
    assert not is_from_rendition(video, (162, 122))
    for size, region in (((80, 60), None), ((50, 40), Rect(20, 40, 120, 120))):
        found = video.read(size=size, region=region)
        exact = video.read(size=size, region=region, psnr=math.inf)
        assert psnr_of(found.data, exact.data) > 32
        shown = [frame.data for frame in video.iterate(size=size, region=region)]
        assert np.array_equal(np.stack(shown), found.data)


@pytest.mark.thorough
def test_arbitrary_sizes(store: Store, video: Video) -> None:
    video.renditions.make((240, 180), settings=TileSettings(psnr=50))
    take_tiles(store)
    for size in ((240, 180), (120, 90), (80, 60)):
        assert is_from_rendition(video, size)
        found = video.read(size=size, format="gray")
        exact = video.read(size=size, format="gray", psnr=math.inf)
        assert psnr_of(found.data, exact.data) > 45
    assert not is_from_rendition(video, (160, 120))


@pytest.mark.thorough
def test_tiles_and_renditions_coexist(store: Store, video: Video) -> None:
    tiled = video.tiles.retile("uniform:2x2")
    small = video.renditions.make((160, 120))
    smaller = video.renditions.make((80, 60), span=(0, 2))
    assert store.catalog.segments(video.info) == tiled
    assert sorted(store.catalog.renditions(video.info), key=lambda one: one.id) == sorted(
        small + smaller, key=lambda one: one.id
    )
    assert {one.role for one in store.catalog.physicals(video.info)} == {
        Role.ORIGINAL,
        Role.TILED,
        Role.RENDITION,
    }
    rollback_layouts(store.parts, video.info, range(len(video)))
    assert store.catalog.segments(video.info) == []
    assert len(store.catalog.renditions(video.info)) == len(small + smaller)
    again = video.renditions.make((160, 120), settings=TileSettings(psnr=45))
    assert {one.id for one in store.catalog.renditions(video.info)} == {
        one.id for one in again + smaller
    }
    assert len(drop_renditions(store.parts, video.info, (80, 60))) == len(smaller)
    assert len(drop_renditions(store.parts, video.info)) == len(small + again)  # one step back
    with pytest.raises(NotFoundError):
        drop_renditions(store.parts, video.info)
    assert [one.role for one in store.catalog.physicals(video.info)].count(Role.RENDITION) == 0


def test_scans_and_layouts_ignore_renditions(store: Store, video: Video) -> None:
    video.renditions.make((160, 120))
    take_tiles(store)
    region = Rect(16, 16, 80, 80)
    exact = video.read(region=region, psnr=math.inf).data
    assert np.array_equal(video.read(region=region).data, exact)
    for area in video.scan(roi=region).areas():
        assert np.array_equal(area.data, exact[area.frame])


def test_impossible_sizes_are_refused(video: Video) -> None:
    for size, word in (
        ((161, 120), "even"),
        ((0, 0), "at least 1 pixel"),
        ((640, 480), "at most 320x240"),
        ((320, 240), "size must differ"),
    ):
        with pytest.raises(UsageError, match=word):
            video.renditions.make(size)
    with pytest.raises(UsageError, match=r"(size|width)"):
        video.renditions.make((16,))  # type: ignore[arg-type]


@pytest.mark.parametrize("jobs", one_in(3, [-1, 0, 1.5]))
def test_jobs_must_be_at_least_one(store: Store, video: Video, jobs: Any) -> None:
    with pytest.raises(UsageError, match="jobs"):
        video.renditions.make((160, 120), jobs=jobs)
    assert store.catalog.renditions(video.info) == []


def test_reads_fall_back_from_damaged_renditions(store: Store, video: Video) -> None:
    segments = video.renditions.make((160, 120))
    take_tiles(store)
    exact = video.read(size=(160, 120), psnr=math.inf).data
    store.parts.objects.path(segments[0].object_key).unlink()
    store.tools.packs.empty()
    assert np.array_equal(video.read(size=(160, 120)).data, exact)


def test_existing_segments_are_not_made_again(store: Store, video: Video) -> None:
    first = video.renditions.make((160, 120), span=(0, 2))
    rest = video.renditions.make((160, 120))
    assert len(first) + len(rest) == len(video.tiles.sequences())
    assert video.renditions.make((160, 120)) == []


def test_rendition_is_deleted_with_its_video(store: Store, video: Video) -> None:
    (key, *_) = [segment.object_key for segment in video.renditions.make((160, 120))]
    store.remove(video.name)
    assert not store.parts.objects.path(key).exists()

    def objects(seen: Transaction) -> int:
        return len(seen.objects.sizes())

    with store.catalog.reading() as seen:
        assert objects(seen) == 0


def test_gray_from_a_color_rendition_is_not_exact(store: Store, tmp_path: Path) -> None:
    """Gray may be computed before or after scaling; colors are equal, but gray is not."""
    path = tmp_path / "rgb.mkv"
    with av.open(str(FOLDER / "traffic.mp4")) as container:
        pictures = [picture.to_rgb() for picture in islice(container.decode(video=0), 10)]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264rgb", 25, {"qp": "0"})
        stream.width, stream.height, stream.pix_fmt = 320, 240, "rgb24"
        for picture in pictures:
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    video = store.ingest(path)
    video.budget.set("1G")
    video.renditions.make((160, 120), settings=TileSettings("lossless"))
    take_tiles(store)
    for form, is_told in (("rgb24", True), ("gray", False)):
        exact = video.read(size=(160, 120), format=form, psnr=math.inf)
        found = video.read(size=(160, 120), format=form)
        assert np.array_equal(found.data, exact.data) == is_told
        assert found.psnr == (100 if is_told else 0)
