"""The process that examines untrusted files.

It is started by `vfsd.storage.sandbox_start` and never reads such a file itself. For each file it
forks a child, which has all libraries in memory, cannot open files, and has limits of memory and
time. The parent reports how the child ended. So no file affects the examination of another, and a
start costs only a fork. The process ends with its socket, or after an idle minute.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from vfsd.codecs.inventory.file_inventory import take_inventory
from vfsd.codecs.inventory.inventory import pack_inventory
from vfsd.codecs.probing.probe import examine_source
from vfsd.codecs.probing.serialize import pack_examination
from vfsd.codecs.pyav import load_extensions
from vfsd.core.process_control import die_with_parent, set_oom_score
from vfsd.disk.checksums import MediaSource, OpenFile
from vfsd.errors import RefusedMediaError
from vfsd.storage.sandbox_protocol import (
    FOUND,
    MAX_REQUEST_BYTES,
    PROGRESS,
    PROGRESS_BODY,
    RECORD,
    REFUSED,
    UNREADABLE,
    ErrorReport,
    ExamineRequest,
)

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_NOBODY = 65534
_IDLE_SECONDS = 60
_PROGRESS_SECONDS = 0.05
"""Minimum interval between progress reports."""
_OOM_SCORE = 1000
"""The kernel kills this process first when memory is short."""
_GRACE_SECONDS = 5
"""A child that ignores its limit of CPU time is killed after this much more."""
_WARM_UP_VIDEO = b"YUV4MPEG2 W16 H16 F25:1\n" + (b"FRAME\n" + bytes(384)) * 2

_CHARSETS = (
    *(b"ISO6937", b"UCS-2BE", b"KSC_5601", b"GB2312", b"BIG5"),
    *(b"ISO-8859-%d" % number for number in (1, *range(2, 12), *range(13, 16))),
)

_log = logging.getLogger(__name__)


def prepare() -> None:
    """Load everything that children need. Raises if files cannot be examined."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    set_oom_score(_OOM_SCORE)
    load_extensions()
    _warm_up()
    _load_charsets()
    gc.collect()
    gc.freeze()  # children then share these pages instead of copying them


def work(control: socket.socket) -> None:
    """Serve requests until the socket is closed."""
    while (request := _next(control)) is not None:
        _serve(control, *request)


def _warm_up() -> None:
    """Load what is otherwise loaded at first use: children cannot open files."""
    fd = os.memfd_create("warming")
    try:
        os.write(fd, _WARM_UP_VIDEO)
        with MediaSource(fd) as source:
            pack_examination(examine_source(source, "warming"))
            pack_inventory(take_inventory(source, "y4m", 0))
        with suppress(RefusedMediaError), MediaSource(os.open(os.devnull, os.O_RDONLY)) as source:
            examine_source(source, "nothing")
    finally:
        os.close(fd)


def _load_charsets() -> None:
    """Open the character sets of names in transport streams (ETSI EN 300 468, annex A).

    The C library has a file for each, and keeps them loaded.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "iconv_open"):
        libc.iconv_open.restype = ctypes.c_void_p
        for name in _CHARSETS:
            libc.iconv_open(b"UTF-8", name)


def _next(control: socket.socket) -> tuple[ExamineRequest, int, int] | None:
    """Return the next request, the file, and the socket for the reply; None at the end."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    if not waiting.poll(_IDLE_SECONDS * 1000):
        return None
    try:
        message, fds, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 2)
    except ConnectionResetError:
        return None
    if len(fds) != 2:
        return None
    return ExamineRequest.parse(message), fds[0], fds[1]


def _serve(control: socket.socket, request: ExamineRequest, file: int, reply: int) -> None:
    """Examine one file in a child and report how the child ended.

    The parent process may disappear at any time.
    """
    me = os.getpid()
    child = os.fork()
    if not child:
        _run_child(control, request, file, reply, me)
    os.close(file)
    os.close(reply)
    ended = os.pidfd_open(child)
    try:
        waiting = select.poll()  # not select(): descriptors may exceed 1023
        waiting.register(ended, select.POLLIN)
        waiting.register(control, select.POLLIN)
        if ended not in dict(waiting.poll()):
            os.kill(child, signal.SIGKILL)  # the requester has gone
        _, status, used = os.wait4(child, 0)
    finally:
        os.close(ended)
    outcome = {"status": status, "memory": used.ru_maxrss, "seconds": used.ru_utime + used.ru_stime}
    with suppress(BrokenPipeError, ConnectionResetError):
        control.send(json.dumps(outcome).encode("ascii"))


def _run_child(
    control: socket.socket, request: ExamineRequest, file: int, reply: int, parent: int
) -> NoReturn:
    code = 1
    try:
        control.close()
        _restrict(request, parent)
        _reply(request, file, socket.socket(fileno=reply))
        code = 0
    finally:
        os._exit(code)


# -- the child


def _restrict(request: ExamineRequest, parent: int) -> None:
    """Drop privileges, die with the parent, forbid opening files, and set limits."""
    libc = ctypes.CDLL(None)
    _drop_privileges()
    die_with_parent(parent)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    memory = _address_space() + request.memory
    for limit, maximum in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),  # no new file or socket; open ones stay usable
    ):
        _limit(limit, maximum, maximum)
    _limit(resource.RLIMIT_CPU, request.cpu_seconds, request.cpu_seconds + _GRACE_SECONDS)


def _drop_privileges() -> None:
    """Change to an unprivileged user, so that limits cannot be raised again. The file is open
    already."""
    if os.geteuid() == 0:
        with suppress(PermissionError):  # not allowed in some containers
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _limit(limit: int, soft: int, hard: int) -> None:
    """Lower a resource limit, unless it is lower already."""
    maximum = resource.getrlimit(limit)[1]
    if maximum != resource.RLIM_INFINITY:
        soft, hard = min(soft, maximum), min(hard, maximum)
    resource.setrlimit(limit, (soft, hard))


def _address_space() -> int:
    """Return the bytes of mapped memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


def _reply(request: ExamineRequest, file: int, reply: socket.socket) -> None:
    def send(kind: bytes, body: bytes) -> None:
        reply.sendall(RECORD.pack(kind, len(body)))
        reply.sendall(body)

    try:
        with MediaSource(OpenFile(file, request.size)) as source:
            source.name = request.name
            body = _examine(request, source, _ProgressReporter(send))
    except RefusedMediaError as refusal:
        send(REFUSED, ErrorReport(str(refusal), refusal.hint).message())
    except MemoryError:
        text = f"{request.name}: examining it takes more than {request.memory >> 20} MiB of memory"
        send(REFUSED, ErrorReport(text).message())
    except OSError as error:
        send(UNREADABLE, ErrorReport(error.strerror or "", number=error.errno or 0).message())
    except Exception as error:
        _log.exception("%s could not be examined", request.name)
        text = f"{request.name}: cannot be examined: {type(error).__name__}: {error}"
        send(REFUSED, ErrorReport(text).message())
    else:
        send(FOUND, body)


def _examine(
    request: ExamineRequest, source: MediaSource, on_progress: Callable[[int, int], None]
) -> bytes:
    if request.listed is None:
        found = examine_source(
            source,
            request.name,
            on_progress=on_progress,
            full=request.full,
            stream=request.stream,
            in_largest_size=request.in_largest_size,
        )
        return pack_examination(found)
    container, stream_index = request.listed
    try:
        return pack_inventory(take_inventory(source, container, stream_index, on_progress))
    except RefusedMediaError as refusal:
        raise RefusedMediaError(f"{request.name}: {refusal}", hint=refusal.hint) from refusal


class _ProgressReporter:
    """Sends progress, which also shows that the child is alive. Limits the rate."""

    def __init__(self, send: Callable[[bytes, bytes], None]) -> None:
        self._tell = send
        self._last_sent = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last_sent >= _PROGRESS_SECONDS:
            self._last_sent = now
            self._tell(PROGRESS, PROGRESS_BODY.pack(done, total))
