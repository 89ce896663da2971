"""Files that appear under their name whole, or not at all."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from vfsd.errors import ExistsError, NoSpaceError, NotFoundError, UsageError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def require_directory(path: Path) -> None:
    """Raises `NotFoundError` where there is none, in which something is to be made."""
    if not path.is_dir():
        raise NotFoundError(
            f"there is no directory {path}",
            hint=f"make it with `mkdir -p {shlex.quote(str(path))}`",
        )


@contextmanager
def whole_file(path: Path, replace: bool) -> Iterator[BinaryIO]:
    """A file to write, which gets its name when the block has ended well.

    Pipes and devices are written as they are.  Raises `ExistsError` unless `replace`,
    `NotFoundError` where there is no directory for it, `UsageError` where it is one itself,
    `NoSpaceError`, `OSError`.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="name a file in it")
    require_directory(path.parent)
    if path.exists() and not path.is_file():
        with open(path, "wb") as device:
            yield device
        return
    if path.exists() and not replace:
        raise ExistsError(f"{path} exists", hint="`--replace`, or replace=True, writes over it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except OSError as error:
        is_ours = error.filename == os.fspath(temporary)
        if error.errno in _NO_SPACE and (is_ours or error.filename is None):
            raise NoSpaceError(f"no room for {path}: {error.strerror}") from error
        if is_ours:
            error.filename = os.fspath(path)  # nobody has heard of the other name
        raise
    finally:
        with suppress(OSError):  # what went wrong before is what counts
            temporary.unlink()
