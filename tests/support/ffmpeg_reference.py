"""The output of the ffmpeg command for a file, as the reference for frames."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest
from av.codec.context import Flags

from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.frames.planes import plane_bytes
from vfsd.codecs.probing.probe import Examination
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketColumns


def checksum(frame: av.VideoFrame) -> str:
    """CRC-32 of all samples, as the framehash muxer prints it."""
    value = 0
    for view in plane_bytes(frame):
        value = zlib.crc32(view.tobytes(), value)
    return f"{value:08x}"


def ffmpeg_checksums(path: Path, most: int | None = None) -> list[str]:
    """Checksums of every frame of the first video stream, or of the first frame, decoded in
    order by one thread."""
    command = shutil.which("ffmpeg")
    if command is None:
        pytest.skip("there is no ffmpeg command")
    done = subprocess.run(
        [
            *(command, "-nostdin", "-v", "quiet", "-threads", "1", "-noautorotate"),
            # crop exactly as the stream says, not at aligned edges
            *("-flags", "unaligned", "-i", path),
            *("-map", "0:v:0", "-fps_mode", "passthrough"),
            *([] if most is None else ["-frames:v", str(most)]),
            *("-f", "framehash", "-hash", "CRC32", "-"),
        ],
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    return [line.rsplit(",", 1)[1].strip() for line in lines]


def ffmpeg_packets(path: Path) -> int:
    """The number of packets in the first video stream."""
    command = shutil.which("ffprobe")
    if command is None:
        pytest.skip("there is no ffprobe command")
    shown = ["-select_streams", "v:0", "-count_packets", "-show_entries", "stream=nb_read_packets"]
    done = subprocess.run(
        [command, "-v", "quiet", *shown, "-of", "csv=p=0", path],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout.strip().rstrip(","))


def pyav_checksums(path: Path) -> list[str]:
    """The same by PyAV, with its bundled FFmpeg."""
    found: list[str] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        stream.codec_context.flags |= Flags.unaligned
        for packet in container.demux(stream):
            with suppress(av.error.InvalidDataError, EOFError):
                found += [checksum(frame) for frame in stream.decode(packet)]
    return found


def table_of(found: Examination, *, page_packets: int = 64) -> FrameTable:
    return FrameTable.in_memory(
        found.columns,
        found.order,
        time_base=found.media.time_base,
        end_pts=found.end_pts,
        page_packets=page_packets,
    )


def decoder_for(path: Path, found: Examination) -> FrameDecoder:
    return FrameDecoder(path, found.media, found.access, table_of(found))


def alike(one: Examination, other: Examination) -> bool:
    """Whether two examinations of one file have the same result."""
    if (one.sound is None) != (other.sound is None):
        return False
    plain = [(e.media, e.access, e.end_pts, e.verified, e.notes) for e in (one, other)]
    same = plain[0] == plain[1] and np.array_equal(one.order, other.order)
    same = same and _alike_columns(one.columns, other.columns)
    if one.sound is not None and other.sound is not None:
        same = same and one.sound.sound == other.sound.sound
        same = same and _alike_columns(one.sound.columns, other.sound.columns)
    return same


def _alike_columns(one: PacketColumns, other: PacketColumns) -> bool:
    names = ("pts", "dts", "position", "size", "flags")
    return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in names)


def assert_exact(path: Path, found: Examination, expected: list[str]) -> None:
    """Check all frames when read in order, by two threads, one by one, and every third one."""
    table = table_of(found, page_packets=16)
    assert len(table) == len(expected)
    with decoder_for(path, found) as decoder:
        assert [checksum(frame) for _, frame in decoder.stream()] == expected
        assert [checksum(frame) for _, frame in decoder.stream(threads=2)] == expected
        for index in np.random.default_rng(2).permutation(len(table)).tolist():
            [(number, frame)] = decoder.decode(table.decode_run(index))
            assert (number, checksum(frame)) == (index, expected[index])
        runs = table.decode_runs(range(0, len(table), 3))
        got = {index: checksum(frame) for run in runs for index, frame in decoder.decode(run)}
        assert got == {index: expected[index] for index in range(0, len(table), 3)}
