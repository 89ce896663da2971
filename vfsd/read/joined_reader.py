"""Pictures of cameras that are joined, put together from the pieces that a pack holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.pack import PackedCell
from vfsd.codecs.frames.chroma_location import blank_like
from vfsd.codecs.frames.planes import plane_samples, shares
from vfsd.codecs.joints.geometry import Size
from vfsd.codecs.joints.plane_merge import Joint, Plane, Share, Weaver, upright
from vfsd.errors import IntegrityError
from vfsd.tiling.cost import JOINED_LEFT, JOINED_RIGHT

_NEEDED = {JOINED_LEFT: ("left", "middle"), JOINED_RIGHT: ("middle", "right")}
"""Pieces, by side."""


@dataclass(frozen=True, eq=False, slots=True)
class JoinedSide:
    """One of two cameras.  Thread-safe."""

    profile: str  #: one of `vfsd.tiling.cost.JOINED_SIDES`
    weaver: Weaver
    pieces: tuple[str, ...]  #: that its pictures are made of
    places: tuple[int, ...]  #: where these are among the cells of the pack

    @property
    def turned(self) -> int:
        """Clockwise degrees by which its pictures are turned upright."""
        return self.weaver.joint.turned[self.profile == JOINED_RIGHT]

    @property
    def size(self) -> Size:
        """Of its pictures, not turned upright."""
        cut = self.weaver.joint.cut
        size = cut.left if self.profile == JOINED_LEFT else cut.right
        return size if self.turned % 180 == 0 else size[::-1]

    def extent(self, cells: Sequence[PackedCell]) -> PackedCell:
        """The part of the pack that its pieces take, as one cell without packets of its own."""
        mine = [cells[place] for place in self.places]
        ends = (mine[0].offsets[0], mine[-1].offsets[-1])
        return PackedCell(self.profile, *self.size, b"", ends)

    def picture(self, decoded: Sequence[VideoFrame]) -> VideoFrame:
        """A picture of its own from those of its pieces, in their order.

        Raises `IntegrityError` for pieces of other forms than the joint is for.
        """
        # What the pieces of one camera say; the middle says what the left one's pictures do.
        like = decoded[0 if self.profile == JOINED_LEFT else -1]
        if shares_of(like) != self.weaver.joint.shares:
            raise IntegrityError(f"pieces of a joint are coded in {like.format.name}")
        made = blank_like(like, *self.size)
        planes = {
            piece: plane_samples(picture)
            for piece, picture in zip(self.pieces, decoded, strict=True)
        }
        out = self.upright(made)
        if self.profile == JOINED_LEFT:
            self.weaver.left(planes.get("left"), planes["middle"], out)
        else:
            self.weaver.right(planes["middle"], planes.get("right"), out)
        return made

    def upright(self, picture: VideoFrame) -> list[Plane]:
        """Views of the samples of one of its pictures, turned upright."""
        return upright(plane_samples(picture), self.turned)


def side_of(
    described: Mapping[str, Any] | None, cells: Sequence[PackedCell], profile: str
) -> JoinedSide:
    """How the pictures of `profile` are made of the cells of a pack that says that of its joint.

    Raises `IntegrityError` where these are not what it needs.
    """
    if described is None:
        raise IntegrityError("a pack says nothing of how cameras are joined")
    try:
        joint = Joint.from_record(described)
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"what a pack says of its joint is damaged: {error}") from error
    cut = joint.cut
    sizes = {
        "left": (cut.seam, cut.left[1]),
        "middle": cut.middle,
        "right": (cut.right[0] - cut.edge, cut.right[1]),
    }
    if [(cell.width, cell.height) for cell in cells] != [sizes[piece] for piece in joint.pieces]:
        raise IntegrityError("a pack holds other pieces than its joint needs")
    mine = tuple(piece for piece in joint.pieces if piece in _NEEDED[profile])
    places = tuple(joint.pieces.index(piece) for piece in mine)
    return JoinedSide(profile, Weaver(joint), mine, places)


def shares_of(picture: VideoFrame) -> tuple[Share, ...]:
    """How many columns and rows share a sample of each plane."""
    return tuple(shares(picture, number) for number in range(len(picture.planes)))
