"""Recordings that were cut off because the writer was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

_WRITER = """
    import sys
    import numpy as np
    from vfsd import Store
    with Store.open(sys.argv[1]) as store:
        with store.writer(sys.argv[2], width=64, height=48, fps=20, codec="ffv1") as writer:
            for number in range(100000):
                writer.write(np.full((48, 64, 3), number % 251, np.uint8))
                print(number, flush=True)
"""


def killed_recording(store: Path, name: str, frames: int = 50) -> None:
    """Kill a process that has written at least so many frames."""
    command = [sys.executable, "-c", textwrap.dedent(_WRITER), str(store), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        while int(process.stdout.readline()) < frames:
            pass
        process.send_signal(signal.SIGKILL)
