"""Random single frames of a long video with long GOPs, before and after `tune` saw the reads.

The video is a filmed clip, played again and again and encoded with a key frame every 250 frames.
CPU time of all threads per frame, for every reader in turn, on the same frames. The rendition is
compared with the same frames of the original, which are compared with those of the peers.

`tune` sees reads that were planned and logged, but not carried out: the log has the same entries.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from benchmarks.common import arguments, finish, footage, table
from vfsd.api.reading import plan_view
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.view_request import View
from vfsd.derive.tuner import TuningBudget
from vfsd.read.read_log import ReadTiming, describe_planned_read

CLIP = "real/carpov_highway_960x540.mp4"
GOP = 250
SMALL_BOUND, SMALL_BYTES = 10.0, 0.3
FULL_BOUND, FULL_BYTES = 4.0, 2.0
FRAME_TOLERANCE = 3.0  # dB: a PSNR is that of a segment
EQUAL = 100.0  # dB: `psnr` returns more for equal pictures
SAME_PICTURE = 40.0  # dB: conversions to RGB differ in the last bit; other frames have 30 dB

Get = Callable[[int], Any]


def main() -> None:
    parser = arguments(__doc__, runs=1)
    parser.add_argument("--frames", type=int, default=5000, help="of the video")
    parser.add_argument("--reads", type=int, default=40, help="timed frames for each reader")
    parser.add_argument("--only", metavar="SIZE", help="320 or full")
    parser.add_argument("--learned", type=int, default=20, help="logged reads for each second")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = long_video(footage() / CLIP, options.frames, Path(folder) / "long.mp4")
        for name, scale, bound, most in (
            ("320 px", 3, SMALL_BOUND, SMALL_BYTES),
            ("full size", 1, FULL_BOUND, FULL_BYTES),
        ):
            if options.only and not name.startswith(options.only):
                continue
            figures[name] = found = measured(path, Path(folder) / name[:3], scale, most, options)
            if found["gain"] < bound:
                missed.append(f"{name}: {found['gain']:.1f} >= {bound:g} times the best peer")
            if found["bytes"] > most:
                missed.append(f"{name}: {found['bytes']:.2f} <= {most:g} of the original's bytes")
            if not found["right"]:
                missed.append(f"{name}: content")
    print("\nmissed: " + "; ".join(missed) if missed else "\nall met")
    finish(options, "gop_reads", figures, passed=not missed)


def long_video(clip: Path, frames: int, path: Path) -> Path:
    """The clip, repeated up to that many frames, with a key frame every 250."""
    with av.open(str(clip)) as source:
        pictures = [one.reformat(format="yuv420p") for one in source.decode(video=0)]
    with av.open(str(path), "w") as target:
        stream = target.add_stream("libx264", rate=25)
        stream.width, stream.height = pictures[0].width, pictures[0].height
        stream.options = {
            "preset": "veryfast",
            "crf": "18",
            "x264-params": f"keyint={GOP}:min-keyint={GOP}:scenecut=0",
        }
        for number, picture in zip(range(frames), cycle(pictures), strict=False):
            picture.pts, picture.pict_type = number, 0
            picture.time_base = 1 / stream.codec_context.framerate
            target.mux(stream.encode(picture))
        target.mux(stream.encode(None))
    return path


def measured(path: Path, folder: Path, scale: int, most: float, options: Any) -> dict[str, Any]:
    rng = np.random.default_rng(scale)
    with Store.create(folder) as store:
        video = store.ingest(path)
        size = (video.width // scale, video.height // scale)
        numbers = rng.integers(0, len(video), options.reads).tolist()
        cold = {name: cpu_per_frame(get, numbers, size) for name, get in peers(path).items()}
        cold["vfsd before"] = newly_opened(folder, video.name, numbers, size)
        exact = [video.read(frames=[n], size=size, psnr=float("inf")).data[0] for n in numbers]
        same = all(
            psnr(get(n), video.read(frames=[n], psnr=float("inf")).data[0]) > SAME_PICTURE
            for name, get in peers(path).items()
            for n in numbers[:3]
            if name != "opencv"  # which has blue first
        )
        learn(store, video, size, options.learned, rng)
        began = time.process_time()
        decisions = store.tune(budget=TuningBudget(bytes=round(most * video.original.size)))
        tuning = time.process_time() - began
        made = store.catalog.renditions(video.info)
        cold["vfsd after"] = newly_opened(folder, video.name, numbers, size)
        found = [video.read(frames=[n], size=size) for n in numbers]
        likeness = [psnr(one.data[0], other) for one, other in zip(found, exact, strict=True)]
        right = same and all(
            level >= min(one.psnr, EQUAL) - FRAME_TOLERANCE
            for level, one in zip(likeness, found, strict=True)
        )
        served = sum(not np.isinf(one.psnr) for one in found) / len(found)
        fresh = first_reads(folder, video.name, numbers[0], size)
        result = {
            "milliseconds": {name: 1000 * seconds for name, seconds in cold.items()},
            "gain": min(v for k, v in cold.items() if not k.startswith("vfsd"))
            / cold["vfsd after"],
            "bytes": sum(one.size for one in made) / video.original.size,
            "gops": sorted({one.gop_frames for one in made}),
            "segments": len(made),
            "seconds covered": len(made) / max(1, len(video.tiles.sequences())),
            "served": served,
            "worst psnr": min(likeness),
            "stated psnr": min(one.psnr for one in found),
            "right": right,
            "decisions": len(decisions),
            "tuning": tuning,
            "fresh process": fresh,
        }
    print(f"\n### {size[0]}x{size[1]} of {len(exact)} random frames\n")
    print(table(("", "CPU ms a frame"), [(k, f"{1000 * v:.2f}") for k, v in cold.items()]))
    print({key: value for key, value in result.items() if key != "milliseconds"}, flush=True)
    return result


def learn(store: Store, video: Video, size: tuple[int, int], each: int, rng: Any) -> None:
    """Log random reads: as many for each second of the video."""
    context = context_of(video)
    numbers = rng.integers(0, len(video), each * len(video) // 25).tolist()
    reads = []
    for at, number in enumerate(numbers):
        plan = plan_view(context, View(frames=(number, number + 1, 1), size=size))
        timing = ReadTiming(time.time_ns() + at, 0.01)
        reads.append(
            (
                video.info.digest,
                describe_planned_read("api", plan, context.table, context.costs, timing),
            )
        )
    store.catalog.note_reads(reads, keep=1_000_000)


def newly_opened(folder: Path, name: str, numbers: Sequence[int], size: tuple[int, int]) -> float:
    """CPU seconds per frame with a store that has decoded nothing yet."""
    with Store.open(folder) as store:
        video = store[name]
        return cpu_per_frame(lambda number: read(video, number, size), numbers, None)


def read(video: Video, number: int, size: tuple[int, int]) -> Any:
    return video.read(frames=[number], size=size).data[0]


def psnr(one: Any, other: Any) -> float:
    error = np.square(one.astype(float) - other.astype(float)).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def cpu_per_frame(get: Get, numbers: Sequence[int], size: tuple[int, int] | None) -> float:
    """Peers scale the frame afterwards."""
    get(0)
    began = time.process_time()
    for number in numbers:
        picture = get(number)
        if size is not None and picture.shape[1::-1] != size:
            cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    return (time.process_time() - began) / len(numbers)


def peers(path: Path) -> dict[str, Get]:
    found: dict[str, Get] = {"opencv": _opencv(path), "pyav": _pyav(path)}
    if importlib.util.find_spec("decord") is not None:
        import decord

        reader = decord.VideoReader(str(path), num_threads=1)
        found["decord"] = lambda number: reader[number].asnumpy()
    return found


def _opencv(path: Path) -> Get:
    capture = cv2.VideoCapture(str(path))

    def get(number: int) -> Any:
        capture.set(cv2.CAP_PROP_POS_FRAMES, number)
        return capture.read()[1]

    return get


def _pyav(path: Path) -> Get:
    container = av.open(str(path))
    stream = container.streams.video[0]
    ticks = round(1 / (25 * float(stream.time_base or 1)))

    def get(number: int) -> Any:
        container.seek(number * ticks, stream=stream)
        for picture in container.decode(stream):
            if (picture.pts or 0) >= number * ticks:
                return picture.to_ndarray(format="rgb24")
        raise AssertionError(number)

    return get


FRESH = """
import sys, time
from vfsd.api.store import Store
root, name, number, width, height = sys.argv[1:]
began = time.process_time()
with Store.open(root) as store:
    video = store[name]
    opened = time.process_time()
    spent = []
    for frame in (int(number), (int(number) + 1777) % len(video)):
        start = time.process_time()
        video.read(frames=[frame], size=(int(width), int(height)))
        spent.append(time.process_time() - start)
print(opened - began, *spent)
"""


def first_reads(folder: Path, name: str, number: int, size: tuple[int, int]) -> dict[str, float]:
    """CPU seconds of opening a store, and of the first and the second read, in a new process."""
    arguments = [str(folder), name, str(number), *map(str, size)]
    rows = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", FRESH, *arguments], check=True, capture_output=True, text=True
        )
        rows.append([float(one) for one in done.stdout.split()])
    opened, first, second = np.median(np.array(rows), axis=0).tolist()
    return {"open": opened, "first": first, "second": second}


if __name__ == "__main__":
    main()
