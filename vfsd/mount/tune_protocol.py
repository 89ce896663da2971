"""Messages between a mount and its tuning process.

Commands are single bytes; the last one counts. The end of their pipe means that the mount is gone
and the process must end. Reports are lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
from dataclasses import asdict, dataclass

RUN, PAUSE = b"g", b"p"

MAKING, MADE, FAILED, NOTE, DONE = "making", "made", "failed", "note", "done"

ALL = 0
"""Stands for all videos in a report, instead of the id of one."""

LINGER_SECONDS = 30.0
"""How long an idle or paused process waits for a command before it ends. Starting one takes a
second of imports."""


class TunerStopError(Exception):
    """The mount is gone, or the process was idle for long."""


@dataclass(frozen=True, slots=True)
class TunerReport:
    """A report of the tuning process."""

    what: str  #: `MAKING`, `MADE`, `FAILED`, `NOTE`, or `DONE` (nothing is left to do)
    text: str = ""  #: description or reason
    video: int = ALL  #: id of the video
    seconds: float = 0.0  #: duration of the search for work, for `DONE`

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> TunerReport:
        return cls(**json.loads(line))


class TunerCommands:
    """The reading end of the command pipe."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    def wait_while_paused(self) -> None:
        """Return at once, or when the pause ends. Raises `TunerStopError`.

        Cheap enough to call for every frame.
        """
        command = self._newest()
        while command == PAUSE:
            command = self._wait()

    def wait_for_run(self) -> None:
        """Return when there is work to do. Raises `TunerStopError`."""
        while self._wait() != RUN:
            pass

    def _newest(self) -> bytes:
        """Return the last command that has arrived; empty if there is none."""
        command = b""
        while True:
            try:
                more = os.read(self._fd, 4096)
            except BlockingIOError:
                return command
            if not more:
                raise TunerStopError
            command = more[-1:]

    def _wait(self) -> bytes:
        ready, _, _ = select.select([self._fd], [], [], LINGER_SECONDS)
        if not ready:
            raise TunerStopError
        return self._newest()
