"""One view without a mount: written to a file (`render`), or opened as a seekable file object
(`ViewReader`).
"""

from __future__ import annotations

import io
import os
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from vfsd.core import view_path
from vfsd.core.model import LogicalVideo
from vfsd.disk.object_store import Progress
from vfsd.read.read_context import ReadContext
from vfsd.read.read_log import ReadTiming
from vfsd.storage.context import StoreContext
from vfsd.views.cached_views import RenderHistory
from vfsd.views.rendered_view import (
    PaddedView,
    RenderedView,
    StillView,
    StreamableView,
    ViewAudioSummary,
    audio_summary,
    plan_view,
)
from vfsd.views.rendering import RenderedFile, Renderer
from vfsd.views.view_explanation import ViewExplanation, explain_request, explain_view_path
from vfsd.views.view_input import OtherStreams, split_stream, view_input_of
from vfsd.views.view_resolver import ViewResolver
from vfsd.views.view_slots import SlotReadLog

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK = 1 << 20


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
    _, source = OtherStreams(parts).input_of(info, stream)
    return explain_view_path(source, tools.packs, rest, facts)


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


def write_view(
    renderer: Renderer, rendered: RenderedView, out: BinaryIO, on_progress: Progress | None = None
) -> int:
    """Write the whole file of a view and return the number of bytes.

    A seekable `out` gets the file without padding.  `on_progress` is called with the number of
    bytes of the padded file that were written since the last call.
    """
    if isinstance(rendered, PaddedView) and out.seekable():
        return _write_trimmed(renderer, rendered, out, on_progress)
    if isinstance(rendered, StreamableView):
        return _write_streamed(renderer, rendered, out, on_progress)
    file = RenderedFile(renderer, rendered)
    buffer = memoryview(bytearray(_CHUNK))
    at = 0
    try:
        file.read_sequentially(0)
        while count := file.readinto(buffer, at):
            out.write(buffer[:count])
            at += count
            if on_progress is not None:
                on_progress(count)
    finally:
        file.close()
    return at


def _write_streamed(
    renderer: Renderer,
    rendered: StreamableView,
    out: BinaryIO,
    on_progress: Progress | None,
) -> int:
    """Write without a cache, because there is no other reader."""
    opened_ns, resumed, seconds = time.time_ns(), time.perf_counter(), 0.0
    read = SlotReadLog()
    size = 0
    try:
        with closing(rendered.stream(renderer.context)) as stream:
            for slot, data in enumerate(stream):
                seconds += time.perf_counter() - resumed
                out.write(data)
                read.add(slot)
                size += len(data)
                if on_progress is not None:
                    on_progress(len(data))
                resumed = time.perf_counter()
    finally:
        renderer.note(rendered, read, ReadTiming(opened_ns, seconds))
    return size


def _write_trimmed(
    renderer: Renderer, rendered: PaddedView, out: BinaryIO, on_progress: Progress | None
) -> int:
    """Write the header last, because it lists the positions of the segments."""
    file = RenderedFile(renderer, rendered)
    slots = rendered.slots
    start = out.tell()
    sizes = np.zeros(len(slots) - 1, np.int64)
    out.write(bytes(slots[0].size))
    try:
        file.read_sequentially(1)
        for slot in range(1, len(slots)):
            data = rendered.trimmed(slot, bytes(file.slot(slot)))
            out.write(data)
            sizes[slot - 1] = len(data)
            if on_progress is not None:
                on_progress(slots[slot].size)
    finally:
        file.close()
    out.seek(start)
    out.write(rendered.header_for(sizes))
    return int(out.seek(0, os.SEEK_END)) - start
