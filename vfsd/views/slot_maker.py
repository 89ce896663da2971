"""Making slots for another process, which says where they lie; see `vfsd.views.remote_render`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from vfsd.derive.promotion_candidates import Candidates
from vfsd.errors import NotFoundError
from vfsd.read.context import Tools
from vfsd.storage.context import Parts
from vfsd.views.context import Workshop
from vfsd.views.remote_render import SlotOrder
from vfsd.views.render_cache import Place
from vfsd.views.render_queue import Check
from vfsd.views.rendered_view import PlacedRendition, Rendition
from vfsd.views.renderfacts import keep_times
from vfsd.views.resolve import RecentRenditions, Renditions

GivePlace = Callable[[int], Place]
"""Memory for so many bytes; called once at most."""


class SlotMaker:
    """Makes slots of the views of a store, and keeps none.  Thread-safe."""

    def __init__(self, parts: Parts, tools: Tools) -> None:
        candidates = None
        if not parts.read_only and parts.settings.admit_views:
            candidates = Candidates.of_store(parts)
        memory = parts.settings.decoder_memory // 2
        self._workshop = Workshop(tools, memory, parts.suspects, candidates)
        self._parts = parts
        self._renditions = Renditions(parts, tools, lambda rendition, _ino, _path: rendition)
        self._made_of = RecentRenditions[str]()  # by key

    def make(self, order: SlotOrder, check: Check, place: GivePlace) -> int | None:
        """Make a slot, where `place` gives memory for it; how many bytes that were.

        None where something else lies there than what was asked for.  Raises as `Rendition.make`
        does, and what `check` and `place` do.
        """
        rendition = self._rendition(order)
        if rendition is None or not order.slot < len(rendition.slots):
            return None
        workshop = self._workshop.checked(check)
        if isinstance(rendition, PlacedRendition):
            size = rendition.slots[order.slot].size
            if size:
                rendition.fill(order.slot, workshop, place(size))
            return size
        made = np.frombuffer(rendition.make(order.slot, workshop), np.uint8)
        if len(made):
            place(len(made))[:] = made
        return len(made)

    def cool(self, seconds: float) -> None:
        """See `Workshop.cool`."""
        self._workshop.cool(seconds)
        keep_times(self._parts, self._workshop.times)

    def close(self) -> None:
        self._workshop.close()
        self._renditions.close()

    def _rendition(self, order: SlotOrder) -> Rendition | None:
        """Who has a file open goes on reading it when something else has its name by now."""
        found = self._made_of.get(order.key)
        if found is None:
            try:
                found = self._renditions.at(*self._renditions.located(order.ino, order.path))
            except NotFoundError:
                return None  # the video has gone, or been replaced
            if found.key != order.key:
                return None
            self._made_of.put(order.key, found)
        return found
