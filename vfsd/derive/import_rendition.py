"""Imports frames in another size from the caller as a rendition.

Each frame is compared with the scaled original, and the import fails unless all have the quality
that the store requires.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from io import BufferedRandom
from itertools import count, islice
from typing import IO

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.cells.tile_codecs import tile_codec
from vfsd.codecs.frames.chroma_siting import SitingSetter, frame_siting
from vfsd.codecs.frames.color import ColorNormalizer, is_full_range
from vfsd.codecs.frames.frame_transforms import (
    PictureReformatter,
    PictureScaler,
    SpillFile,
    require_smaller,
)
from vfsd.codecs.frames.from_array import FrameMaker
from vfsd.codecs.frames.pixel_layouts import pixel_layout
from vfsd.codecs.frames.planes import copy_colors, plane_samples
from vfsd.codecs.frames.quality import (
    FrameComparer,
    QualityAccumulator,
    RgbConverter,
    SourcePicture,
    combined_psnr,
    plane_errors,
    square_error,
)
from vfsd.core.frame_table import FrameTable
from vfsd.core.frames import Pixels
from vfsd.core.model import Cell, LogicalVideo, MediaInfo, Segment
from vfsd.core.psnr import (
    IDENTICAL,
    LOSSLESS_PSNR,
    SCALING_ERROR_FACTOR,
    error_from_psnr,
    psnr_from_error,
    psnr_from_mse,
)
from vfsd.derive.retile import OnProgress, missing_segments
from vfsd.derive.tile_encoder import SegmentMaker
from vfsd.derive.tile_settings import PlannedSegment, TileSettings
from vfsd.errors import RefusedMediaError, UsageError
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.video_context import VideoContext
from vfsd.storage.context import StoreContext
from vfsd.storage.original_guard import default_psnr
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling import TileLayout, frame_intersection
from vfsd.write.correct_table import require_verified

# The mean of a segment alone would let one wrong frame pass. A limit for each frame alone would
# refuse pictures that reads themselves return.
FRAME_MARGIN = 3.0
"""dB that luma of a single frame may have less than all of its segment."""
CHROMA_MARGIN = 6.0
"""dB that chroma of a frame may have less: conversions to and from RGB share it between pixels."""
_PSNR_HEADROOM = 0.1
"""dB beyond what is needed, so that rounding does not decide."""


def require_importable(media: MediaInfo, width: int, height: int) -> None:
    """Raises `UsageError` for pictures of which none in that size can be taken."""
    if media.is_turned:
        raise UsageError("frames that are turned upright or mirrored are not taken in another size")
    tile_codec("fast", media)
    require_smaller(width, height, media)
    if (width, height) == (media.width, media.height):
        raise UsageError(
            "frames in their full size are the original, which stays what it is",
            hint="offer them in another size, or write another video",
        )


def arrays_to_stored_format(
    arrays: Iterator[Pixels], pixel_format: str, size: tuple[int, int], media: MediaInfo
) -> Iterator[VideoFrame]:
    """Arrays in `pixel_format` as pictures like those of `media`, in another size."""
    stored = tile_codec("fast", media).pixel_formats[media.pixel_format]
    maker = FrameMaker(pixel_format, *size, stored, media)
    return map(maker.picture, arrays)


def frames_to_stored_format(
    pictures: Iterator[VideoFrame], media: MediaInfo
) -> Iterator[VideoFrame]:
    """Decoded pictures in the format in which those of `media` are kept in another size, with
    samples that mean what theirs do."""
    stored = tile_codec("fast", media).pixel_formats[media.pixel_format]
    settler, reformatter = ColorNormalizer(media), PictureReformatter(stored)
    return (reformatter.convert(settler.normalize(picture)) for picture in pictures)


def import_frames(
    parts: StoreContext,
    pool: DecoderPool,
    video: LogicalVideo,
    table: FrameTable,
    planned: Sequence[PlannedSegment],
    pictures: Iterator[VideoFrame],
    *,
    given_as: str | None = None,
    on_frame: Callable[[], None] = lambda: None,
) -> list[Segment]:
    """Keep `pictures`, one for each planned frame in turn, as segments of a rendition.

    `given_as` is the pixel format in which they were given, where somebody has converted them here.
    All layouts are the whole picture in the size that they have.  Segments that are there already
    stay, and what is given of them is compared all the same.  Returns what was made.

    Raises `RefusedMediaError` where a picture is not like the original, or where there are more or
    fewer than planned, and as `retile` does; nothing of it stays then, and what it had taken the
    place of has that again.
    """
    settings = TileSettings("fast", default_psnr(parts, video))
    lacking = {plan.frames for plan in missing_segments(parts, video, planned, settings)}
    work = _ImportMaker(parts, pool, video, table, settings, given_as)
    made: list[Segment] = []
    try:
        for plan in planned:
            segment = work.take(plan, islice(pictures, len(plan.frames)), plan.frames in lacking)
            made += [] if segment is None else [segment]
            for _ in plan.frames:
                on_frame()
        if next(pictures, None) is not None:
            total = sum(len(plan.frames) for plan in planned)
            raise RefusedMediaError(f"there are more pictures than the {total} frames of the view")
    except BaseException:
        if made:
            with parts.catalog.writing() as change:
                change.segments.withdraw(made)
            reclaim_or_log(parts, keys={segment.object_key for segment in made})
        raise
    return made


def take_pictures(
    video: VideoContext,
    offered: Iterator[VideoFrame],
    size: tuple[int, int],
    frames: range,
    *,
    given_as: str | None = None,
    on_progress: OnProgress | None = None,
) -> list[Segment]:
    """Store pictures of `frames`, scaled to `size` by the caller, as a rendition.

    The pictures have the pixel format of the original; `given_as` is the format before conversion.
    Returns the new segments.  Raises as `import_frames`.
    """
    require_importable(video.original.media, *size)
    require_verified(video)
    layout, done = TileLayout.untiled(*size), count(1)
    parts = (frame_intersection(run, frames) for run in video.sequences())
    planned = [PlannedSegment(part, layout) for part in parts if part]

    def on_frame() -> None:
        if on_progress is not None:
            on_progress(next(done), len(frames))

    return import_frames(
        video.parts,
        video.tools.pool,
        video.info,
        video.table,
        planned,
        offered,
        given_as=given_as,
        on_frame=on_frame,
    )


class _ImportMaker(SegmentMaker):
    """Makes segments of pictures that were given."""

    def __init__(
        self,
        parts: StoreContext,
        pool: DecoderPool,
        video: LogicalVideo,
        table: FrameTable,
        settings: TileSettings,
        given_as: str | None,
    ) -> None:
        codec = tile_codec(settings.codec, video.original.media)
        super().__init__(parts, pool, video, table, codec, settings)
        self._least = settings.psnr
        self._peak = (1 << video.original.media.bit_depth) - 1
        self._given_as = given_as
        self._given: SpillFile | None = None
        self._given_likeness = IDENTICAL  # to the original in that size

    def take(
        self, plan: PlannedSegment, given: Iterator[VideoFrame], is_lacking: bool
    ) -> Segment | None:
        """Compare pictures with the frames that they are said to be; make a segment of them."""
        with BufferedRandom(self._parts.objects.nameless_file()) as file:
            kept = self._compared(plan, given, file if is_lacking else None)
            if kept is None:
                return None
            self._given = kept
            try:
                return self.make(plan)
            finally:
                self._given = None

    def _compared(
        self, plan: PlannedSegment, given: Iterator[VideoFrame], file: IO[bytes] | None
    ) -> SpillFile | None:
        width, height = plan.layout.width, plan.layout.height
        media = self._video.original.media
        settler = ColorNormalizer(media)
        scaler = PictureScaler(width, height, interlaced=media.interlaced)
        comparer = FrameComparer(media, width, height)
        colours = RgbConverter(media, width, height)
        kept: SpillFile | None = None
        sited: SitingSetter | None = None
        tally = QualityAccumulator()
        with closing(self._pictures(plan.frames)) as originals:
            for frame, original in zip(plan.frames, originals, strict=True):
                picture = next(given, None)
                if picture is None:
                    raise RefusedMediaError(f"the pictures end before frame {frame}")
                if not settler.is_normal(original):
                    raise RefusedMediaError(
                        f"the range or the matrix of the original changes on the way, at frame "
                        f"{frame}, and a rendition has one"
                    )
                wanted = scaler.scale(original)
                sited = sited or SitingSetter(frame_siting(wanted))
                picture = sited.convert(picture)
                copy_colors(wanted, picture)  # whatever is said of it: so it will be read
                self._require_like(frame, picture, wanted)
                tally.add(
                    comparer.compare(SourcePicture(wanted, colours.convert(original)), picture)
                )
                if file is not None:
                    kept = kept or SpillFile(file, picture)
                    kept.put(picture)
        self._given_likeness = tally.likeness
        if self._given_likeness.luma < self._least:
            raise RefusedMediaError(
                f"frames {plan.frames.start} to {plan.frames.stop - 1} have "
                f"{self._given_likeness.luma:.2f} dB against the original in that size, and "
                f"{self._least:.0f} are needed",
                hint=self._hint_of_colours(),
            )
        return kept

    def _require_like(self, frame: int, given: VideoFrame, wanted: VideoFrame) -> None:
        """Raises `RefusedMediaError` where they differ too much."""
        luma, *chroma = plane_errors(given, wanted)
        for error, least, what in (
            (luma, self._least - FRAME_MARGIN, "luma"),
            (max(chroma, default=0.0), self._least - CHROMA_MARGIN, "chroma"),
        ):
            if error > square_error(least, self._peak):
                has = psnr_from_mse(error, self._peak)
                raise RefusedMediaError(
                    f"{what} of frame {frame} has {has:.1f} dB against the original in "
                    f"that size, and {least:.0f} are needed",
                    hint=self._hint_of_levels(given, wanted) or self._hint_of_colours(),
                )

    def _hint_of_levels(self, given: VideoFrame, wanted: VideoFrame) -> str | None:
        """Where luma would be near enough if it had been meant in the other range."""
        luma, original = (plane_samples(one)[0].astype(np.float64) for one in (given, wanted))
        unit = (self._peak + 1) / 256
        black, white = 16 * unit, 235 * unit
        is_full = is_full_range(wanted)
        if is_full:
            mapped = black + original * (white - black) / self._peak
        else:
            mapped = (original - black) * self._peak / (white - black)
        error = float(np.square(luma - mapped.clip(0, self._peak)).mean())
        if error > square_error(self._least - FRAME_MARGIN, self._peak):
            return None
        if is_full:
            return "the video has full range: was limited range written? (`-pix_fmt yuvj420p`)"
        return "the video has limited range: was full range written? (`-pix_fmt yuv420p`)"

    def _hint_of_colours(self) -> str | None:
        """Where pictures were RGB: to and fro takes some dB, which are all that others may lack."""
        if self._given_as is None or not pixel_layout(self._given_as).channels:
            return None
        stored = self._codec.pixel_formats[self._video.original.media.pixel_format]
        return f"what was given is {self._given_as}: offer {stored}, or an encoded video"

    # -- as the work of making tiles asks for it

    def _pictures(self, frames: range) -> Generator[VideoFrame, None, None]:
        if self._given is None:
            yield from super()._pictures(frames)
        else:
            yield from self._given.pictures()

    def _shots(self, pictures: Iterator[VideoFrame], media: MediaInfo) -> Iterator[SourcePicture]:
        return (
            super()._shots(pictures, media) if self._given is None else map(SourcePicture, pictures)
        )

    def _encode(
        self, plan: PlannedSegment, pictures: Iterator[VideoFrame]
    ) -> tuple[list[CellStream], list[Cell]]:
        self._factors.aim = self._needed()
        streams, cells = super()._encode(plan, pictures)
        cells = [self._left(cell) for cell in cells]
        if min(cell.psnr for cell in cells) < self._least:
            raise RefusedMediaError(
                f"frames {plan.frames.start} to {plan.frames.stop - 1} cannot be kept as well as "
                f"{self._least:.0f} dB: they have {self._given_likeness.luma:.1f}"
            )
        return streams, cells

    def _left(self, cell: Cell) -> Cell:
        """What an encoded cell has at least against the original."""
        given = self._given_likeness
        return replace(
            cell,
            psnr=self._both(given.luma, cell.psnr),
            gray=self._both(given.gray, cell.gray),
            planes=self._both(given.planes, cell.planes),
            colour=self._both(given.colour, cell.colour),
        )

    def _both(self, given: float, encoded: float) -> float:
        return given if encoded >= LOSSLESS_PSNR else combined_psnr(given, encoded, self._peak)

    def _needed(self) -> float:
        """dB that the encoder has to leave, so that there is enough against the first original."""
        spare = error_from_psnr(self._least) - error_from_psnr(self._given_likeness.luma)
        if self._error > 0:
            spare -= SCALING_ERROR_FACTOR * self._error + 1 / self._peak
        return psnr_from_error(spare) + _PSNR_HEADROOM if spare > 0 else LOSSLESS_PSNR
