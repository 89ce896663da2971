"""What the process that makes views is told, and what it says: plain data, looked at before use.

Each message is one of a socket that keeps messages apart.  An order comes with a descriptor: of
memory into which the bytes go.  Its answer is a kind (one byte), the number of bytes there and what
idle decoders hold (u64 each, little-endian), and for `FAILED` why.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import NamedTuple

from vfsd import errors
from vfsd.errors import IntegrityError, VfsdError
from vfsd.storage.sandbox_protocol import COMPLAINT_BYTES, Complaint
from vfsd.views.remote_render import SlotOrder

MADE, OTHER, GIVEN_UP, FAILED = b"M", b"O", b"G", b"F"
"""Kinds of answers: the bytes are there; something else lies in that place; nobody wanted them any
more; an error, see `error_of`."""
STOP = b"S"
"""An order to give up what was ordered last, as nobody wants it."""
START, KILL = b"s", b"k"
"""Orders to the process that starts those which make views: start one, whose orders come through
the descriptor that is sent along; kill it."""

READY = b"ready"
"""The first message of a process that makes views; a `Complaint` where it cannot."""

HEAD = struct.Struct("<cQQ")
ORDER_BYTES = 1 << 16
ANSWER_BYTES = HEAD.size + COMPLAINT_BYTES

_SYSTEM = "OSError"
_KINDS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, VfsdError)
    and kind.__init__ is VfsdError.__init__
}
"""Errors that consist of nothing but a sentence and a hint, by name."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an order."""

    kind: bytes
    length: int  #: bytes that were made
    decoders: int  #: bytes of pictures that idle decoders hold
    error: VfsdError | OSError | None = None

    def message(self) -> bytes:
        head = HEAD.pack(self.kind, self.length, self.decoders)
        return head if self.error is None else head + _told(self.error)

    @classmethod
    def parse(cls, message: bytes) -> Answer:
        """Raises `IntegrityError` for what is none, as nobody vouches for who wrote it."""
        if len(message) < HEAD.size:
            raise IntegrityError("an answer that cannot be read")
        kind, length, decoders = HEAD.unpack_from(message)
        error = error_of(message[HEAD.size :]) if kind == FAILED else None
        return cls(kind, length, decoders, error)


class Errand(NamedTuple):
    """What is ordered, and about the memory that comes with it."""

    order: SlotOrder
    sheet: int  #: the number of that memory, which may have come before
    gone: list[int]  #: numbers of some that come no more

    def message(self) -> bytes:
        return json.dumps(self).encode("ascii")

    @classmethod
    def parse(cls, message: bytes) -> Errand:
        order, sheet, gone = json.loads(message)
        return cls(SlotOrder(*order), sheet, gone)


def error_of(told: bytes) -> VfsdError | OSError:
    """What `_told` was about; raises `IntegrityError` for anything else."""
    name, _, rest = told.partition(b" ")
    complaint = Complaint.parse(rest)
    if name == _SYSTEM.encode():
        return OSError(complaint.number, complaint.text)
    kind = _KINDS.get(name.decode("ascii", "replace"))
    if kind is None:
        raise IntegrityError("an unknown kind of error")
    return kind(complaint.text, hint=complaint.hint)


def _told(error: VfsdError | OSError) -> bytes:
    if isinstance(error, OSError) and not isinstance(error, VfsdError):
        complaint = Complaint(error.strerror or str(error), number=error.errno or 0)
        return _SYSTEM.encode() + b" " + complaint.message()
    assert isinstance(error, VfsdError)
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    return name.encode() + b" " + Complaint(str(error), error.hint).message()
