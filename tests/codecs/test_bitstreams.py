"""Parsing the bytes of packets: NAL units, parameter sets, and the use of each packet."""

from __future__ import annotations

from pathlib import Path

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.clips import make_clip
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.packet_inspector import final_traits, inspector
from vfsd.codecs.bitstreams.picture_headers import PacketTrait
from vfsd.codecs.containers.detect_container import HEAD_BYTES, container_of, detect_container
from vfsd.errors import RefusedMediaError


def _read(path: Path) -> tuple[bytes, list[tuple[bytes, bool]]]:
    """Codec configuration, and the packets with their key flags."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [(bytes(p), p.is_keyframe) for p in container.demux(stream) if p.size]
        return stream.codec_context.extradata or b"", packets


@given(units=st.lists(st.binary(min_size=1, max_size=30), min_size=1, max_size=6))
def test_nal_units_round_trip(units: list[bytes]) -> None:
    prefixed = b"".join(len(unit).to_bytes(2, "big") + unit for unit in units)
    assert [prefixed[a:b] for a, b in nal.nal_units(prefixed, 2)] == units
    escaped = [unit.replace(b"\0", b"\1") for unit in units]
    for code in (b"\0\0\1", b"\0\0\0\1"):
        stream = b"".join(code + unit for unit in escaped) + b"\0\0"
        assert [stream[a:b] for a, b in nal.nal_units(stream, 0)] == escaped


@given(data=st.binary(max_size=60), prefix=st.sampled_from([0, 1, 2, 4]))
def test_arbitrary_bytes_are_units_or_damage(data: bytes, prefix: int) -> None:
    try:
        found = list(nal.nal_units(data, prefix))
    except nal.BitstreamError:
        return
    assert all(0 <= start < end <= len(data) for start, end in found)


@given(data=st.binary(max_size=80), codec=st.sampled_from(["h264", "hevc"]))
def test_arbitrary_configuration_parses_or_is_damaged(data: bytes, codec: str) -> None:
    for prefix in (b"", b"\1", b"\0\0\1"):
        try:
            sets = nal.parameter_sets(codec, prefix + data)
            for unit in sets:
                parse = nal.parse_hevc_sps if codec == "hevc" else nal.parse_h264_sps
                parse(unit)
        except nal.BitstreamError:
            pass


_STARTS = (
    *(b"\xff\xd8\xff" + bytes([kind]) for kind in (0xC0, 0xC4, 0xDA, 0xDB)),
    *(b"\x82\x49\x83\x42", b"\x10\0\0\x9d\x01\x2a", b"\x89PNG\r\n\x1a\n", bytes(4) + b"icpf"),
)
"""Packet prefixes that carry more information on their frames."""


@given(
    codec=st.sampled_from(["h264", "hevc", "vp8", "vp9", "av1", "mjpeg", "png", "prores"]),
    start=st.sampled_from([b"", *_STARTS]),
    packet=st.binary(max_size=80),
    key=st.booleans(),
)
def test_arbitrary_packets_have_traits(codec: str, start: bytes, packet: bytes, key: bool) -> None:
    inspect = inspector(codec, b"")
    assert inspect is not None
    assert inspect(start + packet, key) >= 0


@pytest.mark.parametrize(
    ("codec", "pixel_format", "chroma", "depth"),
    [
        ("libx264", "yuv420p", 1, 8),
        ("libx264", "yuv422p10le", 2, 10),
        ("libx264", "yuv444p", 3, 8),
        ("libx265", "yuv420p10le", 1, 10),
        ("libx265", "yuv422p", 2, 8),
    ],
)
def test_sequence_parameters(
    tmp_path: Path, codec: str, pixel_format: str, chroma: int, depth: int
) -> None:
    name = "hevc" if codec == "libx265" else "h264"
    options = {"x265-params": "log-level=none"} if name == "hevc" else {}
    path = make_clip(
        tmp_path / "a.mp4", codec, pixel_format=pixel_format, frames=3, options=options
    )
    extradata, _ = _read(path)
    assert nal.prefix_size(name, extradata) == 4
    sets = nal.parameter_sets(name, extradata)
    kinds = [nal.unit_type(name, unit) for unit in sets]
    assert kinds == ([32, 33, 34] if name == "hevc" else [7, 8])
    sequence = sets[kinds.index(33 if name == "hevc" else 7)]
    parse = nal.parse_hevc_sps if name == "hevc" else nal.parse_h264_sps
    told = parse(sequence)
    assert (told.chroma_format, told.luma_depth, told.chroma_depth) == (chroma, depth, depth)
    assert not told.has_fields


def test_interlaced_fields_are_detected(tmp_path: Path) -> None:
    options = {"x264-params": "interlaced=1", "flags": "+ildct+ilme"}
    path = make_clip(tmp_path / "a.mp4", "libx264", frames=3, options=options)
    extradata, _ = _read(path)
    assert nal.parse_h264_sps(nal.parameter_sets("h264", extradata)[0]).has_fields


@pytest.mark.parametrize(
    ("name", "codec", "starts", "resets", "leading"),
    [
        ("open-gop.mov", "h264", 4, 1, 0),  # H.264 does not mark leading frames
        ("open-gop.mkv", "hevc", 4, 1, 9),
        ("traffic.mp4", "h264", 4, 4, 0),
        ("odd-size.webm", "vp9", 3, 3, 0),
        ("av1.mp4", "av1", 3, 3, 0),
        ("mjpeg.avi", "mjpeg", 40, 40, 0),
    ],
)
def test_traits_of_clips(name: str, codec: str, starts: int, resets: int, leading: int) -> None:
    extradata, packets = _read(FOLDER / name)
    inspect = inspector(codec, extradata)
    assert inspect is not None
    traits = final_traits([inspect(packet, key) for packet, key in packets])

    def count(trait: int) -> int:
        return int((traits & trait != 0).sum())

    assert count(PacketTrait.STARTS) == starts
    assert count(PacketTrait.RESETS) == resets
    assert count(PacketTrait.LEADING) == leading
    assert (
        count(PacketTrait.ODD | PacketTrait.DAMAGED | PacketTrait.FOREIGN | PacketTrait.HIDDEN) == 0
    )


def test_only_exact_recovery_points_count(tmp_path: Path) -> None:
    options = {"x264-params": "keyint=10:min-keyint=10:scenecut=0:intra-refresh=1"}
    extradata, packets = _read(make_clip(tmp_path / "a.mp4", "libx264", options=options))
    inspect = inspector("h264", extradata)
    assert inspect is not None
    keys = [inspect(packet, key) for packet, key in packets if key]
    assert keys[0] & PacketTrait.STARTS
    assert all(traits & PacketTrait.ODD and not traits & PacketTrait.STARTS for traits in keys[1:])


def test_frames_of_lower_sublayers_may_be_references() -> None:
    lower = PacketTrait.UNREFERENCED
    upper = PacketTrait.UNREFERENCED | 0x1000
    assert final_traits([lower, lower]).tolist() == [PacketTrait.UNREFERENCED] * 2
    assert final_traits([lower, upper]).tolist() == [0, upper]


def test_encoder_is_detected_in_the_first_packet(tmp_path: Path) -> None:
    _, packets = _read(make_clip(tmp_path / "a.mp4", "libx264", frames=2))
    build = nal.x264_build(packets[0][0])
    assert build is not None
    assert build > 150
    assert nal.x264_build(packets[1][0]) is None
    assert nal.x264_build(b"") is None


@given(head=st.binary(max_size=300))
def test_arbitrary_header_is_a_container_or_refused(head: bytes) -> None:
    try:
        found = detect_container(head)
    except RefusedMediaError:
        return
    assert container_of(found.name) is found


@pytest.mark.parametrize(
    ("name", "container"),
    [
        ("traffic.mp4", "mp4"),
        ("open-gop.mov", "mov"),
        ("open-gop.mkv", "matroska"),
        ("odd-size.webm", "webm"),
        ("mjpeg.avi", "avi"),
        ("transport.ts", "mpegts"),
        ("elementary.h264", "h264"),
    ],
)
def test_containers_are_detected_by_their_bytes(name: str, container: str) -> None:
    with (FOLDER / name).open("rb") as file:
        assert detect_container(file.read(HEAD_BYTES)).name == container


@pytest.mark.parametrize("suffix", ["mpg", "m2v", "m4v", "hevc", "flv", "ivf", "ogv", "y4m"])
def test_containers_of_generated_clips(tmp_path: Path, suffix: str) -> None:
    codecs = {
        "mpg": ("mpeg2video", "mpegps"),
        "m2v": ("mpeg2video", "mpegvideo"),
        "m4v": ("mpeg4", "m4v"),
        "hevc": ("libx265", "hevc"),
        "flv": ("flv", "flv"),
        "ivf": ("libvpx-vp9", "ivf"),
        "ogv": ("ffv1", "ogg"),
        "y4m": ("wrapped_avframe", "y4m"),
    }
    codec, container = codecs[suffix]
    if suffix in ("ogv", "y4m"):
        head = b"OggS\0" + bytes(50) if suffix == "ogv" else b"YUV4MPEG2 W2 H2\n"
    else:
        options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
        form = "m4v" if suffix == "m4v" else None
        path = make_clip(tmp_path / f"a.{suffix}", codec, frames=3, options=options, container=form)
        head = path.read_bytes()[:HEAD_BYTES]
    assert detect_container(head).name == container
