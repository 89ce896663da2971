"""Folders for PYTHONPATH with a PyAV that is broken in different ways."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_UNLOADABLE = """
raise ImportError("av/_core.abi3.so: undefined symbol: avformat_version")
"""

_WRAPPED = """
import importlib, os, sys

here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.remove(here)
del sys.modules["av"]
av = importlib.import_module("av")
sys.path.insert(0, here)
real_open = av.open


def broken_open(file, mode=None, *args, **kwargs):
    reads = mode in (None, "r")
    if reads and {strict!r}:
        raise TypeError("open() got an unexpected keyword argument 'metadata_errors'")
    opened = real_open(file, mode, *args, **kwargs)
    if reads and opened.streams.subtitles:
        raise ImportError("av/subtitles/codeccontext.abi3.so: Too many open files")
    return opened


av.open = broken_open
"""

KINDS: Mapping[str, str] = {
    "unloadable": _UNLOADABLE,
    "other keywords": _WRAPPED.format(strict=True),
    "no subtitles": _WRAPPED.format(strict=False),
}


def environment(folder: Path, kind: str) -> dict[str, str]:
    """The environment of a process that imports such a PyAV and this tree's `vfsd`."""
    (folder / "av").mkdir(parents=True, exist_ok=True)
    (folder / "av/__init__.py").write_text(KINDS[kind])
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return dict(os.environ) | {"PYTHONPATH": paths}
