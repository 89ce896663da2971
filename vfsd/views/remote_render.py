"""Renders slots in another process, into shared memory.

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
from vfsd.views.decode_cursors import ByteBuffer, Checkpoint
from vfsd.views.render_context import RenderContext
from vfsd.views.rendered_view import InPlaceView, RenderedView
from vfsd.views.view_resolver import RecentViews, ViewResolver


class SlotRequest(NamedTuple):
    """A slot to render, in terms that a process without the view can resolve."""

    ino: int  #: of the video
    path: str  #: below ``NAME@/``
    key: str  #: of the view expected at that path
    slot: int
    room: int  #: bytes of the slot in its file; 0 for any number


class RemoteRenderer(Protocol):
    """Renders slots elsewhere.  Thread-safe."""

    def make(self, order: SlotRequest, check: Checkpoint) -> Bytes | None:
        """Return the bytes of a slot without its zero padding.

        None means that the path now has another view, or that no render process is left.  Raises as
        `RenderedView.make` does, and what `check` raises, which is called now and then.
        """


class RemoteViews:
    """Views whose slots a `RemoteRenderer` renders.  Thread-safe."""

    def __init__(self, remote: RemoteRenderer) -> None:
        self._remote = remote
        self._places: WeakKeyDictionary[RenderedView, tuple[int, str]] = WeakKeyDictionary()

    def add(self, rendered: RenderedView, ino: int, path: str) -> None:
        """Register the inode of the video and the path of a view."""
        self._places[rendered] = (ino, path)

    def make(self, rendered: RenderedView, slot: int, check: Checkpoint) -> Bytes | None:
        """Return a slot of a view; None if it has to be rendered in this process."""
        place = self._places.get(rendered)
        # The first slot is a header, which is cheaper to compute than to request.
        if place is None or not slot:
            return None
        room = rendered.slots[slot].size
        return self._remote.make(SlotRequest(*place, rendered.key, slot, room), check)


AllocateBuffer = Callable[[int], ByteBuffer]
"""Returns memory for a number of bytes; called at most once."""


class SlotRenderer:
    """Renders slots of the views of a store without caching them.  Thread-safe."""

    def __init__(self, parts: StoreContext, tools: ReadContext) -> None:
        candidates = None
        if not parts.read_only and parts.settings.admit_views:
            candidates = CandidateIndex.of_store(parts)
        memory = parts.settings.decoder_memory // 2
        self._context = RenderContext(tools, memory, parts.quarantine, candidates)
        self._parts = parts
        self._resolver = ViewResolver(parts, tools, lambda rendered, _ino, _path: rendered)
        self._made_of = RecentViews[str]()  # by key

    def make(self, order: SlotRequest, check: Checkpoint, place: AllocateBuffer) -> int | None:
        """Render a slot into memory from `place` and return its number of bytes.

        None means that the path has another view than requested.  Raises as `RenderedView.make`
        does, and what `check` and `place` raise.
        """
        rendered = self._view_at(order)
        if rendered is None or not order.slot < len(rendered.slots):
            return None
        context = self._context.checked(check)
        if isinstance(rendered, InPlaceView):
            size = rendered.slots[order.slot].size
            if size:
                rendered.fill(order.slot, context, place(size))
            return size
        made = np.frombuffer(rendered.make(order.slot, context), np.uint8)
        if len(made):
            place(len(made))[:] = made
        return len(made)

    def evict_idle(self, seconds: float) -> None:
        """See `RenderContext.evict_idle`."""
        self._context.evict_idle(seconds)
        store_encode_times(self._parts, self._context.times)

    def close(self) -> None:
        self._context.close()
        self._resolver.close()

    def _view_at(self, order: SlotRequest) -> RenderedView | None:
        """Return the requested view; an open file keeps its view even if the path has another one
        by now.
        """
        found = self._made_of.get(order.key)
        if found is None:
            try:
                found = self._resolver.resolve(*self._resolver.locate(order.ino, order.path))
            except NotFoundError:
                return None  # the video was removed or replaced
            if found.key != order.key:
                return None
            self._made_of.put(order.key, found)
        return found
