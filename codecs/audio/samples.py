"""Audio samples as NumPy arrays, and their encoding in segments.

`SampleFramer` checks arrays and converts them to frames; a view encodes each segment on its own,
with samples before and after it as a lead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from reprlib import repr as shown
from types import MappingProxyType
from typing import Any, TypeAlias

import av
import numpy as np
import numpy.typing as npt
from av import AudioLayout
from av.audio.codeccontext import AudioCodecContext
from av.codec.context import CodecContext

from vfsd.errors import IntegrityError, UsageError
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
class AudioFormat:
    """The format of audio that is written piece by piece."""

    rate: int  #: sample rate in Hz
    layout: str | int = "stereo"  #: FFmpeg's name (mono, stereo, 5.1 ...), or number of channels
    dtype: npt.DTypeLike = "int16"  #: int16, int32 (stored with 24 bits) or float32 (-1 to 1)


class SampleFramer:
    """Checks and frames audio samples of a `AudioFormat`. Raises `UsageError`."""

    def __init__(self, form: AudioFormat) -> None:
        self.rate = whole_number(form.rate, "sample rate")
        if not 0 < self.rate <= _MAX_SAMPLE_RATE:
            raise UsageError(f"sample rate must be 1 to {_MAX_SAMPLE_RATE}, got {shown(self.rate)}")
        try:
            self.dtype = np.dtype(form.dtype)
        except TypeError as error:
            raise UsageError(
                f"samples must be {_ACCEPTED_DTYPES}, got {form.dtype}", hint=_ACCEPTED_DTYPES
            ) from error
        if self.dtype.name not in SAMPLE_FORMATS:
            raise UsageError(f"audio samples must be {_ACCEPTED_DTYPES}, got {self.dtype}")
        self.kind = SAMPLE_FORMATS[self.dtype.name]
        self.layout = _channel_layout(form.layout)
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
    form = SampleFramer(AudioFormat(rate, samples.shape[1], samples.dtype))
    _require_finite(samples)
    return form, samples


def float_planes(frame: av.AudioFrame, channels: int) -> npt.NDArray[np.float32]:
    """Return the samples of a frame of format flt, as channels x samples.

    PyAV assumes nine planes for planar frames of eight channels, and reads beyond the last one.
    """
    return frame.to_ndarray().reshape(-1, channels).T.astype(np.float32)


def _channel_layout(layout: str | int) -> str:
    if isinstance(layout, str):
        try:
            return str(AudioLayout(layout).name)
        except ValueError as error:
            raise UsageError(
                f"layout must be one of FFmpeg's, such as mono, stereo or 5.1, got {layout}",
                hint="FFmpeg's: mono, stereo, 5.1 ...",
            ) from error
    if layout not in CHANNEL_LAYOUTS:
        raise UsageError(
            f"layout of {layout} channels is ambiguous",
            hint="use layout='quad', '5.0', '6.1' ...",
        )
    return CHANNEL_LAYOUTS[layout]


def _require_finite(samples: AudioArray) -> None:
    if samples.dtype.kind == "f" and not np.isfinite(samples).all():
        raise UsageError("audio samples must be finite, got NaN or infinity")


SEGMENT_AUDIO_CODECS = ("aac", "opus")
"""Audio codecs of views."""

_AAC_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_USUAL_RATE = 48_000
# Bits per second of a channel at 48 kHz.
_CHANNEL_BITS = 80_000
_MIN_BIT_RATE = 8_000
# Packets encoded before the kept ones, to settle the state of the encoder.
_LEAD_PACKETS = 8
# Packets encoded after the kept ones, for the lookahead of the encoder.
_TAIL_PACKETS = 2
# Reserved bytes of packets, relative to the bit rate.
_SIZE_MARGIN = Fraction(5, 4)
# Most bytes of a packet per channel (6144 bits, ISO/IEC 14496-3, 4.5.3.1).
_LARGEST_AAC = 768
_BIT_RATE_STEP = 0.7
# Seconds of extra samples on both sides of resampled ones.
_MARGIN = 0.1

SegmentSamples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AudioSegmentFormat:
    """How audio of views is encoded."""

    codec: str  #: aac or opus
    sample_rate: int
    layout: str  #: FFmpeg's name
    bit_rate: int  #: bits per second

    @property
    def channels(self) -> int:
        """The number of channels."""
        return int(av.AudioLayout(self.layout).nb_channels)

    @property
    def samples(self) -> int:
        """Samples per packet and channel."""
        return 1024 if self.codec == "aac" else 960

    @property
    def delay(self) -> int:
        """The encoder delay in samples."""
        return 1024 if self.codec == "aac" else 312

    def room(self, packets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the bytes to reserve for so many consecutive packets."""
        each = Fraction(self.bit_rate * self.samples, 8 * self.sample_rate)
        if self.codec == "opus":
            return packets * int(each)  # of constant size
        likely = packets * int(each * _SIZE_MARGIN) + 2 * _LARGEST_AAC * self.channels
        room: npt.NDArray[np.int64] = np.where(packets, likely, 0)
        return room


def audio_segment_format(codec: str, sample_rate: int, channels: int) -> AudioSegmentFormat:
    """Return how to encode audio of that sample rate and number of channels.

    `codec` is one of `SEGMENT_AUDIO_CODECS`.
    """
    layout = CHANNEL_LAYOUTS.get(channels, "stereo")
    rate = sample_rate if codec == "aac" and sample_rate in _AAC_RATES else _USUAL_RATE
    share = min(Fraction(1), Fraction(3 * rate, 2 * _USUAL_RATE))
    bits = int(_CHANNEL_BITS * share) * int(av.AudioLayout(layout).nb_channels)
    # A multiple of 400, so that Opus packets are a whole number of bytes.
    return AudioSegmentFormat(codec, rate, layout, bits // 400 * 400)


@lru_cache(maxsize=64)
def audio_configuration(form: AudioSegmentFormat) -> bytes:
    """Return the decoder configuration, as FFmpeg's extradata."""
    return bytes(_encoder(form).extradata or b"")


def encode_audio_packets(
    form: AudioSegmentFormat,
    samples: Callable[[int, int], SegmentSamples],
    first: int,
    stop: int,
    room: int,
) -> list[bytes]:
    """Return the packets ``first <= p < stop``, in at most `room` bytes together.

    Packet p begins at sample p * `form.samples`. ``samples(a, b)`` returns samples from a to b,
    which may be negative. Raises `IntegrityError` if not even silence fits.
    """
    lead = first - _LEAD_PACKETS
    begin = lead * form.samples + form.delay
    end = (stop + _TAIL_PACKETS) * form.samples + form.delay
    heard = samples(begin, end)
    at: AudioSegmentFormat | None = form
    while at is not None:
        packets = _encode_samples(at, heard, begin, first, stop)
        size = sum(map(len, packets))
        if size <= room:
            return packets
        at = _with_lower_bit_rate(at, size / room)
    packets = _encode_samples(form, np.zeros_like(heard), begin, first, stop)
    if sum(map(len, packets)) > room:
        raise IntegrityError("encoded silence exceeds the reserved bytes")
    return packets


def _with_lower_bit_rate(form: AudioSegmentFormat, excess: float) -> AudioSegmentFormat | None:
    if form.bit_rate <= _MIN_BIT_RATE:
        return None
    bits = int(form.bit_rate * min(_BIT_RATE_STEP, 1 / excess))
    return replace(form, bit_rate=max(_MIN_BIT_RATE, bits))


def resampled(
    source: Callable[[int, int], SegmentSamples],
    rate: int,
    wanted: int,
    layout: str,
    first: int,
    stop: int,
) -> SegmentSamples:
    """Return the samples ``first <= s < stop`` at the rate `wanted` of a source with another
    `rate`.

    Sample 0 of both is at the same time. Pieces that are resampled separately fit together.
    """
    if rate == wanted:
        return source(first, stop)
    common = np.gcd(rate, wanted)
    step, source_step = wanted // int(common), rate // int(common)
    margin = int(_MARGIN * wanted)
    low = (first - margin) // step
    high = -(-(stop + margin) // step)
    heard = source(low * source_step, high * source_step)
    frame = _frame(heard, layout, rate, 0)
    resampler = av.AudioResampler("flt", layout, wanted)
    ready = [one for given in (frame, None) for one in resampler.resample(given)]
    parts = [float_planes(one, len(heard)) for one in ready]
    joined = np.concatenate(parts, axis=1)
    begin = first - low * step
    part: SegmentSamples = joined[:, begin : begin + stop - first]
    missing = stop - first - part.shape[1]
    return np.pad(part, ((0, 0), (0, missing))) if missing > 0 else part


def _encode_samples(
    form: AudioSegmentFormat, heard: SegmentSamples, begin: int, first: int, stop: int
) -> list[bytes]:
    """Encode samples from number `begin` on; return the packets ``first <= p < stop``."""
    encoder = _encoder(form)
    kept: list[bytes] = []
    for frame in _frames(form, heard, begin):
        for packet in encoder.encode(frame):
            assert packet.pts is not None
            number, rest = divmod(packet.pts, form.samples)
            if first <= number < stop:
                if rest:
                    raise IntegrityError(f"a {form.codec} packet is off its grid by {rest} samples")
                kept.append(bytes(packet))
    if len(kept) != stop - first:
        raise IntegrityError(f"expected {stop - first} {form.codec} packets, got {len(kept)}")
    return kept


def _frames(
    form: AudioSegmentFormat, heard: SegmentSamples, begin: int
) -> Iterator[av.AudioFrame | None]:
    for at in range(0, heard.shape[1], form.samples):
        part = heard[:, at : at + form.samples]
        yield _frame(part, form.layout, form.sample_rate, begin + at)
    yield None


def _frame(part: SegmentSamples, layout: str, rate: int, number: int) -> av.AudioFrame:
    """Return an interleaved frame, since PyAV fills the planes of eight channels wrongly."""
    packed = np.ascontiguousarray(part.T.reshape(1, -1), np.float32)
    frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=layout)
    frame.sample_rate, frame.pts = rate, number
    frame.time_base = Fraction(1, rate)
    return frame


def _encoder(form: AudioSegmentFormat) -> AudioCodecContext:
    context = CodecContext.create("aac" if form.codec == "aac" else "libopus", "w")
    assert isinstance(context, AudioCodecContext)
    context.sample_rate = form.sample_rate
    context.layout = form.layout
    context.format = "fltp" if form.codec == "aac" else "flt"
    context.bit_rate = form.bit_rate
    context.time_base = Fraction(1, form.sample_rate)
    if form.codec == "opus":
        context.options = {"vbr": "off"}
    context.open()
    return context
