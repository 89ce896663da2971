"""Modules of ours, run as programs of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import vfsd


def command(module: str, *arguments: str) -> list[str]:
    """What to run, by the Python that runs this."""
    return [sys.executable, "-m", module, *arguments]


def environment() -> dict[str, str]:
    """In which `command` finds the very code that runs this, wherever it is started."""
    here = str(Path(vfsd.__file__).resolve().parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
