"""Takes over the files that another recorder writes into a folder."""

from __future__ import annotations

import fcntl
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from vfsd.catalog import split_path
from vfsd.core.capture_time import CaptureTime
from vfsd.core.model import LogicalVideo
from vfsd.disk.object_store import digest_file
from vfsd.errors import (
    BusyError,
    ExistsError,
    NotFoundError,
    RefusedMediaError,
    UsageError,
    VfsdError,
)
from vfsd.storage.context import StoreContext
from vfsd.validation import not_one_of
from vfsd.write.ingest_file import (
    SourceFile,
    file_version,
    ingest_copy,
    ingest_link,
    is_ingested,
    require_outside_store,
)

FILE_FORMS = ("link", "copy", "move")
"""A watched file is indexed in its place, copied, or copied and then deleted."""
# Suffixes that programs give to files that they rename when these are complete.
_UNFINISHED = (".part", ".partial", ".tmp", ".temp", ".filepart", ".crdownload")
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class WatchOptions:
    """How files are taken over."""

    files: str = "link"  #: one of `FILE_FORMS`
    settle: float = 5.0  #: seconds without a change, after which a file is complete

    def __post_init__(self) -> None:
        if self.files not in FILE_FORMS:
            raise not_one_of("files", self.files, FILE_FORMS)
        if not 0 <= self.settle <= 3600:
            raise UsageError(f"settle must be 0 to 3600 seconds, got {self.settle:g}")


_Version = tuple[int, int, int]
"""See `file_version`; the second number is the size."""


class FolderWatcher:
    """Makes videos of the files below a folder, each as soon as it is complete.

    ``FOLDER/a/b.mp4`` becomes ``DIR/a/b.mp4``.  A file is complete when it has not changed for some
    seconds and no process of this host has it open for writing.  Hidden files, and names that end
    in .part, .tmp and the like, are left alone until they are renamed.  All that it needs to know
    is in the store, so a watcher that was killed continues where it was.  The folder is listed each
    second: a network disk reports no changes.
    """

    def __init__(
        self,
        parts: StoreContext,
        directory: str,
        folder: Path,
        form: WatchOptions,
        *,
        captured: Callable[[LogicalVideo], CaptureTime | None] = lambda video: None,
        on_video: Callable[[LogicalVideo], None] = lambda video: None,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`captured` gives times of recording; without one, that of the container counts.

        `on_video` is called with each new video, `on_event` with each file that does not become
        one, and why, and with each video whose linked file is gone.  Raises `UsageError` for a
        folder that cannot be watched.
        """
        parts.require_writable()
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a directory", hint="watch an existing directory")
        require_outside_store(parts, SourceFile(folder, directory, 0))
        self._parts, self._folder, self._form = parts, folder, form
        self._directory = "/".join(split_path(directory))
        self._captured, self._on_video, self._on_event = captured, on_video, on_event
        self._done: dict[Path, _Version] = {}
        self._seen: dict[Path, tuple[_Version, float]] = {}  # version, and since when
        self.published = 0  #: videos

    def run(self, stop: Event, seconds: float | None = None) -> int:
        """Watch until `stop` is set, or for a time; return the number of new videos."""
        end = math.inf if seconds is None else time.monotonic() + seconds
        told = ""
        while not stop.is_set() and time.monotonic() < end:
            try:
                self.look(stop)
                told = ""
            except (OSError, VfsdError) as error:  # a full disk, a busy catalog, a lost network
                if str(error) != told:
                    told = str(error)
                    self._on_event(f"{told}; trying again")
            stop.wait(min(_POLL_SECONDS, max(0.0, end - time.monotonic())))
        return self.published

    def look(self, stop: Event | None = None) -> None:
        """List the folder once, and take over the files that are complete by now.

        Raises `StoreError`, and `OSError` for an unreadable folder and a full disk.
        """
        now, present = time.monotonic(), dict(self._files())
        for path in sorted(self._done.keys() - present.keys()):
            self._report_gone(path)
        for known in (self._done, self._seen):
            for path in known.keys() - present.keys():
                del known[path]
        for path, version in present.items():
            if stop is not None and stop.is_set():
                return
            if self._done.get(path) == version:
                continue
            before, since = self._seen.get(path, (None, now))
            if before != version:
                self._seen[path] = version, now
                since = now
            if now - since >= self._form.settle and not _is_being_written(path):
                self._take(path, version)

    def _files(self) -> Iterator[tuple[Path, _Version]]:
        def fail(error: OSError) -> None:
            # A directory may go while it is listed, but the folder itself must be there: without
            # its disk, it would look as if all files were gone.
            if Path(error.filename) == self._folder:
                raise error

        for folder, folders, files in os.walk(self._folder, onerror=fail):
            folders[:] = sorted(one for one in folders if not one.startswith("."))
            for name in sorted(files):
                if name.startswith(".") or name.lower().endswith(_UNFINISHED):
                    continue
                path = Path(folder) / name
                try:
                    found = path.lstat()
                except OSError:
                    continue
                if stat.S_ISREG(found.st_mode) and found.st_size:
                    yield path, file_version(found)

    def _report_gone(self, path: Path) -> None:
        """Say which video cannot be read any more, if a renamed or deleted file was its original.

        The video stays: what it knows of the file, and tiles and renditions made of it, may be all
        that is left of the footage.
        """
        name = self._name(path)
        with self._parts.catalog.reading() as seen:
            try:
                node = seen.tree.resolve(name)
            except NotFoundError:
                return
        if node.link_path is not None and not os.path.lexists(node.link_path):
            self._on_event(
                f"{name} cannot be read: {node.link_path} was renamed or deleted; vfsd rm removes "
                "the video, and --files copy keeps footage"
            )

    def _name(self, path: Path) -> str:
        inside = path.relative_to(self._folder).as_posix()
        return f"{self._directory}/{inside}".lstrip("/")

    def _take(self, path: Path, version: _Version) -> None:
        inside = path.relative_to(self._folder).as_posix()
        source = SourceFile(path, self._name(path), version[1])
        try:
            if not is_ingested(self._parts, source):
                put = ingest_link if self._form.files == "link" else ingest_copy
                self._publish(put(self._parts, source))
            if self._form.files == "move":
                self._delete(source, version)
        except BusyError:  # written again while it was read
            self._seen[path] = version, time.monotonic()
            return
        except FileNotFoundError:
            return  # renamed or deleted since it was listed
        except (ExistsError, RefusedMediaError, UsageError) as error:
            self._on_event(f"{inside} is left alone: {error}")
        self._done[path] = version
        self._seen.pop(path, None)

    def _publish(self, video: LogicalVideo) -> None:
        captured = self._captured(video)
        if captured is not None:
            with self._parts.catalog.writing() as change:
                change.videos.set_captured(video.id, captured)
                video = change.videos.get(video.id)
        self.published += 1
        self._on_video(video)

    def _delete(self, source: SourceFile, version: _Version) -> None:
        """Delete a file whose bytes are in the store."""
        node = self._parts.catalog.video(source.name)
        if node.original.object_key != digest_file(source.path).key:
            raise ExistsError(f"{source.name!r} has other bytes in the store")
        if file_version(source.path.lstat()) == version:
            source.path.unlink()


def _is_being_written(path: Path) -> bool:
    """Return whether a process of this host has a file open for writing, as far as it is known.

    The kernel grants a read lease only without such a process, and only to the file's owner and
    root.  Disks of other hosts have no leases.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False
