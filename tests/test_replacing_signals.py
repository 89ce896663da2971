"""A replacement tells of samples what the original tells, or is refused by name.

Each field is set alone, as encoders and muxers treat each combination in their own way.
"""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext

from tests.carrying import noisy_clip, with_box
from vfsd.api.store import Store
from vfsd.codecs.containers.isobmff import make_box
from vfsd.codecs.decoding.demuxer import MediaSource
from vfsd.codecs.inventory.file_inventory import take_inventory
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
    """The fields as a reader sees them."""
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
    """The refusal, or None where a replacement tells the same."""
    before = seen(path)
    video = store.ingest(path)
    video.policy.set("original=replaceable,psnr=20")
    try:
        video.policy.replace_original(codec=codec, psnr=20)
    except (RefusedMediaError, UsageError) as refusal:
        assert store[path.name].info.digest == video.info.digest
        return str(refusal)
    copy = path.with_name(f"made{path.suffix}")
    copy.write_bytes(store.parts.bytes_of(store[path.name].original).read_bytes())
    after = seen(copy)
    if codec == "av1" and before[0] == 0:
        before[0] = 1  # AV1 always tells the range; an absent one is limited
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
    [*(("mp4", name) for name in FIELDS), *((s, n) for s in ("mov", "mkv") for n in WHOLE)],
)
def test_h264_fields(store: Store, tmp_path: Path, name: str, suffix: str) -> None:
    path = clip(tmp_path / f"a.{suffix}", "h264", FIELDS[name])
    assert require_kept_or_named(store, path, "h264") is None


@pytest.mark.parametrize("name", FIELDS)
def test_hevc_fields(store: Store, tmp_path: Path, name: str) -> None:
    if name == "overscan":
        pytest.skip("the filter does not write it into HEVC")
    path = clip(tmp_path / "a.mp4", "hevc", FIELDS[name])
    assert require_kept_or_named(store, path, "hevc") is None


def test_overscan_is_named(store: Store, tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", "h264", FIELDS["overscan"])
    assert "overscan: appropriate would be lost" in str(require_kept_or_named(store, path, "hevc"))


@pytest.mark.parametrize("name", [*NAMED_AV1, *KEPT_AV1])
def test_av1_fields(store: Store, tmp_path: Path, name: str) -> None:
    path = clip(tmp_path / "a.mkv", "h264", FIELDS[name])
    refusal = require_kept_or_named(store, path, "av1")
    assert (refusal or "").endswith(NAMED_AV1.get(name, ""))
    assert (refusal is None) == (name not in NAMED_AV1)


@pytest.mark.parametrize(
    ("name", "encoder", "options", "codec"),
    [
        ("a.webm", "libvpx-vp9", {"crf": "2", "cpu-used": "8"}, "av1"),
        ("a.mkv", "libvpx-vp9", {"crf": "2", "cpu-used": "8"}, "h264"),
        ("a.mkv", "ffv1", {"color_range": "tv"}, "h264"),
        ("a.mkv", "ffv1", {"color_range": "tv"}, "hevc"),
        ("a.mkv", "mpeg2video", {"video_format": "pal", "seq_disp_ext": "always"}, "h264"),
        ("a.mp4", "libsvtav1", {"crf": "5", "preset": "12"}, "h264"),
    ],
)
def test_fields_of_other_codecs(
    store: Store, tmp_path: Path, name: str, encoder: str, options: dict[str, str], codec: str
) -> None:
    path = encoded(tmp_path / name, encoder, options)
    refusal = require_kept_or_named(store, path, codec)
    assert refusal is None or "chroma siting would become" in refusal


def test_field_order_is_named(store: Store, tmp_path: Path) -> None:
    path = clip(tmp_path / "a.mp4", "h264", FIELDS["limited range"])
    with_box(path, "moov/trak/mdia/minf/stbl/stsd/avc1", make_box(b"fiel", b"\2\1"))
    assert "interlaced pictures" in str(require_kept_or_named(store, path, "h264"))
