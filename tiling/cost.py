"""Cost models: CPU seconds of decoding and encoding from counts of pixels, tiles, frames and
bytes. The work of a read is counted by TASM's model: beta * pixels + gamma * tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vfsd.errors import UsageError
from vfsd.tiling.layout import Rect, TileLayout


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """The work of a decoder."""

    starts: int = 0  #: decoders that start at a key picture
    pictures: int = 0
    pixels: int = 0  #: of all pictures
    bytes: float = 0.0  #: of all packets

    def __add__(self, other: DecodeWork) -> DecodeWork:
        return DecodeWork(
            self.starts + other.starts,
            self.pictures + other.pictures,
            self.pixels + other.pixels,
            self.bytes + other.bytes,
        )


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """CPU seconds per unit of work of one codec on one host."""

    start: float
    picture: float
    pixel: float
    byte: float

    def times(self, factor: float) -> DecodeCost:
        return DecodeCost(
            self.start * factor, self.picture * factor, self.pixel * factor, self.byte * factor
        )

    def seconds(self, work: DecodeWork) -> float:
        return (
            self.start * work.starts
            + self.picture * work.pictures
            + self.pixel * work.pixels
            + self.byte * work.bytes
        )


@dataclass(frozen=True, slots=True)
class RemoteCost:
    """Seconds of fetching packets from a bucket."""

    wait: float = 0.025  #: until the first byte of a request
    byte: float = 1 / 80e6  #: for each byte of one request
    streams: int = 16  #: requests at the same time that the bucket serves well
    request_cpu: float = 0.7e-3  #: CPU seconds of a request
    byte_cpu: float = 0.6e-9  #: CPU seconds to receive, compare and copy a byte

    def added_to(self, cost: DecodeCost, missing: float = 1.0, *, waits: float = 0.0) -> DecodeCost:
        """Return the cost of fetching packets and decoding them.

        `missing` is the share of the bytes that the cache lacks.  Everything that a read needs is
        fetched in one round trip.  Its latency is the same for each source, unless some source is
        cached: `waits` is the share of it that each start takes.
        """
        byte = cost.byte + missing * self.byte + self.byte_cpu
        start = cost.start + (self.request_cpu + waits * self.wait if missing else 0.0)
        return DecodeCost(start, cost.picture, cost.pixel, byte)

    def seconds(self, fetch: Fetch) -> float:
        """Return the predicted time of a fetch."""
        side_by_side = max(1, min(self.streams, fetch.requests))
        return fetch.rounds * self.wait + fetch.bytes * self.byte / side_by_side


@dataclass(frozen=True, slots=True)
class Fetch:
    """The part of a read that the cache lacks."""

    requests: int = 0
    bytes: int = 0
    rounds: int = 0  #: requests that wait for each other
    cached: int = 0  #: bytes that the cache has


LOSSLESS = "lossless"
"""The tile codec that reproduces the source's pixels exactly."""
WEB = "web"
"""The tile codec whose packets views copy for browsers: always 4:2:0 with 8 bits."""
RAW_CELLS = "raw"
"""Name in cost tables for lossless cells that are not compressed yet."""

JOINED_LEFT, JOINED_RIGHT = "joined-left", "joined-right"
"""Profiles of segments stored together with another camera's.  Pictures of the left one are
assembled from two pieces; those of the right one are also projected back.
"""
JOINED_SIDES = (JOINED_LEFT, JOINED_RIGHT)

VIEW_PROFILES = ("h264", "hevc", "av1")
"""Profiles of segments that were encoded for readers of views, by their format; the cheapest to
decode first.  They cost as much as originals in that codec, with similar encoder settings.
"""

DEFAULT_COSTS = {
    "h264": DecodeCost(0.0, 25e-6, 0.88e-9, 88e-9),
    "hevc": DecodeCost(19e-6, 38e-6, 1.32e-9, 114e-9),
    "vp9": DecodeCost(0.0, 16e-6, 0.69e-9, 111e-9),
    "av1": DecodeCost(56e-6, 22e-6, 0.55e-9, 102e-9),
    "fast": DecodeCost(82e-6, 11e-6, 0.68e-9, 28e-9),
    "small": DecodeCost(137e-6, 47e-6, 0.54e-9, 111e-9),
    "stitchable": DecodeCost(19e-6, 26e-6, 1.35e-9, 150e-9),
    WEB: DecodeCost(82e-6, 25e-6, 0.88e-9, 88e-9),
    LOSSLESS: DecodeCost(35e-6, 27e-6, 1.47e-9, 0.2e-9),
    RAW_CELLS: DecodeCost(9e-6, 14e-6, 0.0, 0.05e-9),
    JOINED_LEFT: DecodeCost(164e-6, 60e-6, 0.5e-9, 28e-9),
    JOINED_RIGHT: DecodeCost(164e-6, 120e-6, 6e-9, 28e-9),
}
"""Defaults by codec and tile codec, for hosts without measurements.

The two for lossless tiles were measured later, relative to "h264", and so were those for joined
pictures.  Two filmed pairs took 0.6 and 2 ns per pixel on the left.  The right took 4 and 8, as
half or most of the picture had to be projected back.
"""

OTHER_COST = DecodeCost(1e-4, 2e-5, 1.0e-9, 150e-9)
"""For codecs without an entry."""


@dataclass(frozen=True, slots=True)
class EncodeCost:
    """CPU seconds of making and verifying tiles, without decoding the source."""

    tile: float  #: per tile of a SOT of about a second
    pixel: float
    byte: float  #: of the result

    def times(self, factor: float) -> EncodeCost:
        return EncodeCost(self.tile * factor, self.pixel * factor, self.byte * factor)

    def seconds(self, tiles: int, pixels: int, size: float) -> float:
        return self.tile * tiles + self.pixel * pixels + self.byte * size


ENCODE_FAST = EncodeCost(4.2e-3, 2.6e-9, 860e-9)
"""For the tile codec `fast`.

From four filmed clips of 768x432 to 1920x1080: 30 pictures in 1x1, 3x3 and 6x8 tiles with rate
factors 20 and 23.  Bytes explain nearly all of it: a clip of 0.005 bytes per pixel takes 7 ns per
pixel, one of 0.021 takes 20.
"""

OTHER_ENCODE = ENCODE_FAST.times(3)
"""For tile codecs without measurements: `small` and `stitchable` take several times as long as
`fast`.
"""


VIEW_ENCODE = {"h264": 11e-9, "hevc": 25e-9, "av1": 28e-9, "mjpeg": 5.5e-9, "ffv1": 17e-9}
"""CPU seconds per pixel of an encoded view, by codec.

From 30 pictures each of four filmed clips, 768x432 to 1920x1080.  A single clip takes half to twice
as much, depending on noise and motion.
"""


def encode_cost(profile: str) -> EncodeCost:
    """Return the cost model of a tile codec."""
    return ENCODE_FAST if profile == "fast" else OTHER_ENCODE


def fit_decode_cost(
    works: Sequence[DecodeWork], seconds: Sequence[float]
) -> tuple[DecodeCost, float]:
    """Return the costs that best explain `seconds`, and R2, the share of their variance explained.

    Least squares, with each residual divided by the root of its time.  That lies between absolute
    errors, dominated by large reads, and relative errors, dominated by the smallest.  Costs are not
    negative: with four terms, the best unconstrained solution with positive terms, over all subsets
    of terms, solves the constrained problem.

    Raises `UsageError` for fewer than five measurements.
    """
    if len(works) < 5:
        raise UsageError(f"measurements must be at least 5, got {len(works)}")
    counts = np.array(
        [[work.starts, work.pictures, work.pixels, work.bytes] for work in works], np.float64
    )
    times = np.array(seconds, np.float64)
    weights = 1 / np.sqrt(times)
    rows = counts * weights[:, None]
    best, lowest = np.zeros(4), np.inf
    for count in range(1, 5):
        for terms in combinations(range(4), count):
            part, *_ = np.linalg.lstsq(rows[:, terms], times * weights, rcond=None)
            error = float(np.square(rows[:, terms] @ part - times * weights).sum())
            if (part >= 0).all() and error < lowest:
                best, lowest = np.zeros(4), error
                best[list(terms)] = part
    predicted = counts @ best
    spread = np.square(times - times.mean()).sum()
    r2 = 1 - float(np.square(times - predicted).sum() / spread) if spread > 0 else 0.0
    return DecodeCost(*map(float, best)), r2


Ints = npt.NDArray[np.int64]

Boxes = Sequence[Rect] | npt.NDArray[np.integer[Any]]
"""Rectangles, or an array of shape (N, 4) of x1, y1, x2, y2 in pixels, half-open.

Boxes in an array may extend outside the picture, as those of detectors do.
"""

FrameNumbers = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class WantedBoxes:
    """Boxes to read from one SOT (a run of frames that share a layout).

    With frame numbers, all boxes are one read.  A tile is decoded once, from the first frame of the
    SOT to the last frame that needs it.  Without them, every box is a separate read of the first
    frame.
    """

    corners: Ints  #: (N, 4): x1, y1, x2, y2
    lengths: Ints  #: (N,): frames decoded of a tile to reach each box
    together: bool  #: one read, not N

    @classmethod
    def of(cls, boxes: Boxes, frames: FrameNumbers | None, first_frame: int) -> WantedBoxes:
        """Build from boxes and their frames.

        Raises `UsageError` for an empty box, other shapes or types of arrays, and a frame before
        `first_frame`.
        """
        corners = _corners(boxes)
        if frames is None:
            return cls(corners, np.ones(len(corners), np.int64), False)
        numbers = np.asarray(frames, np.int64) if len(frames) else np.zeros(0, np.int64)
        if numbers.shape != (len(corners),):
            raise UsageError(
                f"frames must be one for each of {len(corners)} boxes, got {len(numbers)}"
            )
        if len(numbers) and numbers.min() < first_frame:
            raise UsageError(
                f"frames must be at least {first_frame}, the first of the SOT, got {numbers.min()}"
            )
        return cls(corners, numbers - first_frame + 1, True)

    def within(self, width: int, height: int, padding: int = 0) -> WantedBoxes:
        """Return the boxes enlarged by `padding` pixels on each side and clipped to the picture.

        Boxes outside the picture are dropped.  Raises `UsageError` for a negative `padding`.
        """
        if padding < 0:
            raise UsageError(f"padding must be 0 or more, got {padding}")
        inside = (
            (self.corners[:, :2] < (width, height)).all(axis=1)
            & (self.corners[:, 2:] > 0).all(axis=1)
        )  # fmt: skip
        grown = self.corners[inside] + (-padding, -padding, padding, padding)
        size = (width, height, width, height)
        return WantedBoxes(grown.clip(0, size), self.lengths[inside], self.together)


def _corners(boxes: Boxes) -> Ints:
    if isinstance(boxes, np.ndarray):
        if boxes.ndim != 2 or boxes.shape[1] != 4 or boxes.dtype.kind not in "iu":
            raise UsageError(
                f"boxes must be integers of shape (N, 4), got {boxes.dtype} {boxes.shape}"
            )
        corners = boxes.astype(np.int64)
    else:
        flat = [corner for box in boxes for corner in (box.x1, box.y1, box.x2, box.y2)]
        corners = np.array(flat, np.int64).reshape(-1, 4)
    empty = (corners[:, :2] >= corners[:, 2:]).any(axis=1)
    if empty.any():
        raise UsageError(f"a box must have at least one pixel, got {corners[empty][0].tolist()}")
    return corners


TILE_COST = 300_000
"""Pixels that take as long to decode as starting a tile: gamma / beta.

Measured with H.264 tiles of 30 frames on one core: 0.28 ms per tile and GOP, 0.94 ns per pixel.  It
includes the tile's packets, so it is paid once per tile and SOT, not per frame.
"""


class Decoded(NamedTuple):
    """The work of one or more reads."""

    pixels: int  #: TASM's P: sum over all runs of decoded frames times tile area
    tiles: int  #: TASM's T: number of runs, each through one tile from the start of the SOT

    def cost(self, tile_cost: int = TILE_COST) -> int:
        """Return the cost in pixels."""
        return self.pixels + tile_cost * self.tiles


def decoded_pixels(
    layout: TileLayout,
    boxes: Boxes,
    frames: FrameNumbers | None = None,
    first_frame: int = 0,
) -> Decoded:
    """Return the work of reading `boxes` from one SOT with this `layout`.

    With `frames`, the frame of each box, all boxes are one read.  A tile that any box touches is
    decoded from `first_frame`, the start of the SOT, to the last frame on which a box touches it.
    That is (last - first_frame + 1) times its area.  This is the rule of TASM's estimator, except
    that a tile counts once for T and not once per frame, see `TILE_COST`.

    Without `frames`, every box is a separate read, which decodes one frame of the tiles that it
    touches.

    Areas outside the picture cost nothing.  Raises `UsageError` as `WantedBoxes.of` does.
    """
    wanted = WantedBoxes.of(boxes, frames, first_frame)
    tile, box = intersecting_pairs(layout, wanted)
    lengths = np.zeros(layout.count, np.int64)
    if wanted.together:
        np.maximum.at(lengths, tile, wanted.lengths[box])
        tiles = int(np.count_nonzero(lengths))
    else:
        np.add.at(lengths, tile, wanted.lengths[box])
        tiles = len(box)
    return Decoded(int(lengths @ tile_areas(layout)), tiles)


def decoded_frames(
    layout: TileLayout, boxes: Boxes, frames: FrameNumbers, first_frame: int
) -> Ints:
    """Return the number of frames that one read of `boxes` decodes of each tile of a SOT.

    Same rule and errors as `decoded_pixels`.
    """
    wanted = WantedBoxes.of(boxes, frames, first_frame)
    tile, box = intersecting_pairs(layout, wanted)
    lengths = np.zeros(layout.count, np.int64)
    np.maximum.at(lengths, tile, wanted.lengths[box])
    return lengths


def decoded_spans(frames: Sequence[int], first: int, gop: int) -> list[range]:
    """Return the runs of frames that a read of `frames`, ascending, decodes from key frames on.

    There is a key frame at `first` and every `gop` frames after it.  A decoder that stands before a
    key frame goes on, so runs that touch are one.
    """
    start = frames[0] - (frames[0] - first) % gop
    if frames[-1] - frames[0] == len(frames) - 1:  # consecutive
        return [range(start, frames[-1] + 1)]
    spans = [range(start, frames[0] + 1)]
    for frame in frames[1:]:
        key = frame - (frame - first) % gop
        if key <= spans[-1].stop:
            spans[-1] = range(spans[-1].start, frame + 1)
        else:
            spans.append(range(key, frame + 1))
    return spans


KEY_PICTURE_BYTES = 4.0
"""Typical size of a key picture of a tile, in other pictures."""


def gop_bytes(frames: int, gop: int, key_bytes: float = KEY_PICTURE_BYTES) -> float:
    """Return the bytes of `frames` pictures with a key picture every `gop`, in units of another
    picture.
    """
    return frames + (key_bytes - 1) * -(-frames // gop)


def tile_areas(layout: TileLayout) -> Ints:
    """Return the pixels of each tile."""
    return np.outer(layout.heights, layout.widths).ravel()


def intersecting_pairs(layout: TileLayout, wanted: WantedBoxes) -> tuple[Ints, Ints]:
    """Return (tile numbers, box numbers) for all pairs of a box and a tile that it touches."""
    x1, y1, x2, y2 = wanted.corners.T
    left, columns = _part_spans(layout.column_edges, x1, x2)
    top, rows = _part_spans(layout.row_edges, y1, y2)
    touched = columns * rows
    box = np.repeat(np.arange(len(touched)), touched)
    # Index among the tiles of one box.
    nth = np.arange(len(box)) - np.repeat(np.cumsum(touched) - touched, touched)
    tile = (top[box] + nth // columns[box]) * layout.columns + left[box] + nth % columns[box]
    return tile, box


def _part_spans(edges: tuple[int, ...], start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the first part between `edges` that each range touches, and the number of parts."""
    # Called a million times by policies: `clip` takes several times as long as these two calls.
    bounds = np.array(edges)
    first = np.maximum(bounds.searchsorted(start, side="right"), 1) - 1
    after = np.minimum(bounds.searchsorted(end, side="left"), len(edges) - 1)
    return first, np.maximum(after - first, 0)
