"""Mounts a file system through the chosen binding and serves it until it is unmounted."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from vfsd.disk.mount_queries import SUBTYPE, mount_at
from vfsd.errors import MountError
from vfsd.mount.fs import Filesystem, OperationCounters
from vfsd.mount.fuse import libfuse2, libfuse3
from vfsd.mount.fuse.callback_context import can_end
from vfsd.mount.fuse.inode_adapter import InodeAdapter
from vfsd.mount.fuse.libfuse import Binding, load, speaks_inodes
from vfsd.mount.fuse.libfuse3 import MAX_BACKGROUND
from vfsd.mount.fuse.mount_options import MountOptions
from vfsd.mount.fuse.passthrough import Passthrough, require_passthrough

_log = logging.getLogger(__name__)

_READ_AHEAD_KIB = 512
# Some threads stay free when all background requests of the kernel wait for views.
_THREADS = MAX_BACKGROUND + 64
# Idle threads that are kept; further ones end.
_IDLE_THREADS = 16
# Options that the adapter or its threads use; libfuse's low-level interface does not know them.
_NOT_FOR_SESSION = (
    *("attr_timeout=", "entry_timeout=", "negative_timeout=", "uid=", "gid=", "umask="),
    *("max_threads=", "max_idle_threads=", "max_background=", "clone_fd", "noforget", "remember="),
)
_ENDED_BY_SIGNAL = 8
_FAILURES = {
    1: "an option was refused",
    2: "the mountpoint does not exist",
    3: "libfuse could not be set up",
    4: "the kernel refused to mount",
    5: "the process could not go on",
    6: "signals could not be set up",
    7: "serving failed",
}


def serve(
    filesystem: Filesystem,
    place: Path,
    *,
    source: Path,
    options: MountOptions,
    counters: OperationCounters,
    on_ready: Callable[[], None],
) -> None:
    """Mount at `place`; return when it was unmounted or a signal has ended it.

    Args:
        filesystem: Serves the requests.
        place: The mount point.
        source: Path of the store, shown in the mount table.
        options: The mount options.
        counters: Count the requests.
        on_ready: Called by another thread when the mount answers.

    Must run in the main thread. SIGINT, SIGTERM and SIGHUP unmount, unless they have a handler.
    Raises `FuseMissingError`, `MountError`.
    """
    chosen = load()
    if options.passthrough:
        require_passthrough(chosen, kernel_version())

    def answering() -> None:
        os.stat(place)  # returns when the mount is initialised
        _set_read_ahead(place)
        on_ready()

    def on_init() -> None:
        threading.Thread(target=answering, name="vfsd-ready", daemon=True).start()

    words = [
        f"fsname={_escaped(source)}",
        f"subtype={SUBTYPE}",
        "default_permissions",
        "ro" if options.read_only else "rw",
        *options.passed_on,
    ]
    libfuse = f"libfuse {chosen.major}.{chosen.minor} through {chosen.name}"
    shown = ",".join([*words[2:], *(["passthrough"] if options.passthrough else [])])
    _log.info("serving %s at %s with %s, options %s", source, place, libfuse, shown)
    if speaks_inodes(chosen):
        code = _serve_inodes(chosen, filesystem, place, words, options, counters, on_init)
    elif chosen.major == 3:
        code = _serve3(chosen, filesystem, place, words, options, counters, on_init)
    else:
        code = libfuse2.serve(chosen, filesystem, place, words, counters, on_init)
    if code not in (0, _ENDED_BY_SIGNAL):
        raise MountError(f"{place} cannot be mounted: {_FAILURES.get(code, f'code {code}')}")


def _serve_inodes(
    binding: Binding,
    filesystem: Filesystem,
    place: Path,
    words: list[str],
    options: MountOptions,
    counters: OperationCounters,
    on_init: Callable[[], None],
) -> int:
    keeps_views = "noforget" in words or options.value("remember") is not None
    adapter = InodeAdapter(
        binding,
        filesystem,
        given=options.value,
        keeps_views=keeps_views,
        bypass=kernel_version() >= (6, 6),
        passthrough=Passthrough(binding, counters) if options.passthrough else None,
        counters=counters,
        on_init=on_init,
    )
    session = adapter.session([word for word in words if not word.startswith(_NOT_FOR_SESSION)])
    # libfuse handles only signals without another handler.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return session.run(
            place,
            threads=int(options.value("max_threads") or _THREADS),
            idle=int(options.value("max_idle_threads") or _max_idle()),
            clone_fd="clone_fd" in words,
        )
    finally:
        signal.signal(signal.SIGINT, before)
        adapter.close()


def _max_idle() -> int:
    return _IDLE_THREADS if can_end() else _THREADS


def _serve3(
    binding: Binding,
    filesystem: Filesystem,
    place: Path,
    words: list[str],
    options: MountOptions,
    counters: OperationCounters,
    on_init: Callable[[], None],
) -> int:
    adapter = libfuse3.Libfuse3Adapter(
        binding,
        filesystem,
        given=options.value,
        bypass=kernel_version() >= (6, 6),
        passthrough=Passthrough(binding, counters) if options.passthrough else None,
        counters=counters,
        on_init=on_init,
    )
    table = adapter.operations()
    # Each thread answers one request at a time, and many may wait for views.
    threads = [] if options.value("max_threads") else [f"max_threads={_THREADS}"]
    idle = [] if options.value("max_idle_threads") else [f"max_idle_threads={_max_idle()}"]
    if (binding.major, binding.minor) >= (3, 12):
        words = [*words, *threads, *idle]
    kept = ("max_background=", "negative_timeout=")  # these are set in `Libfuse3Adapter.init`
    words = [word for word in words if not word.startswith(kept)]
    arguments = [b"vfsd", b"-f", b"-o", os.fsencode(",".join(words)), os.fsencode(place)]
    vector = (ctypes.c_char_p * len(arguments))(*arguments)
    # libfuse handles only signals without another handler.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        code = binding.module.fuse_main_real(
            len(arguments), vector, ctypes.pointer(table), ctypes.sizeof(table), None
        )
    finally:
        signal.signal(signal.SIGINT, before)
        adapter.close()
    return int(code)


def _set_read_ahead(place: Path) -> None:
    """Raise the kernel's read-ahead. Only root may do so."""
    found = mount_at(place)
    if found is None:
        return
    try:
        Path(f"/sys/class/bdi/{found.device}/read_ahead_kb").write_text(str(_READ_AHEAD_KIB))
    except OSError as error:
        _log.debug("read-ahead stays as it is: %s", error)


def kernel_version() -> tuple[int, int]:
    """Return (major, minor) of the running Linux; (0, 0) if unknown."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def _escaped(path: Path) -> str:
    """Escape backslashes and commas for libfuse's option parser."""
    return str(path).replace("\\", "\\\\").replace(",", "\\,")
