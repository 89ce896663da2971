"""What a mount and the process that makes its tiles say to each other.

Orders are single bytes, of which the last one counts: go on, or pause.  Their end means that the
mount is gone, and so should the process be.  Reports are lines of JSON.
"""

from __future__ import annotations

import json
import os
import select
from dataclasses import asdict, dataclass

GO_ON, PAUSE = b"g", b"p"

MAKING, MADE, FAILED, NOTE, DONE = "making", "made", "failed", "note", "done"

ALL = 0
"""Stands for all videos, where others have their ids."""

LINGER_SECONDS = 30.0
"""How long a process with nothing to do, or none that may be done, waits to be needed: starting one
takes a second of imports."""


class TunerStopError(Exception):
    """There is no mount any more, or nobody has needed us for long."""


@dataclass(frozen=True, slots=True)
class TunerReport:
    """What has just happened."""

    what: str  #: `MAKING`, `MADE`, `FAILED`, `NOTE`, or `DONE`: nothing is left to do
    text: str = ""  #: what, or why, in words
    video: int = ALL  #: id, where it is about one
    seconds: float = 0.0  #: that looking for something to do has taken, when it is done

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> TunerReport:
        return cls(**json.loads(line))


class TunerCommands:
    """The end of the pipe that is obeyed."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    def obey(self) -> None:
        """Return at once, or as soon as it may go on.  Raises `TunerStopError`.

        Quick enough for every picture.
        """
        order = self._newest()
        while order == PAUSE:
            order = self._wait()

    def await_go(self) -> None:
        """Return when there is something to do.  Raises `TunerStopError`."""
        while self._wait() != GO_ON:
            pass

    def _newest(self) -> bytes:
        """The last order that has come; nothing when none has."""
        order = b""
        while True:
            try:
                more = os.read(self._fd, 4096)
            except BlockingIOError:
                return order
            if not more:
                raise TunerStopError
            order = more[-1:]

    def _wait(self) -> bytes:
        ready, _, _ = select.select([self._fd], [], [], LINGER_SECONDS)
        if not ready:
            raise TunerStopError
        return self._newest()
