"""The interface of the muxers: a header, then segments that do not depend on each other.

Sizes are known before any payload exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from vfsd.codecs.bitstreams.video_signal import ColorCodes
from vfsd.codecs.containers.stream_side_data import StreamSideData
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import NO_CROP_MARGINS, CropMargins

MIN_PADDING = 2
"""A segment fills its place, or leaves as many bytes over at least."""

_MAX_INT64 = (1 << 63) - 1
"""The largest number of 64 bits that may be negative."""


@dataclass(frozen=True, slots=True)
class VideoTrack:
    """What a header tells of the one video track.  Times are ticks of `time_base`."""

    codec: str  #: FFmpeg's name
    width: int  #: of a coded picture
    height: int
    configuration: bytes  #: see `vfsd.codecs.containers.muxers`
    time_base: Fraction
    duration: int  #: of everything
    longest: int  #: segment, or time from the decoding of a picture until it is shown
    pixel_format: str = "yuv420p"
    reorder: int = 0  #: the most by which a picture is decoded after the time it would be shown
    rate: Fraction | None = None  #: frames per second where it is constant
    rotation: int = 0  #: clockwise degrees that turn a picture upright
    mirrored: bool = False  #: left and right change places before that
    sample_aspect_ratio: Fraction | None = None
    sets_in_stream: bool = False  #: parameter sets change: packets bring them along; HEVC only
    crop: CropMargins = NO_CROP_MARGINS  #: what players take off pictures
    colors: ColorCodes | None = None  #: of packets that may not tell: copied ones, and FFV1
    marks: StreamSideData | None = (
        #: that the header tells, of `vfsd.codecs.containers.stream_side_data.container_side_data`
        None
    )

    @property
    def shown_width(self) -> int:
        """Pixels of a picture that was cropped."""
        return self.width - self.crop[0] - self.crop[2]

    @property
    def shown_height(self) -> int:
        return self.height - self.crop[1] - self.crop[3]


@dataclass(frozen=True, slots=True)
class AudioTrack:
    """What a header tells of the sound beside the pictures."""

    codec: str  #: FFmpeg's name
    configuration: bytes  #: as FFmpeg has it; of AC-3 the first bytes of a packet
    sample_rate: int  #: Hz; times of packets are ticks of one sample
    channels: int
    bit_depth: int = 0  #: of PCM
    language: str | None = None  #: three letters
    matroska_codec: str = ""  #: see `vfsd.core.model.Sound`
    matroska_private: bytes = b""
    mp4_entry: bytes = b""


@dataclass(frozen=True, slots=True)
class AudioPackets:
    """The sound of one segment, one array element a packet; ticks of one sample from 0."""

    starts: Ints  #: ascending
    end: int  #: when the packet after the last one begins
    payloads: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class PacketTimes:
    """The packets of one segment in decode order, one array element each; ticks from 0."""

    shown: Ints  #: when the picture appears
    lasting: Ints  #: for how long it is shown
    decoded: Ints  #: ascending; ``shown + reorder >= decoded``
    end: int  #: when the packet after the last one is decoded
    keys: Ints  #: 1 for key packets, else 0

    def __len__(self) -> int:
        return len(self.shown)


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """Where the segments of a whole file lie, one array element each."""

    sizes: Ints  #: bytes, padding included
    starts: Ints  #: ticks at which the first picture of each is shown
    starts_with_key: Ints  #: 1 or 0
    end: int  #: ticks


class Muxer(Protocol):
    """One kind of container."""

    def header(self, index: SegmentIndex | None = None, *, spare: int = 0) -> bytes:
        """What stands before the segments; with `index`, players can find each without reading.

        `spare` is 0 or at least 9: bytes of padding in it.
        """

    def index_size(self, segments: int) -> int:
        """By how many bytes an index makes the header longer."""

    def overheads(self, shown: Ints, keys: Ints, starts: Ints) -> Ints:
        """How many bytes each segment adds to its payloads.

        `shown` and `keys` are those of all packets, `starts` the packets that segments begin with.
        """

    def sound_overheads(self, times: Ints, cuts: Ints, shown: Ints, starts: Ints) -> Ints:
        """How many bytes the sound adds to each segment, besides its payloads.

        `times` are those of all its packets, `cuts` the packet that the sound of each segment
        begins with; some may have none.  `shown` and `starts` are as in `overheads`.
        """

    def segment(
        self,
        ordinal: int,
        times: PacketTimes,
        payloads: Sequence[bytes],
        size: int,
        sound: AudioPackets | None = None,
    ) -> bytes:
        """The segment numbered `ordinal` (from 0), without the zeros that fill it up to `size`."""

    def trimmed(self, segment: bytes) -> bytes:
        """What `segment` gave, as it would be if its place were just as large as it is."""


def overhead(muxer: Muxer, times: PacketTimes) -> int:
    """How many bytes a segment adds to its payloads."""
    return int(muxer.overheads(times.shown, times.keys, np.zeros(1, np.int64))[0])


def scaled_ticks(ticks: Ints, factor: Fraction) -> Ints:
    """`ticks` times `factor`, to the nearest whole number: exact for whatever 64 bits hold."""
    over, under = factor.numerator, factor.denominator
    highest = int(np.abs(ticks).max(initial=0))
    if max((2 * over + 1) * under, (highest // under + 2) * over) > _MAX_INT64:
        # Slow, but a rate of so many digits has such a factor, and numpy would not say a word.
        numbers = ((2 * tick * over + under) // (2 * under) for tick in ticks.tolist())
        return np.fromiter(numbers, np.int64, len(ticks))
    whole, part = np.divmod(ticks, under)
    nearest: Ints = whole * over + (2 * part * over + under) // (2 * under)
    return nearest
