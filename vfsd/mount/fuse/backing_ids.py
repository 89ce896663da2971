"""Files on the disk that the kernel knows by a number, so that it can read them by itself.

To register one and to let it go again are two system calls for each opening, and others open the
same file soon: so a number that nobody uses is kept for a moment.  No longer, as the kernel holds
the file meanwhile, and with it the room on the disk of one that was deleted.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

_log = logging.getLogger(__name__)

# linux/fuse.h
_OPEN, _CLOSE = 0x4010E501, 0x4004E502
_MAP = struct.Struct("<iIQ")  # descriptor, flags, padding

# Registering takes a system call without the interpreter lock. An OPEN and a RELEASE at the same
# time would hand the lock to each other.
_KEPT_SECONDS = 2.0
_MOST_KEPT = 256
"""Each holds a file, though no descriptor of ours."""


@dataclass(slots=True)
class _Backing:
    number: int
    users: int = 0
    since: float = 0.0  #: nobody uses it since


class Backings:
    """Registered files, by their place on the disk.  Thread-safe."""

    def __init__(self) -> None:
        self._device = -1
        self._known: dict[tuple[int, int], _Backing] = {}  # by st_dev and st_ino
        self._places: dict[int, tuple[int, int]] = {}  # by number
        self._idle: OrderedDict[tuple[int, int], _Backing] = OrderedDict()
        self._guard = threading.Lock()
        self._sweeper: threading.Timer | None = None

    def start(self, device: int) -> None:
        """`device` is the connection's descriptor."""
        self._device = device

    def take(self, fd: int) -> int:
        """The kernel's number of a file; 0 where it does not read it by itself.

        Has to be given back.  What is registered stays on the disk, so that its inode is no other
        file's meanwhile.
        """
        found = os.fstat(fd)
        place = (found.st_dev, found.st_ino)
        with self._guard:
            backing = self._known.get(place)
            if backing is None:
                number = self._register(fd)
                if not number:
                    return 0
                backing = self._known[place] = _Backing(number)
                self._places[number] = place
            self._idle.pop(place, None)
            backing.users += 1
            return backing.number

    def give_back(self, number: int) -> None:
        with self._guard:
            place = self._places[number]
            backing = self._known[place]
            backing.users -= 1
            if backing.users:
                return
            backing.since = time.monotonic()
            self._idle[place] = backing
            if len(self._idle) > _MOST_KEPT:
                self._drop_oldest()
            self._sweep_later()

    def count(self) -> int:
        """How many files are registered; a moment longer than they are open."""
        with self._guard:
            return len(self._known)

    def close(self) -> None:
        """The connection has ended, and with it all that was registered."""
        with self._guard:
            self._device = -1
            self._idle.clear()
            if self._sweeper is not None:
                self._sweeper.cancel()

    # -- inside

    def _register(self, fd: int) -> int:
        try:
            request = bytearray(_MAP.pack(fd, 0, 0))
            return int(fcntl.ioctl(self._device, _OPEN, request, True))
        except OSError as error:
            # Not on this kernel, or not for files of that file system.
            _log.warning("a file is not passed through: %s", error.strerror)
            return 0

    def _drop_oldest(self) -> None:
        place, backing = self._idle.popitem(last=False)
        del self._known[place], self._places[backing.number]
        try:
            fcntl.ioctl(self._device, _CLOSE, struct.pack("<I", backing.number))
        except OSError as error:
            _log.debug("the kernel does not let go of a file: %s", error.strerror)

    def _sweep_later(self) -> None:
        if self._sweeper is None and self._device >= 0:
            self._sweeper = threading.Timer(_KEPT_SECONDS, self._sweep)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _sweep(self) -> None:
        with self._guard:
            self._sweeper = None
            before = time.monotonic() - _KEPT_SECONDS
            while self._idle and next(iter(self._idle.values())).since <= before:
                self._drop_oldest()
            if self._idle:
                self._sweep_later()
