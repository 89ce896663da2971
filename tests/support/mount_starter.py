"""A process that has imported all modules of a mount, and forks the daemons of mounts.

Imports take most of the second that a mount needs to start, and hundreds of tests mount.
From its `main` on, a forked daemon behaves like any other, with three differences.  Its examiner
remembers results of earlier tests.  It starts no process before there is a file to examine.  The
tuner looks for work more often.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

from vfsd.core.subprocess_entry import child_environment, gc_paused

_ROOT = Path(__file__).resolve().parents[2]
_MOST = 1 << 20
"""Bytes of a request, which consists mostly of the environment."""

_PERIODS = ("_TICK_SECONDS", "_IDLE_TICK_SECONDS", "_LOOK_SECONDS", "_LOAD_SECONDS")


class MountStarter:
    """A replacement for `vfsd.mount.control._launch`.  Thread-safe."""

    def __init__(self, examined: Path) -> None:
        """`examined` holds results for the examiners of the daemons."""
        self._turn = threading.Lock()
        self._asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with answering:
            for end in (self._asking, answering):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(answering.fileno()), str(examined)],
                cwd=_ROOT,
                env=child_environment(),
                pass_fds=[answering.fileno()],
            )

    def launch(self, pipe: str, task: str, log: Path) -> None:
        with open(log, "ab") as output, self._turn:
            order = json.dumps({"task": task, "environment": child_environment()}).encode()
            socket.send_fds(self._asking, [order], [int(pipe), output.fileno()])
            code = int(self._asking.recv(_MOST))
        if code:
            raise subprocess.CalledProcessError(code, "a forked daemon")

    def close(self) -> None:
        # Closing is not enough: a child that a test has forked may have a copy of the socket.
        self._asking.shutdown(socket.SHUT_RDWR)
        self._asking.close()
        self._process.wait(60)


def _become_daemon(orders: socket.socket) -> list[str]:
    """Fork for each order until there are no more.

    Returns in the children, with the arguments of the daemon's `main`.  Only the descriptors in
    these arguments and the standard streams are open there.
    """
    while True:
        data, fds, _, _ = socket.recv_fds(orders, _MOST, 2)
        if not data:
            sys.exit()
        pipe, output = fds
        child = os.fork()
        if not child:
            break
        os.close(pipe)
        os.close(output)
        orders.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
    orders.close()
    order = json.loads(data)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream, fd in enumerate((nothing, output, output)):
        os.dup2(fd, stream)
    os.close(nothing)
    os.close(output)
    return [str(pipe), order["task"]]


if __name__ == "__main__":
    with gc_paused():
        from tests.support.examiner import RememberingExaminer
        from vfsd.mount import daemon, tune_scheduler
        from vfsd.storage import context

    vars(tune_scheduler).update(dict.fromkeys(_PERIODS, 0.2))
    vars(context)["Examiner"] = partial(RememberingExaminer, folder=Path(sys.argv[2]))
    daemon.main(_become_daemon(socket.socket(fileno=int(sys.argv[1]))))
