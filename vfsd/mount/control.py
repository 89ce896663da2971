"""Starts, finds and ends mounts.

`vfsd.mount.daemon` serves the store in a separate process. It is started detached and reports over
a pipe when the mount answers, or why it failed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vfsd import errors
from vfsd.core.subprocess_entry import child_environment, module_command
from vfsd.disk.mount_queries import MountEntry, attribute, mount_at, mounts, require_answer
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import BusyError, MountError, StoreError, UsageError, VfsdError
from vfsd.mount import mount_log
from vfsd.mount.fuse.libfuse import require_fuse
from vfsd.mount.fuse.mount_options import MountOptions, parse_options
from vfsd.mount.mount_log import LogFile, default_log, log_at
from vfsd.mount.mounted_path import resolve

DRAIN_SECONDS = 30.0
"""How long an ending mount classifies new files; the next one does the rest."""

_START_SECONDS = 120.0
_END_SECONDS = 5.0
# Commands such as `df` and `vfsd doctor` keep any mount busy for a moment.
_BUSY_SECONDS = 2.0
_MAX_LINKS = 40
# Bytes read at the end of a log.
_MAX_TAIL = 65536
_DEAD_MOUNT = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)

_log = logging.getLogger(__name__)


def mount(
    store_path: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str],
    options: Iterable[str] = (),
    *,
    log_file: str | os.PathLike[str] | None = None,
    log_level: str | None = None,
) -> Path:
    """Mount a store in a background process; return the path of its log when it answers.

    Args:
        store_path: Directory of the store.
        mountpoint: Directory to mount at.
        options: Arguments of ``-o``, for example ``["ro,allow_other"]``.
        log_file: The log; default: ``log=FILE`` in the options, or `default_log`.
        log_level: One of `mount_log.LEVELS`; default: ``log_level=LEVEL`` in the options, or
            `mount_log.DEFAULT`.

    Raises `UsageError` for invalid options and places, `NoStoreError`, `BusyError` if the store is
    mounted already, `FuseMissingError` if FUSE is not installed, `ExaminerError` if files cannot be
    examined, and `MountError` for other failures.
    """
    words = list(options)
    parsed = parse_options(words)
    directory, place = checked(store_path, mountpoint, parsed)
    named = Path(log_file) if log_file is not None else parsed.log
    log = default_log(directory, place) if named is None else log_at(named, place)
    level = log_level or parsed.log_level or mount_log.DEFAULT
    _start(directory, place, words, log, level)
    return log.path


def unmount(mountpoint: str | os.PathLike[str], *, timeout: float = DRAIN_SECONDS + 30) -> None:
    """Unmount, and wait until the process has released the store.

    Raises `UsageError` if no store is mounted there, `BusyError` if the mount is in use, does not
    answer, or has not ended after `timeout` seconds, and `MountError`.
    """
    place = place_of(mountpoint)
    found = mount_at(place)
    if found is None or not found.is_ours:
        raise UsageError(f"no store is mounted at {place}")
    try:
        require_answer(place)
    except BusyError as error:
        log = _log_of(_store_locked_by(Path(found.source), found))
        raise BusyError(str(error), hint=f"{error.hint}{log}") from None
    except OSError:
        pass  # a dead mount is unmounted as well
    directory = _holding_store(place, found)
    log = _log_of(directory)
    server = daemon_of(place) if directory is None else None
    _detach(place, lazily=False)
    # Compare the source as well: a new mount may have got the same device number.
    others = [
        str(mount.place)
        for mount in mounts()
        if mount.is_ours and (mount.device, mount.source) == (found.device, found.source)
    ]
    if others:
        if found.shows == "/":
            raise BusyError(
                f"{place} is unmounted, but its store is still shown at {', '.join(others)}",
                hint=f"run `vfsd umount {shlex.quote(others[-1])}`",
            )
        return  # a bind mount of a part; the mount itself continues
    if directory is None:
        _await_end(server)
        return
    end = time.monotonic() + timeout
    while (holder := directory.mounted_by()) and holder.get("device") == found.device:
        if time.monotonic() > end:
            raise BusyError(
                f"{place} is unmounted, but process {holder.get('pid')} has not ended yet",
                hint="it is examining new files, or the mount is visible in another mount "
                f"namespace; wait, or kill it with SIGKILL, which loses nothing{log}",
            )
        time.sleep(0.02)


def _log_of(directory: StoreDirectory | None) -> str:
    """Return a phrase for a hint with the log of the mount of a store, if known."""
    try:
        log = None if directory is None else (directory.mounted_by() or {}).get("log")
    except StoreError:
        return ""
    return f"; its log is {log}" if log else ""


def _holding_store(place: Path, mount: MountEntry) -> StoreDirectory | None:
    """Return the store of a mount, to wait for its lock; None if not found or not locked."""
    root = Path(mount.source)
    with suppress(VfsdError, OSError):  # a dead mount: only its source is known
        (shown,) = resolve([str(place)])
        root = root if shown is None else shown.root
    return _store_locked_by(root, mount)


def _store_locked_by(root: Path, mount: MountEntry) -> StoreDirectory | None:
    """Return the store in a directory if that mount has locked it."""
    try:
        directory = StoreDirectory.open(root)
        holder = directory.mounted_by() or {}
    except (VfsdError, OSError):
        return None
    return directory if holder.get("device") == mount.device else None


def daemon_of(place: Path) -> int | None:
    """Return the pid of the process that serves a mount, if it reports it."""
    from vfsd.mount.fs.inode_metadata import STATS  # slow to import

    try:
        return int(json.loads(attribute(place, STATS))["pid"])
    except (OSError, BusyError, ValueError, KeyError, TypeError):
        return None


def _await_end(pid: int | None) -> None:
    """Wait until a process has ended, for a limited time."""
    end = time.monotonic() + _END_SECONDS
    while (
        pid not in (None, os.getpid()) and os.path.exists(f"/proc/{pid}") and time.monotonic() < end
    ):
        time.sleep(0.02)


# -- the place


def checked(
    store_path: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str],
    options: MountOptions,
) -> tuple[StoreDirectory, Path]:
    """Return the store and the mount point without symbolic links; a dead mount is removed.

    Raises as `mount` if one of them, or FUSE, is not usable.
    """
    directory = StoreDirectory.open(Path(store_path))
    place = _checked_place(directory, mountpoint, options)
    require_fuse(options)
    return directory, place


def _checked_place(
    directory: StoreDirectory, mountpoint: str | os.PathLike[str], options: MountOptions
) -> Path:
    """Return the mount point without symbolic links, if it is valid; a dead mount is removed."""
    place = place_of(mountpoint)
    _clear_dead_mount(place)
    root = Path(os.path.realpath(directory.root))
    if place == root or place.is_relative_to(root):
        raise UsageError(f"{place} is inside the store {root}")
    if root.is_relative_to(place):
        raise UsageError(f"the store {root} is inside {place} and would be hidden by the mount")
    found = mount_at(place)
    if found is not None and found.is_ours:
        raise BusyError(f"{found.source} is mounted at {place} already")
    if not place.exists():
        raise MountError(f"directory not found: {place}", hint=f"create it: mkdir -p {place}")
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


def place_of(mountpoint: str | os.PathLike[str]) -> Path:
    """Return a mount point without symbolic links. A mount of vfsd there is not accessed."""
    path = os.fspath(mountpoint) or os.curdir
    for _ in range(_MAX_LINKS):
        above, last = os.path.split(path.rstrip("/") or "/")
        if last in (".", ".."):
            break
        place = Path(os.path.realpath(above or os.curdir), last)
        found = mount_at(place)
        if (found is not None and found.is_ours) or not place.is_symlink():
            return place
        path = os.path.join(place.parent, os.readlink(place))
    return Path(os.path.realpath(mountpoint))


def _clear_dead_mount(place: Path) -> None:
    """Unmount what a killed daemon has left: a place that answers with errors.

    Raises `BusyError` if it does not answer at all.
    """
    found = mount_at(place)
    if found is None or not found.is_ours:
        return
    try:
        require_answer(place)
    except OSError as error:
        if error.errno in _DEAD_MOUNT:
            _log.warning("%s was left by a mount that died; it is unmounted", place)
            _detach(place, lazily=True)


def _detach(place: Path, *, lazily: bool) -> None:
    if os.geteuid() == 0:
        words = ["umount", *(["-l"] if lazily else []), str(place)]
    else:
        helper = "fusermount3" if shutil.which("fusermount3") else "fusermount"
        words = [helper, "-uz" if lazily else "-u", str(place)]
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            done = subprocess.run(
                words,
                env=os.environ | {"LC_ALL": "C"},  # its output is parsed below
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            raise MountError(f"{words[0]} is not installed", hint="apt install fuse3") from None
        if "busy" not in done.stderr or time.monotonic() > end:
            break
        time.sleep(0.02)
    if done.returncode == 0:
        return
    text = done.stderr.strip() or f"{words[0]} failed"
    if "busy" in text:
        raise BusyError(
            f"{place} is in use: {text}", hint=f"run `fuser -vm {place}` to list the processes"
        )
    hint = None if os.geteuid() == 0 else "only root and the user who mounted it can unmount it"
    raise MountError(f"{place} cannot be unmounted: {text}", hint=hint)


# -- in the background


def _start(
    directory: StoreDirectory, place: Path, options: list[str], log: LogFile, log_level: str
) -> None:
    reading, writing = os.pipe()
    task = {
        "root": str(directory.root),
        "place": str(place),
        "options": options,
        "log_level": log_level,
        "log": str(log.path),
        "limits_log": log.is_limited,
    }
    hint = f"see {log.path}"
    written = _size(log.path)
    try:
        _launch(str(writing), json.dumps(task), log.path)
        os.close(writing)
        writing = -1
        report = _await_report(reading)
    except subprocess.CalledProcessError as error:
        why = _last_line(log.path, written)
        raise MountError(
            f"the process of the mount could not be started{why}",
            hint=f"run `vfsd doctor`; {hint}",
        ) from error
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    if report is None:
        raise MountError(
            f"the mount at {place} did not come up{_last_line(log.path, written)}", hint=hint
        )
    if "error" in report:
        kind = getattr(errors, report["error"], MountError)
        raise kind(report["message"], hint=report["hint"] or hint)
    found = mount_at(place)
    if found is None or not found.is_ours:
        raise MountError(f"the mount at {place} went away at once", hint=hint)
    os.stat(place)


def _size(log: Path) -> int:
    """Return the size in bytes; 0 for a pipe or a device."""
    return log.stat().st_size if log.is_file() else 0


def _last_line(log: Path, start: int) -> str:
    """Return the last log line after `start` bytes, as ": LINE"; empty if there is none.

    For a dead process it is the last line of a traceback.
    """
    if not log.is_file():
        return ""
    with open(log, "rb") as file:
        file.seek(max(start, _size(log) - _MAX_TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    texts = [line.strip() for line in lines if line.strip()]
    return f": {texts[-1]}" if texts else ""


def _launch(pipe: str, task: str, log: Path) -> None:
    """Start `vfsd.mount.daemon` with its output appended to `log`. Raises `CalledProcessError`."""
    with open(log, "ab") as output:
        # The child forks once more and exits, so that this process need not reap the daemon.
        subprocess.run(
            module_command("vfsd.mount.daemon", pipe, task),
            cwd="/",
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[int(pipe)],
            check=True,
        )


def _await_report(fd: int) -> dict[str, Any] | None:
    """Return the report of the daemon; None if it died or timed out."""
    end = time.monotonic() + _START_SECONDS
    waiting = select.poll()  # not select(): descriptors may exceed 1023
    waiting.register(fd, select.POLLIN)
    text = b""
    while not text.endswith(b"\n"):
        ready = waiting.poll(max(0.0, end - time.monotonic()) * 1000)
        chunk = os.read(fd, 65536) if ready else b""
        if not chunk:
            return None
        text += chunk
    found = json.loads(text)
    return found if isinstance(found, dict) else None
