"""What has to be done after the answer was given: deleting bytes, and little things in a while."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection

from vfsd.budget.reclaim import reclaim
from vfsd.fs.attributes import is_private
from vfsd.fs.names import Gone
from vfsd.parts import Parts

_log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.2


class Janitor:
    """One thread that does things later; mostly it deletes bytes, a batch at a time."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._wake = threading.Condition()
        self._cleaning = threading.Lock()
        self._inodes: list[int] = []
        self._keys: list[str] = []
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="vfsd-janitor", daemon=True)
        self._thread.start()

    def discard_inode(self, ino: int) -> None:
        """The inode's row is gone; so may its private file be."""
        with self._wake:
            self._expect_cleaning()
            self._inodes.append(ino)

    def discard_objects(self, keys: Collection[str]) -> None:
        """These objects have lost a reference; those for which that was the last one may go."""
        if not keys:
            return
        with self._wake:
            self._expect_cleaning()
            self._keys.extend(keys)

    def discard_bytes(self, gone: Gone) -> None:
        """The row of a file is gone; so may its bytes be, unless they are a linked file."""
        self.discard_objects(gone.keys)
        if is_private(gone.node):
            self.discard_inode(gone.node.ino)

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` then, or when closing, whichever comes first."""
        with self._wake:
            heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), action))
            self._wake.notify()

    def again(self, seconds: float, action: Callable[[], object]) -> None:
        """The same, for what has been tried: when closing nobody waits for it any longer."""
        with self._wake:
            if not self._closed:
                self.later(seconds, action)

    def clean_now(self) -> bool:
        """Delete what there is to delete; whether there was anything."""
        with self._cleaning:
            with self._wake:
                inodes, self._inodes = self._inodes, []
                keys, self._keys = self._keys, []
            if not inodes and not keys:
                return False
            reclaim(self._parts, keys=keys, inodes=inodes)
            return True

    def close(self) -> None:
        """Do what is left to do, and end."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _expect_cleaning(self) -> None:
        """The first of a batch decides when all of it is cleaned up."""
        if not self._inodes and not self._keys:
            self.later(_GATHER_SECONDS, self.clean_now)

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception:
                _log.exception("cleaning up failed; the next mount, or `vfsd gc`, does it")

    def _next(self) -> Callable[[], object] | None:
        """Wait for what is to be done; None when all is done and there will be no more."""
        with self._wake:
            while True:
                now = time.monotonic()
                if self._later and (self._closed or self._later[0][0] <= now):
                    return heapq.heappop(self._later)[2]
                if self._closed:
                    return None
                self._wake.wait(self._later[0][0] - now if self._later else None)
