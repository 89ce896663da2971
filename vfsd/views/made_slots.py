"""Which renditions have been made from end to end, so that a reader causes no work any more."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from vfsd.views.rendered_view import Rendition


class MadeSlots:
    """How many of the slots of each rendition that are worth a file are in the cache.  Thread-safe.

    It is a memory, as looking takes a system call for each slot: one that has gone since is noticed
    when it is wanted.
    """

    def __init__(self, is_there: Callable[[Rendition, int], bool]) -> None:
        """`is_there` tells whether a slot is in the cache."""
        self._is_there = is_there
        self._found: WeakKeyDictionary[Rendition, int] = WeakKeyDictionary()  # the first so many

    def are_all_of(self, rendition: Rendition) -> bool:
        """Whether each was there when it was looked for; False where none is worth a file."""
        return 0 < len(rendition.storable) == self._found.get(rendition)

    def look(self, rendition: Rendition) -> None:
        """Go on from where the first one was missing."""
        found = self._found.get(rendition, 0)
        if found == len(rendition.storable):
            return
        for slot in sorted(rendition.storable)[found:]:
            if not self._is_there(rendition, slot):
                break
            found += 1
        self._found[rendition] = found

    def forget(self, rendition: Rendition) -> None:
        """A slot has to be made."""
        self._found.pop(rendition, None)
