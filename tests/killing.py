"""Processes that are killed while they have a store open."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

_INGEST = """
import os, signal, sys
from vfsd.store import Store

store = Store.open(sys.argv[1])
for name in sys.argv[3:]:
    store.ingest(sys.argv[2], name)
os.kill(os.getpid(), signal.SIGKILL)
"""

_AT_RENAME = """
import os, signal, sys

left = int(sys.argv[1])

def count(event, _):
    global left
    if event == "os.rename":
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

"""


def ingest_and_die(store: Path, video: Path, *names: str) -> None:
    """Put a video into a store under these names, in a process that is killed then: what it did
    is in the catalog's log."""
    done = subprocess.run([sys.executable, "-c", _INGEST, store, video, *names], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (store / "catalog.sqlite3-wal").stat().st_size > 0


def killed_at_rename(number: int, code: str, *arguments: object) -> bool:
    """Run a program that calls `sys.addaudithook(count)` and is killed when it renames so many
    files and one more; whether it was.  Its arguments are ``sys.argv[2:]``."""
    words = [sys.executable, "-c", _AT_RENAME + code, str(number), *map(str, arguments)]
    done = subprocess.run(words, check=False)
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0
