"""The process that serves a mounted store.

It opens the store, starts the worker threads and processes, and reports its state to the service
manager; `vfsd.mount.control` starts and ends it.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from vfsd.api.store import Store
from vfsd.core.process_control import (
    MallocTrimmer,
    disable_huge_pages,
    limit_arenas,
    shorten_time_slice,
)
from vfsd.disk.disk_reserve import with_reserve
from vfsd.disk.mount_queries import mount_at
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import MountError, VfsdError
from vfsd.mount import mount_log
from vfsd.mount.background_work import (
    BackgroundVerifier,
    BucketCollector,
    ForegroundReads,
    ObservedViews,
)
from vfsd.mount.control import DRAIN_SECONDS, checked
from vfsd.mount.fs import Filesystem, OperationCounters
from vfsd.mount.fs.inode_metadata import STATS, TUNER
from vfsd.mount.fs.mount_stats import RenderProcessStats, StatsCollector
from vfsd.mount.fuse.fuse_session import serve
from vfsd.mount.fuse.mount_options import MountOptions, parse_options
from vfsd.mount.mount_log import LogFile, LogSizeLimiter
from vfsd.mount.render_client import (
    RenderProcess,
    quarantine_crashed,
    render_process,
    render_starter,
)
from vfsd.mount.tune_scheduler import BackgroundTuner
from vfsd.read.read_context import VideoContext
from vfsd.storage.context import StoreContext
from vfsd.storage.original_files import SUMS_ADVICE, missing_checksums_message
from vfsd.views import Views

_log = logging.getLogger(__name__)

READY, STOPPING = "READY=1", "STOPPING=1"
_SHARE_OF_WHOLE_VIEWS = 4  # of what rendered views may take up
# Limit of open files to request from the system.
_OPEN_FILES = 65536
_SWITCH_SECONDS = 0.0002  # a thread that computes must not keep the kernel waiting for 5 ms


def notify(state: str) -> None:
    """Send a state to the service manager, if there is one. Never fails: serving must continue."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.sendto(state.encode(), address)


def mount_in_foreground(
    store_path: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str],
    options: Iterable[str] = (),
    *,
    log: Path | None = None,
) -> None:
    """Mount a store and serve it in this process until it is unmounted.

    A service manager such as systemd is notified when the mount answers. `log` is the file that
    receives this process's log, for messages about the mount. Raises as `vfsd.mount.control.mount`.
    """
    words = list(options)
    directory, place = checked(store_path, mountpoint, parse_options(words))
    file = None if log is None else LogFile(log, is_limited=False)
    _serve(directory.root, place, words, file, on_ready=lambda: notify(READY))


def _serve(
    root: Path,
    place: Path,
    options: Iterable[str],
    log: LogFile | None,
    *,
    on_ready: Callable[[], None],
) -> None:
    """Serve until the mount is unmounted or a signal ends it."""
    parsed = parse_options(options)
    limit_arenas()
    disable_huge_pages()
    _raise_open_file_limit()
    # libfuse waits for signals in the main thread; new threads inherit this mask.
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with ExitStack() as stack:
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        directory = stack.enter_context(closing(StoreDirectory.open_held(root)))
        mount_log.show_paths(directory.top, lambda: directory.location)
        stack.enter_context(_naming_store(directory))
        note_device = None
        if directory.can_be_written or not parsed.read_only:
            shown = None if log is None else log.path
            # On a full disk the reserve is given up, so that a store can be mounted and cleaned.
            note_device = with_reserve(
                directory, lambda: stack.enter_context(directory.mounted(str(place), shown))
            )
        # Must come before any thread is started:
        note = directory.rendering_note
        starter = stack.enter_context(
            render_starter(directory, read_only=parsed.read_only, note=note)
        )
        shorten_time_slice()
        if log is not None and log.is_limited:
            stack.enter_context(closing(LogSizeLimiter(log.path)))
        parts = StoreContext.of(directory, read_only=parsed.read_only)
        store = stack.enter_context(Store(parts))
        if parts.catalog.home is not None and not parsed.read_only:
            from vfsd.storage.homes import mount_lease  # SQLite catalogs have no homes

            stack.enter_context(mount_lease(parts, place))
        if not parsed.read_only:
            store.parts.examiner.start()  # it loads its libraries in the background
            directory.require_one_disk()
            store.parts.require_objects_present()
        counters = OperationCounters()
        renders = stack.enter_context(
            render_process(starter, store, note=note, are_files_read=counters.are_files_read)
        )
        views = stack.enter_context(closing(_views(store, parsed, renders, counters)))
        stack.enter_context(closing(MallocTrimmer(views.evict_idle)))
        foreground = ForegroundReads()
        tuner = BackgroundTuner(store, foreground) if _tunes(store) else None
        statistics = StatsCollector(counters)
        filesystem = Filesystem(
            store.parts,
            views=ObservedViews(views, foreground),
            timelines=ObservedViews(views.timelines, foreground),
            reports={
                TUNER: lambda: "off" if tuner is None else tuner.state,
                STATS: lambda: statistics.now(_rendering(renders)).text(),
            },
            syncs_names=parsed.syncs_names,
        )
        # Registered after the views: they must outlive the file system that reads from them.
        stack.callback(filesystem.close, DRAIN_SECONDS)
        if not parsed.read_only:
            quarantine_crashed(store, directory.decoding_note)
            quarantine_crashed(store, note)
            stack.enter_context(store.parts.quarantine.record_decoding(directory.decoding_note))
            filesystem.recover()
            if store.settings.verify:
                stack.enter_context(closing(BackgroundVerifier(store)))
            if not store.parts.objects.is_local:
                stack.enter_context(_collector(store))
        _warn_missing_checksums(store)
        if tuner is not None:
            stack.enter_context(closing(tuner)).start()
        stack.callback(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN))
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        stack.callback(faulthandler.unregister, signal.SIGUSR1)
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_SECONDS)
        if renders is not None:
            renders.require_start()
        if not parsed.read_only:
            store.parts.examiner.require_start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

        def report_ready() -> None:
            own = mount_at(place)
            if note_device is not None and own is not None and own.is_ours:
                note_device(own.device)
            on_ready()

        serve(
            filesystem,
            place,
            source=root,
            options=parsed,
            counters=counters,
            on_ready=report_ready,
        )
        _log.info("%s is unmounted", place)
        notify(STOPPING)


@contextmanager
def _collector(store: Store) -> Iterator[None]:
    """Delete garbage from the bucket during the block."""
    from vfsd.storage.remote_objects import RemoteObjects  # most stores have no bucket

    objects = store.parts.objects
    assert isinstance(objects, RemoteObjects)
    with closing(BucketCollector(objects, store.settings.object_grace)):
        yield


@contextmanager
def _naming_store(directory: StoreDirectory) -> Iterator[None]:
    """Replace the path of a descriptor in errors by the path of the store."""
    try:
        yield
    except VfsdError as error:

        def shown(text: str) -> str:
            return mount_log.with_paths(text, str(directory.top), lambda: directory.location)

        error.args = (shown(str(error)),)
        error.hint = error.hint and shown(error.hint)
        raise


def _raise_open_file_limit() -> None:
    """Raise the limit of open files: each file open in a mount is open in its process as well."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    maximum = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < maximum:
        resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, hard))


def _warn_missing_checksums(store: Store) -> None:
    found = missing_checksums_message(store.catalog)
    if found is not None:
        _log.warning("%s; %s", found, SUMS_ADVICE)


def _views(
    store: Store, options: MountOptions, renders: RenderProcess | None, counters: OperationCounters
) -> Views:
    """Return the views. With passthrough, whole views are kept as files for the kernel."""
    whole_bytes = 0
    if options.passthrough and not options.read_only:
        whole_bytes = store.settings.view_cache_bytes // _SHARE_OF_WHOLE_VIEWS
    return Views(
        store.parts,
        store.tools,
        remote=renders,
        open_sink=lambda info: VideoContext(store.tools, info),
        whole_bytes=whole_bytes,
        are_reads_waiting=counters.are_files_read,
    )


def _rendering(renders: RenderProcess | None) -> RenderProcessStats | None:
    pid = None if renders is None else renders.pid
    if renders is None or pid is None:
        return None
    return RenderProcessStats.of(pid, renders.decoder_memory)


def _tunes(store: Store) -> bool:
    return (store.settings.tune or store.settings.compress) and not store.parts.read_only


def main(arguments: list[str]) -> None:
    """Become a daemon. `arguments` is [PIPE, JSON]; PIPE is the number of an inherited
    descriptor."""
    pipe, task = int(arguments[0]), json.loads(arguments[1])
    if os.fork() > 0:
        os._exit(0)
    os.setsid()
    faulthandler.enable()
    mount_log.set_up(task["log_level"])

    def report(what: dict[str, Any]) -> None:
        os.write(pipe, json.dumps(what).encode() + b"\n")
        os.close(pipe)

    came_up = False

    def on_ready() -> None:
        nonlocal came_up
        came_up = True
        report({})

    try:
        log = LogFile(Path(task["log"]), task["limits_log"])
        _serve(Path(task["root"]), Path(task["place"]), task["options"], log, on_ready=on_ready)
    except VfsdError as error:
        _log.error("%s%s", error, f"; {error.hint}" if error.hint else "")
        if not came_up:
            name = type(error).__name__
            report({"error": name, "message": str(error), "hint": error.hint})
        sys.exit(1)
    except Exception as error:
        _log.exception("the mount of %s at %s has ended", task["root"], task["place"])
        if not came_up:
            message = f"{type(error).__name__}: {error}"
            report({"error": MountError.__name__, "message": message, "hint": None})
        sys.exit(1)
