"""One view by itself: written to a file, or read as one, with no mount."""

from __future__ import annotations

import io
import os
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, BinaryIO

from vfsd.core import view_path
from vfsd.core.model import LogicalVideo
from vfsd.disk.object_store import Progress
from vfsd.read.context import Tools
from vfsd.storage.context import Parts
from vfsd.views.explain import ViewExplanation, explained_view
from vfsd.views.explain_files import explained_path
from vfsd.views.rendered_view import Rendition, SoundOfView, StillRendition, rendition_of, sound_of
from vfsd.views.renderfacts import RenderFacts
from vfsd.views.rendering import Renderer, RenditionFile, write_out
from vfsd.views.resolve import Renditions
from vfsd.views.source import footage_of
from vfsd.views.streams import OtherStreams, split_stream

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def render(
    parts: Parts,
    tools: Tools,
    info: LogicalVideo,
    request: view_path.Request,
    out: BinaryIO,
    on_progress: Progress | None = None,
) -> int:
    """Write a view to a file: what a mount serves, without padding where `out` is seekable.

    Returns the number of bytes.  `on_progress` is called with the bytes of the mount's file that
    are done since the last call.  Raises `OutOfRangeError`, `UsageError`, `IntegrityError`.
    """
    renderer = Renderer(parts, tools)
    try:
        rendition = rendition_of(footage_of(parts, tools, info), request, tools.packs)
        return write_out(renderer, rendition, out, on_progress)
    finally:
        renderer.close()


def sound_of_view(
    parts: Parts, tools: Tools, info: LogicalVideo, request: view_path.Request
) -> SoundOfView:
    """What becomes of the sound of a video in a view.  Raises as `render`."""
    return sound_of(footage_of(parts, tools, info), request)


def explain_view(
    parts: Parts, tools: Tools, info: LogicalVideo, request: view_path.Request
) -> ViewExplanation:
    """What it takes to make a view.  Raises as `render`."""
    facts = RenderFacts.of_store(parts)
    return explained_view(footage_of(parts, tools, info), request, tools.packs, facts)


def explain_path(parts: Parts, tools: Tools, info: LogicalVideo, path: str) -> ViewExplanation:
    """The same of what a mount serves at a path below ``NAME@/``: a view, or a frame."""
    facts = RenderFacts.of_store(parts)
    stream, rest = split_stream(path)
    if stream in (None, info.original.media.stream_index):
        return explained_path(footage_of(parts, tools, info), tools.packs, rest, facts)
    _, footage = OtherStreams(parts).footage(info, stream)
    return explained_path(footage, tools.packs, rest, facts)


def open_view(parts: Parts, tools: Tools, info: LogicalVideo, path: str) -> ViewReader:
    """The file that a mount serves at a path below ``NAME@/``.

    Raises `NotFoundError` for a name that says nothing, `OutOfRangeError`, `UsageError`.
    """
    with ExitStack() as stack:
        renderer = stack.enter_context(closing(Renderer(parts, tools)))

        def finished(rendition: Rendition, _ino: int, _path: str) -> Rendition:
            if isinstance(rendition, StillRendition) and rendition.is_measured:
                return renderer.measured(rendition)
            return rendition

        stack.enter_context(parts.held(info.original))
        with closing(Renditions(parts, tools, finished)) as renditions:
            rendition = renditions.at(*renditions.within(renditions.described(info), path))
        return ViewReader(f"{info.name}@/{path}", renderer, rendition, stack)


class ViewReader(io.RawIOBase):
    """A view as a file object, readable and seekable."""

    def __init__(
        self, name: str, renderer: Renderer, rendition: Rendition, until_closed: ExitStack
    ) -> None:
        """What `until_closed` has entered is this object's own, once it is made."""
        super().__init__()
        self.name = name
        self._file = RenditionFile(renderer, rendition)
        self._at = 0
        self._until_closed = until_closed.pop_all()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._require_open()
        count = self._file.readinto(memoryview(buffer).cast("B"), self._at)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._require_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}.get(whence)
        if base is None or base + offset < 0:
            raise ValueError(f"cannot seek to {offset} from {whence}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        self._require_open()
        return self._at

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._until_closed:
                self._file.close()

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError(f"{self.name} is closed")
