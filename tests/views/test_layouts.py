"""``layout.png``, ``layout/`` and ``explain/``."""

from __future__ import annotations

import io
import json
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest

from tests.composing import take_tiles
from tests.views.conftest import Shelf
from vfsd.api.video import context_of
from vfsd.core.detections import Detection
from vfsd.core.view_path import format_view_path, parse_view_path
from vfsd.read.explain_read import explanation_json
from vfsd.views.layout_image import draw_layout
from vfsd.views.layout_summary import layout_facts

NAME = "traffic.mp4"


def shown(data: bytes) -> npt.NDArray[np.uint8]:
    """RGB, by another decoder of PNG."""
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    return np.asarray(picture)[:, :, ::-1].astype(np.uint8)


def explained(shelf: Shelf, view: str) -> dict[str, Any]:
    found: dict[str, Any] = json.load(io.BytesIO(shelf.read(NAME, f"explain/{view}.json")))
    return found


def test_the_picture_is_that_of_the_first_tiled_second(fresh: Shelf) -> None:
    video = fresh.video(NAME)
    assert len(video.tiles.retile("uniform:2x2", span=(1, 3))) == 2
    (segment, other) = fresh.store.catalog.segments(video.info)
    facts = layout_facts(
        fresh.store.catalog, video.info, context_of(video).table, segment, segment.frames, None
    )
    expected = draw_layout(context_of(video).table, fresh.store.tools, facts)
    assert facts.frames == range(30, 60)
    assert (shown(fresh.read(NAME, "layout.png")) == expected).all()
    assert (shown(fresh.read(NAME, "layout/1.5.png")) == expected).all()
    later = shown(fresh.read(NAME, "layout/2.png"))
    assert later.shape == expected.shape
    assert (later != expected).any()
    assert other.frames == range(60, 90)


def test_a_video_without_tiles_has_a_picture_as_well(fresh: Shelf) -> None:
    first = shown(fresh.read(NAME, "layout.png"))
    fresh.video(NAME).tiles.retile("uniform:2x2")
    tiled = shown(fresh.read(NAME, "layout.png"))
    assert first.shape == tiled.shape
    assert (first != tiled).any()


def test_who_reads_a_picture_sees_one_state_of_it(fresh: Shelf) -> None:
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
def test_a_view_is_explained_as_the_read_that_it_is(fresh: Shelf, view: str, made: str) -> None:
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


def test_nothing_is_decoded_for_what_is_copied(fresh: Shelf) -> None:
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


def test_of_spliced_views_the_ends_alone_are_decoded_and_encoded(fresh: Shelf) -> None:
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
    # From the key frame before each, and one that is stored early as others need it.
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
