"""How a run of frames of two cameras could be joined: what is tried, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.frames.planes import plane_samples
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.codecs.joints.geometry import Matrix, Size, displacement, resized, shares
from vfsd.codecs.joints.plane_merge import Joint, light_of
from vfsd.codecs.joints.seam import Cut, cut
from vfsd.codecs.joints.stitch_planes import unprojected
from vfsd.core.model import MediaInfo
from vfsd.labels.detectors.resize import fitted
from vfsd.overlap.features import Matches, features_of, matches
from vfsd.overlap.homography import align
from vfsd.overlap.overlap_pair import COPY_MOVES, FINENESS
from vfsd.read.joined_reader import shares_of

LOOKED_AT = 3
"""Pictures of a run."""
_LONGEST = 640
"""Pixels of the longer side of what homographies are found in."""


class JointFit:
    """Two cameras in a run of frames, of which some pictures are looked at.

    Pictures, and what is said of them, are upright, and were `turned` before.
    """

    def __init__(
        self,
        left: Sequence[VideoFrame],
        right: Sequence[VideoFrame],
        media: tuple[MediaInfo, MediaInfo],
        merge: str,
        turned: tuple[int, int] = (0, 0),
    ) -> None:
        chosen = np.unique(np.linspace(0, len(left) - 1, LOOKED_AT).round().astype(int)).tolist()
        self.left = [left[at] for at in chosen]  #: that are looked at
        self.right = [right[at] for at in chosen]
        self._media = media
        self._merge = merge
        self._turned = turned
        self._sizes: tuple[Size, Size] = (
            (media[0].width, media[0].height),
            (media[1].width, media[1].height),
        )

    def joints(self, known: Matrix | None) -> Iterator[Joint]:
        """Those that would leave out some pixels: with the identity where that is near, with the
        homography that is `known` from elsewhere, and with one that these pictures tell."""
        if known is not None:
            yield from self._with(known)
        own = self._own()
        if own is not None:
            yield from self._with(own)

    def _with(self, matrix: Matrix) -> Iterator[Joint]:
        left, right = self._sizes
        if left == right and displacement(matrix, left, right) <= COPY_MOVES:
            yield from self._cut(np.eye(3), unprojected.__name__)
        yield from self._cut(matrix, self._merge)

    def _cut(self, matrix: Matrix, merge: str) -> Iterator[Joint]:
        found = cut(matrix, *self._sizes)
        if found is None or not _is_fine_enough(found) or not _saves(found):
            return
        planes = [
            (plane_samples(one), plane_samples(other))
            for one, other in zip(self.left, self.right, strict=True)
        ]
        samples = shares_of(self.left[0])
        light = light_of(planes, found, samples)
        yield Joint(found, light, merge, samples, self._turned)

    def _own(self) -> Matrix | None:
        """What these pictures tell; None where they do not, or not all the same."""
        small: list[Size] = [fitted(*size, _LONGEST) for size in self._sizes]
        looks = [
            PixelConverter(media, size=size) for media, size in zip(self._media, small, strict=True)
        ]
        found: list[Matches] = []
        for pair in zip(self.left, self.right, strict=True):
            one, other = (look.convert(frame) for look, frame in zip(looks, pair, strict=True))
            found.append(matches(features_of(one), features_of(other)))
        alignment = align(found, small[0], small[1])
        if alignment is None or not alignment.fixed:
            return None
        left, right = self._sizes
        return resized(alignment.matrices[0], (small[0], left), (small[1], right))


def _is_fine_enough(found: Cut) -> bool:
    """Whether the left picture has about as many pixels of the same thing as the right one."""
    left, right = shares(found.matrix, found.left, found.right)
    return left * _pixels(found.left) >= FINENESS * right * _pixels(found.right)


def _saves(found: Cut) -> bool:
    left, right = _pixels(found.left), _pixels(found.right)
    return found.left_kept * left + found.right_kept * right < left + right


def _pixels(size: Size) -> int:
    return size[0] * size[1]
