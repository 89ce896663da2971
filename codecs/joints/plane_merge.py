"""Joining two coded pictures plane by plane: cut, merged, and put together again.

As `vfsd.codecs.joints.stitch_planes`, but of the planes that videos are coded in, so that what is
not merged stays what it was to the bit, and with all that has to be known kept as a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.joints.exposure import MOST_GAIN, Mask
from vfsd.codecs.joints.geometry import Picture, Size, inverse, resized
from vfsd.codecs.joints.seam import Cut
from vfsd.codecs.joints.stitch_planes import MERGES
from vfsd.codecs.joints.warp import there, warped

Plane = Picture
"""rows x columns of 8-bit samples."""
Planes = Sequence[Plane]
Share = tuple[int, int]
"""Columns and rows of pixels that share a sample of a plane."""

PIECES = ("left", "middle", "right")
"""In this order they lie in a pack, so that what either side needs lies together."""

_FLAT = 4.0
"""Levels of deviation below which noise is a good part of it, so that it tells no gain."""
_SAME_GAIN, _SAME_OFFSET = 0.01, 0.5
"""What differs by less is the same, and stays as it is."""


@dataclass(frozen=True, slots=True)
class Light:
    """Samples of the left picture from those of the right one: gain x sample + offset, by plane."""

    gains: tuple[float, ...]
    offsets: tuple[float, ...]

    def to_left(self, number: int, plane: Plane) -> Plane:
        levels = np.arange(256) * self.gains[number] + self.offsets[number]
        return self._mapped(number, plane, levels)

    def to_right(self, number: int, plane: Plane) -> Plane:
        levels = (np.arange(256) - self.offsets[number]) / self.gains[number]
        return self._mapped(number, plane, levels)

    def _mapped(self, number: int, plane: Plane, levels: npt.NDArray[np.floating[Any]]) -> Plane:
        if (self.gains[number], self.offsets[number]) == (1.0, 0.0):
            return plane
        table = np.clip(np.rint(levels), 0, 255).astype(np.uint8)
        return np.asarray(cv2.LUT(np.ascontiguousarray(plane), table), dtype=np.uint8)


@dataclass(frozen=True, eq=False, slots=True)
class Joint:
    """How the pictures of two cameras are kept as three pieces: the left one's columns before the
    seam, what both see, and the right one's columns from the edge on."""

    cut: Cut
    light: Light
    merge: str  #: one of `MERGES`
    shares: tuple[Share, ...]  #: by plane; all sizes and places of the cut are multiples of them
    turned: tuple[int, int] = (0, 0)
    """Clockwise degrees by which the left and the right video's pictures are turned upright, before
    anything is done with them."""

    @property
    def pieces(self) -> tuple[str, ...]:
        """Those that have columns, in the order of `PIECES`."""
        has = {"left": self.cut.seam > 0, "right": self.cut.edge < self.cut.right[0]}
        return tuple(piece for piece in PIECES if has.get(piece, True))

    @property
    def is_copy(self) -> bool:
        """Whether the right picture is nothing but the left one."""
        same = self.cut.left == self.cut.right and np.array_equal(self.cut.matrix, np.eye(3))
        return bool(same and self.pieces == ("middle",))

    def to_record(self) -> dict[str, Any]:
        """As `from_record` takes it: numbers and names that JSON keeps as they are."""
        cut = self.cut
        return {
            "left": list(cut.left),
            "right": list(cut.right),
            "matrix": cut.matrix.ravel().tolist(),
            "seam": cut.seam,
            "edge": cut.edge,
            "origin": list(cut.origin),
            "middle": list(cut.middle),
            "gains": list(self.light.gains),
            "offsets": list(self.light.offsets),
            "merge": self.merge,
            "shares": [list(share) for share in self.shares],
            "turned": list(self.turned),
        }

    @classmethod
    def from_record(cls, found: Mapping[str, Any]) -> Joint:
        """Raises `ValueError`, `KeyError` or `TypeError` for what is none."""
        matrix = np.array(found["matrix"], np.float64).reshape(3, 3)
        if not np.isfinite(matrix).all() or abs(np.linalg.det(matrix)) < 1e-12:
            raise ValueError("its homography must have an inverse")
        left, right, middle, origin = (
            _two(found[name]) for name in ("left", "right", "middle", "origin")
        )
        cut = Cut(left, right, matrix, int(found["seam"]), int(found["edge"]), origin, middle)
        place = cut.left_in_middle
        if not 0 <= cut.seam < left[0] or not 0 < cut.edge <= right[0]:
            raise ValueError("it is cut outside of its pictures")
        if min(place.x1, place.y1) < 0 or place.x2 > middle[0] or place.y2 > middle[1]:
            raise ValueError("its middle is too small")
        light = Light(
            tuple(float(gain) for gain in found["gains"]),
            tuple(float(offset) for offset in found["offsets"]),
        )
        shares = tuple(_two(share) for share in found["shares"])
        if not len(light.gains) == len(light.offsets) == len(shares) or 0 in light.gains:
            raise ValueError("it has other planes")
        turned = _two(found["turned"])
        if any(degrees not in (0, 90, 180, 270) for degrees in turned):
            raise ValueError("its pictures are turned by something else")
        return cls(cut, light, str(found["merge"]), shares, turned)


class Weaver:
    """Makes pieces of pictures and pictures of pieces, as a joint says.  Thread-safe."""

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self._cuts = [_on_plane(joint.cut, share) for share in joint.shares]
        self._back = [inverse(cut.to_middle) for cut in self._cuts]
        self._is_still = bool(np.array_equal(joint.cut.to_middle, np.eye(3)))
        self._seen: list[Mask] | None = None

    def middle(self, left: Planes, right: Planes) -> list[Plane]:
        """What both see, from whole pictures, in the left camera's pixels and exposure."""
        merge = MERGES[self.joint.merge]
        result = []
        for number, cut in enumerate(self._cuts):
            lit = self.joint.light.to_left(number, right[number])
            laid = self._projected(lit, number)
            place = cut.left_in_middle
            rows, columns = slice(place.y1, place.y2), slice(place.x1, place.x2)
            laid[rows, columns] = merge(
                left[number][:, cut.seam :],
                laid[rows, columns].copy(),
                self._masks()[number][rows, columns],
            )
            result.append(laid)
        return result

    def left(self, piece: Planes | None, middle: Planes, out: Planes) -> None:
        """Fill `out` with the left picture; `piece` is None where it has no columns."""
        for number, cut in enumerate(self._cuts):
            if piece is not None:
                out[number][:, : cut.seam] = piece[number]
            place = cut.left_in_middle
            out[number][:, cut.seam :] = middle[number][place.y1 : place.y2, place.x1 : place.x2]

    def right(self, middle: Planes, piece: Planes | None, out: Planes) -> None:
        """Fill `out` with the right picture; `piece` is None where it has no columns."""
        for number, cut in enumerate(self._cuts):
            size = cut.edge, cut.right[1]
            if self._is_still:
                laid = middle[number][: size[1], : size[0]]
            else:
                laid = warped(np.ascontiguousarray(middle[number]), self._back[number], size)
            out[number][:, : cut.edge] = self.joint.light.to_right(number, laid)
            if piece is not None:
                out[number][:, cut.edge :] = piece[number]

    def _projected(self, plane: Plane, number: int) -> Plane:
        cut = self._cuts[number]
        if self._is_still and cut.middle == cut.right:
            return plane.copy()
        return warped(np.ascontiguousarray(plane), cut.to_middle, cut.middle)

    def _masks(self) -> list[Mask]:
        if self._seen is None:
            self._seen = [there(cut.right, cut.to_middle, cut.middle) for cut in self._cuts]
        return self._seen


def light_of(pairs: Sequence[tuple[Planes, Planes]], cut: Cut, shares: Sequence[Share]) -> Light:
    """The light of pairs of whole pictures: means and deviations of what both see become equal, as
    in `vfsd.codecs.joints.exposure`, which unlike least squares is the same from either side."""
    gains: list[float] = []
    offsets: list[float] = []
    for number, share in enumerate(shares):
        mine = _on_plane(cut, share)
        seen = there(mine.right, mine.matrix, mine.left)
        left = np.concatenate([one[number][seen] for one, _ in pairs]).astype(np.float32)
        right = np.concatenate(
            [
                warped(np.ascontiguousarray(other[number]), mine.matrix, mine.left)[seen]
                for _, other in pairs
            ]
        ).astype(np.float32)
        gain, offset = _light(left, right, gains[0] if gains else 1.0)
        gains.append(gain)
        offsets.append(offset)
    return Light(tuple(gains), tuple(offsets))


def _light(
    left: npt.NDArray[np.float32], right: npt.NDArray[np.float32], otherwise: float
) -> tuple[float, float]:
    """(gain, offset) of one plane; `otherwise`: the gain of one that is flat."""
    if not len(left):
        return 1.0, 0.0
    spread = float(left.std()), float(right.std())
    gain = spread[0] / spread[1] if min(spread) >= _FLAT else otherwise
    if not 1 / MOST_GAIN <= gain <= MOST_GAIN:
        return 1.0, 0.0
    if abs(gain - 1) < _SAME_GAIN:
        gain = 1.0
    offset = float(left.mean()) - gain * float(right.mean())
    return (1.0, 0.0) if gain == 1.0 and abs(offset) < _SAME_OFFSET else (gain, offset)


def upright(planes: Planes, degrees: int) -> list[Plane]:
    """Views of planes that are turned clockwise; what is written to them is in the planes."""
    return [np.rot90(plane, -degrees // 90) for plane in planes]


def errors_of(shown: Planes, seen: Planes) -> list[float]:
    """Mean square errors, by plane."""
    return [
        float(cv2.norm(np.ascontiguousarray(one), np.ascontiguousarray(other), cv2.NORM_L2SQR))
        / other.size
        for one, other in zip(shown, seen, strict=True)
    ]


def is_divisible(size: Size, shares: Sequence[Share]) -> bool:
    """Whether pictures of that size have even sides, and whole samples in every plane."""
    return all(size[0] % max(2, a) == 0 and size[1] % max(2, d) == 0 for a, d in shares)


def _on_plane(cut: Cut, share: Share) -> Cut:
    """The same cut, in samples of a plane."""
    across, down = share
    if share == (1, 1):
        return cut

    def less(size: tuple[int, int]) -> tuple[int, int]:
        return size[0] // across, size[1] // down

    left, right = less(cut.left), less(cut.right)
    matrix = resized(cut.matrix, (cut.left, left), (cut.right, right))
    if np.array_equal(cut.matrix, np.eye(3)):
        matrix = np.eye(3)
    return Cut(
        left,
        right,
        matrix,
        cut.seam // across,
        cut.edge // across,
        less(cut.origin),
        less(cut.middle),
    )


def _two(found: Sequence[Any]) -> tuple[int, int]:
    first, second = found
    return int(first), int(second)
