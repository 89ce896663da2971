"""Decoder inputs besides the payload of packets: key flags, palettes, and the
tables and comments of earlier frames.

Side data of frames without a name in PyAV, such as EXIF.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.packet import Packet
from av.video.stream import VideoStream

from tests.support.clips import make_clip, pictures, remuxed
from tests.support.ffmpeg_reference import checksum, decoder_for, pyav_checksums, table_of
from vfsd.codecs.bitstreams.packet_inspector import inspector
from vfsd.codecs.bitstreams.picture_headers import JpegHeaderParser, PacketTrait
from vfsd.codecs.decoding import packet_decoder
from vfsd.codecs.decoding.packet_decoder import PacketDecoder
from vfsd.codecs.encoding.archive_encoder import require_kept_data
from vfsd.codecs.inventory.side_data import carried_data, first_picture
from vfsd.codecs.probing.probe import Examination, examine
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access
from vfsd.errors import RefusedMediaError

_FRAMES = 24


def _keys(found: Examination) -> list[int]:
    return np.flatnonzero(found.columns.flags & PacketFlag.KEY).tolist()


def _assert_served_exactly(path: Path, found: Examination) -> None:
    expected = pyav_checksums(path)
    table = table_of(found)
    with decoder_for(path, found) as decoder:
        assert [checksum(frame) for _, frame in decoder.stream()] == expected
        for index in np.random.default_rng(2).permutation(len(table)).tolist():
            [(_, frame)] = decoder.decode(table.decode_run(index))
            assert checksum(frame) == expected[index], index
        middle = len(expected) // 2
        assert [checksum(frame) for _, frame in decoder.stream(middle)] == expected[middle:]


# ------------------------------------------------------------------------------------------- keys


def _png_with_keys(path: Path, every: int) -> Path:
    """PNG in a container that marks only some packets as keys: the others are differences."""
    made = make_clip(path.with_suffix(".avi"), "png", pixel_format="rgb24", frames=_FRAMES)
    return remuxed(made, path, lambda _, data: data, lambda number: number % every == 0)


@pytest.mark.parametrize("full", [False, True])
def test_png_without_key_flag_is_a_difference(tmp_path: Path, full: bool) -> None:
    path = _png_with_keys(tmp_path / "a.mov", 5)
    found = examine(path, full=full)
    assert (found.access, found.verified) == (Access.EXTENT, full)
    assert _keys(found) == [0, 5, 10, 15, 20]
    assert len(set(pyav_checksums(path))) == _FRAMES
    _assert_served_exactly(path, found)


@pytest.mark.parametrize("full", [False, True])
def test_differently_decoding_packets_are_not_used(
    tmp_path: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_clip(tmp_path / "a.mov", "png", pixel_format="rgb24", frames=_FRAMES)
    sound = packet_decoder._new_packet
    monkeypatch.setattr(packet_decoder, "_new_packet", lambda at, data, _: sound(at, data, False))
    found = examine(path, full=full)
    assert (found.access, found.verified) == (Access.SEQUENTIAL, True)
    _assert_served_exactly(path, found)


# --------------------------------------------------------------------------------------- palettes


def _with_palettes(path: Path, codec: str, changes: tuple[int, ...], frames: int = _FRAMES) -> Path:
    """Frames with a new palette from each of these frames on."""
    chance = np.random.default_rng(3)
    palette = np.zeros((256, 4), np.uint8)
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=25, options={"g": "6"})
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "pal8"
        stream.thread_count = 1
        for at, picture in enumerate(pictures(frames, 96, 64)):
            if at in (0, *changes):
                palette = chance.integers(0, 256, (256, 4), dtype=np.uint8)
                palette[:, 0] = 255
            indices = picture.to_ndarray(format="gray")
            frame = av.VideoFrame.from_ndarray((indices, palette), format="pal8")  # type: ignore[arg-type]
            frame.pts, frame.time_base = at, Fraction(1, 25)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def _palettes(path: Path) -> Iterator[Packet[VideoStream]]:
    with av.open(str(path)) as container:
        for packet in container.demux(container.streams.video[0]):
            if packet.size and packet.has_sidedata("palette"):
                yield packet


@pytest.mark.parametrize(
    ("name", "codec", "changes"),
    [
        ("a.avi", "rawvideo", ()),
        ("a.avi", "rawvideo", (7,)),
        ("a.avi", "rawvideo", (5, 6, 13)),
        ("a.mov", "rawvideo", ()),
        ("a.mov", "smc", ()),
        ("a.avi", "msrle", ()),
        ("a.avi", "zmbv", (7,)),
        ("a.mov", "png", (7,)),
    ],
)
def test_frames_use_their_own_palette(
    tmp_path: Path, name: str, codec: str, changes: tuple[int, ...]
) -> None:
    path = _with_palettes(tmp_path / name, codec, changes)
    found = examine(path)
    assert found.media.pixel_format == "pal8"
    if codec == "rawvideo":
        assert len(list(_palettes(path))) == 1 + len(changes)
    _assert_served_exactly(path, found)


@pytest.mark.parametrize(("name", "changes"), [("a.mov", ()), ("a.avi", (1, 2, 3))])
def test_packets_with_a_palette_are_never_skipped(
    tmp_path: Path, name: str, changes: tuple[int, ...]
) -> None:
    path = _with_palettes(tmp_path / name, "rawvideo", changes, frames=8)
    expected, found = pyav_checksums(path), examine(path)
    assert 0 in _keys(found)
    assert len(_keys(found)) < len(expected)
    for index, wanted in enumerate(expected):
        with decoder_for(path, found) as decoder:  # a decoder without a palette
            [(_, frame)] = decoder.decode(table_of(found).decode_run(index))
        assert checksum(frame) == wanted, index


# ----------------------------------------------------------------------------------------- tables

_QUANTISERS, _CODES = 0xDB, 0xC4


def _without(packet: bytes, kinds: Collection[int]) -> bytes:
    """A JPEG image without the segments of those kinds."""
    kept, at = packet[:2], 2
    while packet[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(packet[at + 2 : at + 4])
        kept += packet[at:end] if packet[at + 1] not in kinds else b""
        at = end
    return kept + packet[at:]


@pytest.mark.parametrize("name", ["a.avi", "a.mov", "a.mkv"])
@pytest.mark.parametrize("missing", [{_QUANTISERS}, {_CODES}, {_QUANTISERS, _CODES}])
@pytest.mark.parametrize("frames", [8, _FRAMES])
def test_tables_in_the_first_frame_only(
    tmp_path: Path, name: str, missing: set[int], frames: int
) -> None:
    options = {"huffman": "default"}  # which also has the codes for other frames
    whole = make_clip(
        tmp_path / "whole.avi", "mjpeg", pixel_format="yuvj420p", frames=frames, options=options
    )

    def shortened(number: int, packet: bytes) -> bytes:
        return _without(packet, missing) if number else packet

    path = remuxed(whole, tmp_path / name, shortened, lambda _: True)
    found = examine(path)
    assert found.verified
    assert _keys(found) == ([0] if _QUANTISERS in missing else list(range(frames)))
    _assert_served_exactly(path, found)


def test_default_huffman_tables_are_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many AVI files rely on them; from the ninth frame on there are other tables, which mostly
    fail."""

    standard, own = (
        make_clip(
            tmp_path / f"{kind}.avi", "mjpeg", pixel_format="yuvj420p", options={"huffman": kind}
        )
        for kind in ("default", "optimal")
    )
    with av.open(str(own)) as opened:
        packets_of_own = [bytes(packet) for packet in opened.demux() if packet.size]

    def changing(number: int, packet: bytes) -> bytes:
        return _without(packet, {_CODES}) if number < 8 else packets_of_own[number]

    path = remuxed(standard, tmp_path / "a.avi", changing, lambda _: True)
    found = examine(path)
    assert not found.verified
    assert len(_keys(found)) == 40
    failed: list[int] = []
    monkeypatch.setattr(PacketDecoder, "discard", lambda _, threads: failed.append(threads))
    _assert_served_exactly(path, found)
    assert not failed


# -------------------------------------------------------------------------------------- comments


def _segment(kind: int, payload: bytes) -> bytes:
    return bytes([0xFF, kind]) + (len(payload) + 2).to_bytes(2) + payload


_UPSIDE_DOWN = b"Metasoft MJPEG Codec\0"
_INTEL = b"Intel(R) JPEG Library, version 1,5,4,36\0"
"""Upside down as well, where there is a FourCC."""


@pytest.mark.parametrize("name", ["a.avi", "a.mov", "a.mkv"])
@pytest.mark.parametrize(
    ("saying", "count", "keys"),
    [
        (_UPSIDE_DOWN, 1, 1),
        (_UPSIDE_DOWN, 8, 8),
        (_INTEL, 1, 1),
        (b"CS=ITU601", 1, 1),
        (b"CS=ITU601", 8, 8),
        (b"12:00:00.040", 1, 8),  # not used by decoders
    ],
)
def test_colour_range_of_a_frame_persists(
    tmp_path: Path, name: str, saying: bytes, count: int, keys: int
) -> None:
    made = make_clip(tmp_path / "made.avi", "mjpeg", pixel_format="yuvj420p", frames=8)

    def telling(number: int, packet: bytes) -> bytes:
        told = _segment(0xFE, saying) if number < count else b""
        return packet[:2] + told + packet[2:]

    path = remuxed(made, tmp_path / name, telling, lambda _: True)
    found = examine(path)
    assert found.verified == (keys == 1)  # otherwise a packet scan is enough
    if (name, saying) != ("a.mkv", _INTEL):  # which has no FourCC
        assert len(_keys(found)) == keys
    _assert_served_exactly(path, found)
    with av.open(str(path)) as opened:
        ranges = [frame.color_range for frame in opened.decode(video=0)]
    with decoder_for(path, found) as decoder:
        for index in (7, 0, 4):
            [(_, frame)] = decoder.decode(table_of(found).decode_run(index))
            assert frame.color_range == ranges[index]


@pytest.mark.parametrize("behind", [True, False])
def test_comments_elsewhere_need_a_full_decode(tmp_path: Path, behind: bool) -> None:
    """FFmpeg also reads comments after the samples and before the image."""
    made = make_clip(tmp_path / "made.avi", "mjpeg", pixel_format="yuvj420p", frames=8)
    told = _segment(0xFE, _UPSIDE_DOWN)

    def telling(number: int, packet: bytes) -> bytes:
        if number:
            return packet
        return packet[:-2] + told + packet[-2:] if behind else told + packet

    path = remuxed(made, tmp_path / "a.avi", telling, lambda _: True)
    found = examine(path)
    assert found.verified
    _assert_served_exactly(path, found)


@pytest.mark.parametrize(
    ("comments", "odd"),
    [
        ([b"AVID" + bytes(8) + bytes([number % 2 + 1]) for number in range(8)], 0),
        ([b"AVID" + bytes([number] * 8) + b"\1" for number in range(8)], 0),
        ([b"AVID" + bytes(8) + b"\1", b"AVID" + bytes(8) + b"\3"], 1),
        ([b"AVID r07"] * 2, 0),
        ([b"CS=ITU601 3", b""], 0),
        ([b"CS=ITU601\n", b""], 1),
        ([b"CS=ITU601", b"CS=ITU601\0and more"], 0),
        ([b"MULTISCOPE II", b"MULTISCOPE III"], 1),
    ],
)
def test_comments_are_parsed_as_by_decoders(
    tmp_path: Path, comments: list[bytes], odd: int
) -> None:
    made = make_clip(tmp_path / "made.avi", "mjpeg", pixel_format="yuvj420p", frames=8)
    with av.open(str(made)) as opened:
        packet = bytes(next(opened.demux()))
    inspect = inspector("mjpeg", b"")
    assert inspect is not None
    traits = [inspect(packet[:2] + _segment(0xFE, one) + packet[2:], True) for one in comments]
    assert sum(bool(one & PacketTrait.ODD) for one in traits) == odd


def test_comments_are_parsed_in_linear_time(tmp_path: Path) -> None:
    made = make_clip(tmp_path / "made.avi", "mjpeg", pixel_format="yuvj420p", frames=8)
    with av.open(str(made)) as opened:
        packet = bytes(next(opened.demux()))

    def seconds(count: int) -> float:
        comments = b"".join(_segment(0xFE, b"AVID%09d" % number) for number in range(count))
        taken = []
        for _ in range(3):
            began = time.process_time()
            assert JpegHeaderParser().parse(packet[:2] + comments + packet[2:]) is not None
            taken.append(time.process_time() - began)
        return min(taken)

    assert seconds(20_000) < 8 * seconds(5_000)  # formerly 30 times


def test_comment_markers_among_samples_are_bounded(tmp_path: Path) -> None:
    made = make_clip(tmp_path / "made.avi", "mjpeg", pixel_format="yuvj420p", frames=1)
    with av.open(str(made)) as opened:
        packet = bytes(next(opened.demux()))
    began = time.process_time()
    header = JpegHeaderParser().parse(packet[:-2] + b"\xff\xfe" * 500_000)
    assert time.process_time() - began < 2  # formerly 11
    assert header is not None
    assert header.settings_first


def test_each_scan_uses_its_codes() -> None:
    """DC and AC coefficients, and refinements of both, follow in separate scans."""
    one_part = bytes([1, 1, 0x00])
    codes = {kind: _segment(_CODES, bytes([kind, 1]) + bytes(16)) for kind in (0x00, 0x10)}
    first, others, more = (
        _segment(0xDA, one_part + kind) + b"\xff\0\xff\xd0\1"
        for kind in (b"\0\0\x01", b"\1\x3f\x01", b"\0\0\x10")
    )
    start = b"\xff\xd8" + _segment(_QUANTISERS, bytes(65))
    start += _segment(0xC2, b"\x08\0\x10\0\x10\1\1\x11\0")
    end = b"\xff\xd9"
    whole = start + codes[0x00] + first + codes[0x10] + others + more + end
    for packet, lacks in (
        (whole, False),
        (whole.replace(codes[0x10], b""), True),
        (whole.replace(codes[0x00], b""), True),
        (start + more + end, False),
    ):
        header = JpegHeaderParser().parse(packet)
        assert header is not None
        assert header.lacks_codes == lacks
        assert not header.lacks_quantizers


# --------------------------------------------------------------------------------------------------
# Side data of frames without a name in PyAV, such as EXIF


_START_OF_IMAGE = 2  # bytes


def _exif(orientation: int) -> bytes:
    """A JPEG segment with the orientation of an image."""
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = b"MM\0\x2a" + struct.pack(">IH", 8, 1) + entry + bytes(4)
    body = b"Exif\0\0" + tiff
    return b"\xff\xe1" + struct.pack(">H", 2 + len(body)) + body


def _with_exif(path: Path, orientation: int) -> Path:
    made = make_clip(path.with_suffix(".mkv"), "mjpeg", pixel_format="yuvj420p", frames=8)
    with av.open(str(made)) as source, av.open(str(path), "w") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        for packet in source.demux(old):
            if packet.size:
                jpeg = bytes(packet)
                turned = av.Packet(
                    jpeg[:_START_OF_IMAGE] + _exif(orientation) + jpeg[_START_OF_IMAGE:]
                )
                turned.pts, turned.dts = packet.pts, packet.dts
                turned.time_base, turned.is_keyframe = packet.time_base, True
                turned.stream = new
                target.mux(turned)
    return path


@pytest.mark.parametrize("name", ["a.mov", "a.avi"])
@pytest.mark.parametrize(
    ("orientation", "rotation", "is_mirrored"),
    [
        (1, 0, False),
        (2, 0, True),
        (3, 180, False),
        (4, 180, True),
        (5, 270, True),
        (6, 90, False),
        (7, 90, True),
        (8, 270, False),
    ],
)
def test_exif_orientation_is_applied(
    tmp_path: Path, name: str, orientation: int, rotation: int, is_mirrored: bool
) -> None:
    path = _with_exif(tmp_path / name, orientation)
    found = examine(path)
    assert (found.media.rotation, found.media.mirrored) == (rotation, is_mirrored)
    with decoder_for(path, found) as decoder:
        assert [checksum(frame) for _, frame in decoder.stream()] == pyav_checksums(path)


def test_exif_is_not_lost_silently(tmp_path: Path) -> None:
    path = _with_exif(tmp_path / "a.mov", 1)
    first = first_picture(path, examine(path).media)
    assert first is not None
    with pytest.raises(RefusedMediaError, match="EXIF"):
        require_kept_data(0, carried_data(first), {})
