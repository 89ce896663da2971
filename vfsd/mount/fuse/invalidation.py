"""Tracks what the kernel caches of files and attributes, and invalidates it after changes."""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTimeError
from contextlib import suppress
from ctypes import c_char_p, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

from vfsd.mount.fs import RENAME_EXCHANGE, Attributes, Filesystem, block_count
from vfsd.mount.fuse.open_paths import OpenPaths, PathMap
from vfsd.mount.fuse.read_dispatch import ReadDispatch

_log = logging.getLogger(__name__)

_INVALIDATE_SECONDS = 0.05
# The kernel opens a file by the size that it looked up within the last second. A new, longer file
# of that name would be cut off, and `cp` would exit with 0.
_MOST_NAMES = 10_000
_READABLE = 0o444
_RELEASE_SECONDS = 0.5
"""As long a writer waits for the kernel to tell that others have closed."""
_SENT_BACK_SECONDS = 1.0
"""Who was sent back comes at once, or not at all, where the name may not be opened by then."""


class _ReportedAttributes(NamedTuple):
    """Attributes last reported to the kernel for a name, which it uses when it opens that."""

    ino: int
    size: int
    readers: tuple[int, int, int]


@dataclass(slots=True)
class _StaleOpen:
    """A thread that got ESTALE and is expected to look up and open the name again."""

    until: float  #: when it has given up, by `time.monotonic`
    path: bytes | None  #: what it has looked up last; None: that has another name by now

    def is_here(self, path: bytes) -> bool:
        """Return whether an open of `path` is the expected retry."""
        return self.path in (None, path) and time.monotonic() < self.until


def _readers(found: Attributes) -> tuple[int, int, int]:
    """Who may read it: by mode, owner and group."""
    return found.mode & _READABLE, found.uid, found.gid


class KernelCacheInvalidator:
    """Invalidates caches of the kernel through libfuse, inside its callbacks. Thread-safe."""

    def __init__(
        self,
        library: Any,
        context: Callable[[], Any],
        filesystem: Filesystem,
        readers: ReadDispatch,
        *,
        bypass: bool,
    ) -> None:
        """`context` is ``fuse_get_context``; `bypass` says that writers may go past the cache."""
        self._library = library
        self._context = context
        self._fs = filesystem
        self._bypass = bypass
        self._readers = readers
        self._config: Any = None
        self._attr_timeout = 0.0
        self._is_caching = True
        self._open = OpenPaths()
        self._direct: set[int] = set()  # handles, whatever has become of their flags
        self._told: PathMap[_ReportedAttributes] = PathMap()
        self._sent_back: dict[int, _StaleOpen] = {}  # by thread
        self._notifier = ThreadPoolExecutor(1, thread_name_prefix="vfsd-notifier")

    def start(self, config: Any, attr_timeout: float) -> None:
        """To be called while libfuse handles INIT; `config` is its ``fuse_config``."""
        self._config = config
        config.attr_timeout = self._attr_timeout = attr_timeout

    def close(self) -> None:
        self._notifier.shutdown(wait=False, cancel_futures=True)

    # -- attributes

    def path_of(self, handle: int) -> bytes | None:
        """Return the current path of the name that `handle` was opened by."""
        return self._open.path_of(handle)

    def answering(self, path: bytes | None, found: Attributes, handle: int | None) -> Attributes:
        """These attributes, of what `handle` is open on if there is one, are about to be given to
        the kernel by this thread; gives them with the size that it is to be told.

        What is being written to a view is not what will be read from it: of that nothing is kept.

        To libfuse, and so to the kernel, names of one file are different files: what changes
        through one of them would be seen through the others only when the cache has expired.
        So it is with a name that has gone, and is still open, and with one by which somebody writes
        something else, and may look for its end.  And set-ID bits go with a write, of which the
        kernel takes no notice, as it leaves that to us.
        libfuse looks at the timeout when the callback has returned.  Should another thread come in
        between, a change may be seen a second late.
        """
        if handle is None and self._sent_back:
            self._note_looked_up(path)
        is_offered = handle is not None and found.is_view and bool(found.mode & stat.S_IWUSR)
        is_one = self._is_one(path, found, handle)
        may_lose_bits = stat.S_ISREG(found.mode) and found.mode & (stat.S_ISUID | stat.S_ISGID)
        allowed = (is_one or stat.S_ISDIR(found.mode)) and not is_offered and not may_lose_bits
        if allowed is not self._is_caching:
            self._is_caching = allowed
            self._config.attr_timeout = self._attr_timeout if allowed else 0.0
        found = self._with_room(path, found, handle)
        if path is not None and stat.S_ISREG(found.mode):
            if len(self._told) >= _MOST_NAMES:
                self._told.keep_only(self._open.paths())
            if len(self._told) >= _MOST_NAMES:
                self._told.clear()
            self._told[path] = _ReportedAttributes(found.ino, found.size, _readers(found))
        return found

    def _is_one(self, path: bytes | None, found: Attributes, handle: int | None) -> bool:
        """Whether it is one file to the kernel, and that nothing else.

        Of what is open it is remembered if the kernel knows it by several names.
        """
        if found.nlink > 1 or self._open.is_elsewhere(found.ino, path, handle):
            self._open.share(found.ino)
            return False
        return found.is_view or not self._open.is_written_by_others(path, found.ino)

    def _with_room(self, path: bytes | None, found: Attributes, handle: int | None) -> Attributes:
        """With a size by which nobody is told of his end too early.

        The kernel knows one size of a name, whatever is open by it.  There it ends what is read
        through its cache; who reads past that is told of his end by us.  With room go blocks: cp
        looks for holes where there are fewer than the size takes, and then copies by the size.
        """
        ends = self._ends(path, found.ino, found.size, handle)
        size = max([found.size, *ends.values()])
        for each, end in ends.items():
            if end < size:
                self._readers.cut(each)
        if size == found.size:
            return found
        return found._replace(size=size, blocks=max(found.blocks, block_count(size)))

    def _ends(self, path: bytes | None, ino: int, size: int, handle: int | None) -> dict[int, int]:
        """Where those end who read through the cache, by that path or the name of `handle`, if they
        are still open: at `size` if they read `ino`."""
        cached = self._open.through_cache(path, handle)
        return {each: self._end(each, ino, size) for each in cached}

    def _end(self, handle: int, ino: int, size: int) -> int:
        try:
            if not self._fs.is_view(handle) and self._fs.identity(handle) == ino:
                return size
            return self._fs.getattr(None, handle).size
        except OSError:
            return size

    def opening(self, path: bytes) -> OpenRequest:
        """What this thread has been asked for, to open that name.

        It may have been sent back by another, which the file had by then: what counts is what it
        has looked up since.  Who did not come back, as he may not open that, has looked up nothing
        of what he opens next.
        """
        sent_back = self._sent_back.pop(self._thread(), None) if self._sent_back else None
        return OpenRequest(self, path, sent_back is not None and sent_back.is_here(path))

    def _note_looked_up(self, path: bytes | None) -> None:
        sent_back = self._sent_back.get(self._thread())
        if sent_back is not None:
            sent_back.path = path

    def found_nothing(self) -> None:
        """What this thread has looked up is not there, so it does not come back to open that."""
        if self._sent_back:
            self._sent_back.pop(self._thread(), None)

    def is_known(self, path: bytes, ino: int, size: int | None) -> bool:
        """Return whether the kernel knows this file at this path."""
        told = self._told.get(path)
        return told is not None and told.ino == ino and self._is_told(path, ino, size, told.size)

    def is_view_known(self, path: bytes, found: Attributes) -> bool:
        """The same, of a view, where others may change who may read it: they change the video."""
        told = self._told.get(path)
        is_readable_as_told = told is not None and told.readers == _readers(found)
        return is_readable_as_told and self.is_known(path, found.ino, found.size)

    def _is_told(self, path: bytes, ino: int, size: int | None, told: int) -> bool:
        """Whether that is what the kernel would be told of a file now."""
        if size is None or size == told:
            return True
        return told == max([size, *self._ends(path, ino, size, None).values()])

    def send_back(self, path: bytes) -> None:
        """Make the kernel look up and open the name again: raises ESTALE."""
        if len(self._sent_back) >= _MOST_NAMES:
            self._sent_back.clear()
        until = time.monotonic() + _SENT_BACK_SECONDS
        self._sent_back[self._thread()] = _StaleOpen(until, path)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def _thread(self) -> int:
        """Whose request this is."""
        return int(self._context().contents.pid)

    def forget(self, path: bytes) -> None:
        """Let the kernel forget the attributes of what it knows by this path.

        It may have to wait for answers to other requests.  So it is not done by this thread, which
        may be the only one left to give them, and not waited for without end.
        """
        try:
            self._forgetting(path).result(_INVALIDATE_SECONDS)
        except NotInTimeError:
            _log.debug("the kernel takes its time to forget %r", path)

    def _forgetting(self, path: bytes) -> Future[int]:
        session = c_void_p(self._context().contents.fuse)
        return self._notifier.submit(self._library.fuse_invalidate_path, session, c_char_p(path))

    # -- bytes

    def require_own_size(self, path: bytes, handle: int) -> None:
        """Who has opened that name to write, and was entered, looks for his end (SEEK_END) by the
        size that the kernel knows of it.

        Where something else is open by it that may be the other's, and what he writes there would
        lie behind a hole; views are not written that way.  Raises `OSError` (ETXTBSY).
        """
        if not self.is_alone(handle) and isinstance(ino := self._fs.identity(handle), int):
            self.require_only(path, ino)

    def require_unused(self, path: bytes) -> None:
        """The same, of a name that is given to a new file."""
        self.require_only(path, None)

    def require_only(self, path: bytes, ino: int | None) -> None:
        """Nothing but that file is to be open by that name.  Raises `OSError` (ETXTBSY)."""
        if not self._open.wait_for_others(path, ino, _RELEASE_SECONDS):
            raise OSError(errno.ETXTBSY, os.strerror(errno.ETXTBSY))

    def is_end_known(self, handle: int) -> bool:
        """Whether the size that the kernel knows of the name of `handle` is that of the file.

        It knew it when the file was opened (`Opening.require_told`), and has known it ever since
        where all that was changed was changed by that name.
        """
        if self._open.is_shared(handle):
            return False
        found = self._fs.getattr(None, handle)
        path = self._open.path_of(handle)
        told = None if path is None else self._told.get(path)
        return told is not None and told.ino == found.ino and self._is_one(path, found, handle)

    def enter(self, path: bytes, handle: int) -> None:
        """A file is being opened, by that path; ends with `leave`."""
        self._open.enter(path, handle, self._fs.identity(handle))

    def leave(self, handle: int) -> None:
        left = self._open.leave(handle)
        self._direct.discard(handle)
        if not self._readers.past_cache.isdisjoint(left):
            # They may fill the kernel's cache from now on, which has what was read by the other.
            with suppress(RuntimeError, KeyError):  # the mount ends; that one is closed, too
                path = self._open.path_of(left[0])
                if path is not None:
                    self.forget(path)

    def is_passed_by(self, handle: int) -> bool:
        """Return whether a handle bypasses the kernel's cache, so that writes must be synced
        here."""
        return handle in self._direct

    def is_alone(self, handle: int) -> bool:
        """Whether nothing else is open by the name that `handle` was opened by.

        Something else would share the kernel's cache: each would read there what was read for the
        other.
        """
        return not self._open.is_mixed(handle)

    def others(self, handle: int) -> list[int]:
        """Return handles of other files that are open by the same name."""
        return self._open.others(handle) if self._open.is_mixed(handle) else []

    def choose(self, info: Any, handle: int) -> None:
        """Let the kernel keep what it has read of these very bytes under this very name.

        `info` is the ``fuse_file_info`` of a file that is being opened, and was entered.
        """
        if info.flags & os.O_ACCMODE != os.O_RDONLY:
            self._open.write(handle)
            found = self._fs.getattr(None, handle)
            if found.nlink > 1:
                self._open.share(found.ino)
        is_only_written = info.flags & os.O_ACCMODE == os.O_WRONLY
        # The kernel syncs once for each write, we once for each part of it.
        is_passed = is_only_written and not info.flags & os.O_DSYNC
        # To its cache it writes page by page, and others may append by their name in between.
        is_passed |= bool(info.flags & os.O_APPEND) and self._open.is_shared(handle)
        if self._bypass and (is_passed or is_appended_directly(info.flags)):
            self._set_direct(info, handle)
        elif not self.is_alone(handle):
            self._set_direct(info, handle)
            self._open.swap_cached(handle, None)
            self._pass_by(handle)
        else:
            version = self._fs.content_version(handle)
            cached = self._open.swap_cached(handle, version)
            info.keep_cache = int(version is not None and version == cached)
            if version is not None:
                self._open.read_through_cache(handle)

    def _set_direct(self, info: Any, handle: int) -> None:
        info.direct_io = 1
        self._direct.add(handle)

    def _pass_by(self, handle: int) -> None:
        """See to it that the kernel's cache has nothing for it, and gets nothing by it.

        What the others read from now on gets there, and then to who asks the cache all the same.
        """
        self._readers.past_cache.add(handle)
        path = self._open.path_of(handle)
        if path is not None:
            self.forget(path)

    def misled(self, handle: int) -> None:
        """Something was written through it, and not taken, or put elsewhere than the kernel thinks.

        It may be in the kernel's cache before, and stays there for all who read.  Nobody waits
        until it is forgotten: this thread has yet to answer the write.
        """
        self._open.swap_cached(handle, None)
        path = self._open.path_of(handle)
        if path is not None:
            with suppress(RuntimeError):  # the mount ends, and the kernel's cache with it
                self._forgetting(path)

    def moved(self, old: bytes, new: bytes, flags: int) -> None:
        """A name was, through the mount: what is open by it now has the other.

        So has what is about to be opened by who has just looked it up.
        """
        for sent_back in list(self._sent_back.values()):
            if sent_back.path is not None and _is_below(sent_back.path, old, new):
                sent_back.path = None
        if flags & RENAME_EXCHANGE:
            self._open.exchanged(old, new)
            self._told.exchanged(old, new)
        else:
            is_folder = self._is_folder(new)
            self._open.moved(old, new, with_all_below=is_folder)
            self._told.moved(old, new, with_all_below=is_folder)

    def removed(self, path: bytes) -> None:
        self._open.removed(path)
        self._told.pop(path, None)

    def _is_folder(self, path: bytes) -> bool:
        try:
            return stat.S_ISDIR(self._fs.getattr(os.fsdecode(path)).mode)
        except OSError:
            return True  # somebody else has taken it away meanwhile


class OpenRequest:
    """A request to open a name, which may lead to another file than the kernel believes.

    It has looked the name up within the last second, and goes by the size and the mode that it was
    told then.
    To have it look again the request is refused by ESTALE, of which the caller sees nothing.  Once:
    the name may have changed again by then, and from a second ESTALE the kernel does not come back.
    Nor does it look up what is opened by no name (open_by_handle_at, for instance).
    """

    def __init__(self, cache: KernelCacheInvalidator, path: bytes, was_sent_back: bool) -> None:
        self._cache = cache
        self._path = path
        self._was_sent_back = was_sent_back

    def look_again(self) -> None:
        """Have the kernel look up the name, and open it then, unless it has just done so.

        Raises `OSError` (ESTALE).
        """
        if not self._was_sent_back:
            self._cache.send_back(self._path)

    def require_only(self, found: Attributes) -> None:
        """Before what is `found` there is emptied: it is what the kernel knows, and nothing else is
        open by that name.  Raises `OSError` (ESTALE, which the caller does not see, and ETXTBSY).
        """
        if not found.is_view:
            self._require(self._cache.is_known(self._path, found.ino, None))
            self._cache.require_only(self._path, found.ino)

    def require_told(self, filesystem: Filesystem, handle: int, flags: int) -> None:
        """See to it that the kernel knows the size of what `handle` is open on with `flags`, where
        it does not see to that itself.

        Raises `OSError` (ESTALE), which the caller does not see.
        """
        if filesystem.is_view(handle):
            found = filesystem.getattr(None, handle)
            self._require(self._cache.is_view_known(self._path, found))
            return
        ino = filesystem.identity(handle)
        if isinstance(ino, int):  # else it is a view that is to be written, and has no size yet
            size = filesystem.video_size(handle)
            if is_appended_directly(flags):
                size = filesystem.getattr(None, handle).size
            self._require(self._cache.is_known(self._path, ino, size))

    def _require(self, is_known: bool) -> None:
        if not is_known:
            self.look_again()
            self._cache.forget(self._path)
        elif self._was_sent_back:
            # Who reads the other may have had the kernel told of that meanwhile.
            self._cache.forget(self._path)


def is_appended_directly(flags: int) -> bool:
    """Whether all that is written goes past all caches to the end.

    Only where the kernel knows that its cache is passed by does it send the parts of a large write
    one after the other.
    """
    wanted = os.O_DIRECT | os.O_APPEND
    return flags & wanted == wanted


def _is_below(path: bytes, *folders: bytes) -> bool:
    """Whether it is one of these, or somewhere in one."""
    return any(path == folder or path.startswith(folder + b"/") for folder in folders)
