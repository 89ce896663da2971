"""Notes of the units that processes of a home perform, which outlive the process.

A crash leaves the reason, written by `faulthandler`, and a killed process leaves none.  The next
process of the home finds the notes.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

_NOTE, _TRACE = ".json", ".trace"
_MAX_TRACE = 4096


@dataclass(frozen=True, slots=True)
class Attempt:
    """A unit that a process has begun."""

    order: str
    number: int
    attempt: str
    host: str
    video: int | None


@dataclass(frozen=True, slots=True)
class DeadAttempt:
    """An attempt that did not outlive its process."""

    attempt: Attempt
    how: str | None  #: the reason of the crash; None: it was killed


class AttemptNotes:
    """The notes of this process in a folder, and those of dead ones.  Thread-safe."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._trace = folder / f"{uuid4().hex}{_TRACE}"
        self._file = _locked_file(self._trace)
        self._was_enabled = faulthandler.is_enabled()
        # All threads of the process share one trace.
        faulthandler.enable(self._file, all_threads=True)

    @contextmanager
    def kept(self, attempt: Attempt) -> Iterator[None]:
        """Keep a note while an attempt runs."""
        path = self._folder / f"{attempt.attempt}{_NOTE}"
        with _locked_file(path) as file:
            file.write(json.dumps({"trace": self._trace.name, **asdict(attempt)}).encode())
            file.flush()
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def of_dead_workers(self) -> Iterator[DeadAttempt]:
        """Yield the attempts of processes that have ended.

        A note is deleted after the caller has continued, so it is yielded again after an error.
        """
        paths = list(self._folder.iterdir())
        for path in paths:
            if path.suffix == _NOTE:
                with _dead_file(path) as text:
                    dead = None if text is None else self._dead_attempt(text)
                    if dead is not None:
                        yield dead
        # Notes refer to traces, so these go last.
        if not any(path.suffix == _NOTE and path.exists() for path in paths):
            for path in paths:
                if path.suffix == _TRACE and path != self._trace:
                    with _dead_file(path):
                        pass

    def _dead_attempt(self, text: bytes) -> DeadAttempt | None:
        try:
            values = json.loads(text)
            trace = self._folder / str(values.pop("trace"))
            return DeadAttempt(Attempt(**values), _reason_in(trace))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # it was killed while it wrote

    def close(self) -> None:
        """Delete the files of this process."""
        if self._was_enabled and sys.__stderr__ is not None:
            faulthandler.enable(sys.__stderr__)
        else:
            faulthandler.disable()
        self._trace.unlink(missing_ok=True)
        self._file.close()


def _locked_file(path: Path) -> IO[bytes]:
    while True:
        file = open(path, "xb", buffering=0)  # noqa: SIM115  the lock lasts while it is open
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process took it for one of a dead process before it was locked


@contextmanager
def _dead_file(path: Path) -> Iterator[bytes | None]:
    """Yield the content of a file of a process that has ended, and delete it; None for others."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a process has the lock, or has deleted the file
            yield None
            return
        # Another process may have deleted it before this one had the lock.
        if not os.fstat(file.fileno()).st_nlink:
            yield None
            return
        yield file.read()
        path.unlink(missing_ok=True)


def _reason_in(path: Path) -> str | None:
    """Return the first line that the fault handler wrote, or None."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_TRACE).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    lines = text.splitlines()
    return lines[0].removeprefix("Fatal Python error: ") if lines else None
