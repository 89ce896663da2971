"""Encoding and muxing piece by piece: a header and any run of segments is a file that plays."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from sample_videos import FOLDER
from tests.codecs.making import pictures
from tests.codecs.reference import checksum, table_of
from vfsd.codecs.encode import EncoderSettings, encode, parameter_sets
from vfsd.codecs.examine import examine
from vfsd.codecs.framing import framing_for_container, framing_for_stream, framing_of_encoder
from vfsd.codecs.mux import muxer_for
from vfsd.codecs.packets import PacketReader
from vfsd.codecs.segments import PacketTimes, Track
from vfsd.frametable import PacketFlag

BASE = Fraction(1, 600)
STEP = 25
SEGMENT = 8


def _settings(codec: str, quality: int = 20) -> EncoderSettings:
    return EncoderSettings(
        codec=codec, width=96, height=64, quality=quality, rate=1 / (STEP * BASE)
    )


def _times(number: int) -> PacketTimes:
    shown = (np.arange(SEGMENT) + number * SEGMENT) * STEP
    keys = np.zeros(SEGMENT, np.int64)
    keys[0] = 1
    lasting = np.full(SEGMENT, STEP, np.int64)
    return PacketTimes(
        shown=shown, lasting=lasting, decoded=shown, end=int(shown[-1]) + STEP, keys=keys
    )


def _segments(codec: str, container: str) -> tuple[bytes, list[bytes]]:
    """A header and three segments, each of another quality and with some padding."""
    frames = [frame.reformat(format="yuv420p") for frame in pictures(3 * SEGMENT, 96, 64)]
    framing = framing_of_encoder(codec, parameter_sets(_settings(codec)), stream=container == codec)
    track = Track(
        codec=codec,
        width=96,
        height=64,
        configuration=framing.configuration,
        time_base=BASE,
        duration=3 * SEGMENT * STEP,
        rate=1 / (STEP * BASE),
    )
    muxer = muxer_for(container, track)
    segments = []
    for number, quality in enumerate((18, 30, 24)):
        part = frames[number * SEGMENT : (number + 1) * SEGMENT]
        packets = encode(_settings(codec, quality), part)
        payloads = [framing.convert(packet, at == 0) for at, packet in enumerate(packets)]
        size = muxer.overhead(_times(number)) + sum(map(len, payloads)) + 40
        segment = muxer.segment(number, _times(number), payloads, size)
        segments.append(segment.ljust(size, b"\0"))
    return muxer.header(), segments


@pytest.mark.parametrize("container", ["mp4", "matroska", "stream"])
@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_any_run_of_segments_plays(tmp_path: Path, codec: str, container: str) -> None:
    container = codec if container == "stream" else container
    header, segments = _segments(codec, container)
    assert (header, segments) == _segments(codec, container)
    whole = _decoded(header + b"".join(segments))
    assert len(whole) == 3 * SEGMENT
    for first in range(3):
        for stop in range(first + 1, 4):
            data = header + b"".join(segments[first:stop])
            got = _decoded(data)
            expected = whole[first * SEGMENT : stop * SEGMENT]
            assert [sample for _, sample in got] == [sample for _, sample in expected]
            if container != codec:
                assert [time for time, _ in got] == [time for time, _ in expected]
                tick = Fraction(1, 10_000) if container == "matroska" else 0
                assert abs(got[0][0] - first * SEGMENT * STEP * BASE) <= tick
            _assert_ffprobe_counts(tmp_path, data, (stop - first) * SEGMENT)


def _decoded(data: bytes) -> list[tuple[Fraction, str]]:
    with av.open(io.BytesIO(data), "r") as opened:
        base = opened.streams.video[0].time_base or Fraction(1)
        return [((frame.pts or 0) * base, checksum(frame)) for frame in opened.decode(video=0)]


def _assert_ffprobe_counts(folder: Path, data: bytes, frames: int) -> None:
    command = shutil.which("ffprobe")
    if command is None:
        return
    path = folder / "a"
    path.write_bytes(data)
    done = subprocess.run(
        [command, "-v", "error", "-count_frames", "-show_streams", "-of", "json", path],
        capture_output=True,
        check=True,
        text=True,
    )
    [stream] = json.loads(done.stdout)["streams"]
    assert int(stream["nb_read_frames"]) == frames
    assert done.stderr == ""


@pytest.mark.parametrize("container", ["mp4", "matroska", "stream"])
@pytest.mark.parametrize(
    "name", ["traffic.mp4", "transport.ts", "variable-rate.mkv", "variable-rate.mp4", "av1.mp4"]
)
def test_packets_are_copied_from_a_key_packet_on(name: str, container: str) -> None:
    path = FOLDER / name
    found = examine(path)
    media, columns = found.media, found.columns
    if container == "stream":
        if media.codec == "av1":
            return
        framing = framing_for_stream(media)
    else:
        framing = framing_for_container(media, int(columns.size.max()))
    assert framing is not None
    keys = np.flatnonzero(columns.flags & PacketFlag.KEY)
    first, stop = int(keys[1]), int(keys[2])
    part = columns[first:stop]
    origin = int(part.pts.min())
    decoded, shown = part.dts - part.dts[0], part.pts - origin
    times = PacketTimes(
        shown=shown,
        lasting=np.full(len(part), 1, np.int64),
        decoded=decoded,
        end=int(decoded[-1]) + 1,
        keys=(part.flags & PacketFlag.KEY != 0).astype(np.int64),
    )
    track = Track(
        codec=media.codec,
        width=media.width,
        height=media.height,
        configuration=framing.configuration,
        time_base=media.time_base,
        duration=int(part.pts.max()) - origin + 1,
        pixel_format=media.pixel_format,
        reorder=max(0, int((decoded - shown).max())),
    )
    muxer = muxer_for("h264" if container == "stream" else container, track)
    with PacketReader(path, media, found.access, table_of(found)) as reader:
        packets = list(reader.read(first, stop))
    payloads = [
        framing.convert(payload, bool(times.keys[index - first])) for index, payload in packets
    ]
    size = muxer.overhead(times) + sum(map(len, payloads))
    got = _decoded(muxer.header() + muxer.segment(0, times, payloads, size))
    with av.open(str(path)) as opened:
        frames = {frame.pts: checksum(frame) for frame in opened.decode(video=0)}
    ticks = np.sort(part.pts).tolist()
    assert [sample for _, sample in got] == [frames[pts] for pts in ticks]
    if container != "stream":
        step = Fraction(1, 10_000) if container == "matroska" else media.time_base
        for (time, _), pts in zip(got, ticks, strict=True):
            assert abs(time - got[0][0] - (pts - origin) * media.time_base) <= step
