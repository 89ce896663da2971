"""One view without a mount: written to a file (`render`), or opened as a seekable file object
(`ViewReader`).
"""

from __future__ import annotations

import io
import os
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, BinaryIO

from vfsd.core import view_path
from vfsd.core.model import LogicalVideo
from vfsd.disk.object_store import Progress
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext
from vfsd.views.cached_views import RenderHistory
from vfsd.views.rendered_view import (
    RenderedView,
    StillView,
    ViewAudioSummary,
    audio_summary,
    plan_view,
)
from vfsd.views.rendering import RenderedFile, Renderer, write_view
from vfsd.views.view_explanation import ViewExplanation, explain_request, explain_view_path
from vfsd.views.view_input import OtherStreams, split_stream, view_input_of
from vfsd.views.view_resolver import ViewResolver

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def render(
    parts: StoreContext,
    tools: ReadContext,
    info: LogicalVideo,
    request: view_path.ViewSpec,
    out: BinaryIO,
    on_progress: Progress | None = None,
) -> int:
    """Write the file that a mount would serve; without padding if `out` is seekable.

    Returns the number of bytes.  `on_progress` is called with the bytes of the mount's file that
    were written since the last call.  Raises `OutOfRangeError`, `UsageError`, `IntegrityError`.
    """
    renderer = Renderer(parts, tools)
    try:
        rendered = plan_view(view_input_of(parts, tools, info), request, tools.packs)
        return write_view(renderer, rendered, out, on_progress)
    finally:
        renderer.close()


def summarize_view_audio(
    parts: StoreContext, tools: ReadContext, info: LogicalVideo, request: view_path.ViewSpec
) -> ViewAudioSummary:
    """Return how a view carries the sound of its video.  Raises as `render` does."""
    return audio_summary(view_input_of(parts, tools, info), request)


def explain_view(
    parts: StoreContext, tools: ReadContext, info: LogicalVideo, request: view_path.ViewSpec
) -> ViewExplanation:
    """Return the cost of a view.  Raises as `render` does."""
    facts = RenderHistory.of_store(parts)
    return explain_request(view_input_of(parts, tools, info), request, tools.packs, facts)


def explain_path(
    parts: StoreContext, tools: ReadContext, info: LogicalVideo, path: str
) -> ViewExplanation:
    """Return the cost of a view or still at a path below ``NAME@/`` of a mount."""
    facts = RenderHistory.of_store(parts)
    stream, rest = split_stream(path)
    if stream in (None, info.original.media.stream_index):
        return explain_view_path(view_input_of(parts, tools, info), tools.packs, rest, facts)
    _, footage = OtherStreams(parts).footage(info, stream)
    return explain_view_path(footage, tools.packs, rest, facts)


def open_view(parts: StoreContext, tools: ReadContext, info: LogicalVideo, path: str) -> ViewReader:
    """Open the file that a mount serves at a path below ``NAME@/``.

    Raises `NotFoundError` for an unknown name, `OutOfRangeError`, `UsageError`.
    """
    with ExitStack() as stack:
        renderer = stack.enter_context(closing(Renderer(parts, tools)))

        def finished(rendered: RenderedView, _ino: int, _path: str) -> RenderedView:
            if isinstance(rendered, StillView) and rendered.is_measured:
                return renderer.measured(rendered)
            return rendered

        stack.enter_context(parts.held(info.original))
        with closing(ViewResolver(parts, tools, finished)) as resolver:
            rendered = resolver.resolve(*resolver.locate_in(resolver.from_record(info), path))
        return ViewReader(f"{info.name}@/{path}", renderer, rendered, stack)


class ViewReader(io.RawIOBase):
    """A view as a file object, readable and seekable."""

    def __init__(
        self, name: str, renderer: Renderer, rendered: RenderedView, until_closed: ExitStack
    ) -> None:
        """Take over the cleanup that `until_closed` has collected."""
        super().__init__()
        self.name = name
        self._file = RenderedFile(renderer, rendered)
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
