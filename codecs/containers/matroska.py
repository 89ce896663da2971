"""Muxer for Matroska (RFC 9559): a header, then clusters with their own timestamps."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from vfsd.codecs.containers.tracks import (
    AudioPackets,
    AudioTrack,
    PacketTimes,
    SegmentIndex,
    VideoTrack,
    matroska_codec,
    scaled_ticks,
    side_data_colour_elements,
    side_data_track_elements,
    side_data_video_elements,
)
from vfsd.codecs.frames.color import ColorCodes
from vfsd.core.frame_table_pages import Ints
from vfsd.errors import UsageError

_CODEC_IDS = {
    "h264": "V_MPEG4/ISO/AVC",
    "hevc": "V_MPEGH/ISO/HEVC",
    "av1": "V_AV1",
    "vp8": "V_VP8",
    "vp9": "V_VP9",
    "mpeg4": "V_MPEG4/ISO/ASP",
    "mpeg1video": "V_MPEG1",
    "mpeg2video": "V_MPEG2",
    "mjpeg": "V_MJPEG",
    "ffv1": "V_FFV1",
}
MATROSKA_CODECS = frozenset(_CODEC_IDS)

MAX_PACKET = (1 << 28) - 64
"""Most bytes of a packet, since its size field has four bytes."""

_CLUSTER = bytes.fromhex("1f43b675")
_LONG_HEAD = 12  # id 4, size 8
_TICK = 100_000  # nanoseconds
_MAX_TIME = 1 << 53  # ticks: players use floats
_MAX_RELATIVE_TIME = 1 << 15  # block times are signed 16-bit offsets (RFC 9559, 10.2)
_CLUSTER_BYTES = 22  # id 4, size 8, time 10
_SIMPLE_BYTES = 9  # id 1, size 4, track 1, time 2, flags 1
_GROUP_BYTES = 24  # id 1, size 4, id 1, size 4, track 1, time 2, flags 1, duration 10
_REFERENCE_BYTES = 3
_CUE_BYTES = 27
_CUES_BYTES = 12
_KEY = 0x80
# PixelCropLeft, -Top, -Right and -Bottom, in the order of `VideoTrack.crop`.
_CROPS = ("54cc", "54bb", "54dd", "54aa")
# The DisplayUnit of a display aspect ratio.
_ASPECT_UNIT = 3
_UNKNOWN = b"\x01\xff\xff\xff\xff\xff\xff\xff"


class MatroskaMuxer:
    """Matroska with one video track and an optional audio track; implements `Muxer`.

    With a constant rate, the header has the duration of pictures; otherwise each block has.
    """

    def __init__(self, track: VideoTrack, sound: AudioTrack | None = None) -> None:
        """Raises `UsageError` for tracks of thousands of years."""
        self._track = track
        self._sound = sound
        self._factor = track.time_base * Fraction(1_000_000_000, _TICK)
        if track.duration * self._factor > _MAX_TIME:
            raise UsageError(
                f"the view lasts {float(track.duration * track.time_base):.3e} s: mkv allows at "
                f"most {_MAX_TIME * _TICK // 1_000_000_000} s",
                hint="use time ranges",
            )

    def header(self, index: SegmentIndex | None = None, *, spare: int = 0) -> bytes:
        doctype = _element("4286", _number(1)) + _element("42f7", _number(1))
        doctype += _element("42f2", _number(4)) + _element("42f3", _number(8))
        doctype += _element("4282", b"matroska") + _element("4287", _number(4))
        doctype += _element("4285", _number(2))
        head = _element("1a45dfa3", doctype)
        info = self._info()
        entries = _element("ae", self._entry())
        if self._sound is not None:
            entries += _element("ae", _audio_track_entry(self._sound))
        tracks = _element("1654ae6b", entries)
        tracks += _void(spare) + bytes(spare - len(_void(spare)))
        if index is None:
            return head + bytes.fromhex("18538067") + _UNKNOWN + info + tracks
        before = len(info) + len(tracks) + self.index_size(len(index.sizes))
        size = before + int(index.sizes.sum())
        return b"".join(
            (
                head,
                bytes.fromhex("18538067"),
                _long_size(size),
                info,
                tracks,
                self._cues(index, before),
            )
        )

    def index_size(self, segments: int) -> int:
        return _CUES_BYTES + _CUE_BYTES * segments

    def overheads(self, shown: Ints, keys: Ints, starts: Ints) -> Ints:
        counts = np.diff(np.append(starts, len(shown)))
        scaled = self._scaled(shown)
        spans = np.maximum.reduceat(scaled, starts) - np.minimum.reduceat(scaled, starts)
        clusters = np.ones(len(starts), np.int64)
        for far in np.flatnonzero(spans >= _MAX_RELATIVE_TIME).tolist():
            part = scaled[starts[far] : starts[far] + counts[far]]
            clusters[far] = sum(1 for _ in _clusters(part))
        sizes: Ints = clusters * _CLUSTER_BYTES
        if self._track.rate is not None:
            sizes += counts * _SIMPLE_BYTES
        else:
            others = counts - np.add.reduceat(keys, starts)
            sizes += counts * _GROUP_BYTES + others * _REFERENCE_BYTES
        return sizes

    def sound_overheads(self, times: Ints, cuts: Ints, shown: Ints, starts: Ints) -> Ints:
        sounds, pictures = self._sound_times(times), self._scaled(shown)
        stops = np.append(cuts[1:], len(times))
        sizes = _SIMPLE_BYTES * (stops - cuts)
        ends = np.append(starts[1:], len(shown))
        lows, highs = np.minimum.reduceat(pictures, starts), np.maximum.reduceat(pictures, starts)
        heard = stops > cuts
        lows[heard] = np.minimum(lows[heard], sounds[cuts[heard]])
        highs[heard] = np.maximum(highs[heard], sounds[stops[heard] - 1])
        for number in np.flatnonzero(heard & (highs - lows >= _MAX_RELATIVE_TIME)).tolist():
            seen = pictures[starts[number] : ends[number]]
            merged = _interleaved(seen, sounds[cuts[number] : stops[number]])[1]
            more = sum(1 for _ in _clusters(merged)) - sum(1 for _ in _clusters(seen))
            sizes[number] += more * _CLUSTER_BYTES
        return sizes

    def segment(
        self,
        ordinal: int,
        times: PacketTimes,
        payloads: Sequence[bytes],
        size: int,
        sound: AudioPackets | None = None,
    ) -> bytes:
        shown = self._scaled(times.shown)
        ends = self._scaled(times.shown + times.lasting)
        heard = self._sound_times(sound.starts) if sound is not None else shown[:0]
        order, all_times = _interleaved(shown, heard)
        parts: list[bytes] = []
        for first, stop, time in _clusters(all_times):
            blocks: list[bytes] = []
            for at in range(first, stop):
                distance, place = int(all_times[at]) - time, int(order[at])
                if place < len(shown):
                    lasting = int(ends[place] - shown[place])
                    key = bool(times.keys[place])
                    blocks += self._block(distance, lasting, key, payloads[place])
                elif sound is not None:
                    payload = sound.payloads[place - len(shown)]
                    head = struct.pack(">BhB", 0x82, distance, _KEY)
                    blocks += (b"\xa3", _size(4 + len(payload)), head, payload)
            body = b"\xe7\x88" + struct.pack(">Q", time) + b"".join(blocks)
            parts += (_CLUSTER, _long_size(len(body)), body)
        return b"".join((*parts, _void(size - sum(map(len, parts)))))

    def _block(self, distance: int, lasting: int, key: bool, payload: bytes) -> Iterable[bytes]:
        """Return a block with a picture, `distance` ticks after the time of its cluster."""
        place = struct.pack(">Bh", 0x81, distance)
        if self._track.rate is not None:
            flags = bytes((_KEY if key else 0,))
            return (b"\xa3", _size(4 + len(payload)), place, flags, payload)
        block = b"\xa1" + _size(4 + len(payload)) + place + b"\0"
        rest = b"\x9b\x88" + struct.pack(">Q", lasting)
        if not key:
            rest += b"\xfb\x81\xff"
        group = len(block) + len(payload) + len(rest)
        return (b"\xa0", _size(group), block, payload, rest)

    def _sound_times(self, ticks: Ints) -> Ints:
        rate = self._sound.sample_rate if self._sound is not None else 1
        return scaled_ticks(ticks, Fraction(1_000_000_000, _TICK * rate))

    def trimmed(self, segment: bytes) -> bytes:
        end = 0
        while segment[end : end + 4] == _CLUSTER:
            size = int.from_bytes(segment[end + 4 : end + _LONG_HEAD], "big") & (1 << 56) - 1
            end += _LONG_HEAD + size
        return segment[:end]

    def _scaled(self, ticks: Ints) -> Ints:
        factor = self._factor
        if factor.denominator == 1:
            return ticks * factor.numerator
        return scaled_ticks(ticks, factor)

    def _info(self) -> bytes:
        duration = struct.pack(">d", float(self._track.duration * self._factor))
        fields = _element("2ad7b1", _number(_TICK)) + _element("4489", duration)
        return _element("1549a966", fields + _element("4d80", b"vfsd") + _element("5741", b"vfsd"))

    def _entry(self) -> bytes:
        track = self._track
        fields = _element("d7", _number(1)) + _element("73c5", _number(1))
        fields += _element("83", _number(1)) + _element("9c", _number(0))
        fields += _element("86", _CODEC_IDS[track.codec].encode())
        if track.configuration:
            fields += _element("63a2", track.configuration)
        if track.rate is not None:
            fields += _element("23e383", _number(round(1_000_000_000 / track.rate)))
        video = _element("b0", _number(track.width)) + _element("ba", _number(track.height))
        for identifier, pixels in zip(_CROPS, track.crop, strict=True):
            if pixels:
                video += _element(identifier, _number(pixels))
        ratio = track.sample_aspect_ratio
        if ratio is not None and ratio != 1:
            video += _display_size(track.shown_width, track.shown_height, ratio)
        video += b"".join(
            _element(name, body) for name, body in side_data_video_elements(track.marks)
        )
        colour = b"" if track.colors is None else _colour(track.colors)
        colour += side_data_colour_elements(track.marks)
        if colour:
            video += _element("55b0", colour)
        fields += b"".join(
            _element(name, body) for name, body in side_data_track_elements(track.marks)
        )
        return fields + _element("e0", video)

    def _cues(self, index: SegmentIndex, before: int) -> bytes:
        """Return the Cues; `before` is the offset of the first cluster in the segment's data."""
        places = before + np.concatenate(([0], np.cumsum(index.sizes)[:-1]))
        points = []
        rows = zip(
            self._scaled(index.starts).tolist(),
            places.tolist(),
            index.starts_with_key.tolist(),
            strict=True,
        )
        for time, place, has_key in rows:
            if not has_key:
                points.append(b"\xec" + bytes((0x80 | _CUE_BYTES - 2,)) + bytes(_CUE_BYTES - 2))
                continue
            position = b"\xb7\x8d" + b"\xf7\x81\x01" + b"\xf1\x88" + struct.pack(">Q", place)
            points.append(b"\xbb\x99" + b"\xb3\x88" + struct.pack(">Q", time) + position)
        body = b"".join(points)
        return bytes.fromhex("1c53bb6b") + _long_size(len(body)) + body


def _audio_track_entry(track: AudioTrack) -> bytes:
    identifier, configuration = matroska_codec(track)
    fields = _element("d7", _number(2)) + _element("73c5", _number(2))
    fields += _element("83", _number(2)) + _element("9c", _number(0))
    if track.language is not None:
        fields += _element("22b59c", track.language.encode())
    fields += _element("86", identifier.encode())
    if configuration:
        fields += _element("63a2", configuration)
    sound = _element("b5", struct.pack(">d", track.sample_rate))
    sound += _element("9f", _number(track.channels))
    if track.bit_depth:
        sound += _element("6264", _number(track.bit_depth))
    return fields + _element("e1", sound)


def _interleaved(shown: Ints, heard: Ints) -> tuple[Ints, Ints]:
    """Return (order of packets, their times); audio packets are numbered after all pictures.

    Pictures stay in decode order. Audio precedes the first picture that is shown later.
    """
    if not len(heard):
        return np.arange(len(shown)), shown
    before = np.searchsorted(np.maximum.accumulate(shown), heard, side="right")
    order = np.insert(np.arange(len(shown)), before, np.arange(len(heard)) + len(shown))
    return order, np.concatenate((shown, heard))[order]


def _colour(colors: ColorCodes) -> bytes:
    fields = _element("55b1", _number(colors.matrix)) + _element("55bb", _number(colors.primaries))
    fields += _element("55ba", _number(colors.transfer))
    if colors.is_full_range is not None:
        fields += _element("55b9", _number(2 if colors.is_full_range else 1))
    return fields


def _display_size(width: int, height: int, ratio: Fraction) -> bytes:
    """Return elements with the display size in square pixels, if its width is whole.

    Otherwise they have the display aspect ratio, since rounding would change the pixel shape.
    """
    shown = width * ratio
    if shown.denominator == 1:
        return _element("54b0", _number(shown.numerator)) + _element("54ba", _number(height))
    aspect = shown / height
    fields = _element("54b2", _number(_ASPECT_UNIT))
    fields += _element("54b0", _number(aspect.numerator))
    return fields + _element("54ba", _number(aspect.denominator))


def _clusters(shown: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield (first packet, stop, time) of clusters with as many packets as 16-bit times allow."""
    first = 0
    while first < len(shown):
        lowest = np.minimum.accumulate(shown[first:])
        highest = np.maximum.accumulate(shown[first:])
        far = np.flatnonzero(highest - lowest >= _MAX_RELATIVE_TIME)
        stop = first + (int(far[0]) if len(far) else len(lowest))
        yield first, stop, int(lowest[stop - first - 1])
        first = stop


def _void(size: int) -> bytes:
    """Return the start of a Void element of `size` bytes in total: 0 or at least 2."""
    if not size:
        return b""
    return b"\xec" + (bytes((0x80 | size - 2,)) if size <= 128 else _long_size(size - 9))


def _element(identifier: str, body: bytes) -> bytes:
    return bytes.fromhex(identifier) + _long_size(len(body)) + body


def _number(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _size(value: int) -> bytes:
    return (1 << 28 | value).to_bytes(4, "big")


def _long_size(value: int) -> bytes:
    return (1 << 56 | value).to_bytes(8, "big")
