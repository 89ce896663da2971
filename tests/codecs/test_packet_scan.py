"""Frame tables from a packet scan equal those from a full decode."""

from __future__ import annotations

import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.packet import Packet

from tests.support.clips import remuxed
from tests.support.ffmpeg_reference import checksum, decoder_for, pyav_checksums
from tests.support.selection import one_in
from vfsd.codecs.probing.probe import Examination, examine
from vfsd.core.frame_table_pages import PacketFlag

_B = ("-bf", "2", "-g", "12", "-sc_threshold", "1000000000")
_ALTREF = ("-auto-alt-ref", "1", "-lag-in-frames", "16", "-g", "20")
_KINDS: dict[str, tuple[str, ...]] = {
    "mpeg1.mpg": ("mpeg1video", *_B),
    "mpeg1.m1v": ("mpeg1video", *_B),
    "mpeg1.avi": ("mpeg1video", *_B),
    "mpeg2.mpg": ("mpeg2video", *_B),
    "mpeg2.ts": ("mpeg2video", *_B),
    "mpeg2.mkv": ("mpeg2video", *_B),
    "mpeg2.mp4": ("mpeg2video", *_B),
    "mpeg2.avi": ("mpeg2video", *_B),
    "closed.mpg": ("mpeg2video", *_B, "-flags", "+cgop"),
    "interlaced.ts": ("mpeg2video", *_B, "-flags", "+ilme+ildct"),
    "no-delay.avi": ("mpeg2video", "-g", "12", "-flags", "+low_delay"),
    "mpeg4.avi": ("mpeg4", *_B),
    "mpeg4.mp4": ("mpeg4", *_B),
    "mpeg4.mkv": ("mpeg4", *_B),
    "mpeg4.ts": ("mpeg4", *_B),
    "mpeg4-p.avi": ("mpeg4", "-g", "12"),
    "mpeg4-q.avi": ("mpeg4", *_B, "-flags", "+qpel+mv4"),
    "ffv1.mkv": ("ffv1", "-level", "3", "-g", "10"),
    "ffv1-1.avi": ("ffv1", "-level", "1", "-g", "10"),
    "theora.ogv": ("libtheora", "-g", "10"),
    "theora.mkv": ("libtheora", "-g", "10"),
    "vp8.webm": ("libvpx", *_ALTREF),
    "vp8.avi": ("libvpx", *_ALTREF),
    "vp9.avi": ("libvpx-vp9", *_ALTREF),
    "mjpeg.avi": ("mjpeg",),
    "prores.mov": ("prores_ks",),
    "flv1.flv": ("flv1", "-g", "12"),
    "msmpeg4v2.avi": ("msmpeg4v2", "-g", "12"),
    "msmpeg4v3.avi": ("msmpeg4", "-g", "12"),
    "wmv1.avi": ("wmv1", "-g", "12"),
    "wmv2.avi": ("wmv2", "-g", "12"),
}
_GROUP = b"\0\0\1\xb8"
_SOURCE = "testsrc2=size=96x64:rate=25:duration=2.4"


def ffmpeg(*arguments: str | Path) -> None:
    command = shutil.which("ffmpeg")
    if command is None:
        pytest.skip("there is no ffmpeg command")
    subprocess.run([command, "-nostdin", "-v", "error", *arguments], check=True)


def encoded(path: Path, codec: str, *options: str) -> Path:
    ffmpeg("-f", "lavfi", "-i", _SOURCE, "-c:v", codec, *options, path)
    return path


def assert_same_as_decoded(path: Path) -> Examination:
    """The table from packets, which must equal that of a full decode without being one."""
    found = examine(path)
    assert not found.verified, found.notes
    proven = examine(path, full=True)
    assert proven.verified
    assert found.media == proven.media
    assert found.access == proven.access
    assert found.order.tolist() == proven.order.tolist()
    assert found.end_pts == proven.end_pts
    for name in ("pts", "dts", "position", "size", "flags"):
        told, shown = getattr(found.columns, name), getattr(proven.columns, name)
        assert told.tolist() == shown.tolist(), name
    with decoder_for(path, found) as decoder:
        assert [checksum(frame) for _, frame in decoder.stream()] == pyav_checksums(path)
    return found


@pytest.mark.parametrize("name", one_in(4, _KINDS))
def test_table_by_packets(name: str, tmp_path: Path) -> None:
    found = assert_same_as_decoded(encoded(tmp_path / name, *_KINDS[name]))
    assert len(found.order) == 60


@pytest.mark.parametrize(
    "codec", one_in(3, ["mpeg4", "mpeg2video", "prores_ks", "libx264", "libx265"])
)
def test_edit_list_cut(codec: str, tmp_path: Path) -> None:
    whole = encoded(tmp_path / "whole.mov", codec, "-g", "12", "-bf", "2")
    path = tmp_path / "cut.mov"
    ffmpeg("-ss", "0.7", "-t", "1", "-i", whole, "-c", "copy", path)
    found = assert_same_as_decoded(path)
    assert found.media.edit_list


def test_repeated_edit_list_is_decoded(tmp_path: Path) -> None:
    """An edit list that shows a part twice cannot be evaluated from packets alone."""
    whole = encoded(tmp_path / "whole.mov", "mpeg4", "-g", "12")
    data = whole.read_bytes()
    at = data.index(b"elst")
    version, count = data[at + 4], int.from_bytes(data[at + 8 : at + 12], "big")
    assert (version, count) == (0, 1)
    entry = data[at + 12 : at + 24]
    half = (int.from_bytes(entry[:4], "big") // 2).to_bytes(4, "big")
    twice = half + entry[4:]
    grown = data[: at + 8] + (2).to_bytes(4, "big") + twice + twice + data[at + 24 :]
    for kind in (b"moov", b"trak", b"edts", b"elst"):
        place = grown.index(kind) - 4
        size = int.from_bytes(grown[place : place + 4], "big") + 12
        grown = grown[:place] + size.to_bytes(4, "big") + grown[place + 4 :]
    path = tmp_path / "twice.mov"
    path.write_bytes(grown)
    # otherwise the listed samples would have moved
    assert data.index(b"mdat") < data.index(b"moov")
    assert examine(path).verified


def test_dropped_frames_in_avi(tmp_path: Path) -> None:
    """Frames dropped by the encoder leave gaps in the times."""
    path = tmp_path / "gaps.avi"
    select = ("-vf", "select=not(eq(mod(n\\,5)\\,3))", "-fps_mode", "vfr", "-enc_time_base", "1:25")
    found = assert_same_as_decoded(encoded(path, "mpeg4", "-g", "12", *select))
    assert len(found.order) == 48
    steps = np.diff(found.columns.pts[found.order])
    assert set(steps.tolist()) == {1, 2}


def not_coded(head: bytes) -> bytes:
    """An MPEG-4 VOP marked as not coded, with the time of another VOP's header."""
    bits = f"{int.from_bytes(head, 'big'):0{8 * len(head)}b}"
    end = bits.index("0", 2) + 1 + 1 + _TICK_BITS + 1
    told = f"01{bits[2:end]}0"  # the rest is padding
    told += "0" + "1" * (-(len(told) + 1) % 8)
    return _VOP + int(told, 2).to_bytes(len(told) // 8, "big")


_TICK_BITS = 5
"""The number of bits for a tick, at 25 ticks a second."""
_VOP = b"\0\0\1\xb6"


def test_vops_not_coded(tmp_path: Path) -> None:
    made = encoded(tmp_path / "made.mkv", "mpeg4", "-g", "60")
    path = remuxed(
        made,
        tmp_path / "a.mkv",
        lambda number, data: not_coded(data[4:12]) if number % 7 == 5 else data,
        lambda number: number == 0,
    )
    found = assert_same_as_decoded(path)
    assert (found.columns.flags & PacketFlag.HIDDEN != 0).sum() == len(range(5, 60, 7))


def packed(made: Path, path: Path) -> Path:
    """B-frames in the packet of the frame that they precede in display order."""
    told = b"\0\0\1\xb2DivX503b1393p"
    with av.open(str(made)) as source, av.open(str(path), "w") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        packets = [bytes(packet) for packet in source.demux(old) if packet.size]
        kinds = [data[data.index(_VOP) + 4] >> 6 for data in packets]
        moved = list(packets)
        moved[0] = moved[0].replace(_VOP, told + _VOP, 1)
        for at, kind in enumerate(kinds):
            following = next((n for n in range(at + 1, len(kinds)) if kinds[n] != 2), len(kinds))
            if kind != 2 and following > at + 1:
                moved[at] += packets[at + 1]
                moved[at + 1 : following - 1] = packets[at + 2 : following]
                moved[following - 1] = not_coded(packets[at].partition(_VOP)[2][:8])
        for number, data in enumerate(moved):
            packet = Packet(len(data))
            packet.update(data)
            packet.dts = number
            packet.time_base = Fraction(1, 25)
            packet.stream = new
            packet.is_keyframe = kinds[number] == 0
            target.mux(packet)
    return path


@pytest.mark.parametrize("between", [1, 2])
def test_packed_b_frames(between: int, tmp_path: Path) -> None:
    made = encoded(tmp_path / "made.avi", "mpeg4", "-g", "12", "-bf", str(between))
    path = packed(made, tmp_path / "packed.avi")
    found = assert_same_as_decoded(path)
    assert len(found.order) == 60


def test_start_between_key_frames(tmp_path: Path) -> None:
    """Frames before the first key frame are not shown."""
    whole = encoded(tmp_path / "whole.ts", "mpeg2video", *_B)
    data = whole.read_bytes()
    packets = [data[at : at + 188] for at in range(0, len(data), 188)]
    path = tmp_path / "late.ts"
    path.write_bytes(b"".join(packets[:3] + packets[len(packets) // 6 :]))
    found = examine(path)
    proven = examine(path, full=True)
    assert found.order.tolist() == proven.order.tolist()
    assert found.columns.pts.tolist() == proven.columns.pts.tolist()


@pytest.mark.parametrize("name", ["a.m2v", "a.mpg", "a.mxf"])
def test_groups_that_claim_to_be_closed_may_need_the_one_before(tmp_path: Path, name: str) -> None:
    path = encoded(tmp_path / name, "mpeg2video", *_B)
    honest = examine(path).columns
    data = bytearray(path.read_bytes())
    at = data.find(_GROUP)
    while at >= 0:
        data[at + 7] |= 0x40
        at = data.find(_GROUP, at + 4)
    path.write_bytes(data)
    told = assert_same_as_decoded(path).columns
    assert told.flags.tolist() == honest.flags.tolist()
    assert (told.flags & PacketFlag.LEADING).any()


def test_lying_packets_are_decoded(tmp_path: Path) -> None:
    """A packet with an undecodable frame is noticed when it is tried."""
    made = encoded(tmp_path / "made.avi", "mpeg4", "-g", "12")

    def broken(number: int, data: bytes) -> bytes:
        return data[: data.index(_VOP) + 8] if number == 59 else data

    path = remuxed(made, tmp_path / "a.avi", broken, lambda number: number % 12 == 0)
    found = examine(path)
    proven = examine(path, full=True)
    assert found.order.tolist() == proven.order.tolist()


# -------------------------------------------------------------------------------- field pictures

_TYPES = {"I": (1, ""), "P": (2, "0111"), "B": (3, "01110111")}
_MACROBLOCKS = {"I": "1", "P": "00011", "B": "00011"}
_TOP, _BOTTOM = 1, 2


def _bytes(bits: str) -> bytes:
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def _bits(*fields: tuple[int, int]) -> str:
    """Bits of (number, width) pairs."""
    return "".join(f"{number:0{count}b}" for number, count in fields)


def _sequence() -> bytes:
    """A sequence header for 32x32 interlaced frames at 25 fps."""
    head = _bits((32, 12), (32, 12), (1, 4), (3, 4), (1000, 18), (1, 1), (20, 10), (0, 3))
    more = _bits((1, 4), (0x48, 8), (0, 1), (1, 2), (0, 4), (0, 12), (1, 1), (0, 8), (0, 1), (0, 7))
    return b"\0\0\1\xb3" + _bytes(head) + b"\0\0\1\xb5" + _bytes(more)


def _group(is_closed: bool) -> bytes:
    return b"\0\0\1\xb8" + _bytes(_bits((0, 12), (1, 1), (0, 12), (int(is_closed), 1), (0, 1)))


def _field(kind: str, place: int, structure: int, brightness: int) -> bytes:
    """An intra-coded picture of two macroblocks, each of one color."""
    number, vectors = _TYPES[kind]
    header = _bits((place, 10), (number, 3), (0xFFFF, 16)) + vectors + "0"
    codes = (15, 15, 15, 15) if kind == "I" else (1, 1, *((1, 1) if kind == "B" else (15, 15)))
    coding = _bits((8, 4), *((code, 4) for code in codes), (0, 2), (structure, 2), (0, 10), (0, 2))
    blocks = f"1110{brightness + 16:05b}10" + "10010" * 3 + "0010" * 2
    slices = "00100" + "0" + ("1" + _MACROBLOCKS[kind] + blocks) * 2
    parts = (
        *(b"\0\0\1\0", _bytes(header), b"\0\0\1\xb5", _bytes(coding)),
        *(b"\0\0\1\1", _bytes(slices)),
    )
    return b"".join(parts)


def field_stream(groups: int) -> bytes:
    """GOPs of I, B, B, P, B, B in decode order, with both fields of each frame as pictures."""
    data = b""
    for group in range(groups):
        data += _sequence() + _group(is_closed=group == 0)
        order = [("I", 2), ("B", 0), ("B", 1), ("P", 5), ("B", 3), ("B", 4)]
        if group == 0:
            order = [("I", 0), ("P", 3), ("B", 1), ("B", 2)]
        for kind, place in order:
            second = "P" if kind == "I" else kind
            data += _field(kind, place, _TOP, (place + group) % 16)
            data += _field(second, place, _BOTTOM, (place + group) % 15)
    return data + b"\0\0\1\xb7"


@pytest.mark.parametrize("name", ["a.m2v", "a.ts", "a.mpg", "a.mkv"])
def test_field_pictures(name: str, tmp_path: Path) -> None:
    made = tmp_path / "made.m2v"
    made.write_bytes(field_stream(8))
    path = tmp_path / name
    ffmpeg("-fflags", "+genpts", "-i", made, "-c", "copy", path)
    found = assert_same_as_decoded(path)
    assert len(found.order) == 4 + 7 * 6
    assert found.media.interlaced
