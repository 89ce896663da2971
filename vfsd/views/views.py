"""`Views`: the tree below `NAME@/` for the mount (stat, list, open, write).

`OpenViews` lets all readers of a path share one open view, so that they see the same size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from vfsd.core.model import LogicalVideo
from vfsd.core.view_request import ViewFile, ViewStat
from vfsd.errors import NotFoundError, ReadOnlyError
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext
from vfsd.views.layout_image import LAYOUT_DIR, LAYOUT_FILE, layout_names
from vfsd.views.object_crops import OBJECTS_DIR
from vfsd.views.remote_render import RemoteRenderer, RemoteViews
from vfsd.views.rendered_view import RenderedView, StillView, TextView
from vfsd.views.rendering import RenderedFile, Renderer
from vfsd.views.view_explanation import EXPLAIN_DIR, EXPLAIN_DIRS
from vfsd.views.view_input import other_streams, split_stream, stream_dir
from vfsd.views.view_resolver import (
    FRAMES_DIR,
    INFO_FILE,
    README_FILE,
    WHY_DIR,
    KnownVideo,
    ViewResolver,
    is_below,
    path_in_question,
)
from vfsd.views.view_uploads import OpenFrameSink, ViewUpload, upload_request


class OpenViews:
    """The views that are open, by path.  Thread-safe.

    The size of a view may depend on the tiles that it is made from, and tiles may change.  The
    kernel caches one size for each path, and all readers read up to it.  As long as a view is open,
    its path therefore leads to a view of the same size, unless the video itself was replaced.  An
    open view stays readable after the video was removed, like any other file.
    """

    def __init__(self, parts: StoreContext) -> None:
        self._parts = parts
        self._guard = threading.Lock()
        self._open: dict[tuple[int, str, str], tuple[RenderedView, int]] = {}

    def found(
        self, video: LogicalVideo, path: str, make: Callable[[], RenderedView]
    ) -> RenderedView:
        """Return the open view of that path, or what `make` returns if none is open or the sizes
        agree.
        """
        held, _ = self._open.get(_open_view_key(video, path), (None, 0))
        if isinstance(held, StillView) and held.is_measured:
            return held  # the size of a new one is unknown until it is encoded
        now = make()
        return now if held is None or held.slots.size == now.slots.size else held

    def open(
        self, video: LogicalVideo, path: str, rendered: RenderedView, renderer: Renderer
    ) -> RenderedFile:
        """Open `rendered`, or the view of another size that was opened since it was looked up."""
        key = _open_view_key(video, path)
        with self._guard:
            held, count = self._open.get(key, (rendered, 0))
            if held.slots.size != rendered.slots.size:
                rendered = held
            self._open[key] = (held, count + 1)
        with ExitStack() as stack:
            stack.callback(self._close, key)
            stack.enter_context(self._parts.held(video.original))
            return _OpenView(renderer, rendered, stack)

    def _close(self, key: tuple[int, str, str]) -> None:
        with self._guard:
            held, count = self._open.pop(key)
            if count > 1:
                self._open[key] = (held, count - 1)


class _OpenView(RenderedFile):
    def __init__(self, renderer: Renderer, rendered: RenderedView, until_closed: ExitStack) -> None:
        """Take over the cleanup that `until_closed` has collected."""
        super().__init__(renderer, rendered)
        self._until_closed = until_closed.pop_all()

    def close(self) -> None:
        with self._until_closed:
            super().close()


def _open_view_key(video: LogicalVideo, path: str) -> tuple[int, str, str]:
    return (video.ino, path, video.digest)


MAX_LISTED = 100_000

_ENTRIES = [
    (README_FILE, False),
    (EXPLAIN_DIR, True),
    (FRAMES_DIR, True),
    (INFO_FILE, False),
    (LAYOUT_DIR, True),
    (LAYOUT_FILE, False),
    (OBJECTS_DIR, True),
    (WHY_DIR, True),
]
_ENTRIES_OF_STREAM = [
    (README_FILE, False),
    (EXPLAIN_DIR, True),
    (FRAMES_DIR, True),
    (INFO_FILE, False),
    (WHY_DIR, True),
]
"""Without labels and tiles, which belong to the video's main stream."""


class Views:
    """The views of all videos of a store.  Thread-safe.

    `path` is relative to ``NAME@/`` of the video with that inode number; "" is the directory
    itself.  All methods raise `NotFoundError` for an unknown name or inode, `UsageError` and
    `OutOfRangeError` for a view that cannot be made.
    """

    def __init__(
        self,
        parts: StoreContext,
        tools: ReadContext,
        *,
        remote: RemoteRenderer | None = None,
        open_sink: OpenFrameSink | None = None,
        whole_bytes: int = 0,
        are_reads_waiting: Callable[[], bool] = lambda: False,
    ) -> None:
        """Serve the views of the store that `parts` describes.

        Args:
            remote: renders slots in other processes; without it this process renders them.
            open_sink: opens a video for uploads; without it no view can be written.
            whole_bytes: limit for views that are kept as whole files (`ViewFile.whole`).
            are_reads_waiting: tests whether reads of other files wait.
        """
        self._parts = parts
        self._tools = tools
        self._open_sink = open_sink
        self._remote = None if remote is None else RemoteViews(remote)
        self._renderer = Renderer(parts, tools, self._remote, whole_bytes, are_reads_waiting)
        self._resolver = ViewResolver(parts, tools, self._finished)
        self._opened = OpenViews(parts)

    def stat(self, ino: int, path: str) -> ViewStat:
        known, inner = self._resolver.locate(ino, path)
        if self._is_folder(known, inner):
            return ViewStat(True, 0, known.info.modified_ns)
        return ViewStat(
            False,
            self._view_at(known, inner).slots.size,
            known.info.modified_ns,
            not self._parts.read_only and upload_request(path) is not None,
        )

    def list(self, ino: int, path: str) -> list[tuple[str, bool]]:
        """Return (name, whether it is a directory) of each entry."""
        known, inner = self._resolver.locate(ino, path)
        if inner or path:
            return [*(self._entries(known, inner) if inner else _ENTRIES_OF_STREAM)]
        streams = other_streams(known.info.original.media)
        return [*_ENTRIES, *((stream_dir(number), True) for number in streams)]

    def _entries(self, known: KnownVideo, path: str) -> Sequence[tuple[str, bool]]:
        if path == "":
            return _ENTRIES
        if path in EXPLAIN_DIRS:
            return [(FRAMES_DIR, True)] if path == EXPLAIN_DIR else []
        if is_below(path, WHY_DIR) and self._is_folder(known, path):
            return self._reason_folders(known, path)
        if path == LAYOUT_DIR:
            return layout_names(known.source, MAX_LISTED)
        if is_below(path, OBJECTS_DIR):
            return known.objects.entries(path, MAX_LISTED)
        if path != FRAMES_DIR:
            raise NotFoundError(f"no such directory: {path!r}")
        count = known.info.original.frames
        return [(f"{i:06}.png", False) for i in range(count if count <= MAX_LISTED else 0)]

    def open(self, ino: int, path: str) -> ViewFile:
        known, inner = self._resolver.locate(ino, path)
        if self._is_folder(known, inner):
            raise NotFoundError(f"{path!r} is a directory")
        rendered = self._view_at(known, inner)
        if isinstance(rendered, TextView):
            return RenderedFile(self._renderer, rendered)
        return self._opened.open(known.info, known.prefix + inner, rendered, self._renderer)

    def offer(self, ino: int, path: str) -> ViewUpload:
        """Return a view that is open for writing.

        Raises `ReadOnlyError` for a view that cannot be written, `UsageError` for an unsupported
        size.
        """
        known = self._resolver.lookup(ino)
        if self._open_sink is None or self._parts.read_only or upload_request(path) is None:
            raise ReadOnlyError(
                f"{path!r} cannot be written",
                hint="only views of the whole picture in another size can be written, such as "
                "640x360.rgb",
            )
        return ViewUpload(self._parts, self._open_sink(known.info), path)

    def evict_idle(self, seconds: float) -> None:
        """See `RenderContext.evict_idle`."""
        self._renderer.evict_idle(seconds)

    def close(self) -> None:
        self._renderer.close()
        self._resolver.close()

    def _view_at(self, known: KnownVideo, path: str) -> RenderedView:
        resolve = partial(self._resolver.resolve, known, path)
        return self._opened.found(known.info, known.prefix + path, resolve)

    def _reason_folders(self, known: KnownVideo, path: str) -> Sequence[tuple[str, bool]]:
        """``why`` lists only the directories that the paths it explains need."""
        asked = path_in_question(path)
        inner = self._entries(known, asked)
        return [(name, True) for name, is_dir in inner if is_dir and name != WHY_DIR]

    def _is_folder(self, known: KnownVideo, path: str) -> bool:
        if is_below(path, WHY_DIR):
            try:
                return not is_below(path_in_question(path), WHY_DIR) and self._is_folder(
                    known, path_in_question(path)
                )
            except NotFoundError:  # an unknown label: the file gives the reason
                return False
        if is_below(path, OBJECTS_DIR):
            return known.objects.is_folder(path)
        return path in ("", FRAMES_DIR, LAYOUT_DIR, *EXPLAIN_DIRS)

    def _finished(self, rendered: RenderedView, ino: int, path: str) -> RenderedView:
        """Return the view with its size; a view of unknown size is encoded first."""
        finished = rendered
        if isinstance(rendered, StillView) and rendered.is_measured:
            self._made_elsewhere(rendered, ino, path)
            finished = self._renderer.measured(rendered)
        self._made_elsewhere(finished, ino, path)
        return finished

    def _made_elsewhere(self, rendered: RenderedView, ino: int, path: str) -> None:
        if split_stream(path)[0] is not None:
            return  # the render process would have to examine the stream first
        if self._remote is not None and not isinstance(rendered, TextView):
            self._remote.add(rendered, ino, path)
