"""Targets that parse media: frame tables, packs, pages, bitstreams."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from contextlib import suppress

import av
import numpy as np

from benchmarks.common import footage
from benchmarks.fuzzing.engine import Target
from sample_videos import FOLDER, Encoding, Scene, write
from vfsd.codecs.bitstreams import nal, splice_parameter_sets
from vfsd.codecs.bitstreams.packet_inspector import inspector
from vfsd.codecs.cells.cell_decoders import cell_decoder
from vfsd.codecs.cells.pack import CellStream, read_table, write_pack
from vfsd.codecs.probing.probe import examine_source
from vfsd.codecs.probing.serialize import pack_examination, unpack_examination
from vfsd.codecs.stitching.hevc_parameter_sets import (
    PictureParameterSet,
    SequenceParameterSet,
    VideoParameterSet,
)
from vfsd.codecs.stitching.hevc_tiles import ParameterSets, slices_of
from vfsd.core.frame_table_pages import PacketColumns, decode_page, encode_page
from vfsd.core.model import PageBounds
from vfsd.disk.checksums import MediaSource
from vfsd.errors import IntegrityError, RefusedMediaError

_MOST_BYTES = 200_000
_ENDINGS = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".ts", ".h264")
_INSPECTED = ("h264", "hevc", "vp9", "vp8", "mjpeg", "png", "prores")
_MOST_PIXELS = 1 << 22
_CODECS = (b"h264", b"png", b"lossless", b"aac", b"yuv444p12le")
_NUMBERS = (b"-1", b"1e9", b"9" * 5000, b"65536", b"true")


def videos() -> list[bytes]:
    odd = footage() / "odd"
    paths = [*odd.iterdir()] if odd.is_dir() else []
    paths += [path for path in FOLDER.iterdir() if path.suffix in _ENDINGS]
    return [path.read_bytes() for path in sorted(paths) if path.stat().st_size <= _MOST_BYTES]


def _of_bytes(data: bytes) -> int:
    fd = os.memfd_create("input")
    os.write(fd, data)
    return fd


def check_table(data: bytes) -> None:
    """Refuses data that is not a video; otherwise checks the invariants of the frame table."""
    fd = _of_bytes(data)
    try:
        with MediaSource(fd) as source:
            found = examine_source(source, "input")
    except (RefusedMediaError, MemoryError):
        return
    finally:
        os.close(fd)
    unpack_examination(pack_examination(found), len(data))  # which checks everything


def _examinations() -> list[bytes]:
    packed = []
    for name in ("late-start.mp4", "portrait.mp4", "variable-rate.mkv"):
        with MediaSource(FOLDER / name) as source:
            packed.append(pack_examination(examine_source(source, name)))
    return packed


def check_exchange(data: bytes) -> None:
    with suppress(IntegrityError):
        unpack_examination(data, 100_000)


# ------------------------------------------------------------------------------ packs and pages


def _pages() -> list[bytes]:
    at = np.arange(64, dtype=np.int64)
    keys = (at % 25 == 0).astype(np.uint8)
    columns = PacketColumns(at * 512, at * 512, at * 1000 + 48, at + 900, keys)
    mixed = PacketColumns(at * 512 + 7, at * 511, at * 900, at * 3, np.zeros(64, np.uint8))
    return [encode_page(columns, at), encode_page(mixed, at[::-1].copy())]


def check_page(data: bytes) -> None:
    bounds = PageBounds(0, 64, 0, 64, 0, 64 * 512, 0)
    with suppress(IntegrityError):
        page = decode_page(bounds, data)
        assert len(page.columns) == len(page.order) == 64


def _packs() -> list[bytes]:
    packed = []
    for cells in (
        [CellStream("h264", 64, 64, b"\x01d\x00\xff", [b"abc", b"", b"defg"])],
        [_lossless(), _lossless()],
        [_encoded()],
    ):
        file = io.BytesIO()
        write_pack(file, cells)
        packed.append(file.getvalue())
        # Without checksums only the decoder can detect the damage.
        table = packed[-1][13:]
        head = struct.pack("<4sBI", b"vfpk", 1, struct.unpack_from("<I", packed[-1], 5)[0])
        packed.append(head + table)
    return packed


def _lossless() -> CellStream:
    from vfsd.codecs.cells.lossless import PicturePacker

    packer = PicturePacker(1)
    pictures = [packer.pack(picture) for picture in _pictures()]
    told = b'{"pixels":"yuv420p","siting":"left","alone":[0]}'
    return CellStream("lossless", 64, 48, told, pictures)


def _pictures() -> list[av.VideoFrame]:
    rng = np.random.default_rng(2)
    planes = [rng.integers(0, 255, (72, 64), np.uint8) for _ in range(3)]
    return [av.VideoFrame.from_ndarray(plane, format="yuv420p") for plane in planes]


def _encoded() -> CellStream:
    import tempfile
    from fractions import Fraction
    from pathlib import Path

    from vfsd.codecs.probing.probe import examine

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.mp4"
        scene = Scene(96, 64, frames=4, rate=Fraction(25), seed=1)
        write(scene, Encoding("h264", gop=4, bframes=0, preset="ultrafast"), path)
        found, data = examine(path), path.read_bytes()
    places = zip(found.columns.position.tolist(), found.columns.size.tolist(), strict=True)
    packets = [data[at : at + size] for at, size in places]
    return CellStream("h264", 96, 64, found.media.extradata, packets)


def check_pack(data: bytes) -> None:
    """Listed cells either decode or are refused."""
    try:
        table = read_table(lambda at, size: data[at : at + size])
        for cell in table.cells[:4]:
            if cell.width * cell.height > _MOST_PIXELS:
                continue
            decoder = cell_decoder(cell)
            for start, end in zip(cell.offsets[:8], cell.offsets[1:9], strict=False):
                decoder.decode(memoryview(data[start:end]))
            decoder.drain()
    except (IntegrityError, MemoryError):
        return


# ----------------------------------------------------------------------------------- bit streams


def _streams() -> list[bytes]:
    """One byte for the codec, then packets or parameter sets."""
    seeds: list[bytes] = []
    for name in ("elementary.h264", "traffic.mp4", "av1.mp4", "odd-size.webm", "open-gop.mkv"):
        with MediaSource(FOLDER / name) as source:
            found = examine_source(source, name)
        data = (FOLDER / name).read_bytes()
        if found.media.extradata:
            seeds.append(bytes([len(seeds) % 4]) + found.media.extradata)
        for number in (0, 1, 5):
            at, size = int(found.columns.position[number]), int(found.columns.size[number])
            seeds.append(bytes([len(seeds) % 4]) + data[at : at + min(size, 4000)])
    return seeds


def check_bitstream(data: bytes) -> None:
    """Our bit readers detect damage, and never fail in another way."""
    codec = _INSPECTED[data[0] % len(_INSPECTED) if data else 0]
    body, half = data[1:], len(data) // 2
    look = inspector(codec, body[:half])
    if look is not None:
        look(body[half:], bool(data[:1]))
        look(body, False)
    readers: tuple[Callable[[], object], ...] = (
        lambda: [body[a:b] for a, b in nal.nal_units(body, 0)],
        lambda: [body[a:b] for a, b in nal.nal_units(body, 4)],
        lambda: nal.parameter_sets("h264", body),
        lambda: nal.parameter_sets("hevc", body),
        lambda: nal.parse_h264_sps(body),
        lambda: nal.parse_hevc_sps(body),
        lambda: nal.hevc_pps_hides_pictures(body),
        lambda: nal.h264_recovery_is_exact(body),
        lambda: nal.x264_build(body),
        lambda: splice_parameter_sets.parse_h264_sequence(body),
        lambda: VideoParameterSet.parse(body),
        lambda: SequenceParameterSet.parse(body),
        lambda: PictureParameterSet.parse(body),
        lambda: ParameterSets.parse((body[:half], body[half:])),
        lambda: slices_of(body),
        lambda: list(nal.obu_units(body)),
        lambda: nal.without_temporal_delimiter(body),
        lambda: nal.av1c(nal.av1_sequence_header(body), is_deep=False),
        lambda: nal.unescaped(body),
    )
    for read in readers:
        with suppress(nal.BitstreamError, RefusedMediaError):
            read()


TARGETS = (
    Target("tables", "frame tables of damaged videos", check_table, videos, seconds=120),
    Target("exchange", "what a process that examines hands over", check_exchange, _examinations),
    Target("pages", "pages of frame tables", check_page, _pages),
    Target(
        "packs",
        "packs of tiles, and decoding them",
        check_pack,
        _packs,
        words=(
            *_CODECS,
            *_NUMBERS,
            b"null",
            b"[" * 5000,
            b'"sizes":[',
            b'"joint":[],',
            b'"width":',
        ),
        seconds=60,
    ),
    Target("bitstreams", "readers of NAL units, OBUs, headers", check_bitstream, _streams),
)
