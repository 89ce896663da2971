"""Imports frames in another size from the caller as a rendition.

Each frame is compared with the scaled original.  The import fails unless all have the quality that
the store requires.
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
from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.frames.color import ColorNormalizer, SitingSetter, frame_siting, is_full_range
from vfsd.codecs.frames.planes import FrameMaker, copy_colors, pixel_layout, plane_samples
from vfsd.codecs.frames.quality import (
    FrameComparer,
    QualityAccumulator,
    RgbConverter,
    SourcePicture,
    combined_psnr,
    plane_errors,
    square_error,
)
from vfsd.codecs.frames.transforms import (
    PictureReformatter,
    PictureScaler,
    SpillFile,
    require_smaller,
)
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import (
    IDENTICAL,
    LOSSLESS_PSNR,
    SCALING_ERROR_FACTOR,
    Cell,
    LogicalVideo,
    MediaInfo,
    Segment,
    error_from_psnr,
    psnr_from_error,
    psnr_from_mse,
)
from vfsd.core.pixel_array import Pixels
from vfsd.derive.retile import OnProgress, missing_segments
from vfsd.derive.tile_encoder import (
    AlreadyStoredError,
    PlannedSegment,
    SegmentMaker,
    TileSettings,
)
from vfsd.errors import RefusedMediaError, UsageError
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.read_context import VideoContext
from vfsd.storage.context import StoreContext
from vfsd.storage.original_guard import default_psnr
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling import TileLayout, frame_intersection
from vfsd.write.frame_index import require_verified

# The mean of a segment alone would accept a wrong frame.  A limit for each frame alone would refuse
# pictures that reads themselves return.
FRAME_MARGIN = 3.0
"""dB that luma of a single frame may be below the minimum of its segment."""
CHROMA_MARGIN = 6.0
"""The same for chroma, which conversions to and from RGB share between pixels."""
# dB above the minimum, so that rounding does not matter.
_PSNR_HEADROOM = 0.1


def require_importable(media: MediaInfo, width: int, height: int) -> None:
    """Raises `UsageError` for pictures of that video that cannot be imported in that size."""
    if media.is_turned:
        raise UsageError("rotated or mirrored videos accept no frames in another size")
    tile_codec("fast", media)
    require_smaller(width, height, media)
    if (width, height) == (media.width, media.height):
        raise UsageError(
            "frames in full size would replace the original",
            hint="write them in another size, or as another video",
        )


def arrays_to_stored_format(
    arrays: Iterator[Pixels], pixel_format: str, size: tuple[int, int], media: MediaInfo
) -> Iterator[VideoFrame]:
    """Convert arrays in `pixel_format` to pictures in the format of `media`, in another size."""
    stored = tile_codec("fast", media).pixel_formats[media.pixel_format]
    maker = FrameMaker(pixel_format, *size, stored, media)
    return map(maker.picture, arrays)


def frames_to_stored_format(
    pictures: Iterator[VideoFrame], media: MediaInfo
) -> Iterator[VideoFrame]:
    """Convert decoded pictures to the stored format for `media`, with the same meaning of
    samples.
    """
    stored = tile_codec("fast", media).pixel_formats[media.pixel_format]
    normalizer, reformatter = ColorNormalizer(media), PictureReformatter(stored)
    return (reformatter.convert(normalizer.normalize(picture)) for picture in pictures)


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
    """Store `pictures`, one for each planned frame in order, as segments of a rendition.

    Args:
        planned: layouts of a single tile in the size of the pictures.
        given_as: the pixel format before a conversion by the caller, if any.
        on_frame: called after each frame.

    Existing segments stay, but their pictures are compared all the same.  Returns the new segments.

    Raises `RefusedMediaError` if a picture differs from the original, or if there are more or fewer
    than planned, and as `retile` does.  On an error nothing is stored, and replaced segments are
    restored.
    """
    settings = TileSettings("fast", default_psnr(parts, video))
    lacking = {plan.frames for plan in missing_segments(parts, video, planned, settings)}
    work = _ImportMaker(parts, pool, video, table, settings, given_as)
    made: list[Segment] = []
    try:
        for plan in planned:
            segment = work.import_segment(
                plan, islice(pictures, len(plan.frames)), plan.frames in lacking
            )
            made += [] if segment is None else [segment]
            for _ in plan.frames:
                on_frame()
        if next(pictures, None) is not None:
            total = sum(len(plan.frames) for plan in planned)
            raise RefusedMediaError(f"there are more pictures than the {total} frames of the view")
    except BaseException:
        # The caller gave one series of pictures: half a rendition must not stay.
        if made:
            with parts.catalog.writing() as change:
                change.segments.withdraw(made)
            reclaim_or_log(parts, keys={segment.object_key for segment in made})
        raise
    return made


def import_pictures(
    video: VideoContext,
    pictures: Iterator[VideoFrame],
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
        pictures,
        given_as=given_as,
        on_frame=on_frame,
    )


class _ImportMaker(SegmentMaker):
    """Makes segments of given pictures."""

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
        self._required_psnr = settings.psnr
        self._peak = (1 << video.original.media.bit_depth) - 1
        self._given_as = given_as
        self._given: SpillFile | None = None
        self._given_likeness = IDENTICAL  # similarity to the original in that size

    def import_segment(
        self, plan: PlannedSegment, given: Iterator[VideoFrame], is_lacking: bool
    ) -> Segment | None:
        """Compare pictures with the frames of `plan`, and make a segment of them if it is
        missing.
        """
        with BufferedRandom(self._parts.objects.nameless_file()) as file:
            spilled = self._compare(plan, given, file if is_lacking else None)
            if spilled is None:
                return None
            self._given = spilled
            try:
                return self.make(plan, compare=True)
            except AlreadyStoredError:
                return None
            finally:
                self._given = None

    def _compare(
        self, plan: PlannedSegment, given: Iterator[VideoFrame], file: IO[bytes] | None
    ) -> SpillFile | None:
        width, height = plan.layout.width, plan.layout.height
        media = self._video.original.media
        normalizer = ColorNormalizer(media)
        scaler = PictureScaler(width, height, interlaced=media.interlaced)
        comparer = FrameComparer(media, width, height)
        colors = RgbConverter(media, width, height)
        spilled: SpillFile | None = None
        siting_setter: SitingSetter | None = None
        tally = QualityAccumulator()
        with closing(self._pictures(plan.frames)) as originals:
            for frame, original in zip(plan.frames, originals, strict=True):
                picture = next(given, None)
                if picture is None:
                    raise RefusedMediaError(f"the pictures end before frame {frame}")
                if not normalizer.is_normal(original):
                    raise RefusedMediaError(
                        f"the color range or matrix of the original changes at frame {frame}, "
                        "and a rendition can have only one"
                    )
                wanted = scaler.scale(original)
                siting_setter = siting_setter or SitingSetter(frame_siting(wanted))
                picture = siting_setter.convert(picture)
                # overrides the given colors, because it will be read that way
                copy_colors(wanted, picture)
                self._require_like(frame, picture, wanted)
                tally.add(
                    comparer.compare(SourcePicture(wanted, colors.convert(original)), picture)
                )
                if file is not None:
                    spilled = spilled or SpillFile(file, picture)
                    spilled.put(picture)
        self._given_likeness = tally.likeness
        if self._given_likeness.luma < self._required_psnr:
            raise RefusedMediaError(
                f"frames {plan.frames.start} to {plan.frames.stop - 1} have "
                f"{self._given_likeness.luma:.2f} dB against the original in that size, and "
                f"{self._required_psnr:.0f} are needed",
                hint=self._rgb_hint(),
            )
        return spilled

    def _require_like(self, frame: int, given: VideoFrame, wanted: VideoFrame) -> None:
        """Raises `RefusedMediaError` if the pictures differ too much."""
        luma, *chroma = plane_errors(given, wanted)
        for error, least, what in (
            (luma, self._required_psnr - FRAME_MARGIN, "luma"),
            (max(chroma, default=0.0), self._required_psnr - CHROMA_MARGIN, "chroma"),
        ):
            if error > square_error(least, self._peak):
                has = psnr_from_mse(error, self._peak)
                raise RefusedMediaError(
                    f"{what} of frame {frame} has {has:.1f} dB against the original in "
                    f"that size, and {least:.0f} are needed",
                    hint=self._range_hint(given, wanted) or self._rgb_hint(),
                )

    def _range_hint(self, given: VideoFrame, wanted: VideoFrame) -> str | None:
        """Return a hint if luma would match after a change of range."""
        luma, original = (plane_samples(one)[0].astype(np.float64) for one in (given, wanted))
        unit = (self._peak + 1) / 256
        black, white = 16 * unit, 235 * unit
        is_full = is_full_range(wanted)
        if is_full:
            mapped = black + original * (white - black) / self._peak
        else:
            mapped = (original - black) * self._peak / (white - black)
        error = float(np.square(luma - mapped.clip(0, self._peak)).mean())
        if error > square_error(self._required_psnr - FRAME_MARGIN, self._peak):
            return None
        if is_full:
            return (
                "the video has full range; check whether limited range was written (`-pix_fmt "
                "yuvj420p`)"
            )
        return (
            "the video has limited range; check whether full range was written (`-pix_fmt yuv420p`)"
        )

    def _rgb_hint(self) -> str | None:
        """Return a hint if pictures were given as RGB: the conversions may cost the missing dB."""
        if self._given_as is None or not pixel_layout(self._given_as).channels:
            return None
        stored = self._codec.pixel_formats[self._video.original.media.pixel_format]
        return f"frames were given as {self._given_as}; write {stored}, or an encoded video"

    def _pictures(self, frames: range) -> Generator[VideoFrame, None, None]:
        if self._given is None:
            yield from super()._pictures(frames)
        else:
            yield from self._given.pictures()

    def _source_pictures(
        self, pictures: Iterator[VideoFrame], media: MediaInfo
    ) -> Iterator[SourcePicture]:
        return (
            super()._source_pictures(pictures, media)
            if self._given is None
            else map(SourcePicture, pictures)
        )

    def _encode(
        self, plan: PlannedSegment, pictures: Iterator[VideoFrame]
    ) -> tuple[list[CellStream], list[Cell]]:
        self._crf_memory.aim = self._required_encoder_psnr()
        streams, cells = super()._encode(plan, pictures)
        cells = [self._lower_bounds(cell) for cell in cells]
        if min(cell.psnr for cell in cells) < self._required_psnr:
            raise RefusedMediaError(
                f"frames {plan.frames.start} to {plan.frames.stop - 1} cannot be encoded to "
                f"{self._required_psnr:.0f} dB: they have {self._given_likeness.luma:.1f} dB before"
            )
        return streams, cells

    def _lower_bounds(self, cell: Cell) -> Cell:
        """Return lower bounds of an encoded cell against the original."""
        given = self._given_likeness
        return replace(
            cell,
            psnr=self._combined_psnr(given.luma, cell.psnr),
            gray=self._combined_psnr(given.gray, cell.gray),
            planes=self._combined_psnr(given.planes, cell.planes),
            colour=self._combined_psnr(given.colour, cell.colour),
        )

    def _combined_psnr(self, given: float, encoded: float) -> float:
        return given if encoded >= LOSSLESS_PSNR else combined_psnr(given, encoded, self._peak)

    def _required_encoder_psnr(self) -> float:
        """Return the dB that the encoder must keep to reach the minimum against the first
        original.
        """
        spare = error_from_psnr(self._required_psnr) - error_from_psnr(self._given_likeness.luma)
        if self._error > 0:
            spare -= SCALING_ERROR_FACTOR * self._error + 1 / self._peak
        return psnr_from_error(spare) + _PSNR_HEADROOM if spare > 0 else LOSSLESS_PSNR
