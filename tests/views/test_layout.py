"""``layout.png``, ``layout/`` and ``explain/``.

Layout images: the drawn elements and their positions; one-line summaries of layouts.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from sample_videos import FOLDER
from tests.support.composed_tiles import take_tiles
from tests.support.selection import thorough_but
from tests.support.stores import new_store
from tests.views.conftest import Shelf
from vfsd.api.store import Store
from vfsd.api.video import context_of
from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.codecs.encoding.encoder import palette_png, palette_png_size, uncompressed_png_size
from vfsd.core.detections import Detection
from vfsd.core.view_request import View, format_view_path, parse_view_path
from vfsd.derive.tile_encoder import PlannedSegment
from vfsd.read.explain_read import explanation_json
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import plan_frames
from vfsd.tiling import Rect
from vfsd.tiling.layout import uniform_layout
from vfsd.views.layout_facts import (
    EDGE_COLOR,
    LayoutFacts,
    Picture,
    exact_colors,
    heat_ticks,
    layout_facts,
    read_counts,
)
from vfsd.views.layout_files import draw_layout, frame_place, layout_text, picture_size

NAME = "traffic.mp4"


def shown(data: bytes) -> npt.NDArray[np.uint8]:
    """RGB, decoded by another PNG decoder."""
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    return np.asarray(picture)[:, :, ::-1].astype(np.uint8)


def explained(shelf: Shelf, view: str) -> dict[str, Any]:
    found: dict[str, Any] = json.load(io.BytesIO(shelf.read(NAME, f"explain/{view}.json")))
    return found


def test_layout_image_shows_the_first_tiled_second(fresh: Shelf) -> None:
    video = fresh.video(NAME)
    assert len(video.tiles.retile("uniform:2x2", span=(1, 3))) == 2
    (segment, other) = fresh.store.catalog.segments(video.info)
    facts = layout_facts(
        fresh.store.catalog, video.info, context_of(video).table, segment, segment.frames, None
    )
    expected = draw_layout(context_of(video).table, fresh.store.tools, facts)
    assert facts.frames == range(30, 60)
    first = shown(fresh.read(NAME, "layout.png"))
    assert (first == shown(palette_png(expected, exact_colors()))).all()
    assert (shown(fresh.read(NAME, "layout/1.5.png")) == first).all()
    later = shown(fresh.read(NAME, "layout/2.png"))
    assert later.shape == expected.shape
    assert (later != expected).any()
    assert other.frames == range(60, 90)


def test_video_without_tiles_has_a_layout_image(fresh: Shelf) -> None:
    first = shown(fresh.read(NAME, "layout.png"))
    fresh.video(NAME).tiles.retile("uniform:2x2")
    tiled = shown(fresh.read(NAME, "layout.png"))
    assert first.shape == tiled.shape
    assert (first != tiled).any()


def test_open_layout_image_shows_one_state(fresh: Shelf) -> None:
    video = fresh.video(NAME)
    before = fresh.read(NAME, "layout.png")
    file = fresh.open(NAME, "layout.png")
    half, buffer = len(before) // 2, bytearray(len(before))
    file.readinto(memoryview(buffer)[:half], 0)
    video.labels.add([Detection(15, "car", (20, 20, 300, 200))], "test")
    file.readinto(memoryview(buffer)[half:], half)
    file.close()
    assert bytes(buffer) == before
    assert fresh.read(NAME, "layout.png") != before


@pytest.mark.parametrize(
    ("view", "made"),
    [
        ("roi=96x80+180+140.mp4", "encoded"),
        ("roi=96x80+180+140,t=0.5-2.5,fps=10.rgb", "decoded"),
        ("frames=10-20,size=80x60.y4m", "decoded"),
    ],
)
def test_explanation_of_a_view_equals_that_of_the_read(fresh: Shelf, view: str, made: str) -> None:
    video = fresh.video(NAME)
    video.tiles.retile("uniform:2x2")
    take_tiles(fresh.store)
    request = parse_view_path(view)
    asked = request.resolve(video.width, video.height)
    told = explained(fresh, view)
    found = video.explain(
        span=asked.span,
        frames=None if asked.frames is None else slice(*asked.frames),
        region=asked.region,
        size=asked.size,
        fps=asked.fps,
        format=request.form.layout,
    )
    assert (told.pop("sound") is None) == (told.pop("silence") is not None)
    assert (told.pop("why") is not None) == (made == "encoded")
    assert told.pop("lost") is None
    assert told.pop("damaged") == 0
    assert told.pop("cached") is None
    assert (told.pop("cacheable") > 0) == (made == "encoded")
    assert {told.pop("sound_made"), told.pop("sound_from")} in ({None}, {"copied", "aac"})
    assert [step["frames"] for step in told["steps"] if step["does"] == "decode"] == [
        source["frames"] for source in told["sources"]
    ]
    encoded = [step for step in told.pop("steps") if step["does"] == "encode"]
    assert [step["codec"] for step in encoded] == (["h264"] if made == "encoded" else [])
    expected = {
        "name": NAME,
        "view": format_view_path(request),
        "made": made,
        **explanation_json(found),
    }
    assert told == json.loads(json.dumps(expected))
    if "roi" in view:
        assert {source["source"] for source in told["sources"]} == {"tiles"}
        assert told["pixel_gain"] >= 2


def test_copied_views_decode_nothing(fresh: Shelf) -> None:
    table = context_of(fresh.video(NAME)).table
    told = explained(fresh, "full.mp4")
    assert (told["made"], told["frames"], told["psnr"]) == ("copied", 120, None)
    assert told["steps"] == [
        {
            "does": "copy",
            "frames": [0, 120],
            "count": 120,
            "from": "original",
            "codec": "h264",
            "bytes": table.bytes_of(0, 120),
            "seconds": 0,
        }
    ]
    assert (told["sources"], told["decoded"]["pictures"]) == ([], 0)


def test_spliced_views_encode_only_their_ends(fresh: Shelf) -> None:
    """Key frames are 0, 30, 60 and 90."""
    told = explained(fresh, "frames=20-110.mp4")
    assert (told["made"], told["frames"]) == ("spliced", 90)
    does = [(step["does"], step["from"], *step["frames"]) for step in told["steps"]]
    copied = next(range(*step["frames"]) for step in told["steps"] if step["does"] == "copy")
    assert does[:3] == [
        ("decode", "original", 20, 30),
        ("encode", None, 20, 30),
        ("copy", "original", 30, copied.stop),
    ]
    assert 90 <= copied.stop <= 110
    ends = [(20, 30), (copied.stop, 110)] if copied.stop < 110 else [(20, 30)]
    assert [tuple(source["frames"]) for source in told["sources"]] == ends
    # From the key frame before each end, and one reference frame that is stored early.
    pictures = sum(end - start // 30 * 30 for start, end in ends)
    assert pictures <= told["decoded"]["pictures"] <= pictures + len(ends)
    assert all(step["bytes"] > 0 and step["seconds"] >= 0 for step in told["steps"])
    file = fresh.read(NAME, "frames=20-110.mp4")
    assert sum(step["bytes"] for step in told["steps"] if step["does"] != "decode") < len(file)


def test_stills_are_explained(fresh: Shelf) -> None:
    told = explained(fresh, "frames/000007.png")
    assert (told["view"], told["made"], told["frames"]) == ("frames/000007.png", "decoded", 1)
    found = fresh.video(NAME).explain(frames=range(7, 8))
    assert told["decoded"]["pixels"] == found.work.pixels


def test_explanations_follow_the_tiles(fresh: Shelf) -> None:
    view = "roi=64x64+0+0.rgb"
    before = explained(fresh, view)
    fresh.video(NAME).tiles.retile("uniform:2x2")
    after = explained(fresh, view)
    assert after["decoded"]["pixels"] < before["decoded"]["pixels"] == after["untiled"]["pixels"]


# --------------------------------------------------------------------------------------------------
# Layout images: the drawn elements and their positions; one-line summaries of layouts


NAMES = ("traffic.mp4", "portrait.mp4", "odd-size.webm")
SCALE = 3  # of traffic.mp4, which is 320x240


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as opened:
        for name in NAMES:
            opened.ingest(FOLDER / name)
        yield opened


def facts_of(store: Store, name: str = "traffic.mp4", frame: int | None = None) -> LayoutFacts:
    """Facts on the first second, tiled or not, including all logged reads."""
    store.tools.read_log.close()
    video = store[name]
    (segment, *_) = [*store.catalog.segments(video.info), None]
    frames = range(30) if segment is None else segment.frames
    return layout_facts(store.catalog, video.info, context_of(video).table, segment, frames, frame)


def facts_without_boxes(store: Store, frame: int) -> LayoutFacts:
    facts = facts_of(store, frame=frame)
    return dataclasses.replace(facts, boxes=facts.boxes.select(slice(0, 0)))


def frame_of(picture: Picture) -> Picture:
    """The image without its margins."""
    place = frame_place(320, 240)
    assert (place.width, place.height) == (320 * SCALE, 240 * SCALE)
    return picture[place.y1 : place.y2, place.x1 : place.x2]


def enlarged(store: Store, frame: int) -> Picture:
    """The frame of traffic.mp4 alone, as large as in the image."""
    video = store["traffic.mp4"]
    table = context_of(video).table
    plan = plan_frames(np.array([frame]), View(), video.original, table)
    size = (320 * SCALE, 240 * SCALE)
    pixels = PlanExecutor(table, store.tools).execute(plan)[0]
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_CUBIC), np.uint8)


def test_overlapping_areas_are_counted() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        read, expected = [], np.zeros((30, 40), int)
        for _ in range(rng.integers(0, 6)):
            times = int(rng.integers(1, 5))
            rects = []
            mask = np.zeros((30, 40), bool)
            for _ in range(rng.integers(0, 4)):
                x1, y1 = int(rng.integers(0, 40)), int(rng.integers(0, 30))
                rect = Rect(x1, y1, int(rng.integers(x1, 40)) + 1, int(rng.integers(y1, 30)) + 1)
                rects.append(rect)
                mask[rect.y1 : rect.y2, rect.x1 : rect.x2] = True
            expected[mask] += times
            read.append((times, rects))
        assert (read_counts(read, 40, 30) == expected).all()


def test_reads_are_counted_per_pixel(store: Store) -> None:
    video = store["traffic.mp4"]
    video.tiles.retile("uniform:2x2", span=(0, 1))
    video.labels.add([Detection(9, "car", (200, 100, 240, 130.5))], "test")
    for _ in range(3):
        video.read(frames=range(0, 2), region=(0, 0, 100, 50))
    video.read(frames=range(40, 42))  # of another second
    list(video.scan("car").crops())
    list(video.scan("car").crops())
    facts = facts_of(store)
    assert facts.reads == 5
    assert facts.frame == 9  # a visible part
    assert (facts.heat[:50, :100] == 3).all()
    assert (facts.heat[100:131, 200:240] == 2).all()
    assert (facts.heat > 0).sum() == 100 * 50 + 40 * 31


def test_images_show_boxes_tiles_and_heat(store: Store) -> None:
    video = store["traffic.mp4"]
    video.tiles.retile("uniform:2x2", span=(0, 1))
    bare = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=10)))
    video.labels.add([Detection(10, "car", (30, 150, 90, 200))], "test")
    boxed = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=10)))
    later = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=11)))
    edge = boxed[450, 100:260].astype(int)  # the upper edge of the box
    assert (np.ptp(edge, axis=0) < 40).all()
    assert (edge != bare[450, 100:260]).any(axis=1).all()
    assert (boxed[480:570, 120:240] == bare[480:570, 120:240]).all()  # inside the box
    plain = frame_of(
        draw_layout(context_of(video).table, store.tools, facts_without_boxes(store, 11))
    )
    solid, faint = np.abs(boxed.astype(int) - bare).sum(), np.abs(later.astype(int) - plain).sum()
    assert solid > 3 * faint > 0


def test_only_read_areas_are_colored(store: Store) -> None:
    video = store["traffic.mp4"]
    cold = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=10)))
    with Store.open(store.path) as other:
        other["traffic.mp4"].read(frames=range(5), region=(0, 0, 160, 240))
        for _ in range(4):
            other["traffic.mp4"].read(frames=range(5), region=(0, 0, 80, 240))
    warm = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=10)))
    change = np.abs(warm.astype(int) - cold).sum(axis=2)
    most, some, none = (change[:, at : at + 80 * SCALE].mean() for at in (0, 240, 480))
    assert most > some > 10
    assert none == 0


def test_tile_edges_are_visible_and_numbers_hide_little(store: Store) -> None:
    video = store["traffic.mp4"]
    plain = frame_of(draw_layout(context_of(video).table, store.tools, facts_of(store, frame=10)))
    video.tiles.retile("uniform:3x5", span=(0, 1))
    facts = facts_of(store, frame=10)
    assert facts.segment is not None
    table = context_of(video).table
    whole = draw_layout(table, store.tools, facts)
    coded = shown(palette_png(whole, exact_colors()))
    for picture in (frame_of(whole), frame_of(coded)):
        for cell in facts.segment.cells:
            x1, y1, x2, y2 = (SCALE * end for end in astuple(cell.rect))
            assert (picture[y1 + 40 : y2, x1] == EDGE_COLOR).mean() > 0.9
            assert (picture[y1, x1 + 40 : x2] == EDGE_COLOR).mean() > 0.9
    whole = draw_layout(table, store.tools, facts_of(store, frame=10))
    source = enlarged(store, 10)
    hidden = (frame_of(whole) != source).any(axis=2)
    for cell in facts.segment.cells:
        x1, y1, x2, y2 = (SCALE * end for end in astuple(cell.rect))
        assert hidden[y1:y2, x1:x2].mean() < 0.15
    assert (plain != source).any(axis=2).mean() > 0.95  # nothing is stored: dimmed


def test_area_without_tiles_is_dim_and_gray(store: Store) -> None:
    video = store["traffic.mp4"]
    table = context_of(video).table
    layout = uniform_layout(320, 240, 2, 2, tile_codec("fast", video.original.media).rules)
    video.tiles.retile([PlannedSegment(range(30), layout, tiles=(0, 3))])
    full = enlarged(store, 10)
    part = frame_of(draw_layout(table, store.tools, facts_of(store, frame=10)))
    for cell_of, is_stored in ((0, True), (1, False), (2, False), (3, True)):
        row, column = divmod(cell_of, 2)
        x1, y1 = SCALE * sum(layout.widths[:column]), SCALE * sum(layout.heights[:row])
        inside = (slice(y1 + 60, y1 + 200), slice(x1 + 60, x1 + 200))
        if is_stored:
            assert (part[inside] == full[inside]).all()
            continue
        assert part[inside].mean() < 0.65 * full[inside].mean()
        assert (np.ptp(part[inside], axis=2) == 0).all()
        # The hatching: brighter lines that the footage does not have.
        lines = part[inside][:, :, 0].astype(float) - 0.48 * cv2.cvtColor(
            full[inside], cv2.COLOR_RGB2GRAY
        )
        assert 0.05 < (lines > 12).mean() < 0.3


def test_heat_scale_is_drawn_with_reads_only(store: Store) -> None:
    video = store["traffic.mp4"]
    place, table = frame_place(320, 240), context_of(video).table

    def below() -> Picture:
        return draw_layout(table, store.tools, facts_of(store, frame=10))[place.y2 :, place.x1 :]

    assert (np.ptp(below()[:40], axis=2) == 0).all()  # gray text
    with Store.open(store.path) as other:
        for _ in range(12):
            other["traffic.mp4"].read(frames=range(5), region=(0, 0, 80, 240))
    row = below()[20, :220].astype(int)
    assert row[0, 2] > row[0, 0] + 20  # blue: once
    assert row[-1, 0] > row[-1, 2] + 60  # red: often
    for most in (1, 2, 7, 40, 127, 98765):
        ticks = heat_ticks(most)
        assert ticks == sorted(set(ticks))
        assert (ticks[0], ticks[-1]) == (1, most)
        assert len(ticks) <= 6


@pytest.mark.parametrize(
    ("width", "height"),
    thorough_but([(1, 1), (7, 5), (1921, 33)], [(1, 1), (7, 5), (640, 480), (1921, 33)]),
)
def test_palette_png_keeps_its_size(width: int, height: int) -> None:
    """Noise cannot be compressed: the file falls back to 16 colors."""
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    flat = np.full((height, width, 3), EDGE_COLOR, np.uint8)
    for pixels in (noise, flat):
        data = palette_png(pixels, exact_colors())
        assert len(data) == palette_png_size(width, height)
        assert shown(data).shape == pixels.shape
    assert (shown(palette_png(flat, exact_colors())) == flat).all()
    if width * height > 100_000:
        assert 6 * len(palette_png(noise)) < 1.02 * uncompressed_png_size(width, height)


def test_image_is_a_sixth_and_like_the_drawn_one(fresh: Shelf) -> None:
    fresh.video(NAME).tiles.retile("uniform:2x2", span=(0, 1))
    data = fresh.read(NAME, "layout.png")
    width, height = picture_size(320, 240)
    assert len(data) == fresh.size(NAME, "layout.png") == palette_png_size(width, height)
    assert 5.9 * len(data) < uncompressed_png_size(width, height)
    video = fresh.video(NAME)
    table = context_of(video).table
    (segment,) = fresh.store.catalog.segments(video.info)
    facts = layout_facts(fresh.store.catalog, video.info, table, segment, segment.frames, None)
    drawn = draw_layout(table, fresh.store.tools, facts).astype(int)
    error = np.abs(shown(data).astype(int) - drawn)
    assert error.mean() < 4
    assert np.percentile(error, 99) < 24


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_image_size_follows_the_frame_size(store: Store, name: str) -> None:
    video = store[name]
    untiled = draw_layout(context_of(video).table, store.tools, facts_of(store, name, 0))
    video.labels.add(
        [Detection(0, f"label {number}", (number, 0, 90, 60)) for number in range(40)], "test"
    )
    crowded = draw_layout(context_of(video).table, store.tools, facts_of(store, name, 0))
    size = picture_size(video.width, video.height)
    assert untiled.shape == crowded.shape == (size[1], size[0], 3)


def test_boxes_are_clipped_to_the_frame(store: Store) -> None:
    boxes = [(-50, -50, 400, 300), (319.5, 239.5, 330, 250), (0, 0, 0.2, 0.2), (0, 230, 9, 260)]
    store["traffic.mp4"].labels.add(
        [Detection(at, "x" * 60, box) for box in boxes for at in (3, 4)], "test"
    )
    facts = facts_of(store, frame=3)
    assert len(draw_layout(context_of(store["traffic.mp4"]).table, store.tools, facts)) > 0


@pytest.mark.thorough
def test_one_line_summaries(store: Store) -> None:
    video = store["traffic.mp4"]

    def text() -> str:
        return layout_text(
            video.original, context_of(video).table, store.catalog.segments(video.info)
        )

    assert text() == "untiled"
    video.tiles.retile("uniform:2x3", span=(0, 2))
    assert text() == "uniform 2x3 0-2s, untiled 2-4s"
    video.tiles.retile("64+256x240", span=(1, 2))
    assert text() == "uniform 2x3 0-1s, 1x2 1-2s, untiled 2-4s"
    video.tiles.retile("uniform:2x2")
    assert text() == "uniform 2x2 0-4s"
