"""A layer between a process and its files that counts and logs calls, kills, and injects errors.

It is a preloaded library (`shim.c`), not a FUSE file system, for three reasons.  It sees the calls
in the order in which the process makes them; through a mount, the kernel writes back at any time,
so the n-th write would differ between runs.  It needs no other process.  A forked child keeps the
layer, so that a test point needs no new Python.  Python, FFmpeg and SQLite call libc through it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
_LIBRARY = "VFSD_FAULT_LAYER"


class Kind(IntEnum):
    """Kinds of calls, as in `shim.c`."""

    OPEN = 0
    CREATE = 1
    READ = 2
    WRITE = 3
    SIZE = 4  #: truncating
    SYNC = 5
    NAME = 6  #: rename, link, unlink, mkdir, rmdir, symlink
    MARK = 7


class _Control(ctypes.Structure):
    _fields_ = (
        ("changes", ctypes.c_int64),
        ("seen", ctypes.c_int64 * len(Kind)),
        ("marks", ctypes.c_int64),
        ("hits", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Failing:
    """Calls that fail: the one with the number `at` (from 0) among those of the `kinds`.

    With `on`, all that follow fail, too.
    """

    kinds: tuple[Kind, ...]
    at: int
    errno: int
    on: bool = False


class Counters:
    """The counters, shared by a process and its children."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, ctypes.sizeof(_Control))
        self._control = _Control.from_buffer(self._memory)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._control)

    @property
    def changes(self) -> int:
        """Calls that change something."""
        return int(self._control.changes)

    @property
    def marks(self) -> int:
        """Steps that were acknowledged."""
        return int(self._control.marks)

    @property
    def hits(self) -> int:
        """Calls that were made to fail."""
        return int(self._control.hits)

    def seen(self, kinds: Sequence[Kind]) -> int:
        """Calls of these kinds."""
        return sum(int(self._control.seen[kind]) for kind in kinds)


def is_there() -> bool:
    """Whether this process was started with the layer."""
    return _LIBRARY in os.environ


def has_compiler() -> bool:
    return sys.platform == "linux" and shutil.which("cc") is not None


def build(folder: Path) -> Path:
    """Compile the library into `folder`."""
    library = folder / "faults.so"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"], check=True
    )
    return library


def environment(library: Path) -> dict[str, str]:
    """The environment of a process under the layer.

    Numeric libraries are limited to one thread, since a process that forks must have no others.
    """
    alone = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    return {**os.environ, **alone, "LD_PRELOAD": str(library), _LIBRARY: str(library)}


def begin(
    root: Path,
    counters: Counters,
    *,
    log: int = -1,
    kill_at: int = -1,
    failing: Failing | None = None,
    sync: bool = False,
) -> None:
    """Start to count the calls of this process below `root`.

    `log` is a descriptor that receives all calls (see `tests.fault.powercut`).  The process is
    killed before the change with the number `kill_at`.  Without `sync` nothing is really synced,
    which makes a difference only after a power cut.
    """
    library = ctypes.CDLL(os.environ[_LIBRARY])
    mask = sum(1 << kind for kind in failing.kinds) if failing else 0
    library.fault_begin(
        os.fsencode(root),
        ctypes.c_void_p(counters.address),
        log,
        ctypes.c_int64(kill_at),
        ctypes.c_int64(failing.at if failing else -1),
        mask,
        failing.errno if failing else 0,
        int(failing.on) if failing else 0,
        int(not sync),
    )


def mark() -> None:
    """Count a step as acknowledged: the operation has reported success to its caller."""
    ctypes.CDLL(os.environ[_LIBRARY]).fault_mark()


def end() -> None:
    """Stop counting and injecting errors."""
    ctypes.CDLL(os.environ[_LIBRARY]).fault_end()
