"""The log file of a background mount.

`log_at` and `default_log` find it; `LogSizeLimiter` truncates it when it grows too long.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vfsd.disk.mount_queries import mount_above
from vfsd.disk.safe_open import open_own
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import MountError, StoreError, UsageError

MAX_BYTES = 10 << 20
"""A default log that grows longer is moved to ``NAME.1``."""
_CHECK_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogFile:
    """The log of one mount."""

    path: Path  #: absolute
    is_limited: bool  #: limited to about `MAX_BYTES`, plus one older file


def log_at(path: Path, place: Path) -> LogFile:
    """Return the log that the caller named, without a size limit.

    Raises `UsageError` if the mount at `place` would hide it, `MountError` if it cannot be written.
    """
    path = path.absolute()
    if _is_hidden(path, place):
        raise UsageError(
            f"the log {path} must not be below the mount point {place}",
            hint="name a file elsewhere with --log, or -o log=FILE",
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        raise MountError(
            f"the log {path} cannot be written: {error.strerror}",
            hint="name another with --log, or -o log=FILE",
        ) from error
    return LogFile(path, is_limited=False)


def default_log(directory: StoreDirectory, place: Path) -> LogFile:
    """Return a log in the user's state directory, or in the store if that is impossible.

    Raises `MountError` if neither can be written.
    """
    why: list[str] = []
    for path in default_places(directory):
        if _is_hidden(path, place) or _is_shown(path):
            why.append(f"{path} is in a mount")
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        except (OSError, StoreError) as error:
            why.append(str(error))
            continue
        return LogFile(path, is_limited=True)
    raise MountError(
        f"the log of the mount cannot be written: {'; '.join(why)}",
        hint="name a file with --log, or -o log=FILE",
    )


def default_places(directory: StoreDirectory) -> list[Path]:
    """Return the default paths of the log, the preferred one first."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # required by the XDG specification
        state = os.path.expanduser("~/.local/state")
    name = f"{directory.root.name}-{directory.id[:8]}.log"
    return [Path(state) / "vfsd" / name, directory.mount_log]


def _is_hidden(path: Path, place: Path) -> bool:
    """Return whether a mount at `place` would hide the file."""
    return Path(os.path.realpath(path)).is_relative_to(place)


def _is_shown(path: Path) -> bool:
    """Return whether the file is in a mount of vfsd: each line would be a write to a store."""
    above = mount_above(Path(os.path.realpath(path)))
    return above is not None and above.is_ours


class LogSizeLimiter:
    """A thread that limits the file behind stderr, which the mount and its children append to.

    The file is copied to ``NAME.1`` and truncated, so that processes can keep it open.
    """

    def __init__(
        self, path: Path, maximum: int = MAX_BYTES, seconds: float = _CHECK_SECONDS
    ) -> None:
        """`maximum` is in bytes; the size is looked at every few `seconds`."""
        self._path = path
        self._maximum = maximum
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vfsd-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(OSError):
                if os.fstat(2).st_size > self._maximum:
                    self._shorten()
            self._stop.wait(self._seconds)

    def _shorten(self) -> None:
        before = self._path.with_name(self._path.name + ".1")
        made = self._path.with_name(self._path.name + ".new")
        try:
            # Read the open file: its name may lead to another one by now.
            with open("/proc/self/fd/2", "rb") as source, open(made, "wb") as target:
                shutil.copyfileobj(source, target)
            os.replace(made, before)
        except OSError as error:
            # The log must not fill a disk that is full already.
            with suppress(OSError):
                made.unlink()
            os.ftruncate(2, 0)
            _log.warning("older lines of this log could not be kept: %s", error.strerror)
            return
        os.ftruncate(2, 0)
        _log.info("older lines are in %s", before)
