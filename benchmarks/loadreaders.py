"""Readers of a mount, each a process that compares all data with the expected data.

``python -m benchmarks.loadreaders KIND MOUNT STORE TRUTHS UNTIL SEED`` reads until CLOCK_MONOTONIC
reaches UNTIL, and prints its results as JSON.  Readers of plain files import little, to start fast.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.loadtruth import Truth, load, opened

PLAIN = ("sequential", "random")
VIEWS = ("raw", "region", "tiled", "encoded", "stills")
KINDS = (*PLAIN, *VIEWS, "api")

LEAST_PSNR = 27.0
"""PSNR of luma in each frame of an encoded view, which has a fixed number of bytes."""
LEAST_TILED_PSNR = 34.0
_BLOCK = 1 << 17
_KEPT = 50_000


@dataclass(slots=True)
class Seen:
    """The results of one process."""

    kind: str
    operations: int = 0
    bytes: int = 0
    wrong: list[str] = field(default_factory=list)  #: reads with wrong content
    errors: list[str] = field(default_factory=list)
    #: latencies of all read(2) calls, or of a sample
    seconds: list[float] = field(default_factory=list)
    reads: int = 0

    def note(self, seconds: float, rng: random.Random) -> None:
        """Record the duration of one read; a uniform sample is kept."""
        self.reads += 1
        if len(self.seconds) < _KEPT:
            self.seconds.append(seconds)
        elif (at := rng.randrange(self.reads)) < _KEPT:
            self.seconds[at] = seconds


class Reader:
    """Performs one kind of reads; each method performs one and raises `OSError`."""

    def __init__(self, seen: Seen, place: Path, store: Path, truths: list[Truth], seed: int):
        self._seen = seen
        self._place = place
        self._store = store
        self._truths = truths
        self._rng = random.Random(seed)
        self._files = {one.name: opened(one.file) for one in truths}
        self._known = {one.name: opened(one.pictures) for one in truths}
        self._buffer = mmap.mmap(-1, 1 << 20)
        self._opened: Any = None

    def once(self) -> None:
        truth = self._rng.choice(self._truths)
        work: Callable[[Truth], None] = getattr(self, self._seen.kind)
        try:
            work(truth)
        except OSError as error:
            self._seen.errors.append(f"{self._seen.kind} {truth.name}: {error}")
        self._seen.operations += 1

    # -- files

    def sequential(self, truth: Truth) -> None:
        fd, found = self._plain(truth, os.POSIX_FADV_NORMAL), hashlib.blake2b()
        view = memoryview(self._buffer)[:_BLOCK]
        try:
            while count := self._timed(fd, view, None):
                found.update(view[:count])
        finally:
            os.close(fd)
        self._compare(found.hexdigest() == truth.digest, truth.name)

    def random(self, truth: Truth) -> None:
        fd, right = self._plain(truth, os.POSIX_FADV_RANDOM), self._files[truth.name]
        view = memoryview(self._buffer)[:4096]
        try:
            for _ in range(50):
                at = self._rng.randrange(max(1, len(right) // 4096)) * 4096
                count = self._timed(fd, view, at)
                self._compare(view[:count] == right[at : at + 4096], f"{truth.name} at {at}")
        finally:
            os.close(fd)

    def _plain(self, truth: Truth, advice: int) -> int:
        """Reads a file that is not in the page cache, so that each read reaches the mount."""
        fd = os.open(self._place / truth.name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, advice)
        return fd

    def _timed(self, fd: int, view: memoryview, at: int | None) -> int:
        start = time.perf_counter()
        count = os.readv(fd, [view]) if at is None else os.preadv(fd, [view], at)
        self._seen.note(time.perf_counter() - start, self._rng)
        self._seen.bytes += count
        return count

    # -- views

    def raw(self, truth: Truth) -> None:
        """Samples of the original, exactly."""
        first, stop = self._span(truth, 12)
        data = self._view(truth, f"frames={first}-{stop},psnr=inf.yuv")
        size, known = truth.picture_bytes, self._known[truth.name]
        self._compare(len(data) == size * (stop - first), f"{truth.name}: size")
        for number, frame in enumerate(range(first, stop)):
            is_right = data[number * size : (number + 1) * size] == truth.picture(known, frame)
            self._compare(is_right, f"{truth.name}: frame {frame}")

    def region(self, truth: Truth) -> None:
        """A region of frames of the original, exactly."""
        first, stop = self._span(truth, 12)
        x, y, size = self._area(truth)
        name = f"frames={first}-{stop},roi={size[0]}x{size[1]}+{x}+{y},psnr=inf.yuv"
        data, known = self._view(truth, name), self._known[truth.name]
        right = b"".join(truth.region(known, i, x, y, size) for i in range(first, stop))
        self._compare(data == right, f"{truth.name}@/{name}")

    def tiled(self, truth: Truth) -> None:
        """A region of frames, from the cheapest source."""
        first, stop = self._span(truth, 12)
        x, y, size = self._area(truth)
        name = f"frames={first}-{stop},roi={size[0]}x{size[1]}+{x}+{y}.yuv"
        data, known = self._view(truth, name), self._known[truth.name]
        right = b"".join(truth.region(known, i, x, y, size) for i in range(first, stop))
        near = len(data) == len(right) and _psnr(data, right) >= LEAST_TILED_PSNR
        self._compare(near, f"{truth.name}@/{name}")

    def encoded(self, truth: Truth) -> None:
        import av

        first, stop = self._span(truth, 30)
        x, y, size = self._area(truth)
        name = f"frames={first}-{stop},roi={size[0]}x{size[1]}+{x}+{y}.mp4"
        self._view(truth, name)
        known, count = self._known[truth.name], 0
        with av.open(str(self._place / f"{truth.name}@" / name)) as container:
            for count, picture in enumerate(container.decode(video=0), start=1):
                luma = picture.to_ndarray(format="yuv420p")[: size[1]].tobytes()
                right = truth.region(known, first + count - 1, x, y, size)[: len(luma)]
                near = _psnr(luma, right) >= LEAST_PSNR
                self._compare(near, f"{truth.name}@/{name}: picture {count}")
        self._compare(count == stop - first, f"{truth.name}@/{name}: {count} pictures")

    def stills(self, truth: Truth) -> None:
        """A still compared with the state before the load; the three forms alternate."""
        import cv2
        import numpy as np

        frame = self._rng.randrange(truth.frames)
        form = self._rng.choice(("png", "jpg"))
        data = self._view(truth, f"frames/{frame:06}.{form}")
        shown = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
        right = np.frombuffer(
            self._known[truth.name],
            np.uint8,
            truth.width * truth.height,
            frame * truth.picture_bytes,
        ).reshape(truth.height, truth.width)
        if shown is None or shown.shape != right.shape:
            self._compare(False, f"{truth.name}@/frames/{frame:06}.{form}: no such picture")
            return
        # Luma in limited or full range is a linear function of FFmpeg's luma for every matrix.
        near = np.corrcoef(shown.ravel()[::7], right.ravel()[::7])[0, 1] > 0.97
        self._compare(bool(near), f"{truth.name}@/frames/{frame:06}.{form}")

    def api(self, truth: Truth) -> None:
        """Read in a process that has opened the store itself."""
        from vfsd.api.store import Store

        if self._opened is None:
            self._opened = Store.open(self._store, read_only=True)
        first, stop = self._span(truth, 12)
        x, y, size = self._area(truth)
        start = time.perf_counter()
        found = self._opened[truth.name].read(
            frames=range(first, stop),
            region=(x, y, x + size[0], y + size[1]),
            format="yuv420p",
            psnr=math.inf,
        )
        self._seen.note(time.perf_counter() - start, self._rng)
        data, known = found.data.tobytes(), self._known[truth.name]
        self._seen.bytes += len(data)
        right = b"".join(truth.region(known, i, x, y, size) for i in range(first, stop))
        self._compare(data == right, f"{truth.name}: {first} to {stop} of {x},{y} {size}")

    def _view(self, truth: Truth, name: str) -> bytes:
        """All bytes of a view, whose size must equal the announced one."""
        fd = os.open(self._place / f"{truth.name}@" / name, os.O_RDONLY)
        parts, view = [], memoryview(self._buffer)[:_BLOCK]
        try:
            size = os.fstat(fd).st_size
            while count := self._timed(fd, view, None):
                parts.append(bytes(view[:count]))
        finally:
            os.close(fd)
        data = b"".join(parts)
        self._compare(len(data) == size, f"{truth.name}@/{name}: {len(data)} bytes, not {size}")
        return data

    def _span(self, truth: Truth, most: int) -> tuple[int, int]:
        first = self._rng.randrange(max(1, truth.frames - 2))
        return first, min(truth.frames, first + self._rng.randint(2, most))

    def _area(self, truth: Truth) -> tuple[int, int, tuple[int, int]]:
        width = max(32, self._rng.randrange(truth.width // 4, truth.width // 2) // 2 * 2)
        height = max(32, self._rng.randrange(truth.height // 4, truth.height // 2) // 2 * 2)
        x = self._rng.randrange(0, truth.width - width + 1) // 2 * 2
        y = self._rng.randrange(0, truth.height - height + 1) // 2 * 2
        return x, y, (width, height)

    def _compare(self, is_right: bool, what: str) -> None:
        if not is_right:
            self._seen.wrong.append(f"{self._seen.kind}: {what}")


def _psnr(one: bytes, other: bytes) -> float:
    import numpy as np

    apart = np.frombuffer(one, np.uint8).astype(np.int16) - np.frombuffer(other, np.uint8)
    square = float(np.mean(np.square(apart.astype(np.int32))))
    return math.inf if square == 0 else 10 * math.log10(255 * 255 / square)


def main(arguments: list[str]) -> None:
    kind, place, store, truths, until, seed = arguments
    seen = Seen(kind)
    reader = Reader(seen, Path(place), Path(store), load(Path(truths)), int(seed))
    reader.once()
    while time.monotonic() < float(until):
        reader.once()
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main(sys.argv[1:])
