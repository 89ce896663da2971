"""Forked children, for tests of open stores in forked processes."""

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
    """Do `work` in a forked child and return its exit code; 0 means success.

    A child that takes too long is killed, with the exit code -9.
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
    """The exit code of a child, which is killed if it takes too long."""
    handle = os.pidfd_open(child)
    try:
        ended, _, _ = select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    if not ended:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
