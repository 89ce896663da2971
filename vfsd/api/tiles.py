"""`VideoTiles`, layouts and tiles of one video, and `VideoRenditions`, its frames in other sizes;
`video.tiles` and `video.renditions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from reprlib import repr as shown
from typing import TYPE_CHECKING

from vfsd.api.reading import displayed_size, view_of
from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.codecs.frames.to_array import needed_area
from vfsd.codecs.frames.transforms import require_smaller
from vfsd.core.label_query import Labels
from vfsd.core.model import Segment
from vfsd.core.timebase import Span
from vfsd.core.view_request import Size
from vfsd.derive.catalog_world import (
    PARTITION_ALPHA,
    Partition,
    ReadEstimate,
    estimate_read,
    layouts_around,
)
from vfsd.derive.deferred_compression import OnUnread, compress_segments, compressible, wanted_level
from vfsd.derive.import_rendition import arrays_to_stored_format, import_pictures
from vfsd.derive.rendition_plan import (
    BROWSER_SETTINGS,
    BROWSER_WIDTH,
    GopLength,
    browser_plan,
    gop_frames,
)
from vfsd.derive.retile import OnProgress, retile
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.errors import UsageError
from vfsd.read.read_context import VideoContext
from vfsd.read.read_plan import select_frames
from vfsd.tiling import Region, TileLayout, fine_layout, parse_layout
from vfsd.validation import padding_pixels, value_or_default, whole_number
from vfsd.write.frame_index import require_verified
from vfsd.write.frame_input import (
    FrameInput,
    RawInput,
    is_raw_input,
    iter_input_frames,
    iter_raw_frames,
)

if TYPE_CHECKING:
    from vfsd.derive.what_if import Advice
    from vfsd.derive.what_if import OnProgress as OnCompared
    from vfsd.derive.workload import WorkloadQuery


class VideoTiles:
    """Plans and makes tiles of one video, and estimates their use.

    video.tiles.retile("uniform:2x3")
    video.tiles.retile(video.tiles.around("car"))
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("tiles")
        self._video = video

    def sequences(self, span: Span | None = None, seconds_each: float = 1.0) -> list[range]:
        """The runs of frames that share a layout: those with frames in `span` (default: all).

        Each begins with a key frame and has about `seconds_each` seconds.  `span` is in seconds,
        end exclusive.
        """
        return self._video.sequences(span, seconds_each)

    def around(
        self,
        labels: Labels | None = None,
        *,
        partition: Partition = fine_layout,
        span: Span | None = None,
        codec: str = "fast",
        padding: int = 0,
        alpha: float = PARTITION_ALPHA,
        seconds_each: float = 1.0,
    ) -> list[PlannedSegment]:
        """Plan layouts around labelled boxes for `retile`, where they pay (see `layouts_around`).

        Only the tiles with a box are stored, unless the codec needs all of them.  To store all:
        ``[one.whole() for one in video.tiles.around("car")]``.

        Args:
            labels: As for `VideoLabels.query`; default: all boxes.
            partition: `vfsd.tiling.fine_layout` gives each object its own tile,
            `vfsd.tiling.coarse_layout` one
                tile to all.
            span: Seconds, start inclusive and end exclusive; default: the whole video.
            codec: The tile codec.
            padding: Pixels added around each box.
            alpha: A layout pays where its reads need at most this share of the pixels.
            seconds_each: The approximate length of a segment in seconds.
        """
        from vfsd.api.labels import VideoLabels

        video = self._video
        media = video.original.media
        padding = padding_pixels(padding)
        chosen = tile_codec(codec, media)
        planned = layouts_around(
            VideoLabels(video).query(labels, span=span).columns(),
            media,
            video.sequences(span, seconds_each),
            chosen.rules,
            partition,
            padding=padding,
            alpha=alpha,
        )
        return planned if chosen.takes_parts else [one.whole() for one in planned]

    def retile(
        self,
        layout: TileLayout | str | Sequence[PlannedSegment],
        *,
        span: Span | None = None,
        settings: TileSettings | None = None,
        gop: GopLength = None,
        jobs: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """Store the pixels in tiles as well, so that reads of a region decode less.

        Existing tiles stay.  Returns the new segments.  After an error, finished segments stay.

        Args:
            layout: One layout for `span`, as a value or text such as ``uniform:2x3`` (rows x
                columns), or a list of segments.  Layouts are of the stored picture, before it is
                turned upright.
            span: Seconds, start inclusive and end exclusive; default: the whole video.
            settings: The codec and the quality.
            gop: Frames from one key picture to the next, 1 to 300; default: about a second, or
                the length in a list of segments.  ``"auto"`` chooses by the logged reads.
            jobs: The number of segments to encode at a time.
            on_progress: Called with (frames done, frames in all); it may raise to stop.

        Raises:
            ReadOnlyError: The store was opened read-only.
            UsageError: The tile codec does not take the layout or the pictures.
            ExtraMissingError: The encoder is not installed.
            NotFoundError: The video, or its file, is gone.
            OutdatedError: The video has other bytes by now.
            IntegrityError: The file is damaged.
            NoSpaceError: The disk is full.
        """
        video = self._video
        video.parts.require_writable()
        require_verified(video)
        settings = value_or_default(settings, TileSettings)
        media = video.original.media
        if isinstance(layout, str):
            codec = tile_codec(settings.codec, media)
            layout = parse_layout(layout, media.width, media.height, codec.rules)
        length = gop_frames(video, gop, None, settings)
        if isinstance(layout, TileLayout):
            sequences = video.sequences(span, gop=length)
            layout = [PlannedSegment(frames, layout) for frames in sequences]
        if gop is not None:
            layout = [replace(one, gop=length) for one in _planned(layout)]
        return retile(
            video.parts,
            video.tools.pool,
            video.info,
            video.table,
            _planned(layout),
            settings,
            jobs=jobs,
            on_progress=on_progress,
        )

    def compress(
        self,
        level: int | None = None,
        *,
        jobs: int | None = None,
        on_progress: OnProgress | None = None,
        on_unread: OnUnread | None = None,
    ) -> list[Segment]:
        """Compress lossless tiles and renditions further; the pixels stay the same.

        Returns the segments that changed, as they are now.

        Args:
            level: 1 to 19; default: as budgets need it (see `vfsd.derive.deferred_compression`),
                not at all while they are less than a quarter full.
            jobs: The number of segments to compress at a time.
            on_progress: Called with (bytes done, bytes in all).
            on_unread: Called with each unreadable segment and the error; the segment stays as it
                is.  Without it, the first one raises.

        Raises as `vfsd.derive.deferred_compression.compress_segments`.
        """
        video = self._video
        video.parts.require_writable()
        if level is None:
            level = wanted_level(video.parts, video.info.id)
            if not level:
                return []
        waiting = compressible(video.parts, video.info, level)
        return compress_segments(
            video.parts, waiting, level, jobs=jobs, on_progress=on_progress, on_unread=on_unread
        )

    def estimate(
        self,
        planned: Sequence[PlannedSegment],
        *,
        span: Span | None = None,
        frames: int | range | slice | None = None,
        region: Region | None = None,
        settings: TileSettings | None = None,
    ) -> ReadEstimate:
        """Estimate the cost of a read if `planned`, and no other tiles, existed.

        Args:
            planned: Segments with their layouts, as for `retile`.
            span: Seconds, start inclusive and end exclusive.
            frames: Frame numbers; not together with `span`.
            region: The region of the read; default: the whole frame.
            settings: The codec and the quality of the tiles.
        """
        video = self._video
        snapshot = video.snapshot()
        media = snapshot.original.media
        view = view_of(snapshot, span=span, frames=frames, region=region)
        tiles = video.usual_tiles(snapshot.info)
        return estimate_read(
            select_frames(view, snapshot.original, snapshot.table),
            needed_area(media, "rgb24", view.region or media.frame_rect, None),
            snapshot.original,
            snapshot.table,
            _planned(planned),
            tiles.costs,
            settings=value_or_default(settings, TileSettings),
            known=tiles.segments,
        )

    def advise(
        self,
        workload: Sequence[WorkloadQuery] | None = None,
        *,
        codec: str = "fast",
        newest: int = 10_000,
        on_progress: OnCompared | None = None,
    ) -> Advice:
        """Replay tiling strategies, those of TASM and of vfsd, on a workload.

        Costs are those of this host.  Nothing is decoded or encoded.  To make the advised tiles:

            advice = video.tiles.advise([WorkloadQuery("car", span=(0, 60), times=20)])
            video.tiles.retile(advice.layouts())

        Args:
            workload: The queries; default: the reads of regions in the read log.  A query of
                labels reads the boxes that are stored now.
            codec: The tile codec.
            newest: The number of logged reads to use, at most 10,000.
            on_progress: Called while the strategies are compared.

        Raises:
            UsageError: The workload has more than 10,000 reads.
            OutOfRangeError: A query lies outside the video.
            NotFoundError: The read log has no such read.
        """
        from vfsd.derive.what_if import advise

        return advise(self._video, workload, codec=codec, newest=newest, on_progress=on_progress)


def _planned(layout: Sequence[PlannedSegment]) -> Sequence[PlannedSegment]:
    is_list = isinstance(layout, Sequence)
    if not is_list or not all(isinstance(one, PlannedSegment) for one in layout):
        raise UsageError(
            f"layout must be text, a TileLayout or a list of PlannedSegment, got {shown(layout)}",
            hint="for example uniform:2x3",
        )
    return layout


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
        size: Size,
        *,
        span: Span | None = None,
        settings: TileSettings | None = None,
        gop: GopLength = None,
        jobs: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """Scale, encode and store the frames.

        Reads of that size, of regions that fit it, and of a half or a third of it, use the
        rendition where it is cheaper and good enough.  Existing segments stay; returns the new
        ones.

        Args:
            size: As for `Video.read`, of the displayed frame: even, and not larger than it.
            span: Seconds, start inclusive and end exclusive; default: the whole video.
            settings: The codec and the quality.
            gop: Frames from one key picture to the next, 1 to 300; default: about a second.
                ``"auto"`` chooses by the logged reads.  A rendition of the same size with
                another length is replaced.
            jobs: The number of segments to encode at a time.
            on_progress: Called with (frames done, frames in all); it may raise to stop.

        Raises as `VideoTiles.retile`.
        """
        video = self._video
        size = displayed_size(size, video.original.media)
        video.parts.require_writable()
        require_verified(video)
        media = video.original.media
        width, height = size if media.rotation % 180 == 0 else size[::-1]
        require_smaller(width, height, media)
        settings = value_or_default(settings, TileSettings)
        length = gop_frames(video, gop, (width, height), settings)
        if (width, height) == (media.width, media.height) and length is None:
            raise UsageError(
                f"size must differ from that of the video, got {size[0]}x{size[1]}",
                hint="give a GOP length, or use `retile`",
            )
        layout = TileLayout.untiled(width, height)
        return retile(
            video.parts,
            video.tools.pool,
            video.info,
            video.table,
            [
                PlannedSegment(frames, layout, gop=length)
                for frames in video.sequences(span, gop=length)
            ],
            settings,
            jobs=jobs,
            on_progress=on_progress,
        )

    def browser(
        self,
        width: int = BROWSER_WIDTH,
        *,
        span: Span | None = None,
        jobs: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """Store the video in the form that all web browsers play; views copy its packets.

        It is H.264 (High, 4:2:0, 8 bits) with a rate factor of 26 and a GOP of about two seconds.
        `Video.playable` names the view.  Existing segments stay; returns the new ones.

        Args:
            width: Pixels of the displayed frame, at most; a narrower video keeps its size.
            span: Seconds, start inclusive and end exclusive; default: the whole video.
            jobs: The number of segments to encode at a time.
            on_progress: Called with (frames done, frames in all); it may raise to stop.

        Raises as `VideoTiles.retile`.
        """
        video = self._video
        video.parts.require_writable()
        require_verified(video)
        planned = browser_plan(video, whole_number(width, "width"), span)
        return retile(
            video.parts,
            video.tools.pool,
            video.info,
            video.table,
            planned,
            BROWSER_SETTINGS,
            jobs=jobs,
            on_progress=on_progress,
        )

    def write(
        self,
        data: FrameInput | RawInput,
        *,
        size: Size,
        span: Span | None = None,
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
            size: As for `Video.read`.
            span: Seconds, start inclusive and end exclusive; default: the whole video.
            format: The pixel format of `data`.
            on_progress: Called with (frames done, frames in all); it may raise to stop.

        Raises:
            RefusedMediaError: The pictures differ from the video, or their number does.  Nothing
                is stored then.
            VfsdError: Others as for `VideoTiles.retile`.
        """
        video = self._video
        frames, size = video.frames_in(span), displayed_size(size, video.original.media)
        if is_raw_input(data):
            arrays = iter_raw_frames(data, format, size)
        else:
            arrays = (picture for picture, _ in iter_input_frames(data, format))
        offered = arrays_to_stored_format(arrays, format, size, video.original.media)
        return import_pictures(
            video, offered, size, frames, given_as=format, on_progress=on_progress
        )
