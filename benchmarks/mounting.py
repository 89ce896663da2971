"""Mounts for benchmarks: vfsd's own, and the C example of libfuse as a yardstick."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EXAMPLE = Path("/usr/share/doc/libfuse3-dev/examples/passthrough_fh.c")
"""The one of the high-level examples that keeps files open."""


@contextmanager
def vfsd_mount(store: Path, mountpoint: Path, *options: str) -> Iterator[Path]:
    """A store, mounted by the command line as users do it."""
    mountpoint.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "vfsd"]
    subprocess.run([*command, "mount", str(store), str(mountpoint), *options], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run([*command, "umount", str(mountpoint)], check=True)


def build_passthrough(folder: Path) -> Path | None:
    """libfuse's example, compiled from where Debian's libfuse3-dev puts it; None without it."""
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
    """The whole file system once more, seen through the C example."""
    mountpoint.mkdir(exist_ok=True)
    subprocess.run([str(program), str(mountpoint)], check=True)
    for _ in range(200):
        if (mountpoint / "etc").exists():
            break
        time.sleep(0.02)
    try:
        yield mountpoint
    finally:
        subprocess.run(["fusermount3", "-u", str(mountpoint)], check=True)
