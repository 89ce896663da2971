"""Views that are stitched from tiles: neither decoded nor encoded, and exactly what the tiles are.

A view is stitched when it shows every frame of its span in full size, the span begins where a
segment of tiles does, each edge of what it shows is an edge of tiles in every one of the segments,
and all of these were made to be stitched.  It may end anywhere.  Regions are stitched unless
another codec is asked for, full frames where HEVC is asked for.

What that takes in bytes is known from the sizes of cells: a slice header grows by a few bytes at
most, and what is left over is padding.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from blake3 import blake3

from vfsd.codecs.bitstreams import codec_config, nal
from vfsd.codecs.containers.matroska import MAX_PACKET
from vfsd.codecs.containers.mux import muxer_for
from vfsd.codecs.containers.packet_format import Framing, with_start_codes
from vfsd.codecs.containers.segment_muxer import LEAST_PADDING, PacketTimes, SegmentIndex, Track
from vfsd.codecs.stitching.hevc_tiles import TileStream
from vfsd.codecs.stitching.stitch import MOST_PICTURE_SETS, Stitcher, most_bytes
from vfsd.codecs.stitching.stitchheads import Grid, StreamHead, stream_head
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo
from vfsd.core.orientation import in_picture
from vfsd.core.view_path import Form
from vfsd.core.view_request import View
from vfsd.errors import IntegrityError, RefusedMediaError, UsageError
from vfsd.read.pack_pool import PackPool
from vfsd.views.audio import SegmentedSound, ViewSound
from vfsd.views.context import Workshop
from vfsd.views.convert import PictureForm, picture_form
from vfsd.views.layout import ListedSlots, Slots
from vfsd.views.plan_steps import CopiedPart, ViewPart
from vfsd.views.read_notes import Pictures
from vfsd.views.side_data import marks_of_encoding
from vfsd.views.source import Footage
from vfsd.views.tile_aligned import TileBlock, tile_blocks
from vfsd.views.timeline import MOST_SEGMENTS, Showing

_log = logging.getLogger(__name__)

_BLOCK_BYTES = 2000
"""Memory that a block takes up, about."""
_STITCHERS = 256
"""Layouts, with the sets of their tiles, that are known again."""


def find_stitch(
    key: str,
    footage: Footage,
    view: View,
    form: Form,
    showing: Showing,
    packs: PackPool,
    sound: ViewSound | None = None,
) -> StitchedRendition | None:
    """How to serve `view` by stitching tiles; None where it has to be encoded."""
    if footage.tiles is None or not footage.tiles.segments:
        return None
    media = footage.physical.media
    full = media.frame_rect
    region = view.region or full
    if form.codec != "hevc" and (form.codec is not None or region == full):
        return None
    if form.layout != "yuv420p":
        return None
    unscaled = view.size in (None, (region.width, region.height))
    steady = view.fps is None and (view.frames is None or view.frames[2] == 1)
    if not unscaled or not steady or (media.is_turned and form.container != "mp4"):
        return None
    area = in_picture(region, media)
    shown = (area.width // 2 * 2, area.height // 2 * 2)
    if media.is_turned and shown != (area.width, area.height):
        return None  # what is left out may lie at any side
    pictures = picture_form(media, view, form.layout)
    good = footage.tiles.good_for(pictures, footage.physical)
    blocks = tile_blocks(area, showing, footage.tiles.segments, good)
    if not blocks or len(blocks) > MOST_SEGMENTS or min(shown) < 2:
        return None
    in_stream = form.container == "hevc" or len({one.grid for one in blocks}) > MOST_PICTURE_SETS
    try:
        sizes = np.array([_cell_bytes(block, packs) for block in blocks], np.int64)
        head = stream_head(
            _samples(blocks, packs),
            shown,
            [block.grid for block in blocks],
            in_stream=in_stream,
            bits_per_second=_bits_per_second(blocks, sizes, showing),
        )
    except (IntegrityError, RefusedMediaError, OSError) as error:
        _log.warning("a view is encoded, not stitched from tiles: %s", error)
        return None
    stitched = StitchedRendition(
        key, footage, form, showing, blocks, sizes, head, shown, in_stream, pictures, sound
    )
    if form.container == "matroska" and stitched.largest >= MAX_PACKET:
        return None
    return stitched


class StitchedRendition:
    """A file of stitched segments.  Slot 0 is the container's header."""

    made = "stitched"
    is_work = False
    storable = range(0)
    """Stitching anew is hardly slower than reading from a cache."""

    def __init__(
        self,
        key: str,
        footage: Footage,
        form: Form,
        showing: Showing,
        blocks: Sequence[TileBlock],
        sizes: Ints,
        head: StreamHead,
        shown: tuple[int, int],
        in_stream: bool,
        pictures: PictureForm,
        sound: ViewSound | None = None,
    ) -> None:
        """`sizes` are those of the blocks' cells; `shown` is the size of a picture, of which
        `pictures` tells what it is of."""
        numbers = ",".join(f"{block.segment.id}:{block.frames}" for block in blocks)
        self.key = blake3(f"{key} stitched {numbers}".encode()).hexdigest()
        self.digest = footage.digest
        media = footage.physical.media
        self.marks = marks_of_encoding(media, form.container, pictures, steady=True)
        self._showing = showing
        self._blocks = blocks
        self._head = head
        self._in_stream = in_stream
        self._stitchers: dict[tuple[Grid, tuple[bytes, ...]], Stitcher] = {}
        counts = np.array([block.frames for block in blocks], np.int64)
        self._starts = np.cumsum(counts) - counts
        self._framing = _framing(form, head, in_stream)
        payloads = sizes + _growth(blocks, head, in_stream)
        self.largest = int(payloads.max())  #: bytes of pictures in a segment, at most
        track = self._track(footage.physical.media, shown, in_stream)
        self._muxer = muxer_for(form.container, track, sound.track if sound else None)
        self._sound = SegmentedSound(
            sound, self._muxer, showing.starts, self._starts, showing.time_base
        )
        keys = np.zeros(len(showing), np.int64)
        keys[self._starts] = 1
        totals = payloads + self._muxer.overheads(showing.starts, keys, self._starts)
        totals += LEAST_PADDING + self._sound.sizes
        self._index = SegmentIndex(
            sizes=totals,
            starts=showing.starts[self._starts],
            starts_with_key=np.ones(len(totals), np.int64),
            end=showing.end,
        )
        header = len(self._muxer.header()) + self._muxer.index_size(len(totals))
        self.slots: Slots = ListedSlots(header, totals)
        self._sizes = sizes
        self._pictures = pictures
        self.memory = showing.memory + _BLOCK_BYTES * len(blocks) + (sound.memory if sound else 0)

    def make(self, slot: int, workshop: Workshop) -> bytes:
        if not slot:
            return self._muxer.header(self._index)
        block = self._blocks[slot - 1]
        try:
            payloads = self._payloads(block, workshop.packs)
        except (IntegrityError, RefusedMediaError, UsageError, OSError) as error:
            # Its size was told already, so that nothing else can stand in its place.
            workshop.mender.note(error)
            _log.error("a view cannot be stitched, its tiles are damaged: %s", error)
            raise IntegrityError(
                f"the tiles of frames {block.segment.first_frame} to "
                f"{block.segment.end_frame - 1} are damaged or gone: {error}",
                hint="`vfsd fsck` tells more; tiles can be made anew from the original",
            ) from error
        size = self.slots[slot].size
        sound = self._sound.packets(slot - 1, workshop)
        data = self._muxer.segment(slot - 1, self._times(slot - 1), payloads, size, sound)
        if len(data) > size:
            raise IntegrityError("a pack of tiles holds more than the catalog says")
        return data

    def pictures(self, slots: Sequence[int]) -> Pictures | None:
        return None

    @property
    def parts(self) -> Sequence[ViewPart]:
        return [
            CopiedPart(
                range(block.segment.first_frame, block.segment.first_frame + block.frames),
                block.frames,
                "tiles",
                block.segment.profile,
                int(size),
                self._pictures.psnr_of(
                    [block.segment.cell(tile) for tile in block.tiles], block.segment.picture
                ),
            )
            for block, size in zip(self._blocks, self._sizes, strict=True)
        ]

    def _payloads(self, block: TileBlock, packs: PackPool) -> list[bytes]:
        cells = packs.cells(block.segment)
        streams = [
            TileStream(rect, nal.parameter_sets("hevc", cells[place].extradata))
            for place, rect in zip(block.places, block.rects, strict=True)
        ]
        stitcher = self._stitcher(block.grid, streams)
        stored = [packs.payloads(block.segment, tile, block.frames) for tile in block.tiles]
        pictures = [stitcher.picture(packets) for packets in zip(*stored, strict=True)]
        if self._in_stream:
            pictures[0] = with_start_codes(self._head.parameter_sets[block.grid]) + pictures[0]
        return [self._framing.convert(picture, False) for picture in pictures]

    def _stitcher(self, grid: Grid, streams: Sequence[TileStream]) -> Stitcher:
        key = (grid, tuple(unit for stream in streams for unit in stream.parameter_sets))
        known = self._stitchers.get(key)
        if known is None:
            if len(self._stitchers) >= _STITCHERS:
                self._stitchers = {}
            known = self._stitchers[key] = self._head.stitcher(grid, streams)
        return known

    def _times(self, number: int) -> PacketTimes:
        first = int(self._starts[number])
        stop = first + self._blocks[number].frames
        shown = self._showing.starts[first:stop]
        ends = self._showing.ends(first, stop)
        keys = np.zeros(stop - first, np.int64)
        keys[0] = 1
        return PacketTimes(
            shown=shown, lasting=ends - shown, decoded=shown, end=int(ends[-1]), keys=keys
        )

    def _track(self, media: MediaInfo, shown: tuple[int, int], in_stream: bool) -> Track:
        showing = self._showing
        lengths = np.diff(np.append(showing.starts[self._starts], showing.end))
        return Track(
            codec="hevc",
            width=shown[0],
            height=shown[1],
            configuration=self._framing.configuration,
            time_base=showing.time_base,
            duration=showing.end,
            longest=int(lengths.max()),
            rate=showing.rate,
            rotation=media.rotation,
            mirrored=media.mirrored,
            sample_aspect_ratio=media.sample_aspect_ratio,
            sets_in_stream=in_stream,
            marks=self.marks,
        )


def _framing(form: Form, head: StreamHead, in_stream: bool) -> Framing:
    """Sets that stand in the stream are put there beforehand."""
    if form.container == "hevc":
        return Framing("hevc", b"", 0, 0)
    return Framing("hevc", codec_config.hvcc(head.shared, 4, is_complete=not in_stream), 0, 4)


def _growth(blocks: Sequence[TileBlock], head: StreamHead, in_stream: bool) -> Ints:
    """By how many bytes the pictures of each block may become larger than their cells are."""
    grown = [block.frames * most_bytes([0] * len(block.tiles)) for block in blocks]
    if in_stream:
        sets = {grid: len(with_start_codes(units)) for grid, units in head.parameter_sets.items()}
        grown = [size + sets[block.grid] for size, block in zip(grown, blocks, strict=True)]
    return np.array(grown, np.int64)


def _cell_bytes(block: TileBlock, packs: PackPool) -> int:
    """Of the frames that are shown.  Only the last block of a view may be one that is cut off."""
    if block.is_whole:
        return block.size
    cells = packs.cells(block.segment)
    mine = [cells[place] for place in block.places]
    return sum(cell.offsets[block.frames] - cell.position for cell in mine)


def _samples(blocks: Sequence[TileBlock], packs: PackPool) -> list[tuple[bytes, ...]]:
    """The parameter sets of a tile of each run of the encoder: within one, all are alike."""
    runs = {block.segment.physical_id: block for block in reversed(blocks)}
    found = {
        nal.parameter_sets("hevc", packs.cells(block.segment)[block.places[0]].extradata)
        for block in runs.values()
    }
    return sorted(found)


def _bits_per_second(blocks: Sequence[TileBlock], sizes: Ints, showing: Showing) -> int:
    """In the segment where they are the most."""
    counts = [block.frames for block in blocks]
    edges = np.append(showing.starts, showing.end)[np.cumsum([0, *counts])]
    seconds = np.maximum(np.diff(edges), 1) * float(showing.time_base)
    return int((8 * sizes / seconds).max())
