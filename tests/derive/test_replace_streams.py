"""Replacing an original keeps everything in the file besides samples, or refuses and names it.

A replacement carries tracks of time codes, chapters and telemetry as they are.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.support.replaceable_clips import time_coded_clip
from tests.support.selection import one_in
from tests.support.side_data_clips import (
    element,
    fast_start,
    noisy_clip,
    sei,
    spherical,
    value_at,
    with_box,
    with_element,
)
from vfsd.api.store import Store
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import BitWriter
from vfsd.codecs.containers.tracks import make_box, make_full_box
from vfsd.codecs.inventory.file_inventory import take_inventory
from vfsd.derive.reencode import VideoReencoder
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError
from vfsd.maintenance import fsck

ENTRY = "moov/trak/mdia/minf/stbl/stsd/avc1"
XMP = bytes.fromhex("be7acfcb97a942e89c71999491e3afac") + b"<x:xmpmeta/>"
REPLACEABLE = "original=replaceable,psnr=20"
FREEFORM = make_box(
    b"----",
    make_full_box(b"mean", 0, 0, b"com.example"),
    make_full_box(b"name", 0, 0, b"site"),
    make_box(b"data", struct.pack(">II", 1, 0) + b"north"),
)


def refused(store: Store, path: Path, codec: str = "hevc") -> str:
    """The message of the refusal; checks that the original is unchanged."""
    video = store.ingest(path)
    video.policy.set(REPLACEABLE)
    with pytest.raises(RefusedMediaError) as refusal:
        video.policy.replace_original(codec=codec, psnr=20)
    assert store[path.name].info.digest == video.info.digest
    assert store.parts.originals.path_of(video.original).read_bytes() == path.read_bytes()
    assert fsck.collect(store.parts, dry_run=True).objects == []
    return str(refusal.value)


@pytest.mark.parametrize(
    ("place", "added", "named"),
    one_in(
        5,
        [
            ("moov/udta", make_box(b"zzzz", b"unknown"), "moov/udta/zzzz"),
            ("moov", make_box(b"zzzz", b"unknown"), "moov/zzzz"),
            ("moov/trak", make_box(b"zzzz", b"unknown"), "moov/pictures/zzzz"),
            (
                "moov/trak/mdia/minf/stbl",
                make_box(b"zzzz", b""),
                "moov/pictures/mdia/minf/stbl/zzzz",
            ),
            (ENTRY, make_box(b"zzzz", b"unknown"), "stsd/zzzz"),
            (ENTRY, make_box(b"dvvC", bytes(24)), "Dolby Vision"),
            (ENTRY, make_box(b"clap", struct.pack(">8I", 80, 1, 64, 1, 0, 1, 0, 1)), "crop"),
            ("moov/udta/meta", make_box(b"zzzz", b"unknown"), "moov/udta/meta/zzzz"),
            ("", make_box(b"uuid", bytes(range(16)) + b"unknown"), "uuid 000102030405"),
            ("", b"behind the last box, by a vendor", "bytes behind the last box"),
        ],
    ),
)
def test_refusal_names_boxes(
    store: Store, tmp_path: Path, place: str, added: bytes, named: str
) -> None:
    path = with_box(noisy_clip(tmp_path / "a.mp4", sound=False), place, added)
    assert named in refused(store, path)


@pytest.mark.parametrize("place", one_in(4, ["last", "first"]))
@pytest.mark.parametrize(
    ("inside", "added"),
    one_in(
        5,
        [
            ("moov/udta/meta/ilst", FREEFORM),
            ("moov/udta", make_box(b"XMP_", b"<x:xmpmeta/>")),
            ("moov/udta", make_box(b"\xa9xyz", struct.pack(">HH", 8, 0x15C7) + b"+48+011/")),
            ("moov/trak/udta", make_box(b"name", b"north")),
            ("moov/udta", make_box(b"smta", bytes(4) + make_box(b"saut", bytes(2)))),
            ("moov/udta", make_box(b"Cr8r", b"\xbe\xef\xca\xfe\0\0\0\x54" + bytes(76))),
            ("", make_box(b"uuid", XMP)),
            (ENTRY, make_full_box(b"st3d", 0, 0, b"\2")),
            (ENTRY, spherical()),
            (ENTRY, make_box(b"mdcv", struct.pack(">8H2I", *range(1, 9), 10_000_000, 1))),
            (ENTRY, make_box(b"clli", struct.pack(">HH", 1000, 400))),
            (ENTRY, make_box(b"colr", b"prof" + bytes(128))),
        ],
    ),
)
def test_boxes_are_kept(
    store: Store, tmp_path: Path, inside: str, added: bytes, place: str
) -> None:
    """The boxes of the original may be anywhere."""
    path = with_box(noisy_clip(tmp_path / "a.mp4"), inside, added)
    if place == "first":
        path = fast_start(path)
    video = store.ingest(path)
    video.policy.set(REPLACEABLE)
    video.policy.replace_original(codec="h264", psnr=20)
    made = store.parts.originals.path_of(store["a.mp4"].original)
    kind = added[4:8].decode("latin-1")
    where = f"{inside}/{kind}".lstrip("/")
    assert added[8:] in (value_at(made, where), value_at(made, f"{where} 1"))
    with av.open(str(made)) as opened:
        assert len(list(opened.decode(video=0))) == 10
    with av.open(str(made)) as opened:
        assert len(list(opened.decode(audio=0))) > 0


def test_quicktime_keys_are_kept(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.mov"
    with (
        av.open(str(noisy_clip(tmp_path / "b.mov", sound=False))) as source,
        av.open(str(path), "w", options={"movflags": "use_metadata_tags"}) as target,
    ):
        target.metadata["com.apple.quicktime.location.ISO6709"] = "+48.1000+011.5000+500/"
        target.metadata["com.apple.quicktime.model"] = "a camera"
        copy = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux():
            if packet.size:
                packet.stream = copy
                target.mux(packet)
    places = ("moov/meta", "moov/udta/meta")
    before = [value_at(path, place) for place in places]
    assert any(before)
    video = store.ingest(path)
    video.policy.set(REPLACEABLE)
    video.policy.replace_original(psnr=20)
    made = store.parts.originals.path_of(store["a.mov"].original)
    assert [value_at(made, place) for place in places] == before


def test_refusal_names_data_of_other_streams(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They appear in the finished file only."""
    path = noisy_clip(tmp_path / "a.mp4")
    with_box(path, "moov/trak 1", make_box(b"zzzz", b"unknown"))
    checked = []
    require_same = VideoReencoder.require_same

    def note(self: VideoReencoder, *told: object) -> None:
        checked.append(told)
        require_same(self, *told)  # type: ignore[arg-type]

    monkeypatch.setattr(VideoReencoder, "require_same", note)
    assert "moov/stream 1/zzzz" in refused(store, path)
    assert len(checked) == 1


@pytest.mark.parametrize(
    ("added", "named"),
    one_in(
        3,
        [
            (element("4dad", b"unknown"), "Segment/element 0x4DAD"),
            (element("1549a966", element("4dad", b"unknown")), "Segment/Info/element 0x4DAD"),
            (
                element("1254c367", element("7373", element("67c8", element("45a3", b"SITE")))),
                "",
            ),
            (
                element(
                    "1254c367",
                    element(
                        "7373",
                        element("63c0", element("68ca", b"\x1e"))
                        + element("67c8", element("45a3", b"SITE") + element("4487", b"north")),
                    ),
                ),
                "Segment/Tags/level 30/SITE",
            ),
            (
                element(
                    "1254c367",
                    element(
                        "7373",
                        element("67c8", element("45a3", b"SITE") + element("4485", b"\1\2\3")),
                    ),
                ),
                "Segment/Tags/file/SITE/TagBinary",
            ),
        ],
    ),
)
def test_refusal_names_matroska_elements(
    store: Store, tmp_path: Path, added: bytes, named: str
) -> None:
    path = with_element(noisy_clip(tmp_path / "a.mkv", sound=False), added)
    if named:
        assert named in refused(store, path)
        return
    video = store.ingest(path)
    video.policy.set(REPLACEABLE)
    video.policy.replace_original(psnr=20)


@pytest.mark.parametrize(
    ("message", "named"),
    one_in(
        4,
        [
            (sei(200, b"unknown message"), "SEI 200"),
            (sei(4, bytes.fromhex("b5003b00") + b"unknown"), "Dolby Vision"),
            (sei(45, b"\x81\x82\x83"), "frame packing"),
            (b"\x1c" + b"unspecified unit", "NAL unit 28"),
        ],
    ),
)
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_refusal_names_messages(
    store: Store, tmp_path: Path, message: bytes, named: str, suffix: str
) -> None:
    path = noisy_clip(tmp_path / f"a.{suffix}", message=message, sound=False)
    assert named in refused(store, path)


def test_refusal_names_alpha(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    rng = np.random.default_rng(7)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libvpx-vp9", rate=25, options={"crf": "5", "cpu-used": "8"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuva420p"
        for _ in range(4):
            picture = rng.integers(60, 120, (64, 96, 4), np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="rgba").reformat(format="yuva420p")
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    assert "alpha channel" in refused(store, path, "av1")


def test_header_fields_are_kept(store: Store, tmp_path: Path) -> None:
    path = noisy_clip(tmp_path / "a.mp4")
    data = path.read_bytes()
    fields = {"moov/mvhd": (4, 12), "moov/trak/tkhd": (4, 12), "moov/trak 1/tkhd": (4, 12)}
    for place, (start, end) in fields.items():
        content = value_at(path, place)
        assert content is not None
        at = data.index(content)
        changed = content[:start] + struct.pack(">II", 3_600_000_000, 3_600_000_123) + content[end:]
        if place.endswith("tkhd"):
            changed = b"\0\0\0\7" + changed[4:]  # in a movie and its preview
        data = data[:at] + changed + data[at + len(content) :]
    path.write_bytes(data)
    video = store.ingest(path)
    video.policy.set(REPLACEABLE)
    video.policy.replace_original(psnr=20)
    made = store.parts.originals.path_of(store["a.mp4"].original)
    for place, (start, end) in fields.items():
        before, after = value_at(path, place), value_at(made, place)
        assert before is not None
        assert after is not None
        assert after[start:end] == before[start:end]
        if place.endswith("tkhd"):
            assert after[:4] == before[:4]


def test_handler_names_are_kept(store: Store, tmp_path: Path) -> None:
    path = noisy_clip(tmp_path / "a.mp4")
    path.write_bytes(path.read_bytes().replace(b"VideoHandler", b"\x0bA camera\0\0\0"))
    before = value_at(path, "moov/trak/mdia/hdlr")
    assert before is not None
    assert b"A camera" in before
    video = store.ingest(path)
    video.policy.set(REPLACEABLE)
    video.policy.replace_original(psnr=20)
    made = store.parts.originals.path_of(store["a.mp4"].original)
    assert value_at(made, "moov/trak/mdia/hdlr") == before


def test_empty_pan_and_scan_is_not_a_loss(store: Store, tmp_path: Path) -> None:
    """The MPEG-2 decoder adds it to all frames."""
    path = tmp_path / "a.mkv"
    rng = np.random.default_rng(7)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg2video", rate=25, options={"q": "1"})
        stream.width, stream.height, stream.pix_fmt = 96, 80, "yuv420p"
        stream.bit_rate = 20_000_000
        for _ in range(8):
            picture = rng.integers(60, 120, (120, 96), np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="yuv420p")))
        out.mux(stream.encode(None))
    video = store.ingest(path)
    video.policy.set(REPLACEABLE)
    assert video.policy.replace_original(codec="h264", psnr=20).codec == "h264"


# --------------------------------------------------------------------------------------------------
# A replacement carries tracks of time codes, chapters and telemetry as they are


SAMPLE_TABLE = "moov/trak 1/mdia/minf/stbl/stsd"


def replaced(store: Store, path: Path) -> Path:
    """The stored file after a replacement, with the suffix of `path`."""
    video = store.ingest(path)
    video.policy.set("original=replaceable,psnr=20")
    video.policy.replace_original(codec="h264", psnr=20)
    made = path.with_name(f"made{path.suffix}")
    made.write_bytes(store.parts.originals.path_of(store[path.name].original).read_bytes())
    return made


def packets(path: Path, stream: int) -> list[tuple[object, ...]]:
    with av.open(str(path), options={"ignore_chapters": "1"}) as opened:
        found = opened.demux(opened.streams[stream])
        return [
            (one.pts * one.time_base, (one.duration or 0) * one.time_base, bytes(one))
            for one in found
            if one.size and one.pts is not None and one.time_base is not None
        ]


def telemetry_clip(path: Path) -> Path:
    """Noise with a GoPro telemetry track."""
    plain = noisy_clip(path.with_name("plain.mp4"), sound=False)
    with av.open(str(plain)) as source, av.open(str(path), "w", format="mp4") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        data = target.add_data_stream("bin_data")
        data.time_base = Fraction(1, 1000)
        for packet in source.demux(old):
            if packet.size:
                packet.stream = new
                target.mux(packet)
        for number in range(2):
            told = av.Packet(b"DEVC" + bytes(12) + bytes((number,)))
            told.stream, told.time_base = data, Fraction(1, 1000)
            told.pts = told.dts = 200 * number
            told.duration = 200
            target.mux(told)
    return path


def chapters_clip(path: Path) -> Path:
    """Noise with two chapters in a text track."""
    plain = noisy_clip(path.with_name(f"plain{path.suffix}"))
    with av.open(str(plain)) as source, av.open(str(path), "w") as target:
        copies = [target.add_stream_from_template(stream) for stream in source.streams]
        base = Fraction(1, 1000)
        target.set_chapters(
            [
                {"id": n, "start": n * 200, "end": n * 200 + 200, "time_base": base,
                 "metadata": {"title": f"part {n}"}}
                for n in range(2)
            ]
        )  # fmt: skip
        for packet in source.demux():
            if packet.size:
                packet.stream = copies[packet.stream.index]
                target.mux(packet)
    return path


def test_time_codes_are_kept(store: Store, tmp_path: Path) -> None:
    path = time_coded_clip(tmp_path)
    made = replaced(store, path)
    for place in ("mdia/minf/stbl/stsd", "mdia/hdlr", "mdia/minf/gmhd"):
        assert value_at(made, f"moov/trak 2/{place}") == value_at(path, f"moov/trak 2/{place}")
    assert value_at(made, "moov/trak/tref/tmcd") == value_at(path, "moov/trak/tref/tmcd")
    assert packets(made, 2) == packets(path, 2) != []
    with av.open(str(made)) as opened:
        assert opened.streams.video[0].metadata["timecode"] == "00:00:00:00"


@pytest.mark.parametrize("kind", [b"gpmd", b"mebx", b"mett"])
def test_telemetry_is_kept(store: Store, tmp_path: Path, kind: bytes) -> None:
    path = telemetry_clip(tmp_path / "a.mp4")
    path.write_bytes(path.read_bytes().replace(b"gpmd", kind))
    made = replaced(store, path)
    assert value_at(made, SAMPLE_TABLE) == value_at(path, SAMPLE_TABLE)
    assert kind in (value_at(made, SAMPLE_TABLE) or b"")
    assert packets(made, 1) == packets(path, 1) != []


@pytest.mark.parametrize("suffix", one_in(2, ["mp4", "mov"]))
def test_chapters_are_kept(store: Store, tmp_path: Path, suffix: str) -> None:
    path = chapters_clip(tmp_path / f"a.{suffix}")
    made = replaced(store, path)
    assert packets(made, 2) == packets(path, 2) != []
    with av.open(str(path)) as before, av.open(str(made)) as after:
        assert [one["metadata"]["title"] for one in after.chapters()] == ["part 0", "part 1"]
        assert after.chapters() == before.chapters()


def movie_duration(path: Path) -> Fraction:
    scale, ticks = struct.unpack_from(">II", value_at(path, "moov/mvhd") or b"", 12)
    return Fraction(ticks, scale)


def test_chapters_in_user_data_are_kept(store: Store, tmp_path: Path) -> None:
    """The last one ends with the movie, whose duration is rounded up to milliseconds."""
    chapters = b"".join(
        struct.pack(">QB", 2_000_000 * n, 6) + f"part {n}".encode() for n in range(2)
    )
    path = noisy_clip(tmp_path / "a.mp4", sound=False, rate=24)
    with_box(path, "moov/udta", make_full_box(b"chpl", 1, 0, bytes(4) + b"\2" + chapters))
    made = replaced(store, path)
    with av.open(str(path)) as before, av.open(str(made)) as after:
        assert len(before.chapters()) == 2
        assert after.chapters() == before.chapters()
    assert movie_duration(path) == Fraction(417, 1000)
    assert 0 <= movie_duration(made) - movie_duration(path) < Fraction(1, 12288)


def test_refusal_names_unknown_boxes_of_data_tracks(store: Store, tmp_path: Path) -> None:
    path = telemetry_clip(tmp_path / "a.mp4")
    with_box(path, "moov/trak 1/mdia/minf/stbl", make_box(b"zzzz", b"unknown"))
    with pytest.raises(RefusedMediaError, match="stream 1/mdia/minf/stbl/zzzz"):
        replaced(store, path)


# --------------------------------------------------------------------------------------------------
# Files with several streams of the new codec, time codes, layers and marks


def two_streams_clip(path: Path) -> Path:
    """Two H.264 streams of noise; FFmpeg takes the larger one as the best."""
    rng = np.random.default_rng(11)
    with av.open(str(path), "w") as out:
        streams = []
        for width, height in ((96, 80), (160, 128)):
            options = {"crf": "2", "preset": "ultrafast", "tune": "zerolatency"}
            stream = out.add_stream("libx264", rate=25, options=options)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            streams.append(stream)
        for _ in range(10):
            for stream in streams:
                noise = rng.integers(60, 120, (stream.height * 3 // 2, stream.width), np.uint8)
                out.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="yuv420p")))
        for stream in streams:
            out.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("number", [0, 1])
def test_one_of_several_streams_is_replaced(
    store: Store, tmp_path: Path, suffix: str, number: int
) -> None:
    path = two_streams_clip(tmp_path / f"a.{suffix}")
    video = store.ingest(path, stream=number)
    assert video.info.original.media.stream_index == number
    frames = video.read().data
    others = packets(path, 1 - number)
    video.policy.set("original=replaceable,psnr=20")
    video.policy.replace_original(codec="h264", psnr=20)
    video = store[path.name]
    assert video.info.original.media.stream_index == number
    made = tmp_path / f"made.{suffix}"
    made.write_bytes(store.parts.originals.path_of(video.original).read_bytes())
    assert packets(made, 1 - number) == others
    assert len(packets(made, number)) == 10
    assert packets(made, number) != packets(path, number)
    after = video.read().data
    assert after.shape == frames.shape
    assert np.abs(after.astype(int) - frames).mean() < 30


def timed_message(*codes: tuple[int, int, int, int], structure: int = 0) -> bytes:
    """A picture timing message with clock timestamps, for an SPS without delays."""
    writer = BitWriter()
    writer.bits(4, structure)
    for hours, minutes, seconds, frames in codes:
        writer.bits(1, 1)  # clock_timestamp_flag
        writer.bits(2 + 1 + 5, 0)
        writer.bits(3, 0b100)  # full_timestamp_flag
        for value, bits in ((frames, 8), (seconds, 6), (minutes, 6), (hours, 5), (0, 24)):
            writer.bits(bits, value)
    return writer.finished()


def time_coded_pictures(path: Path, *, coded: bool) -> Path:
    """Noise with a picture timing message in each packet, with or without a time code."""
    rng = np.random.default_rng(7)
    options = {"crf": "2", "preset": "ultrafast", "tune": "zerolatency"}
    options["x264-params"] = "pic-struct=1"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 80, "yuv420p"
        for number in (*range(10), None):
            frame = None
            if number is not None:
                noise = rng.integers(60, 120, (120, 96), np.uint8)
                frame = av.VideoFrame.from_ndarray(noise, format="yuv420p")
            for packet in stream.encode(frame):
                if coded:
                    assert packet.pts is not None
                    at = round(packet.pts * packet.time_base * 25)
                    unit = sei(1, timed_message((10, 20, 30, at)))
                    made = av.Packet(nal.START_CODE + unit + bytes(packet))
                    made.stream, made.time_base = packet.stream, packet.time_base
                    made.pts, made.dts, made.duration = packet.pts, packet.dts, packet.duration
                    made.is_keyframe = packet.is_keyframe
                    packet = made
                out.mux(packet)
    return path


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_refusal_names_time_codes_of_pictures(store: Store, tmp_path: Path, codec: str) -> None:
    path = time_coded_pictures(tmp_path / "a.mp4", coded=True)
    with MediaSource(path) as source:
        found = take_inventory(source, "mp4", 0)
    item = found["pictures/packets/time code of SEI 1"]
    assert item.count == 10
    assert "time code" in refused(store, path, codec)


def test_picture_timing_without_time_codes_is_replaced(store: Store, tmp_path: Path) -> None:
    path = time_coded_pictures(tmp_path / "a.mp4", coded=False)
    with MediaSource(path) as source:
        found = take_inventory(source, "mp4", 0)
    assert "pictures/packets/SEI 1 (picture timing)" in found
    video = store.ingest(path)
    video.policy.set(REPLACEABLE)
    assert video.policy.replace_original(codec="h264", psnr=20).codec == "h264"


@pytest.mark.parametrize(
    ("unit", "named"),
    [
        (b"\x6e\x40\x80\x07", "layer of scalable or stereo video"),
        (b"\x74\x40\x80\x07" + bytes(range(1, 20)), "layer of scalable or stereo video"),
        (sei(37, b"\x81\x82"), "stereo views"),
    ],
)
def test_refusal_names_layers(store: Store, tmp_path: Path, unit: bytes, named: str) -> None:
    assert named in refused(store, noisy_clip(tmp_path / "a.mp4", message=unit, sound=False))


def test_marks_of_messengers_are_kept(store: Store, tmp_path: Path) -> None:
    path = noisy_clip(tmp_path / "a.mp4", sound=False)
    marks = make_box(b"beam", struct.pack(">4I", 1, 1, 0, 2)) + make_box(b"loop", bytes(4))
    path.write_bytes(path.read_bytes() + marks)
    made = replaced(store, path)
    assert value_at(made, "beam") == struct.pack(">4I", 1, 1, 0, 2)
    assert value_at(made, "loop") == bytes(4)
