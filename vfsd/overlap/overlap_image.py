"""Draws two videos of the same place in one picture (RGB)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import cv2
import numpy as np

from vfsd.codecs.joints.overlap_geometry import (
    Homography,
    PixelArray,
    PointArray,
    cut_at_seam,
    image_corners,
    image_size,
    project_points,
)
from vfsd.codecs.joints.plane_merge import warp_with_mask
from vfsd.overlap.overlap_search import VideoPair, frame_of
from vfsd.read.read_context import ReadContext

_LONGEST, _NARROWEST = 1600, 800
"""Maximum of the longer side, and minimum of the width, which leaves room for text."""
_MARGIN = 12
_FONT = cv2.FONT_HERSHEY_DUPLEX
_BACKGROUND_COLOR = (24, 24, 24)
_TEXT_COLOR = (255, 255, 255)
_LEFT, _RIGHT, _SEAM = (255, 220, 40), (90, 200, 250), (255, 120, 110)
_LINE = 30
"""Pixels of a line of text."""


def draw_pair(tools: ReadContext, pair: VideoPair, time: Fraction) -> PixelArray:
    """Return the frames of both at `time`, below lines with the results.

    For cameras that move relative to each other, uses the homography of the nearest examined
    moment. Raises `OutOfRangeError` after the end of either, and `IntegrityError`.
    """
    found = pair.overlap
    nearest = min(range(len(found.times)), key=lambda at: abs(found.times[at] - time))
    left, right = frame_of(tools, pair.left, time), frame_of(tools, pair.right, time)
    return draw(left, right, found.matrices[nearest], pair)


def draw(left: PixelArray, right: PixelArray, matrix: Homography, pair: VideoPair) -> PixelArray:
    """Draw two displayed frames of a pair; `matrix` maps the right one to the left one."""
    found = pair.overlap
    quad = project_points(matrix, image_corners(image_size(right)))
    around = np.concatenate([quad, image_corners(image_size(left))])
    low, high = around.min(axis=0), around.max(axis=0)
    across, longest = float(high[0] - low[0]), float((high - low).max())
    scale = min(max(1.0, _NARROWEST / across), _LONGEST / longest)
    place = np.array(
        [
            [scale, 0, _MARGIN - low[0] * scale],
            [0, scale, _MARGIN - low[1] * scale],
            [0, 0, 1],
        ]
    )
    width, height = (int(side) + 2 * _MARGIN for side in (high - low) * scale)
    canvas = _blended(left, found.agreement.exposure.to_left(right), place, matrix, (width, height))
    _outline(canvas, project_points(place, image_corners(image_size(left))), _LEFT)
    _outline(canvas, project_points(place, quad), _RIGHT)
    names = [("left: " + pair.left.name, _LEFT), ("right: " + pair.right.name, _RIGHT)]
    here = None if found.cut is None else cut_at_seam(matrix, image_size(left), image_size(right))
    if here is not None:
        seam = np.array([[here.seam, 0], [here.seam, left.shape[0] - 1]], np.float64)
        edge = np.array([[here.edge, 0], [here.edge, right.shape[0] - 1]], np.float64)
        _dashed(canvas, project_points(place, seam), _SEAM)
        _dashed(canvas, project_points(place @ matrix, edge), _SEAM)
        names.append((f"cut at column {here.seam} and {here.edge}", _SEAM))
    seen = found.agreement
    lines = [
        f"{found.verdict}{': ' if found.why else ''}{found.why}",
        f"{found.shares[0]:.0%} and {found.shares[1]:.0%} in common, {seen.psnr_left:.1f} and "
        f"{seen.psnr_right:.1f} dB, {'fixed' if found.fixed else 'moving'}"
        + (f", {pair.common_share:.0%} of both in common" if found.common_bytes else ""),
    ]
    heading = [*((line, _TEXT_COLOR) for line in lines), *names]
    return np.vstack([_headline(canvas.shape[1], heading), canvas])


def _blended(
    left: PixelArray,
    right: PixelArray,
    place: Homography,
    matrix: Homography,
    size: tuple[int, int],
) -> Any:
    """Return the mean of both where they overlap."""
    one, here = warp_with_mask(left, place, size)
    other, there = warp_with_mask(right, place @ matrix, size)
    canvas = np.full((size[1], size[0], 3), _BACKGROUND_COLOR, np.uint8)
    canvas[here] = one[here]
    canvas[there] = other[there]
    both = here & there
    canvas[both] = cv2.addWeighted(one, 0.5, other, 0.5, 0)[both]
    return canvas


def _outline(canvas: Any, polygon: PointArray, colour: tuple[int, int, int]) -> None:
    points = polygon.round().astype(np.int32)
    cv2.polylines(canvas, [points], True, colour, 2, cv2.LINE_AA)


def _dashed(canvas: Any, ends: PointArray, colour: tuple[int, int, int]) -> None:
    start, stop = ends
    count = max(1, int(np.linalg.norm(stop - start) / 12))
    for part in range(0, count, 2):
        a, b = (start + (stop - start) * min(1, at / count) for at in (part, part + 1))
        cv2.line(canvas, _pixel(a), _pixel(b), colour, 2, cv2.LINE_AA)


def _pixel(point: Any) -> tuple[int, int]:
    return round(float(point[0])), round(float(point[1]))


def _headline(width: int, lines: Sequence[tuple[str, tuple[int, int, int]]]) -> PixelArray:
    strip: Any = np.full((_LINE * len(lines) + _MARGIN, width, 3), _BACKGROUND_COLOR, np.uint8)
    for at, (text, colour) in enumerate(lines):
        plain = text.encode("ascii", "replace").decode()  # the font has only ASCII
        size = 0.62
        while size > 0.2 and cv2.getTextSize(plain, _FONT, size, 1)[0][0] > width - 2 * _MARGIN:
            size *= 0.95
        base = _MARGIN, _LINE * (at + 1) - 6
        cv2.putText(strip, plain, base, _FONT, size, colour, 1, cv2.LINE_AA)
    return np.asarray(strip, dtype=np.uint8)
