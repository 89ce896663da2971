"""A replacement carries the SEI messages that do not describe the encoding, with their pictures."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import numpy as np
import pytest

from tests.carrying import sei
from vfsd.api.store import Store
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.sei_messages import carried_messages, sei_unit
from vfsd.codecs.decoding.frame_side_data import carried_data
from vfsd.errors import RefusedMediaError

MARK = bytes(range(1, 17))
CAPTIONS = bytes.fromhex("b5003147413934") + b"\x03\xc1\xff"
SAME = (("libx264", "h264"), ("libx265", "hevc"))
MASTERING = struct.pack(">8H2I", *range(100, 900, 100), 10_000_000, 50)


def message(number: int, *, mastering: bool) -> bytes:
    """Messages of the picture with that number: a time stamp, and captions of some."""
    found = [(5, MARK + f"picture {number}\0\0\1".encode())]
    if number % 3 == 1:
        found.append((4, CAPTIONS + bytes((0xFC, number + 1, 0x20)) + b"\xff"))
    if number == 0 and mastering:
        found.append((137, MASTERING))
    return sei_unit("h264", tuple(found))


def clip(path: Path, encoder: str, *, mastering: bool = False) -> Path:
    """Pictures of noise that are coded in another order, with messages in each packet."""
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
    """The time and the messages of each picture in the order in which they are shown."""
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
    [
        ("libx264", "h264", "mp4"),
        ("libx264", "hevc", "mkv"),
        ("libx265", "hevc", "mov"),
        ("libx265", "h264", "mp4"),
    ],
)
def test_messages_stay(store: Store, tmp_path: Path, encoder: str, codec: str, suffix: str) -> None:
    path = clip(tmp_path / f"a.{suffix}", encoder, mastering=(encoder, codec) in SAME)
    video = store.ingest(path)
    video.policy.set("original=replaceable,psnr=20")
    video.policy.replace_original(codec=codec, psnr=20)
    made = tmp_path / f"made.{suffix}"
    made.write_bytes(store.parts.bytes_of(store[path.name].original).read_bytes())
    assert told(made) == told(path)
    assert len(told(path)) == 12
    with av.open(str(path)) as before, av.open(str(made)) as after:
        for one, other in zip(before.decode(video=0), after.decode(video=0), strict=True):
            assert carried_data(one) == carried_data(other)
            assert one.pts == other.pts


def test_lasting_messages_of_another_codec_are_named(store: Store, tmp_path: Path) -> None:
    video = store.ingest(clip(tmp_path / "a.mp4", "libx265", mastering=True))
    video.policy.set("original=replaceable,psnr=20")
    with pytest.raises(RefusedMediaError, match="mastering display"):
        video.policy.replace_original(codec="h264", psnr=20)


def test_av1_names_them(store: Store, tmp_path: Path) -> None:
    video = store.ingest(clip(tmp_path / "a.mp4", "libx264"))
    video.policy.set("original=replaceable,psnr=20")
    with pytest.raises(RefusedMediaError, match="closed captions"):
        video.policy.replace_original(codec="av1", psnr=20)


def test_units_of_messages_are_escaped() -> None:
    unit = sei_unit("h264", ((5, MARK + b"\0\0\1\0\0\0"), (4, b"\xb5" + bytes(600))))
    assert b"\0\0\1" not in unit
    packet = nal.START_CODE + unit + nal.START_CODE + b"\x65\x80"
    (found,) = carried_messages("h264", "h264", packet, 0)
    assert found == ((5, MARK + b"\0\0\1\0\0\0"), (4, b"\xb5" + bytes(600)))
    assert carried_messages("h264", "h264", nal.START_CODE + sei(6, b"\x80"), 0) == ()
