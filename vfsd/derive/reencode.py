"""Re-encodes a whole video in runs of about two seconds, each as small as the permitted error
allows.

It also forecasts the result from a few runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.decoding.frame_side_data import carried_data, first_picture
from vfsd.codecs.encoding.archive_encoder import (
    ErrorMeasure,
    ReencodedRun,
    archive_codec,
    coarsest_run,
    encode_run,
    frame_error,
    frame_pairs,
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
from vfsd.codecs.frames.chroma_siting import frame_siting
from vfsd.codecs.frames.color import frame_colors
from vfsd.codecs.inventory.collector import Inventory
from vfsd.codecs.inventory.inventory_diff import (
    differences,
    foreseen_differences,
    require_no_differences,
)
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LogicalVideo, MediaInfo
from vfsd.core.psnr import psnr_from_error
from vfsd.core.timebase import human_bytes
from vfsd.errors import NothingSavedError, RefusedMediaError
from vfsd.storage.context import StoreContext
from vfsd.tiling import cut_sequences

_RUN_SECONDS = 2.0
"""Approximate length of a run, which starts with a key picture.  Only 2 % of the bytes are in key
pictures then, and every frame is close to one."""
_SAMPLE_RUNS = 3
"""Runs that are encoded for a forecast."""

OnProgress = Callable[[str, int, int], None]
"""Called with (description, amount done, total); may raise to stop."""


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
        self._path = parts.file_of(video.original)
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

        A file with the first picture is written, compared and deleted.  Differences in later
        packets are found by `require_same`.
        """
        if self._inventory is not None:
            return
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
            index = pictures_index(begun, self._media.container, self.codec.name)
            made = replace(self._media, codec=self.codec.name, stream_index=index)
            pair = self._media.codec, self.codec.name
            begun_inventory = self._taken(begun, made)
            require_no_differences(
                foreseen_differences(
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
                require_saving(self._video, size)
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
            told = carried_data(picture)
            held = {kind: data for kind, data in told.items() if kind not in by_message}
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
