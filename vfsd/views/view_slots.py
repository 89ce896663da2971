"""The slots of a view: byte ranges of its file, each rendered as a unit.

`slot_sizes` predicts a size limit for each encoded slot, `coarser` picks the next quality if a
segment exceeds its limit, and `QualityProbe` measures the PSNR while encoding.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from vfsd.codecs.cells.cell_encoders import CellVerifier
from vfsd.codecs.encoding.encoder import INTRA_ENCODERS, WORST_QUALITY, EncoderSettings
from vfsd.codecs.frames.quality import luma_errors
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints, PacketFlag
from vfsd.core.model import LoggedRead
from vfsd.core.pixel_array import Pixels
from vfsd.core.view_request import View
from vfsd.errors import IntegrityError
from vfsd.read.read_log import Clauses, ReadTiming, describe_planned_read
from vfsd.read.read_plan import plan_frames
from vfsd.read.tile_planner import DecodeCosts
from vfsd.views.view_input import PictureForm, ViewInput

DEFAULT_QUALITY = {"h264": 20, "hevc": 20, "av1": 28, "mjpeg": 3, "ffv1": 0}
"""Quantisers that are hard to distinguish from the source, see `EncoderSettings`; unused by FFV1.
"""
# Quantiser steps that halve the size, measured.  With lower values the next attempt is too large
# again.
_STEPS_PER_HALF = {"h264": 7.0, "hevc": 5.5, "av1": 10.0}
# The quantiser of JPEG is a factor; it grows with this power of the size reduction.
_JPEG_EXPONENT = 2.0
# Per sample.  Uniform noise took 0.5 to 0.7 bits (8-bit samples) or 0.4 (10-bit) more than the
# samples have, for pictures of a quarter of a megapixel and more.
_LOSSLESS_SPARE_BITS = 2
# Cost of adapting the contexts of a picture's slices: 1 KiB for noise of 16 to 176 pixels.
_LOSSLESS_PICTURE_BYTES = 16 << 10
_BITS_RELATIVE_TO_H264 = {
    # H.264 bytes that one byte of this codec corresponds to.
    "hevc": 2.0,
    "av1": 1.7,
    "vp9": 1.2,
    "vp8": 0.6,
    "mpeg4": 0.9,
    "mpeg2video": 0.8,
    "mpeg1video": 0.8,
    "mjpeg": 0.9,
}
# Share of a further key picture's bytes that it would have cost as a predicted picture.
_INTRA_SHARE = 0.35
# Other formulas, state from other segments, giving up after four pictures, and x265's VBV were
# measured and rejected: see docs/adr/view-layout.md.
_SIZE_MARGIN = 1.4
_MIN_KEY_BITS, _MIN_OTHER_BITS = 0.05, 0.002  # bits per pixel
_REGION_EXPONENT = -0.22
_RATE_EXPONENT = -0.1
# Packet headers and the container's overhead for a packet.
_PICTURE_BYTES = 48
_SEGMENT_BYTES = 640


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot: the bytes ``start <= offset < start + size`` of the file."""

    slot: int
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Slots(Protocol):
    """The division of a file into slots; slot 0 is the header, which may be empty."""

    @property
    def size(self) -> int:
        """Bytes of the file."""

    def __len__(self) -> int:
        """Number of slots."""

    def __getitem__(self, slot: int) -> Slot: ...

    def at(self, offset: int) -> Slot:
        """Return the slot with the byte at `offset`, which must be less than `size`."""


class FixedSizeSlots:
    """Slots of equal size after the header, in constant memory."""

    def __init__(self, header: int, each: int, count: int) -> None:
        self._header, self._each, self._count = header, each, count

    @property
    def size(self) -> int:
        return self._header + self._each * self._count

    def __len__(self) -> int:
        return self._count + 1

    def __getitem__(self, slot: int) -> Slot:
        if not slot:
            return Slot(0, 0, self._header)
        return Slot(slot, self._header + (slot - 1) * self._each, self._each)

    def at(self, offset: int) -> Slot:
        return self[0 if offset < self._header else (offset - self._header) // self._each + 1]


class VariableSizeSlots:
    """Slots of any sizes after the header."""

    def __init__(self, header: int, sizes: Ints) -> None:
        self._ends = np.cumsum(np.concatenate(([header], sizes)), dtype=np.int64)

    @property
    def size(self) -> int:
        return int(self._ends[-1])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, slot: int) -> Slot:
        start = int(self._ends[slot - 1]) if slot else 0
        return Slot(slot, start, int(self._ends[slot]) - start)

    def at(self, offset: int) -> Slot:
        return self[int(np.searchsorted(self._ends, offset, side="right"))]


@dataclass(frozen=True, slots=True)
class DecodedFrames:
    """Frames that a view decodes for some of its slots."""

    source: ViewInput
    frames: Ints  #: ascending, may repeat; not empty
    form: PictureForm
    labels: Clauses | None = None  #: the labels that the frames were chosen by

    def log_entry(self, timing: ReadTiming) -> LoggedRead:
        """Return the entry for the read log."""
        source, form = self.source, self.form
        plan = plan_frames(
            self.frames,
            View(region=form.region, size=form.size),
            source.physical,
            source.table,
            pixel_format=form.pixel_format,
            tiles=source.tiles,
        )
        costs = source.tiles.costs if source.tiles is not None else DecodeCosts()
        return describe_planned_read("view", plan, source.table, costs, timing, self.labels)


class SlotReadLog:
    """The slots that a reader has read.  Thread-safe; compact for sequential reads."""

    def __init__(self) -> None:
        self._runs: list[range] = []
        self._guard = threading.Lock()

    def add(self, slot: int) -> None:
        with self._guard:
            last = self._runs[-1] if self._runs else range(-1, -1)
            if slot in last:
                return
            if slot == last.stop:
                self._runs[-1] = range(last.start, slot + 1)
            else:
                self._runs.append(range(slot, slot + 1))

    def covers(self, count: int) -> bool:
        """Return whether all slots ``0 <= slot < count`` were read."""
        with self._guard:
            if sum(map(len, self._runs)) < count:
                return False
        return len(self.sorted()) == count

    def sorted(self) -> list[int]:
        """Return the slots without duplicates."""
        with self._guard:
            return sorted({slot for run in self._runs for slot in run})


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """Consecutive pictures of a view that are copied as packets without decoding."""

    frames: range  #: of the video, half-open
    count: int  #: number of pictures
    origin: str  #: original or tiles
    codec: str
    bytes: int  #: of the packets
    psnr: float
    """Minimum dB against the first original; infinite for the original itself."""


@dataclass(frozen=True, slots=True)
class RenderedPart:
    """Consecutive pictures of a view that are decoded, converted, and encoded unless it is raw."""

    pictures: DecodedFrames
    codec: str | None  #: of the encoder; None for raw pictures
    bytes: int  #: reserved for them in the file

    @property
    def count(self) -> int:
        """Number of pictures."""
        return len(self.pictures.frames)

    @property
    def frames(self) -> range:
        """Frames of the video, half-open."""
        return range(int(self.pictures.frames[0]), int(self.pictures.frames[-1]) + 1)


ViewPart = CopiedPart | RenderedPart


def coarser(codec: str, quality: int, excess: float) -> int:
    """Return the next quality for a segment of `excess` times its allowed size.

    It is at least one step coarser.  `quality` must not be the coarsest already.
    """
    if codec == "mjpeg":
        wanted = quality * math.pow(excess, _JPEG_EXPONENT)
    else:
        wanted = quality + _STEPS_PER_HALF[codec] * math.log2(excess)
    return min(WORST_QUALITY[codec], max(quality + 1, math.ceil(wanted)))


@dataclass(frozen=True, slots=True)
class _SizeFit:
    """Bits per pixel as ``factor * source ** exponent``, for key pictures and for others."""

    key: float
    key_exponent: float
    other: float
    other_exponent: float
    scale_exponent: float


_SIZE_FITS = {
    "h264": _SizeFit(1.15, 0.6, 0.30, 0.36, -0.4),
    "hevc": _SizeFit(0.94, 0.8, 0.47, 0.60, -0.6),
    "av1": _SizeFit(1.18, 0.8, 0.354, 0.50, -0.4),
    "mjpeg": _SizeFit(1.2, 0.67, 0.0, 0.0, -0.26),
}


_Bits = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class EncodedShape:
    """Picture areas before and after the conversion, in pixels."""

    frame: int  #: area of a source frame
    region: int  #: area of the shown region
    picture: int  #: area of an encoded picture


def slot_sizes(
    codec: str,
    source_codec: str,
    shape: EncodedShape,
    table: FrameTable,
    frames: Ints,
    starts: Ints,
) -> Ints:
    """Return the bytes reserved for each segment, without the container's fixed overhead.

    Args:
        frames: the source frame of each picture.
        starts: index of the first picture of each segment.
    """
    counts = np.diff(np.append(starts, len(frames)))
    key_bits, other_bits, spans = _source_bits(source_codec, shape.frame, table, frames, starts)
    fit = _SIZE_FITS[codec]
    scale = (shape.picture / shape.region) ** fit.scale_exponent
    part = (shape.region / shape.frame) ** _REGION_EXPONENT
    thinned = np.minimum(1.0, counts / spans) ** _RATE_EXPONENT
    key = fit.key * key_bits**fit.key_exponent * scale + _MIN_KEY_BITS
    if codec in INTRA_ENCODERS:
        other = key
    else:
        other = (
            fit.other * other_bits**fit.other_exponent * scale * part * thinned + _MIN_OTHER_BITS
        )
    bits = _SIZE_MARGIN * shape.picture * (key + other * (counts - 1))
    likely: Ints = (bits / 8).astype(np.int64) + _PICTURE_BYTES * counts
    return likely + gray_segment_size(codec, shape.picture, counts)


def _source_bits(
    source_codec: str, pixels: int, table: FrameTable, frames: Ints, starts: Ints
) -> tuple[_Bits, _Bits, Ints]:
    """Return, by segment, (bits per pixel of the largest picture, of the others, number of source
    frames).

    The bits are those that H.264 would have needed.  `pixels` is the area of a frame.
    """
    first, last = int(frames[0]), int(frames[-1])
    begin = table.decode_run(first).first_packet
    packets = table.packets_of(range(first, last + 1))
    columns = table.columns(begin, int(packets.max()) + 1)
    keys = columns.flags & PacketFlag.KEY != 0
    largest = _running_maximum(columns.size, keys)[packets - begin]
    sizes = columns.size[packets - begin]
    is_key = keys[packets - begin]
    # Source frames from the first picture of a segment to the first of the next.
    lows = frames[starts] - first
    highs = np.maximum(np.append(lows[1:], last + 1 - first), lows + 1)
    top = _reduce_spans(np.maximum, largest, lows, highs)
    others = _reduce_spans(np.add, np.where(is_key, 0, sizes), lows, highs)
    more_keys = np.maximum(0, _reduce_spans(np.add, np.where(is_key, sizes, 0), lows, highs) - top)
    equal = _BITS_RELATIVE_TO_H264.get(source_codec, 1.0)
    spans = highs - lows
    key_bits = equal * 8 * top / pixels
    other_bits = equal * 8 * (others + _INTRA_SHARE * more_keys) / (pixels * spans)
    return key_bits, other_bits, spans


def lossless_slot_sizes(samples: int, bits: int, counts: Ints) -> Ints:
    """Return bytes for segments of `counts` pictures of `samples` samples, for any content.

    A lossless codec has no coarser quality, so this is more than FFV1 needs for noise.
    """
    each = _LOSSLESS_PICTURE_BYTES + samples * (bits + _LOSSLESS_SPARE_BITS) // 8
    return _SEGMENT_BYTES + each * counts


def gray_segment_size(codec: str, pixels: int, counts: Ints) -> Ints:
    """Return enough bytes for `counts` pictures of plain gray: a bit per block, or 40 bits for
    JPEG.

    A macroblock that is predicted from its neighbours without residual takes a fraction of a bit in
    each codec. A skipped one takes less.  JPEG needs 4 or 6 bits for each 8x8 block, and tables in
    each picture.
    """
    blocks = -(-pixels // 256)
    if codec in INTRA_ENCODERS:
        return counts * (_SEGMENT_BYTES + 5 * blocks)
    return _SEGMENT_BYTES + blocks // 8 + counts * (blocks // 64)


def _running_maximum(sizes: Ints, keys: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ints:
    """Return, for each packet, the largest size since the last key packet."""
    groups = np.cumsum(keys) << 40  # larger than any size, so each group starts over
    largest: Ints = np.maximum.accumulate(sizes + groups) - groups
    return largest


def _reduce_spans(reduce: np.ufunc, values: Ints, lows: Ints, highs: Ints) -> Ints:
    """Reduce `values` over each ``low <= i < high``; spans follow each other or overlap by one."""
    pairs = np.column_stack((lows, np.minimum(highs, len(values)))).ravel()
    closed = np.append(values, 0)  # allows the last span to end at the end
    reduced: Ints = reduce.reduceat(closed, pairs)[::2]
    return reduced


@dataclass(slots=True)
class PictureOrigins:
    """Where the pictures of a segment came from."""

    is_original: bool = True  #: all were decoded from the original, without tiles


class QualityProbe:
    """Measures the luma PSNR of encoded packets against their pictures, by decoding them at once.

    Luma is enough to decide whether a segment may become part of a rendition.  The rest is measured
    on promotion, because a reader of the view is waiting now.
    """

    def __init__(self, settings: EncoderSettings, extradata: bytes) -> None:
        self._size = settings.width, settings.height
        self._extradata = extradata
        self._check: CellVerifier[Pixels] | None = CellVerifier(settings.codec, luma_errors)

    def seen(self, pictures: Iterator[Pixels]) -> Iterator[Pixels]:
        """Yield the given 4:2:0 pictures unchanged on their way to the encoder."""
        width, height = self._size
        for picture in pictures:
            if self._check is not None:
                self._check.source(picture.reshape(-1)[: width * height].reshape(height, width))
            yield picture

    def packet(self, payload: bytes) -> None:
        if self._check is not None:
            try:
                self._check.packet(payload, self._extradata)
            except IntegrityError:  # the segment cannot be a candidate
                self._check = None

    @property
    def luma(self) -> float | None:
        """Luma PSNR in dB after the last packet; None if the packets do not show the pictures."""
        try:
            return None if self._check is None else self._check.finish().luma
        except IntegrityError:
            return None
