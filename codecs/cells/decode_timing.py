"""Times trial decodes for the cost model.

Encodes synthetic streams of several sizes and qualities, and measures the CPU time of decoding
them.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import av
import cv2
import numpy as np

from vfsd.codecs.cells.cell_decoders import cell_decoder
from vfsd.codecs.cells.cell_encoders import TILE_CODECS, TileCodec, encode_cells
from vfsd.codecs.cells.pack import CellStream, PackedCell
from vfsd.codecs.frames.quality import SourcePicture
from vfsd.codecs.pyav import new_encoder, open_encoder
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE
from vfsd.codecs.stitching.kvazaar import kvazaar_available
from vfsd.core.model import MediaInfo
from vfsd.tiling import Rect
from vfsd.tiling.cost import LOSSLESS, RAW_CELLS, WEB, DecodeWork

_SIZES = ((64, 64), (128, 128), (320, 176), (640, 368), (1280, 720))
_PICTURES = 24
_REPEATS = 3
# Standard deviations of the noise in levels, which sets the bits of static areas.
_NOISE = (1.0, 3.0)

_ENCODERS = {
    "h264": ("libx264", {"preset": "medium"}, (20, 28)),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "log-level=none"}, (22, 30)),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "b": "0"}, (30, 45)),
    "av1": ("libsvtav1", {"preset": "10", "svtav1-params": "lp=1"}, (30, 45)),
}
# (tile codec, qualities to try) by the name of the cost.
_TILES = {
    "fast": ("fast", (17, 21, 26)),
    "small": ("small", (25, 35, 45)),
    STITCHABLE: (STITCHABLE, (18, 24, 30)),
    WEB: (WEB, (20, 26)),
    LOSSLESS: (LOSSLESS, (1, 9)),
    RAW_CELLS: (LOSSLESS, (0,)),
}

TIMED_CODECS = (*_ENCODERS, *_TILES)
"""Codecs by FFmpeg's name, tile codecs, and lossless cells that are not compressed."""


def is_encoder_available(name: str) -> bool:
    """Return whether the encoder is installed."""
    return name != STITCHABLE or kvazaar_available()


@dataclass(frozen=True, slots=True)
class TimedDecode:
    """The timing of one stream, decoded on its own."""

    work: DecodeWork
    seconds: float  #: least CPU time of several decodes
    encode_seconds: float | None  #: CPU time of encoding; tile codecs only


def timed_decodes(name: str) -> Iterator[TimedDecode]:
    """Yield timings of streams of several sizes and qualities, whole and in part."""
    for width, height in _SIZES:
        for noise in _NOISE:
            pictures = _synthetic_pictures(width, height, noise)
            qualities = _TILES[name][1] if name in _TILES else _ENCODERS[name][2]
            for quality in qualities:
                start = _cpu_seconds()
                if name in _TILES:
                    stream = _encoded_tile(TILE_CODECS[_TILES[name][0]], pictures, quality)
                    spent: float | None = _cpu_seconds() - start
                else:
                    stream = _encoded_stream(name, pictures, quality)
                    spent = None
                for count in (_PICTURES, _PICTURES // 4):
                    part = stream.packets[:count]
                    yield TimedDecode(
                        DecodeWork(1, count, count * width * height, sum(map(len, part))),
                        min(_decode(stream, part) for _ in range(_REPEATS)),
                        spent if count == _PICTURES else None,
                    )


def _cpu_seconds() -> float:
    """Return CPU seconds of all threads and of ended child processes; encoders use both."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _decode(stream: CellStream, packets: Sequence[bytes]) -> float:
    cell = PackedCell(stream.codec, stream.width, stream.height, stream.extradata, ())
    start = time.thread_time()
    decoder = cell_decoder(cell)
    for packet in packets:
        decoder.decode(memoryview(packet))
    decoder.drain()
    return time.thread_time() - start


def _encoded_tile(codec: TileCodec, pictures: Sequence[av.VideoFrame], quality: int) -> CellStream:
    width, height = pictures[0].width, pictures[0].height
    tile = {Rect.of_size(width, height): quality}
    ((stream, _),) = encode_cells(
        codec, _media_info(width, height), tile, map(SourcePicture, pictures)
    )
    return stream


def _encoded_stream(name: str, pictures: Sequence[av.VideoFrame], quality: int) -> CellStream:
    encoder, options, _ = _ENCODERS[name]
    context = new_encoder(encoder)
    context.width, context.height = pictures[0].width, pictures[0].height
    context.pix_fmt = "yuv420p"
    context.framerate = Fraction(25)
    context.thread_count = 1
    context.options = {**options, "crf": str(quality), "flags": "+global_header"}
    open_encoder(context)
    packets = []
    for number, picture in enumerate(pictures):
        picture.pts = number
        packets += [bytes(packet) for packet in context.encode(picture)]
    packets += [bytes(packet) for packet in context.encode(None)]
    extradata = bytes(context.extradata or b"")
    return CellStream(name, context.width, context.height, extradata, packets)


def _synthetic_pictures(width: int, height: int, noise: float) -> list[av.VideoFrame]:
    """Return pictures of a still texture with moving parts and noise; the same every time."""
    rng = np.random.default_rng(1)
    rough = rng.normal(0, 1, (height + 64, width + 64)).astype(np.float32)
    smooth = np.asarray(cv2.GaussianBlur(rough, (0, 0), 3))
    texture = 128 + smooth * (40 / max(float(smooth.std()), 1e-6))
    side = max(16, min(width, height) // 4)
    pictures = []
    for number in range(_PICTURES):
        luma = texture[:height, :width].copy()
        for part in range(4):
            x = (number * (2 + part) + part * width // 4) % max(1, width - side)
            y = (part * height // 4 + number) % max(1, height - side)
            luma[y : y + side, x : x + side] = texture[64 : 64 + side, 64 : 64 + side]
        luma += rng.normal(0, noise, luma.shape)
        planes = np.full((height * 3 // 2, width), 128, np.uint8)
        planes[:height] = np.clip(luma, 16, 235)
        pictures.append(av.VideoFrame.from_ndarray(planes, format="yuv420p"))
    return pictures


def _media_info(width: int, height: int) -> MediaInfo:
    return MediaInfo(
        container="",
        codec="rawvideo",
        profile=None,
        width=width,
        height=height,
        pixel_format="yuv420p",
        time_base=Fraction(1, 25),
        average_rate=None,
    )
