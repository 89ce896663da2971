"""How far pictures are from those that they were made from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import av
import cv2
import numpy as np
import numpy.typing as npt

from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.decoding.side_data import UNKNOWN, carried_data, kind_named
from vfsd.codecs.frames.color import colors_of
from vfsd.codecs.frames.planes import copy_colors, copy_picture, plane_pixels, shares
from vfsd.errors import IntegrityError, RefusedMediaError


def picture_error(one: av.VideoFrame, other: av.VideoFrame) -> float:
    """The error of that plane that differs most; see `vfsd.core.psnr`.

    Raises `IntegrityError` where the pictures have not the same size and samples.
    """
    planes, others = plane_pixels(one), plane_pixels(other)
    if [plane.shape for plane in planes] != [plane.shape for plane in others]:
        raise IntegrityError(
            f"a picture of {one.width}x{one.height} {one.format.name} has become one of "
            f"{other.width}x{other.height} {other.format.name}"
        )
    squares = (
        float(cv2.norm(a, b, cv2.NORM_L2SQR)) / a.size for a, b in zip(planes, others, strict=True)
    )
    return math.sqrt(max(squares)) / ((1 << one.format.components[0].bits) - 1)


def pairs(
    source: FrameDecoder, made: FrameDecoder, frames: range
) -> Iterator[tuple[int, av.VideoFrame, av.VideoFrame]]:
    """(number, as it is, as it is in the other file) of each of `frames`.

    Raises `IntegrityError` where one of the files does not yield a frame, and `RefusedMediaError`
    where samples of both do not mean the same, or both do not come with the same side data.
    """
    pictures, others = (each.stream(frames.start, frames.stop) for each in (source, made))
    for (number, one), (other_number, other) in zip(pictures, others, strict=True):
        assert number == other_number
        if colors_of(one) != colors_of(other):
            raise RefusedMediaError(f"the colours of frame {number} would mean something else")
        _require_same_data(number, carried_data(one), carried_data(other))
        yield number, one, other


def require_kept_data(number: int, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """Raises `RefusedMediaError` where side data of a frame would be lost or changed.

    Both are of `vfsd.codecs.decoding.side_data.carried_data`.
    """
    unknown = {UNKNOWN} & before.keys()  # it cannot be compared
    changed = {kind for kind in before.keys() & after.keys() if before[kind] != after[kind]}
    if lost := sorted((before.keys() - after.keys()) | changed | unknown):
        named = ", ".join(map(kind_named, lost))
        raise RefusedMediaError(
            f"side data of frame {number} would be lost or changed: {named}",
            hint="the original stays; a copy without that data can be replaced",
        )


def _require_same_data(
    number: int, before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> None:
    require_kept_data(number, before, after)
    if added := sorted(after.keys() - before.keys()):
        named = ", ".join(map(kind_named, added))
        raise RefusedMediaError(f"side data would be added to frame {number}: {named}")


def composed(
    background: av.VideoFrame, picture: av.VideoFrame, mask: npt.NDArray[np.uint8] | None
) -> av.VideoFrame:
    """A new picture: `picture` where the mask is set, `background` elsewhere.

    The mask is rows x columns of luma, and whole samples of chroma are set in it or are not.
    """
    made = av.VideoFrame(picture.width, picture.height, picture.format.name)
    copy_picture(background, made)
    if mask is not None:
        planes = zip(plane_pixels(picture), plane_pixels(made), strict=True)
        for number, (source, target) in enumerate(planes):
            np.copyto(target, source, where=_of_plane(mask, picture, number) != 0)
    return made


def low_passed(picture: av.VideoFrame, radius: int) -> av.VideoFrame:
    """A new picture, each sample the mean of those around it, `radius` of luma to each side."""
    made = av.VideoFrame(picture.width, picture.height, picture.format.name)
    copy_colors(picture, made)
    planes = zip(plane_pixels(picture), plane_pixels(made), strict=True)
    for number, (source, target) in enumerate(planes):
        across, down = shares(picture, number)
        size = (2 * (radius // across) + 1, 2 * (radius // down) + 1)
        target[...] = cv2.blur(source, size)
    return made


def masked_error(
    one: av.VideoFrame, other: av.VideoFrame, mask: npt.NDArray[np.uint8] | None
) -> float:
    """As `picture_error`, where the mask is set only; 0 where it is nowhere."""
    if mask is None:
        return 0.0
    worst = 0.0
    planes = zip(plane_pixels(one), plane_pixels(other), strict=True)
    for number, (a, b) in enumerate(planes):
        mine = _of_plane(mask, one, number)
        count = int(np.count_nonzero(mine))
        if count:
            worst = max(worst, float(cv2.norm(a, b, cv2.NORM_L2SQR, mine)) / count)
    return math.sqrt(worst) / ((1 << one.format.components[0].bits) - 1)


def _of_plane(
    mask: npt.NDArray[np.uint8], picture: av.VideoFrame, number: int
) -> npt.NDArray[np.uint8]:
    across, down = shares(picture, number)
    return np.ascontiguousarray(mask[::down, ::across])
