"""Views that are there from end to end, as files that the kernel can read by itself.

Such a file has no name: nobody finds it half-made, and it goes with the process, however that ends.
It is put together by one thread from slots that are rendered already, whose checksums are compared
on the way, when somebody has read all of a view.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from vfsd.errors import VfsdError
from vfsd.storage.file_cache import Bytes
from vfsd.views.rendered_view import Rendition, ViewRendition

_log = logging.getLogger(__name__)

_MOST_OPEN = 256
"""Each takes up a descriptor."""
_AT_ONCE = 1 << 20
"""Bytes that are written at a time: slots of short views are small."""


class _Whole(NamedTuple):
    fd: int
    size: int  #: bytes
    digest: str  #: of the video that it shows


class WholeViews:
    """Whole views, those used last, in at most `budget` bytes.  Thread-safe."""

    def __init__(
        self, directory: Path, budget: int, slot: Callable[[Rendition, int], Bytes]
    ) -> None:
        """`directory` is on the disk that they shall lie on; `slot` gives the bytes of a slot,
        without the zeros that fill it up."""
        self._directory = directory
        self._budget = budget
        self._slot = slot
        self._guard = threading.Lock()
        self._files: OrderedDict[str, _Whole] = OrderedDict()
        self._coming: set[str] = set()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vfsd-wholes")

    def open(self, key: str) -> int | None:
        """A descriptor, the caller's own, of a file with just the bytes of that view, if there is
        one."""
        with self._guard:
            found = self._files.get(key)
            if found is None:
                return None
            self._files.move_to_end(key)
            return os.dup(found.fd)

    def want(self, rendition: Rendition) -> None:
        """All of a view was read: put it together, soon, where it is worth its bytes.

        Raw pictures and stills are not: they are in no cache of files, so they would have to be
        decoded once more.
        """
        key, size = rendition.key, rendition.slots.size
        if not isinstance(rendition, ViewRendition) or rendition.made == "decoded":
            return
        if size > self._budget:
            return
        with self._guard:
            if self._closed or key in self._files or key in self._coming:
                return
            self._coming.add(key)
            self._thread.submit(self._make, rendition)

    def close(self) -> None:
        with self._guard:
            self._closed = True
        self._thread.shutdown(cancel_futures=True)
        with self._guard:
            for whole in self._files.values():
                os.close(whole.fd)
            self._files.clear()

    def digests(self) -> set[str]:
        """Of the videos that they show."""
        with self._guard:
            return {whole.digest for whole in self._files.values()}

    def forget(self, digests: Collection[str]) -> None:
        """Keep nothing of those videos, which have gone; who has one open reads on."""
        with self._guard:
            gone = [key for key, whole in self._files.items() if whole.digest in digests]
            files = [self._files.pop(key) for key in gone]
        for whole in files:
            os.close(whole.fd)

    def _make(self, rendition: Rendition) -> None:
        try:
            fd = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                self._fill(fd, rendition)
            except BaseException:
                os.close(fd)
                raise
            self._keep(rendition.key, _Whole(fd, rendition.slots.size, rendition.digest))
        except (OSError, VfsdError) as error:
            _log.debug("a view is not kept as a whole: %s", error)
        finally:
            with self._guard:
                self._coming.discard(rendition.key)

    def _fill(self, fd: int, rendition: Rendition) -> None:
        slots = rendition.slots
        with open(fd, "wb", buffering=_AT_ONCE, closefd=False) as file:
            for number in range(len(slots)):
                if self._closed:
                    raise OSError(errno.EINTR, "it is too late for that")
                data = self._slot(rendition, number)
                file.write(data)
                file.write(bytes(slots[number].size - len(data)))

    def _keep(self, key: str, whole: _Whole) -> None:
        gone = []
        with self._guard:
            self._files[key] = whole
            held = sum(each.size for each in self._files.values())
            while held > self._budget or len(self._files) > _MOST_OPEN:
                gone.append(self._files.popitem(last=False)[1])
                held -= gone[-1].size
        for old in gone:
            os.close(old.fd)
