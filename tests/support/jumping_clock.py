"""``python -m tests.support.jumping_clock FILE ARGUMENT...``: vfsd on a host whose clock is set.

FILE has the seconds that its clock is ahead, and may be written at any time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from vfsd.cli.app import main


def jump(file: Path) -> None:
    """Let `time.time_ns` and `time.time` return the time of a clock that is set by a file."""
    true_ns = time.time_ns

    def now_ns() -> int:
        try:
            ahead = float(file.read_text() or 0)
        except (OSError, ValueError):
            ahead = 0.0
        return true_ns() + round(ahead * 1e9)

    time.time_ns = now_ns
    time.time = lambda: now_ns() / 1e9


if __name__ == "__main__":
    jump(Path(sys.argv[1]))
    sys.argv = ["vfsd", *sys.argv[2:]]
    main()
