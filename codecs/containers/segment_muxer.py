"""The interface of the muxers: a header, then segments that do not depend on each other.

Sizes are known before any payload exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from vfsd.codecs.containers.stream_side_data import StreamSideData
from vfsd.codecs.frames.color import ColorCodes
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import NO_CROP_MARGINS, CropMargins

MIN_PADDING = 2
"""Least bytes of padding of a segment, if there are any."""

_MAX_INT64 = (1 << 63) - 1
"""The largest signed 64-bit number."""


@dataclass(frozen=True, slots=True)
class VideoTrack:
    """The video track as the header describes it. Times are ticks of `time_base`."""

    codec: str  #: FFmpeg's name
    width: int  #: coded width
    height: int
    configuration: bytes  #: see `vfsd.codecs.containers.muxers`
    time_base: Fraction
    duration: int  #: of the whole track
    longest: int  #: longest segment, or longest time from decoding to display of a picture
    pixel_format: str = "yuv420p"
    reorder: int = 0  #: display delay in ticks, so that each picture is decoded in time
    rate: Fraction | None = None  #: frames per second if constant
    rotation: int = 0  #: clockwise degrees that turn a picture upright
    mirrored: bool = False  #: mirrored left to right before the rotation
    sample_aspect_ratio: Fraction | None = None
    sets_in_stream: bool = False  #: packets contain parameter sets, which change; HEVC only
    crop: CropMargins = NO_CROP_MARGINS  #: pixels that players crop
    colors: ColorCodes | None = None  #: for packets that may not signal colors
    #: Result of `vfsd.codecs.containers.stream_side_data.container_side_data`.
    marks: StreamSideData | None = None

    @property
    def shown_width(self) -> int:
        """Width after the crop in pixels."""
        return self.width - self.crop[0] - self.crop[2]

    @property
    def shown_height(self) -> int:
        return self.height - self.crop[1] - self.crop[3]


@dataclass(frozen=True, slots=True)
class AudioTrack:
    """The audio track as the header describes it."""

    codec: str  #: FFmpeg's name
    configuration: bytes  #: FFmpeg's extradata; for AC-3 the first bytes of a packet
    sample_rate: int  #: Hz; a tick is one sample
    channels: int
    bit_depth: int = 0  #: bits per PCM sample
    language: str | None = None  #: three letters
    matroska_codec: str = ""  #: see `vfsd.core.model.Sound`
    matroska_private: bytes = b""
    mp4_entry: bytes = b""


@dataclass(frozen=True, slots=True)
class AudioPackets:
    """The audio of one segment, one array element per packet; ticks of one sample from 0."""

    starts: Ints  #: ascending
    end: int  #: start of the packet after the last one
    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class PacketTimes:
    """The packets of one segment in decode order, one array element each; ticks from 0."""

    shown: Ints  #: display times
    lasting: Ints  #: display durations
    decoded: Ints  #: ascending; ``shown + reorder >= decoded``
    end: int  #: decoding time of the packet after the last one
    keys: Ints  #: 1 for key packets, else 0

    def __len__(self) -> int:
        return len(self.shown)


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The segments of a whole file, one array element each."""

    sizes: Ints  #: bytes, padding included
    starts: Ints  #: ticks at which the first picture of each is shown
    starts_with_key: Ints  #: 1 or 0
    end: int  #: ticks


class Muxer(Protocol):
    """Writes one kind of container."""

    def header(self, index: SegmentIndex | None = None, *, spare: int = 0) -> bytes:
        """Return the bytes before the segments; with `index`, players can seek without reading.

        `spare` is 0 or at least 9: bytes of padding in the header.
        """

    def index_size(self, segments: int) -> int:
        """Return the bytes that an index adds to the header."""

    def overheads(self, shown: Ints, keys: Ints, starts: Ints) -> Ints:
        """Return the bytes that each segment adds to its payloads.

        `shown` and `keys` cover all packets; `starts` has the first packet of each segment.
        """

    def sound_overheads(self, times: Ints, cuts: Ints, shown: Ints, starts: Ints) -> Ints:
        """Return the bytes that audio adds to each segment, besides its payloads.

        `times` covers all audio packets; `cuts` has the first audio packet of each segment, which
        may be empty. `shown` and `starts` are as in `overheads`.
        """

    def segment(
        self,
        ordinal: int,
        times: PacketTimes,
        payloads: Sequence[bytes],
        size: int,
        sound: AudioPackets | None = None,
    ) -> bytes:
        """Return segment `ordinal` (from 0), without the zeros that pad it to `size`."""

    def trimmed(self, segment: bytes) -> bytes:
        """Return the result of `segment` without its padding."""


def overhead(muxer: Muxer, times: PacketTimes) -> int:
    """Return the bytes that a segment adds to its payloads."""
    return int(muxer.overheads(times.shown, times.keys, np.zeros(1, np.int64))[0])


def scaled_ticks(ticks: Ints, factor: Fraction) -> Ints:
    """Return `ticks` times `factor`, rounded to the nearest whole number; exact for all 64-bit
    values.
    """
    over, under = factor.numerator, factor.denominator
    highest = int(np.abs(ticks).max(initial=0))
    if max((2 * over + 1) * under, (highest // under + 2) * over) > _MAX_INT64:
        # Slow, but numpy would overflow silently for rates with so many digits.
        numbers = ((2 * tick * over + under) // (2 * under) for tick in ticks.tolist())
        return np.fromiter(numbers, np.int64, len(ticks))
    whole, part = np.divmod(ticks, under)
    nearest: Ints = whole * over + (2 * part * over + under) // (2 * under)
    return nearest
