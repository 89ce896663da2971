"""Runs modules of vfsd as separate programs, and tunes their startup.

``python -m vfsd.core.subprocess_entry MODULE ARGUMENT ...`` runs ``MODULE.main([ARGUMENT, ...])``.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import vfsd

# OpenBLAS, which numpy uses, starts a thread per core, and each spins for 2**26 cycles before it
# sleeps. That is half of the CPU time of importing numpy. This makes it 2**4.
_BLAS_ENVIRONMENT = {"OPENBLAS_THREAD_TIMEOUT": "4"}

# Thresholds of the garbage collector. The default of 700 is too low: modules alone create 200 000
# objects.
_OBJECTS_BETWEEN = (50_000, 20, 100)


def limit_blas_threads() -> None:
    """Set `_BLAS_ENVIRONMENT` for this process and its children, before numpy is imported."""
    for name, value in _BLAS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def reduce_gc() -> None:
    """Make garbage collection rare, and skip it at exit.  For short-lived processes."""
    # Collection took a fifth of the CPU time of ``vfsd ls``, most of it at exit.
    gc.set_threshold(*_OBJECTS_BETWEEN)
    atexit.register(gc.freeze)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Exempt the objects of imports in a long-lived process from garbage collection."""
    # A collection stops all threads, and imports leave some 200 000 objects that never go away.
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `main` of a module with the current Python."""
    return [sys.executable, "-m", "vfsd.core.subprocess_entry", module, *arguments]


def child_environment() -> dict[str, str]:
    """Return an environment in which `module_command` finds the running code anywhere."""
    here = str(Path(vfsd.__file__).resolve().parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return _BLAS_ENVIRONMENT | os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def main(words: list[str]) -> None:
    name, *arguments = words
    with gc_paused():
        module = import_module(name)
    module.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
