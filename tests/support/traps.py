"""Traps that record whether a file was opened or a port was connected to."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_IN_OPEN = 0x20
_IN_NONBLOCK = os.O_NONBLOCK
_EVENT = struct.Struct("iIII")


class FileTrap:
    """Records every open of a file in one folder, by any process (see inotify(7))."""

    def __init__(self, folder: Path) -> None:
        self._fd = _LIBC.inotify_init1(_IN_NONBLOCK | os.O_CLOEXEC)
        assert self._fd >= 0
        assert _LIBC.inotify_add_watch(self._fd, os.fsencode(folder), _IN_OPEN) >= 0

    def opened(self) -> list[str]:
        """The names that were opened since the last call."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return []
        names, at = [], 0
        while at < len(data):
            *_, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            names.append(os.fsdecode(data[at : at + length].rstrip(b"\0")))
            at += length
        return names

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def file_trap(folder: Path) -> Iterator[FileTrap]:
    trap = FileTrap(folder)
    try:
        yield trap
    finally:
        trap.close()


class PortTrap:
    """A local port that records whether a client connected."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def was_met(self) -> bool:
        ready, _, _ = select.select([self._listener], [], [], 0)
        return bool(ready)

    def close(self) -> None:
        self._listener.close()


@contextmanager
def port_trap() -> Iterator[PortTrap]:
    trap = PortTrap()
    try:
        yield trap
    finally:
        trap.close()
