"""The sound alone: `SoundView` is a WAV file, and `read_sound` returns arrays for `Video.sound`.

`sound_window` finds the samples of a span.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from vfsd.codecs.audio.audio_decoder import AudioDecoder
from vfsd.codecs.audio.samples import resampled
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Sound
from vfsd.core.timebase import Span, exact_span
from vfsd.core.view_request import View, sample_rate
from vfsd.errors import OutOfRangeError, SilenceWarning, UsageError
from vfsd.read.read_context import VideoContext, warn_of_short_span
from vfsd.storage.file_cache import Bytes
from vfsd.views.info_files import AUDIO_NOT_INDEXED
from vfsd.views.render_context import PacketReaders, RenderContext
from vfsd.views.view_input import ViewInput, view_input_of
from vfsd.views.view_slots import DecodedFrames, Slots, VariableSizeSlots, ViewPart

FloatSamples = npt.NDArray[np.float32]
"""samples x channels, -1 to 1."""

# Chunk sizes of RIFF have 32 bits; the headers take less than a page.
_MOST_WAV_BYTES = (1 << 32) - 4096
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
# The tail of the GUID of a format in WAVE_FORMAT_EXTENSIBLE.
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")
_FULL_SCALE = {16: 1 << 15, 24: 1 << 23}


@dataclass(frozen=True, slots=True)
class SoundWindow:
    """The samples of a span of time, on a grid from the start of the video."""

    sound: Sound
    table: FrameTable
    origin: Fraction  #: seconds on the timeline of the file where the video starts
    rate: int  #: Hz
    first: int  #: sample at `rate` from the start of the video
    stop: int

    def __len__(self) -> int:
        """Number of samples of each channel."""
        return self.stop - self.first

    def read(self, decoder: AudioDecoder, first: int, stop: int) -> FloatSamples:
        """Return the samples ``first <= s < stop`` of the window.

        Raises `IntegrityError`, `OSError`.
        """
        low, high = self.first + first, self.first + stop
        before = round(self.origin * self.sound.sample_rate)
        decoded: dict[tuple[int, int], FloatSamples] = {}

        def stored(begin: int, end: int) -> FloatSamples:
            if (begin, end) not in decoded:
                decoded[begin, end] = decoder.read(before + begin, before + end)
            return decoded[begin, end]

        if self.rate == self.sound.sample_rate:
            return stored(low, high).T
        # Each channel alone, so that any number of channels is resampled, and none is mixed.
        planes = [
            resampled(
                lambda begin, end, channel=channel: stored(begin, end)[channel : channel + 1],  # type: ignore[misc]
                self.sound.sample_rate,
                self.rate,
                "mono",
                low,
                high,
            )
            for channel in range(decoder.channels)
        ]
        return np.concatenate(planes).T

    def silence_text(self) -> str | None:
        """Return what of the window lies before or after the sound; None if nothing does.

        Gaps within the sound, and the exact edges, show only when it is decoded.
        """
        base = self.sound.time_base
        begin, end = (
            tick * base - self.origin for tick in (self.sound.first_pts, self.sound.end_pts)
        )
        found = []
        if begin * self.rate > self.first + 1:
            found.append(f"before about second {float(begin):.2f}")
        if end * self.rate < self.stop - 1:
            found.append(f"after about second {float(end):.2f}")
        return f"{' and '.join(found)} of the video" if found else None

    def silent(self, decoder: AudioDecoder) -> list[range]:
        """Return the samples of the window that the video has no sound for.

        Raises `IntegrityError`, `OSError`.
        """
        step = Fraction(self.sound.sample_rate, self.rate)
        before = round(self.origin * self.sound.sample_rate)
        low, high = (before + round(edge * step) for edge in (self.first, self.stop))
        missing = decoder.silent(low, high)
        return [
            range(round((one.start - low) / step), round((one.stop - low) / step))
            for one in missing
        ]


def sound_window(source: ViewInput, view: View, rate: int | None) -> SoundWindow:
    """Return the samples that a view's span has, up to the end of the video.

    Raises `UsageError` for a video without sound, for a rate out of range and for frames with a
    step; `OutOfRangeError` for a span that starts after the end of the video.
    """
    found = source.sound
    if found is None:
        streams = source.physical.media.side_streams
        has_audio = any(stream.kind == "audio" for stream in streams)
        raise UsageError(AUDIO_NOT_INDEXED if has_audio else "the video has no sound")
    sound, table = found
    if sound.reason is not None:
        raise UsageError(f"the sound of the video cannot be decoded: {sound.reason}")
    hertz = sound.sample_rate if rate is None else sample_rate(rate)
    start, end = _seconds(source, view)
    physical = source.physical
    origin = physical.first_pts * physical.time_base
    return SoundWindow(sound, table, origin, hertz, round(start * hertz), round(end * hertz))


def _seconds(source: ViewInput, view: View) -> tuple[Fraction, Fraction]:
    """Return the start and the end of a view, from the start of the video."""
    physical, table = source.physical, source.table
    if view.frames is not None:
        first, stop, step = view.frames
        if step != 1:
            raise UsageError("the sound of a view of frames needs consecutive frames")
        if first >= len(table):
            raise OutOfRangeError(f"frame {first} does not exist: the video has {len(table)}")
        stop = len(table) if stop is None else min(stop, len(table))
        ends = [
            table.frame_pts(frame) if frame < len(table) else physical.end_pts
            for frame in (first, stop)
        ]
        start, end = ((tick - physical.first_pts) * physical.time_base for tick in ends)
        return start, end
    start, until = view.span or (Fraction(0), None)
    if start >= physical.duration:
        raise OutOfRangeError(
            f"the span starts at {float(start):.9g} s, and the video ends at "
            f"{float(physical.duration):.9g} s"
        )
    return start, physical.duration if until is None else min(until, physical.duration)


class SoundView:
    """A WAV file: slot 0 is the header, and each further one a second of samples."""

    storable = range(0)
    method = "decoded"
    marks: Mapping[str, str] = MappingProxyType({})
    parts: Sequence[ViewPart] = ()
    is_work = True

    def __init__(self, key: str, source: ViewInput, window: SoundWindow) -> None:
        """Raises `UsageError` for a window of more than 4 GiB."""
        self.key = key
        self.digest = source.digest
        self.window = window
        self._source = source
        self._bits = _bits(window.sound)
        self._block = window.sound.channels * self._bits // 8
        size = len(window) * self._block
        if size > _MOST_WAV_BYTES:
            raise UsageError(
                f"a wav file holds at most {_MOST_WAV_BYTES} bytes of samples, got {size}",
                hint="give a shorter span, or a lower rate",
            )
        header = wav_header(window.rate, window.sound.channels, self._bits, len(window))
        self._header = header
        counts = np.diff([*range(0, len(window), window.rate), len(window)])
        self._counts = counts
        sizes = counts.astype(np.int64) * self._block
        if len(sizes):
            sizes[-1] += size % 2  # chunks of RIFF have an even size
        self.slots: Slots = VariableSizeSlots(len(header), sizes)
        self.memory = 16 * len(sizes)

    def make(self, slot: int, context: RenderContext) -> Bytes:
        if not slot:
            return self._header
        window = self.window
        first = (slot - 1) * window.rate
        stop = first + int(self._counts[slot - 1])
        borrowed = context.readers.audio_samples(self._source, window.sound, window.table, None)
        with borrowed as decoder:
            return pcm_bytes(window.read(decoder, first, stop), self._bits)

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        return None


def wav_codec(sound: Sound) -> str:
    """Return FFmpeg's name of the codec in which a WAV file holds `sound`."""
    bits = _bits(sound)
    return "pcm_f32le" if bits == 32 else f"pcm_s{bits}le"


def _bits(sound: Sound) -> int:
    """Return the bits of a sample: 16, 24, or 32 for float."""
    if sound.codec.startswith("pcm_f") or sound.bit_depth > 24:
        return 32
    return 24 if sound.bit_depth > 16 else 16


def pcm_bytes(samples: FloatSamples, bits: int) -> bytes:
    """Return samples x channels as little-endian PCM of 16 or 24 bits, or float of 32."""
    if bits not in _FULL_SCALE:
        return np.ascontiguousarray(samples, "<f4").tobytes()
    scale = _FULL_SCALE[bits]
    whole = np.rint(samples.astype(np.float64) * scale).clip(-scale, scale - 1)
    if bits == 16:
        return whole.astype("<i2").tobytes()
    four = np.ascontiguousarray(whole.astype("<i4")).view(np.uint8).reshape(-1, 4)
    return four[:, :3].tobytes()


def wav_header(rate: int, channels: int, bits: int, samples: int) -> bytes:
    """Return the header of a WAV file of `samples` samples of each channel.

    The extensible form is used where the plain one is ambiguous: for more than two channels or 16
    bits.  Which loudspeaker a channel belongs to stays unsaid.
    """
    block = channels * bits // 8
    size = samples * block
    tag = _FLOAT if bits == 32 else _PCM
    is_plain = channels <= 2 and bits == 16
    form = struct.pack(
        "<HHIIHH", tag if is_plain else _EXTENSIBLE, channels, rate, rate * block, block, bits
    )
    if not is_plain:
        form += struct.pack("<HHIH", 22, bits, 0, tag) + _GUID_TAIL
    chunks = b"fmt " + struct.pack("<I", len(form)) + form
    if tag == _FLOAT:
        chunks += b"fact" + struct.pack("<II", 4, samples)
    chunks += b"data" + struct.pack("<I", size)
    return b"RIFF" + struct.pack("<I", 4 + len(chunks) + size + size % 2) + b"WAVE" + chunks


class SoundSamples(tuple[FloatSamples, int]):
    """A pair (samples, rate), as writers take it: float32 of samples x channels, and Hz."""

    #: The samples that the video has no sound for, which are 0; half-open, ascending.
    silent: tuple[range, ...] = ()

    @property
    def samples(self) -> FloatSamples:
        """samples x channels, float32 of -1 to 1."""
        return self[0]

    @property
    def rate(self) -> int:
        """Samples per second."""
        return self[1]


def read_sound(video: VideoContext, span: Span | None, rate: int | None) -> SoundSamples:
    """Return the sound of a span for `Video.sound`, whose caller gets the warnings."""
    video.require_finished("sound")
    exact = None if span is None else exact_span(span, video.original.time_base)
    source = view_input_of(video.parts, video.tools, video.info)
    window = sound_window(source, View(exact), rate)
    if exact is not None:
        warn_of_short_span(exact[1], video.original)
    with closing(PacketReaders(video.parts.quarantine)) as readers:
        borrowed = readers.audio_samples(source, window.sound, window.table, None)
        with borrowed as decoder:
            found = SoundSamples((window.read(decoder, 0, len(window)), window.rate))
            found.silent = tuple(window.silent(decoder))
    if found.silent:
        seconds = sum(map(len, found.silent)) / window.rate
        first = found.silent[0].start / window.rate
        text = (
            f"{video.name} has no sound for {seconds:.3f} s of the window, from its second "
            f"{first:.3f} on; these samples are 0"
        )
        warnings.warn(SilenceWarning(text), stacklevel=3)
    return found
