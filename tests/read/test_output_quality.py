"""Reads reach the requested PSNR in every format, and report a PSNR that they reach."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.composed_tiles import take_tiles
from tests.support.selection import examples, one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.frames.planes import PIXEL_FORMATS, pixel_layout
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE
from vfsd.codecs.stitching.kvazaar import kvazaar_available
from vfsd.core.model import Cell
from vfsd.core.pixel_array import Pixels
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import UsageError
from vfsd.read.read_plan import ReadOutput
from vfsd.tiling import Rect

WIDTH, HEIGHT, FRAMES = 256, 192, 24
HALF, THREE_QUARTERS = (128, 96), (192, 144)
SIZES = (None, HALF, THREE_QUARTERS, (64, 48), (96, 72))
STORED = ("yuv420p", "yuv422p", "yuv444p", "yuv420p10le")
ROUNDING = 0.01  # dB
NAME = "a.mkv"


def saturated(path: Path, pixel_format: str) -> Path:
    """Moving edges between saturated colors of nearly equal luma, visible only in chroma."""
    colours = np.array([[255, 0, 0], [0, 130, 0], [70, 70, 255], [255, 0, 255], [0, 140, 140]])
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 25, options={"crf": "8", "g": "12"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, pixel_format
        rows, columns = np.mgrid[:HEIGHT, :WIDTH]
        for number in range(FRAMES):
            fields = (columns + 2 * number) // 13 + (rows + number) // 9
            pixels = colours[fields % len(colours)].astype(np.uint8)
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(picture.reformat(format=pixel_format)))
        container.mux(stream.encode(None))
    return path


def worst_psnr(data: Pixels, exact: Pixels, form: str) -> float:
    """PSNR in dB of the worst channel or plane of the worst frame."""
    layout = pixel_layout(form)
    squares = (data.astype(float) - exact) ** 2
    if layout.channels:
        parts = [squares[..., channel] for channel in range(layout.channels)]
    else:
        across, down = layout.subsampled
        luma = round(data.shape[1] / (1 + 2 / (across * down)))
        chroma = squares[:, luma:].reshape(len(squares), -1)
        if layout.interleaved:
            chroma = np.concatenate([chroma[:, ::2], chroma[:, 1::2]], axis=1)
        parts = [squares[:, :luma], *np.split(chroma, 2, axis=1)]
    worst = max(float(part[at].mean()) for part in parts for at in range(len(squares)))
    peak = (1 << layout.bits) - 1
    return math.inf if worst == 0 else 10 * math.log10(peak**2 / worst)


def holds(video: Video, form: str, size: tuple[int, int] | None, frames: slice, psnr: float) -> int:
    """Check the requested and the reported PSNR of a read; return the pixels from tiles."""
    found = video.read(frames=frames, size=size, format=form, psnr=psnr)
    exact = video.read(frames=frames, size=size, format=form, psnr=math.inf)
    has = worst_psnr(found.data, exact.data, form)
    assert has >= psnr - ROUNDING
    assert found.psnr >= psnr - ROUNDING
    if found.psnr < 100:
        assert has >= found.psnr - ROUNDING
    else:
        assert np.array_equal(found.data, exact.data)
    explained = video.explain(frames=frames, size=size, format=form, psnr=psnr)
    return sum(source.segment is not None for source in explained.sources)


@pytest.fixture(scope="module", params=one_in(4, STORED))
def stored(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A store with a video that has tiles and renditions of high and low quality."""
    folder = tmp_path_factory.mktemp("honoured")
    with new_store(folder / "store") as store:
        video = store.ingest(saturated(folder / NAME, request.param))
        video.tiles.retile("uniform:2x2", settings=TileSettings(psnr=44))
        video.renditions.make(HALF, settings=TileSettings("lossless"))
        video.renditions.make(THREE_QUARTERS, settings=TileSettings(psnr=42))
        take_tiles(store)
        yield store


@settings(max_examples=examples(60), deadline=None)
@given(
    form=st.sampled_from(PIXEL_FORMATS),
    size=st.sampled_from(SIZES),
    first=st.integers(0, FRAMES - 1),
    count=st.integers(1, 6),
    psnr=st.integers(12, 70),
)
def test_requested_psnr_is_reached_in_every_format_and_size(
    stored: Store, form: str, size: tuple[int, int] | None, first: int, count: int, psnr: int
) -> None:
    holds(stored[NAME], form, size, slice(first, min(FRAMES, first + count)), float(psnr))


def test_requested_psnr_is_reached_with_derived_data(stored: Store) -> None:
    """Reads that ask for at most the recorded PSNR of cells are served from them."""
    video = stored[NAME]
    segments = stored.catalog.segments(video.info) + stored.catalog.renditions(video.info)
    form = video.original.media.pixel_format.removesuffix("le")
    for picture, size in (((WIDTH, HEIGHT), None), (HALF, HALF), (THREE_QUARTERS, THREE_QUARTERS)):
        cells = [cell for one in segments if one.picture == picture for cell in one.cells]
        assert cells
        for asked, figure in (
            ("rgb24", min(cell.colour for cell in cells)),
            ("gray", min(cell.gray for cell in cells)),
            (form, min(cell.planes for cell in cells)),
        ):
            assert 12 < figure <= 100
            assert holds(video, asked, size, slice(0, FRAMES), figure - 0.1), (asked, size)


def test_lost_chroma_is_reported_and_counts(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(saturated(tmp_path / NAME, "yuv420p"))
        segments = video.renditions.make(HALF, settings=TileSettings("lossless"))
        take_tiles(store)
        (cell, *_) = (cell for segment in segments for cell in segment.cells)
        assert (cell.psnr, cell.gray, cell.planes) == (100, 100, 100)
        assert cell.colour < 30
        assert video.explain(size=HALF, format="yuv420p", psnr=90).plan.tiled
        assert video.explain(size=HALF, format="gray", psnr=90).plan.tiled
        for form in ("rgb24", "bgr24", "rgb48", "yuv444p"):
            assert not video.explain(size=HALF, format=form, psnr=35).plan.tiled, form
        # Without a limit the PSNR of luma counts, as usual, and that of chroma is reported.
        found = video.read(size=HALF)
        assert video.explain(size=HALF).plan.tiled
        assert found.psnr == pytest.approx(min(one.cells[0].colour for one in segments))
        exact = video.read(size=HALF, psnr=math.inf)
        assert worst_psnr(found.data, exact.data, "rgb24") >= found.psnr - ROUNDING
        # The PSNR of a frame that is scaled once more was never measured.
        assert video.read(size=(64, 48)).psnr == 0
        assert not video.explain(size=(64, 48), format="yuv420p", psnr=35).plan.tiled


def test_views_reach_the_requested_psnr(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(saturated(tmp_path / NAME, "yuv420p"))
        video.renditions.make(HALF, settings=TileSettings("lossless"))
        take_tiles(store)
        size = f"size={HALF[0]}x{HALF[1]}"
        exact = video.read(size=HALF, psnr=math.inf).data.tobytes()
        loose, strict, planes = (
            video.views.open(name).read()
            for name in (f"{size}.rgb", f"{size},psnr=35.rgb", f"{size},psnr=90.yuv")
        )
        assert loose != exact
        assert strict == exact
        assert planes == video.read(size=HALF, format="yuv420p", psnr=math.inf).data.tobytes()


def test_crops_reach_the_requested_psnr(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(saturated(tmp_path / NAME, "yuv420p"))
        tiles = video.tiles.retile("uniform:2x2", settings=TileSettings(psnr=40))
        take_tiles(store)
        video.labels.add_box(3, "field", (8, 8, 120, 90), source="test")
        exact = video.read(frames=slice(3, 4), region=(8, 8, 120, 90), psnr=math.inf).data[0]
        told = min(cell.colour for one in tiles for cell in one.cells)
        for psnr, is_exact in ((math.ceil(told) + 5.0, True), (20.0, False)):
            (crop,) = video.scan("field", psnr=psnr).crops()
            assert np.array_equal(crop.data, exact) == is_exact


@pytest.mark.thorough
@pytest.mark.parametrize("codec", ["hevc", "h264"])
def test_earlier_loss_counts_in_every_format(tmp_path: Path, codec: str) -> None:
    """Loss adds up over a replaced original, its tiles and its renditions."""
    ways = [(form, size) for form in PIXEL_FORMATS for size in SIZES]
    with new_store(tmp_path / "store") as store:
        video = store.ingest(saturated(tmp_path / "a.mp4", "yuv420p"))
        first = {way: video.read(format=way[0], size=way[1]).data for way in ways}
        video.policy.set("original=replaceable,psnr=36")
        video.policy.replace_original(codec=codec)
        video = store["a.mp4"]
        video.budget.set("none")
        for _ in range(2):
            for form, size in ways:
                for psnr in (math.inf, None, 20.0):
                    found = video.read(format=form, size=size, psnr=psnr)
                    assert 0 <= found.psnr < 100
                    if found.psnr:
                        has = worst_psnr(found.data, first[form, size], form)
                        assert has >= found.psnr - ROUNDING, (form, size, psnr)
            video.tiles.retile("uniform:2x2", settings=TileSettings("lossless"))
            video.renditions.make(HALF, settings=TileSettings("lossless"))
            video.renditions.make(THREE_QUARTERS, settings=TileSettings(psnr=28))
            take_tiles(store)


SPOT = Rect(32, 32, 64, 64)


def spotted(path: Path) -> Path:
    """Gray with one spot of noise, where tiles have all their loss."""
    rng = np.random.default_rng(5)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", 25, options={"crf": "1", "g": "12"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for _ in range(FRAMES):
            pixels = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
            noise = rng.integers(0, 256, (SPOT.height // 4, SPOT.width // 4, 3), np.uint8)
            pixels[SPOT.y1 : SPOT.y2, SPOT.x1 : SPOT.x2] = noise.repeat(4, 0).repeat(4, 1)
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(picture.reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("form", one_in(3, ["rgb24", "gray", "yuv420p", "yuv444p"]))
@pytest.mark.parametrize(
    "region", one_in(2, [SPOT, Rect(33, 32, 63, 64), Rect(0, 0, 64, 64), Rect(32, 32, 160, 128)])
)
def test_reported_psnr_of_tiles_holds_for_regions(tmp_path: Path, form: str, region: Rect) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(spotted(tmp_path / NAME))
        video.tiles.retile("uniform:2x2", settings=TileSettings(psnr=36))
        take_tiles(store)
        exact = video.read(region=region, format=form, psnr=math.inf)
        found = video.read(region=region, format=form, psnr=5)
        assert video.explain(region=region, format=form, psnr=5).plan.tiled
        has = worst_psnr(found.data, exact.data, form)
        assert has >= found.psnr - ROUNDING
        whole = video.read(format=form, psnr=5).psnr
        asked = video.read(region=region, format=form, psnr=whole)
        assert worst_psnr(asked.data, exact.data, form) >= whole - ROUNDING


def test_resampled_chroma_has_no_higher_psnr(tmp_path: Path) -> None:
    """In a rotated frame of odd size, an even region may begin between chroma samples."""
    with new_store(tmp_path / "store") as store:
        media = store.ingest(saturated(tmp_path / NAME, "yuv420p")).original.media
    turned = replace(media, width=WIDTH - 1, height=HEIGHT - 1, rotation=90)
    cell = Cell(0, Rect.of_size(turned.width, turned.height), 0, 0, 20, 45, 44, 43, 40)
    for region, is_on_grid in ((Rect(0, 0, 64, 64), False), (Rect(1, 0, 65, 64), True)):
        form = ReadOutput(turned, region, (64, 64), "yuv420p")
        told = form.psnr_of([cell], (turned.width, turned.height))
        # All loss may be inside the region: 4 of 256 x 192 samples have the whole error.
        share = 10 * math.log10(256 * 192 / region.area)
        assert (told == pytest.approx(cell.planes - share)) == is_on_grid
        assert told <= cell.planes


# ------------------------------------------------------------------- odd sides


def odd_noise(path: Path, pixel_format: str) -> Path:
    """Three noise frames of 65x17; the repeated edge is coded better than the noise."""
    rng = np.random.default_rng(7)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", 25)
        stream.width, stream.height, stream.pix_fmt = 65, 17, pixel_format
        for _ in range(3):
            pixels = rng.integers(0, 256, (17, 65, 3), np.uint8)
            picture = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(picture.reformat(format=pixel_format)))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("codec", "pixel_format"), [("fast", "yuv444p"), ("fast", "yuv420p"), (STITCHABLE, "yuv420p")]
)
def test_padding_odd_tiles_does_not_raise_psnr(
    tmp_path: Path, codec: str, pixel_format: str
) -> None:
    if codec == STITCHABLE and not kvazaar_available():
        pytest.skip("kvazaar is not there: pip install 'vfsd[stitch]'")
    with new_store(tmp_path / "store") as store:
        video = store.ingest(odd_noise(tmp_path / NAME, pixel_format))
        (segment,) = video.tiles.retile("uniform:1x1", settings=TileSettings(codec, quality=30))
        take_tiles(store)
        figures = {"gray": segment.cells[0].gray, "rgb24": segment.cells[0].colour}
        if pixel_format == "yuv444p":
            figures["yuv444p"] = segment.cells[0].planes
        for form, figure in figures.items():
            exact = video.read(format=form, psnr=math.inf)
            found = video.read(format=form, psnr=5)
            has = worst_psnr(found.data, exact.data, form)
            assert figure == pytest.approx(has, abs=ROUNDING)
            assert has - 0.4 < found.psnr <= has


def test_odd_tiles_of_older_versions_are_corrected(tmp_path: Path) -> None:
    """All their loss may be in the pixels that are read, which are fewer than were measured."""
    with new_store(tmp_path / "store") as store:
        media = store.ingest(odd_noise(tmp_path / NAME, "yuv444p")).original.media
    whole = Rect.of_size(media.width, media.height)
    cell = Cell(0, whole, 0, 0, 20, 40, 40, 40, 40)
    share = 10 * math.log10(66 * 18 / (65 * 17))
    for form in ("gray", "rgb24", "yuv444p"):
        told = ReadOutput(media, whole, (65, 17), form).psnr_of([cell], (65, 17))
        assert told == pytest.approx(40 - share)
    lossless = Cell(0, whole, 0, 0, 1, 100, 100, 100, 100)
    assert ReadOutput(media, whole, (65, 17), "gray").psnr_of([lossless], (65, 17)) == 100


# ------------------------------------------------------------------- missing measurements


def forget_likeness(store: Store) -> None:
    """Make cells look like those from before PSNR was measured in chroma."""
    with store.catalog.writing() as change:
        change.segments._connection.exec_driver_sql("UPDATE cells SET gray=0, planes=0, colour=0")


@pytest.mark.parametrize("form", one_in(3, ["rgb24", "gray", "yuv420p"]))
def test_unmeasured_cells_serve_no_requested_psnr(tmp_path: Path, form: str) -> None:
    with new_store(tmp_path / "store") as store:
        video = store.ingest(saturated(tmp_path / NAME, "yuv420p"))
        video.renditions.make(HALF)
        video.tiles.retile("uniform:2x2")
        forget_likeness(store)
        take_tiles(store)
        for size in (HALF, None):
            assert video.explain(size=size, format=form).plan.tiled
            assert video.read(size=size, format=form).psnr == 0
            assert not video.explain(size=size, format=form, psnr=20).plan.tiled


CORNER = (0, 0, 64, 64)


@pytest.mark.thorough
def test_policy_sets_the_default_psnr_of_reads(store: Store) -> None:
    """It replaces the store's 40 dB; an explicit argument of a read takes precedence."""
    names = ("a/one.mp4", "b/two.mp4")
    coarse = TileSettings("fast", quality=46)
    for name in names:
        made = store.ingest(FOLDER / "traffic.mp4", name).tiles.retile(
            "uniform:3x4", settings=coarse
        )
    one, two = (store[name] for name in names)
    worst = min(segment.psnr for segment in made)
    assert max(cell.psnr for segment in made for cell in segment.cells) < 40
    assert worst > 15

    def are_tiled() -> list[bool]:
        return [bool(store[name].explain(region=CORNER).plan.tiled) for name in names]

    assert are_tiled() == [False, False]
    store.set_policy("a", f"reads={int(worst)}")
    assert are_tiled() == [True, False]  # also in `Video` objects that are already open
    assert one.explain(region=CORNER).plan.tiled
    assert one.views.explain("roi=64x64+0+0.rgb").steps[0].origin == "tiles"
    assert two.views.explain("roi=64x64+0+0.rgb").steps[0].origin == "original"
    assert not one.explain(region=CORNER, psnr=90).plan.tiled
    one.policy.set("reads=99")
    assert are_tiled() == [False, False]
    assert str(one.policy.get()) == "original=keep,reads=99"
    one.policy.set(None)
    assert are_tiled() == [True, False]
    store.set_policy("a", None)
    assert are_tiled() == [False, False]
    assert one.policy.get().reads is None
    for wrong in ("reads=101", "reads=-1", "reads=nan", "reads=much"):
        with pytest.raises(UsageError):
            one.policy.set(wrong)
