"""Children of this process, for tests of what becomes of open stores there."""

from __future__ import annotations

import os
import select
import signal
import traceback
from collections.abc import Callable

PATIENCE = 30
"""Seconds: a child that takes longer hangs."""
FAILED = 1


def exit_code_of_child(work: Callable[[], object], seconds: float = PATIENCE) -> int:
    """How a forked child ends that does `work` and leaves without more ado: 0 is well.

    One that is not done in time is killed: -9.
    """
    child = os.fork()
    if not child:
        code = FAILED
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return exit_code(child, seconds)


def exit_code(child: int, seconds: float = PATIENCE) -> int:
    """How a child ends, which is killed when it takes longer."""
    handle = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    if not ended:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
