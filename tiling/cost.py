"""Cost models: CPU seconds of decoding and encoding from counts of pixels, tiles, frames and
bytes, and the fit of a `DecodeCost` to measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from vfsd.errors import UsageError


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """What a decoder is given to do."""

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
    """CPU seconds for each unit of work of one codec, on one host."""

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


LOSSLESS = "lossless"
"""Name of the tile codec whose pixels are the source's."""
RAW_CELLS = "raw"
"""What costs of its cells are called as long as they are not compressed."""

JOINED_LEFT, JOINED_RIGHT = "joined-left", "joined-right"
"""What segments are called that are kept together with another camera's: the left one's pictures
are put together from two pieces, the right one's are projected back as well."""
JOINED_SIDES = (JOINED_LEFT, JOINED_RIGHT)

VIEW_PROFILES = ("h264", "hevc", "av1")
"""What segments are called, by their format, that were encoded for somebody who read a view: the
cheapest to decode first.  They cost what originals in it do, which are encoded much alike."""

DEFAULT_COSTS = {
    "h264": DecodeCost(0.0, 25e-6, 0.88e-9, 88e-9),
    "hevc": DecodeCost(19e-6, 38e-6, 1.32e-9, 114e-9),
    "vp9": DecodeCost(0.0, 16e-6, 0.69e-9, 111e-9),
    "av1": DecodeCost(56e-6, 22e-6, 0.55e-9, 102e-9),
    "fast": DecodeCost(82e-6, 11e-6, 0.68e-9, 28e-9),
    "small": DecodeCost(137e-6, 47e-6, 0.54e-9, 111e-9),
    "stitchable": DecodeCost(19e-6, 26e-6, 1.35e-9, 150e-9),
    LOSSLESS: DecodeCost(35e-6, 27e-6, 1.47e-9, 0.2e-9),
    RAW_CELLS: DecodeCost(9e-6, 14e-6, 0.0, 0.05e-9),
    JOINED_LEFT: DecodeCost(164e-6, 60e-6, 0.5e-9, 28e-9),
    JOINED_RIGHT: DecodeCost(164e-6, 120e-6, 6e-9, 28e-9),
}
"""By codec, and by name of the tile codec, where nothing was measured on the host.

The two of lossless tiles were measured later, beside "h264", and are in proportion to what is said
of that.  Those of joined pictures, too: two filmed pairs took 0.6 and 2 ns a pixel on the left, and
4 and 8 on the right, as half or most of the picture had to be projected back.
"""

OTHER_COST = DecodeCost(1e-4, 2e-5, 1.0e-9, 150e-9)
"""Of codecs that are not named."""


@dataclass(frozen=True, slots=True)
class EncodeCost:
    """CPU seconds of making tiles, with the check of what was made; without decoding the source."""

    tile: float  #: for each tile of a SOT of about a second
    pixel: float
    byte: float  #: of the result

    def times(self, factor: float) -> EncodeCost:
        return EncodeCost(self.tile * factor, self.pixel * factor, self.byte * factor)

    def seconds(self, tiles: int, pixels: int, size: float) -> float:
        return self.tile * tiles + self.pixel * pixels + self.byte * size


ENCODE_FAST = EncodeCost(4.2e-3, 2.6e-9, 860e-9)
"""Of the tile codec `fast`.

From four filmed clips of 768x432 to 1920x1080, 30 pictures in 1x1, 3x3 and 6x8 tiles with rate
factors 20 and 23.  Bytes explain nearly all: a clip of 0.005 bytes a pixel takes 7 ns a pixel, one
of 0.021 takes 20.
"""

OTHER_ENCODE = ENCODE_FAST.times(3)
"""Of tile codecs of which nothing was measured: `small` and `stitchable` take several times as
long as `fast`."""


VIEW_ENCODE = {"h264": 11e-9, "hevc": 25e-9, "av1": 28e-9, "mjpeg": 5.5e-9, "ffv1": 17e-9}
"""CPU seconds for each pixel of a view that is encoded, by codec.

From 30 pictures each of four filmed clips, 768x432 to 1920x1080: of one clip it is half to twice as
much, as its noise and its motion go.
"""


def encode_cost(profile: str) -> EncodeCost:
    """Of a tile codec, by the rule."""
    return ENCODE_FAST if profile == "fast" else OTHER_ENCODE


def fit_decode_cost(
    works: Sequence[DecodeWork], seconds: Sequence[float]
) -> tuple[DecodeCost, float]:
    """The costs that explain `seconds` best, and R2: the share of their variance explained.

    Least squares, each divided by its time: between the absolute error, to which only large reads
    count, and the relative one, to which reads of a fraction of a millisecond count as much.  No
    cost is negative: with four terms, the best of all subsets of them whose plain solution is
    positive is the solution of that problem.

    Raises `UsageError` for fewer than five measurements.
    """
    if len(works) < 5:
        raise UsageError(f"{len(works)} measurements do not tell what decoding costs")
    counts = np.array(
        [[work.starts, work.pictures, work.pixels, work.bytes] for work in works], np.float64
    )
    times = np.array(seconds, np.float64)
    weights = 1 / np.sqrt(times)
    rows = counts * weights[:, None]
    best, least = np.zeros(4), np.inf
    for count in range(1, 5):
        for terms in combinations(range(4), count):
            part, *_ = np.linalg.lstsq(rows[:, terms], times * weights, rcond=None)
            error = float(np.square(rows[:, terms] @ part - times * weights).sum())
            if (part >= 0).all() and error < least:
                best, least = np.zeros(4), error
                best[list(terms)] = part
    predicted = counts @ best
    spread = np.square(times - times.mean()).sum()
    r2 = 1 - float(np.square(times - predicted).sum() / spread) if spread > 0 else 0.0
    return DecodeCost(*map(float, best)), r2
