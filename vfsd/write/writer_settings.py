"""`WriterSettings`: the codec, rate, quality and colors of a new video."""

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
"""By the suffix of the name."""
_GOP_SECONDS = 1
_MAX_GOP_FRAMES = 120
_MAX_FRAMES = 1_000_000_000
"""Between two key pictures; encoders count in 32 bits."""


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
        """Return the color metadata of the file, see `FileOptions`."""
        told = {"color_range": self.color_range, "colorspace": self.color_space}
        chosen = {key: value for key, value in told.items() if value is not None}
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
        if not isinstance(self.sound, (str, PathLike, tuple, SoundFormat)):
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
