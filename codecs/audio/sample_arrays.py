"""Audio samples as NumPy arrays: `SoundFormat` describes them, `SampleFramer` checks arrays and
turns them into audio frames for an encoder.
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
"""Samples x channels, or samples of one channel."""

AudioSamples: TypeAlias = tuple[AudioArray, int]
"""Samples of int16, int32 or float (-1 to 1), and how many each channel has in a second."""

SAMPLE_FORMATS: Mapping[str, str] = MappingProxyType(
    {"int16": "s16", "int32": "s32", "float32": "flt", "float64": "dbl"}
)
"""FFmpeg's sample formats, by type of an array."""

CHANNEL_LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}
"""By the number of channels."""
_MAX_SAMPLE_RATE = 1_000_000
_ACCEPTED_DTYPES = "int16, int32 or float32"


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """What sound is like that comes piece by piece."""

    rate: int  #: samples of each channel in a second
    layout: str | int = "stereo"  #: FFmpeg's name: mono, stereo, 5.1 ...; or how many channels
    dtype: npt.DTypeLike = "int16"  #: int16, int32 (of which 24 bits are kept) or float32 (-1 to 1)


class SampleFramer:
    """A `SoundFormat` that was checked.  Raises `UsageError`."""

    def __init__(self, told: SoundFormat) -> None:
        self.rate = whole_number(told.rate, "sample rate")
        if not 0 < self.rate <= _MAX_SAMPLE_RATE:
            raise UsageError(f"sample rate must be 1 to {_MAX_SAMPLE_RATE}, got {shown(self.rate)}")
        try:
            self.dtype = np.dtype(told.dtype)
        except TypeError as error:
            raise UsageError(
                f"samples must be {_ACCEPTED_DTYPES}, got {told.dtype}", hint=_ACCEPTED_DTYPES
            ) from error
        if self.dtype.name not in SAMPLE_FORMATS:
            raise UsageError(
                f"sound is not written of {self.dtype}", hint=f"give {_ACCEPTED_DTYPES}"
            )
        self.kind = SAMPLE_FORMATS[self.dtype.name]
        self.layout = _channel_layout(told.layout)
        self.channels = AudioLayout(self.layout).nb_channels

    def checked(self, given: AudioArray | AudioSamples) -> AudioArray:
        """As samples x channels.  Raises `UsageError` for what is of another form."""
        if isinstance(given, tuple):
            given, rate = given
            if rate != self.rate:
                raise UsageError(f"sound of {self.rate} Hz does not go on with {rate} Hz")
        samples = np.asarray(given)
        if samples.ndim == 1 and self.channels == 1:
            samples = samples[:, None]
        if (samples.shape[1:], samples.dtype.name) != ((self.channels,), self.dtype.name):
            raise UsageError(
                f"a piece of sound is an array of samples x {self.channels} of {self.dtype.name}, "
                f"not of {' x '.join(map(str, samples.shape))} of {samples.dtype}"
            )
        _require_finite(samples)
        return samples

    def frames(self, samples: AudioArray, first: int) -> Iterator[av.AudioFrame]:
        """A second at a time, of which the first sample has the number `first`."""
        for at in range(0, len(samples), self.rate):
            part = np.ascontiguousarray(samples[at : at + self.rate], dtype=self.dtype.name)
            frame = av.AudioFrame.from_ndarray(
                part.reshape(1, -1), format=self.kind, layout=self.layout
            )
            frame.sample_rate, frame.pts = self.rate, first + at
            frame.time_base = Fraction(1, self.rate)
            yield frame

    def silence(self, first: int, end: int) -> Iterator[av.AudioFrame]:
        """As `frames`, for the samples ``first <= s < end``."""
        for at in range(first, end, self.rate):
            nothing = np.zeros((min(self.rate, end - at), self.channels), self.dtype.name)
            yield from self.frames(nothing, at)


def framer_for(given: AudioSamples) -> tuple[SampleFramer, AudioArray]:
    """What samples are that are given as a whole, and as samples x channels.

    Raises `UsageError` for what is no sound.
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
    """The samples of a frame of format flt, channels x samples.

    PyAV takes planar frames of eight channels to have nine planes, and reads beyond the last one.
    """
    return frame.to_ndarray().reshape(-1, channels).T.astype(np.float32)


def _channel_layout(told: str | int) -> str:
    if isinstance(told, str):
        try:
            return str(AudioLayout(told).name)
        except ValueError as error:
            raise UsageError(
                f"layout must be one of FFmpeg's, such as mono, stereo or 5.1, got {told}",
                hint="FFmpeg's: mono, stereo, 5.1 ...",
            ) from error
    if told not in CHANNEL_LAYOUTS:
        raise UsageError(
            f"{told} channels may be anything", hint="say which: layout='quad', '5.0', '6.1' ..."
        )
    return CHANNEL_LAYOUTS[told]


def _require_finite(samples: AudioArray) -> None:
    if samples.dtype.kind == "f" and not np.isfinite(samples).all():
        raise UsageError("sound that is not a number, or infinite, cannot be encoded")
