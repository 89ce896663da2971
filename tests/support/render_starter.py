"""A process with one thread that forks the starters of render processes.

`render_server.start` is for processes with one thread.  A fork of a test process, which has
decoder threads and open catalogs, may wait for a lock that another thread held.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from vfsd.core.subprocess_entry import child_environment, gc_paused

_ROOT = Path(__file__).resolve().parents[2]
_PATH_BYTES = 1 << 16


class RenderStarter:
    """Forks one starter at a time.  Not thread-safe."""

    def __init__(self) -> None:
        self._asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with answering:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(answering.fileno())],
                cwd=_ROOT,
                env=child_environment(),
                pass_fds=[answering.fileno()],
            )

    def start(self, store: Path) -> socket.socket:
        """Return the socket from `render_server.start` for the store at `store`."""
        self._asking.send(os.fsencode(store))
        _, fds, _, _ = socket.recv_fds(self._asking, 1, 1)
        return socket.socket(fileno=fds[0])

    def exit_code(self) -> int:
        """Wait for the end of the starter, and return its exit code."""
        return int(self._asking.recv(16))

    def close(self) -> None:
        # Closing is not enough: a child that a test has forked may have a copy of the socket.
        self._asking.shutdown(socket.SHUT_RDWR)
        self._asking.close()
        self._process.wait(60)


def _serve(orders: socket.socket) -> None:
    while path := orders.recv(_PATH_BYTES):
        directory = StoreDirectory.open(Path(os.fsdecode(path)))
        starter, pid = render_server.start(
            directory, read_only=False, note=directory.rendering_note
        )
        with starter:
            socket.send_fds(orders, [b"1"], [starter.fileno()])
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        orders.send(str(code).encode())


if __name__ == "__main__":
    with gc_paused():
        from vfsd.disk.store_layout import StoreDirectory
        from vfsd.mount import render_server

    _serve(socket.socket(fileno=int(sys.argv[1])))
