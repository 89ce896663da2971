"""System calls that Python does not wrap, and helpers to run other processes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

NOREPLACE, EXCHANGE = 1, 2
KEEP_SIZE, PUNCH_HOLE = 1, 2

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_HERE = -100  # AT_FDCWD


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    _check(_LIBC.fallocate(fd, mode, offset, length))


def rename(old: Path, new: Path, flags: int) -> None:
    _check(_LIBC.renameat2(_HERE, os.fsencode(old), _HERE, os.fsencode(new), flags))


def in_another_process(code: str, *arguments: object) -> str:
    """Run a program and return its output."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
