"""Messages between `vfsd.storage.sandbox_pool` and the process that examines files.

All are plain data, validated before use. A request is one JSON message on a SOCK_SEQPACKET socket,
with two descriptors: the file and a socket for the reply. A reply is a few records: a kind (one
byte), a length (u64, little-endian), and a body of that length.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

from vfsd.errors import IntegrityError

READY = b"ready"
"""First message of a worker; an `ErrorReport` if it cannot work."""

PROGRESS = b"P"
"""Two i64: bytes done, bytes in total."""
FOUND = b"F"
"""An examination (`vfsd.codecs.probing.serialize`) or an inventory."""
REFUSED = b"R"
"""An `ErrorReport`: the file is not a video that can be served."""
UNREADABLE = b"U"
"""An `ErrorReport`: the file cannot be read; `number` is the errno."""

RECORD = struct.Struct("<cQ")
PROGRESS_BODY = struct.Struct("<qq")
MAX_REQUEST_BYTES = 1 << 16
MAX_ERROR_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resources that the examination of one file may use."""

    memory: int = 4 << 30  #: bytes
    seconds: int = 600  #: CPU time, plus `seconds_per_gigabyte`
    seconds_per_gigabyte: int = 20_000
    silent_seconds: float = 120.0  #: without any progress

    def cpu_seconds(self, size: int) -> int:
        """Return the limit of CPU time for a file of `size` bytes."""
        return self.seconds + size * self.seconds_per_gigabyte // 10**9


@dataclass(frozen=True, slots=True)
class ExamineRequest:
    """A request to examine the file that is sent along."""

    name: str  #: used in messages
    size: int  #: bytes; the child may not be allowed to stat the file
    full: bool  #: decode every frame
    memory: int  #: bytes
    cpu_seconds: int
    stream: int | None = None  #: index of the video stream; None: the best one
    in_largest_size: bool = False  #: as in `MediaInfo`
    listed: tuple[str, int] | None = None
    """Container and stream index for an inventory instead of an examination."""

    def message(self) -> bytes:
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def parse(cls, message: bytes) -> ExamineRequest:
        return cls(**json.loads(message))


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """Why there is no examination."""

    text: str
    hint: str | None = None
    number: int = 0

    def message(self) -> bytes:
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def parse(cls, message: bytes) -> ErrorReport:
        """Parse a message. Raises `IntegrityError`: the sender is not trusted."""
        try:
            told = json.loads(message)
            text, hint, number = told["text"], told["hint"], told["number"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise IntegrityError(f"invalid error report: {error}") from error
        if (
            not isinstance(text, str)
            or not isinstance(hint, str | None)
            or type(number) is not int
            or not 0 <= number < 1 << 12
        ):
            raise IntegrityError("invalid error report")
        return cls(text, hint, number)
