"""The life of a mount: starting it, finding it, ending it.

`mount` serves a store in the calling process or in one of its own.  The latter is
``python -m vfsd.daemon``, started detached; it reports over a pipe when the mount answers, or why
it does not.  As long as it lives it holds the store's mount lock.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from vfsd import errors
from vfsd.errors import BusyError, MountError, NoStoreError, UsageError, VfsdError
from vfsd.foreground import Foreground, ObservedViews
from vfsd.fs import Counters, Filesystem
from vfsd.fs.standing import Standings
from vfsd.fs.xattrs import STATS, TUNER
from vfsd.fuse import MountOptions, parse_options, require_fuse, serve
from vfsd.fuse.mountinfo import mount_above, mount_at
from vfsd.programs import command, environment
from vfsd.store import Store
from vfsd.storedir import StoreDirectory
from vfsd.supervisor import READY, STOPPING, notify
from vfsd.tuner import BackgroundTuner
from vfsd.verifier import Verifier
from vfsd.views import Views

DRAIN_SECONDS = 30.0
"""How long an ending mount goes on making new files into videos; the next one does the rest."""

_START_SECONDS = 120.0
_SWITCH_SECONDS = 0.0002  # a thread that computes must not keep the kernel waiting for 5 ms
_DEAD = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)

_log = logging.getLogger(__name__)


def mount(
    store_path: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str],
    options: Iterable[str] = (),
    *,
    foreground: bool = False,
    log_file: str | os.PathLike[str] | None = None,
) -> None:
    """Show a store as a directory.

    In the foreground systemd, or who else started this process, is told when it answers.
    `options` are what people write after ``-o``: ``["ro,allow_other"]``.  In the foreground this
    returns when the mount has ended; otherwise as soon as it answers, and a process in the
    background goes on, writing what it has to say to `log_file` (see `default_log`).

    Raises `UsageError` for options and places that cannot be, `NoStoreError`, `BusyError` when
    the store is mounted already, `FuseMissingError` when something has to be installed, and
    `MountError` for the rest.
    """
    directory = StoreDirectory.open(Path(store_path))
    words = list(options)
    place = _checked_place(directory, mountpoint, parse_options(words))
    require_fuse(parse_options(words))
    if foreground:
        _serve(directory.root, place, words, on_ready=lambda: notify(READY))
    else:
        log = Path(log_file) if log_file is not None else default_log(directory)
        _start(directory, place, words, log.absolute())


def unmount(mountpoint: str | os.PathLike[str], *, timeout: float = DRAIN_SECONDS + 30) -> None:
    """End a mount, and wait until its process has let go of the store.

    Raises `UsageError` when nothing of ours is mounted there, `BusyError` when somebody uses it or
    the process has not ended after `timeout` seconds, `MountError`.
    """
    place = Path(os.path.realpath(mountpoint))
    found = mount_at(place)
    if found is None or not found.is_ours:
        raise UsageError(f"no store is mounted at {place}")
    _detach(place, lazily=False)
    try:
        directory = StoreDirectory.open(Path(found.source))
    except NoStoreError:
        return
    end = time.monotonic() + timeout
    while (holder := directory.mounted_by()) and holder.get("place") == str(place):
        if time.monotonic() > end:
            raise BusyError(
                f"{place} is unmounted, but process {holder.get('pid')} has not ended yet",
                hint="it is indexing new files; wait, or end it with SIGKILL and lose nothing",
            )
        time.sleep(0.02)


def mount_of(path: str | os.PathLike[str]) -> tuple[Path, str] | None:
    """The store that `path` is shown by, and the name that it has in there (no leading slash).

    None where it does not lie in a mount of ours.
    """
    absolute = Path(os.path.realpath(path))
    found = mount_above(absolute)
    if found is None or not found.is_ours:
        return None
    inside = absolute.relative_to(found.place).as_posix()
    return Path(found.source), "" if inside == "." else inside


def default_log(directory: StoreDirectory) -> Path:
    """Where a mount in the background writes to, unless told otherwise."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "vfsd" / f"{directory.root.name}-{directory.id[:8]}.log"


# ---------------------------------------------------------------------------------- the place


def _checked_place(
    directory: StoreDirectory, mountpoint: str | os.PathLike[str], options: MountOptions
) -> Path:
    """The mountpoint without symbolic links, when it can be one; a dead mount is taken away."""
    place = Path(os.path.realpath(mountpoint))
    _clear_dead_mount(place)
    root = Path(os.path.realpath(directory.root))
    if place == root or place.is_relative_to(root):
        raise UsageError(f"{place} lies inside the store {root}")
    if root.is_relative_to(place):
        raise UsageError(f"the store {root} lies inside {place} and would be hidden by the mount")
    found = mount_at(place)
    if found is not None and found.is_ours:
        raise BusyError(f"{found.source} is mounted at {place} already")
    if not place.exists():
        raise MountError(f"there is no directory {place}", hint=f"make it: mkdir -p {place}")
    if not place.is_dir():
        raise MountError(f"{place} is not a directory")
    try:
        is_empty = not any(os.scandir(place))
    except PermissionError as error:
        raise MountError(f"{place} cannot be read: {error.strerror}") from error
    if not is_empty and not options.nonempty:
        raise MountError(
            f"{place} is not empty", hint="choose an empty directory, or mount with -o nonempty"
        )
    return place


def _clear_dead_mount(place: Path) -> None:
    """Take away what a daemon that was killed has left: a place that answers with errors."""
    try:
        os.statvfs(place)  # unlike a stat never answered from the kernel's cache
    except OSError as error:
        found = mount_at(place)
        if error.errno in _DEAD and found is not None and found.is_ours:
            _log.warning("%s was left by a mount that died; taking it away", place)
            _detach(place, lazily=True)


def _detach(place: Path, *, lazily: bool) -> None:
    if os.geteuid() == 0:
        words = ["umount", *(["-l"] if lazily else []), str(place)]
    else:
        helper = "fusermount3" if shutil.which("fusermount3") else "fusermount"
        words = [helper, "-uz" if lazily else "-u", str(place)]
    try:
        done = subprocess.run(
            words,
            env=os.environ | {"LC_ALL": "C"},  # its words are looked at below
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise MountError(f"{words[0]} is not installed", hint="apt install fuse3") from None
    if done.returncode == 0:
        return
    text = done.stderr.strip() or f"{words[0]} failed"
    if "busy" in text:
        raise BusyError(f"{place} is in use: {text}", hint=f"`fuser -vm {place}` shows by whom")
    raise MountError(f"{place} cannot be unmounted: {text}")


# --------------------------------------------------------------------------- in this process


def _serve(
    root: Path, place: Path, options: Iterable[str], *, on_ready: Callable[[], None]
) -> None:
    """Serve until unmounted, or until a signal ends it."""
    parsed = parse_options(options)
    # Signals are for the main thread, where libfuse waits for them; the others inherit this.
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with ExitStack() as stack:
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        stack.enter_context(StoreDirectory.open(root).mounted(str(place)))
        store = stack.enter_context(Store.open(root, read_only=parsed.read_only))
        views = stack.enter_context(closing(Views(store.parts, store.tools)))
        foreground = Foreground()
        tuner = BackgroundTuner(store, foreground) if _tunes(store) else None
        counters = Counters()
        standings = Standings(counters)
        filesystem = Filesystem(
            store.parts,
            views=ObservedViews(views, foreground),
            reports={
                TUNER: lambda: "off" if tuner is None else tuner.state,
                STATS: lambda: standings.now(decoder_memory=store.tools.pool.memory).text(),
            },
        )
        stack.callback(filesystem.close, DRAIN_SECONDS)
        if not parsed.read_only:
            filesystem.recover()
            if store.settings.verify:
                stack.enter_context(closing(Verifier(store)))
        if tuner is not None:
            stack.enter_context(closing(tuner)).start()
        stack.callback(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN))
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        stack.callback(faulthandler.unregister, signal.SIGUSR1)
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_SECONDS)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _log.info("serving %s at %s", root, place)
        serve(
            filesystem,
            place,
            source=root,
            options=parsed,
            counters=counters,
            on_ready=on_ready,
        )
        _log.info("%s is unmounted", place)
        notify(STOPPING)


def _tunes(store: Store) -> bool:
    return (store.settings.tune or store.settings.compress) and not store.parts.read_only


# ------------------------------------------------------------------------- in the background


def _start(directory: StoreDirectory, place: Path, options: list[str], log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    reading, writing = os.pipe()
    task = {"root": str(directory.root), "place": str(place), "options": options}
    try:
        with open(log, "ab") as output:
            # The child forks once more and ends, so that nobody has to wait for the daemon.
            subprocess.run(
                command("vfsd.daemon", str(writing), json.dumps(task)),
                cwd="/",
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[writing],
                check=True,
            )
        os.close(writing)
        writing = -1
        report = _await_report(reading)
    except subprocess.CalledProcessError as error:
        raise MountError("the mount's process could not be started", hint=f"see {log}") from error
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if report is None:
        raise MountError(f"the mount at {place} did not come up", hint=f"see {log}")
    if "error" in report:
        kind = getattr(errors, report["error"], MountError)
        raise kind(report["message"], hint=report["hint"] or f"see {log}")
    found = mount_at(place)
    if found is None or not found.is_ours:
        raise MountError(f"the mount at {place} went away at once", hint=f"see {log}")
    os.stat(place)


def _await_report(fd: int) -> dict[str, Any] | None:
    """What the daemon says of itself; None when it died, or kept silent, instead."""
    end = time.monotonic() + _START_SECONDS
    text = b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0.0, end - time.monotonic()))
        chunk = os.read(fd, 65536) if ready else b""
        if not chunk:
            return None
        text += chunk
    found = json.loads(text)
    return found if isinstance(found, dict) else None


def _main(arguments: list[str]) -> None:
    """Become a daemon: ``PIPE JSON``, where PIPE is the number of an inherited descriptor."""
    pipe, task = int(arguments[0]), json.loads(arguments[1])
    if os.fork() > 0:
        os._exit(0)
    os.setsid()
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def report(what: dict[str, Any]) -> None:
        os.write(pipe, json.dumps(what).encode() + b"\n")
        os.close(pipe)

    came_up = False

    def on_ready() -> None:
        nonlocal came_up
        came_up = True
        report({})

    try:
        _serve(Path(task["root"]), Path(task["place"]), task["options"], on_ready=on_ready)
    except VfsdError as error:
        _log.error("%s", error)
        if not came_up:
            name = type(error).__name__
            report({"error": name, "message": str(error), "hint": error.hint})
        sys.exit(1)
    except Exception as error:
        _log.exception("the mount has ended")
        if not came_up:
            message = f"{type(error).__name__}: {error}"
            report({"error": MountError.__name__, "message": message, "hint": None})
        sys.exit(1)


if __name__ == "__main__":
    _main(sys.argv[1:])
