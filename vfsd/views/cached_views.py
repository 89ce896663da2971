"""Results of earlier renders: cached slots, encode times of this host, and whole views.

Whole views are unnamed files that the kernel can read directly (`MaterialisedViews`).
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
from vfsd.storage.file_cache import Bytes, FileCache, cache_file_name
from vfsd.views.render_context import EncodeTimes
from vfsd.views.rendered_view import PlannedView, RenderedView
from vfsd.views.transcode import TranscodedView

_log = logging.getLogger(__name__)

_MIN_PIXELS = 5_000_000
"""Fewer pixels are not a reliable measurement.  One second of 640x360 has 7 million."""


def cached_slot_name(rendered: RenderedView, slot: int) -> str:
    """Return the file name of a slot in the cache, see `vfsd.storage.file_cache`."""
    if isinstance(rendered, TranscodedView):
        return cache_file_name(rendered.digest, rendered.key_of_slot(slot))
    return cache_file_name(rendered.digest, f"{rendered.key}.{slot}")


@dataclass(frozen=True, slots=True)
class RenderHistory:
    """Encode times and cached files of earlier renders on this host."""

    encode_pixel: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds per pixel of a view, by codec.  Codecs without a measurement are missing."""
    is_cached: Callable[[str], bool] | None = None
    """Tests whether the cache has a file of that name, see `cached_slot_name`; None if unknown."""

    @classmethod
    def of_store(cls, parts: StoreContext) -> RenderHistory:
        """Read the history from the catalog and from the files of the cache."""
        return cls(parts.catalog.encode_costs(host_name()), FileCache.of_store(parts).has)

    def count_cached(self, rendered: RenderedView) -> int | None:
        """Return the number of slots of a view in the cache; None if unknown or if none can be
        cached.
        """
        if self.is_cached is None or not rendered.storable:
            return None
        return sum(self.is_cached(cached_slot_name(rendered, slot)) for slot in rendered.storable)


def store_encode_times(parts: StoreContext, times: EncodeTimes) -> None:
    """Move the sums of `times` into the catalog; sums that are too small stay for the next call.

    If the catalog cannot be written, it keeps the older measurement.
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
        _log.debug("the encode time was not stored: %s", error)


class CachedSlotCounts:
    """Counts, for each view, the cached slots among those that are worth a file.  Thread-safe.

    The counts are remembered, because testing takes a system call for each slot.  A slot that was
    evicted in the meantime is noticed when it is read.
    """

    def __init__(self, is_there: Callable[[RenderedView, int], bool]) -> None:
        """`is_there` tests whether a slot is in the cache."""
        self._is_there = is_there
        # length of the cached prefix
        self._found: WeakKeyDictionary[RenderedView, int] = WeakKeyDictionary()

    def is_complete(self, rendered: RenderedView) -> bool:
        """Return whether all slots worth a file were cached at the last `refresh`; False without
        any.
        """
        return 0 < len(rendered.storable) == self._found.get(rendered)

    def refresh(self, rendered: RenderedView) -> None:
        """Extend the count from the first slot that was missing."""
        found = self._found.get(rendered, 0)
        if found == len(rendered.storable):
            return
        for slot in sorted(rendered.storable)[found:]:
            if not self._is_there(rendered, slot):
                break
            found += 1
        self._found[rendered] = found

    def forget(self, rendered: RenderedView) -> None:
        """Reset the count, because a slot has to be rendered."""
        self._found.pop(rendered, None)


_MAX_OPEN = 256
"""Each file uses a descriptor."""
_COPY_BYTES = 1 << 20
"""Buffer size for writing, because the slots of short views are small."""


class _MaterialisedFile(NamedTuple):
    fd: int
    size: int  #: bytes
    digest: str  #: of the video that the view shows


class MaterialisedViews:
    """The most recently read views as whole files, at most `budget` bytes together.
    Thread-safe.
    """

    def __init__(
        self, directory: Path, budget: int, slot: Callable[[RenderedView, int], Bytes]
    ) -> None:
        """`directory` selects the disk; `slot` returns the bytes of a slot without its zero
        padding.
        """
        self._directory = directory
        self._budget = budget
        self._slot = slot
        self._guard = threading.Lock()
        self._files: OrderedDict[str, _MaterialisedFile] = OrderedDict()
        self._coming: set[str] = set()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vfsd-wholes")

    def open(self, key: str) -> int | None:
        """Return a new descriptor of a file with exactly the bytes of the view, or None.

        The caller closes the descriptor.
        """
        with self._guard:
            found = self._files.get(key)
            if found is None:
                return None
            self._files.move_to_end(key)
            return os.dup(found.fd)

    def request(self, rendered: RenderedView) -> None:
        """Schedule a file for a view that was read completely, unless it is too large.

        Raw pictures and stills get none: no cache file holds them, so they would have to be decoded
        again.
        """
        key, size = rendered.key, rendered.slots.size
        if not isinstance(rendered, PlannedView) or rendered.method == "decoded":
            return
        if size > self._budget:
            return
        with self._guard:
            if self._closed or key in self._files or key in self._coming:
                return
            self._coming.add(key)
            self._thread.submit(self._make, rendered)

    def close(self) -> None:
        with self._guard:
            self._closed = True
        self._thread.shutdown(cancel_futures=True)
        with self._guard:
            for whole in self._files.values():
                os.close(whole.fd)
            self._files.clear()

    def digests(self) -> set[str]:
        """Return the digests of the videos that the files show."""
        with self._guard:
            return {whole.digest for whole in self._files.values()}

    def forget(self, digests: Collection[str]) -> None:
        """Drop the files of videos that were removed.  Duplicated descriptors stay valid."""
        with self._guard:
            gone = [key for key, whole in self._files.items() if whole.digest in digests]
            files = [self._files.pop(key) for key in gone]
        for whole in files:
            os.close(whole.fd)

    def _make(self, rendered: RenderedView) -> None:
        try:
            fd = os.open(self._directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                self._fill(fd, rendered)
            except BaseException:
                os.close(fd)
                raise
            self._keep(rendered.key, _MaterialisedFile(fd, rendered.slots.size, rendered.digest))
        except (OSError, VfsdError) as error:
            _log.debug("a view was not kept as a whole file: %s", error)
        finally:
            with self._guard:
                self._coming.discard(rendered.key)

    def _fill(self, fd: int, rendered: RenderedView) -> None:
        slots = rendered.slots
        with open(fd, "wb", buffering=_COPY_BYTES, closefd=False) as file:
            for number in range(len(slots)):
                if self._closed:
                    raise OSError(errno.EINTR, "the cache of whole views is closed")
                data = self._slot(rendered, number)
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
