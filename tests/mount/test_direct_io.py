"""Asynchronous direct writes, while other threads read the file through the page cache."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

BLOCK = 640 << 10
SECONDS = 2.0

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the numbers of the system calls are those of x86_64"
)

READERS = """
import os, sys

while os.path.exists(sys.argv[2]):
    file = os.open(sys.argv[1], os.O_RDWR)
    for offset in range(0, int(sys.argv[3]), 4096):
        os.pread(file, 4096, offset)
    os.close(file)
"""


class _Request(ctypes.Structure):
    """``struct iocb``."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("file", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_file", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """``struct io_event``."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Pause(ctypes.Structure):
    """``struct timespec``."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class AsyncWriter:
    """Writes one block at a time, each by a descriptor of its own, with the kernel's native
    asynchronous I/O."""

    SETUP, DESTROY, GETEVENTS, SUBMIT = 206, 207, 208, 209
    PWRITE = 1

    def __init__(self, path: Path) -> None:
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._context = ctypes.c_uint64()
        self._checked(self.SETUP, 1, ctypes.byref(self._context))
        self._path = path
        raw = ctypes.create_string_buffer(BLOCK + 4096)
        self._memory = raw
        self._at = -(-ctypes.addressof(raw) // 4096) * 4096

    def write(self, byte: int) -> bool:
        """Write a block of that byte; return whether it was complete when submitted."""
        ctypes.memset(self._at, byte, BLOCK)
        file = os.open(self._path, os.O_RDWR | os.O_DIRECT)
        request = _Request(opcode=self.PWRITE, file=file, buffer=self._at, length=BLOCK)
        pointer = ctypes.pointer(request)
        context, event = ctypes.c_uint64(self._context.value), _Event()
        self._checked(self.SUBMIT, context, 1, ctypes.byref(pointer))
        at_once = ctypes.byref(_Pause(0, 0))
        complete = self._checked(self.GETEVENTS, context, 0, 1, ctypes.byref(event), at_once)
        if not complete:
            self._checked(self.GETEVENTS, context, 1, 1, ctypes.byref(event), None)
        assert event.result == BLOCK
        os.close(file)
        return complete == 1

    def close(self) -> None:
        self._checked(self.DESTROY, ctypes.c_uint64(self._context.value))

    def _checked(self, number: int, *arguments: object) -> int:
        result = int(self._call(ctypes.c_long(number), *arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def test_direct_writes_are_synchronous(here: Path) -> None:
    """The kernel invalidates its cache after synchronous direct writes only."""
    path = here / "log"
    path.write_bytes(bytes(BLOCK))
    writer = AsyncWriter(path)
    try:
        assert all(writer.write(byte) for byte in range(1, 9))
        assert path.read_bytes() == bytes([8]) * BLOCK
    finally:
        writer.close()


def test_read_after_direct_write(here: Path) -> None:
    path, running = here / "log", here / "running"
    path.write_bytes(bytes(BLOCK))
    running.touch()
    command = [sys.executable, "-c", READERS, str(path), str(running), str(BLOCK)]
    readers = [subprocess.Popen(command) for _ in range(2)]
    writer = AsyncWriter(path)
    try:
        end = time.monotonic() + SECONDS
        byte = 0
        while time.monotonic() < end:
            byte = byte % 255 + 1
            writer.write(byte)
            assert path.read_bytes() == bytes([byte]) * BLOCK
    finally:
        running.unlink()
        writer.close()
        for reader in readers:
            assert reader.wait(30) == 0
