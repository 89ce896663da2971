"""Clips of one second with one additional stream: subtitles, data, attachments, chapters,
covers."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.container import OutputContainer
from av.packet import Packet
from av.stream import Disposition, Stream
from av.subtitles.codeccontext import SubtitleCodecContext

from tests.support.clips import pictures
from vfsd.codecs.pyav import open_output

_FRAMES, _RATE, _WIDTH, _HEIGHT = 12, 25, 96, 64
_MILLISECONDS = Fraction(1, 1000)

_ASS_HEADER = b"""[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name
Style: Default

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""

# Payloads as the containers store them.
_LINE = "Grüße".encode()
_ASS_LINE = b"0,0,Default,,0,0,0,," + _LINE
_MOV_LINE = struct.pack(">H", len(_LINE)) + _LINE
_TTML = b"""<?xml version="1.0" encoding="utf-8"?>
<tt xmlns="http://www.w3.org/ns/ttml" xml:lang="de"><body><div>
<p begin="00:00:00.000" end="00:00:00.200">line</p></div></body></tt>"""
_WVTT = struct.pack(">I4sI4s", 12 + len(_LINE) + 4, b"vttc", 8 + len(_LINE), b"payl") + _LINE
_CAPTION = bytes.fromhex("0000000a63646174942c942f")  # a box of EIA-608
_KLV = bytes.fromhex("060e2b34020b01010e01030101000000") + b"\x0a" + bytes(10)
_ID3 = b"ID3\x04\0\0\0\0\0\x0fTIT2\0\0\0\x05\0\0\x03line"
_SCTE_35 = bytes.fromhex("fc301100000000000000fffff00000000000007a4fbfff")
_GPMF = b"DEVC" + struct.pack(">BBH", 0, 1, 8) + b"DVID" + struct.pack(">cBH", b"L", 4, 0)
_ANCILLARY = bytes.fromhex("0001000904010000000a0000000100000010") + bytes(16)


def _pgs() -> bytes:
    """A display set of Blu-ray subtitles: one object of 2x1 pixels."""
    segments = (
        (0x16, struct.pack(">HHBHBBBB", _WIDTH, _HEIGHT, 0x10, 0, 0x80, 0, 0, 1)),
        (0x17, struct.pack(">BBHHHH", 1, 0, 0, 0, 2, 1)),
        (0x14, struct.pack(">BBBBBBB", 0, 0, 1, 235, 128, 128, 255)),
        (0x15, struct.pack(">HBBBHHH", 0, 0, 0xC0, 0, 8, 2, 1) + b"\x01\x01\0\0"),
        (0x80, b""),
    )
    return b"".join(struct.pack(">BH", kind, len(body)) + body for kind, body in segments)


def _vobsub() -> bytes:
    """A DVD subpicture of 2x2 pixels, shown at once."""
    pixels = b"\x40\x40"
    control = bytes.fromhex("0000") + struct.pack(">H", 4 + len(pixels))
    control += bytes.fromhex("01 03 3210 04 ffff 05 000001000001 06 0004 0005 ff")
    return struct.pack(">HH", 4 + len(pixels) + len(control), 4 + len(pixels)) + pixels + control


_DVB = bytes.fromhex("0f100001 0002 0500 0f800001 0000".replace(" ", ""))
_TELETEXT = b"\x10" + (b"\x02\x2c" + bytes(44)) * 3
_JPEG_SIZE = 32


def _jpeg() -> bytes:
    """A cover image."""
    encoder = av.CodecContext.create("mjpeg", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width = encoder.height = _JPEG_SIZE
    encoder.pix_fmt, encoder.time_base = "yuvj420p", Fraction(1, 25)
    frame = av.VideoFrame(_JPEG_SIZE, _JPEG_SIZE, "yuvj420p")
    for plane in frame.planes:
        plane.update(bytes(plane.buffer_size))
    return bytes(encoder.encode(frame)[0])


def _picture_block() -> str:
    """A cover as Ogg comments store it."""
    kind, jpeg = b"image/jpeg", _jpeg()
    head = struct.pack(">II", 3, len(kind)) + kind
    size = struct.pack(">IIIII", 0, _JPEG_SIZE, _JPEG_SIZE, 24, 0)
    return b64encode(head + size + struct.pack(">I", len(jpeg)) + jpeg).decode()


@dataclass(frozen=True, slots=True)
class Packets:
    """A stream of equal packets."""

    codec: str
    payload: bytes
    #: Whether its encoder makes the header; such streams need one.
    encoder: bool = False
    #: Frames from one packet to the next.
    step: int = 6


@dataclass(frozen=True, slots=True)
class Clip:
    """A recipe for a clip, and its expected streams besides the video."""

    suffix: str
    add: Packets | Callable[[OutputContainer], None] | None = None
    found: tuple[tuple[str, str], ...] = ()  #: (kind, codec) of each other stream
    video: str = "libx264"
    muxer: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)  #: of the video
    patch: Callable[[bytes], bytes] | None = None

    def make(self, folder: Path, name: str) -> Path:
        """Write the clip."""
        path = folder / f"{name}.{self.suffix}"
        muxer = self.muxer or _MUXERS[self.suffix]
        with open_output(str(path), format=muxer, options=self.options) as output:
            video = output.add_stream(self.video, rate=_RATE, options=_options(self.video))
            assert isinstance(video, av.VideoStream)
            video.width, video.height, video.pix_fmt = _WIDTH, _HEIGHT, "yuv420p"
            video.thread_count = 1
            video.metadata.update(self.tags)
            side = _added(output, self.add) if isinstance(self.add, Packets) else None
            if callable(self.add):
                self.add(output)
            for at, frame in enumerate(pictures(_FRAMES, _WIDTH, _HEIGHT)):
                frame.pts, frame.time_base = at, Fraction(1, _RATE)
                output.mux(video.encode(frame))
                if isinstance(self.add, Packets) and side is not None and not at % self.add.step:
                    output.mux(_packet(side, self.add.payload, at * 1000 // _RATE))
            output.mux(video.encode(None))
        if self.patch is not None:
            path.write_bytes(self.patch(path.read_bytes()))
        return path


def _options(codec: str) -> dict[str, str]:
    return {"libx264": {"preset": "ultrafast", "bf": "2"}, "libvpx": {"cpu-used": "8"}}.get(
        codec, {}
    )


def _added(output: OutputContainer, kind: Packets) -> Stream:
    if not kind.encoder:
        sized = {"width": _WIDTH, "height": _HEIGHT} if kind.codec == "mjpeg" else {}
        return output.add_mux_stream(kind.codec, **sized)
    stream = output.add_stream(kind.codec)
    context = stream.codec_context
    assert isinstance(context, SubtitleCodecContext)
    if kind.codec != "dvdsub":
        context.subtitle_header = _ASS_HEADER
    return stream


def _packet(stream: Stream, payload: bytes, at: int) -> Packet[Stream]:
    packet = Packet(payload)
    packet.stream, packet.time_base = stream, _MILLISECONDS
    packet.pts = packet.dts = at
    packet.duration = 200
    packet.is_keyframe = True
    return packet


def _attach(name: str, kind: str, data: bytes) -> Callable[[OutputContainer], None]:
    def add(output: OutputContainer) -> None:
        output.add_attachment(name, kind, data)

    return add


def _add_chapters(output: OutputContainer) -> None:
    chapters: list[Any] = [
        {
            "id": number,
            "start": 200 * number,
            "end": 200 * number + 200,
            "time_base": _MILLISECONDS,
            "metadata": {"title": f"Teil {number}"},
        }
        for number in range(2)
    ]
    output.set_chapters(chapters)


def _add_cover(output: OutputContainer) -> None:
    cover = output.add_mux_stream("mjpeg", width=_JPEG_SIZE, height=_JPEG_SIZE)
    cover.disposition = Disposition.attached_pic
    output.mux(_packet(cover, _jpeg(), 0))


def _renamed(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """A patch of the type in a sample entry or a handler."""

    def patch(data: bytes) -> bytes:
        assert old in data
        return data.replace(old, new)

    return patch


def _as_quicktime(kind: bytes) -> Callable[[bytes], bytes]:
    """A patch that makes a QuickTime file, which no muxer writes with such a stream."""

    def patch(data: bytes) -> bytes:
        data = _renamed(b"ftypisom", b"ftypqt  ")(data)
        return _renamed(b"gpmd", kind)(data)

    return patch


def _with_flv_tags(data: bytes) -> bytes:
    """Script tags of subtitles and of telemetry between the header and the first packet."""
    header = 13

    def text(value: bytes) -> bytes:
        return struct.pack(">H", len(value)) + value

    def tag(name: bytes, values: Mapping[bytes, bytes]) -> bytes:
        pairs = b"".join(text(k) + b"\x02" + text(v) for k, v in values.items())
        body = b"\x02" + text(name) + b"\x08" + struct.pack(">I", len(values)) + pairs + b"\0\0\x09"
        made = b"\x12" + len(body).to_bytes(3, "big") + bytes(7) + body
        return made + struct.pack(">I", len(made))

    lines = tag(b"onTextData", {b"type": b"Text", b"text": _LINE})
    return data[:header] + lines + tag(b"onCuePoint", {b"name": b"x"}) + data[header:]


def _gab2() -> bytes:
    """AVI subtitles: a SubRip file in one packet."""
    lines = b"1\r\n00:00:00,000 --> 00:00:00,200\r\n" + _LINE + b"\r\n\r\n"
    name = "line".encode("utf-16-le") + b"\0\0"
    head = b"GAB2\0" + struct.pack("<HI", 2, len(name)) + name
    return head + struct.pack("<HI", 4, len(lines)) + lines


def _second_handler(kind: bytes) -> Callable[[bytes], bytes]:
    """A patch of the type of the second stream in an AVI."""

    def patch(data: bytes) -> bytes:
        first = data.index(b"strh")
        second = data.index(b"strh", first + 4) + 8
        return data[:second] + kind + data[second + 4 :]

    return patch


def _ogg_page(serial: int, sequence: int, flags: int, payload: bytes) -> bytes:
    head = struct.pack("<4sBBqIII", b"OggS", 0, flags, 0, serial, sequence, 0)
    page = head + bytes((1, len(payload))) + payload
    checksum = 0
    for byte in page:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (
                checksum << 1 ^ 0x04C11DB7 if checksum >> 31 else checksum << 1
            ) & 0xFFFFFFFF
    return page[:22] + struct.pack("<I", checksum) + page[26:]


def _with_ogg_stream(head: bytes) -> Callable[[bytes], bytes]:
    """A patch that adds a logical stream of two packets."""

    def patch(data: bytes) -> bytes:
        second = data.index(b"OggS", 4)
        third = data.index(b"OggS", second + 4)
        begin = _ogg_page(77, 0, 2, head)
        end = _ogg_page(77, 1, 4, _KLV)
        return data[:second] + begin + data[second:third] + end + data[third:]

    return patch


_MUXERS = {
    "mp4": "mp4",
    "mov": "mov",
    "mkv": "matroska",
    "webm": "webm",
    "ts": "mpegts",
    "mpg": "vob",
    "flv": "flv",
    "avi": "avi",
    "ogv": "ogg",
    "mxf": "mxf",
    "nut": "nut",
}


def _subtitle(codec: str) -> tuple[tuple[str, str], ...]:
    return (("subtitle", codec),)


_DATA = (("data", "unknown"),)
_ATTACHED = (("attachment", "unknown"),)
_SUBRIP = Packets("subrip", _LINE, encoder=True)
_ASS = Packets("ass", _ASS_LINE, encoder=True)
_WEBVTT = Packets("webvtt", _LINE, encoder=True)
_MOV_TEXT = Packets("mov_text", _MOV_LINE, encoder=True)
_BINARY = Packets("bin_data", _GPMF)
_MPEG_2 = "mpeg2video"
_COVER = (("cover", "mjpeg"),)

CLIPS: Mapping[str, Clip] = {
    # -- subtitles
    "subrip": Clip("mkv", _SUBRIP, _subtitle("subrip")),
    "ass": Clip("mkv", _ASS, _subtitle("ass")),
    "webvtt": Clip("mkv", _WEBVTT, _subtitle("webvtt")),
    "webvtt-webm": Clip("webm", _WEBVTT, _subtitle("webvtt"), video="libvpx"),
    "pgs": Clip("mkv", Packets("hdmv_pgs_subtitle", _pgs()), _subtitle("hdmv_pgs_subtitle")),
    "hdmv-text": Clip("mkv", Packets("hdmv_text_subtitle", _LINE), _subtitle("unknown")),
    "vobsub": Clip("mkv", Packets("dvdsub", _vobsub(), encoder=True), _subtitle("dvd_subtitle")),
    "dvb": Clip("mkv", Packets("dvb_subtitle", _DVB), _subtitle("dvb_subtitle")),
    "unknown-subtitles": Clip(
        "mkv", _SUBRIP, _subtitle("unknown"), patch=_renamed(b"S_TEXT/UTF8", b"S_TEXT/UTF9")
    ),
    "mov-text": Clip("mp4", _MOV_TEXT, _subtitle("mov_text")),
    "mov-text-mov": Clip("mov", _MOV_TEXT, _subtitle("mov_text")),
    "mov-text-fragments": Clip(
        "mp4",
        _MOV_TEXT,
        _subtitle("mov_text"),
        options={"movflags": "frag_keyframe+empty_moov+default_base_moof"},
    ),
    "vobsub-mp4": Clip(
        "mp4", Packets("dvdsub", _vobsub(), encoder=True), _subtitle("dvd_subtitle")
    ),
    "stpp": Clip("mp4", Packets("ttml", _TTML), _subtitle("unknown")),
    "wvtt": Clip("mp4", Packets("mov_text", _WVTT), _DATA, patch=_renamed(b"tx3g", b"wvtt")),
    "eia-608": Clip("mov", Packets("eia_608", _CAPTION), _subtitle("eia_608")),
    "dvb-ts": Clip("ts", Packets("dvb_subtitle", _DVB), _subtitle("dvb_subtitle")),
    "teletext": Clip("ts", Packets("dvb_teletext", _TELETEXT), _subtitle("unknown")),
    "pgs-m2ts": Clip(
        "ts",
        Packets("hdmv_pgs_subtitle", _pgs()),
        _subtitle("hdmv_pgs_subtitle"),
        options={"mpegts_m2ts_mode": "1"},
    ),
    "vobsub-vob": Clip(
        "mpg", Packets("dvd_subtitle", _vobsub()), _subtitle("dvd_subtitle"), video=_MPEG_2
    ),
    "flv-text": Clip("flv", None, _subtitle("text"), patch=_with_flv_tags),
    "avi-text": Clip(
        "avi",
        Packets("mjpeg", _gab2()),
        _subtitle("subrip"),
        video="mpeg4",
        patch=_second_handler(b"txts"),
    ),
    "avi-xsub": Clip(
        "avi",
        Packets("mjpeg", bytes(64)),
        _subtitle("xsub"),
        video="mpeg4",
        patch=_renamed(b"MJPG", b"DXSB"),
    ),
    "ogg-kate": Clip(
        "ogv",
        None,
        (("unknown", "unknown"),),
        video="libvpx",
        patch=_with_ogg_stream(b"\x80kate\0\0\0" + bytes(56)),
    ),
    "eia-608-mxf": Clip("mxf", Packets("eia_608", _CAPTION, step=1), _DATA, video=_MPEG_2),
    "ass-nut": Clip("nut", _ASS, _subtitle("ass"), video="mpeg4"),
    "dvb-nut": Clip("nut", Packets("dvb_subtitle", _DVB), _subtitle("dvb_subtitle"), video="mpeg4"),
    "vobsub-nut": Clip(
        "nut", Packets("dvdsub", _vobsub(), encoder=True), _subtitle("dvd_subtitle"), video="mpeg4"
    ),
    "teletext-nut": Clip(
        "nut", Packets("dvb_teletext", _TELETEXT), _subtitle("unknown"), video="mpeg4"
    ),
    "text-nut": Clip("nut", Packets("text", _LINE), _subtitle("text"), video="mpeg4"),
    # -- data
    "ancillary": Clip("mxf", Packets("smpte_436m_anc", _ANCILLARY, step=1), _DATA, video=_MPEG_2),
    "gopro": Clip("mp4", _BINARY, _DATA),
    "binary-mov": Clip("mp4", _BINARY, _DATA, patch=_as_quicktime(b"gpmd")),
    "camm": Clip("mp4", _BINARY, _DATA, patch=_renamed(b"gpmd", b"camm")),
    "mebx": Clip("mp4", _BINARY, _DATA, patch=_as_quicktime(b"mebx")),
    "rtmd": Clip("mp4", _BINARY, _DATA, patch=_renamed(b"gpmd", b"rtmd")),
    "private": Clip("ts", Packets("bin_data", _GPMF), _DATA),
    "avi-data": Clip(
        "avi",
        Packets("mjpeg", _LINE),
        _DATA,
        video="mpeg4",
        patch=_second_handler(b"dats"),
    ),
    "skeleton": Clip(
        "ogv",
        None,
        _DATA,
        video="libvpx",
        patch=_with_ogg_stream(b"fishead\0\3\0\0\0" + bytes(52)),
    ),
    "klv": Clip("ts", Packets("klv", _KLV), _DATA),
    "id3": Clip("ts", Packets("timed_id3", _ID3), _DATA),
    "scte-35": Clip("ts", Packets("scte_35", _SCTE_35), _DATA),
    # -- attachments, chapters, covers
    "font": Clip("mkv", _attach("a.ttf", "font/ttf", bytes(64)), _ATTACHED),
    "file": Clip("mkv", _attach("a.bin", "application/x-some", b"x"), _ATTACHED),
    "picture": Clip("mkv", _attach("cover.jpg", "image/jpeg", _jpeg()), _COVER),
    "cover": Clip("mp4", _add_cover, _COVER),
    "cover-ogg": Clip(
        "ogv", None, _COVER, video="libvpx", tags={"metadata_block_picture": _picture_block()}
    ),
    "chapters": Clip("mp4", _add_chapters, _DATA),
    "chapters-mov": Clip("mov", _add_chapters, _DATA),
    "chapters-mkv": Clip("mkv", _add_chapters),
    "chapters-webm": Clip("webm", _add_chapters, video="libvpx"),
    "chapters-nut": Clip("nut", _add_chapters, video="mpeg4"),
    "chapters-ogg": Clip("ogv", _add_chapters, video="libvpx"),
    # -- time codes
    "timecode": Clip("mov", None, _DATA, tags={"timecode": "01:02:03:04"}),
    "timecode-mp4": Clip(
        "mp4", None, _DATA, tags={"timecode": "01:02:03:04"}, options={"write_tmcd": "1"}
    ),
    "timecode-mxf": Clip("mxf", None, video=_MPEG_2, tags={"timecode": "01:02:03:04"}),
    "timecode-mkv": Clip("mkv", None, tags={"timecode": "01:02:03:04"}),
}
