"""Piecewise muxing: any run of segments plays, sizes are known in advance, and seeking works."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.selection import examples, one_in
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.containers.muxers import (
    PacketFormat,
    container_packet_format,
    encoder_packet_format,
    muxer_for,
    stream_packet_format,
)
from vfsd.codecs.containers.tracks import (
    Muxer,
    PacketTimes,
    SegmentIndex,
    VideoTrack,
    overhead,
    scaled_ticks,
)
from vfsd.codecs.decoding.packet_decoder import PacketReader
from vfsd.codecs.encoding.encoder import EncoderSettings, encode_pictures, parameter_sets
from vfsd.codecs.frames.planes import fingerprint
from vfsd.codecs.probing.probe import examine
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints, PacketFlag
from vfsd.core.model import MediaInfo

CONTAINERS = ("mp4", "matroska")
CLIPS = (
    "traffic.mp4",
    "open-gop.mov",
    "open-gop.mkv",
    "variable-rate.mkv",
    "odd-size.webm",
    "av1.mp4",
    "mpeg4.avi",
    "transport.ts",
    "elementary.h264",
)


@dataclass(frozen=True)
class Copied:
    """A demuxed clip: its packets, and segments that begin at key packets."""

    media: MediaInfo
    framing: PacketFormat
    track: VideoTrack
    payloads: list[bytes]
    starts: Ints  #: first packet of each segment
    times: list[PacketTimes]
    shown: list[Fraction]  #: seconds of each frame, in order

    def segment(self, muxer: Muxer, number: int, spare: int = 0) -> bytes:
        first, stop = self.bounds(number)
        payloads = self.payloads[first:stop]
        times = self.times[number]
        size = overhead(muxer, times) + sum(map(len, payloads)) + spare
        data = muxer.segment(number, times, payloads, size)
        assert len(data) <= size
        assert len(data) == size or spare
        return data + bytes(size - len(data))

    def bounds(self, number: int) -> tuple[int, int]:
        ends = [*self.starts[1:].tolist(), len(self.payloads)]
        return int(self.starts[number]), ends[number]

    def index(self, segments: Sequence[bytes]) -> SegmentIndex:
        return SegmentIndex(
            sizes=np.array([len(segment) for segment in segments]),
            starts=np.array([times.shown[0] for times in self.times]),
            starts_with_key=np.array([times.keys[0] for times in self.times]),
            end=self.track.duration,
        )


def taken_apart(name: str, *, rate: bool = True) -> Copied:
    found = examine(FOLDER / name)
    media, columns = found.media, found.columns
    table = FrameTable.in_memory(
        columns, found.order, time_base=media.time_base, end_pts=found.end_pts
    )
    framing = container_packet_format(media, int(columns.size.max()))
    assert framing is not None
    keys = (columns.flags & PacketFlag.KEY != 0).astype(np.int64)
    starts = np.flatnonzero(keys)
    origin = table.frame_pts(0)
    shown = columns.pts - origin
    in_order = np.sort(shown)
    lasting = np.zeros(len(shown), np.int64)
    lasting[found.order] = np.diff(np.append(table.pts(), found.end_pts))
    end = found.end_pts - origin
    with PacketReader(FOLDER / name, media, found.access, table) as reader:
        payloads = [
            framing.convert(packet, bool(keys[number]))
            for number, packet in reader.read(0, len(columns))
        ]
    times = []
    for first, stop in zip(starts, [*starts[1:], len(shown)], strict=True):
        times.append(
            PacketTimes(
                shown=shown[first:stop],
                lasting=lasting[first:stop],
                decoded=in_order[first:stop],
                end=int(in_order[stop]) if stop < len(shown) else end,
                keys=keys[first:stop],
            )
        )
    track = VideoTrack(
        codec=media.codec,
        width=media.width,
        height=media.height,
        configuration=framing.configuration,
        time_base=media.time_base,
        duration=end,
        longest=end,
        pixel_format=media.pixel_format,
        reorder=int((in_order - shown).max()),
        rate=None if media.variable_rate or not rate else media.average_rate,
        rotation=media.rotation,
        sample_aspect_ratio=media.sample_aspect_ratio,
    )
    seconds = [int(pts - origin) * media.time_base for pts in table.pts()]
    return Copied(media, framing, track, payloads, starts, times, seconds)


def read(data: bytes) -> tuple[list[Fraction], list[int]]:
    """(seconds, fingerprint) of all frames."""
    with av.open(io.BytesIO(data), mode="r") as opened:
        frames = list(opened.decode(video=0))
    times = [(frame.pts or 0) * (frame.time_base or Fraction(0)) for frame in frames]
    return times, [fingerprint(frame) for frame in frames]


def near(times: list[Fraction], right: list[Fraction], container: str) -> bool:
    tolerance = Fraction(1, 20_000) if container == "matroska" else 0
    return len(times) == len(right) and all(
        abs(a - b) <= tolerance for a, b in zip(times, right, strict=True)
    )


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("name", CLIPS)
def test_whole_file_has_exact_frame_times(name: str, container: str) -> None:
    clip = taken_apart(name)
    muxer = muxer_for(container, clip.track)
    segments = [clip.segment(muxer, number) for number in range(len(clip.starts))]
    header = muxer.header(clip.index(segments))
    assert len(header) == len(muxer.header()) + muxer.index_size(len(segments))
    times, prints = read(header + b"".join(segments))
    assert near(times, clip.shown, container)
    assert len(set(prints)) > 1


@pytest.mark.parametrize("container", one_in(4, CONTAINERS))
@pytest.mark.parametrize("name", ["traffic.mp4", "variable-rate.mp4", "av1.mp4", "transport.ts"])
def test_any_run_of_segments_plays(name: str, container: str) -> None:
    clip = taken_apart(name)
    muxer = muxer_for(container, clip.track)
    segments = [clip.segment(muxer, number) for number in range(len(clip.starts))]
    _, whole = read(muxer.header() + b"".join(segments))
    for first in range(len(segments)):
        for stop in range(first + 1, len(segments) + 1):
            times, prints = read(muxer.header() + b"".join(segments[first:stop]))
            # GOPs are closed, so packets and frames have equal counts
            begin = clip.bounds(first)[0]
            end = clip.bounds(stop - 1)[1]
            assert near(times, clip.shown[begin:end], container)
            assert prints == whole[begin:end]


@pytest.mark.parametrize("container", one_in(2, CONTAINERS))
@pytest.mark.parametrize("rate", [True, False])
def test_padding_changes_nothing(container: str, rate: bool) -> None:
    clip = taken_apart("traffic.mp4", rate=rate)
    muxer = muxer_for(container, clip.track)
    for spare in (2, 3, 126, 127, 128, 129, 130, 131, 5000):
        segments = [clip.segment(muxer, number, spare) for number in range(len(clip.starts))]
        header = muxer.header(clip.index(segments), spare=spare + 9)
        assert len(header) == len(muxer.header()) + muxer.index_size(len(segments)) + spare + 9
        times, _ = read(header + b"".join(segments))
        assert near(times, clip.shown, container)


def test_elementary_streams_repeat_the_parameter_sets() -> None:
    for name in ("traffic.mp4", "open-gop.mkv", "transport.ts", "elementary.h264"):
        found = examine(FOLDER / name)
        media = found.media
        framing = stream_packet_format(media)
        assert framing is not None
        assert framing.is_exact
        table = FrameTable.in_memory(
            found.columns, found.order, time_base=media.time_base, end_pts=found.end_pts
        )
        keys = (found.columns.flags & PacketFlag.KEY != 0).astype(np.int64)
        with PacketReader(FOLDER / name, media, found.access, table) as reader:
            packets = [
                framing.convert(packet, bool(keys[number]))
                for number, packet in reader.read(0, table.packets)
            ]
        assert [len(packet) for packet in packets] == framing.bound(
            found.columns.size, keys
        ).tolist()
        for key in np.flatnonzero(keys):
            frames = _frames_of_stream(media.codec, packets[key:])
            assert len(frames) > 0
        assert len(_frames_of_stream(media.codec, packets)) == len(found.order)


def _frames_of_stream(codec: str, packets: list[bytes]) -> list[av.VideoFrame]:
    with av.open(io.BytesIO(b"".join(packets)), mode="r", format=codec) as opened:
        return list(opened.decode(video=0))


def made_at(container: str, seconds: list[int], end: int, time_base: Fraction) -> list[Fraction]:
    """The times that a reader finds in a file with one segment and frames at `seconds`."""
    chosen = EncoderSettings("h264", 64, 64, 40, Fraction(25))
    gray = np.full((96, 64), 128, np.uint8)
    framing = encoder_packet_format("h264", parameter_sets(chosen), stream=False)
    packets = [
        framing.convert(packet, False) for packet in encode_pictures(chosen, [gray] * len(seconds))
    ]
    shown = np.array(seconds) * int(1 / time_base)
    stop = end * int(1 / time_base)
    track = VideoTrack("h264", 64, 64, framing.configuration, time_base, stop, stop)
    muxer = muxer_for(container, track)
    ends = np.append(shown[1:], stop)
    times = PacketTimes(shown, ends - shown, shown, stop, (shown == 0) * 1)
    size = overhead(muxer, times) + sum(map(len, packets)) + 50
    data = muxer.segment(0, times, packets, size)
    return read(muxer.header() + data + bytes(size - len(data)))[0]


@pytest.mark.parametrize("container", CONTAINERS)
def test_long_pauses_are_kept(container: str) -> None:
    """The time of a Matroska block is at most 3.2 seconds from that of its cluster."""
    pauses = [0, 1, 50, 51, 2000]
    assert made_at(container, pauses, 2100, Fraction(1, 1000)) == pauses


@pytest.mark.parametrize("container", CONTAINERS)
def test_timebase_too_fine_for_the_format(container: str) -> None:
    """A pause of some seconds would not fit into the 32 bits of an MP4 sample's duration."""
    assert made_at(container, [0, 1, 9], 400, Fraction(1, 1_000_000_000)) == [0, 1, 9]


@given(
    st.lists(st.integers(-(10**12), 10**12), min_size=1),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
)
def test_times_are_rounded_to_nearest(ticks: list[int], over: int, under: int) -> None:
    factor = Fraction(over, under)
    exact = [tick * factor for tick in ticks]
    for found, right in zip(scaled_ticks(np.array(ticks), factor).tolist(), exact, strict=True):
        assert abs(found - right) <= Fraction(1, 2)


@given(
    st.lists(st.integers(-(10**12), 10**12)),
    st.integers(1, 10**24),
    st.integers(1, 10**24),
)
def test_times_are_rounded_correctly_for_any_factor(
    ticks: list[int], over: int, under: int
) -> None:
    """Intermediate results do not fit into 64 bits."""
    factor = Fraction(over, under)
    right = [floor(tick * factor + Fraction(1, 2)) for tick in ticks]
    given = np.array(ticks, np.int64)
    if all(-(1 << 63) <= one < 1 << 63 for one in right):
        assert scaled_ticks(given, factor).tolist() == right
    else:
        with pytest.raises(OverflowError):
            scaled_ticks(given, factor)


# --------------------------------------------------------------------------------------- framing

_units = st.lists(
    st.binary(min_size=1, max_size=30).map(lambda body: b"\x61" + body.replace(b"\0", b"\1")),
    min_size=1,
    max_size=8,
)


@settings(max_examples=examples(200))
@given(_units, st.sampled_from([1, 2, 4, 0]), st.sampled_from([0, 2, 4]), st.data())
def test_packet_growth_is_bounded(
    units: list[bytes], stored: int, wanted: int, data: st.DataObject
) -> None:
    if stored:
        packet = b"".join(len(unit).to_bytes(stored, "big") + unit for unit in units)
    else:
        codes = data.draw(
            st.lists(st.sampled_from([3, 4]), min_size=len(units), max_size=len(units))
        )
        packet = b"".join(nal.START_CODE[-n:] + unit for n, unit in zip(codes, units, strict=True))
    framing = PacketFormat("h264", b"", stored, wanted)
    converted = framing.convert(packet, False)
    bound = int(framing.bound(np.array([len(packet)]), np.array([0]))[0])
    assert len(converted) <= bound
    if framing.is_exact:
        assert len(converted) == bound
    assert [converted[a:b] for a, b in nal.nal_units(converted, wanted)] == units


def test_parameter_sets_follow_a_delimiter() -> None:
    framing = encoder_packet_format("h264", (b"\x67set",), stream=True)
    delimiter, picture = b"\x09\xf0", b"\x65picture"
    packet = nal.START_CODE + delimiter + nal.START_CODE + picture
    converted = framing.convert(packet, True)
    found = [converted[a:b] for a, b in nal.nal_units(converted, 0)]
    assert found == [delimiter, b"\x67set", picture]
    assert framing.convert(packet, False) == packet
