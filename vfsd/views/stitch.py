"""Views that are stitched from tiles without decoding.

`tile_blocks` finds the rectangle of whole tiles in each segment.  `StitchedView` rewrites their
slice headers into one stream.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from blake3 import blake3

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.containers.matroska import MAX_PACKET
from vfsd.codecs.containers.muxers import PacketFormat, muxer_for, with_start_codes
from vfsd.codecs.containers.tracks import MIN_PADDING, PacketTimes, SegmentIndex, VideoTrack
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE, TileStream
from vfsd.codecs.stitching.stitch import (
    MAX_PICTURE_SETS,
    Stitcher,
    StreamHead,
    TileEdges,
    max_stitched_bytes,
    stream_head,
)
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import to_coded_rect
from vfsd.core.model import MediaInfo, Segment
from vfsd.core.view_request import View, ViewForm
from vfsd.errors import IntegrityError, RefusedMediaError, UsageError
from vfsd.read.pack_pool import PackPool
from vfsd.read.tile_planner import IsGoodEnough
from vfsd.tiling import Rect
from vfsd.views.render_context import RenderContext
from vfsd.views.view_audio import SegmentedAudio, ViewAudio
from vfsd.views.view_input import (
    MAX_SEGMENTS,
    PictureForm,
    ViewInput,
    ViewTimeline,
    packet_times,
    picture_form,
    shows_each_frame,
    side_data_of_encoding,
)
from vfsd.views.view_slots import CopiedPart, DecodedFrames, Slots, VariableSizeSlots, ViewPart

_log = logging.getLogger(__name__)

# Approximate memory of a block.
_BLOCK_BYTES = 2000
# Layouts, with the parameter sets of their tiles, that are cached.
_MAX_STITCHERS = 256


@dataclass(frozen=True, slots=True)
class TileBlock:
    """Tiles of one segment that form a rectangle, and how many of its frames are shown."""

    segment: Segment
    tiles: tuple[int, ...]  #: row by row
    rects: tuple[Rect, ...]  #: of their pictures, in even pixels from the block's corner
    grid: TileEdges
    frames: int  #: counted from the segment's first

    @property
    def is_whole(self) -> bool:
        """Whether all of the segment's frames are shown."""
        return self.frames == len(self.segment.frames)

    @property
    def places(self) -> list[int]:
        """Index of each tile's cell in the pack."""
        return [self.segment.place(tile) for tile in self.tiles]

    @property
    def size(self) -> int:
        """Bytes of the cells with all frames of the segment."""
        return sum(self.segment.cell(tile).size for tile in self.tiles)


def tile_blocks(
    area: Rect, timeline: ViewTimeline, segments: Sequence[Segment], good: IsGoodEnough
) -> list[TileBlock] | None:
    """Return the tiles that cover `area` of the stored picture for all frames of a view, in order.

    The frames of the view must be consecutive and start at the beginning of a segment.  Returns
    None if some frame has no `good` tiles that can be stitched, or if an edge of the area is not a
    tile edge.
    """
    first, stop = int(timeline.frames[0]), int(timeline.frames[-1]) + 1
    chosen = _consecutive_segments(first, stop, segments)
    if chosen is None:
        return None
    blocks = []
    for segment in chosen:
        block = _tile_block(area, segment, min(stop, segment.end_frame) - segment.first_frame)
        if block is None or not good(segment, block.tiles):
            return None
        blocks.append(block)
    return blocks


def _consecutive_segments(
    first: int, stop: int, segments: Sequence[Segment]
) -> list[Segment] | None:
    """Return consecutive segments from frame `first` up to `stop` or beyond, or None."""
    begin: dict[int, Segment] = {}
    for segment in sorted(segments, key=lambda segment: segment.id):  # the newest wins
        if segment.profile == STITCHABLE:
            begin[segment.first_frame] = segment
    chain = []
    while first < stop:
        following = begin.get(first)
        if following is None:
            return None
        chain.append(following)
        first = following.end_frame
    return chain


def _tile_block(area: Rect, segment: Segment, frames: int) -> TileBlock | None:
    layout = segment.layout
    columns, rows = layout.column_edges, layout.row_edges
    if not (area.x1 in columns and area.x2 in columns and area.y1 in rows and area.y2 in rows):
        return None
    tiles = tuple(layout.covering(area))
    if not segment.holds(tiles):
        return None
    grid = (_even_rect(columns, area.x1, area.x2), _even_rect(rows, area.y1, area.y2))
    return TileBlock(segment, tiles, tuple(_tile_rects(grid)), grid, frames)


def _even_rect(edges: Sequence[int], start: int, end: int) -> tuple[int, ...]:
    """Return the edges within an area, relative to it.

    The picture's own edge may be odd; the edge of a cell is even.
    """
    inside = (edge - start for edge in edges if start <= edge <= end)
    return tuple(edge + edge % 2 for edge in inside)


def _tile_rects(grid: TileEdges) -> Iterator[Rect]:
    columns, rows = grid
    for y1, y2 in pairwise(rows):
        for x1, x2 in pairwise(columns):
            yield Rect(x1, y1, x2, y2)


def find_stitch(
    key: str,
    source: ViewInput,
    view: View,
    form: ViewForm,
    timeline: ViewTimeline,
    packs: PackPool,
    sound: ViewAudio | None,
) -> StitchedView | None:
    """Return `view` stitched from tiles, or None if it has to be encoded."""
    if source.tiles is None or not source.tiles.segments:
        return None
    media = source.physical.media
    full = media.frame_rect
    region = view.region or full
    if form.codec != "hevc" and (form.codec is not None or region == full):
        return None
    if form.layout != "yuv420p":
        return None
    unscaled = view.size in (None, (region.width, region.height))
    if not unscaled or not shows_each_frame(view) or (media.is_turned and form.container != "mp4"):
        return None
    area = to_coded_rect(region, media)
    shown = (area.width // 2 * 2, area.height // 2 * 2)
    if media.is_turned and shown != (area.width, area.height):
        return None  # the odd row or column may be on any side
    pictures = picture_form(media, view, form.layout)
    good = source.tiles.good_for(pictures, source.physical)
    blocks = tile_blocks(area, timeline, source.tiles.segments, good)
    if not blocks or len(blocks) > MAX_SEGMENTS or min(shown) < 2:
        return None
    # A raw stream has no header for parameter sets, and a header holds only so many.
    in_stream = form.container == "hevc" or len({one.grid for one in blocks}) > MAX_PICTURE_SETS
    try:
        sizes = np.array([_cell_bytes(block, packs) for block in blocks], np.int64)
        head = stream_head(
            _sample_parameter_sets(blocks, packs),
            shown,
            [block.grid for block in blocks],
            in_stream=in_stream,
            bits_per_second=_bits_per_second(blocks, sizes, timeline),
        )
    except (IntegrityError, RefusedMediaError, OSError) as error:
        _log.warning("a view is encoded instead of stitched: %s", error)
        return None
    stitched = StitchedView(
        key, source, form, timeline, blocks, sizes, head, shown, in_stream, pictures, sound
    )
    if form.container == "matroska" and stitched.largest >= MAX_PACKET:
        return None
    return stitched


class StitchedView:
    """A file of stitched segments.  Slot 0 is the container's header."""

    method = "stitched"
    is_work = False
    storable = range(0)
    """Stitching again is hardly slower than reading from a cache."""

    def __init__(
        self,
        key: str,
        source: ViewInput,
        form: ViewForm,
        timeline: ViewTimeline,
        blocks: Sequence[TileBlock],
        sizes: Ints,
        head: StreamHead,
        shown: tuple[int, int],
        in_stream: bool,
        pictures: PictureForm,
        sound: ViewAudio | None,
    ) -> None:
        """Place the segments in the file.

        Args:
            sizes: bytes of the cells of each block.
            shown: (width, height) of a picture.
            in_stream: whether parameter sets are sent in the stream.
            pictures: which part of the displayed frame a picture shows.
        """
        numbers = ",".join(f"{block.segment.id}:{block.frames}" for block in blocks)
        self.key = blake3(f"{key} stitched {numbers}".encode()).hexdigest()
        self.digest = source.digest
        media = source.physical.media
        self.marks = side_data_of_encoding(media, form.container, pictures, each_frame=True)
        self._timeline = timeline
        self._blocks = blocks
        self._head = head
        self._in_stream = in_stream
        self._stitchers: dict[tuple[TileEdges, tuple[bytes, ...]], Stitcher] = {}
        counts = np.array([block.frames for block in blocks], np.int64)
        self._starts = np.cumsum(counts) - counts
        self._framing = _framing(form, head, in_stream)
        payloads = sizes + _block_growth(blocks, head, in_stream)
        self.largest = int(payloads.max())  #: bytes of pictures in a segment, at most
        track = self._track(source.physical.media, shown, in_stream)
        self._muxer = muxer_for(form.container, track, sound.track if sound else None)
        self._sound = SegmentedAudio(
            sound, self._muxer, timeline.starts, self._starts, timeline.time_base
        )
        keys = np.zeros(len(timeline), np.int64)
        # Each segment begins with a key picture; none refers to another segment.
        keys[self._starts] = 1
        totals = payloads + self._muxer.overheads(timeline.starts, keys, self._starts)
        totals += MIN_PADDING + self._sound.sizes
        self.segment_index = SegmentIndex(
            sizes=totals,
            starts=timeline.starts[self._starts],
            starts_with_key=np.ones(len(totals), np.int64),
            end=timeline.end,
        )
        header = len(self._muxer.header()) + self._muxer.index_size(len(totals))
        self.slots: Slots = VariableSizeSlots(header, totals)
        self._sizes = sizes
        self._pictures = pictures
        self.memory = timeline.memory + _BLOCK_BYTES * len(blocks) + (sound.memory if sound else 0)

    def make(self, slot: int, context: RenderContext) -> bytes:
        if not slot:
            return self._muxer.header(self.segment_index)
        block = self._blocks[slot - 1]
        try:
            payloads = self._payloads(block, context.packs)
        except (IntegrityError, RefusedMediaError, UsageError, OSError) as error:
            # The size is fixed already, so encoded pictures cannot replace the tiles.
            context.drop_damaged_tiles(error)
            _log.error("a view cannot be stitched from damaged tiles: %s", error)
            raise IntegrityError(
                f"the tiles of frames {block.segment.first_frame} to "
                f"{block.segment.end_frame - 1} are damaged or gone: {error}",
                hint="`vfsd fsck` lists the damage; tiles can be made again from the original",
            ) from error
        size = self.slots[slot].size
        sound = self._sound.packets(slot - 1, context)
        data = self._muxer.segment(slot - 1, self._times(slot - 1), payloads, size, sound)
        if len(data) > size:
            raise IntegrityError("a pack of tiles holds more than the catalog says")
        return data

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
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

    def _stitcher(self, grid: TileEdges, streams: Sequence[TileStream]) -> Stitcher:
        key = (grid, tuple(unit for stream in streams for unit in stream.parameter_sets))
        known = self._stitchers.get(key)
        if known is None:
            if len(self._stitchers) >= _MAX_STITCHERS:
                self._stitchers = {}
            known = self._stitchers[key] = self._head.stitcher(grid, streams)
        return known

    def _times(self, number: int) -> PacketTimes:
        first = int(self._starts[number])
        stop = first + self._blocks[number].frames
        keys = np.zeros(stop - first, np.int64)
        keys[0] = 1
        return packet_times(self._timeline, first, stop, keys)

    def _track(self, media: MediaInfo, shown: tuple[int, int], in_stream: bool) -> VideoTrack:
        timeline = self._timeline
        return VideoTrack(
            codec="hevc",
            width=shown[0],
            height=shown[1],
            configuration=self._framing.configuration,
            time_base=timeline.time_base,
            duration=timeline.end,
            longest=timeline.longest(self._starts),
            rate=timeline.rate,
            rotation=media.rotation,
            mirrored=media.mirrored,
            sample_aspect_ratio=media.sample_aspect_ratio,
            sets_in_stream=in_stream,
            marks=self.marks,
        )


def _framing(form: ViewForm, head: StreamHead, in_stream: bool) -> PacketFormat:
    """Leave the conversion to the caller for sets in the stream: they are added before it."""
    if form.container == "hevc":
        return PacketFormat("hevc", b"", 0, 0)
    return PacketFormat("hevc", nal.hvcc(head.shared, 4, is_complete=not in_stream), 0, 4)


def _block_growth(blocks: Sequence[TileBlock], head: StreamHead, in_stream: bool) -> Ints:
    """Return how many bytes the pictures of each block may exceed its cells."""
    growth = [block.frames * max_stitched_bytes([0] * len(block.tiles)) for block in blocks]
    if in_stream:
        sets = {grid: len(with_start_codes(units)) for grid, units in head.parameter_sets.items()}
        growth = [size + sets[block.grid] for size, block in zip(growth, blocks, strict=True)]
    return np.array(growth, np.int64)


def _cell_bytes(block: TileBlock, packs: PackPool) -> int:
    """Return the bytes of the shown frames.  Only the last block of a view may be cut off."""
    if block.is_whole:
        return block.size
    cells = packs.cells(block.segment)
    shown_cells = [cells[place] for place in block.places]
    return sum(cell.offsets[block.frames] - cell.position for cell in shown_cells)


def _sample_parameter_sets(blocks: Sequence[TileBlock], packs: PackPool) -> list[tuple[bytes, ...]]:
    """Return the parameter sets of one tile of each encoder run, which all its tiles share."""
    runs = {block.segment.physical_id: block for block in reversed(blocks)}
    found = {
        nal.parameter_sets("hevc", packs.cells(block.segment)[block.places[0]].extradata)
        for block in runs.values()
    }
    return sorted(found)


def _bits_per_second(blocks: Sequence[TileBlock], sizes: Ints, timeline: ViewTimeline) -> int:
    """Return the bit rate of the segment with the highest."""
    counts = [block.frames for block in blocks]
    edges = np.append(timeline.starts, timeline.end)[np.cumsum([0, *counts])]
    seconds = np.maximum(np.diff(edges), 1) * float(timeline.time_base)
    return int((8 * sizes / seconds).max())
