"""`WriterSettings`: the codec, rate, quality and colors with which a new video is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from pathlib import PurePosixPath
from reprlib import repr as shown
from typing import TypedDict

from vfsd.codecs.audio.audio_input import AudioInput, AudioOptions
from vfsd.codecs.audio.sample_arrays import SoundFormat
from vfsd.codecs.encoding.file_formats import (
    BT709,
    COLOR_RANGES,
    COLOR_SPACES,
    FILE_CODECS,
    FileOptions,
    nominal_rate,
    require_container,
    require_size,
    stored_format,
)
from vfsd.codecs.frames.pixel_layouts import input_layout
from vfsd.codecs.frames.planes import names_full_range
from vfsd.core.timebase import Seconds, frame_rate, seconds
from vfsd.errors import UsageError
from vfsd.validation import decibels, local_path, no_such_file, not_one_of, whole_number

_CONTAINERS = {
    "": "mp4",
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".mov": "mov",
    ".mkv": "matroska",
}
"""By the ending of the name."""
_GOP_SECONDS = 1
_MAX_GOP_FRAMES = 120
_MAX_FRAMES = 1_000_000_000
"""From one key picture to the next: encoders count in 32 bits."""


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

    One of `fps` and `time_base` is given: frames come at a constant rate, or each with the tick of
    `time_base` (seconds) from which it is shown.
    """

    fps: Seconds | None = None
    time_base: Seconds | None = None
    format: str = "rgb24"  #: of the pictures that come, as in `Video.read`
    codec: str = "h264"  #: h264, hevc, av1, mjpeg, ffv1 or raw
    pixel_format: str | None = None  #: that is encoded; None: what suits `format`
    quality: int | None = None
    """Rate factor (of mjpeg the quantiser, from 1 on), lower is better; None: hard to tell from the
    source."""
    psnr: float | None = None  #: dB that the worst plane of each picture has, instead of a quality
    lossless: bool = False  #: every sample is kept; an error where it cannot be
    key_interval: int | None = None  #: frames, 1 to a billion; None: a second
    color_range: str | None = None  #: of samples that are YUV: limited or full; None: not told
    color_space: str | None = None  #: of samples that are YUV: bt709, smpte170m ...; None: not told
    sample_aspect_ratio: Seconds | None = None  #: of pixels that are not square; "4:3", too
    sound: AudioInput | None = None  #: a file of which it is taken, or (samples x channels, rate)
    sound_codec: str | None = None  #: aac, flac, opus or pcm; None: as in the file, else aac

    def file_form(self, name: str, size: tuple[int, int]) -> FileOptions:
        """As what the file of a video called `name` is written.  Raises `UsageError`."""
        codec = FILE_CODECS.get(self.codec)
        if codec is None:
            raise not_one_of("codec", self.codec, FILE_CODECS)
        ending = PurePosixPath(name).suffix.lower()
        container = _CONTAINERS.get(ending)
        if container is None:
            raise UsageError(
                f"videos are not written as {ending}",
                hint=f"let the name end in {', '.join(filter(None, _CONTAINERS))}",
            )
        rate, tick = self._times()
        stored = stored_format(codec, self.format, self.pixel_format, self.lossless)
        require_container(codec, stored, container)
        require_size(stored, *size)
        if self.lossless not in (True, False):
            raise UsageError(f"lossless is True or False, not {shown(self.lossless)}")
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
        """What the file tells of them, as `FileOptions` has it."""
        told = {"color_range": self.color_range, "colorspace": self.color_space}
        chosen = {key: value for key, value in told.items() if value is not None}
        if not input_layout(self.format).channels:
            if self.color_range not in (None, *COLOR_RANGES):
                raise UsageError(f"colour ranges are {' and '.join(COLOR_RANGES)}")
            if self.color_space not in (None, *COLOR_SPACES):
                raise UsageError(f"colour spaces are {', '.join(COLOR_SPACES)}")
            return {} if names_full_range(stored) else chosen
        if chosen:
            raise UsageError(
                f"colours of {self.format} are what they are",
                hint="color_range and color_space are about YUV samples",
            )
        return BT709 if stored.startswith("yuv") and not names_full_range(stored) else {}

    def _times(self) -> tuple[Fraction | None, Fraction]:
        """The rate, if it is constant, and the seconds of a tick."""
        if (self.fps is None) == (self.time_base is None):
            raise UsageError(
                "pictures need times: a rate, or a time base and a pts for each",
                hint="give one of fps and time_base",
            )
        given = None if self.fps is None else frame_rate(self.fps)
        tick = 1 / given if given else _parse_time_base(self.time_base or 0)
        if (given is not None and given <= 0) or tick <= 0:
            raise UsageError("rates and time bases are larger than 0")
        if max(tick.numerator, tick.denominator) >= 1 << 31:
            raise UsageError(f"{tick} s as a tick is finer than files can tell")
        return given, tick

    def _quality(self) -> int | None:
        codec = FILE_CODECS[self.codec]
        if self.lossless or codec.quality is None:
            if self.quality is not None or self.psnr is not None:
                raise UsageError("what is written without loss has no quality to choose")
            return None
        quality = codec.quality
        if self.quality is not None:
            quality = whole_number(self.quality, "quality")
        if quality not in codec.rate_factors:
            finest, coarsest = codec.rate_factors[0], codec.rate_factors[-1]
            raise UsageError(
                f"rate factors of {codec.name} are {finest} to {coarsest}, not {quality}"
            )
        return quality

    def _sound(self) -> AudioOptions | None:
        if self.sound is None:
            if self.sound_codec is not None:
                raise UsageError("sound_codec needs sound to encode", hint="give sound, too")
            return None
        if not isinstance(self.sound, (str, PathLike, tuple, SoundFormat)):
            raise UsageError(
                f"sound must be a file or (samples, rate), got {shown(self.sound)}",
                hint="give a file, or (samples, rate)",
            )
        if isinstance(self.sound, (str, PathLike)):
            file = local_path(self.sound, "a file with sound")
            if not file.exists():
                raise no_such_file(file)
        return AudioOptions(self.sound, self.sound_codec)

    def _psnr(self) -> float | None:
        if self.psnr is None:
            return None
        if self.quality is not None:
            raise UsageError("a rate factor and a PSNR are one too many", hint="give one of them")
        if not FILE_CODECS[self.codec].measured:
            measured = [codec.name for codec in FILE_CODECS.values() if codec.measured]
            raise UsageError(
                f"{self.codec} is not written with a PSNR",
                hint=f"{', '.join(measured)} are; or give a quality",
            )
        psnr = decibels(self.psnr)
        if not 0 < psnr < math.inf:
            raise UsageError(
                f"{psnr:g} dB cannot be asked for",
                hint="what is lossless keeps all of it",
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
                hint="width by height of a pixel, as in 4:3",
            )
        return ratio

    def _key_interval(self, rate: Fraction | None) -> int:
        if self.key_interval is not None:
            interval = whole_number(self.key_interval, "key_interval")
            if not 1 <= interval <= _MAX_FRAMES:
                raise UsageError(
                    f"a key picture comes after 1 to {_MAX_FRAMES} pictures, not {interval}"
                )
            return interval
        return max(1, min(_MAX_GOP_FRAMES, round(_GOP_SECONDS * nominal_rate(rate))))


def _parse_time_base(time_base: Seconds) -> Fraction:
    """Its seconds: a time, as ``"0.04s"``, or a fraction, as ``"1/90000"``."""
    is_fraction = isinstance(time_base, str) and "/" in time_base
    return frame_rate(time_base) if is_fraction else seconds(time_base)
