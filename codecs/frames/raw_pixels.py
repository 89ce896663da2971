"""From decoded frames to samples as files hold them."""

from __future__ import annotations

from vfsd.codecs.frames.array_formats import PixelLayout, require_turnable
from vfsd.codecs.frames.raw_layouts import file_layout, file_samples
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.errors import UsageError


class FilePixelConverter(PixelConverter):
    """As `PixelConverter`, but planes have any size, and come as one run of samples.

    `pixel_format` is any that `file_layout` knows; what is packed has the shape that it has there.
    """

    @classmethod
    def _laid_out(
        cls, pixel_format: str, width: int, height: int, rotation: int
    ) -> tuple[PixelLayout, tuple[int, ...]]:
        layout = file_layout(pixel_format)
        if width < 1 or height < 1:
            raise UsageError(f"size must be at least 1x1, got {width}x{height}")
        require_turnable(layout, pixel_format, rotation)
        if layout.channels:
            return layout, layout.shape(width, height)
        return layout, (file_samples(layout, width, height),)
