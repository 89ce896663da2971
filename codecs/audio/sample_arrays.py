"""Audio samples as NumPy arrays.

`SoundFormat` describes them. `SampleFramer` checks arrays and converts them to frames for an
encoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from reprlib import repr as shown
from types import MappingProxyType
from typing import Any, TypeAlias

import av
import numpy as np
import numpy.typing as npt
from av import AudioLayout

from vfsd.errors import UsageError
from vfsd.validation import whole_number

AudioArray: TypeAlias = npt.NDArray[Any]
"""samples x channels, or the samples of one channel."""

AudioSamples: TypeAlias = tuple[AudioArray, int]
"""(samples, rate): samples of int16, int32 or float (-1 to 1), and the sample rate in Hz."""

SAMPLE_FORMATS: Mapping[str, str] = MappingProxyType(
    {"int16": "s16", "int32": "s32", "float32": "flt", "float64": "dbl"}
)
"""FFmpeg's sample formats by array type."""

CHANNEL_LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}
"""FFmpeg's channel layouts by the number of channels."""
_MAX_SAMPLE_RATE = 1_000_000
_ACCEPTED_DTYPES = "int16, int32 or float32"


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """The format of audio that is written piece by piece."""

    rate: int  #: sample rate in Hz
    layout: str | int = "stereo"  #: FFmpeg's name (mono, stereo, 5.1 ...), or number of channels
    dtype: npt.DTypeLike = "int16"  #: int16, int32 (stored with 24 bits) or float32 (-1 to 1)


class SampleFramer:
    """Checks and frames audio samples of a `SoundFormat`. Raises `UsageError`."""

    def __init__(self, reported: SoundFormat) -> None:
        self.rate = whole_number(reported.rate, "sample rate")
        if not 0 < self.rate <= _MAX_SAMPLE_RATE:
            raise UsageError(f"sample rate must be 1 to {_MAX_SAMPLE_RATE}, got {shown(self.rate)}")
        try:
            self.dtype = np.dtype(reported.dtype)
        except TypeError as error:
            raise UsageError(
                f"samples must be {_ACCEPTED_DTYPES}, got {reported.dtype}", hint=_ACCEPTED_DTYPES
            ) from error
        if self.dtype.name not in SAMPLE_FORMATS:
            raise UsageError(f"audio samples must be {_ACCEPTED_DTYPES}, got {self.dtype}")
        self.kind = SAMPLE_FORMATS[self.dtype.name]
        self.layout = _channel_layout(reported.layout)
        self.channels = AudioLayout(self.layout).nb_channels

    def checked(self, given: AudioArray | AudioSamples) -> AudioArray:
        """Return samples x channels. Raises `UsageError` if the samples have another format."""
        if isinstance(given, tuple):
            given, rate = given
            if rate != self.rate:
                raise UsageError(f"sample rate must be {self.rate} Hz, got {rate} Hz")
        samples = np.asarray(given)
        if samples.ndim == 1 and self.channels == 1:
            samples = samples[:, None]
        if (samples.shape[1:], samples.dtype.name) != ((self.channels,), self.dtype.name):
            raise UsageError(
                f"audio must be an array of samples x {self.channels} of {self.dtype.name}, "
                f"got {' x '.join(map(str, samples.shape))} of {samples.dtype}"
            )
        _require_finite(samples)
        return samples

    def frames(self, samples: AudioArray, first: int) -> Iterator[av.AudioFrame]:
        """Yield frames of a second each; the first sample has number `first`."""
        for at in range(0, len(samples), self.rate):
            part = np.ascontiguousarray(samples[at : at + self.rate], dtype=self.dtype.name)
            frame = av.AudioFrame.from_ndarray(
                part.reshape(1, -1), format=self.kind, layout=self.layout
            )
            frame.sample_rate, frame.pts = self.rate, first + at
            frame.time_base = Fraction(1, self.rate)
            yield frame

    def silence(self, first: int, end: int) -> Iterator[av.AudioFrame]:
        """Yield silent frames for the samples ``first <= s < end``."""
        for at in range(first, end, self.rate):
            nothing = np.zeros((min(self.rate, end - at), self.channels), self.dtype.name)
            yield from self.frames(nothing, at)


def framer_for(given: AudioSamples) -> tuple[SampleFramer, AudioArray]:
    """Return the format of complete samples, and the samples as samples x channels.

    Raises `UsageError` if they are not audio.
    """
    try:
        data, rate = given
    except ValueError:
        raise UsageError(
            f"sound must be (samples, rate), got {len(given)} values", hint="give (samples, rate)"
        ) from None
    samples = np.asarray(data)
    if samples.ndim == 1:
        samples = samples[:, None]
    if samples.ndim != 2 or samples.dtype.name not in SAMPLE_FORMATS:
        raise UsageError(
            f"sound must be an array of samples x channels, got {samples.ndim} dimensions of "
            f"{samples.dtype}",
            hint=f"give {_ACCEPTED_DTYPES}",
        )
    form = SampleFramer(SoundFormat(rate, samples.shape[1], samples.dtype))
    _require_finite(samples)
    return form, samples


def float_planes(frame: av.AudioFrame, channels: int) -> npt.NDArray[np.float32]:
    """Return the samples of a frame of format flt, as channels x samples.

    PyAV assumes nine planes for planar frames of eight channels, and reads beyond the last one.
    """
    return frame.to_ndarray().reshape(-1, channels).T.astype(np.float32)


def _channel_layout(reported: str | int) -> str:
    if isinstance(reported, str):
        try:
            return str(AudioLayout(reported).name)
        except ValueError as error:
            raise UsageError(
                f"layout must be one of FFmpeg's, such as mono, stereo or 5.1, got {reported}",
                hint="FFmpeg's: mono, stereo, 5.1 ...",
            ) from error
    if reported not in CHANNEL_LAYOUTS:
        raise UsageError(
            f"layout of {reported} channels is ambiguous",
            hint="use layout='quad', '5.0', '6.1' ...",
        )
    return CHANNEL_LAYOUTS[reported]


def _require_finite(samples: AudioArray) -> None:
    if samples.dtype.kind == "f" and not np.isfinite(samples).all():
        raise UsageError("audio samples must be finite, got NaN or infinity")
