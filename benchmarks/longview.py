"""Opening a long encoded view, and seeking to its middle: the time to the first frame.

A real clip is repeated to an hour and shown at half its size by vfsd, and by ffmpegfs if it is
installed, a file system that transcodes whole files on access. ffmpegfs serves the file that it
makes by default, and HLS segments, which it can begin anywhere: by the playlist, or to a player
that knows its segment.  For each seek position, both are mounted again with empty caches, and
several players open the file.  The frame must be the one that ffmpeg decodes from the source at
that time. vfsd has no background work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, existing_file, finish, footage, repeated, table
from benchmarks.live import facts
from benchmarks.mounting import vfsd_mount
from benchmarks.players import Luma, Shown, as_luma, players, show
from vfsd.api.store import Store
from vfsd.disk.store_config import StoreSettings

CLIP = "real/futsal_1080p.mp4"
NAME = "long.mkv"
BOUND_SECONDS = 2.0
LEAST_PSNR = 30.0
"""PSNR of luma in dB; views are encoded, and players convert them to RGB differently."""
AROUND = 3
"""Frames before and after the wanted one that a picture may be mistaken for."""
OURS, WHOLE, HLS, PIECE = "vfsd", "ffmpegfs, mp4", "ffmpegfs, hls", "ffmpegfs, one segment of hls"
SEGMENT_SECONDS = 10
"""The default length of ffmpegfs's segments."""


@dataclass(frozen=True)
class Mounted:
    """A view, ready to be opened for the first time."""

    opened_at: Callable[[float], tuple[Path, float]]
    """The file to open for a time in the view, and that time in the file; seconds."""
    give_up: Callable[[], None]  #: ends the server after a timeout


Mount = Callable[[], AbstractContextManager[Mounted]]


@dataclass
class Found:
    """The results of one player at one position of one contestant."""

    seconds: list[float] = field(default_factory=list)
    psnr: float = 99.0  #: the worst
    off: int = 0  #: the largest distance to the right frame
    failed: str = ""

    def text(self) -> str:
        if self.failed:
            return self.failed
        off = f", {self.off:+d} frames" if self.off else ""
        return f"{statistics.median(self.seconds):.2f} s ({self.psnr:.1f} dB{off})"


@dataclass(frozen=True)
class Wanted:
    """The frames around a position, as ffmpeg decodes and scales them."""

    at: float  #: seconds, slightly before the wanted frame
    around: list[Luma]
    index: int  #: of the wanted one

    def judge(self, luma: Luma) -> tuple[float, int]:
        """(PSNR in dB, distance in frames) of the most similar frame."""
        errors = [float(np.square(luma.astype(np.float32) - one).mean()) for one in self.around]
        best = int(np.argmin(errors))
        if math.isclose(errors[best], errors[self.index], rel_tol=1e-3):
            best = self.index  # nothing has moved
        return 10 * math.log10(255**2 / max(errors[best], 1e-6)), best - self.index


def main() -> None:
    parser = arguments(__doc__, runs=3)
    parser.add_argument(
        "video", nargs="?", type=existing_file, help="default: a filmed clip in 1080p"
    )
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="the clip is repeated to fill"
    )
    parser.add_argument("--limit", type=float, default=30.0, help="seconds to wait for a picture")
    parser.add_argument(
        "--player", action="append", choices=players(), help="only these; may be repeated"
    )
    parser.add_argument("--ours-only", action="store_true", help="leave ffmpegfs out")
    options = parser.parse_args()
    clip = options.video or footage() / CLIP
    if not clip.exists():
        clip = footage() / "traffic.mp4"
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(clip, Path(folder), options)
    passed = report(figures)
    plain = {
        player: {where: asdict_all(found) for where, found in by_place.items()}
        for player, by_place in figures.items()
    }
    finish(options, "longview", plain, passed=passed)


def asdict_all(found: dict[str, Found]) -> dict[str, Any]:
    return {who: dataclasses.asdict(one) for who, one in found.items()}


def measure(clip: Path, work: Path, options: Any) -> dict[str, dict[str, dict[str, Found]]]:
    """Results by player, position and contestant."""
    width, height, once, rate = facts(clip)
    size = (width // 4 * 2, height // 4 * 2)
    source = work / "in"
    source.mkdir()
    times = math.ceil(options.seconds * rate / once)
    long = repeated(clip, times, source).rename(source / NAME)
    middle = times * once // 2
    print(f"{clip.name}, {times * once / rate:.0f} s in {size[0]}x{size[1]}\n", flush=True)
    wanted = {
        "the start": Wanted(0.0, pictures(long, 0.0, size, 1 + AROUND), 0),
        "the middle": around(long, middle, rate, size),
    }
    contestants = {OURS: ours(work, long, size)}
    if options.ours_only or shutil.which("ffmpegfs") is None:
        print("ffmpegfs is left out" if options.ours_only else "ffmpegfs is not installed")
    else:
        contestants[WHOLE] = theirs(work, size, "mp4", lambda at: (f"{NAME}.mp4", at))
        contestants[HLS] = theirs(work, size, "hls", lambda at: (f"{NAME}/master.m3u8", at))
        contestants[PIECE] = theirs(work, size, "hls", segment_at)
    figures: dict[str, dict[str, dict[str, Found]]] = {
        player: {where: {who: Found() for who in contestants} for where in wanted}
        for player in options.player or players()
    }
    for number in range(options.runs):
        print(f"round {number + 1} of {options.runs}", file=sys.stderr, flush=True)
        for player, by_place in figures.items():
            for where, found in by_place.items():
                for who, mount in contestants.items():
                    if not found[who].failed:
                        once_more(found[who], mount, player, wanted[where], options.limit)
    return figures


def once_more(found: Found, mount: Mount, player: str, wanted: Wanted, limit: float) -> None:
    with mount() as mounted:
        try:
            shown: Shown = show(player, *mounted.opened_at(wanted.at), limit, mounted.give_up)
        except TimeoutError:
            found.failed = f"> {limit:g} s"
            return
        except LookupError:
            found.failed = "no picture"
            return
    psnr, off = wanted.judge(shown.luma)
    found.seconds.append(shown.seconds)
    found.psnr = min(found.psnr, psnr)
    found.off = max(found.off, off, key=abs)


def around(path: Path, frame: int, rate: float, size: tuple[int, int]) -> Wanted:
    """A quarter of a frame before the position, so that any rounding of players leads to the
    same frame."""
    first = (frame - AROUND - 0.25) / rate
    return Wanted((frame - 0.25) / rate, pictures(path, first, size, 2 * AROUND + 1), AROUND)


def pictures(path: Path, at: float, size: tuple[int, int], count: int) -> list[Luma]:
    with tempfile.TemporaryDirectory() as folder:
        seek = ["-ss", str(at)] if at else []
        scale = ["-vf", f"scale={size[0]}:{size[1]}:flags=bicubic", "-frames:v", str(count)]
        out = Path(folder) / "%03d.png"
        command = ["ffmpeg", "-v", "error", *seek, "-i", str(path), *scale, str(out)]
        subprocess.run(command, check=True)
        return [as_luma(one) for one in sorted(Path(folder).iterdir())]


# ---------------------------------------------------------------------------------- contestants


def ours(work: Path, long: Path, size: tuple[int, int]) -> Mount:
    root = work / "store"
    with Store.create(root) as store:
        StoreSettings(verify=False, tune=False).save(store.parts.directory.settings)
        store.ingest(long, NAME)

    @contextlib.contextmanager
    def mount() -> Iterator[Mounted]:
        shutil.rmtree(root / "cache", ignore_errors=True)
        (root / "cache").mkdir()
        with vfsd_mount(root, work / "mnt") as at:
            view = at / f"{NAME}@" / f"size={size[0]}x{size[1]}.mp4"
            yield Mounted(lambda at: (view, at), lambda: None)

    return mount


def segment_at(at: float) -> tuple[str, float]:
    number = int(at // SEGMENT_SECONDS)
    return f"{NAME}/{number + 1:06}.ts", at - number * SEGMENT_SECONDS


def theirs(
    work: Path, size: tuple[int, int], kind: str, name_at: Callable[[float], tuple[str, float]]
) -> Mount:
    """A mount of ffmpegfs as its manual recommends, with the size of the view."""

    @contextlib.contextmanager
    def mount() -> Iterator[Mounted]:
        out, cache = work / "out", work / "ffmpegfs-cache"
        out.mkdir(exist_ok=True)
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        shape = [f"--videowidth={size[0]}", f"--videoheight={size[1]}"]
        with open(work / "ffmpegfs.log", "ab") as log:
            how = ["-f", f"--desttype={kind}", *shape, f"--cachepath={cache}"]
            command = ["ffmpegfs", *how, str(work / "in"), str(out)]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 20
            while not (os.path.ismount(out) and (out / name_at(0)[0]).exists()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise OSError(f"ffmpegfs did not mount: see {work / 'ffmpegfs.log'}")
                time.sleep(0.05)

            def opened_at(at: float) -> tuple[Path, float]:
                name, within = name_at(at)
                return out / name, within

            yield Mounted(opened_at, process.kill)
        finally:
            process.kill()
            process.wait()
            subprocess.run(["fusermount3", "-u", "-z", str(out)], check=False)

    return mount


# --------------------------------------------------------------------------------------- report


def report(figures: dict[str, dict[str, dict[str, Found]]]) -> bool:
    """Print the results; return whether all bounds were met."""
    rows, missed = [], []
    names = list(next(iter(next(iter(figures.values())).values())))
    for player, by_place in figures.items():
        for where, found in by_place.items():
            rows.append((player, where, *(found[who].text() for who in names)))
            mine = found[OURS]
            assert not mine.failed, f"{player}, {where}: {mine.failed}"
            assert not mine.off, f"{player}, {where}: {mine.off} frames off"
            assert mine.psnr > LEAST_PSNR, f"{player}, {where}: {mine.psnr:.1f} dB"
            if statistics.median(mine.seconds) > BOUND_SECONDS:
                missed.append(f"{player}, {where}")
    print(table(("player", "first picture at", *names), rows))
    print("\nmissed: " + "; ".join(missed) if missed else "\nall met")
    return not missed


if __name__ == "__main__":
    main()
