"""Lossless compression of raw frames: plain Zstandard, and Zstandard after prediction.

Consecutive frames of each clip, as RGB (the raw format of VSS) and as yuv420p (the output of
decoders), are stored raw, as one Zstandard frame for all of them, and as packets of
`vfsd.codecs.cells.lossless`, each at several levels.  Every sample is compared with the input.
Speeds are bytes of raw frames per CPU second of one thread, medians of the runs.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import av
import zstandard

from benchmarks.common import Result, arguments, existing_file, finish, footage, table
from vfsd.codecs.cells.lossless import PicturePacker, PictureUnpacker
from vfsd.codecs.frames.color import frame_siting
from vfsd.codecs.frames.planes import plane_bytes

CLIPS = (
    "real/nflx_OldTownCross_1080p.mp4",
    "real/birds_duck_1080x1920_hevc.mp4",
    "real/detrac_crossing_960x540.mp4",
    "real/carpov_highway_960x540.mp4",
    "real/phone_pan_campus_720p.mp4",
    "real/intel_cars_topdown_768x432.mp4",
    "real/otv_testvideo1_800x600.mkv",
)
FORMATS = ("rgb24", "yuv420p")
LEVELS = (1, 9, 16, 19)
LEAST_RATIO, LEAST_SPEED = 1.5, 3.0
"""How much smaller, and how much faster than Zstandard at its highest level, RGB has to become at
some level of ours, which a store chooses by the room that is left."""


@dataclass(frozen=True)
class Packed:
    """Frames packed in one way."""

    ratio: float  #: raw bytes / packed bytes
    pack: float  #: megabytes of raw frames per second
    unpack: float
    fps: float  #: frames unpacked per second
    wrong: int  #: frames that differ after unpacking


class Plain:
    """All frames as one Zstandard frame, or unchanged with level 0."""

    def __init__(self, pictures: Sequence[av.VideoFrame], level: int) -> None:
        self._samples = [samples_of(picture) for picture in pictures]
        self._compressor = zstandard.ZstdCompressor(level=level) if level else None

    def pack(self) -> list[bytes]:
        whole = b"".join(self._samples)
        return [self._compressor.compress(whole) if self._compressor else whole]

    def unpack(self, packets: Sequence[bytes]) -> Iterator[bytes]:
        whole = packets[0]
        if self._compressor:
            whole = zstandard.ZstdDecompressor().decompress(whole)
        size = len(self._samples[0])
        return (whole[at : at + size] for at in range(0, len(whole), size))

    def samples(self, packets: Sequence[bytes]) -> list[bytes]:
        return list(self.unpack(packets))


class Ours:
    """One packet per frame, as in lossless cells."""

    def __init__(self, pictures: Sequence[av.VideoFrame], level: int) -> None:
        self._pictures = pictures
        self._level = level

    def pack(self) -> list[bytes]:
        packer = PicturePacker(self._level)
        return [packer.pack(picture) for picture in self._pictures]

    def unpack(self, packets: Sequence[bytes]) -> Iterator[av.VideoFrame]:
        first = self._pictures[0]
        unpacker = PictureUnpacker(
            first.width, first.height, first.format.name, frame_siting(first)
        )
        return (unpacker.unpack(memoryview(packet)) for packet in packets)

    def samples(self, packets: Sequence[bytes]) -> list[bytes]:
        return [samples_of(picture) for picture in self.unpack(packets)]


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument(
        "videos", nargs="*", type=existing_file, help="default: seven of the footage"
    )
    parser.add_argument("--frames", type=int, default=10, help="of each video")
    parser.add_argument("--levels", type=int, nargs="+", default=list(LEVELS))
    options = parser.parse_args()
    videos = options.videos or [footage() / name for name in CLIPS]
    videos = [path for path in videos if path.exists()] or sorted(footage().glob("*.mp4"))[:3]
    figures = {path.name: measured(path, options) for path in videos}
    for pixel_format in FORMATS:
        print(f"\n{pixel_format}: ratio (packed MB/s, unpacked MB/s)\n")
        print(summary(figures, pixel_format))
    highest = max(options.levels)
    passed = True
    for name, found in figures.items():
        level = enough(found["rgb24"], highest, options.levels)
        passed = passed and level is not None
        smaller, faster = gains(found["rgb24"], highest, highest if level is None else level)
        print(
            f"{name}, RGB: ours {level if level is not None else f'misses; {highest}'} is "
            f"{smaller:.2f} times smaller than zstd {highest}, {faster:.1f} times as fast"
        )
    wrong = sum(
        one.wrong for found in figures.values() for ways in found.values() for one in ways.values()
    )
    print(f"{wrong} pictures came out changed")
    passed = passed and not wrong
    plain = {
        name: {
            pixel_format: {way: asdict(one) for way, one in ways.items()}
            for pixel_format, ways in found.items()
        }
        for name, found in figures.items()
    }
    finish(options, "deferred", plain, passed=passed)


def measured(path: Path, options: Namespace) -> dict[str, dict[str, Packed]]:
    """Results by format and packing method."""
    with av.open(str(path)) as container:
        pictures = list(islice(container.decode(video=0), options.frames))
    found: dict[str, dict[str, Packed]] = {}
    for pixel_format in FORMATS:
        given = [picture.reformat(format=pixel_format) for picture in pictures]
        ways: dict[str, Plain | Ours] = {"raw": Ours(given, 0)}
        ways |= {f"zstd {level}": Plain(given, level) for level in options.levels}
        ways |= {f"ours {level}": Ours(given, level) for level in options.levels}
        found[pixel_format] = {name: packed(way, given, options.runs) for name, way in ways.items()}
    return found


def packed(way: Plain | Ours, pictures: Sequence[av.VideoFrame], runs: int) -> Packed:
    samples = [samples_of(picture) for picture in pictures]
    packets, packing = timed(way.pack, runs)
    _, unpacking = timed(lambda: deque(way.unpack(packets), maxlen=0), runs)
    shown = way.samples(packets)
    raw = sum(map(len, samples))
    return Packed(
        ratio=raw / sum(map(len, packets)),
        pack=raw / packing / 1e6,
        unpack=raw / unpacking / 1e6,
        fps=len(pictures) / unpacking,
        wrong=sum(one != other for one, other in zip(samples, shown, strict=True)),
    )


def timed(work: Callable[[], Result], runs: int) -> tuple[Result, float]:
    """The result, and the median CPU time in seconds; slow work runs only once."""
    seconds: list[float] = []
    while len(seconds) < runs and sum(seconds) < 3:
        start = time.thread_time()
        result = work()
        seconds.append(max(time.thread_time() - start, 1e-9))
    return result, statistics.median(seconds)


def samples_of(picture: av.VideoFrame) -> bytes:
    return b"".join(plane.tobytes() for plane in plane_bytes(picture))


def gains(ways: Mapping[str, Packed], highest: int, level: int) -> tuple[float, float]:
    """The ratios of compression and of speed between ours and Zstandard at its highest level."""
    plain, ours = ways[f"zstd {highest}"], ways[f"ours {level}"]
    return ours.ratio / plain.ratio, ours.pack / plain.pack


def enough(ways: Mapping[str, Packed], highest: int, levels: Sequence[int]) -> int | None:
    """The lowest of our levels that meets both bounds; None if no level does."""
    for level in sorted(levels):
        smaller, faster = gains(ways, highest, level)
        if smaller >= LEAST_RATIO and faster >= LEAST_SPEED:
            return level
    return None


def summary(figures: dict[str, dict[str, dict[str, Packed]]], pixel_format: str) -> str:
    rows = []
    for name, found in figures.items():
        ways = found[pixel_format]
        cells = [f"{one.ratio:.2f} ({one.pack:.0f}, {one.unpack:.0f})" for one in ways.values()]
        rows.append([name, *cells])
    ways = next(iter(figures.values()))[pixel_format]
    return table(["video", *ways], rows)


if __name__ == "__main__":
    main()
