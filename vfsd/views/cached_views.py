"""What earlier renders left behind: slots in the cache, encode times of this host, and whole views
as unnamed files that the kernel can read directly (`MaterialisedViews`).
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from vfsd.core.hostinfo import host_name
from vfsd.errors import VfsdError
from vfsd.storage.context import StoreContext
from vfsd.storage.file_cache import Bytes, FileCache, file_of
from vfsd.views.render_context import EncodeTimes
from vfsd.views.rendered_view import PlannedView, RenderedView
from vfsd.views.transcode import TranscodedView

_log = logging.getLogger(__name__)

_MIN_PIXELS = 5_000_000
"""Fewer pixels are not a measurement: a second of 640x360 has 7 million."""


def cached_slot_name(rendition: RenderedView, slot: int) -> str:
    """The name of a slot's file in the cache, see `vfsd.storage.file_cache.file_of`."""
    if isinstance(rendition, TranscodedView):
        return file_of(rendition.digest, rendition.key_of_slot(slot))
    return file_of(rendition.digest, f"{rendition.key}.{slot}")


@dataclass(frozen=True, slots=True)
class RenderHistory:
    """What is known of renders on this host."""

    encode_pixel: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds for a pixel of a view, by codec; codecs without a measurement are missing."""
    is_cached: Callable[[str], bool] | None = None
    """Whether the cache has a file of that name, see `cached_slot_name`; None if unknown."""

    @classmethod
    def of_store(cls, parts: StoreContext) -> RenderHistory:
        """Facts from the catalog and from the files of the cache."""
        return cls(parts.catalog.encode_costs(host_name()), FileCache.of_store(parts).has)

    def count_cached(self, rendition: RenderedView) -> int | None:
        """How many slots of a rendition the cache holds; None if unknown, or none can be kept."""
        if self.is_cached is None or not rendition.storable:
            return None
        return sum(self.is_cached(cached_slot_name(rendition, slot)) for slot in rendition.storable)


def store_encode_times(parts: StoreContext, times: EncodeTimes) -> None:
    """Move the sums of `times` into the catalog; small sums stay for the next call.

    A catalog that cannot be written keeps the older measurement.
    """
    if parts.read_only:
        return
    measured = times.take(_MIN_PIXELS)
    if not measured:
        return
    try:
        with parts.catalog.writing() as change:
            for codec, seconds in measured.items():
                change.costs.put_encoding(host_name(), codec, seconds, time.time_ns())
    except VfsdError as error:
        _log.debug("the time of encoding is not kept: %s", error)


class CachedSlotCounts:
    """How many of the slots of each rendition that are worth a file are in the cache.  Thread-safe.

    It is a memory, as looking takes a system call for each slot: one that has gone since is noticed
    when it is wanted.
    """

    def __init__(self, is_there: Callable[[RenderedView, int], bool]) -> None:
        """`is_there` tells whether a slot is in the cache."""
        self._is_there = is_there
        self._found: WeakKeyDictionary[RenderedView, int] = WeakKeyDictionary()  # the first so many

    def are_all_of(self, rendition: RenderedView) -> bool:
        """Whether each was there when it was looked for; False where none is worth a file."""
        return 0 < len(rendition.storable) == self._found.get(rendition)

    def look(self, rendition: RenderedView) -> None:
        """Go on from where the first one was missing."""
        found = self._found.get(rendition, 0)
        if found == len(rendition.storable):
            return
        for slot in sorted(rendition.storable)[found:]:
            if not self._is_there(rendition, slot):
                break
            found += 1
        self._found[rendition] = found

    def forget(self, rendition: RenderedView) -> None:
        """A slot has to be made."""
        self._found.pop(rendition, None)


_MAX_OPEN = 256
"""Each takes up a descriptor."""
_COPY_BYTES = 1 << 20
"""Bytes that are written at a time: slots of short views are small."""


class _MaterialisedFile(NamedTuple):
    fd: int
    size: int  #: bytes
    digest: str  #: of the video that it shows


class MaterialisedViews:
    """Whole views, those used last, in at most `budget` bytes.  Thread-safe."""

    def __init__(
        self, directory: Path, budget: int, slot: Callable[[RenderedView, int], Bytes]
    ) -> None:
        """`directory` is on the disk that they shall lie on; `slot` gives the bytes of a slot,
        without the zeros that fill it up."""
        self._directory = directory
        self._budget = budget
        self._slot = slot
        self._guard = threading.Lock()
        self._files: OrderedDict[str, _MaterialisedFile] = OrderedDict()
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

    def want(self, rendition: RenderedView) -> None:
        """All of a view was read: put it together, soon, where it is worth its bytes.

        Raw pictures and stills are not: they are in no cache of files, so they would have to be
        decoded once more.
        """
        key, size = rendition.key, rendition.slots.size
        if not isinstance(rendition, PlannedView) or rendition.made == "decoded":
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

    def _make(self, rendition: RenderedView) -> None:
        try:
            fd = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                self._fill(fd, rendition)
            except BaseException:
                os.close(fd)
                raise
            self._keep(rendition.key, _MaterialisedFile(fd, rendition.slots.size, rendition.digest))
        except (OSError, VfsdError) as error:
            _log.debug("a view is not kept as a whole: %s", error)
        finally:
            with self._guard:
                self._coming.discard(rendition.key)

    def _fill(self, fd: int, rendition: RenderedView) -> None:
        slots = rendition.slots
        with open(fd, "wb", buffering=_COPY_BYTES, closefd=False) as file:
            for number in range(len(slots)):
                if self._closed:
                    raise OSError(errno.EINTR, "it is too late for that")
                data = self._slot(rendition, number)
                file.write(data)
                file.write(bytes(slots[number].size - len(data)))

    def _keep(self, key: str, whole: _MaterialisedFile) -> None:
        gone = []
        with self._guard:
            self._files[key] = whole
            held = sum(each.size for each in self._files.values())
            while held > self._budget or len(self._files) > _MAX_OPEN:
                gone.append(self._files.popitem(last=False)[1])
                held -= gone[-1].size
        for old in gone:
            os.close(old.fd)
