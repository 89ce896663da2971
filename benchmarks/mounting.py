"""Mounts for benchmarks: vfsd's own, and others as yardsticks.

These are libfuse's C examples, including one with kernel passthrough (``passthrough_hp``),
and ffmpegfs.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vfsd.mount import control

_EXAMPLE = Path("/usr/share/doc/libfuse3-dev/examples/passthrough_fh.c")
"""The one of the high-level examples that keeps files open."""


@contextmanager
def vfsd_mount(store: Path, mountpoint: Path, *options: str) -> Iterator[Path]:
    """A store mounted in the background with these options after ``-o``."""
    mountpoint.mkdir(exist_ok=True)
    control.mount(store, mountpoint, options)
    try:
        yield mountpoint
    finally:
        control.unmount(mountpoint)


def build_passthrough(folder: Path) -> Path | None:
    """Compile libfuse's example from the sources of Debian's libfuse3-dev; None without them."""
    if not _EXAMPLE.exists() or shutil.which("gcc") is None:
        return None
    for source in _EXAMPLE.parent.glob("passthrough*"):
        shutil.copy(source, folder)
    flags = subprocess.run(
        ["pkg-config", "fuse3", "--cflags", "--libs"], capture_output=True, text=True, check=True
    ).stdout.split()
    program = folder / _EXAMPLE.stem
    subprocess.run(["gcc", "-O2", str(folder / _EXAMPLE.name), *flags, "-o", program], check=True)
    return program


@contextmanager
def passthrough_mount(program: Path, mountpoint: Path) -> Iterator[Path]:
    """The whole file system, mounted through the C example."""
    mountpoint.mkdir(exist_ok=True)
    with _served([program, mountpoint], mountpoint, mountpoint / "etc"):
        yield mountpoint


@contextmanager
def kernel_passthrough_mount(program: Path, folder: Path, mountpoint: Path) -> Iterator[Path]:
    """A folder seen through ``passthrough_hp`` of libfuse 3.17 or later, as root."""
    mountpoint.mkdir(exist_ok=True)
    first = next(entry.name for entry in folder.iterdir())
    with _served([program, folder, mountpoint], mountpoint, mountpoint / first):
        yield mountpoint


@contextmanager
def ffmpegfs_mount(folder: Path, mountpoint: Path, cache: Path) -> Iterator[Path]:
    """A folder mounted through ffmpegfs.

    Its listing shows transcoded files; the original files are available by their unlisted names.
    """
    for path in (mountpoint, cache):
        path.mkdir(exist_ok=True)
    first = next(entry.name for entry in folder.iterdir())
    command = ["ffmpegfs", str(folder), str(mountpoint), "-o", f"cachepath={cache},desttype=mp4"]
    with _served(command, mountpoint, mountpoint / first):
        yield mountpoint


@contextmanager
def _served(command: Sequence[str | Path], mountpoint: Path, shown: Path) -> Iterator[None]:
    """Run a program that serves a mount until `shown` appears there, for the duration of the
    block."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(200):
        if shown.exists():
            break
        time.sleep(0.02)
    try:
        yield
    finally:
        subprocess.run(["fusermount3", "-u", str(mountpoint)], check=True)
