"""Frames of a video that others have made: the part of `vfsd.Video` that takes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from vfsd.api.video_info import VideoFacts
from vfsd.codecs import VideoFrame
from vfsd.core.model import Segment
from vfsd.core.timebase import Seconds
from vfsd.derive.import_rendition import arrays_to_stored_format, import_frames, require_importable
from vfsd.derive.retile import OnProgress
from vfsd.derive.tile_settings import PlannedSegment
from vfsd.tiling import TileLayout, frame_intersection
from vfsd.validation import width_and_height
from vfsd.write.frame_input import (
    FrameInput,
    RawInput,
    is_raw_input,
    iter_input_frames,
    iter_raw_frames,
)


class VideoWrites(VideoFacts):
    """Takes frames in another size."""

    def write(
        self,
        data: FrameInput | RawInput,
        *,
        size: tuple[int, int],
        span: tuple[Seconds, Seconds | None] | None = None,
        format: str = "rgb24",
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """Store frames of the video that somebody has scaled to `size`, as a rendition.

        `data` are arrays, frames or bare samples in `format`, one picture for each frame in `span`
        (default: all).  Each is compared with what a read gives in that size: luma of a second or
        so (a segment) has to have the store's `minimum_psnr`, of each frame 3 dB less, chroma of
        each frame 6 dB less.  Later reads of it have at least that, too.  What is there already
        stays; new segments are returned.

        Raises `RefusedMediaError` for pictures that are not those of the video, or not as many;
        nothing of them stays then.  Otherwise as `retile`.
        """
        frames, size = self.frames_in(span), width_and_height(size)
        if is_raw_input(data):
            arrays = iter_raw_frames(data, format, size)
        else:
            arrays = (picture for picture, _ in iter_input_frames(data, format))
        offered = arrays_to_stored_format(arrays, format, size, self.original.media)
        return self.take(offered, size, frames, given_as=format, on_progress=on_progress)

    def take(
        self,
        offered: Iterator[VideoFrame],
        size: tuple[int, int],
        frames: range,
        *,
        given_as: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """As `write`, of pictures in the pixel format of the original; `given_as`: their own."""
        require_importable(self.original.media, *size)
        self._require_verified()
        layout, done = TileLayout.untiled(*size), itertools.count(1)
        parts = (frame_intersection(run, frames) for run in self.sequences())
        planned = [PlannedSegment(part, layout) for part in parts if part]

        def on_frame() -> None:
            if on_progress is not None:
                on_progress(next(done), len(frames))

        return import_frames(
            self._parts,
            self._tools.pool,
            self.info,
            self.table,
            planned,
            offered,
            given_as=given_as,
            on_frame=on_frame,
        )
