"""The log of a mount: one line for each event, to a terminal, a file or the journal.

=========  =====================================================================================
error      bytes or names cannot be served correctly; the line says which, and what to do
warning    something was done differently, or later, than requested
info       mounting and unmounting; repairs after a crash; tiles made by background tuning;
           refused requests for views, with the reason
debug      each classified file; the source line of an error
=========  =====================================================================================

`LogFile` is the file of a background mount; `LogSizeLimiter` keeps it small.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from vfsd.disk.mount_queries import mount_above
from vfsd.disk.safe_open import open_own
from vfsd.disk.store_config import state_directory
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import MountError, StoreError, UnreachableError, UsageError

_log = logging.getLogger(__name__)

LEVELS: Mapping[str, int] = MappingProxyType(
    {
        "error": logging.ERROR,
        "warning": logging.WARNING,
        "info": logging.INFO,
        "debug": logging.DEBUG,
    }
)
DEFAULT = "info"
_REPEAT_SECONDS = 60.0
# Distinct lines that are remembered.
_MAX_REMEMBERED = 1000
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))
MAX_BYTES = 10 << 20
"""A default log that grows longer is moved to ``NAME.1``."""
_CHECK_SECONDS = 5.0


class OneLineFormatter(logging.Formatter):
    """Formats a record as one line, with escaped line breaks and the location of an exception.

    With `traces` an exception is followed by its traceback. With `journal` a line begins with its
    priority, see sd-daemon(3), and has no time.
    """

    def __init__(self, *, traces: bool, journal: bool) -> None:
        head = "%(levelname)s" if journal else "%(asctime)s %(levelname)s"
        super().__init__(f"{head} %(message)s")
        self._traces = traces
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        shown = logging.makeLogRecord(record.__dict__)
        shown.msg, shown.args = _unbroken(record.getMessage()), None
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not self._traces:
            shown.msg += f": {_unbroken(_described(error))}"
            shown.exc_info, shown.exc_text = None, None
        line = super().format(shown)
        return f"<{_priority(record.levelno)}>{line}" if self._journal else line


class PathFormatter(logging.Formatter):
    """Replaces a path through a descriptor by the current path of the store."""

    def __init__(self, inner: logging.Formatter, top: Path, shown: Callable[[], Path]) -> None:
        super().__init__()
        self._inner = inner
        self._top = str(top)
        self._shown = shown

    def format(self, record: logging.LogRecord) -> str:
        return with_paths(self._inner.format(record), self._top, self._shown)


def with_paths(text: str, top: str, shown: Callable[[], Path]) -> str:
    """Return `text` with the path `top` replaced by the result of `shown`."""
    # Not followed by a digit: that would be another descriptor.
    found = re.compile(re.escape(top) + r"(?![0-9])")
    return found.sub(lambda _: str(shown()), text) if top in text else text


def show_paths(top: Path, shown: Callable[[], Path]) -> None:
    """Make all log lines from now on name the path from `shown` instead of `top`."""
    for handler in logging.getLogger().handlers:
        inner = handler.formatter
        if isinstance(inner, OneLineFormatter):
            handler.setFormatter(PathFormatter(inner, top, shown))


class RepeatFilter(logging.Filter):
    """Passes the same warning or error once a minute, then with a count of the repetitions.

    Readers retry damaged bytes, and so does the kernel. All messages about an unreachable catalog
    server count as the same event, whatever their text. Thread-safe.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: OrderedDict[str, _Repeats] = OrderedDict()  # ordered by time of the line
        self._guard = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        message = record.getMessage()
        key = _event(record, message)
        now = time.monotonic()
        with self._guard:
            before = self._seen.get(key)
            if before is not None and now - before.at < _REPEAT_SECONDS:
                before.left_out += 1
                return False
            self._seen[key] = _Repeats(now)
            self._seen.move_to_end(key)
            if len(self._seen) > _MAX_REMEMBERED:
                self._seen.popitem(last=False)
        if before is not None and before.left_out:
            record.msg = f"{message} (and {before.left_out} more times since the last line)"
            record.args = None
        return True


def _event(record: logging.LogRecord, message: str) -> str:
    """Return a key that is equal for records of the same event."""
    if isinstance(record.args, tuple) and any(
        isinstance(one, UnreachableError) for one in record.args
    ):
        return UnreachableError.__name__
    error = record.exc_info[1] if record.exc_info else None
    return message + ("" if error is None else "".join(traceback.format_exception_only(error)))


@dataclass(slots=True)
class _Repeats:
    at: float  #: monotonic time
    left_out: int = 0  #: repetitions since then


def set_up(level: str, file: Path | None = None) -> None:
    """Log to stderr from `level` of `LEVELS`, or to the end of `file`.

    Raises `MountError` if the file cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler()
    if file is not None:
        try:
            handler = logging.FileHandler(file, encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise MountError(f"the log {file} cannot be written: {error.strerror}") from error
    handler.addFilter(RepeatFilter())
    handler.setFormatter(
        OneLineFormatter(traces=level == "debug", journal=file is None and _is_journal())
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)  # libraries: only warnings and errors
    logging.getLogger("vfsd").setLevel(LEVELS[level])
    logging.getLogger("__main__").setLevel(LEVELS[level])


def _described(error: BaseException) -> str:
    """Return the message of an exception and the last line of vfsd in its traceback."""
    what = "".join(traceback.format_exception_only(error)).strip()
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}vfsd{os.sep}" in frame.filename
    ]
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{what}{where} (use `--log-level debug` for the traceback)"


def _unbroken(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _priority(level: int) -> int:
    return next(priority for least, priority in _PRIORITIES if level >= least)


def _is_journal() -> bool:
    """Return whether stderr is systemd's journal; see systemd.exec(5)."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


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
    name = f"{directory.root.name}-{directory.id[:8]}.log"
    return [state_directory() / name, directory.mount_log]


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
