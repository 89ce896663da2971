"""How many bytes a segment of an encoded view is given, before a single one of it is made.

A formula of what the frame table knows: how many bytes the source spends on its largest picture
in the group, and on the others, per pixel.  Bytes per pixel of a new encode grow more slowly than
those of the source, since a strongly compressed source leaves noise that is dear to keep; smaller
pictures need more bytes per pixel.  The constants are fitted to 1279 segments of a second for
either codec, from 28 filmed clips (five of them in eight other codecs too) and the sample videos,
160x120 to 3840x2160, shown whole, cut, scaled and thinned out.  Places are 1.4 (H.264) times as
large as what goes into them, in the mean of all segments; one segment in five is made anew, by 2
steps of quality.  Places of HEVC were 2.4 times as large, and one in five made anew; they have
been 1.18 times that since (docs/adr/view-layout.md).  AV1 and JPEG are fitted to 198 segments of
20 filmed clips (full, half and quarter size, cut, thinned out): places are 1.9 times as large in
AV1, 1.7 in JPEG, and one segment in five or six is made again.  Since SVT-AV1 4.1 those of AV1 are
1.18 times that, too: one in eight of 208 segments of 20 clips was larger.

What is given too little is encoded again, more coarsely, until it fits: the floor is enough for
the coarsest of all, which is pictures of one gray.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vfsd.codecs.encoding.encoder import INTRA_CODECS
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints, PacketFlag

_LOSSLESS_SPARE_BITS = 2
"""For each sample; noise of even distribution took 0.5 to 0.7 (8 bits) or 0.4 (10 bits) more than
it has, a quarter of a megapixel and more."""
_LOSSLESS_PICTURE_BYTES = 16 << 10
"""For what the contexts of a picture's slices have to learn: 1 KiB of noise of 16 to 176 pixels."""

_COMPARED_TO_H264 = {
    # Bytes that H.264 would have needed, for one of this codec.
    "hevc": 2.0,
    "av1": 1.7,
    "vp9": 1.2,
    "vp8": 0.6,
    "mpeg4": 0.9,
    "mpeg2video": 0.8,
    "mpeg1video": 0.8,
    "mjpeg": 0.9,
}
_INTRA_SHARE = 0.35
"""Of the bytes of a further key picture: what it might have cost had it not been one."""


@dataclass(frozen=True, slots=True)
class _Fit:
    """Bits per pixel: ``factor * source ** exponent``, for key pictures and for the others."""

    key: float
    key_exponent: float
    other: float
    other_exponent: float
    scale_exponent: float


# Other formulas, state from other segments, giving up after four pictures, and x265's VBV were
# measured and rejected: see docs/adr/view-layout.md.
_MARGIN = 1.4
_FITS = {
    "h264": _Fit(1.15, 0.6, 0.30, 0.36, -0.4),
    "hevc": _Fit(0.94, 0.8, 0.47, 0.60, -0.6),
    "av1": _Fit(1.18, 0.8, 0.354, 0.50, -0.4),
    "mjpeg": _Fit(1.2, 0.67, 0.0, 0.0, -0.26),
}
_KEY_LEAST, _OTHER_LEAST = 0.05, 0.002  # bits per pixel
_REGION_EXPONENT = -0.22
_RATE_EXPONENT = -0.1

_PICTURE_BYTES = 48
"""Headers of a packet and of what the container adds to it."""
_SEGMENT_BYTES = 640


_Bits = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Shape:
    """What becomes of the source's pictures.  Pixels."""

    frame: int  #: of a frame of the source
    region: int  #: of the part that is shown
    picture: int  #: of a picture of the result


def allot(
    codec: str, source_codec: str, shape: Shape, table: FrameTable, frames: Ints, starts: Ints
) -> Ints:
    """Bytes for each segment, without what the container adds once.

    `frames` is the frame of each picture, `starts` the pictures that segments begin with.
    """
    counts = np.diff(np.append(starts, len(frames)))
    key_bits, other_bits, spans = _source_bits(source_codec, shape.frame, table, frames, starts)
    fit = _FITS[codec]
    scale = (shape.picture / shape.region) ** fit.scale_exponent
    part = (shape.region / shape.frame) ** _REGION_EXPONENT
    thinned = np.minimum(1.0, counts / spans) ** _RATE_EXPONENT
    key = fit.key * key_bits**fit.key_exponent * scale + _KEY_LEAST
    if codec in INTRA_CODECS:
        other = key
    else:
        other = fit.other * other_bits**fit.other_exponent * scale * part * thinned + _OTHER_LEAST
    bits = _MARGIN * shape.picture * (key + other * (counts - 1))
    likely: Ints = (bits / 8).astype(np.int64) + _PICTURE_BYTES * counts
    return likely + coarsest(codec, shape.picture, counts)


def _source_bits(
    source_codec: str, pixels: int, table: FrameTable, frames: Ints, starts: Ints
) -> tuple[_Bits, _Bits, Ints]:
    """(bits per pixel of the largest picture, of the others, frames of the source) by segment.

    In the bits that H.264 would have needed; `pixels` is the size of a frame.
    """
    first, last = int(frames[0]), int(frames[-1])
    begin = table.decode_run(first).first_packet
    packets = table.packets_of(range(first, last + 1))
    columns = table.columns(begin, int(packets.max()) + 1)
    keys = columns.flags & PacketFlag.KEY != 0
    largest = _running_maximum(columns.size, keys)[packets - begin]
    sizes = columns.size[packets - begin]
    is_key = keys[packets - begin]
    # The frames of the source between the first picture of a segment and that of the next.
    lows = frames[starts] - first
    highs = np.maximum(np.append(lows[1:], last + 1 - first), lows + 1)
    top = _spans(np.maximum, largest, lows, highs)
    others = _spans(np.add, np.where(is_key, 0, sizes), lows, highs)
    more_keys = np.maximum(0, _spans(np.add, np.where(is_key, sizes, 0), lows, highs) - top)
    equal = _COMPARED_TO_H264.get(source_codec, 1.0)
    spans = highs - lows
    key_bits = equal * 8 * top / pixels
    other_bits = equal * 8 * (others + _INTRA_SHARE * more_keys) / (pixels * spans)
    return key_bits, other_bits, spans


def allot_lossless(samples: int, bits: int, counts: Ints) -> Ints:
    """Bytes for segments of so many pictures of `samples` samples, whatever these show.

    There is nothing coarser to fall back on, so that this is what FFV1 needs for noise, and more.
    """
    each = _LOSSLESS_PICTURE_BYTES + samples * (bits + _LOSSLESS_SPARE_BITS) // 8
    return _SEGMENT_BYTES + each * counts


def coarsest(codec: str, pixels: int, counts: Ints) -> Ints:
    """Enough for so many pictures of one gray: a bit a block, at most; of JPEG 40.

    A macroblock that is predicted from its neighbours and has no residual takes a fraction of a
    bit in any of them, one that is skipped less.  JPEG has no less than 4 or 6 bits for each of its
    blocks of 8x8, and tables in each picture.
    """
    blocks = -(-pixels // 256)
    if codec in INTRA_CODECS:
        return counts * (_SEGMENT_BYTES + 5 * blocks)
    return _SEGMENT_BYTES + blocks // 8 + counts * (blocks // 64)


def _running_maximum(sizes: Ints, keys: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ints:
    """For each packet: the largest since the last key packet."""
    groups = np.cumsum(keys) << 40  # more than any size: a new group starts anew
    largest: Ints = np.maximum.accumulate(sizes + groups) - groups
    return largest


def _spans(reduce: np.ufunc, values: Ints, lows: Ints, highs: Ints) -> Ints:
    """`values` reduced over each ``low <= i < high``; spans follow each other or overlap by one."""
    pairs = np.column_stack((lows, np.minimum(highs, len(values)))).ravel()
    closed = np.append(values, 0)  # so that the last span may end at the end
    reduced: Ints = reduce.reduceat(closed, pairs)[::2]
    return reduced
