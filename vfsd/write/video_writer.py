"""`VideoWriter` encodes a new video frame by frame and publishes it when it is closed.

`WriterSettings` has the codec, rate, quality and colors.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from io import FileIO
from os import PathLike
from pathlib import PurePosixPath
from reprlib import repr as shown
from types import TracebackType
from typing import TYPE_CHECKING, Generic, SupportsIndex, TypeAlias, TypedDict, TypeVar

import numpy as np

from vfsd.codecs.audio.audio_input import AudioInput, AudioOptions
from vfsd.codecs.audio.samples import AudioArray, AudioFormat, AudioSamples
from vfsd.codecs.containers.file_timestamps import FileTimestamps
from vfsd.codecs.encoding.file_writer import (
    BT709,
    COLOR_RANGES,
    COLOR_SPACES,
    FILE_CODECS,
    FileOptions,
    FileWriter,
    nominal_rate,
    require_container,
    require_size,
    stored_format,
)
from vfsd.codecs.frames.planes import FrameMaker, input_layout, names_full_range
from vfsd.core.pixel_array import Pixels
from vfsd.core.process_control import OwnerProcess, leak, reset_after_fork
from vfsd.core.timebase import Seconds, frame_rate, seconds
from vfsd.disk.tempfiles import NO_SPACE
from vfsd.errors import NoSpaceError, UsageError
from vfsd.storage.context import StoreContext
from vfsd.validation import decibels, local_path, no_such_file, not_one_of, whole_number
from vfsd.write.frame_input import FrameInput, iter_input_frames
from vfsd.write.unfinished_files import RECOVER_HINT, PartialFile, create_partial, is_retryable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


# By the suffix of the name.
_CONTAINERS = {
    "": "mp4",
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".mov": "mov",
    ".mkv": "matroska",
}
_GOP_SECONDS = 1
_MAX_GOP_FRAMES = 120
# Between two key pictures; encoders count in 32 bits.
_MAX_FRAMES = 1_000_000_000

_V = TypeVar("_V")

Ticks: TypeAlias = SupportsIndex | Iterable[SupportsIndex]
"""The time of one picture, or of each of several; may be numpy integers."""


class WriteOptions(TypedDict, total=False):
    """The fields of a `WriterSettings`, as keyword arguments of `Store.write`."""

    fps: Seconds | None
    time_base: Seconds | None
    format: str
    codec: str
    pixel_format: str | None
    quality: int | None
    psnr: float | None
    lossless: bool
    key_interval: int | None
    color_range: str | None
    color_space: str | None
    sample_aspect_ratio: Seconds | None
    sound: AudioInput | None
    sound_codec: str | None


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How a video is written.

    Either `fps` is set for a constant rate, or `time_base` (seconds per tick) for a pts with each
    frame.
    """

    fps: Seconds | None = None
    time_base: Seconds | None = None
    format: str = "rgb24"  #: of the given pictures, as in `Video.read`
    codec: str = "h264"  #: h264, hevc, av1, mjpeg, ffv1 or raw
    pixel_format: str | None = None  #: of the encoded pictures; None to derive it from `format`
    quality: int | None = None
    """Rate factor (for mjpeg the quantiser, from 1), lower is better; None for a visually lossless
    default."""
    psnr: float | None = None
    """minimum dB of the worst plane of each picture, instead of `quality`"""
    lossless: bool = False  #: keep every sample, or raise an error
    key_interval: int | None = None  #: frames, 1 to a billion; None for a second
    color_range: str | None = None  #: of YUV samples: limited or full; None for unspecified
    color_space: str | None = None  #: of YUV samples: bt709, smpte170m ...; None for unspecified
    sample_aspect_ratio: Seconds | None = None  #: of non-square pixels; may be "4:3"
    sound: AudioInput | None = None  #: a file with sound, or (samples x channels, rate)
    sound_codec: str | None = None  #: aac, flac, opus or pcm; None for that of the file, or aac

    def file_form(self, name: str, size: tuple[int, int]) -> FileOptions:
        """Return the options of the file for a video called `name`.  Raises `UsageError`."""
        codec = FILE_CODECS.get(self.codec)
        if codec is None:
            raise not_one_of("codec", self.codec, FILE_CODECS)
        ending = PurePosixPath(name).suffix.lower()
        container = _CONTAINERS.get(ending)
        if container is None:
            raise UsageError(
                f"the file suffix {ending} is not supported",
                hint=f"use one of {', '.join(filter(None, _CONTAINERS))}",
            )
        rate, tick = self._times()
        stored = stored_format(codec, self.format, self.pixel_format, self.lossless)
        require_container(codec, stored, container)
        require_size(stored, *size)
        if self.lossless not in (True, False):
            raise UsageError(f"lossless must be True or False, got {shown(self.lossless)}")
        return FileOptions(
            container=container,
            codec=codec,
            width=size[0],
            height=size[1],
            pixel_format=stored,
            time_base=tick,
            rate=nominal_rate(rate),
            key_interval=self._key_interval(rate),
            quality=self._quality(),
            colors=self._colors(stored),
            sample_aspect_ratio=self._sample_aspect_ratio(),
            psnr=self._psnr(),
            sound=self._sound(),
        )

    def _colors(self, stored: str) -> Mapping[str, str]:
        options = {"color_range": self.color_range, "colorspace": self.color_space}
        chosen = {key: value for key, value in options.items() if value is not None}
        if not input_layout(self.format).channels:
            if self.color_range not in (None, *COLOR_RANGES):
                raise UsageError(
                    f"color_range must be {' or '.join(COLOR_RANGES)}, got "
                    f"{shown(self.color_range)}"
                )
            if self.color_space not in (None, *COLOR_SPACES):
                raise UsageError(
                    f"color_space must be one of {', '.join(COLOR_SPACES)}, got "
                    f"{shown(self.color_space)}"
                )
            return {} if names_full_range(stored) else chosen
        if chosen:
            raise UsageError(
                f"{self.format} has a fixed color range and space",
                hint="give color_range and color_space only for YUV samples",
            )
        return BT709 if stored.startswith("yuv") and not names_full_range(stored) else {}

    def _times(self) -> tuple[Fraction | None, Fraction]:
        """Return the constant rate or None, and the seconds per tick."""
        if (self.fps is None) == (self.time_base is None):
            raise UsageError(
                "pictures need times: a rate, or a time base and a pts for each",
                hint="give one of fps and time_base",
            )
        given = None if self.fps is None else frame_rate(self.fps)
        tick = 1 / given if given else _parse_time_base(self.time_base or 0)
        if (given is not None and given <= 0) or tick <= 0:
            raise UsageError("fps and time_base must be larger than 0")
        if max(tick.numerator, tick.denominator) >= 1 << 31:
            raise UsageError(f"a tick of {tick} s is too fine for the file format")
        return given, tick

    def _quality(self) -> int | None:
        codec = FILE_CODECS[self.codec]
        if self.lossless or codec.quality is None:
            if self.quality is not None or self.psnr is not None:
                raise UsageError("a lossless video has no quality or PSNR setting")
            return None
        quality = codec.quality
        if self.quality is not None:
            quality = whole_number(self.quality, "quality")
        if quality not in codec.rate_factors:
            finest, coarsest = codec.rate_factors[0], codec.rate_factors[-1]
            raise UsageError(
                f"quality of {codec.name} must be {finest} to {coarsest}, got {quality}"
            )
        return quality

    def _sound(self) -> AudioOptions | None:
        if self.sound is None:
            if self.sound_codec is not None:
                raise UsageError("sound_codec needs sound to encode", hint="give sound, too")
            return None
        if not isinstance(self.sound, (str, PathLike, tuple, AudioFormat)):
            raise UsageError(f"sound must be a file or (samples, rate), got {shown(self.sound)}")
        if isinstance(self.sound, (str, PathLike)):
            file = local_path(self.sound, "a file with sound")
            if not file.exists():
                raise no_such_file(file)
        return AudioOptions(self.sound, self.sound_codec)

    def _psnr(self) -> float | None:
        if self.psnr is None:
            return None
        if self.quality is not None:
            raise UsageError("give either quality or psnr, not both")
        if not FILE_CODECS[self.codec].measured:
            measured = [codec.name for codec in FILE_CODECS.values() if codec.measured]
            raise UsageError(
                f"{self.codec} cannot be encoded to a given PSNR",
                hint=f"use a quality, or one of {', '.join(measured)}",
            )
        psnr = decibels(self.psnr)
        if not 0 < psnr < math.inf:
            raise UsageError(
                f"psnr must be a positive number of dB, got {psnr:g} dB",
                hint="lossless=True keeps every sample",
            )
        return psnr

    def _sample_aspect_ratio(self) -> Fraction | None:
        if self.sample_aspect_ratio is None:
            return None
        try:
            ratio = frame_rate(self.sample_aspect_ratio)
        except UsageError:
            ratio = Fraction(0)
        if ratio <= 0 or max(ratio.numerator, ratio.denominator) >= 1 << 31:
            raise UsageError(
                f"sample_aspect_ratio must be a ratio, got {shown(self.sample_aspect_ratio)}",
                hint="give width by height of a pixel, as in 4:3",
            )
        return ratio

    def _key_interval(self, rate: Fraction | None) -> int:
        if self.key_interval is not None:
            interval = whole_number(self.key_interval, "key_interval")
            if not 1 <= interval <= _MAX_FRAMES:
                raise UsageError(f"key_interval must be 1 to {_MAX_FRAMES} frames, got {interval}")
            return interval
        return max(1, min(_MAX_GOP_FRAMES, round(_GOP_SECONDS * nominal_rate(rate))))


def _parse_time_base(time_base: Seconds) -> Fraction:
    """Parse a time such as ``"0.04s"``, or a fraction of a second such as ``"1/90000"``."""
    is_fraction = isinstance(time_base, str) and "/" in time_base
    return frame_rate(time_base) if is_fraction else seconds(time_base)


class VideoWriter(Generic[_V]):
    """Writes a video that appears in the store when the block ends, or not at all.

        with store.writer("cam1/live.mp4", width=640, height=360, fps=25) as writer:
            for picture in camera:
                writer.write(picture)
        video = writer.video

    An error in the block leaves the store unchanged.  The file is kept as a recording (see
    `Store.recordings`) if only the publishing fails (see `close`), if the disk is full or fails, if
    the required quality cannot be reached, or if the process is killed.  Takes the memory of a few
    pictures.  One thread may write pictures while another writes sound.  A child that is forked in
    the block cannot write or finish the video, and leaves it to its parent.

        sound = AudioFormat(48000, "stereo", "int16")
        with store.writer("cam1/talk.mp4", width=640, height=360, fps=25, sound=sound) as writer:
            for picture, samples in recording:
                writer.write(picture)
                writer.write_sound(samples)
    """

    def __init__(
        self,
        parts: StoreContext,
        name: str,
        size: tuple[int, int],
        form: WriterSettings,
        publish: Callable[[PartialFile, FileTimestamps], _V],
    ) -> None:
        """`publish` makes a video of the finished file, given the times of its pictures.

        Raises `UsageError`, `BusyError` while another process writes that name, `NoSpaceError`.
        """
        self.name = name
        self.frames = 0  #: number of written pictures
        self._form = form
        self._writing = threading.RLock()
        self._publish = publish
        self._video: _V | None = None
        file_form = form.file_form(name, size)
        self._maker = FrameMaker(
            form.format,
            *size,
            file_form.pixel_format,
            color_range=form.color_range,
            color_space=form.color_space,
        )
        self._stop_error: Exception | None = None  # why it accepts no more pictures
        self._pts = -1  # of the last picture
        self._origin = 0  # the pts of the first
        with self._convert_write_errors():
            self.unfinished = create_partial(parts.objects, name)
        try:
            self._file = _FullWriteFile(self.unfinished.path, "r+b")
            try:
                with self._convert_write_errors():
                    self._writer = FileWriter(self._file, file_form)
            except BaseException:
                self._file.close()
                raise
        except BaseException:
            self.unfinished.remove()
            raise
        self._is_open = True
        self._is_complete = False  # the file is complete but not published
        self._owner = OwnerProcess()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`: in a child it is closed, and the file stays the
        parent's."""
        # Freeing the muxer would write the end of the file and wait for encoder threads.
        leak(self._writer)
        self._is_open = self._is_complete = False
        self._stop_error = None
        self._writing = threading.RLock()

    def __enter__(self) -> VideoWriter[_V]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.close()
        finally:
            if not self._is_complete:  # otherwise `close` may be called again
                self.leave()

    @property
    def video(self) -> _V:
        """The published video.  Raises `UsageError` before the end of the block."""
        if self._video is None:
            raise UsageError(
                "the video is not published before the end of the with block",
                hint="read the attribute after the block",
            )
        return self._video

    def write(self, data: FrameInput, pts: Ticks | None = None) -> int:
        """Write one or several pictures and return the total number so far.

        With a `time_base`, `pts` are the ticks at which the pictures appear: ascending whole
        numbers.  Frames that were read have their own pts.  The video starts at the first one.

        Raises `UsageError` for an array of another shape or type, a missing time, a time that the
        container cannot store (see `FileTimestamps.require`), and pictures that the encoder
        refuses; earlier pictures stay.  After a `NoSpaceError` nothing more can be written, see
        `leave`.  The same holds after the `UsageError` for a group of pictures that cannot reach
        the `psnr`: the file ends before them, at `frames`.
        """
        self._require_open()
        times = parse_pts(pts, self._form)
        for picture, own in iter_input_frames(data, self._form.format):
            with self._writing:
                self._require_open()
                self._put(picture, next(times, None) if times is not None else own)
        if times is not None and next(times, None) is not None:
            raise UsageError("got more times than pictures")
        return self.frames

    def write_sound(self, samples: AudioArray | AudioSamples, first: int | None = None) -> int:
        """Write a piece of sound and return the total number of samples per channel so far.

        `samples` have the form of `AudioFormat`, samples x channels; with (samples, rate) the rate
        is compared too. Sample 0 is heard with the first picture.  A piece continues the previous
        one, or starts at sample number `first` after silence.

        Sound and pictures may be at most 10 seconds (`MAX_OFFSET_SECONDS`) apart.  If pictures are
        further ahead, the missing sound becomes silence and is refused later.  Sound that is too
        late or too far ahead, and samples of another form, raise `UsageError` without being
        written; a full disk raises `NoSpaceError`.  Up to a second of sound after the last picture
        is dropped; see `close`.
        """
        with self._writing:
            self._require_open()
            with self._convert_write_errors():
                return self._writer.put_sound(samples, first)

    def cut_short(self, error: Exception) -> None:
        """Finish the file without further pictures, because of `error`.

        Unless `close` is called afterwards, it becomes a recording, and `error` gets a note about
        it.  Does nothing without pictures.
        """
        with self._writing:
            self._require_open()
            if self.frames:
                self._finish()
                frames = f"{self.frames} frames were" if self.frames > 1 else "1 frame was"
                error.add_note(
                    f"{frames} saved: {self.unfinished.path} has the written part of "
                    f"{self.name!r}; {RECOVER_HINT}"
                )

    def close(self) -> None:
        """Finish the file and publish the video; does nothing if that is done already.

        Raises `UsageError` if the sound is more than a second longer than the pictures; more
        pictures can be written then. Raises `IntegrityError` if the finished file shows pictures at
        other times than given; the store is then unchanged. In a forked child the file is left
        alone.

        After an error that may pass, the file is kept, and a note of the error names it: a catalog
        that is locked by others (`BusyError`), a full disk (`NoSpaceError`), a failing disk or too
        many open files (`OSError`), a name that was taken in the meantime (`ExistsError`), or a
        hold on the file to replace (`HeldError`).  `close` can be called again. At the end of the
        process, or after `leave`, the file is a recording that `Store.recover` turns into a video.
        An error that stopped the writing earlier is raised here again.
        """
        with self._writing:
            if self._stop_error is not None:
                self.leave()
                raise self._stop_error
            if self._is_open:
                self._writer.require_end()
                self._finish()
            if self._is_complete:
                self._publish_it()

    def abandon(self) -> None:
        """Discard the file; the store is unchanged."""
        with self._writing:
            try:
                if self._is_open:
                    self._writer.abandon()
                    self._close_file()
            finally:
                self._is_complete = False
                self.unfinished.remove()

    def leave(self) -> None:
        """Keep the file as a recording if it is complete or cut short (see `write`); otherwise
        discard it.

        See `Store.recordings`.
        """
        with self._writing:
            if not (self._is_complete or self._has_part):
                self.abandon()
                return
            self._is_complete = False
            if self._is_open:
                # First, because the muxer must not write the end of a partial file.
                self._close_file()
                self._writer.abandon()
            self.unfinished.keep_for_recovery()

    @property
    def _has_part(self) -> bool:
        return self._stop_error is not None and self.frames > 0 and not self.unfinished.is_empty

    def _finish(self) -> None:
        try:
            if not self.frames:
                raise UsageError(f"no picture was written to {self.name!r}")
            with self._convert_write_errors(), self._drop_lost_frames():
                self._writer.finish()
            self._close_file()
        except BaseException:
            self.leave()
            raise
        self._is_complete = True

    def _publish_it(self) -> None:
        try:
            self._video = self._publish(self.unfinished, self._writer.times)
        except BaseException as error:
            if not is_retryable(error):
                self.abandon()
            raise
        self._is_complete = False
        self.unfinished.remove()

    def _require_open(self) -> None:
        self._owner.require_same_process(f"{self.name!r}, a video")
        if not self._is_open:
            if self._stop_error is not None:
                raise self._stop_error
            raise UsageError(f"{self.name!r} is finished or abandoned")

    def _close_file(self) -> None:
        self._is_open = False
        self._file.close()

    def _put(self, picture: Pixels, pts: SupportsIndex | None) -> None:
        if self._form.time_base is None:
            pts = self.frames
        elif pts is None:
            raise UsageError(
                f"frame {self.frames} has no time", hint="give pts, or fps instead of time_base"
            )
        tick = whole_number(pts, f"pts of frame {self.frames}")
        if not self.frames:
            self._origin = tick
        with self._convert_write_errors(), self._drop_lost_frames():
            self._writer.put(self._maker.picture(picture), tick - self._origin)
        self.frames += 1

    @contextmanager
    def _drop_lost_frames(self) -> Iterator[None]:
        """End the file before accepted pictures that turn out to be missing from it."""
        try:
            yield
        except UsageError as error:
            lost = range(self._writer.frames, self.frames)
            if not lost:
                raise
            self.frames = lost.start
            if self.frames:
                self.cut_short(error)
                self._is_complete = False  # it is incomplete and must not be published
            self._stop_error = error
            raise

    @contextmanager
    def _convert_write_errors(self) -> Iterator[None]:
        if self._stop_error is not None:
            raise self._stop_error  # FFmpeg has dropped the pictures after the error
        try:
            yield
        except OSError as error:
            self._stop_error = error
            if error.errno in NO_SPACE:
                self._stop_error = NoSpaceError(f"no room for {self.name!r}: {error.strerror}")
            if self._has_part:
                self._stop_error.add_note(
                    f"{self.unfinished.path} has the part of {self.name!r} that was written; "
                    f"{RECOVER_HINT}"
                )
            if self._stop_error is error:
                raise
            raise self._stop_error from error


class _FullWriteFile(FileIO):
    """Writes all bytes or fails, because FFmpeg ignores a short write."""

    def write(self, data: ReadableBuffer, /) -> int:
        left = memoryview(data).cast("B")
        while left:
            left = left[super().write(left) :]
        return memoryview(data).nbytes


def parse_pts(pts: Ticks | None, form: WriterSettings) -> Iterator[SupportsIndex] | None:
    """Return an iterator over the given times, or None.

    Raises `UsageError` for invalid times, and for any times if the form has a constant rate.
    """
    if pts is None:
        return None
    if form.time_base is None:
        raise UsageError("pts cannot be given with a constant rate", hint="give time_base")
    if isinstance(pts, (int, np.integer)):
        return iter([pts])
    try:
        return iter(pts)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(
            f"pts must be whole ticks, got {shown(pts)}", hint="give one number for each picture"
        ) from None
