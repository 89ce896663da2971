"""A replacement signals the same properties of samples as the original, or is refused by name.

Each field is set alone, because encoders and muxers treat each combination differently.

A replacement carries the SEI messages that do not describe the encoding, with their frames.
"""

from __future__ import annotations

import struct
from pathlib import Path

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext

from tests.support.selection import one_in
from tests.support.side_data_clips import noisy_clip, sei, with_box
from vfsd.api.store import Store
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.sei_vui import carried_messages, sei_unit
from vfsd.codecs.containers.tracks import make_box
from vfsd.codecs.inventory.file_inventory import take_inventory
from vfsd.codecs.inventory.side_data import carried_data
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError, UsageError

FIELDS = {
    "limited range": "video_full_range_flag=0",
    "full range": "video_full_range_flag=1",
    "primaries": "colour_primaries=9",
    "EBU primaries": "colour_primaries=22",
    "transfer": "transfer_characteristics=16",
    "matrix": "matrix_coefficients=1",
    "a matrix without a name": "matrix_coefficients=12",
    "chroma": "chroma_sample_loc_type=2",
    "video format": "video_format=1",
    "aspect": "sample_aspect_ratio=4/3",
    "overscan": "overscan_appropriate_flag=1",
    "all": "video_full_range_flag=1:colour_primaries=9:transfer_characteristics=16"
    ":matrix_coefficients=9:video_format=2:chroma_sample_loc_type=2:sample_aspect_ratio=4/3",
}


def clip(path: Path, codec: str, fields: str) -> Path:
    """Noise whose sequence parameter set has `fields` and no others."""
    plain = path.with_name(f"plain{path.suffix}")
    if codec == "h264":
        noisy_clip(plain, sound=False)
    else:
        encoded(plain, "libx265", {"x265-params": "log-level=none:lossless=1"})
    with av.open(str(plain)) as source, av.open(str(path), "w") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        found = BitStreamFilterContext(f"{codec}_metadata={fields}", old, new)
        for packet in source.demux(old):
            for made in found.filter(packet) if packet.size else ():
                made.stream = new
                target.mux(made)
    return path


def encoded(path: Path, encoder: str, options: dict[str, str], pixels: str = "yuv420p") -> Path:
    rng = np.random.default_rng(7)
    with av.open(str(path), "w") as out:
        stream = out.add_stream(encoder, rate=25, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 96, 80, pixels
        if encoder == "mpeg2video":
            stream.bit_rate = 20_000_000
        for _ in range(10):
            picture = rng.integers(60, 120, (120, 96), np.uint8)
            frame = av.VideoFrame.from_ndarray(picture, format="yuv420p").reformat(format=pixels)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def seen(path: Path) -> list[object]:
    """The fields as a reader reports them."""
    with av.open(str(path)) as opened:
        stream = opened.streams.video[0]
        context = stream.codec_context
        told: list[object] = [
            int(one)
            for one in (
                *(context.color_range, context.colorspace, context.color_primaries),
                context.color_trc,
            )
        ]
        told.append(stream.sample_aspect_ratio or 1)
    with MediaSource(path) as source:
        found = take_inventory(source, "mp4" if path.suffix in (".mp4", ".mov") else "matroska", 0)
    names = ("pictures/packets/video format", "pictures/packets/overscan")
    return [*told, *(str(found.get(name)) for name in names)]


def require_kept_or_named(store: Store, path: Path, codec: str) -> str | None:
    """Check that the replacement signals the same; otherwise return the refusal."""
    before = seen(path)
    video = store.ingest(path)
    video.policy.set("original=replaceable,psnr=20")
    try:
        video.policy.replace_original(codec=codec, psnr=20)
    except (RefusedMediaError, UsageError) as refusal:
        assert store[path.name].info.digest == video.info.digest
        return str(refusal)
    copy = path.with_name(f"made{path.suffix}")
    copy.write_bytes(store.parts.originals.path_of(store[path.name].original).read_bytes())
    after = seen(copy)
    if codec == "av1" and before[0] == 0:
        before[0] = 1  # AV1 always signals the range; a missing one means limited
    assert after == before
    return None


NAMED_AV1 = {
    "video format": "video format: PAL would be lost",
    "aspect": "sample aspect ratio would become 1; it is 4/3",
}
KEPT_AV1 = ("limited range", "EBU primaries", "a matrix without a name", "chroma")
WHOLE = ("limited range", "all")


@pytest.mark.parametrize(
    ("suffix", "name"),
    one_in(
        5, [*(("mp4", name) for name in FIELDS), *((s, n) for s in ("mov", "mkv") for n in WHOLE)]
    ),
)
def test_h264_fields(store: Store, tmp_path: Path, name: str, suffix: str) -> None:
    path = clip(tmp_path / f"a.{suffix}", "h264", FIELDS[name])
    assert require_kept_or_named(store, path, "h264") is None


@pytest.mark.parametrize("name", one_in(4, FIELDS))
def test_hevc_fields(store: Store, tmp_path: Path, name: str) -> None:
    if name == "overscan":
        pytest.skip("the filter does not write it into HEVC")
    path = clip(tmp_path / "a.mp4", "hevc", FIELDS[name])
    assert require_kept_or_named(store, path, "hevc") is None


def test_overscan_is_named_in_the_refusal(store: Store, tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", "h264", FIELDS["overscan"])
    assert "overscan: appropriate would be lost" in str(require_kept_or_named(store, path, "hevc"))


@pytest.mark.parametrize("name", one_in(3, [*NAMED_AV1, *KEPT_AV1]))
def test_av1_fields(store: Store, tmp_path: Path, name: str) -> None:
    path = clip(tmp_path / "a.mkv", "h264", FIELDS[name])
    refusal = require_kept_or_named(store, path, "av1")
    assert (refusal or "").endswith(NAMED_AV1.get(name, ""))
    assert (refusal is None) == (name not in NAMED_AV1)


@pytest.mark.parametrize(
    ("name", "encoder", "options", "codec"),
    one_in(
        3,
        [
            ("a.webm", "libvpx-vp9", {"crf": "2", "cpu-used": "8"}, "av1"),
            ("a.mkv", "libvpx-vp9", {"crf": "2", "cpu-used": "8"}, "h264"),
            ("a.mkv", "ffv1", {"color_range": "tv"}, "h264"),
            ("a.mkv", "ffv1", {"color_range": "tv"}, "hevc"),
            ("a.mkv", "mpeg2video", {"video_format": "pal", "seq_disp_ext": "always"}, "h264"),
            ("a.mp4", "libsvtav1", {"crf": "5", "preset": "12"}, "h264"),
        ],
    ),
)
def test_fields_of_other_codecs(
    store: Store, tmp_path: Path, name: str, encoder: str, options: dict[str, str], codec: str
) -> None:
    path = encoded(tmp_path / name, encoder, options)
    refusal = require_kept_or_named(store, path, codec)
    assert refusal is None or "chroma siting would become" in refusal


def test_field_order_is_named_in_the_refusal(store: Store, tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", "h264", FIELDS["limited range"])
    with_box(path, "moov/trak/mdia/minf/stbl/stsd/avc1", make_box(b"fiel", b"\2\1"))
    assert "interlaced videos cannot be re-encoded" in str(
        require_kept_or_named(store, path, "h264")
    )


# --------------------------------------------------------------------------------------------------
# A replacement carries the SEI messages that do not describe the encoding, with their frames


MARK = bytes(range(1, 17))
CAPTIONS = bytes.fromhex("b5003147413934") + b"\x03\xc1\xff"
SAME = (("libx264", "h264"), ("libx265", "hevc"))
MASTERING = struct.pack(">8H2I", *range(100, 900, 100), 10_000_000, 50)


def message(number: int, *, mastering: bool) -> bytes:
    """Messages of the frame with that number: a timestamp, and captions for some frames."""
    found = [(5, MARK + f"picture {number}\0\0\1".encode())]
    if number % 3 == 1:
        found.append((4, CAPTIONS + bytes((0xFC, number + 1, 0x20)) + b"\xff"))
    if number == 0 and mastering:
        found.append((137, MASTERING))
    return sei_unit("h264", tuple(found))


def clip_with_messages(path: Path, encoder: str, *, mastering: bool = False) -> Path:
    """Noise in reordered frames, with messages in each packet."""
    rng = np.random.default_rng(7)
    options = {"crf": "2", "preset": "ultrafast", "bf": "2", "x264-params": "b-adapt=0"}
    options["x265-params"] = "log-level=none:b-adapt=0:bframes=2:no-info=1"
    codec = "hevc" if encoder == "libx265" else "h264"
    with av.open(str(path), "w") as out:
        stream = out.add_stream(encoder, rate=25, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 96, 80, "yuv420p"
        for number in (*range(12), None):
            frame = None
            if number is not None:
                noise = rng.integers(60, 120, (120, 96), np.uint8)
                frame = av.VideoFrame.from_ndarray(noise, format="yuv420p")
                frame.pts = number
            for packet in stream.encode(frame):
                assert packet.pts is not None
                shown = round(packet.pts * packet.time_base * 25)
                unit = message(shown, mastering=mastering)
                if codec == "hevc":
                    unit = b"\x4e\x01" + unit[1:]
                told = av.Packet(nal.START_CODE + unit + bytes(packet))
                told.stream, told.time_base = packet.stream, packet.time_base
                told.pts, told.dts, told.duration = packet.pts, packet.dts, packet.duration
                told.is_keyframe = packet.is_keyframe
                out.mux(told)
    return path


def told(path: Path) -> list[tuple[object, ...]]:
    """The time and the messages of each frame in display order."""
    found = []
    with av.open(str(path)) as opened:
        stream = opened.streams.video[0]
        codec = stream.codec_context.codec.canonical_name
        prefix = nal.prefix_size(codec, bytes(stream.codec_context.extradata or b""))
        for packet in opened.demux(stream):
            if packet.size:
                units = carried_messages(codec, "hevc", bytes(packet), prefix)
                same = sorted(one for unit in units for one in unit if one[0] != 137)
                found.append((packet.pts, same))
    return sorted(found)


@pytest.mark.parametrize(
    ("encoder", "codec", "suffix"),
    one_in(
        2,
        [
            ("libx264", "h264", "mp4"),
            ("libx264", "hevc", "mkv"),
            ("libx265", "hevc", "mov"),
            ("libx265", "h264", "mp4"),
        ],
    ),
)
def test_messages_are_kept(
    store: Store, tmp_path: Path, encoder: str, codec: str, suffix: str
) -> None:
    path = clip_with_messages(tmp_path / f"a.{suffix}", encoder, mastering=(encoder, codec) in SAME)
    video = store.ingest(path)
    video.policy.set("original=replaceable,psnr=20")
    video.policy.replace_original(codec=codec, psnr=20)
    made = tmp_path / f"made.{suffix}"
    made.write_bytes(store.parts.originals.path_of(store[path.name].original).read_bytes())
    assert told(made) == told(path)
    assert len(told(path)) == 12
    with av.open(str(path)) as before, av.open(str(made)) as after:
        for one, other in zip(before.decode(video=0), after.decode(video=0), strict=True):
            assert carried_data(one) == carried_data(other)
            assert one.pts == other.pts


def test_lasting_messages_of_another_codec_are_named(store: Store, tmp_path: Path) -> None:
    video = store.ingest(clip_with_messages(tmp_path / "a.mp4", "libx265", mastering=True))
    video.policy.set("original=replaceable,psnr=20")
    with pytest.raises(RefusedMediaError, match="mastering display"):
        video.policy.replace_original(codec="h264", psnr=20)


def test_av1_refusal_names_messages(store: Store, tmp_path: Path) -> None:
    video = store.ingest(clip_with_messages(tmp_path / "a.mp4", "libx264"))
    video.policy.set("original=replaceable,psnr=20")
    with pytest.raises(RefusedMediaError, match="closed captions"):
        video.policy.replace_original(codec="av1", psnr=20)


def test_message_units_are_escaped() -> None:
    unit = sei_unit("h264", ((5, MARK + b"\0\0\1\0\0\0"), (4, b"\xb5" + bytes(600))))
    assert b"\0\0\1" not in unit
    packet = nal.START_CODE + unit + nal.START_CODE + b"\x65\x80"
    (found,) = carried_messages("h264", "h264", packet, 0)
    assert found == ((5, MARK + b"\0\0\1\0\0\0"), (4, b"\xb5" + bytes(600)))
    assert carried_messages("h264", "h264", nal.START_CODE + sei(6, b"\x80"), 0) == ()
