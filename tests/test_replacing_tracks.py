"""A replacement carries tracks of time codes, chapters and telemetry as they are."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import pytest

from tests.carrying import noisy_clip, value_at, with_box
from tests.replaceable import time_coded_clip
from vfsd.api.store import Store
from vfsd.codecs.containers.isobmff import make_box, make_full_box
from vfsd.errors import RefusedMediaError

ENTRY = "moov/trak 1/mdia/minf/stbl/stsd"


def replaced(store: Store, path: Path) -> Path:
    """The stored file after a replacement, under a name with the suffix of `path`."""
    video = store.ingest(path)
    video.policy.set("original=replaceable,psnr=20")
    video.policy.replace_original(codec="h264", psnr=20)
    made = path.with_name(f"made{path.suffix}")
    made.write_bytes(store.parts.bytes_of(store[path.name].original).read_bytes())
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
    """Noise with a track of GoPro's telemetry."""
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
    """Noise with two chapters in a track of text."""
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


def test_time_codes_stay(store: Store, tmp_path: Path) -> None:
    path = time_coded_clip(tmp_path)
    made = replaced(store, path)
    for place in ("mdia/minf/stbl/stsd", "mdia/hdlr", "mdia/minf/gmhd"):
        assert value_at(made, f"moov/trak 2/{place}") == value_at(path, f"moov/trak 2/{place}")
    assert value_at(made, "moov/trak/tref/tmcd") == value_at(path, "moov/trak/tref/tmcd")
    assert packets(made, 2) == packets(path, 2) != []
    with av.open(str(made)) as opened:
        assert opened.streams.video[0].metadata["timecode"] == "00:00:00:00"


@pytest.mark.parametrize("kind", [b"gpmd", b"mebx", b"mett"])
def test_telemetry_stays(store: Store, tmp_path: Path, kind: bytes) -> None:
    path = telemetry_clip(tmp_path / "a.mp4")
    path.write_bytes(path.read_bytes().replace(b"gpmd", kind))
    made = replaced(store, path)
    assert value_at(made, ENTRY) == value_at(path, ENTRY)
    assert kind in (value_at(made, ENTRY) or b"")
    assert packets(made, 1) == packets(path, 1) != []


@pytest.mark.parametrize("suffix", ["mp4", "mov"])
def test_chapters_stay(store: Store, tmp_path: Path, suffix: str) -> None:
    path = chapters_clip(tmp_path / f"a.{suffix}")
    made = replaced(store, path)
    assert packets(made, 2) == packets(path, 2) != []
    with av.open(str(path)) as before, av.open(str(made)) as after:
        assert [one["metadata"]["title"] for one in after.chapters()] == ["part 0", "part 1"]
        assert after.chapters() == before.chapters()


def test_chapters_in_user_data_stay(store: Store, tmp_path: Path) -> None:
    chapters = b"".join(
        struct.pack(">QB", 2_000_000 * n, 6) + f"part {n}".encode() for n in range(2)
    )
    path = noisy_clip(tmp_path / "a.mp4", sound=False)
    with_box(path, "moov/udta", make_full_box(b"chpl", 1, 0, bytes(4) + b"\2" + chapters))
    made = replaced(store, path)
    with av.open(str(path)) as before, av.open(str(made)) as after:
        assert len(before.chapters()) == 2
        assert after.chapters() == before.chapters()


def test_unknown_boxes_of_data_tracks_are_named(store: Store, tmp_path: Path) -> None:
    path = telemetry_clip(tmp_path / "a.mp4")
    with_box(path, "moov/trak 1/mdia/minf/stbl", make_box(b"zzzz", b"unknown"))
    with pytest.raises(RefusedMediaError, match="stream 1/mdia/minf/stbl/zzzz"):
        replaced(store, path)
