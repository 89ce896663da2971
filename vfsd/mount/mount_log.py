"""What a mount has to say: one line for each event, at a terminal, in a file or in the journal.

=========  =====================================================================================
error      bytes or names cannot be served as they should be; the line says which, and what to do
warning    something was done in another way, or later, than asked for
info       mounted and unmounted; what was put right after a crash; tiles that were made by
           themselves; requests for views that were refused, and why
debug      each file that was looked at, and what it is; where in the program an error comes from
=========  =====================================================================================
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from vfsd.errors import MountError, UnreachableError

LEVELS: Mapping[str, int] = MappingProxyType(
    {
        "error": logging.ERROR,
        "warning": logging.WARNING,
        "info": logging.INFO,
        "debug": logging.DEBUG,
    }
)
DEFAULT = "info"

_SPARED_SECONDS = 60.0
_MOST_TOLD = 1000
"""Lines that are remembered."""

_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))


class OneLineFormatter(logging.Formatter):
    """A record as one line: line breaks are shown, and of an exception what it is and where.

    With `traces` an exception has its trace below the line.  With `journal` a line begins with its
    priority, see sd-daemon(3), and has no time, which the journal knows.
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
            shown.msg += f": {_unbroken(_told(error))}"
            shown.exc_info, shown.exc_text = None, None
        line = super().format(shown)
        return f"<{_priority(record.levelno)}>{line}" if self._journal else line


class PathFormatter(logging.Formatter):
    """Another formatter's lines, with a store's path in the place of one through a descriptor."""

    def __init__(self, inner: logging.Formatter, top: Path, shown: Callable[[], Path]) -> None:
        super().__init__()
        self._inner = inner
        self._top = str(top)
        self._shown = shown

    def format(self, record: logging.LogRecord) -> str:
        return with_paths(self._inner.format(record), self._top, self._shown)


def with_paths(text: str, top: str, shown: Callable[[], Path]) -> str:
    """`text` with the path that `shown` gives wherever the path `top` is in it."""
    # A longer number is another descriptor.
    found = re.compile(re.escape(top) + r"(?![0-9])")
    return found.sub(lambda _: str(shown()), text) if top in text else text


def show_paths(top: Path, shown: Callable[[], Path]) -> None:
    """Let all lines from now on name the path that `shown` gives instead of `top`."""
    for handler in logging.getLogger().handlers:
        inner = handler.formatter
        if isinstance(inner, OneLineFormatter):
            handler.setFormatter(PathFormatter(inner, top, shown))


class RepeatFilter(logging.Filter):
    """Lets the same warning or error through once a minute, and then with how often it came.

    Whoever reads damaged bytes tries again, and so does the kernel.  While the server of the
    catalog is not there, all requests fail, each by its own words: one of them is told.
    Thread-safe.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: OrderedDict[str, _Repeats] = OrderedDict()  # by when they were told
        self._guard = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        message = record.getMessage()
        key = _event(record, message)
        now = time.monotonic()
        with self._guard:
            before = self._told.get(key)
            if before is not None and now - before.at < _SPARED_SECONDS:
                before.left_out += 1
                return False
            self._told[key] = _Repeats(now)
            self._told.move_to_end(key)
            if len(self._told) > _MOST_TOLD:
                self._told.popitem(last=False)
        if before is not None and before.left_out:
            record.msg = f"{message} (and {before.left_out} times since this was last told)"
            record.args = None
        return True


def _event(record: logging.LogRecord, message: str) -> str:
    """What is the same in records of the same event."""
    if isinstance(record.args, tuple) and any(
        isinstance(one, UnreachableError) for one in record.args
    ):
        return UnreachableError.__name__
    error = record.exc_info[1] if record.exc_info else None
    return message + ("" if error is None else "".join(traceback.format_exception_only(error)))


@dataclass(slots=True)
class _Repeats:
    at: float  #: as `time.monotonic` has it
    left_out: int = 0  #: how often since


def set_up(level: str, file: Path | None = None) -> None:
    """Let this process write what it has to say, from that level of `LEVELS` on, to stderr.

    With `file` it goes to the end of that instead; raises `MountError` where it cannot.
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
    root.setLevel(logging.WARNING)  # of libraries only what is wrong
    logging.getLogger("vfsd").setLevel(LEVELS[level])
    logging.getLogger("__main__").setLevel(LEVELS[level])


def _told(error: BaseException) -> str:
    """What an exception says, and the last line of ours that it went through."""
    what = "".join(traceback.format_exception_only(error)).strip()
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}vfsd{os.sep}" in frame.filename
    ]
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{what}{where} (`--log-level debug` tells more)"


def _unbroken(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _priority(level: int) -> int:
    return next(priority for least, priority in _PRIORITIES if level >= least)


def _is_journal() -> bool:
    """Whether stderr is systemd's journal, see systemd.exec(5)."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
