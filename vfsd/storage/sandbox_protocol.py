"""What a process that examines files is told, and what it says: plain data, looked at before use.

Orders go through a socket that keeps messages apart: one message of JSON for each file, along with
two descriptors, the file and the socket for the answer.  An answer is a few records: a kind (one
byte), a length (u64, little-endian), and as many bytes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass

from vfsd.errors import IntegrityError

READY = b"ready"
"""The first message of a worker; a `ErrorReport` where it cannot work."""

PROGRESS = b"P"
"""Two i64: bytes done, bytes in all."""
FOUND = b"F"
"""An examination, see `vfsd.codecs.probing.serialize`, or an inventory."""
REFUSED = b"R"
"""A `ErrorReport`: the file is no video that can be served."""
UNREADABLE = b"U"
"""A `ErrorReport`: the system does not give its bytes; `number` is the errno."""

RECORD = struct.Struct("<cQ")
PROGRESS_BODY = struct.Struct("<qq")
MAX_REQUEST_BYTES = 1 << 16
MAX_ERROR_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What examining one file may take."""

    memory: int = 4 << 30  #: bytes
    seconds: int = 600  #: of CPU, plus `seconds_per_gigabyte`
    seconds_per_gigabyte: int = 20_000
    silent_seconds: float = 120.0  #: without any progress

    def cpu_seconds(self, size: int) -> int:
        """For a file of `size` bytes."""
        return self.seconds + size * self.seconds_per_gigabyte // 10**9


@dataclass(frozen=True, slots=True)
class ExamineRequest:
    """Examine the file that comes along."""

    name: str  #: what messages call it
    size: int  #: bytes, which whoever examines it may not be allowed to ask for
    full: bool  #: decode every frame
    memory: int  #: bytes
    cpu_seconds: int
    stream: int | None = None  #: whose pictures are wanted; None: the best one's
    in_largest_size: bool = False  #: as `MediaInfo` has it
    listed: tuple[str, int] | None = None
    """Container and stream of the pictures, for an inventory instead of an examination."""

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
        """Raises `IntegrityError` for anything else, since nobody vouches for who wrote it."""
        try:
            told = json.loads(message)
            text, hint, number = told["text"], told["hint"], told["number"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise IntegrityError(f"no complaint: {error}") from error
        if (
            not isinstance(text, str)
            or not isinstance(hint, str | None)
            or type(number) is not int
            or not 0 <= number < 1 << 12
        ):
            raise IntegrityError("no complaint")
        return cls(text, hint, number)
