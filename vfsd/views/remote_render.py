"""Slots that another process makes, which knows the same of the videos as this one."""

from __future__ import annotations

from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

from vfsd.storage.file_cache import Bytes
from vfsd.views.render_queue import Check
from vfsd.views.rendered_view import Rendition


class SlotOrder(NamedTuple):
    """One slot, as a process is asked for it that has no rendition yet."""

    ino: int  #: of the video
    path: str  #: below ``NAME@/``
    key: str  #: of the rendition that has to lie there
    slot: int
    room: int  #: bytes that the slot has in its file; 0: as many as come


class Elsewhere(Protocol):
    """Where slots are made.  Thread-safe."""

    def make(self, order: SlotOrder, check: Check) -> Bytes | None:
        """The bytes of a slot, without the zeros that fill it up.

        None: something else lies there by now, or nobody is left who could make it.  Raises as
        `Rendition.make` does, and what `check` raises, which is called now and then.
        """


class MadeElsewhere:
    """Renditions whose slots come from `Elsewhere`.  Thread-safe."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere
        self._places: WeakKeyDictionary[Rendition, tuple[int, str]] = WeakKeyDictionary()

    def add(self, rendition: Rendition, ino: int, path: str) -> None:
        """It lies at that path of the folder of the video with that inode."""
        self._places[rendition] = (ino, path)

    def make(self, rendition: Rendition, slot: int, check: Check) -> Bytes | None:
        """A slot of a rendition; None where it has to be made here."""
        place = self._places.get(rendition)
        # The first slot is a header: arithmetic, and done sooner than said.
        if place is None or not slot:
            return None
        room = rendition.slots[slot].size
        return self._elsewhere.make(SlotOrder(*place, rendition.key, slot, room), check)
