"""`FrameDecoder` and `PacketReader`: sharing, damage, and edge cases."""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.packet import Packet
from av.video.stream import VideoStream

from sample_videos import FOLDER
from tests.support.clips import make_clip
from tests.support.ffmpeg_reference import checksum, decoder_for, pyav_checksums, table_of
from vfsd.codecs.decoding import demuxer
from vfsd.codecs.decoding.demuxer import demux_until_error
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.decoding.packet_decoder import PacketReader
from vfsd.codecs.probing.probe import examine
from vfsd.core.frame_table import DecodeRun
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access
from vfsd.disk.checksums import MediaSource
from vfsd.errors import IntegrityError, OutOfRangeError

TRAFFIC = FOLDER / "traffic.mp4"
TRANSPORT = FOLDER / "transport.ts"
OPEN = FOLDER / "open-gop.mov"


def _demuxed(path: Path) -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(p) for p in container.demux(container.streams.video[0]) if p.size]


# ------------------------------------------------------------------------------------- packets


@pytest.mark.parametrize("name", ["traffic.mp4", "open-gop.mkv", "transport.ts", "mpeg4.avi"])
@pytest.mark.parametrize("sequential", [False, True])
def test_packets_equal_those_of_the_demuxer(name: str, sequential: bool) -> None:
    found = examine(FOLDER / name)
    access = Access.SEQUENTIAL if sequential else found.access
    payloads = _demuxed(FOLDER / name)
    with PacketReader(FOLDER / name, found.media, access, table_of(found)) as reader:
        assert list(reader.read(0, len(payloads))) == list(enumerate(payloads))
        for first, end in ((30, 33), (len(payloads) - 1, len(payloads)), (3, 40), (0, 1), (7, 7)):
            assert list(reader.read(first, end)) == [(i, payloads[i]) for i in range(first, end)]
        skipped = [(i, payloads[i]) for i in (10, 13, 14)]
        assert list(reader.read(10, 15, skip={11, 12})) == skipped


def test_demuxer_finds_every_packet_by_seeking(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mpg", "mpeg2video", options={"g": "12", "bf": "2"}, frames=200)
    found = examine(path)
    assert found.access is Access.DEMUX
    payloads = _demuxed(path)
    table = table_of(found)
    for index in np.random.default_rng(1).permutation(len(payloads))[:60].tolist():
        with PacketReader(path, found.media, found.access, table) as reader:
            assert list(reader.read(index, index + 1)) == [(index, payloads[index])]


def test_seek_among_small_packets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several frames in one pack; only the first has a position of its own."""
    path = make_clip(tmp_path / "a.mpg", "mpeg1video", options={"g": "12", "bf": "2"}, frames=600)
    found = examine(path)
    assert (found.columns.position < 0).sum() > 200
    payloads = _demuxed(path)
    table = table_of(found)
    given = 0

    def counted(*arguments: Any) -> Iterator[Any]:
        nonlocal given
        for packet in demux_until_error(*arguments):
            given += 1
            yield packet

    monkeypatch.setattr(demuxer, "demux_until_error", counted)
    for index in (598, 300, 599, 450):
        given = 0
        with PacketReader(path, found.media, found.access, table) as reader:
            assert list(reader.read(index, index + 1)) == [(index, payloads[index])]
        assert given < 200


def test_reads_are_few_and_large(monkeypatch: pytest.MonkeyPatch) -> None:
    found = examine(TRAFFIC)
    reads: list[int] = []
    source_read = MediaSource.read_at

    def counted(self: MediaSource, position: int, size: int) -> bytes:
        reads.append(size)
        return source_read(self, position, size)

    monkeypatch.setattr(MediaSource, "read_at", counted)
    with PacketReader(TRAFFIC, found.media, found.access, table_of(found)) as reader:
        assert len(list(reader.read(0, 120))) == 120
    assert len(reads) == 1


def test_truncated_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.mov"
    data = OPEN.read_bytes()
    path.write_bytes(data)
    found = examine(path)
    path.write_bytes(data[: len(data) // 2])
    with decoder_for(path, found) as decoder:
        list(decoder.decode(table_of(found).decode_run(0)))
        with pytest.raises(IntegrityError, match="beyond the end of the file"):
            list(decoder.stream())


def test_changed_transport_stream_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.ts"
    shutil.copy(TRANSPORT, path)
    found = examine(path)
    make_clip(path, "libx264", frames=80)
    with (
        decoder_for(path, found) as decoder,
        pytest.raises(IntegrityError, match=r"has changed|ends"),
    ):
        list(decoder.stream())


# -------------------------------------------------------------------------------------- frames


def test_one_descriptor_serves_several_decoders() -> None:
    expected = pyav_checksums(TRAFFIC)
    found = examine(TRAFFIC)
    fd = os.open(TRAFFIC, os.O_RDONLY)
    try:
        decoders = [FrameDecoder(fd, found.media, found.access, table_of(found)) for _ in range(3)]
        streams = [decoder.stream(10 * ordinal) for ordinal, decoder in enumerate(decoders)]
        for step in range(20):
            for ordinal, stream in enumerate(streams):
                index, frame = next(stream)
                assert index == 10 * ordinal + step
                assert checksum(frame) == expected[index]
        for decoder in decoders:
            decoder.close()
        assert os.fstat(fd).st_size
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
    finally:
        os.close(fd)


def test_abandoned_run_leaves_nothing_behind() -> None:
    expected = pyav_checksums(OPEN)
    found = examine(OPEN)
    table = table_of(found)
    with decoder_for(OPEN, found) as decoder:
        for index in (40, 3, 89, 60):
            next(decoder.stream(index % 7))
            [(number, frame)] = decoder.decode(table.decode_run(index))
            assert (number, checksum(frame)) == (index, expected[index])


def test_frames_have_the_times_of_the_table() -> None:
    found = examine(FOLDER / "variable-rate.mkv")
    table = table_of(found)
    with decoder_for(FOLDER / "variable-rate.mkv", found) as decoder:
        for index, frame in decoder.stream(5, 25):
            assert frame.pts == table.frame_pts(index)
            assert frame.time_base == found.media.time_base


def test_streams_may_start_and_stop_anywhere() -> None:
    expected = pyav_checksums(OPEN)
    found = examine(OPEN)
    with decoder_for(OPEN, found) as decoder:
        for first, stop in ((0, 1), (23, 26), (47, 90), (89, 90), (5, 5), (30, 20)):
            got = [(index, checksum(frame)) for index, frame in decoder.stream(first, stop)]
            assert got == [(index, expected[index]) for index in range(first, stop)]
        for first, stop in ((90, 91), (85, 91), (-1, 2)):
            with pytest.raises(OutOfRangeError):
                list(decoder.stream(first, stop))


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by every packet that a decoder receives."""
    packets: list[int] = []
    original = PacketReader.packets

    def counted(
        self: PacketReader, first: int, end: int, *, skip: Container[int] = ()
    ) -> Iterator[Packet[VideoStream]]:
        for packet in original(self, first, end, skip=skip):
            packets.append(packet.pts or 0)
            yield packet

    monkeypatch.setattr(PacketReader, "packets", counted)
    return packets


def test_only_reference_frames_are_decoded(fed: list[int]) -> None:
    found = examine(TRAFFIC)
    table = table_of(found)
    for index in (28, 17, 99):
        fed.clear()
        run = table.decode_run(index)
        with decoder_for(TRAFFIC, found) as decoder:
            assert [number for number, _ in decoder.decode(run)] == [index]
        flags = found.columns.flags
        [wanted] = run.wanted
        assert [p for p in fed if p < wanted and flags[p] & PacketFlag.DISPOSABLE] == []
        assert fed[-1] - run.end_packet <= 4 * (found.media.reorder_delay + 1)


@pytest.mark.parametrize("path", [TRAFFIC, OPEN])
def test_stream_decodes_only_references_of_its_first_frame(path: Path, fed: list[int]) -> None:
    expected = pyav_checksums(path)
    found = examine(path)
    table = table_of(found)
    flags = found.columns.flags
    for first in (19, 20, 21, 22):
        fed.clear()
        with decoder_for(path, found) as decoder:
            got = [(index, checksum(frame)) for index, frame in decoder.stream(first, 60)]
        assert got == [(index, expected[index]) for index in range(first, 60)]
        wanted = set(table.packets_of(range(first, 60)).tolist())
        before = int(table.packets_of(range(first, first + 1))[0])
        needless = [p for p in fed if flags[p] & PacketFlag.DISPOSABLE and p not in wanted]
        assert [p for p in needless if p < before] == []


@pytest.mark.parametrize("path", [TRAFFIC, OPEN, TRANSPORT, FOLDER / "open-gop.mkv"])
@pytest.mark.parametrize("step", [1, 2, 7])
def test_sequential_read_does_not_restart(path: Path, step: int, fed: list[int]) -> None:
    expected = pyav_checksums(path)
    found = examine(path)
    table = table_of(found)
    fed.clear()
    with decoder_for(path, found) as decoder:
        for index in range(0, len(table), step):
            [(_, frame)] = decoder.decode(table.decode_run(index))
            assert checksum(frame) == expected[index]
    if step == 7:
        assert len(fed) < 1.5 * len(found.columns)


def test_more_threads_give_the_same_frames() -> None:
    expected = pyav_checksums(OPEN)
    found = examine(OPEN)
    table = table_of(found)
    with decoder_for(OPEN, found) as decoder:
        for index in (5, 70, 24, 25, 3, 89):
            for threads in (2, 1, 3):
                [(_, frame)] = decoder.decode(table.decode_run(index), threads=threads)
                assert checksum(frame) == expected[index]


@pytest.mark.parametrize(
    "name",
    [
        "traffic.mp4",
        "open-gop.mov",
        "open-gop.mkv",
        "av1.mp4",
        "mpeg4.avi",
        "odd-size.webm",
    ],
)
def test_nothing_after_a_run_is_read_if_it_is_on_a_server(
    name: str, fed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PacketReader, "is_at_hand", lambda self, first, end: first >= end)
    path = FOLDER / name
    expected = pyav_checksums(path)
    found = examine(path)
    table = table_of(found)
    with decoder_for(path, found) as decoder:
        for index in range(0, len(table), 3):
            run = table.decode_run(index)
            [(_, frame)] = decoder.decode(run, threads=2, may_drain=True)
            assert checksum(frame) == expected[index]
            fed.clear()
            [(_, frame)] = decoder.decode(run, may_drain=True)
            assert checksum(frame) == expected[index]
            assert max(fed) < run.end_packet
        # The decoder continues at another packet than the one it was drained at.
        run = table.decode_run(3)
        [(_, frame)] = decoder.decode(run)
        assert checksum(frame) == expected[3]


def test_error_names_the_missing_frame() -> None:
    found = examine(TRAFFIC)
    media = replace(found.media, extradata=b"")  # without it nothing can be decoded
    with (
        FrameDecoder(TRAFFIC, media, found.access, table_of(found)) as decoder,
        pytest.raises(IntegrityError, match="frame 7 cannot be decoded"),
    ):
        list(decoder.decode(table_of(found).decode_run(7)))


def test_zeroed_packet_loses_only_its_frame(tmp_path: Path) -> None:
    clip = make_clip(tmp_path / "a.mov", "mjpeg", pixel_format="yuvj420p")
    expected = pyav_checksums(clip)
    found = examine(clip)
    with clip.open("r+b") as file:
        file.seek(int(found.columns.position[20]))
        file.write(bytes(int(found.columns.size[20])))
    table = table_of(found)
    with decoder_for(clip, found) as decoder:
        with pytest.raises(IntegrityError, match="frame 20"):
            list(decoder.decode(table.decode_run(20)))
        got = [checksum(frame) for _, frame in decoder.stream(0, 20)]
        got += [checksum(frame) for _, frame in decoder.stream(21)]
    assert got == expected[:20] + expected[21:]


def test_empty_run_decodes_nothing() -> None:
    found = examine(TRAFFIC)
    with decoder_for(TRAFFIC, found) as decoder:
        assert list(decoder.decode(DecodeRun(0, 5, {}))) == []
