"""The measurements of scripts/demo.sh: one read of a region, before and after it is a tile.

python -m scripts.demo_tiles STORE VIDEO span             print the seconds that are tiled: 0-6
python -m scripts.demo_tiles STORE VIDEO region           print the region: 640x360+320+180
python -m scripts.demo_tiles STORE VIDEO before KEPT.npz  measure, and keep pixels and time
python -m scripts.demo_tiles STORE VIDEO after KEPT.npz   measure, compare, and print both times
"""

from __future__ import annotations

import math
import sys
import threading
import time
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from vfsd import Frames, Store, Video

# Seconds that are tiled, at most: of a long video the demo tiles only the beginning.
_LONGEST = Fraction(10)
# Seconds that are read for the measurement, at most.
_READ = Fraction(4)
# The kernel may take longer to give memory for the pixels than the decoder takes to fill it, more
# often in the first reads of a process.
_TRIES = 6
# dB that each channel needs where the store has not measured what it gives.
_LOWEST = 30.0
_ROUNDING = 0.1


def main(arguments: list[str]) -> int:
    """Runs one command; returns the exit status."""
    store, name, command, *rest = arguments
    if command in ("span", "region"):
        with Store.open(store) as opened:
            print(_span(opened[name]) if command == "span" else _geometry(opened[name]))
        return 0
    (kept,) = rest
    frames, taken = _measure(store, name)
    if command == "before":
        np.savez(kept, pixels=frames.data, taken=taken)
        print(f"{_about(frames)}, from the original: {_times(*taken)}")
        return 0
    with np.load(kept) as before:
        pixels, earlier = before["pixels"], tuple(before["taken"].tolist())
    print(f"before tiling  {_times(*earlier)}")
    print(f"after tiling   {_times(*taken)}: {taken[1] / earlier[1]:.0%} of the CPU time")
    if pixels.shape != frames.data.shape:
        print(f"the read must give {len(pixels)} frames again, got {len(frames.data)}")
        return 1
    worst = _worst_psnr(pixels, frames.data)
    print(f"{_about(frames)}, the same; every channel of each has at least {worst:.1f} dB")
    wanted = frames.psnr or _LOWEST
    if worst < wanted - _ROUNDING:
        print(f"every channel of each frame must have {wanted:.1f} dB")
        return 1
    return 0


def _span(video: Video) -> str:
    return f"0-{float(min(video.duration, _LONGEST)):.3f}"


def _region(video: Video) -> tuple[int, int, int, int]:
    """The middle of the displayed frame, half as wide and high: (x1, y1, x2, y2) in pixels."""
    left, top = video.width // 4, video.height // 4
    return left, top, left + max(1, video.width // 2), top + max(1, video.height // 2)


def _geometry(video: Video) -> str:
    x1, y1, x2, y2 = _region(video)
    return f"{x2 - x1}x{y2 - y1}+{x1}+{y1}"


def _measure(store: str, name: str) -> tuple[Frames, tuple[float, float]]:
    """The region's frames, and the wall time and CPU time of reading them, in seconds.

    Each time is the least of some reads.  Each read is in a store that was just opened, so that no
    decoder is warm.
    """
    walls, cpus = [], []
    for _ in range(_TRIES):
        _wait_for_threads()
        with Store.open(store) as opened:
            video = opened[name]
            end = min(video.duration, _READ)
            wall, cpu = time.perf_counter(), time.process_time()
            frames = video.read(span=(0, end), region=_region(video))
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
    return frames, (min(walls), min(cpus))


def _wait_for_threads() -> None:
    """The first read is logged by a thread.  In a new environment that compiles modules for a
    second, and its CPU time would count as that of the next read."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(10)


def _times(wall: float, cpu: float) -> str:
    return f"{wall * 1000:.0f} ms ({cpu * 1000:.0f} ms of CPU time)"


def _about(frames: Frames) -> str:
    count, height, width = frames.data.shape[:3]
    return f"{count} frames of {width}x{height}"


def _worst_psnr(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> float:
    """The least dB of any channel of any frame; infinite where all pixels are equal."""
    worst = 0.0
    for mine, theirs in zip(one, other, strict=True):  # one by one, since the floats are large
        difference = mine.astype(np.float32) - theirs.astype(np.float32)
        worst = max(worst, float(np.square(difference).mean(axis=(0, 1)).max()))
    return math.inf if worst == 0 else 10 * math.log10(255**2 / worst)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
