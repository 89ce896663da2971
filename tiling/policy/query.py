"""What a policy is told: queries, and what it may answer: tilings of SOTs."""

from __future__ import annotations

from dataclasses import dataclass, field

from vfsd.tiling.geometry import Rect
from vfsd.tiling.layout import TileLayout


@dataclass(frozen=True, slots=True)
class Size:
    """Whole stored pictures, scaled."""

    width: int  #: pixels
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


Aim = str | Rect | Size
"""What somebody looks for: a label, a region of the stored picture, or all of it in a size."""

Aims = frozenset[Aim]


@dataclass(frozen=True, slots=True)
class Query:
    """One read: everything of `aims` on `frames`.

    Of a label, the boxes that carry it; of a region, the region on every frame.
    """

    frames: range  #: of the video, half-open; with a step those in between are not looked at
    aims: Aims  #: one at least


@dataclass(frozen=True, slots=True)
class Tiling:
    """A layout of a SOT, and those of its tiles that are stored, ascending.

    What lies in other tiles is read from the original.  Without a tile there is nothing to make.
    """

    layout: TileLayout
    tiles: tuple[int, ...]
    _hash: int = field(init=False, repr=False, compare=False)
    """Kept, since policies look things up by it again and again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.layout, self.tiles)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def whole(cls, layout: TileLayout) -> Tiling:
        return cls(layout, tuple(range(layout.count)))


@dataclass(frozen=True, slots=True)
class Retile:
    """The advice to make `tiling`, in place of what the SOT has."""

    sot: int
    tiling: Tiling
    price: float  #: seconds that it is expected to take, see `vfsd.tiling.policy.world.Making`


def within(frames: range, asked: range) -> range:
    """Those of `asked`, which may have a step, that are among `frames`, which follow each other."""
    first = max(0, -(-(frames.start - asked.start) // asked.step))
    after = max(first, -(-(frames.stop - asked.start) // asked.step))
    return asked[first:after]


def in_order(aims: Aims) -> tuple[str, ...]:
    """The same for the same aims, whatever order sets have: breaks ties."""
    return tuple(sorted(str(aim) for aim in aims))
