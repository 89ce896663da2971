"""HEVC decoded by two decoders, plane by plane, and tiles to decode."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from sample_videos import Scene
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.encoding.encoder import EncoderSettings
from vfsd.codecs.frames.planes import plane_bytes
from vfsd.codecs.stitching.hevc_tiles import TileStream
from vfsd.codecs.stitching.kvazaar import encode_tiled
from vfsd.tiling.layout import Rect

Planes = tuple[npt.NDArray[Any], ...]
"""Y, U, V."""


@cache
def scene(width: int, height: int, frames: int = 10, seed: int = 3) -> tuple[av.VideoFrame, ...]:
    """Objects that cross the picture while the camera turns."""
    made = Scene(
        width=max(width, 160),
        height=max(height, 120),
        frames=frames,
        density=0.4,
        pan=40,
        seed=seed,
    )
    frames_ = (made.frame(index)[:height, :width] for index in range(frames))
    return tuple(
        av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb), format="rgb24").reformat(
            format="yuv420p"
        )
        for rgb in frames_
    )


def settings(width: int, height: int, quality: int = 27) -> EncoderSettings:
    return EncoderSettings("hevc", width, height, quality, Fraction(30))


@cache
def tiles(
    widths: tuple[int, ...], heights: tuple[int, ...], quality: int = 27, frames: int = 10
) -> tuple[TileStream, ...]:
    """A scene in that layout."""
    width, height = sum(widths), sum(heights)
    pictures = scene(width, height, frames)
    return tuple(encode_tiled(settings(width, height, quality), widths, heights, pictures))


def by_ffmpeg(packets: Iterable[bytes], sets: Sequence[bytes] = ()) -> list[Planes]:
    """All frames; damage is an error."""
    context = av.CodecContext.create("hevc", "r")
    assert isinstance(context, VideoCodecContext)
    context.extradata = b"".join(nal.START_CODE + unit for unit in sets) or None
    context.thread_count = 1
    context.options = {"err_detect": "explode"}
    return decoded(context, packets)


def decoded(context: VideoCodecContext, packets: Iterable[bytes]) -> list[Planes]:
    found = []
    for ordinal, data in enumerate(packets):
        packet = cast("av.Packet[VideoStream]", av.Packet(data))
        packet.pts = packet.dts = ordinal
        found += [samples(frame) for frame in context.decode(packet)]
    return found + [samples(frame) for frame in context.decode(None)]


def samples(frame: av.VideoFrame) -> Planes:
    return tuple(plane.copy() for plane in plane_bytes(frame))


def by_libde265(program: str, packets: Sequence[bytes], folder: Path) -> list[Planes]:
    """All frames of an elementary stream with one frame size."""
    height, width = by_ffmpeg(packets[:1])[0][0].shape
    return file_by_libde265(program, b"".join(packets), width, height, folder)


def file_by_libde265(
    program: str, data: bytes, width: int, height: int, folder: Path
) -> list[Planes]:
    source, target = folder / "stream.hevc", folder / "pictures.yuv"
    source.write_bytes(data)
    done = subprocess.run(
        [program, "-q", "-o", str(target), str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    raw = np.fromfile(target, np.uint8).reshape(-1, width * height * 3 // 2)
    luma, chroma = width * height, width * height // 4
    return [
        (
            one[:luma].reshape(height, width),
            one[luma : luma + chroma].reshape(height // 2, width // 2),
            one[luma + chroma :].reshape(height // 2, width // 2),
        )
        for one in raw
    ]


def cut(picture: Planes, rect: Rect) -> Planes:
    return tuple(
        plane[rect.y1 // part : rect.y2 // part, rect.x1 // part : rect.x2 // part]
        for plane, part in zip(picture, (1, 2, 2), strict=True)
    )


def are_equal(some: Sequence[Planes], others: Sequence[Planes]) -> bool:
    """Whether both have the same number of frames and equal samples in every plane."""
    return len(some) == len(others) and all(
        np.array_equal(one, other)
        for picture, likewise in zip(some, others, strict=True)
        for one, other in zip(picture, likewise, strict=True)
    )


def differing_tiles(
    pictures: Sequence[Planes], origin: Rect, parts: Iterable[TileStream]
) -> list[Rect]:
    """The tiles that differ in any frame from the same tile decoded alone.

    `origin` is the region that the frames show.
    """
    found = []
    for part in parts:
        place = part.rect.moved(-origin.x1, -origin.y1)
        alone = by_ffmpeg(part.pictures, part.parameter_sets)
        if not alone or not are_equal([cut(picture, place) for picture in pictures], alone):
            found.append(part.rect)
    return found


def rects(widths: Sequence[int], heights: Sequence[int]) -> list[Rect]:
    """The tiles of a layout, row by row."""
    columns, rows = ([0, *np.cumsum(sizes).tolist()] for sizes in (widths, heights))
    return [Rect(x1, y1, x2, y2) for y1, y2 in pairwise(rows) for x1, x2 in pairwise(columns)]


def crop(frame: av.VideoFrame, rect: Rect) -> npt.NDArray[np.uint8]:
    """Part of a frame, as the encoders accept it."""
    flat: npt.NDArray[np.uint8] = np.concatenate([p.ravel() for p in cut(samples(frame), rect)])
    return flat.reshape(-1, rect.width)
