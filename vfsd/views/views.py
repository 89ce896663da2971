"""`Views`: the tree below `NAME@/` for the mount (stat, list, open, write).

`ViewUpload` is a view that is open for writing. `render` and `open_view` serve one view without a
mount.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import lru_cache, partial
from io import BufferedReader, FileIO
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.frames.planes import PIXEL_FORMATS, pixel_layout
from vfsd.core import view_request
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import LogicalVideo
from vfsd.core.pixel_array import Pixels
from vfsd.core.view_request import ViewFile, ViewSpec, ViewStat
from vfsd.derive.import_rendition import (
    arrays_to_stored_format,
    frames_to_stored_format,
    import_pictures,
    require_importable,
)
from vfsd.disk.object_store import Progress
from vfsd.disk.tempfiles import NO_SPACE
from vfsd.errors import (
    NoSpaceError,
    NotFoundError,
    ReadOnlyError,
    RefusedMediaError,
    UsageError,
    VfsdError,
)
from vfsd.read.read_context import ReadContext, VideoContext
from vfsd.read.read_log import ReadTiming
from vfsd.read.read_plan import select_frames
from vfsd.storage.context import StoreContext
from vfsd.views.joined_views import JoinedView
from vfsd.views.layer_files import LAYERS_DIR
from vfsd.views.layout_files import LAYOUT_DIR, LAYOUT_FILE, layout_names
from vfsd.views.render_cache import RenderHistory
from vfsd.views.rendered_view import (
    PaddedView,
    RenderedView,
    StillView,
    StreamableView,
    TextView,
    ViewAudioSummary,
    audio_summary,
    plan_view,
)
from vfsd.views.rendering import HeldFile, RemoteRenderer, RemoteViews, RenderedFile, Renderer
from vfsd.views.timeline_files import TimelineFiles
from vfsd.views.view_explanation import (
    EXPLAIN_DIR,
    EXPLAIN_DIRS,
    ViewExplanation,
    explain_request,
    explain_view_path,
)
from vfsd.views.view_input import (
    OtherStreams,
    other_streams,
    split_stream,
    stream_dir,
    view_input_of,
)
from vfsd.views.view_resolver import (
    FRAMES_DIR,
    INFO_FILE,
    MOMENTS_DIR,
    OBJECTS_DIR,
    README_FILE,
    WHY_DIR,
    KnownVideo,
    ViewResolver,
    is_below,
    path_in_question,
)
from vfsd.views.view_slots import SlotReadLog
from vfsd.write.frame_input import Y4M_MAGIC, iter_raw_frames, read_y4m_frames, read_y4m_header

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_log = logging.getLogger(__name__)

MAX_LISTED = 100_000
_ENTRIES = [
    (README_FILE, False),
    (EXPLAIN_DIR, True),
    (FRAMES_DIR, True),
    (INFO_FILE, False),
    (LAYOUT_DIR, True),
    (LAYOUT_FILE, False),
    (MOMENTS_DIR, True),
    (OBJECTS_DIR, True),
    (WHY_DIR, True),
]
# Without labels and tiles, which belong to the video's main stream.
_ENTRIES_OF_STREAM = [
    (README_FILE, False),
    (EXPLAIN_DIR, True),
    (FRAMES_DIR, True),
    (INFO_FILE, False),
    (WHY_DIR, True),
]
_BUFFER_BYTES = 1 << 20
_CHUNK = 1 << 20


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
        # Without the lock: a view that is opened at the same moment is compared again in `open`.
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
            # The kernel may have read up to the size of the view that is open already.
            if held.slots.size != rendered.slots.size:
                rendered = held
            self._open[key] = (held, count + 1)
        with ExitStack() as stack:
            stack.callback(self._close, key)
            stack.enter_context(self._parts.originals.held(video.original))
            return HeldFile(renderer, rendered, stack)

    def _close(self, key: tuple[int, str, str]) -> None:
        with self._guard:
            held, count = self._open.pop(key)
            if count > 1:
                self._open[key] = (held, count - 1)


def _open_view_key(video: LogicalVideo, path: str) -> tuple[int, str, str]:
    return (video.ino, path, video.digest)


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
        self.timelines = TimelineFiles(parts, tools, self._renderer)
        """The files below ``DIRECTORY@/``, with the same methods."""

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
        layers = [(LAYERS_DIR, True)] if known.layers else []
        return [*_ENTRIES, *layers, *((stream_dir(number), True) for number in streams)]

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
        if is_below(path, LAYERS_DIR):
            return known.layers.entries(path, MAX_LISTED)
        if is_below(path, MOMENTS_DIR):
            return known.moments.entries(path, MAX_LISTED)
        if path != FRAMES_DIR:
            raise NotFoundError(f"no such directory: {path!r}")
        count = known.info.original.frames
        return [(f"{i:06}.png", False) for i in range(count if count <= MAX_LISTED else 0)]

    def open(self, ino: int, path: str) -> ViewFile:
        known, inner = self._resolver.locate(ino, path)
        if self._is_folder(known, inner):
            raise NotFoundError(f"{path!r} is a directory")
        rendered = self._view_at(known, inner)
        # A text needs no held video and no shared size: its bytes are in memory.
        if isinstance(rendered, TextView):
            return RenderedFile(self._renderer, rendered)
        return self._opened.open(known.info, known.prefix + inner, rendered, self._renderer)

    def open_upload(self, ino: int, path: str) -> ViewUpload:
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
        self.timelines.close()

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
        if is_below(path, LAYERS_DIR):
            return known.layers.is_folder(path)
        if is_below(path, MOMENTS_DIR):
            return known.moments.is_folder(path)
        return path in ("", FRAMES_DIR, LAYOUT_DIR, *EXPLAIN_DIRS)

    def _finished(self, rendered: RenderedView, ino: int, path: str) -> RenderedView:
        """Return the view with its size; a view of unknown size is encoded first."""
        finished = rendered
        if isinstance(rendered, StillView) and rendered.is_measured:
            self._register_remote(rendered, ino, path)
            finished = self._renderer.measured(rendered)
        self._register_remote(finished, ino, path)
        return finished

    def _register_remote(self, rendered: RenderedView, ino: int, path: str) -> None:
        if split_stream(path)[0] is not None:
            return  # the render process would have to examine the stream first
        if self._remote is not None and not isinstance(rendered, TextView):
            self._remote.add(rendered, ino, path)


@lru_cache(maxsize=1024)
def upload_request(path: str) -> ViewSpec | None:
    """Return the parsed path if frames can be uploaded to it: the whole picture in some size."""
    try:
        request = view_request.parse_view_path(path)
    except (NotFoundError, UsageError):
        return None
    view = request.view
    if request.form.is_sound:
        return None
    is_partial = (view.region or request.crop or view.fps or request.boxes) is not None
    step = 1 if view.frames is None else view.frames[2]
    return None if is_partial or step != 1 else request


OpenFrameSink = Callable[[LogicalVideo], VideoContext]
"""Opens a video for frames that are written to one of its views."""


class ViewUpload:
    """A view that is being written.  Thread-safe.

    Raises `UsageError` for a size in which the video accepts no frames.
    """

    def __init__(self, parts: StoreContext, video: VideoContext, path: str) -> None:
        request = upload_request(path)
        if request is None:
            raise UsageError(f"{path!r} must be the whole picture in another size to be written")
        info = video.info
        media = info.original.media
        view = request.resolve(media.display_width, media.display_height)
        self._size = view.size or (media.display_width, media.display_height)
        require_importable(media, *self._size)
        self._form = request.form
        if self._form.container == "raw" and self._form.layout not in PIXEL_FORMATS:
            raise UsageError(f"frames in {self._form.layout} cannot be written")
        self._name = f"{info.name}@/{path}"
        self._examiner = parts.examiner
        self._video = video
        chosen = select_frames(view, info.original, self._video.table)
        self._frames = range(int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else range(0)
        self._guard = threading.Lock()
        self._is_new = False  # whether data was written since the last commit
        self._is_expected = False  # whether the file was truncated for writing
        # Without a name, a crash leaves nothing to clean up.
        self._file = parts.objects.nameless_file()

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self._file.fileno()).st_size

    def readinto(self, buffer: memoryview, offset: int) -> int:
        return os.preadv(self._file.fileno(), (buffer,), offset)

    def expect(self) -> None:
        """Note that the file was opened with O_TRUNC, so that an empty upload is an error."""
        with self._guard:
            self._is_expected = True

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        """Write `data` and return the number of bytes.  Raises `OSError`."""
        with self._guard:
            self._is_new = True
            return os.pwrite(self._file.fileno(), data, offset)

    def truncate(self, length: int) -> None:
        with self._guard:
            self._is_new = True
            os.ftruncate(self._file.fileno(), length)

    def commit(self) -> None:
        """Store the frames if data was written or expected since the last call.

        Raises `UsageError` while the data is shorter than the view, `RefusedMediaError` for other
        pictures, `NoSpaceError`, `OverBudgetError`.
        """
        with self._guard:
            if not self._is_expected and not (self._is_new and self.size):
                return
            try:
                self._take()
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                raise NoSpaceError(f"no room for {self._name}: {error.strerror}") from error
            except VfsdError as error:
                # Shells close a redirected descriptor before anything is written.
                level = logging.WARNING if self.size else logging.INFO
                hint = f"; {error.hint}" if error.hint else ""
                _log.log(level, "%s was refused: %s%s", self._name, error, hint)
                raise
            self._is_new = self._is_expected = False
            _log.info("%s: %d frames were stored", self._name, len(self._frames))

    def close(self) -> None:
        """Discard the data that was not committed."""
        self._file.close()

    def _take(self) -> None:
        self._file.seek(0)
        if self._form.container == "raw":
            offered = self._of_samples()
        elif self._form.container == "y4m":
            offered = self._of_y4m()
        else:
            offered = self._of_packets()
        given_as = self._form.layout if self._form.container == "raw" else None
        import_pictures(self._video, offered, self._size, self._frames, given_as=given_as)

    def _of_samples(self) -> Iterator[VideoFrame]:
        layout = pixel_layout(self._form.layout)
        each = layout.bytes(*self._size)
        if self.size != len(self._frames) * each:
            raise UsageError(
                f"{len(self._frames)} frames of {each} bytes are needed, got {self.size} bytes"
            )
        arrays = iter_raw_frames(self._file, self._form.layout, self._size)
        return self._stored(arrays, self._form.layout)

    def _of_y4m(self) -> Iterator[VideoFrame]:
        file = BufferedReader(FileIO(self._file.fileno(), closefd=False), _BUFFER_BYTES)
        if file.read(len(Y4M_MAGIC)) != Y4M_MAGIC:
            raise RefusedMediaError("a Y4M file must begin with YUV4MPEG2")
        file.seek(0)
        header = read_y4m_header(file)
        self._require_size(header.width, header.height)
        return self._stored(read_y4m_frames(file, header), header.pixel_format)

    def _of_packets(self) -> Iterator[VideoFrame]:
        media = self._video.original.media
        # A full examination: this process decodes all of it next, and it is not trusted yet.
        found = self._examiner.examine_open(self._file.fileno(), "the upload", full=True)
        self._require_size(found.media.display_width, found.media.display_height)
        if len(found.order) != len(self._frames) or found.media.is_turned:
            raise RefusedMediaError(
                f"{len(self._frames)} frames are needed, got {len(found.order)}"
            )
        table = FrameTable.in_memory(
            found.columns, found.order, time_base=found.media.time_base, end_pts=found.end_pts
        )
        decoder = FrameDecoder(self._file.fileno(), found.media, found.access, table)
        return frames_to_stored_format((picture for _, picture in decoder.stream()), media)

    def _stored(self, arrays: Iterator[Pixels], pixel_format: str) -> Iterator[VideoFrame]:
        return arrays_to_stored_format(arrays, pixel_format, self._size, self._video.original.media)

    def _require_size(self, width: int, height: int) -> None:
        if (width, height) != self._size:
            raise RefusedMediaError(
                f"pictures must have {self._size[0]}x{self._size[1]} pixels, got {width}x{height}"
            )


def render(
    parts: StoreContext,
    tools: ReadContext,
    info: LogicalVideo,
    request: view_request.ViewSpec,
    out: BinaryIO,
    on_progress: Progress | None = None,
) -> int:
    """Write the file that a mount would serve; without padding if `out` is seekable.

    Returns the number of bytes.  `on_progress` is called with the bytes of the mount's file that
    were written since the last call.  Raises `OutOfRangeError`, `UsageError`, `IntegrityError`.
    """
    renderer = Renderer(parts, tools)
    try:
        rendered = plan_view(view_input_of(parts, tools, info), request, tools)
        return write_view(renderer, rendered, out, on_progress)
    finally:
        renderer.close()


def summarize_view_audio(
    parts: StoreContext, tools: ReadContext, info: LogicalVideo, request: view_request.ViewSpec
) -> ViewAudioSummary:
    """Return how a view carries the sound of its video.  Raises as `render` does."""
    return audio_summary(view_input_of(parts, tools, info), request)


def explain_view(
    parts: StoreContext, tools: ReadContext, info: LogicalVideo, request: view_request.ViewSpec
) -> ViewExplanation:
    """Return the cost of a view.  Raises as `render` does."""
    facts = RenderHistory.of_store(parts)
    return explain_request(view_input_of(parts, tools, info), request, tools, facts)


def explain_path(
    parts: StoreContext, tools: ReadContext, info: LogicalVideo, path: str
) -> ViewExplanation:
    """Return the cost of a view or still at a path below ``NAME@/`` of a mount."""
    facts = RenderHistory.of_store(parts)
    stream, rest = split_stream(path)
    if stream in (None, info.original.media.stream_index):
        return explain_view_path(view_input_of(parts, tools, info), tools, rest, facts)
    _, source = OtherStreams(parts).input_of(info, stream)
    return explain_view_path(source, tools, rest, facts)


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

        # Keeps the bytes readable if the video is removed while the file is open.
        stack.enter_context(parts.originals.held(info.original))
        with closing(ViewResolver(parts, tools, finished)) as resolver:
            rendered = resolver.resolve(*resolver.locate_in(resolver.from_record(info), path))
        return ViewReader(f"{info.name}@/{path}", renderer, rendered, stack)


def save_timeline(
    parts: StoreContext,
    tools: ReadContext,
    rendered: JoinedView,
    out: BinaryIO,
    on_progress: Progress | None = None,
) -> int:
    """Write a file from `timeline_view` and return the number of bytes; see `render`."""
    renderer = Renderer(parts, tools)
    try:
        return write_view(renderer, rendered, out, on_progress)
    finally:
        renderer.close()


def open_timeline(
    parts: StoreContext, tools: ReadContext, rendered: JoinedView, name: str, held: ExitStack
) -> ViewReader:
    """Open a file from `timeline_view`; `held` keeps its videos and is closed with the file."""
    with ExitStack() as stack:
        stack.push(held.pop_all())
        renderer = stack.enter_context(closing(Renderer(parts, tools)))
        return ViewReader(name, renderer, rendered, stack)


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
    # In order and without a cache, because there is no other reader.
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
    file = RenderedFile(renderer, rendered)
    slots = rendered.slots
    start = out.tell()
    sizes = np.zeros(len(slots) - 1, np.int64)
    # A placeholder: the header lists the sizes of the segments, which are not known yet.
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
