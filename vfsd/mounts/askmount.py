"""Asking a mount, by a process of its own that need not come back.

Who asks a mount whose process is stopped, or waits for a disk that has died, waits as long as that
does, and may not even be killed.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress

from vfsd.errors import BusyError

ANSWER_SECONDS = 5.0
"""As long as a mount has for an answer."""

_END_SECONDS = 1.0

_ADVICE = (
    "is its process stopped (`kill -CONT PID`), or waiting for a disk? `kill -9 PID` ends it, and "
    "what was written to it stays; where that does not help, `umount -l` takes the mount away"
)

_CODE = """
import os, sys
try:
    path, *names = sys.argv[1:]
    if not names:
        os.statvfs(path)
    sys.stdout.buffer.write(b"+" + b"".join(os.getxattr(path, name) for name in names))
except OSError as error:
    sys.stdout.buffer.write(b"-%d" % error.errno)
"""
# Not a stat: that may be answered from what the kernel remembers.


def require_answer(place: str | os.PathLike[str]) -> None:
    """Raises `BusyError` where the mount at a place does not answer within `ANSWER_SECONDS`, and
    the `OSError` with which it does."""
    _ask(os.fspath(place))


def attribute(path: str | os.PathLike[str], name: str) -> bytes:
    """An extended attribute of a file in a mount.  Raises as `require_answer`."""
    return _ask(os.fspath(path), name)


def _ask(path: str, *names: str) -> bytes:
    # Without the paths and modules of whoever asks: it only has to start quickly.
    asking = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _CODE, path, *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        answer, _ = asking.communicate(timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        asking.kill()
        assert asking.stdout is not None
        asking.stdout.close()
        with suppress(subprocess.TimeoutExpired):  # the kernel may keep it until there is an answer
            asking.wait(_END_SECONDS)
        raise BusyError(f"the mount that shows {path} does not answer", hint=_ADVICE) from None
    if answer.startswith(b"+"):
        return answer[1:]
    code = int(answer.removeprefix(b"-") or errno.EIO)
    raise OSError(code, os.strerror(code), path)
