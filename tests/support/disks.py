"""Temporary file systems, if this machine can mount them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
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


@contextmanager
def another_disk(path: Path) -> Iterator[Path]:
    """Yield an empty directory on another disk than `path`; skip the test if there is only one."""
    for place in ("/dev/shm", "/tmp", "/var/tmp", Path(__file__).parent):
        if os.access(place, os.W_OK) and os.stat(place).st_dev != path.stat().st_dev:
            found = Path(tempfile.mkdtemp(dir=place))
            try:
                yield found
            finally:
                shutil.rmtree(found)
            return
    pytest.skip("there is only one disk here")
