"""`ReadOutput`: region, size and pixel format of the pictures that a read returns.

It computes a lower bound of their PSNR against the original for each source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vfsd.codecs.frames.pixel_layouts import PixelLayout, raw_layout
from vfsd.codecs.frames.planes import chroma_subsampling
from vfsd.core.display_geometry import to_coded_rect
from vfsd.core.model import Cell, MediaInfo, PhysicalVideo
from vfsd.core.psnr import (
    COLOR_ERROR_FACTOR,
    LOSSLESS_PSNR,
    RANGE_ERROR_FACTOR,
    ROUNDING_ERROR,
    SCALING_ERROR_FACTOR,
    PsnrFigures,
    chained_psnr,
    error_from_psnr,
    psnr_from_error,
)
from vfsd.tiling import Rect


@dataclass(frozen=True, slots=True)
class ReadOutput:
    """A region of the displayed frame, scaled, in a layout of `vfsd.codecs.frames.pixel_layouts`.

    PSNR values are those of the samples of the result: of gray, or the minimum over Y, U and V or
    over R, G and B.
    """

    media: MediaInfo  #: of the original
    region: Rect
    size: tuple[int, int]
    pixel_format: str

    def psnr_of(self, cells: Sequence[Cell], picture: tuple[int, int]) -> float:
        """Return the minimum dB of a result made from `cells` of pictures of size `picture`; 0 if
        unknown.

        The cells cover the region.  For scaled pictures only the measured result is known: whole
        pictures in that size. In full size, a bound for other results follows from the error of the
        planes.
        """
        in_full_size = picture == (self.media.width, self.media.height)
        if in_full_size and all(cell.planes >= LOSSLESS_PSNR for cell in cells):
            return LOSSLESS_PSNR  # equal samples give equal results
        if not in_full_size:
            is_known = self._is_measured and self._is_all_of(picture)
            return min(map(self._figure, cells)) if is_known else 0.0
        if self._is_measured and self._is_unscaled:
            return self._within(cells, self._figure, lambda error: error)
        return self._within(cells, lambda cell: cell.planes, self._carried)

    def psnr_of_original(self, original: PhysicalVideo) -> float:
        """Return the minimum dB against the first original of a result made from `original`.

        Infinite if `original` is the first one.  It follows from the error of the original's
        planes.
        """
        error = original.error
        if error <= 0:
            return math.inf
        is_coded = not self._layout.channels and self._is_measured and self._is_unscaled
        return psnr_from_error(error if is_coded else self._carried(error))

    @property
    def _layout(self) -> PixelLayout:
        return raw_layout(self.pixel_format)

    @property
    def _is_measured(self) -> bool:
        """Whether the PSNR of cells was measured for samples like those of the result."""
        layout, media = self._layout, self.media
        if layout.channels:
            return layout.bits == 8 or media.bit_depth > 8
        name = media.pixel_format
        is_alike = name.startswith("yuv") and chroma_subsampling(name) == layout.subsampled
        return is_alike and layout.bits == media.bit_depth

    @property
    def _is_unscaled(self) -> bool:
        across, down = self._layout.subsampled
        region, area = self.region, to_coded_rect(self.region, self.media)
        is_on_grid = not area.x1 % across and not area.y1 % down
        return is_on_grid and self.size == (region.width, region.height)

    def _is_all_of(self, picture: tuple[int, int]) -> bool:
        """Return whether the result is whole pictures of that size."""
        size = picture if self.media.rotation % 180 == 0 else picture[::-1]
        return self.size == size and self.region == self.media.frame_rect

    def _within(
        self,
        cells: Sequence[Cell],
        figure: Callable[[Cell], float],
        carried: Callable[[float], float],
    ) -> float:
        """Return the dB that corresponds to the largest error of samples in the region."""
        figures = [figure(cell) for cell in cells]
        if min(figures) <= 0:
            return 0.0
        return min(LOSSLESS_PSNR, psnr_from_error(carried(self._largest_error(cells, figures))))

    def _largest_error(self, cells: Sequence[Cell], figures: Sequence[float]) -> float:
        """Return the largest error of samples in the region for cells with the given dB.

        All error of a cell that extends outside the region may lie inside it: the mean square grows
        as the area shrinks. A cell has at most as many chroma samples as if its sides were even,
        and the region has at least its share.

        Cells with odd sides count as if the rows and columns that make them even had no error,
        because measurements of older versions include them in the mean.  For others the bound is
        slightly too low.
        """
        errors = [0.0 if one >= LOSSLESS_PSNR else error_from_psnr(one) for one in figures]
        area = to_coded_rect(self.region, self.media)
        measured = [_with_even_sides(cell.rect) for cell in cells]
        if all(area.contains(cell.rect) for cell in cells):
            shares = [whole / cell.rect.area for cell, whole in zip(cells, measured, strict=True)]
            return max(error * math.sqrt(n) for error, n in zip(errors, shares, strict=True))
        squares = sum(error**2 * whole for error, whole in zip(errors, measured, strict=True))
        return math.sqrt(squares / area.area)

    def _figure(self, cell: Cell) -> float:
        """Return the dB that was measured for such samples."""
        return {0: cell.planes, 1: cell.gray}.get(self._layout.channels, cell.colour)

    def _carried(self, error: float) -> float:
        """Return the largest error of the result if no plane has a larger error than `error`."""
        layout = self._layout
        gain = {0: 1.0, 1: RANGE_ERROR_FACTOR}.get(layout.channels, COLOR_ERROR_FACTOR)
        # Gray is computed from luma pixel by pixel, and so are colours of eight bits.
        is_local = layout.channels == 1 or (layout.channels > 1 and self.media.bit_depth == 8)
        if not (is_local and self._is_unscaled):
            gain *= SCALING_ERROR_FACTOR
        return gain * error + 2 * ROUNDING_ERROR


def _with_even_sides(rect: Rect) -> int:
    """Return the area of a cell after its sides are made even."""
    return (rect.width + rect.width % 2) * (rect.height + rect.height % 2)


def likeness_to_first(
    likeness: PsnrFigures, original: PhysicalVideo, picture: tuple[int, int]
) -> PsnrFigures:
    """Return lower bounds against the first original of pictures that have `likeness` to
    `original`.

    The pictures have the size `picture`.  Values that were not measured stay 0.
    """
    if original.error <= 0:
        return likeness
    media = original.media
    in_full_size = picture == (media.width, media.height)
    bits = None if in_full_size else media.bit_depth

    def coded(figure: float) -> float:
        return chained_psnr(figure, original.error, scaled_to_bits=bits) if figure else 0.0

    def seen(figure: float, pixel_format: str) -> float:
        size = picture if media.rotation % 180 == 0 else picture[::-1]
        form = ReadOutput(media, media.frame_rect, size, pixel_format)
        before = error_from_psnr(form.psnr_of_original(original))
        return chained_psnr(figure, before) if figure else 0.0

    return PsnrFigures(
        coded(likeness.luma),
        seen(likeness.gray, "gray"),
        coded(likeness.planes),
        seen(likeness.colour, "rgb24"),
    )
