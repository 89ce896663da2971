"""Requests and replies between a mount and its render process, and the shared memory for results.
Messages are plain data, checked before use; `BufferPool` owns the memory and `BufferMappings`
maps it in the writing process.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import mmap
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vfsd import errors
from vfsd.errors import IntegrityError, VfsdError
from vfsd.storage.sandbox_protocol import MAX_ERROR_BYTES, ErrorReport
from vfsd.views.remote_render import SlotRequest

_GRAIN = 1 << 18
"""Sheets are as large as a multiple of that many bytes, so that one may do for what another was."""
_LEAST = 1 << 20
"""Fewer bytes are copied: who keeps many small things would have a descriptor for each."""
_MOST_IDLE = 8
"""As many wait for the next one who needs that size; more are given back to the system."""


class SharedBuffer:
    """Memory with a descriptor.  Who has that can make it neither smaller nor larger."""

    def __init__(self, number: int, room: int) -> None:
        """For as many bytes, which are taken up only where something is written.

        Raises `OSError`.
        """
        self.number = number  #: that no other has or had
        self.room = room
        self.fd = os.memfd_create("view", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, room)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self.memory = mmap.mmap(self.fd, room, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self.fd)
            raise

    def close(self) -> None:
        """Its memory goes when nobody has any of it."""
        os.close(self.fd)


class BufferPool:
    """Those of a process.  Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self._gone: list[int] = []
        self._idle: list[SharedBuffer] = []  # the one used last at the end
        # Memory may be let go of by any thread, in the midst of whatever it does: it takes no lock.
        self._returned: deque[SharedBuffer] = deque()

    def take(self, room: int) -> SharedBuffer:
        """One with room for as many bytes, the caller's until it is in `filled` or `back`.

        Raises `OSError`.
        """
        room = max(1, -(-room // _GRAIN)) * _GRAIN
        with self._guard:
            self._gather()
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at].room == room:
                    return self._idle.pop(at)
        return SharedBuffer(next(self._numbers), room)

    def filled(self, sheet: SharedBuffer, length: int) -> memoryview:
        """The first bytes of it; it can be taken again when nobody has these any more.

        Raises `IntegrityError` where it has not as many.
        """
        if length > sheet.room:
            self.back(sheet)
            raise IntegrityError("more bytes than there is room for")
        found = np.frombuffer(sheet.memory, np.uint8, length)
        if length < _LEAST:
            copied = found.copy()
            self.back(sheet)
            return copied.data
        weakref.finalize(found, self.back, sheet).atexit = False
        return found.data

    def back(self, sheet: SharedBuffer) -> None:
        """Nobody writes to it any more, or looks at it.  Never waits."""
        self._returned.append(sheet)

    def drop(self, sheet: SharedBuffer) -> None:
        """It is not used again, though somebody may still write to it."""
        sheet.close()
        with self._guard:
            self._gone.append(sheet.number)

    def gone(self) -> list[int]:
        """The numbers of those that are no more, each of which is told once."""
        with self._guard:
            gone, self._gone = self._gone, []
            return gone

    def close(self) -> None:
        with self._guard:
            self._gather()
            for sheet in self._idle:
                sheet.close()
            self._idle.clear()

    def _gather(self) -> None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        surplus = self._idle[: max(0, len(self._idle) - _MOST_IDLE)]
        del self._idle[: len(surplus)]
        for sheet in surplus:
            sheet.close()
            self._gone.append(sheet.number)


class BufferMappings:
    """Sheets of another process, as the one has them before it that writes.  Thread-safe.

    Each is mapped once: to map six megabytes anew for each picture, and to give that up again,
    takes a tenth of what it takes to decode one.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._mapped: dict[int, mmap.mmap] = {}

    def place(self, number: int, fd: int, length: int) -> npt.NDArray[np.uint8]:
        """The first bytes of the sheet with that number and descriptor.

        Raises `ValueError` where it has not as many, `OSError`.
        """
        with self._guard:
            mapped = self._mapped.get(number)
        if mapped is None or len(mapped) < length:
            # At once and not page by page; no more of it, as that takes up memory.
            mapped = mmap.mmap(fd, length, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            with self._guard:
                self._mapped[number] = mapped
        return np.frombuffer(mapped, np.uint8, length)

    def clear(self, gone: Iterable[int]) -> None:
        """These are no more; whoever writes to one still can."""
        with self._guard:
            for number in gone:
                self._mapped.pop(number, None)


MADE, OTHER, GIVEN_UP, FAILED = b"M", b"O", b"G", b"F"
"""Kinds of answers: the bytes are there; something else lies in that place; nobody wanted them any
more; an error, see `error_of`."""
STOP = b"S"
"""An order to give up what was ordered last, as nobody wants it."""
START, KILL = b"s", b"k"
"""Orders to the process that starts those which make views: start one, whose orders come through
the descriptor that is sent along; kill it."""

READY = b"ready"
"""The first message of a process that makes views; a `ErrorReport` where it cannot."""

HEAD = struct.Struct("<cQQ")
ORDER_BYTES = 1 << 16
ANSWER_BYTES = HEAD.size + MAX_ERROR_BYTES

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
class RenderReply:
    """What came of an order."""

    kind: bytes
    length: int  #: bytes that were made
    decoders: int  #: bytes of pictures that idle decoders hold
    error: VfsdError | OSError | None = None

    def message(self) -> bytes:
        head = HEAD.pack(self.kind, self.length, self.decoders)
        return head if self.error is None else head + _told(self.error)

    @classmethod
    def parse(cls, message: bytes) -> RenderReply:
        """Raises `IntegrityError` for what is none, as nobody vouches for who wrote it."""
        if len(message) < HEAD.size:
            raise IntegrityError("an answer that cannot be read")
        kind, length, decoders = HEAD.unpack_from(message)
        error = error_of(message[HEAD.size :]) if kind == FAILED else None
        return cls(kind, length, decoders, error)


class RenderRequest(NamedTuple):
    """What is ordered, and about the memory that comes with it."""

    order: SlotRequest
    sheet: int  #: the number of that memory, which may have come before
    gone: list[int]  #: numbers of some that come no more

    def message(self) -> bytes:
        return json.dumps(self).encode("ascii")

    @classmethod
    def parse(cls, message: bytes) -> RenderRequest:
        order, sheet, gone = json.loads(message)
        return cls(SlotRequest(*order), sheet, gone)


def error_of(told: bytes) -> VfsdError | OSError:
    """What `_told` was about; raises `IntegrityError` for anything else."""
    name, _, rest = told.partition(b" ")
    complaint = ErrorReport.parse(rest)
    if name == _SYSTEM.encode():
        return OSError(complaint.number, complaint.text)
    kind = _KINDS.get(name.decode("ascii", "replace"))
    if kind is None:
        raise IntegrityError("an unknown kind of error")
    return kind(complaint.text, hint=complaint.hint)


def _told(error: VfsdError | OSError) -> bytes:
    if isinstance(error, OSError) and not isinstance(error, VfsdError):
        complaint = ErrorReport(error.strerror or str(error), number=error.errno or 0)
        return _SYSTEM.encode() + b" " + complaint.message()
    assert isinstance(error, VfsdError)
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    return name.encode() + b" " + ErrorReport(str(error), error.hint).message()
