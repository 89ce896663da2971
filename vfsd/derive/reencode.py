"""Re-encodes a whole video in runs of about two seconds, each as small as the permitted error
allows, or forecasts the result from a few runs.  `RoiReencoder` keeps the quality only around
the boxes of some labels and repeats a blurred background elsewhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.catalog import Catalog
from vfsd.codecs import VideoFrame
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.encoding.archive_encoder import (
    ErrorMeasure,
    ReencodedRun,
    archive_codec,
    blended,
    coarsest_run,
    encode_run,
    frame_error,
    frame_pairs,
    low_passed,
    masked_error,
    require_kept_data,
    whole_frame_error,
)
from vfsd.codecs.encoding.remux import FileRemuxer, pictures_index, require_remuxable
from vfsd.codecs.encoding.signalling import (
    carried_side_data,
    file_signalling,
    is_carried_message,
    require_same_signalling,
)
from vfsd.codecs.frames.color import frame_colors, frame_siting
from vfsd.codecs.inventory.inventory import (
    Inventory,
    differences,
    early_differences,
    require_no_differences,
)
from vfsd.codecs.inventory.side_data import carried_data, first_picture
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.frames import to_coded_rect
from vfsd.core.label_query import parse_labels
from vfsd.core.model import LogicalVideo, MediaInfo, psnr_from_error
from vfsd.core.timebase import human_bytes
from vfsd.errors import ForbiddenError, NothingSavedError, RefusedMediaError, UsageError
from vfsd.storage.context import StoreContext
from vfsd.tiling import Rect, cut_sequences

# Approximate length of a run, which starts with a key picture. Only 2 % of the bytes are in key
# pictures then, and every frame is close to one.
_RUN_SECONDS = 2.0
# Runs that are encoded for a forecast.
_SAMPLE_RUNS = 3

OnProgress = Callable[[str, int, int], None]
"""Called with (description, amount done, total); may raise to stop."""

PADDING = 16
"""Pixels around each box."""
# Gaps between examined frames must not be longer.
AROUND_SECONDS = Fraction(1, 2)
"""A box also counts this long before and after its frame."""
# Size of the cache of grown boxes; more than count for a frame.
_MAX_AREAS = 4096
# Areas of another quality would need an encoder that supports them.  Repeating the last picture
# elsewhere costs the same and works in any codec.
# Areas are aligned to it, the block size of encoders, so that chroma samples are whole.
_ALIGN = 16

Mask = npt.NDArray[np.uint8]

# Radius in pixels of the averaging of the background.
_BLUR_RADIUS = 4
_PLANAR = ("yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj422p", "yuvj444p", "gray")


@dataclass(frozen=True, slots=True)
class ReencodeForecast:
    """The predicted result of a replacement, from a few encoded runs."""

    codec: str
    size: int  #: of the present file, in bytes
    new_size: int  #: approximate; everything besides the pictures is copied
    measured: float  #: dB of the worst picture that was encoded
    psnr: float  #: minimum dB against the first original
    frames: int  #: number of encoded frames
    seconds: float  #: predicted time for all of it
    refused: str | None = None  #: why it is not permitted at present

    @classmethod
    def refusing(cls, codec: str, video: LogicalVideo, why: str) -> ReencodeForecast:
        """Return the forecast for a video that cannot be re-encoded under any policy."""
        psnr = video.original.psnr
        return cls(codec, video.size, video.size, math.inf, psnr, 0, 0.0, why)

    @property
    def stays(self) -> bool:
        """Whether no new file is possible; then nothing was measured."""
        return self.refused is not None and not self.frames

    @property
    def saves(self) -> bool:
        """Whether the new file would be smaller; otherwise it would not replace the old one."""
        return self.new_size < self.size


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a new file differs from the original."""

    error: float  #: of its worst picture
    limited: float  #: of the worst area that the limit applies to
    details: Mapping[str, Any]  #: further figures for the log


class VideoReencoder:
    """Encodes one video with at most the error `limit` in any plane of each picture.

    Raises `UsageError` for an unknown codec or one that cannot keep the pixel format,
    `RefusedMediaError` for an unsupported container.  Not thread-safe.
    """

    def __init__(
        self, parts: StoreContext, video: LogicalVideo, table: FrameTable, codec: str, limit: float
    ) -> None:
        media = video.original.media
        self.codec = archive_codec(codec, media)
        require_remuxable(media, self.codec)
        self._parts = parts
        self._video = video
        self._media = media
        self._table = table
        self.limit = limit
        self._quality = self.codec.quality
        self._path = parts.originals.file_of(video.original)
        self._before_picture: Callable[[], None] = lambda: None
        with self.decoder() as decoder:
            first = next(decoder.stream(0, 1))[1]
        self._siting = frame_siting(first)
        self._colors = frame_colors(first)
        self._signalling = file_signalling(self._path, media)
        self._inventory: Inventory | None = None  # of the original, cached
        self._carried: Mapping[str, bytes] = {}  # side data in pictures of the new file

    def decoder(self) -> FrameDecoder:
        """Return a decoder of the original; the caller closes it."""
        original = self._video.original
        return FrameDecoder(self._path, original.media, original.access, self._table)

    def require_kept(self) -> None:
        """Raises `RefusedMediaError` if a new file would lose something of the old one.

        Differences in later packets are found by `require_same`.
        """
        if self._inventory is not None:
            return
        # A file with the first picture shows nearly all losses before hours of encoding.
        with TemporaryDirectory(prefix="vfsd-") as folder:
            begun = Path(folder) / "begun"
            with self.decoder() as decoder, self._rewriter(begun) as file:
                pictures = (picture for _, picture in decoder.stream(0, 1))
                run = encode_run(
                    self.codec, self._media, self._quality, pictures, siting=self._siting
                )
                file.add(0, run)
                file.finish_here()
            inventory = self._taken_of_original()
            index = pictures_index(begun, self._media, self.codec.name)
            made = replace(self._media, codec=self.codec.name, stream_index=index)
            pair = self._media.codec, self.codec.name
            begun_inventory = self._taken(begun, made)
            require_no_differences(
                early_differences(
                    inventory, begun_inventory, lambda path: is_carried_message(path, *pair)
                )
            )
            require_same_signalling(self._signalling, file_signalling(begun, made))
            first = first_picture(begun, made)
        if first is not None:
            self._require_same_siting(first)
            self._carried = carried_data(first)
        self._inventory = inventory

    def require_same(self, path: Path, made: MediaInfo) -> None:
        """Raises `RefusedMediaError` if the finished file differs from the original in anything but
        samples.
        """
        before = self._inventory or self._taken_of_original()
        require_no_differences(differences(before, self._taken(path, made)))
        require_same_signalling(self._signalling, file_signalling(path, made))

    def _taken_of_original(self) -> Inventory:
        return self._parts.inventory(self._video.original, name=self._video.name)

    def _taken(self, path: Path, made: MediaInfo) -> Inventory:
        return self._parts.examiner.inventory(path, made, name=self._video.name)

    def runs(self) -> list[range]:
        """Return the runs of frames, starting at key frames of the original where possible."""
        table = self._table
        ticks = np.append(table.pts(), table.end_pts) - self._video.original.first_pts
        seconds = np.maximum.accumulate(ticks.astype(float) * float(table.time_base))
        return cut_sequences(table.keyframes(), seconds, _RUN_SECONDS)

    def write(self, target: Path, on_progress: OnProgress) -> None:
        """Write a file with all frames and everything else of the original's.

        Raises `NothingSavedError` if the codec is not good enough, or as soon as the new file is as
        large as the old one, `RefusedMediaError` as `require_kept` does, `IntegrityError`,
        `NoSpaceError`.
        """
        self.require_kept()
        done, size = 0, 0
        self._before_picture = lambda: on_progress("encoding", done, len(self._table))
        with self.decoder() as decoder, self._rewriter(target) as file:
            for frames in self.runs():
                run = self.encoded(decoder, frames)
                file.add(frames.start, run)
                done, size = frames.stop, size + run.size
                require_saving(self._video, size)  # stop as soon as nothing can be saved
            file.finish()

    def _rewriter(self, target: Path) -> FileRemuxer:
        pts, end = self._table.pts(), self._video.original.end_pts
        return FileRemuxer(
            *(self._path, target, self._media, self.codec, pts, end),
            *(self._siting, self._signalling),
        )

    def encoded(self, decoder: FrameDecoder, frames: range) -> ReencodedRun:
        """Encode a run at the coarsest permitted quality."""

        def encode(quality: int) -> ReencodedRun:
            pictures = self._pictures(decoder, frames)
            return encode_run(
                self.codec, self._media, quality, pictures, self._measure_from(frames), self._siting
            )

        found = coarsest_run(self.codec, self._quality, self.limit, encode)
        if found is None:
            raise NothingSavedError(
                f"{self.codec.name} cannot give frames {frames.start} to {frames.stop - 1} of "
                f"{self._video.name} the {psnr_from_error(self.limit):.1f} dB that they need",
                hint="allow a lower PSNR in the policy, or try another codec",
            )
        run, self._quality = found
        return run

    def forecast(self, on_progress: OnProgress) -> ReencodeForecast:
        """Encode and measure a few runs, spread over the video.  Nothing is stored.

        Raises `RefusedMediaError` before that if no such file is possible.
        """
        self.require_kept()
        runs = self.runs()
        places = np.linspace(0, len(runs) - 1, min(_SAMPLE_RUNS, len(runs))).round().astype(int)
        chosen = [runs[place] for place in sorted(set(places.tolist()))]
        total = sum(len(run) for run in chosen)
        self._before_picture = lambda: on_progress("encoding samples", done, total)
        began, coded, stored, worst, done = time.perf_counter(), 0, 0, 0.0, 0
        with self.decoder() as decoder:
            for frames in chosen:
                run = self.encoded(decoder, frames)
                coded, worst = coded + run.size, max(worst, run.error)
                packets = self._table.packets_of(frames)
                low, high = int(packets.min()), int(packets.max()) + 1
                stored += int(self._table.columns(low, high).size[packets - low].sum())
                done += len(frames)
                on_progress("encoding samples", done, total)
        seconds = (time.perf_counter() - began) * len(self._table) / total
        # Everything besides the pictures is copied, so only their share of the file shrinks.
        everything = self._table.columns(0, self._table.packets).size.sum()
        pictures = min(int(everything), self._video.size)
        return ReencodeForecast(
            self.codec.name,
            self._video.size,
            round(self._video.size - pictures + pictures * coded / max(1, stored)),
            psnr_from_error(worst),
            psnr_from_error(self._video.original.error + worst),
            total,
            seconds,
        )

    # Hooks for subclasses.

    def compare(
        self, source: FrameDecoder, made: FrameDecoder, on_frame: Callable[[], None]
    ) -> Comparison:
        """Compare the whole new file with the original.  Raises `IntegrityError`."""
        worst = 0.0
        for number, one, other in frame_pairs(source, made, range(len(self._table))):
            if number == 0:
                self._require_same_siting(other)
            worst = max(worst, frame_error(one, other))
            on_frame()
        return Comparison(worst, worst, {})

    def _require_same_siting(self, picture: VideoFrame) -> None:
        """Raises `RefusedMediaError` if the chroma siting has changed."""
        found = frame_siting(picture)
        if found != self._siting:
            raise RefusedMediaError(
                f"the chroma siting would become {found}; it is {self._siting}",
                hint="another codec may keep it",
            )

    def _pictures(self, decoder: FrameDecoder, frames: range) -> Iterator[VideoFrame]:
        """Yield the pictures of a run to encode."""
        return (picture for _, picture in self._decoded(decoder, frames))

    def _decoded(self, decoder: FrameDecoder, frames: range) -> Iterator[tuple[int, VideoFrame]]:
        """Yield (frame, picture) of the original.

        Raises `RefusedMediaError` if pictures have side data that the new file lacks, such as
        captions, or if the colors change between pictures.
        """
        by_message = carried_side_data(self._media.codec, self.codec.name)
        for number, picture in decoder.stream(frames.start, frames.stop):
            self._before_picture()
            data = carried_data(picture)
            held = {kind: payload for kind, payload in data.items() if kind not in by_message}
            require_kept_data(number, held, self._carried)
            if frame_colors(picture) != self._colors:
                raise RefusedMediaError(
                    f"the color range, matrix or other color properties change at frame {number}",
                    hint="split it there into two videos, which can be re-encoded",
                )
            yield number, picture

    def _measure_from(self, frames: range) -> ErrorMeasure:
        """Return the comparison of the pictures of a run with the encoded ones."""
        return whole_frame_error


def require_saving(video: LogicalVideo, size: int) -> None:
    """Raises `NothingSavedError` unless `size` bytes are less than a video's file."""
    if size >= video.size:
        raise NothingSavedError(
            f"{video.name} would have {human_bytes(size)} or more instead of "
            f"{human_bytes(video.size)}: nothing would be saved",
            hint="a lower PSNR or another codec may save something",
        )


class RoiAreas:
    """Boxes of some labels, extended in space and time, in pixels of the stored picture.

    `shown` has the display time of each frame in ticks of `media`, and the end of the last one.
    """

    def __init__(
        self, media: MediaInfo, frames: npt.NDArray[Any], boxes: npt.NDArray[Any], shown: Ints
    ) -> None:
        order = np.argsort(frames, kind="stable")
        self._media = media
        self._frames, self._boxes = np.asarray(frames)[order], np.asarray(boxes)[order]
        self._shown = shown
        self._around = _around(media)
        # A box is used for all frames of a second.
        self._area = lru_cache(_MAX_AREAS)(self._grown)

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self._frames)

    def mask(self, frame: int) -> Mask | None:
        """Return a mask of rows x columns of the stored picture: 255 where quality is kept; None
        without any.
        """
        # Boxes of nearby frames count, too, since objects move between examined frames.
        appear, go = self._shown[:-1], self._shown[1:]
        first = np.searchsorted(go, appear[frame] - self._around)
        last = np.searchsorted(appear, go[frame] + self._around, side="right")
        low, high = np.searchsorted(self._frames, (first, last))
        if low == high:
            return None
        mask = np.zeros((self._media.height, self._media.width), np.uint8)
        for box in np.unique(self._boxes[low:high], axis=0).tolist():
            area = self._area(*box)
            if area is not None:
                mask[area.y1 : area.y2, area.x1 : area.x2] = 255
        return mask if mask.any() else None

    def are_of(self, catalog: Catalog, video: LogicalVideo, labels: str) -> bool:
        """Return whether the catalog still has exactly the same boxes."""
        found = RoiAreas(self._media, *_boxes(catalog, video, labels), self._shown)
        return np.array_equal(found._frames, self._frames) and np.array_equal(
            found._boxes, self._boxes
        )

    def _grown(self, left: float, top: float, right: float, bottom: float) -> Rect | None:
        media = self._media
        x1, y1 = (max(0, math.floor(at) - PADDING) for at in (left, top))
        x2 = min(media.display_width, math.ceil(right) + PADDING)
        y2 = min(media.display_height, math.ceil(bottom) + PADDING)
        if x1 >= x2 or y1 >= y2:
            return None
        area = to_coded_rect(Rect(x1, y1, x2, y2), media)
        return Rect(
            area.x1 // _ALIGN * _ALIGN,
            area.y1 // _ALIGN * _ALIGN,
            min(media.width, -(-area.x2 // _ALIGN) * _ALIGN),
            min(media.height, -(-area.y2 // _ALIGN) * _ALIGN),
        )


def find_roi_areas(
    catalog: Catalog, video: LogicalVideo, table: FrameTable, labels: str
) -> RoiAreas:
    """Return the areas of the boxes that match the expression `labels`.

    Raises `ForbiddenError` if frames were not examined by a source that can find these labels.
    """
    media = video.original.media
    shown = np.maximum.accumulate(np.append(table.pts(), table.end_pts))
    with catalog.reading() as seen:
        examined = seen.detections.examined(video.id)
        for words in (one.labels for one in parse_labels(labels) if one.is_plain):
            givers = {
                who
                for who in {one.source for one in examined}
                if seen.detections.detects_any(who, words)
            }
            looked = [one.frames for one in examined if one.source in givers]
            _require_examined(video, words, looked, shown)
    return RoiAreas(media, *_boxes(catalog, video, labels), shown)


def _boxes(
    catalog: Catalog, video: LogicalVideo, labels: str
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    found = catalog.detections.find(video, parse_labels(labels)).columns()
    return found.frames, found.boxes


def _around(media: MediaInfo) -> int:
    """Return `AROUND_SECONDS` in ticks."""
    return math.floor(AROUND_SECONDS / media.time_base)


def _require_examined(
    video: LogicalVideo, labels: Sequence[str], examined: Sequence[range], shown: Ints
) -> None:
    """Raises `ForbiddenError` for a gap between examined frames that is too long."""
    around = _around(video.original.media)
    at = 0
    for frames in sorted(examined, key=lambda one: one.start):
        if shown[frames.start] - shown[at] > around:
            break
        at = max(at, frames.stop)
    if shown[-1] - shown[at] > around:
        raise ForbiddenError(
            f"{video.name} was not examined for {' or '.join(labels)} from frame {at} on",
            hint="run `vfsd detect` with a detector of these labels first",
        )


class RoiReencoder(VideoReencoder):
    """Encodes one video with at most the error `limit` within `areas`.

    Raises `UsageError` also for pixel formats that cannot be composed.
    """

    def __init__(
        self,
        parts: StoreContext,
        video: LogicalVideo,
        table: FrameTable,
        codec: str,
        limit: float,
        areas: RoiAreas,
    ) -> None:
        super().__init__(parts, video, table, codec, limit)
        pixels = video.original.media.pixel_format
        if pixels.removesuffix("10le") not in _PLANAR:
            raise UsageError(f"pictures in {pixels} cannot decay")
        self._areas = areas
        self._before: VideoFrame | None = None  # of the previous run
        self._behind: VideoFrame | None = None  # background of the current run

    def encoded(self, decoder: FrameDecoder, frames: range) -> ReencodedRun:
        run = super().encoded(decoder, frames)
        self._before = self._behind
        return run

    def compare(
        self, source: FrameDecoder, made: FrameDecoder, on_frame: Callable[[], None]
    ) -> Comparison:
        """Apply the limit to the kept areas of each picture; the rest is only measured."""
        whole = inside = outside = 0.0
        count = 0
        for number, one, other in frame_pairs(source, made, range(len(self._table))):
            if number == 0:
                self._require_same_siting(other)
            mask = self._areas.mask(number)
            error = frame_error(one, other)
            whole, inside = max(whole, error), max(inside, masked_error(one, other, mask))
            rest = error if mask is None else masked_error(one, other, 255 - mask)
            outside, count = outside + rest * rest, count + 1
            on_frame()
        details = {
            "boxes": len(self._areas),
            "inside": psnr_from_error(inside) if inside else None,
            "outside": psnr_from_error(math.sqrt(outside / count)) if outside else None,
        }
        return Comparison(whole, inside, details)

    def _pictures(self, decoder: FrameDecoder, frames: range) -> Iterator[VideoFrame]:
        background: VideoFrame | None = None
        for number, picture in self._decoded(decoder, frames):
            mask = self._areas.mask(number)
            if background is None:
                background = low_passed(picture, _BLUR_RADIUS)
                if mask is not None and self._before is not None:
                    # Objects in the kept area move on and must not stay visible in the background.
                    background = blended(background, self._before, mask)
                self._behind = background
            yield blended(background, picture, mask)

    def _measure_from(self, frames: range) -> ErrorMeasure:
        return lambda ordinal, one, other: masked_error(
            one, other, self._areas.mask(frames.start + ordinal)
        )
