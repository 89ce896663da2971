"""JPEGs that somebody has open: all who look at one at a time see the same bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from vfsd.model import LogicalVideo
from vfsd.views.rendering import Renderer, RenditionFile
from vfsd.views.rendition import StillRendition


class OpenStills:
    """Thread-safe.

    How long a JPEG is depends on what it is made from, and tiles come and go.  But the kernel
    knows one size of a name, and reads no further, whoever reads what: as long as somebody has one
    open, it is what is found by its name, unless the video itself is another by then.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: dict[tuple[int, str, str], tuple[StillRendition, int]] = {}

    def get(self, video: LogicalVideo, path: str) -> StillRendition | None:
        """What somebody has open there."""
        still, _ = self._open.get(_key(video, path), (None, 0))
        return still

    def open(
        self, video: LogicalVideo, path: str, still: StillRendition, renderer: Renderer
    ) -> RenditionFile:
        """That picture, or the one that somebody has opened there first."""
        key = _key(video, path)
        with self._guard:
            still, count = self._open.get(key, (still, 0))
            self._open[key] = (still, count + 1)
        return _StillFile(renderer, still, lambda: self._close(key))

    def _close(self, key: tuple[int, str, str]) -> None:
        with self._guard:
            still, count = self._open.pop(key)
            if count > 1:
                self._open[key] = (still, count - 1)


class _StillFile(RenditionFile):
    def __init__(
        self, renderer: Renderer, still: StillRendition, on_close: Callable[[], None]
    ) -> None:
        super().__init__(renderer, still)
        self._on_close = on_close

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._on_close()


def _key(video: LogicalVideo, path: str) -> tuple[int, str, str]:
    return (video.ino, path, video.digest)
