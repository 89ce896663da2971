"""FUSE passthrough: the kernel reads a whole stored file itself and asks nobody.

Kernels have it since 6.9, libfuse since 3.17; what earlier ones lack is added in
`vfsd.mount.fuse.reply_hook`.

The kernel does not let one inode be open in both ways at a time: as long as it reads a file itself,
opening that file for writing is ETXTBSY, and as long as somebody has it open in the ordinary way,
everybody has.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable
from ctypes import c_int32, c_void_p
from typing import Any

from vfsd.errors import MountError
from vfsd.mount.fs import WholeFile
from vfsd.mount.fs.op_stats import Counters
from vfsd.mount.fuse.backing_ids import Backings
from vfsd.mount.fuse.binding import Binding
from vfsd.mount.fuse.reply_hook import Wire

KERNEL = (6, 9)
_LIBFUSE, _LIBFUSE_KNOWS = (3, 14), (3, 17)
_WANTED = 1 << 29  # FUSE_CAP_PASSTHROUGH

# The kernel tells us that a file is closed some time after close(2): who has read a file and then
# writes it must not find it busy.
_RELEASE_SECONDS = 0.5

# The same, for who reads a view again that has only just become a file.
_HANDOVER_SECONDS = 0.002


class _Use:
    """How an inode is open."""

    def __init__(self) -> None:
        self.handles = 0
        self.backing = 0  #: what the kernel calls the file that it reads; 0: it asks us
        self.version: str | None = None  #: of the bytes of that file


def require_passthrough(binding: Binding, kernel: tuple[int, int]) -> None:
    """Find out before mounting why it would not work.  Raises `MountError`."""
    if kernel < KERNEL:
        raise MountError(f"passthrough needs Linux {KERNEL[0]}.{KERNEL[1]}, leave it out here")
    if (binding.major, binding.minor) < _LIBFUSE:
        raise MountError(
            f"passthrough needs libfuse 3.14, this is {binding.major}.{binding.minor}",
            hint="leave it out",
        )
    if os.geteuid() != 0:
        raise MountError("passthrough is for root only", hint="leave it out, or mount as root")


class Passthrough:
    """Which files the kernel reads by itself.  Thread-safe."""

    def __init__(self, binding: Binding, counters: Counters) -> None:
        module = binding.module
        self._libfuse = module._libfuse
        self._wire = Wire() if (binding.major, binding.minor) < _LIBFUSE_KNOWS else None
        # ``backing_id`` follows ``poll_events``, which the binding takes for twice as long.
        self._backing_at: int = module.fuse_file_info.poll_events.offset + 4
        self._backings = Backings()
        counters.passed_through = self._backings.count
        self._uses: dict[int, _Use] = {}  # by inode
        self._inodes: dict[int, int] = {}  # by handle
        self._guard = threading.Condition()

    def start(self, fuse: int, connection: Any) -> None:
        """To be called while libfuse handles INIT; `connection` is its ``fuse_conn_info``."""
        library = self._libfuse
        library.fuse_get_session.restype = c_void_p
        library.fuse_get_session.argtypes = [c_void_p]
        library.fuse_session_fd.argtypes = [c_void_p]
        session = library.fuse_get_session(fuse)
        device = library.fuse_session_fd(session)
        self._backings.start(device)
        if self._wire is not None:
            self._wire.start(library, session, device)
        else:
            connection.want |= connection.capable & _WANTED

    def close(self) -> None:
        """To be called when libfuse has ended."""
        self._backings.close()

    def reserve(self, ino: int) -> None:
        """Somebody is about to open an inode in the ordinary way; ends with `opened` or `cancel`.

        Raises `OSError`: ETXTBSY while the kernel reads it.
        """
        with self._guard:
            self._wait_for_kernel(ino)
            self._uses.setdefault(ino, _Use()).handles += 1

    def cancel(self, ino: int) -> None:
        with self._guard:
            self._leave(ino)

    def opened(self, handle: int, ino: int) -> None:
        """What was reserved has become a handle."""
        with self._guard:
            self._inodes[handle] = ino

    def open_for_reading(self, handle: int, whole: WholeFile, info: int) -> bool:
        """Whether the kernel reads by itself what was opened for reading only.

        To be called by the thread that then answers OPEN with the ``fuse_file_info`` at `info`.
        Raises `OSError` (ETXTBSY) where the inode has other bytes by now than those that the
        kernel reads for others.
        """
        ino = whole.ino
        with self._guard:
            if not self._is_read_by_kernel(whole):
                self._wait_for_kernel(ino)
            if whole.fd is not None and whole.version is not None:
                self._guard.wait_for(lambda: self._may_begin(ino), _HANDOVER_SECONDS)
            use = self._uses.setdefault(ino, _Use())
            if whole.fd is not None and not use.handles:
                use.backing, use.version = self._backings.take(whole.fd), whole.version
            use.handles += 1
            self._inodes[handle] = ino
        if use.backing:
            self._announce(use.backing, info)
        return bool(use.backing)

    def require_idle(self, ino: int) -> None:
        """Raises `OSError`: ETXTBSY while the kernel reads an inode."""
        with self._guard:
            self._wait_for_kernel(ino)

    def require_asked(self, handles: Iterable[int]) -> None:
        """Raises `OSError`: ETXTBSY while the kernel reads what one of them is open on."""
        with self._guard:
            for ino in {self._inodes[each] for each in handles if each in self._inodes}:
                self._wait_for_kernel(ino)

    def released(self, handle: int) -> None:
        with self._guard:
            ino = self._inodes.pop(handle, None)
            if ino is not None:
                self._leave(ino)

    # -- inside

    def _is_read_by_kernel(self, whole: WholeFile) -> bool:
        """Whether that is what it reads, or may read once nobody has the inode open."""
        use = self._uses.get(whole.ino)
        if use is None or not use.backing or whole.version is None:
            return whole.fd is not None
        return use.version == whole.version

    def _may_begin(self, ino: int) -> bool:
        use = self._uses.get(ino)
        return use is None or bool(use.backing)

    def _wait_for_kernel(self, ino: int) -> None:
        def is_idle() -> bool:
            use = self._uses.get(ino)
            return use is None or not use.backing

        if not self._guard.wait_for(is_idle, _RELEASE_SECONDS):
            raise OSError(errno.ETXTBSY, os.strerror(errno.ETXTBSY))

    def _leave(self, ino: int) -> None:
        use = self._uses[ino]
        use.handles -= 1
        if use.handles:
            return
        del self._uses[ino]
        if use.backing:
            self._backings.give_back(use.backing)
        self._guard.notify_all()

    def _announce(self, backing: int, info: int) -> None:
        if self._wire is not None:
            self._wire.announce(backing)
        else:
            c_int32.from_address(info + self._backing_at).value = backing
