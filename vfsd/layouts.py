"""The tiles that reads may use, known without asking the catalog each time."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence

from vfsd.catalog import Catalog, ChangeWatch
from vfsd.model import LogicalVideo, Segment

_VIDEOS = 64


class ActiveSegments:
    """Active segments of the videos that were read lately.  Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._watch = catalog.watch()
        self._known: OrderedDict[int, Sequence[Segment]] = OrderedDict()  # by original
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._parents: list[ChangeWatch] = []

    def of(self, video: LogicalVideo) -> Sequence[Segment]:
        """As they are now, whoever has changed them; by their first frame."""
        key = video.original.id
        with self._guard:
            self._forget_parent()
            if self._watch.changed():
                self._known.clear()
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
        found = self._catalog.segments(video)
        with self._guard:
            self._known[key] = found
            while len(self._known) > _VIDEOS:
                self._known.popitem(last=False)
        return found

    def close(self) -> None:
        self._watch.close()

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            # A connection must not be used on both sides of a fork, nor closed on the other.
            self._pid = os.getpid()
            self._parents.append(self._watch)
            self._watch = self._catalog.watch()
