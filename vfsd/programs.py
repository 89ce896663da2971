"""Modules of ours, run as programs of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import vfsd

_CALM = {"OPENBLAS_THREAD_TIMEOUT": "4"}
"""numpy's BLAS has a thread for each core, and each looks for work for 2**26 cycles before it
sleeps: half of the CPU time that importing numpy takes, on cores that others want.  Now 2**4."""


def be_calm() -> None:
    """For this process, and those that it starts.  To be said before numpy is imported."""
    for name, value in _CALM.items():
        os.environ.setdefault(name, value)


def command(module: str, *arguments: str) -> list[str]:
    """What to run, by the Python that runs this."""
    return [sys.executable, "-m", module, *arguments]


def environment() -> dict[str, str]:
    """In which `command` finds the very code that runs this, wherever it is started; calm."""
    here = str(Path(vfsd.__file__).resolve().parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return _CALM | os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
