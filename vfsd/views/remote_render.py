"""Slots that another process renders into shared memory.

`RemoteViews` sends a `SlotRequest`; `SlotRenderer` answers it in the render process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from vfsd.derive.promotion_candidates import CandidateIndex
from vfsd.errors import NotFoundError
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext
from vfsd.storage.file_cache import Bytes
from vfsd.views.cached_views import store_encode_times
from vfsd.views.render_cache import ByteBuffer, Checkpoint
from vfsd.views.render_context import RenderContext
from vfsd.views.rendered_view import InPlaceView, RenderedView
from vfsd.views.view_resolver import RecentViews, ViewResolver


class SlotRequest(NamedTuple):
    """One slot, as a process is asked for it that has no rendition yet."""

    ino: int  #: of the video
    path: str  #: below ``NAME@/``
    key: str  #: of the rendition that has to lie there
    slot: int
    room: int  #: bytes that the slot has in its file; 0: as many as come


class RemoteRenderer(Protocol):
    """Where slots are made.  Thread-safe."""

    def make(self, order: SlotRequest, check: Checkpoint) -> Bytes | None:
        """The bytes of a slot, without the zeros that fill it up.

        None: something else lies there by now, or nobody is left who could make it.  Raises as
        `RenderedView.make` does, and what `check` raises, which is called now and then.
        """


class RemoteViews:
    """Renditions whose slots come from `RemoteRenderer`.  Thread-safe."""

    def __init__(self, elsewhere: RemoteRenderer) -> None:
        self._elsewhere = elsewhere
        self._places: WeakKeyDictionary[RenderedView, tuple[int, str]] = WeakKeyDictionary()

    def add(self, rendition: RenderedView, ino: int, path: str) -> None:
        """It lies at that path of the folder of the video with that inode."""
        self._places[rendition] = (ino, path)

    def make(self, rendition: RenderedView, slot: int, check: Checkpoint) -> Bytes | None:
        """A slot of a rendition; None where it has to be made here."""
        place = self._places.get(rendition)
        # The first slot is a header: arithmetic, and done sooner than said.
        if place is None or not slot:
            return None
        room = rendition.slots[slot].size
        return self._elsewhere.make(SlotRequest(*place, rendition.key, slot, room), check)


AllocateBuffer = Callable[[int], ByteBuffer]
"""Memory for so many bytes; called once at most."""


class SlotRenderer:
    """Makes slots of the views of a store, and keeps none.  Thread-safe."""

    def __init__(self, parts: StoreContext, tools: ReadContext) -> None:
        candidates = None
        if not parts.read_only and parts.settings.admit_views:
            candidates = CandidateIndex.of_store(parts)
        memory = parts.settings.decoder_memory // 2
        self._workshop = RenderContext(tools, memory, parts.suspects, candidates)
        self._parts = parts
        self._renditions = ViewResolver(parts, tools, lambda rendition, _ino, _path: rendition)
        self._made_of = RecentViews[str]()  # by key

    def make(self, order: SlotRequest, check: Checkpoint, place: AllocateBuffer) -> int | None:
        """Make a slot, where `place` gives memory for it; how many bytes that were.

        None where something else lies there than what was asked for.  Raises as `RenderedView.make`
        does, and what `check` and `place` do.
        """
        rendition = self._rendition(order)
        if rendition is None or not order.slot < len(rendition.slots):
            return None
        workshop = self._workshop.checked(check)
        if isinstance(rendition, InPlaceView):
            size = rendition.slots[order.slot].size
            if size:
                rendition.fill(order.slot, workshop, place(size))
            return size
        made = np.frombuffer(rendition.make(order.slot, workshop), np.uint8)
        if len(made):
            place(len(made))[:] = made
        return len(made)

    def cool(self, seconds: float) -> None:
        """See `RenderContext.cool`."""
        self._workshop.cool(seconds)
        store_encode_times(self._parts, self._workshop.times)

    def close(self) -> None:
        self._workshop.close()
        self._renditions.close()

    def _rendition(self, order: SlotRequest) -> RenderedView | None:
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
