"""The tiles of a video: the part of `vfsd.Video` that makes them and tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from reprlib import repr as shown

from vfsd.api.frames import Region, VideoFrames, view_of
from vfsd.api.labels import VideoLabels
from vfsd.codecs.cells.tile_codecs import tile_codec
from vfsd.codecs.frames.frame_transforms import require_smaller
from vfsd.codecs.frames.to_array import needed_area
from vfsd.core.hostinfo import host_name
from vfsd.core.label_query import Labels
from vfsd.core.model import Segment
from vfsd.core.timebase import Seconds
from vfsd.derive.catalog_world import (
    PARTITION_ALPHA,
    FrameTableOriginal,
    Partition,
    PlannerReading,
    ReadEstimate,
    cost_rates,
    estimate_read,
    layouts_around,
    load_box_video,
)
from vfsd.derive.deferred_compression import OnUnread, compress_segments, compressible, wanted_level
from vfsd.derive.retile import OnProgress, retile
from vfsd.derive.tile_settings import PlannedSegment, TileSettings
from vfsd.errors import UsageError
from vfsd.read.read_plan import select_frames
from vfsd.tiling import TileLayout, fine_layout, parse_layout
from vfsd.tiling.policy import (
    Aim,
    BoxWorld,
    CachedBytes,
    LabelBoxes,
    SizeWorld,
    VideoProfile,
    every_tile,
    wanted_tiles,
)
from vfsd.validation import given_or_usual, pixels_around, width_and_height


class VideoTiles(VideoLabels, VideoFrames):
    """Layouts of one video: to plan, to make, and what they are worth."""

    def around(
        self,
        labels: Labels | None = None,
        *,
        partition: Partition = fine_layout,
        span: tuple[Seconds, Seconds | None] | None = None,
        codec: str = "fast",
        padding: int = 0,
        alpha: float = PARTITION_ALPHA,
        seconds_each: float = 1.0,
    ) -> list[PlannedSegment]:
        """Layouts for `retile` around what was seen, where they pay (see `layouts_around`).

        `partition` is `vfsd.tiling.fine_layout`, which tells objects apart, or
        `vfsd.tiling.coarse_layout`. Only the tiles that hold something are to be stored, unless
        the codec needs all of them.  ``[one.whole() for one in video.around("car")]`` stores all.
        """
        media = self.original.media
        padding = pixels_around(padding)
        chosen = tile_codec(codec, media)
        planned = layouts_around(
            self.detections(labels, span=span).columns(),
            media,
            self.sequences(span, seconds_each),
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
        span: tuple[Seconds, Seconds | None] | None = None,
        settings: TileSettings | None = None,
        jobs: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """Store the pixels in tiles as well, so that reading a region decodes only what it needs.

        `layout` is one for `span` (default: all) of the video, as a value or a text such as
        ``uniform:2x3`` (rows x columns), or a list of frames with their layouts.  Layouts are of
        the stored picture, which is not turned upright yet.  Tiles that are there already stay;
        the new ones are returned.  `jobs` segments are encoded at a time.

        Raises `ReadOnlyError`, `UsageError` for layouts or pictures that the tile codec does not
        take, `ExtraMissingError` where its encoder is not installed, `IntegrityError`,
        `NoSpaceError`, `NotFoundError` when the video is gone, or the bytes that were to be read,
        `OutdatedError` when it has got others meanwhile; what was finished until then stays.
        """
        self._parts.require_writable()
        self._require_verified()
        settings = given_or_usual(settings, TileSettings)
        media = self.original.media
        if isinstance(layout, str):
            codec = tile_codec(settings.codec, media)
            layout = parse_layout(layout, media.width, media.height, codec.rules)
        if isinstance(layout, TileLayout):
            layout = [PlannedSegment(frames, layout) for frames in self.sequences(span)]
        return retile(
            self._parts,
            self._tools.pool,
            self.info,
            self.table,
            _planned(layout),
            settings,
            jobs=jobs,
            on_progress=on_progress,
        )

    def render(
        self,
        size: tuple[int, int],
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        settings: TileSettings | None = None,
        jobs: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Segment]:
        """Store whole frames in another size as well, so that reading them in it costs little.

        `size` is (width, height) of the displayed frame: even, and not larger than it.  Reads of
        that size, of regions that fit it, and of a half or a third of it and so on, take such a
        rendition where it is cheaper and good enough.  What is there already stays; new segments
        are returned.  Raises as `retile`.
        """
        size = width_and_height(size)
        self._parts.require_writable()
        self._require_verified()
        media = self.original.media
        width, height = size if media.rotation % 180 == 0 else size[::-1]
        require_smaller(width, height, media)
        if (width, height) == (media.width, media.height):
            raise UsageError("the frames have that size", hint="`retile` stores them in tiles")
        layout = TileLayout.untiled(width, height)
        planned = [PlannedSegment(frames, layout) for frames in self.sequences(span)]
        return self.retile(planned, settings=settings, jobs=jobs, on_progress=on_progress)

    def compress(
        self,
        level: int | None = None,
        *,
        jobs: int | None = None,
        on_progress: OnProgress | None = None,
        on_unread: OnUnread | None = None,
    ) -> list[Segment]:
        """Compress lossless tiles and renditions that are not compressed so hard yet.

        `level` is 1 to 19, or None: as hard as budgets ask for, which is not at all while they are
        not a quarter full; see `vfsd.derive.deferred_compression`.  Pixels stay the same; the
        segments that changed are returned, as they are now.  `on_progress` is told bytes, and
        `on_unread` each segment that cannot be read, and why: it is left as it is.  Without that
        the first one ends it.  Raises as `vfsd.derive.deferred_compression.compress_segments`.
        """
        self._parts.require_writable()
        if level is None:
            level = wanted_level(self._parts, self.info.id)
            if not level:
                return []
        waiting = compressible(self._parts, self.info, level)
        return compress_segments(
            self._parts, waiting, level, jobs=jobs, on_progress=on_progress, on_unread=on_unread
        )

    def estimate(
        self,
        planned: Sequence[PlannedSegment],
        *,
        span: tuple[Seconds, Seconds | None] | None = None,
        frames: range | slice | None = None,
        region: Region | None = None,
        settings: TileSettings | None = None,
    ) -> ReadEstimate:
        """What reading a region would cost if `planned`, and no other tiles, had been made."""
        media = self.original.media
        view = view_of(self._counted(), span=span, frames=frames, region=region)
        tiles = self._usual_tiles(self.info)
        return estimate_read(
            select_frames(view, self.original, self.table),
            needed_area(media, "rgb24", view.region or media.frame_rect, None),
            self.original,
            self.table,
            _planned(planned),
            tiles.costs,
            settings=given_or_usual(settings, TileSettings),
            known=tiles.segments,
        )

    def world(
        self,
        aims: Iterable[Aim],
        *,
        settings: TileSettings | None = None,
        within: range | None = None,
    ) -> BoxWorld:
        """What policies may ask of the video: what reading it costs with tiles or without them.

        Tiles are imagined around `aims`: labels, or expressions of them, and regions of the stored
        picture; boxes that lie outside of the frames `within` are not looked up.  Only tiles that
        hold what they are for would be made, where the codec can; the rest is read from the
        original.
        """
        settings = given_or_usual(settings, TileSettings)
        tiles = self._usual_tiles(self.info)
        codec = tile_codec(settings.codec, self.original.media)
        catalog = self._parts.catalog
        measured = catalog.costs(host_name())
        media = self.original.media
        table = FrameTableOriginal(self.table, media.width * media.height)
        like = [one for one in tiles.segments if one.picture == (media.width, media.height)]
        return BoxWorld(
            load_box_video(catalog, self.info, table, self.sequences(), aims, codec, within=within),
            cost_rates(self.original, table.whole, codec, tiles.costs, measured, like),
            wanted_tiles if codec.takes_parts else every_tile,
            PlannerReading(),
        )

    def size_world(
        self, settings: TileSettings | None = None, at_hand: CachedBytes | None = None
    ) -> SizeWorld:
        """What policies may ask of renditions of the video, of the stored pictures' sizes.

        `at_hand` tells of what need not be encoded; None: nothing is.
        """
        settings = given_or_usual(settings, TileSettings)
        tiles = self._usual_tiles(self.info)
        media = self.original.media
        codec = tile_codec(settings.codec, media)
        measured = self._parts.catalog.costs(host_name())
        table = FrameTableOriginal(self.table, media.width * media.height)
        like = [one for one in tiles.segments if one.picture != (media.width, media.height)]
        nothing: list[dict[str, LabelBoxes]] = [{} for _ in self.sequences()]
        return SizeWorld(
            VideoProfile(media.width, media.height, self.sequences(), nothing, codec.rules, table),
            cost_rates(self.original, table.whole, codec, tiles.costs, measured, like),
            PlannerReading(),
            at_hand,
        )


def _planned(layout: Sequence[PlannedSegment]) -> Sequence[PlannedSegment]:
    is_list = isinstance(layout, Sequence)
    if not is_list or not all(isinstance(one, PlannedSegment) for one in layout):
        raise UsageError(
            f"layout must be text, a TileLayout or a list of PlannedSegment, got {shown(layout)}",
            hint="for example uniform:2x3",
        )
    return layout
