"""How errors are told to the kernel."""

from __future__ import annotations

import errno
import logging
import os

from vfsd.errors import StoreError, VfsdError

_log = logging.getLogger(__name__)


def errno_of(error: BaseException, operation: str, path: object) -> int:
    """The errno for whatever went wrong; what is not an everyday answer is logged.

    A mistake of ours is EIO, never EINVAL, which would blame the caller.
    """
    if isinstance(error, VfsdError):
        level = logging.ERROR if isinstance(error, StoreError) else logging.INFO
        _log.log(level, "%s %s: %s%s", operation, _shown(path), error, _hint(error))
        return error.errno
    if isinstance(error, OSError) and error.errno:
        if error.errno == errno.EIO:
            _log.error("%s %s: %s", operation, _shown(path), error)
        return error.errno
    _log.error("%s %s failed", operation, _shown(path), exc_info=error)
    return errno.EIO


def _shown(path: object) -> str:
    """A path as text, in quotes; of what is asked for by its handle there is none."""
    if path is None:
        return "of an open file"
    return repr(os.fsdecode(path) if isinstance(path, bytes) else path)


def _hint(error: VfsdError) -> str:
    return f"; {error.hint}" if error.hint else ""
