"""What lies under the names of files, before anybody opens them.

A store may come from anywhere, and anything may lie in it.  open(2) waits at a pipe until somebody
comes to its other end, for ever as a rule, and SQLite does so too.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from vfsd.errors import StoreError


def require_regular(*paths: Path) -> None:
    """Raises `StoreError` where one of these is neither missing nor a file, nor a link to one."""
    for path in paths:
        if not is_regular_or_missing(path):
            raise StoreError(
                f"{path} is no regular file", hint="move what lies there away, and try again"
            )


def is_regular_or_missing(path: Path) -> bool:
    """Whether open(2) gives a file, or none; links are followed.  Raises `OSError`."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise
