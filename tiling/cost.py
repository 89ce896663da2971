"""Cost models: CPU seconds of decoding and encoding from counts of pixels, tiles, frames and bytes.

`fit_decode_cost` fits a `DecodeCost` to measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from vfsd.errors import UsageError


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


LOSSLESS = "lossless"
"""The tile codec that reproduces the source's pixels exactly."""
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
