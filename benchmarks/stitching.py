"""Stitching tiles without encoding: exactness in two decoders, time, and overhead in bytes.

The first frames of each clip are encoded with kvazaar, once untiled and once in each layout.  Each
layout is stitched, and every sample of every frame is compared with its tile decoded alone.
libde265 (if `dec265` is installed) must show the same frames as FFmpeg.  Finally, all layouts
follow each other in one stream.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from benchmarks.common import arguments, existing_file, finish, footage, interleaved, table
from vfsd.codecs.bitstreams import nal
from vfsd.codecs.encoding.encoder import EncoderSettings
from vfsd.codecs.frames.planes import plane_bytes
from vfsd.codecs.pyav import exact_fraction
from vfsd.codecs.stitching.hevc_tiles import STITCHABLE, TileStream
from vfsd.codecs.stitching.kvazaar import TREE_BLOCK, encode_tiled, kvazaar_available
from vfsd.codecs.stitching.stitch import StitchedSegment, stitch
from vfsd.tiling.layout import Rect

Planes = list[npt.NDArray[np.uint8]]

CLIPS = (
    "real/birds_duck_1080x1920_hevc.mp4",
    "real/nflx_Tennis_1080p.mp4",
    "real/carpov_highway_960x540.mp4",
    "real/derived_mosaic_4k_hevc.mp4",
)
LAYOUTS = ("2x2", "3x3", "4x4", "mixed")
MOST_MS = 1.0
"""A picture, for stitching."""


def main() -> None:
    parser = arguments(__doc__, runs=5)
    parser.add_argument(
        "videos", nargs="*", type=existing_file, help="default: four of the footage"
    )
    parser.add_argument("--frames", type=int, default=30, help="of each video")
    parser.add_argument("--quality", type=int, default=27, help="kvazaar's quantiser")
    options = parser.parse_args()
    if not kvazaar_available():
        print("kvazaar is not there: pip install 'vfsd[stitch]'", file=sys.stderr)
        finish(options, "stitching", {"skipped": "no kvazaar"}, passed=False)
    videos = options.videos or [footage() / clip for clip in CLIPS if (footage() / clip).exists()]
    videos = videos or [footage() / "traffic.mp4"]
    figures: dict[str, Any] = {}
    rows = []
    for path in videos:
        figures[path.name] = measured = measure(path, options)
        for layout, found in measured.items():
            cells = ("" if value is None else value for value in found.values())
            rows.append((path.name, layout, *cells))
    headings = ("differ in FFmpeg", "in libde265", "ms a picture", "bytes / untiled", "encoded fps")
    print(table(("video", "layout", "pictures", *headings), rows))
    measures = [found for measured in figures.values() for found in measured.values()]
    passed = all(
        not found["ffmpeg"] and not found["libde265"] and (found["ms"] or 0) <= MOST_MS
        for found in measures
    )
    finish(options, "stitching", figures, passed=passed)


def measure(path: Path, options: Namespace) -> dict[str, dict[str, Any]]:
    """The number of differing frames for each layout (None: not compared), and its cost."""
    pictures, rate = head(path, options.frames)
    width, height = pictures[0].width, pictures[0].height
    settings = EncoderSettings("hevc", width, height, options.quality, rate)
    untiled = size(encode_tiled(settings, [width], [height], pictures))
    figures: dict[str, dict[str, Any]] = {}
    segments: list[StitchedSegment] = []
    shown: list[Planes] = []
    for layout in LAYOUTS:
        start = time.perf_counter()
        tiles = encode_tiled(settings, *sizes(layout, width, height), pictures)
        seconds = time.perf_counter() - start
        timing = interleaved({"stitch": partial(stitch, tiles, profile=STITCHABLE)}, options.runs)
        segment = stitch(tiles, profile=STITCHABLE)
        found = list(decode(segment.packets))
        figures[layout] = {
            "pictures": len(found),
            "ffmpeg": differing(found, tiles, len(pictures)),
            "libde265": unlike_libde265(segment.packets, found),
            "ms": timing["stitch"].median / len(pictures) * 1000,
            "bytes": round(size(tiles) / untiled, 3),
            "fps": len(pictures) / seconds,
        }
        segments.append(segment)
        shown += found
    packets = [packet for segment in segments for packet in segment.packets]
    figures["all of them in turn"] = {
        "pictures": len(shown),
        "ffmpeg": unlike(list(decode(packets)), shown),
        "libde265": unlike_libde265(packets, shown),
        "ms": None,
        "bytes": None,
        "fps": None,
    }
    return figures


def head(path: Path, count: int) -> tuple[list[av.VideoFrame], Fraction]:
    """The first frames, in yuv420p with even sides, and the rate."""
    found: list[av.VideoFrame] = []
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        for frame in container.decode(stream):
            width, height = frame.width // 2 * 2, frame.height // 2 * 2
            found.append(frame.reformat(width=width, height=height, format="yuv420p"))
            if len(found) == count:
                break
        return found, exact_fraction(stream.average_rate) or Fraction(25)


def sizes(layout: str, width: int, height: int) -> tuple[list[int], list[int]]:
    """Widths of columns and heights of rows, about equal unless mixed."""
    if layout == "mixed":
        return parts(width, (1 / 6, 1 / 2)), parts(height, (1 / 3, 3 / 4))
    count = int(layout[0])
    cuts = [at / count for at in range(1, count)]
    return parts(width, cuts), parts(height, cuts)


def parts(side: int, cuts: Sequence[float]) -> list[int]:
    """The parts of a side that is cut at whole blocks; cuts that would leave an empty part are
    skipped."""
    edges = {0, side} | {round(side * cut / TREE_BLOCK) * TREE_BLOCK for cut in cuts}
    return [end - start for start, end in pairwise(sorted(edges))]


def size(tiles: Iterable[TileStream]) -> int:
    return sum(len(packet) for tile in tiles for packet in tile.pictures)


def decode(packets: Iterable[bytes], sets: Sequence[bytes] = ()) -> Iterator[Planes]:
    context = av.CodecContext.create("hevc", "r")
    assert isinstance(context, VideoCodecContext)
    context.extradata = b"".join(nal.START_CODE + unit for unit in sets) or None
    context.options = {"err_detect": "explode"}
    for data in packets:
        packet = cast("av.Packet[VideoStream]", av.Packet(data))
        for frame in context.decode(packet):
            yield [plane.copy() for plane in plane_bytes(frame)]
    for frame in context.decode(None):
        yield [plane.copy() for plane in plane_bytes(frame)]


def differing(shown: Sequence[Planes], tiles: Sequence[TileStream], count: int) -> int:
    """The number of frames in which a tile differs from the same tile decoded alone."""
    wrong = set(range(len(shown), count))
    for tile in tiles:
        alone = list(decode(tile.pictures, tile.parameter_sets))
        for at in range(count):
            if at >= min(len(alone), len(shown)) or not same(cut(shown[at], tile.rect), alone[at]):
                wrong.add(at)
    return len(wrong)


def unlike(some: Sequence[Planes], others: Sequence[Planes]) -> int:
    matched = sum(same(one, other) for one, other in zip(some, others, strict=False))
    return max(len(some), len(others)) - matched


def unlike_libde265(packets: Iterable[bytes], shown: Sequence[Planes]) -> int | None:
    """The number of frames that libde265 shows differently; None if it is not installed."""
    program = shutil.which("dec265") or shutil.which("libde265-dec265")
    if program is None:
        return None
    height, width = shown[0][0].shape
    luma, chroma = width * height, width * height // 4
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "stream.hevc", Path(folder) / "pictures.yuv"
        source.write_bytes(b"".join(packets))
        subprocess.run([program, "-q", "-o", target, source], check=True, stdout=subprocess.DEVNULL)
        raw = np.memmap(target, np.uint8, "r").reshape(-1, luma + 2 * chroma)
        found = [
            [
                one[:luma].reshape(height, width),
                one[luma : luma + chroma].reshape(height // 2, width // 2),
                one[luma + chroma :].reshape(height // 2, width // 2),
            ]
            for one in raw
        ]
        return unlike(found, shown)


def cut(picture: Planes, rect: Rect) -> Planes:
    return [
        plane[rect.y1 // part : rect.y2 // part, rect.x1 // part : rect.x2 // part]
        for plane, part in zip(picture, (1, 2, 2), strict=True)
    ]


def same(one: Planes, other: Planes) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    main()
