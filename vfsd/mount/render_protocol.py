"""Requests and replies between a mount and its render process, and the shared memory for results.

Messages are plain data, validated before use. `BufferPool` owns the memory; `BufferMappings` maps
it in the writing process.
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
from vfsd.views.rendering import SlotRequest

# Buffer sizes are multiples of this, so that a buffer can be reused for a similar size.
_SIZE_STEP = 1 << 18
# Smaller results are copied: a cache of many small ones would need a descriptor for each.
_MIN_SHARED = 1 << 20
# Idle buffers that are kept for reuse.
_MOST_IDLE = 8
MADE, REPLACED, CANCELLED, FAILED = b"M", b"O", b"G", b"F"
"""Kinds of replies: the bytes are in the buffer; another file is at the path; cancelled; an error
(see `error_of`)."""
STOP = b"S"
"""Cancels the current request of a connection."""
START, KILL = b"s", b"k"
"""Commands to the starter process: start a render process, with the socket that is sent along; kill
it."""
READY = b"ready"
"""First message of a render process; an `ErrorReport` if it cannot work."""
HEAD = struct.Struct("<cQQ")
REQUEST_BYTES = 1 << 16
REPLY_BYTES = HEAD.size + MAX_ERROR_BYTES
_SYSTEM = "OSError"
# Errors that have only a message and a hint, by name.
_KINDS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, VfsdError)
    and kind.__init__ is VfsdError.__init__
}


class SharedBuffer:
    """Memory with a descriptor, sealed against resizing."""

    def __init__(self, number: int, room: int) -> None:
        """Reserve `room` bytes; pages are allocated when they are written. Raises `OSError`."""
        self.number = number  #: unique in the process
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
        """Close the descriptor. The memory is freed with its last user."""
        os.close(self.fd)


class BufferPool:
    """The shared buffers of the mount process. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._numbers = itertools.count()
        self._closed_numbers: list[int] = []
        self._idle: list[SharedBuffer] = []  # most recently used last
        # A finalizer may release memory in any thread at any point, so this takes no lock.
        self._returned: deque[SharedBuffer] = deque()

    def acquire(self, room: int) -> SharedBuffer:
        """Return a buffer for `room` bytes, to be passed to `detach`, `release` or `drop`.

        Raises `OSError`.
        """
        room = max(1, -(-room // _SIZE_STEP)) * _SIZE_STEP
        with self._guard:
            self._gather()
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at].room == room:
                    return self._idle.pop(at)
        return SharedBuffer(next(self._numbers), room)

    def detach(self, buffer: SharedBuffer, length: int) -> memoryview:
        """Return the first `length` bytes. The buffer is reused when they are no longer referenced.

        Raises `IntegrityError` if the buffer is smaller.
        """
        if length > buffer.room:
            self.release(buffer)
            raise IntegrityError("the result is larger than its buffer")
        found = np.frombuffer(buffer.memory, np.uint8, length)
        if length < _MIN_SHARED:
            copied = found.copy()
            self.release(buffer)
            return copied.data
        weakref.finalize(found, self.release, buffer).atexit = False
        return found.data

    def release(self, buffer: SharedBuffer) -> None:
        """Return a buffer that is neither read nor written any more. Never blocks."""
        self._returned.append(buffer)

    def drop(self, buffer: SharedBuffer) -> None:
        """Discard a buffer that may still be written to."""
        buffer.close()
        with self._guard:
            self._closed_numbers.append(buffer.number)

    def closed(self) -> list[int]:
        """Return the numbers of buffers closed since the last call."""
        with self._guard:
            closed, self._closed_numbers = self._closed_numbers, []
            return closed

    def close(self) -> None:
        with self._guard:
            self._gather()
            for buffer in self._idle:
                buffer.close()
            self._idle.clear()

    def _gather(self) -> None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        surplus = self._idle[: max(0, len(self._idle) - _MOST_IDLE)]
        del self._idle[: len(surplus)]
        for buffer in surplus:
            buffer.close()
            self._closed_numbers.append(buffer.number)


class BufferMappings:
    """Buffers of the mount process, mapped in the render process. Thread-safe.

    Each is mapped only once: mapping and unmapping six megabytes for every frame takes a tenth of
    its decoding time.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._mapped: dict[int, mmap.mmap] = {}

    def place(self, number: int, fd: int, length: int) -> npt.NDArray[np.uint8]:
        """Return the first `length` bytes of a buffer.

        Raises `ValueError` if it is smaller, `OSError`.
        """
        with self._guard:
            mapped = self._mapped.get(number)
        if mapped is None or len(mapped) < length:
            # Populate all pages at once, but only as many as needed: they use memory.
            mapped = mmap.mmap(fd, length, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            with self._guard:
                self._mapped[number] = mapped
        return np.frombuffer(mapped, np.uint8, length)

    def clear(self, closed: Iterable[int]) -> None:
        """Unmap closed buffers. Threads that are writing keep their mapping."""
        with self._guard:
            for number in closed:
                self._mapped.pop(number, None)


@dataclass(frozen=True, slots=True)
class RenderReply:
    """The result of a request."""

    kind: bytes
    length: int  #: bytes of the result
    decoders: int  #: bytes of frames held by idle decoders
    error: VfsdError | OSError | None = None

    def message(self) -> bytes:
        head = HEAD.pack(self.kind, self.length, self.decoders)
        return head if self.error is None else head + _packed(self.error)

    @classmethod
    def parse(cls, message: bytes) -> RenderReply:
        """Parse a message. Raises `IntegrityError`: the sender is not trusted."""
        if len(message) < HEAD.size:
            raise IntegrityError("invalid reply")
        kind, length, decoders = HEAD.unpack_from(message)
        error = error_of(message[HEAD.size :]) if kind == FAILED else None
        return cls(kind, length, decoders, error)


class RenderRequest(NamedTuple):
    """A slot to render, and the buffer for the result."""

    slot: SlotRequest
    buffer: int  #: number of the buffer, which may be mapped already
    closed: list[int]  #: numbers of buffers that were closed

    def message(self) -> bytes:
        return json.dumps(self).encode("ascii")

    @classmethod
    def parse(cls, message: bytes) -> RenderRequest:
        slot, buffer, closed = json.loads(message)
        return cls(SlotRequest(*slot), buffer, closed)


def error_of(message: bytes) -> VfsdError | OSError:
    """Unpack an error. Raises `IntegrityError` for an invalid one."""
    name, _, rest = message.partition(b" ")
    report = ErrorReport.parse(rest)
    if name == _SYSTEM.encode():
        return OSError(report.number, report.text)
    kind = _KINDS.get(name.decode("ascii", "replace"))
    if kind is None:
        raise IntegrityError("unknown type of error")
    return kind(report.text, hint=report.hint)


def _packed(error: VfsdError | OSError) -> bytes:
    if isinstance(error, OSError) and not isinstance(error, VfsdError):
        report = ErrorReport(error.strerror or str(error), number=error.errno or 0)
        return _SYSTEM.encode() + b" " + report.message()
    assert isinstance(error, VfsdError)
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    return name.encode() + b" " + ErrorReport(str(error), error.hint).message()
