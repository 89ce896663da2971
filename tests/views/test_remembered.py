"""Views that are read are remembered, once for each time that a file was open."""

from __future__ import annotations

from tests.views.conftest import Shelf
from vfsd.core.detections import Detection
from vfsd.core.model import LoggedRead
from vfsd.tiling import Rect
from vfsd.views.view_resolver import ViewResolver

NAME = "traffic.mp4"


def remembered(shelf: Shelf) -> list[LoggedRead]:
    """The oldest first; the store remembers nothing afterwards."""
    shelf.store.tools.read_log.close()
    return list(shelf.store.catalog.reads())[::-1]


def test_each_file_that_is_read_is_one_read(fresh: Shelf) -> None:
    fresh.read(NAME, "t=1-3,roi=160x120+80+60,fps=5.y4m")
    fresh.read(NAME, "roi=160x120+80+60,size=80x60.mp4")
    fresh.read(NAME, "frames/000007.png")
    fresh.read(NAME, "frames/000008.jpg")
    raw, encoded, png, jpg = remembered(fresh)
    assert {one.kind for one in (raw, encoded, png, jpg)} == {"view"}
    assert (raw.first_frame, raw.end_frame, raw.frames) == (30, 85, 10)
    assert (encoded.first_frame, encoded.end_frame, encoded.frames) == (0, 120, 120)
    assert raw.region == encoded.region == Rect(80, 60, 240, 180)
    assert (raw.size, encoded.size) == ((160, 120), (80, 60))
    assert [(one.first_frame, one.frames) for one in (png, jpg)] == [(7, 1), (8, 1)]
    assert all(one.pixels > 0 and one.seconds > 0 for one in (raw, encoded, png, jpg))


def test_only_what_was_looked_at_counts(fresh: Shelf) -> None:
    file = fresh.open(NAME, "full.rgb")
    picture = 320 * 240 * 3
    for frame in (50, 51, 3):
        file.readinto(memoryview(bytearray(100)), frame * picture)
    file.close()
    (one,) = remembered(fresh)
    assert (one.first_frame, one.end_frame, one.frames) == (3, 52, 3)


def test_figures_are_those_of_tiles(fresh: Shelf) -> None:
    video = fresh.video(NAME)
    video.tiles.retile("uniform:2x2")
    with_tiles = video.explain(region=(170, 130, 310, 230))
    fresh.read(NAME, "roi=140x100+170+130.rgb")
    (one,) = remembered(fresh)
    assert (one.source, one.tiles) == ("tiles", 4)
    assert (one.pixels, one.untiled_pixels) == (with_tiles.work.pixels, with_tiles.untiled.pixels)


def test_crops_of_what_was_seen_are_reads_of_their_area(fresh: Shelf) -> None:
    fresh.video(NAME).labels.add([Detection(4, "car", (10, 20, 60, 50))], "test")
    fresh.read(NAME, "objects/car/000004-0.png")
    (one,) = remembered(fresh)
    assert (one.first_frame, one.region) == (4, Rect(10, 20, 60, 50))
    assert one.labels == (("car",),)


def test_looking_is_no_reading(fresh: Shelf) -> None:
    ino = fresh.video(NAME).info.ino
    for path in ("info.json", "full.mp4", "roi=160x120+0+0.mp4", "frames/000001.jpg"):
        fresh.views.stat(ino, path)
    fresh.open(NAME, "full.rgb").close()
    fresh.read(NAME, "info.json")
    fresh.read(NAME, "full.mp4")  # packets of the original
    assert remembered(fresh) == []


def test_what_others_read_does_not_make_views_anew(fresh: Shelf) -> None:
    fresh.video(NAME).labels.add([Detection(4, "car", (10, 20, 60, 50))], "test")
    other = ViewResolver(fresh.store.parts, fresh.store.tools, lambda made, _ino, _path: made)
    ino = fresh.video(NAME).info.ino
    before = other.lookup(ino)
    fresh.video(NAME)[0]
    assert len(remembered(fresh)) == 1
    assert other.lookup(ino) is before
    other.close()
