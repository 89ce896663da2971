"""Encoding a video anew so that only some areas of it keep their quality.

What lies outside is taken from the start of each run of about two seconds, low-passed, and stands
still until the next one, so that it takes next to no bytes.  What comes out is an ordinary file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from vfsd.codecs import VideoFrame
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.encoding.compare import composed, low_passed, masked_error, pairs, picture_error
from vfsd.codecs.encoding.file_encoder import EncodedRun, Measure
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LogicalVideo
from vfsd.core.psnr import psnr_of
from vfsd.derive.reencode import ArchiveWork, Compared
from vfsd.derive.roi import KeptAreas
from vfsd.errors import UsageError
from vfsd.storage.context import Parts

_RADIUS = 4
"""Pixels to each side over which the background is averaged."""
_PLANAR = ("yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj422p", "yuvj444p", "gray")


class DecayWork(ArchiveWork):
    """Encodes one video; within `areas` no picture has more than the error `limit`.

    Raises `UsageError` also for pictures that cannot be put together from two.
    """

    def __init__(
        self,
        parts: Parts,
        video: LogicalVideo,
        table: FrameTable,
        codec: str,
        limit: float,
        areas: KeptAreas,
    ) -> None:
        super().__init__(parts, video, table, codec, limit)
        pixels = video.original.media.pixel_format
        if pixels.removesuffix("10le") not in _PLANAR:
            raise UsageError(f"pictures in {pixels} do not decay")
        self._areas = areas
        self._before: VideoFrame | None = None  # the background of the run before
        self._behind: VideoFrame | None = None  # that of the one at hand

    def encoded(self, decoder: FrameDecoder, frames: range) -> EncodedRun:
        run = super().encoded(decoder, frames)
        self._before = self._behind
        return run

    def compare(
        self, source: FrameDecoder, made: FrameDecoder, on_frame: Callable[[], None]
    ) -> Compared:
        """Areas that are kept are held to the limit, in each picture; the rest is measured."""
        whole = inside = outside = 0.0
        count = 0
        for number, one, other in pairs(source, made, range(len(self._table))):
            if number == 0:
                self._require_same_siting(other)
            mask = self._areas.mask(number)
            error = picture_error(one, other)
            whole, inside = max(whole, error), max(inside, masked_error(one, other, mask))
            rest = error if mask is None else masked_error(one, other, 255 - mask)
            outside, count = outside + rest * rest, count + 1
            on_frame()
        details = {
            "boxes": len(self._areas),
            "inside": psnr_of(inside) if inside else None,
            "outside": psnr_of(math.sqrt(outside / count)) if outside else None,
        }
        return Compared(whole, inside, details)

    def _pictures(self, decoder: FrameDecoder, frames: range) -> Iterator[VideoFrame]:
        background: VideoFrame | None = None
        for number, picture in self._decoded(decoder, frames):
            mask = self._areas.mask(number)
            if background is None:
                background = low_passed(picture, _RADIUS)
                if mask is not None and self._before is not None:
                    # What is kept here now moves on, and should leave no ghost behind.
                    background = composed(background, self._before, mask)
                self._behind = background
            yield composed(background, picture, mask)

    def _measure_from(self, frames: range) -> Measure:
        return lambda ordinal, one, other: masked_error(
            one, other, self._areas.mask(frames.start + ordinal)
        )
