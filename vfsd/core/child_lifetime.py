"""How processes that vfsd starts for itself end: with the one that started them, or before it."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Be killed when the thread that has started this process ends; at once if it has.

    `parent` is the number of its process.  To be said anew after other user ids were taken.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def be_killed_first(score: int) -> None:
    """Where memory runs out, let this process go before others; see proc(5), oom_score_adj.

    0 is what others have, 1000 the most.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(score), encoding="ascii")
