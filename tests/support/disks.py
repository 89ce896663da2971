"""Temporary file systems, if this machine can mount them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, *how: str | Path) -> Iterator[Path]:
    """Create a directory and mount something there; skip the test if that fails.

    `how` are arguments of mount(8): ``-t tmpfs none``, or ``--bind FOLDER``.
    """
    place.mkdir(exist_ok=True)
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    if subprocess.run(["mount", *how, place], capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)
