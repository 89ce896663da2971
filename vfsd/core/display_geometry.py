"""Converts rectangles and layouts between the displayed frame and the coded picture, and scales
pixel aspect ratios.
"""

from __future__ import annotations

from fractions import Fraction

from vfsd.core.model import MediaInfo
from vfsd.tiling import Rect, TileLayout


def to_coded_rect(region: Rect, media: MediaInfo) -> Rect:
    """Return where a region of the displayed frame lies in the stored picture."""
    width, height = media.width, media.height
    if media.rotation == 90:
        region = Rect(region.y1, height - region.x2, region.y2, height - region.x1)
    elif media.rotation == 180:
        region = Rect(width - region.x2, height - region.y2, width - region.x1, height - region.y1)
    elif media.rotation == 270:
        region = Rect(width - region.y2, region.x1, width - region.y1, region.x2)
    return _mirrored(region, media)


def to_display_rect(area: Rect, media: MediaInfo) -> Rect:
    """Return where an area of the stored picture lies on the displayed frame."""
    width, height = media.width, media.height
    area = _mirrored(area, media)
    if media.rotation == 90:
        return Rect(height - area.y2, area.x1, height - area.y1, area.x2)
    if media.rotation == 180:
        return Rect(width - area.x2, height - area.y2, width - area.x1, height - area.y1)
    if media.rotation == 270:
        return Rect(area.y1, width - area.x2, area.y2, width - area.x1)
    return area


def to_coded_layout(layout: TileLayout, media: MediaInfo) -> TileLayout:
    """Return a layout of the displayed frame in the orientation of the stored picture."""
    widths, heights = layout.widths, layout.heights
    if media.rotation == 90:
        layout = TileLayout(heights, widths[::-1])
    elif media.rotation == 180:
        layout = TileLayout(widths[::-1], heights[::-1])
    elif media.rotation == 270:
        layout = TileLayout(heights[::-1], widths)
    return _mirrored_layout(layout, media)


def to_display_layout(layout: TileLayout, media: MediaInfo) -> TileLayout:
    """Return a layout of the stored picture in the orientation of the displayed frame."""
    layout = _mirrored_layout(layout, media)
    widths, heights = layout.widths, layout.heights
    if media.rotation == 90:
        return TileLayout(heights[::-1], widths)
    if media.rotation == 180:
        return TileLayout(widths[::-1], heights[::-1])
    if media.rotation == 270:
        return TileLayout(heights, widths[::-1])
    return layout


def _mirrored(area: Rect, media: MediaInfo) -> Rect:
    if not media.mirrored:
        return area
    return Rect(media.width - area.x2, area.y1, media.width - area.x1, area.y2)


def _mirrored_layout(layout: TileLayout, media: MediaInfo) -> TileLayout:
    return TileLayout(layout.widths[::-1], layout.heights) if media.mirrored else layout


_HIGHEST = 65535
"""Streams store a pixel aspect ratio as two 16-bit numbers."""


def scaled_aspect(ratio: Fraction, before: tuple[int, int], after: tuple[int, int]) -> Fraction:
    """Return the pixel aspect ratio of a picture scaled from `before` to `after`, (width, height).

    The picture keeps its displayed shape, exactly if 16-bit numbers can express it.
    """
    exact = ratio * Fraction(before[0] * after[1], before[1] * after[0])
    return 1 / _bounded_ratio(1 / exact) if exact > 1 else _bounded_ratio(exact)


def upright_aspect(media: MediaInfo) -> Fraction | None:
    """Return the pixel aspect ratio after rotation to the displayed orientation."""
    ratio = media.sample_aspect_ratio
    return 1 / ratio if ratio and media.rotation % 180 else ratio


def _bounded_ratio(ratio: Fraction) -> Fraction:
    return max(ratio.limit_denominator(_HIGHEST), Fraction(1, _HIGHEST))
