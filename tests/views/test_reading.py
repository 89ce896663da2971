"""Reading views as programs do: at any offset, in any order, concurrently.

Reads of views are logged, once for each open file.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.selection import one_in
from tests.views.conftest import Shelf
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.core.detections import Detection
from vfsd.core.model import LoggedRead
from vfsd.storage.file_cache import cache_file_name
from vfsd.tiling import Rect
from vfsd.views.render_context import RenderContext
from vfsd.views.rendering import RenderedFile
from vfsd.views.transcode import TranscodedView
from vfsd.views.view_resolver import ViewResolver
from vfsd.views.view_slots import FixedSizeSlots, Slots, VariableSizeSlots

PATHS = [
    "full.mp4",
    "full.mkv",
    "full.h264",
    "size=160x120.mp4",
    "fps=10.mkv",
    "roi=100x80+30+40.hevc",
    "full.y4m",
    "pix=gray.raw",
    "info.json",
    "frames/000011.png",
    "frames/11.jpg",
    "frames/11.npy",
]


@pytest.mark.parametrize("path", one_in(4, PATHS))
def test_random_access_equals_sequential_read(shelf: Shelf, path: str) -> None:
    whole = shelf.read("traffic.mp4", path)
    assert shelf.size("traffic.mp4", path) == len(whole)
    file = shelf.open("traffic.mp4", path)
    rng = random.Random(7)
    for _ in range(40):
        offset = rng.randrange(len(whole))
        count = rng.choice((1, 10, 4096, 131072))
        buffer = bytearray(b"\xaa" * count)
        got = file.readinto(memoryview(buffer), offset)
        assert got == min(count, len(whole) - offset)
        assert buffer[:got] == whole[offset : offset + got]
        assert buffer[got:] == b"\xaa" * (count - got)
    assert file.readinto(memoryview(bytearray(10)), len(whole)) == 0
    assert file.readinto(memoryview(bytearray(10)), len(whole) + 100) == 0
    file.close()


def test_concurrent_reads_of_one_file(fresh: Shelf, shelf: Shelf) -> None:
    path = "size=200x150.mp4"
    whole = shelf.read("traffic.mp4", path)
    file = fresh.open("traffic.mp4", path)

    def part(offset: int) -> bytes:
        buffer = bytearray(1000)
        got = file.readinto(memoryview(buffer), offset)
        return bytes(buffer[:got])

    offsets = list(range(0, len(whole), 1000))
    random.Random(3).shuffle(offsets)
    with ThreadPoolExecutor(8) as pool:
        parts = dict(zip(offsets, pool.map(part, offsets), strict=True))
    file.close()
    assert b"".join(parts[offset] for offset in sorted(parts)) == whole


def test_slot_is_rendered_once_for_all_waiters(
    fresh: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = TranscodedView.make

    def counting(self: TranscodedView, slot: int, context: RenderContext) -> bytes:
        made.append(slot)
        time.sleep(0.05)
        return make(self, slot, context)

    monkeypatch.setattr(TranscodedView, "make", counting)
    file = fresh.open("traffic.mp4", "size=96x64.mp4")
    results: list[bytes] = []

    def read() -> None:
        buffer = bytearray(file.size)
        file.readinto(memoryview(buffer), 0)
        results.append(bytes(buffer))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    assert len(set(results)) == 1
    assert len(results) == 6
    assert len(made) == len(set(made))


def test_failed_render_is_reported_and_can_be_retried(
    fresh: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = TranscodedView.make

    def failing(self: TranscodedView, slot: int, context: RenderContext) -> bytes:
        time.sleep(0.05)
        raise OSError("the disk is on fire")

    monkeypatch.setattr(TranscodedView, "make", failing)
    file = fresh.open("traffic.mp4", "size=96x64.mp4")
    with ThreadPoolExecutor(3) as pool:
        tries = [pool.submit(file.readinto, memoryview(bytearray(10)), 9000) for _ in range(3)]
        assert all(isinstance(each.exception(), OSError) for each in tries)
    monkeypatch.setattr(TranscodedView, "make", make)
    assert file.readinto(memoryview(bytearray(10)), 9000) == 10
    file.close()


def test_sequential_read_continues_decoding(fresh: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every frame of a raw view is decoded once, not again from its key frame."""
    starts: list[int] = []
    stream = FrameDecoder.stream

    def counting(self: FrameDecoder, first: int = 0, *rest: object, **more: object) -> object:
        starts.append(first)
        return stream(self, first, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(FrameDecoder, "stream", counting)
    fresh.read("traffic.mp4", "full.yuv")
    assert starts == [0]


def test_sequential_read_prefetches_slots(fresh: Shelf) -> None:
    file = fresh.open("traffic.mp4", "size=96x64.mp4")
    assert isinstance(file, RenderedFile)
    assert len(file._rendered.slots) == 6
    touch(file, 0)
    assert all_are_made(file, 1, 2)
    for slot in (1, 2, 3, 4):
        touch(file, slot)
    assert all_are_made(file, 5)
    file.close()


def test_no_prefetch_after_a_seek(fresh: Shelf) -> None:
    file = fresh.open("traffic.mp4", "size=96x64.mp4")
    assert isinstance(file, RenderedFile)
    runner = file._prefetcher
    for slot in (1, 4):
        touch(file, slot)
        assert runner._next_slot() is None
    touch(file, 5)
    assert runner._position == 5
    file.close()


def test_sequential_copy_prefetches_from_the_start(fresh: Shelf) -> None:
    file = fresh.open("traffic.mp4", "size=96x64.mp4")
    assert isinstance(file, RenderedFile)
    file.read_sequentially(1)
    assert all_are_made(file, 1, 2, 3, 4, 5)
    file.close()


def test_stale_readahead_does_not_trigger_prefetch(fresh: Shelf) -> None:
    """The kernel reads ahead of its reader, and still requests some of it after a seek."""
    file = fresh.open("traffic.mp4", "size=96x64.mp4")
    assert isinstance(file, RenderedFile)
    runner = file._prefetcher
    runner.note_request(1, 3)
    runner.note_received(1)
    runner.note_request(5, 5)
    runner.note_received(2)
    runner.note_received(3)
    assert runner._next_slot() is None
    runner.note_received(5)
    assert runner._position == 5
    file.close()


def touch(file: RenderedFile, slot: int) -> None:
    """Read the first byte of a slot."""
    file.readinto(memoryview(bytearray(1)), file._rendered.slots[slot].start)


def all_are_made(file: RenderedFile, *slots: int) -> bool:
    """Wait for these slots, with a timeout."""
    cache, deadline = file._renderer._cache._memory, time.monotonic() + 20
    rendition: Any = file._rendered
    keys = [cache_file_name(rendition.digest, rendition.key_of_slot(slot)) for slot in slots]
    while any(cache.get(key) is None for key in keys) and time.monotonic() < deadline:
        time.sleep(0.01)
    return all(cache.get(key) is not None for key in keys)


def test_slots_of_encoded_views_begin_at_pages(fresh: Shelf) -> None:
    """Otherwise a seek to a segment would wait for the previous one, too."""
    for path in ("size=96x64.mp4", "roi=100x80+30+40.mkv"):
        file = fresh.open("traffic.mp4", path)
        assert isinstance(file, RenderedFile)
        slots = file._rendered.slots
        assert all(slots[slot].start % 4096 == 0 for slot in range(len(slots)))
        file.close()


@pytest.mark.parametrize(
    "slots",
    [
        FixedSizeSlots(10, 7, 5),
        FixedSizeSlots(0, 7, 5),
        VariableSizeSlots(10, np.array([7, 7, 7, 7, 7])),
        VariableSizeSlots(0, np.array([1, 30, 4])),
    ],
)
def test_slots_cover_the_file_without_gaps(slots: Slots) -> None:
    at = 0
    for slot in range(len(slots)):
        place = slots[slot]
        assert (place.slot, place.start) == (slot, at)
        for offset in range(place.start, place.end):
            assert slots.at(offset) == place
        at = place.end
    assert at == slots.size


def test_view_of_a_replaced_video_is_a_new_one(tmp_path: Path, fresh: Shelf) -> None:
    before = fresh.size("traffic.mp4", "full.rgb")
    info = fresh.views.stat(fresh.video("traffic.mp4").info.ino, "info.json")
    other = Path(__file__).parent.parent.parent / "sample_videos" / "portrait.mp4"
    fresh.store.ingest(other, "traffic.mp4", replace=True)
    video = fresh.video("traffic.mp4")
    assert fresh.size("traffic.mp4", "full.rgb") == 45 * 240 * 320 * 3 != before
    assert fresh.read("traffic.mp4", "full.rgb") == video.read().data.tobytes()
    assert fresh.views.stat(video.info.ino, "info.json") != info
    assert video.duration == Fraction(3, 2)


# --------------------------------------------------------------------------------------------------
# Reads of views are logged, once for each open file


NAME = "traffic.mp4"


def remembered(shelf: Shelf) -> list[LoggedRead]:
    """Logged reads, the oldest first; the log is empty afterwards."""
    shelf.store.tools.read_log.close()
    return list(shelf.store.catalog.reads())[::-1]


def test_each_open_file_logs_one_read(fresh: Shelf) -> None:
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


def test_only_read_frames_are_logged(fresh: Shelf) -> None:
    file = fresh.open(NAME, "full.rgb")
    picture = 320 * 240 * 3
    for frame in (50, 51, 3):
        file.readinto(memoryview(bytearray(100)), frame * picture)
    file.close()
    (one,) = remembered(fresh)
    assert (one.first_frame, one.end_frame, one.frames) == (3, 52, 3)


def test_logged_costs_are_those_of_tiles(fresh: Shelf) -> None:
    video = fresh.video(NAME)
    video.tiles.retile("uniform:2x2")
    with_tiles = video.explain(region=(170, 130, 310, 230))
    fresh.read(NAME, "roi=140x100+170+130.rgb")
    (one,) = remembered(fresh)
    assert (one.source, one.tiles) == ("tiles", 4)
    assert (one.pixels, one.untiled_pixels) == (with_tiles.work.pixels, with_tiles.untiled.pixels)


def test_object_crops_are_logged_as_reads_of_their_area(fresh: Shelf) -> None:
    fresh.video(NAME).labels.add([Detection(4, "car", (10, 20, 60, 50))], "test")
    fresh.read(NAME, "objects/car/000004-0.png")
    (one,) = remembered(fresh)
    assert (one.first_frame, one.region) == (4, Rect(10, 20, 60, 50))
    assert one.labels == (("car",),)


def test_metadata_access_is_not_logged_as_a_read(fresh: Shelf) -> None:
    ino = fresh.video(NAME).info.ino
    for path in ("info.json", "full.mp4", "roi=160x120+0+0.mp4", "frames/000001.jpg"):
        fresh.views.stat(ino, path)
    fresh.open(NAME, "full.rgb").close()
    fresh.read(NAME, "info.json")
    fresh.read(NAME, "full.mp4")  # packets of the original
    assert remembered(fresh) == []


def test_reads_do_not_invalidate_resolved_views(fresh: Shelf) -> None:
    fresh.video(NAME).labels.add([Detection(4, "car", (10, 20, 60, 50))], "test")
    other = ViewResolver(fresh.store.parts, fresh.store.tools, lambda made, _ino, _path: made)
    ino = fresh.video(NAME).info.ino
    before = other.lookup(ino)
    fresh.video(NAME)[0]
    assert len(remembered(fresh)) == 1
    assert other.lookup(ino) is before
    other.close()
