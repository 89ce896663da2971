"""`VideoRenditions`: whole frames of one video in other sizes; `video.renditions`."""

from __future__ import annotations

from vfsd.codecs.frames.frame_transforms import require_smaller
from vfsd.core.model import Segment
from vfsd.core.timebase import Seconds
from vfsd.derive.import_rendition import arrays_to_stored_format, take_pictures
from vfsd.derive.retile import OnProgress, retile
from vfsd.derive.tile_settings import PlannedSegment, TileSettings
from vfsd.errors import UsageError
from vfsd.read.video_context import VideoContext
from vfsd.tiling import TileLayout
from vfsd.validation import value_or_default, width_and_height
from vfsd.write.correct_table import require_verified
from vfsd.write.frame_input import (
    FrameInput,
    RawInput,
    is_raw_input,
    iter_input_frames,
    iter_raw_frames,
)


class VideoRenditions:
    """Stores whole frames of one video in other sizes, so that reads of these sizes decode less.

    video.renditions.make((640, 360))
    video.renditions.write(pixels, size=(640, 360))
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("renditions")
        self._video = video

    def make(
        self,
        size: tuple[int, int],
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        settings: TileSettings | None = None,
        jobs: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """Scale, encode and store the frames.

        Reads of that size, of regions that fit it, and of a half or a third of it, use the
        rendition where it is cheaper and good enough.  Existing segments stay; returns the new
        ones.

        Args:
            size: (width, height) of the displayed frame in pixels: even, and not larger than it.
            span: Seconds, start inclusive and end exclusive; default: the whole video.
            settings: The codec and the quality.
            jobs: The number of segments to encode at a time.
            on_progress: Called with (frames done, frames in all); it may raise to stop.

        Raises as `VideoTiles.retile`.
        """
        size = width_and_height(size)
        video = self._video
        video.parts.require_writable()
        require_verified(video)
        media = video.original.media
        width, height = size if media.rotation % 180 == 0 else size[::-1]
        require_smaller(width, height, media)
        if (width, height) == (media.width, media.height):
            raise UsageError(
                f"size must differ from that of the video, got {size[0]}x{size[1]}",
                hint="`retile` stores frames of this size in tiles",
            )
        layout = TileLayout.untiled(width, height)
        return retile(
            video.parts,
            video.tools.pool,
            video.info,
            video.table,
            [PlannedSegment(frames, layout) for frames in video.sequences(span)],
            value_or_default(settings, TileSettings),
            jobs=jobs,
            on_progress=on_progress,
        )

    def write(
        self,
        data: FrameInput | RawInput,
        *,
        size: tuple[int, int],
        span: tuple[Seconds, Seconds | None] | None = None,
        format: str = "rgb24",
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """Store frames of the video that the caller has scaled to `size`.

        Each frame is compared with that of a read in this size.  The luma of a segment of about a
        second needs the store's `minimum_psnr`; that of each frame may have 3 dB less, and the
        chroma of each frame 6 dB less.  Reads of the rendition have at least that quality, too.
        Existing segments stay; returns the new ones.

        Args:
            data: Arrays, frames or bare samples: one picture for each frame in `span`.
            size: (width, height) in pixels.
            span: Seconds, start inclusive and end exclusive; default: the whole video.
            format: The pixel format of `data`.
            on_progress: Called with (frames done, frames in all); it may raise to stop.

        Raises:
            RefusedMediaError: The pictures differ from the video, or their number does.  Nothing
                is stored then.
            VfsdError: Others as for `VideoTiles.retile`.
        """
        video = self._video
        frames, size = video.frames_in(span), width_and_height(size)
        if is_raw_input(data):
            arrays = iter_raw_frames(data, format, size)
        else:
            arrays = (picture for picture, _ in iter_input_frames(data, format))
        offered = arrays_to_stored_format(arrays, format, size, video.original.media)
        return take_pictures(video, offered, size, frames, given_as=format, on_progress=on_progress)
