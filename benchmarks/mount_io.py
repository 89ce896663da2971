"""Plain file reads and copies through the mount, against the local disk and other mounts.

If the kernel supports it, a second mount has ``-o passthrough``.  The others are libfuse's C
example that keeps files open (``passthrough_fh``), its ``passthrough_hp``, which lets the kernel
read by itself (``--passthrough-hp``, of a libfuse from 3.17 on), and ffmpegfs, which shows a file
that it transcodes under its own name as it is.

All read the same file on the disk, because two copies may differ by a third in speed, depending on
how the kernel keeps their pages.  All must read the same bytes, in sequence and at random.  The
contestants of every row are interleaved.  ``first`` drops the mount's own pages before each run and
keeps those of the object below, ``again`` keeps both, ``cold`` drops both.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    Timing,
    arguments,
    drop,
    finish,
    folder_option,
    footage,
    interleaved,
    paired_ratio,
    table,
)
from benchmarks.freshfiles import EXAMPLE, FRESH, OURS, fresh_figures
from benchmarks.mounting import (
    build_passthrough,
    ffmpegfs_mount,
    kernel_passthrough_mount,
    passthrough_mount,
    vfsd_mount,
)
from vfsd.api.store import Store
from vfsd.errors import VfsdError
from vfsd.mount.fuse import libfuse
from vfsd.mount.fuse.fuse_session import kernel_version
from vfsd.mount.fuse.passthrough import require_passthrough

MIB = 1 << 20
PASSING = "vfsd, passthrough"
BARE = "passthrough_hp.cc"
FFMPEGFS = "ffmpegfs"
READS = ("first", "again", "cold", "random 4 KiB", "random 128 KiB")
BOUNDS = {"first": 0.30, "again": 0.50, "cold": 0.90, "random 128 KiB": 0.27}
"""Throughput relative to the disk, for mounts without passthrough."""
PASSING_BOUND = 0.95
"""Throughput relative to the disk, or to the kernel's own passthrough if that is slower."""
COPY_BOUND = 0.5
RANDOM_4K_MICROSECONDS = 15.0
FRESH_BOUND = 2.0
"""Maximum ratio to the example's time, for files not accessed before."""


def main() -> None:
    parser = arguments(__doc__, runs=7)
    parser.add_argument("--mib", type=int, default=512, help="size of the video, at least")
    parser.add_argument(
        "--files", type=int, default=1000, help="number of files not accessed before"
    )
    folder_option(parser)
    parser.add_argument(
        "--passthrough-hp", type=Path, metavar="PATH", help="the example of libfuse, built"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        work = Path(name)
        big = make_big_video(work, options.mib)
        program = build_passthrough(work)
        with contextlib.ExitStack() as stack:
            below = store_with(big, work / "store")
            mounted = stack.enter_context(vfsd_mount(work / "store", work / "mnt"))
            shown = mounts_of(below, work, program, options.passthrough_hp, stack)
            files = {OURS: mounted / "big.mkv", "native": below} | shown
            check_content(files)
            figures = read_figures(files, below, options.runs)
            figures |= copy_figures(work, mounted, big, options.runs)
            figures |= latency_figures(files)
        figures |= {FRESH: fresh_figures(work, program, options.files, options.runs)}
    report(figures, options)


def mounts_of(
    below: Path, work: Path, example: Path | None, bare: Path | None, stack: contextlib.ExitStack
) -> dict[str, Path]:
    """The same file through all other available mounts, until `stack` ends."""
    files = {}
    if can_pass_through():
        other = store_with(below, work / "passing")
        other.unlink()
        other.hardlink_to(below)
        passing = vfsd_mount(work / "passing", work / "pass", "passthrough")
        files[PASSING] = stack.enter_context(passing) / "big.mkv"
    if example is not None:
        root = stack.enter_context(passthrough_mount(example, work / "pt"))
        files[EXAMPLE] = root / str(below).lstrip("/")
    if bare is not None:
        served = kernel_passthrough_mount(bare.absolute(), below.parent, work / "hp")
        files[BARE] = stack.enter_context(served) / below.name
    if shutil.which("ffmpegfs"):
        folder = work / "films"
        folder.mkdir()
        (folder / "big.mkv").hardlink_to(below)
        films = ffmpegfs_mount(folder, work / "ffmpegfs", work / "ffmpegfs-cache")
        files[FFMPEGFS] = stack.enter_context(films) / "big.mkv"
    return files


def store_with(big: Path, root: Path) -> Path:
    """A new store with that video; returns the file below."""
    with Store.create(root) as store:
        return store.parts.originals.path_of(store.ingest(big, "big.mkv").original)


def can_pass_through() -> bool:
    try:
        require_passthrough(libfuse.load(), kernel_version())
    except VfsdError:
        return False
    return True


def make_big_video(work: Path, mib: int) -> Path:
    """A real clip, repeated by copying packets until it is large enough."""
    clip = footage() / "real" / "derived_mosaic_4k_hevc.mp4"
    if not clip.exists():
        clip = footage() / "open-gop.mkv"
    repeats = mib * MIB // clip.stat().st_size + 1
    listing = work / "list.txt"
    listing.write_text(f"file '{clip}'\n" * repeats, encoding="utf-8")
    out = work / "big.mkv"
    joined = ["-f", "concat", "-safe", "0", "-i", str(listing), "-map", "0:v", "-c", "copy"]
    subprocess.run(["ffmpeg", "-v", "error", *joined, str(out)], check=True)
    return out


def check_content(files: dict[str, Path]) -> None:
    """Check that all mounts return the same bytes, in sequence and at random offsets."""
    rng = np.random.default_rng(3)
    size = files["native"].stat().st_size
    offsets = rng.integers(0, size - 4096, 200).tolist()
    digests = set()
    for path in files.values():
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "blake2b")
            for offset in offsets:
                digest.update(os.pread(file.fileno(), 4096, offset))
        digests.add(digest.hexdigest())
    assert len(digests) == 1, "not the same bytes"


# ------------------------------------------------------------------------------------- reading


def have_memory(folder: Path, size: int) -> None:
    """Allocate memory for files from the system and free it again.

    A virtual machine may first have to request unused pages from its host, which takes ten times as
    long as filling them.  The first run would pay for that.
    """
    block = bytes(MIB)
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(size // MIB + 1):
            file.write(block)


def load(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    buffer = mmap.mmap(-1, MIB)
    while os.readv(fd, [buffer]):
        pass
    os.close(fd)


def read_figures(files: dict[str, Path], below: Path, runs: int) -> dict[str, Any]:
    size = below.stat().st_size
    figures: dict[str, Any] = {}

    def prepared(before: Callable[[Path], None]) -> dict[str, Timing]:
        """Time `load` of each after `before`, which is not timed."""
        times: dict[str, list[float]] = {name: [] for name in files}
        rng = np.random.default_rng(0)
        for number in range(runs + 1):
            for at in rng.permutation(len(files)):
                name = list(files)[at]
                path = files[name]
                before(path)
                start = time.perf_counter()
                load(path)
                if number:
                    times[name].append(time.perf_counter() - start)
        return {name: Timing(tuple(values)) for name, values in times.items()}

    def first(path: Path) -> None:
        if path != below:
            drop(path)
        load(below)

    def cold(path: Path) -> None:
        drop(path)
        drop(below)

    for name, before in (("first", first), ("again", load), ("cold", cold)):
        timings = prepared(before)
        figures[name] = {
            who: {
                "MiB/s": size / MIB / timing.median,
                "of native": paired_ratio(timings["native"], timing),
            }
            for who, timing in timings.items()
        }
    for block, count in ((4096, 10_000), (128 << 10, 1_000)):
        figures[f"random {block >> 10} KiB"] = random_reads(files, below, block, count, runs)
    return figures


def random_reads(
    files: dict[str, Path], below: Path, block: int, count: int, runs: int
) -> dict[str, Any]:
    size = below.stat().st_size
    rng = np.random.default_rng(5)
    buffer = mmap.mmap(-1, block)
    count = min(count, size // block)

    def read(path: Path) -> None:
        offsets = rng.choice(size // block, count, replace=False) * block
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for offset in offsets.tolist():
            os.preadv(fd, [buffer], offset)
        if path != below:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    load(below)
    for path in files.values():
        if path != below:
            drop(path)
    timings = interleaved({who: partial(read, path) for who, path in files.items()}, runs)
    return {
        who: {
            "us": timing.median / count * 1e6,
            "of native": paired_ratio(timings["native"], timing),
        }
        for who, timing in timings.items()
    }


# ------------------------------------------------------------------------------------- copying


def copy_figures(work: Path, mounted: Path, big: Path, runs: int) -> dict[str, Any]:
    """`cp` into the mount until it returns, until it is a video, and a plain `cp`."""
    load(big)
    counter = iter(range(10_000))

    def into_mount() -> None:
        target = mounted / f"copy{next(counter)}.mkv"
        subprocess.run(["cp", str(big), str(target)], check=True)

    def until_video() -> None:
        target = mounted / f"copy{next(counter)}.mkv"
        subprocess.run(["cp", str(big), str(target)], check=True)
        assert judged(target) == b"video"

    def plain() -> Path:
        target = work / f"copy{next(counter)}.mkv"
        subprocess.run(["cp", str(big), str(target)], check=True)
        return target

    def plain_synced() -> None:
        with open(plain(), "rb") as file:
            os.fsync(file.fileno())

    contestants = {
        "cp": into_mount,
        "cp, until a video": until_video,
        "plain": plain,
        "plain, synced": plain_synced,
    }
    times: dict[str, list[float]] = {name: [] for name in contestants}
    rng = np.random.default_rng(0)
    for number in range(runs + 1):
        for name in rng.permutation(list(contestants)):
            have_memory(work, 2 * big.stat().st_size)
            start = time.perf_counter()
            contestants[name]()
            if number:
                times[name].append(time.perf_counter() - start)
            settle(work, mounted)
    timings = {name: Timing(tuple(values)) for name, values in times.items()}
    return {
        name: {
            OURS: {
                "MiB/s": big.stat().st_size / MIB / timings[name].median,
                "of native": paired_ratio(timings[other], timings[name]),
            }
        }
        for name, other in (("cp", "plain"), ("cp, until a video", "plain, synced"))
    }


def judged(path: Path) -> bytes:
    """The state of a file once it is classified, which may exceed a timeout on a busy machine."""
    while (state := os.getxattr(path, "user.vfsd.state")) == b"spooled":
        time.sleep(0.01)
    return state


def settle(work: Path, mounted: Path) -> None:
    """Wait for the effects of a run to end: classification, removal and writeback."""
    for path in mounted.glob("copy*.mkv"):
        judged(path)
        path.unlink()
    for path in work.glob("copy*.mkv"):
        path.unlink()
    os.sync()


def latency_figures(files: dict[str, Path]) -> dict[str, Any]:
    took: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(20):
        for name, path in files.items():
            for _ in range(100):
                start = time.perf_counter()
                fd = os.open(path, os.O_RDONLY)
                os.fstat(fd)
                os.close(fd)
                took[name].append(time.perf_counter() - start)
    found = {name: {"us": float(np.median(each)) * 1e6} for name, each in took.items()}
    return {"open + stat + close": found}


def behind_the_example(figures: dict[str, Any]) -> list[str]:
    """The rows in which the normal mode is slower than the example; twice as slow is allowed for
    new files."""
    behind = []
    for what, row in figures.items():
        if EXAMPLE not in row:
            continue
        mine, example = (row[who].get("MiB/s") for who in (OURS, EXAMPLE))
        if mine is None:
            mine, example = (1 / row[who]["us"] for who in (OURS, EXAMPLE))
        if mine < example / (FRESH_BOUND if what == FRESH else 1):
            behind.append(what)
    return behind


def behind_the_kernel(figures: dict[str, Any]) -> list[str]:
    """The rows in which passthrough is slower than necessary."""
    behind = []
    for what in READS:
        row = figures[what]
        kernel = row.get(BARE, row["native"])["of native"]
        if row[PASSING]["of native"] < PASSING_BOUND * min(1.0, kernel):
            behind.append(what)
    return behind


def report(figures: dict[str, Any], options: Any) -> None:
    rows = []
    for what, contestants in figures.items():
        for who, values in contestants.items():
            number, unit = next((value, key) for key, value in values.items() if key != "of native")
            ratio = values.get("of native")
            rows.append(
                (what, who, f"{number:.1f} {unit}", "" if ratio is None else f"{ratio:.2f}")
            )
    print(table(("what", "who", "rate", "of native"), rows))
    missed = [f"{what}: slower than the example" for what in behind_the_example(figures)]
    if PASSING in figures["first"]:
        missed += [f"{what}: slower than the kernel" for what in behind_the_kernel(figures)]
    else:
        missed += [what for what, bound in BOUNDS.items() if of_native(figures, what) < bound]
        if figures["random 4 KiB"][OURS]["us"] > RANDOM_4K_MICROSECONDS:
            missed.append("random 4 KiB")
    if of_native(figures, "cp") < COPY_BOUND:
        missed.append("cp")
    for what in missed:
        print(f"missed: {what}")
    finish(options, "mount_io", figures, passed=not missed)


def of_native(figures: dict[str, Any], what: str) -> float:
    return float(figures[what][OURS]["of native"])


if __name__ == "__main__":
    main()
