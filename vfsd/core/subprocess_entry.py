"""Modules of ours, run as programs of their own."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import vfsd

_BLAS_ENVIRONMENT = {"OPENBLAS_THREAD_TIMEOUT": "4"}
"""numpy's BLAS has a thread for each core, and each looks for work for 2**26 cycles before it
sleeps: half of the CPU time that importing numpy takes, on cores that others want.  Now 2**4."""


_OBJECTS_BETWEEN = (50_000, 20, 100)
"""Python looks for garbage after every 700 new objects, of which modules are 200 000."""


def limit_blas_threads() -> None:
    """For this process, and those that it starts.  To be said before numpy is imported."""
    for name, value in _BLAS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def reduce_gc() -> None:
    """For a process that mostly ends soon: look for garbage seldom, and not at the end.

    A fifth of the CPU time of ``vfsd ls`` went there, most of it when all was done.
    """
    gc.set_threshold(*_OBJECTS_BETWEEN)
    atexit.register(gc.freeze)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Around the imports of a process that stays: nobody looks for garbage among what they make.

    Not meanwhile, not later, when all threads would wait for it, and not at the end.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def module_command(module: str, *arguments: str) -> list[str]:
    """What to run, by the Python that runs this, for `main` of a module of ours."""
    return [sys.executable, "-m", "vfsd.core.launch", module, *arguments]


def child_environment() -> dict[str, str]:
    """In which `command` finds the very code that runs this, wherever it is started; calm."""
    here = str(Path(vfsd.__file__).resolve().parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return _BLAS_ENVIRONMENT | os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
