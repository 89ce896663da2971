"""Views that somebody has open: all who look at one meanwhile are told the same size."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from vfsd.core.model import LogicalVideo
from vfsd.storage.context import Parts
from vfsd.views.rendered_view import Rendition, StillRendition
from vfsd.views.rendering import Renderer, RenditionFile


class OpenViews:
    """Thread-safe.

    How long a view is may depend on what it is made from, and tiles come and go: a JPEG is as long
    as its bytes, and one that is stitched no longer than what is in it.  But the kernel knows one
    size of a name, and reads no further, whoever reads what.  So as long as somebody has a view
    open, none of another size is found by its name, unless the video itself is another by then.
    Who has one open reads on after the video was removed, as from any other file.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._guard = threading.Lock()
        self._open: dict[tuple[int, str, str], tuple[Rendition, int]] = {}

    def found(self, video: LogicalVideo, path: str, make: Callable[[], Rendition]) -> Rendition:
        """What `make` gives, or what somebody has open there."""
        held, _ = self._open.get(_key(video, path), (None, 0))
        if isinstance(held, StillRendition) and held.is_measured:
            return held  # the other would have to be made for its size to be known
        now = make()
        return now if held is None or held.slots.size == now.slots.size else held

    def open(
        self, video: LogicalVideo, path: str, rendition: Rendition, renderer: Renderer
    ) -> RenditionFile:
        """That, or if somebody has opened one of another size since it was found, what that is."""
        key = _key(video, path)
        with self._guard:
            held, count = self._open.get(key, (rendition, 0))
            if held.slots.size != rendition.slots.size:
                rendition = held
            self._open[key] = (held, count + 1)
        with ExitStack() as stack:
            stack.callback(self._close, key)
            stack.enter_context(self._parts.held(video.original))
            return _OpenView(renderer, rendition, stack)

    def _close(self, key: tuple[int, str, str]) -> None:
        with self._guard:
            held, count = self._open.pop(key)
            if count > 1:
                self._open[key] = (held, count - 1)


class _OpenView(RenditionFile):
    def __init__(self, renderer: Renderer, rendition: Rendition, until_closed: ExitStack) -> None:
        """What `until_closed` has entered is this object's own, once it is made."""
        super().__init__(renderer, rendition)
        self._until_closed = until_closed.pop_all()

    def close(self) -> None:
        with self._until_closed:
            super().close()


def _key(video: LogicalVideo, path: str) -> tuple[int, str, str]:
    return (video.ino, path, video.digest)
