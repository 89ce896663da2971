"""Making slots for another process, which says where they lie; see `vfsd.views.elsewhere`."""

from __future__ import annotations

import threading
from collections import OrderedDict

from vfsd.parts import Parts
from vfsd.tools import Tools
from vfsd.views.candidates import Candidates
from vfsd.views.elsewhere import SlotOrder
from vfsd.views.rendercache import Bytes
from vfsd.views.renderqueue import Check
from vfsd.views.rendition import Rendition
from vfsd.views.renditions import Renditions
from vfsd.views.workshop import Workshop

_BYTES = 32 << 20
"""Memory for renditions that slots were made of lately; the newest is kept in any case."""


class SlotMaker:
    """Makes slots of the views of a store, and keeps none.  Thread-safe."""

    def __init__(self, parts: Parts, tools: Tools) -> None:
        candidates = None
        if not parts.read_only and parts.settings.admit_views:
            candidates = Candidates.of_store(parts)
        memory = parts.settings.decoder_memory // 2
        self._workshop = Workshop(tools, memory, parts.suspects, candidates)
        self._renditions = Renditions(parts, tools, lambda rendition, _ino, _path: rendition)
        self._guard = threading.Lock()
        self._made_of: OrderedDict[str, Rendition] = OrderedDict()  # by key

    def make(self, order: SlotOrder, check: Check) -> Bytes | None:
        """A slot; None where something else lies there than what was asked for.

        Raises as `Rendition.make` does, and what `check` does.
        """
        rendition = self._rendition(order)
        if rendition is None or not order.slot < len(rendition.slots):
            return None
        return rendition.make(order.slot, self._workshop.checked(check))

    def close(self) -> None:
        self._workshop.close()
        self._renditions.close()

    def _rendition(self, order: SlotOrder) -> Rendition | None:
        """Who has a file open goes on reading it when something else has its name by now."""
        with self._guard:
            found = self._made_of.get(order.key)
            if found is not None:
                self._made_of.move_to_end(order.key)
                return found
        made = self._renditions.at(self._renditions.known(order.ino), order.path)
        if made.key != order.key:
            return None
        with self._guard:
            held = made.memory + sum(other.memory for other in self._made_of.values())
            while held > _BYTES and self._made_of:
                held -= self._made_of.popitem(last=False)[1].memory
            self._made_of[order.key] = made
        return made
