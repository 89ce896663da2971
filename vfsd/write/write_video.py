"""Writes new videos from pictures, samples, YUV4MPEG2 or file streams; see `Store.write`.

A file is written under a private name first.  If it cannot be published, it is kept as a
recording, and a note of the error says how to recover it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from itertools import chain
from reprlib import repr as shown
from typing import TYPE_CHECKING, TypeVar

from vfsd.catalog import split_path
from vfsd.codecs.audio.samples import AudioFormat
from vfsd.codecs.frames.planes import input_layout
from vfsd.core.model import LogicalVideo
from vfsd.disk.tempfiles import room_for, write_all
from vfsd.errors import ClosedError, CutOffError, NotFoundError, UsageError
from vfsd.storage.context import StoreContext
from vfsd.validation import width_and_height
from vfsd.write.frame_input import (
    Y4M_MAGIC,
    FrameInput,
    PeekableFile,
    RawInput,
    Y4mHeader,
    is_raw_input,
    iter_chunks,
    iter_input_frames,
    iter_raw_frames,
    read_y4m_frames,
    read_y4m_header,
)
from vfsd.write.ingest_file import SourceFile, ingest_own_file, require_name_free
from vfsd.write.unfinished_files import (
    RECOVER_HINT,
    UnfinishedRecording,
    create_partial,
    is_retryable,
    recovered_name,
)
from vfsd.write.video_writer import Ticks, VideoWriter, WriteOptions, WriterSettings, parse_pts

if TYPE_CHECKING:
    from vfsd.codecs.containers.file_timestamps import FileTimestamps
    from vfsd.codecs.probing.probe import Examination
    from vfsd.core.pixel_array import Pixels
    from vfsd.write.unfinished_files import PartialFile

OnWritten = Callable[[int], None]
"""Called with the number of pictures, or of bytes of a stream, since the last call."""

Opened = TypeVar("Opened")
"""The result of a writer, made from the record of the published video."""

_InputFrames = Iterator[tuple["Pixels", int | None]]

_BUFFER = 1 << 20
CLOSE_AGAIN = "close the writer again, or run `vfsd recover` after this process has ended"
_WHEN_ENDED = "run `vfsd recover` after this process has ended"


def write_video(
    parts: StoreContext,
    name: str,
    data: FrameInput | RawInput,
    *,
    size: tuple[int, int] | None,
    pts: Ticks | None,
    replace: bool,
    on_progress: OnWritten | None,
    form: WriteOptions,
) -> LogicalVideo:
    """Write and publish a video; see `Store.write`."""
    if isinstance(form.get("sound"), AudioFormat):
        raise UsageError("only Store.writer takes a AudioFormat", hint="give a file or samples")
    each: _InputFrames
    timed = form.get("fps") is not None or form.get("time_base") is not None
    # A stream of YUV4MPEG2 is encoded, unless its name asks to store it as it is.
    if is_raw_input(data) and size is None and not str(name).lower().endswith(".y4m"):
        peeked = PeekableFile(data, len(Y4M_MAGIC))
        if peeked.head == Y4M_MAGIC:
            file = BufferedReader(peeked, _BUFFER)
            header = read_y4m_header(file)
            options = _y4m_settings(header, form)
            each = ((picture, None) for picture in read_y4m_frames(file, header))
            size = header.width, header.height
            return _write_pictures(parts, name, each, size, pts, replace, on_progress, options)
        data = peeked.given
    if is_raw_input(data):
        if not timed and size is None:
            if form or pts is not None:
                raise UsageError(
                    f"{', '.join([*form, 'pts'][:3])} must come with size and fps: without them, "
                    "bytes are stored as they are",
                    hint="give size and fps, or neither",
                )
            return _write_stream(parts, name, data, replace, on_progress)
        if size is None or not timed:
            raise UsageError("raw samples need a size and a rate", hint="give size and fps")
        pixel_format = form.get("format", "rgb24")
        each = ((picture, None) for picture in iter_raw_frames(data, pixel_format, size))
    else:
        if not timed:
            raise UsageError("pictures need times", hint="give fps")
        each = iter_input_frames(data, form.get("format", "rgb24"))
    whole = WriterSettings(**form)
    return _write_pictures(parts, name, each, size, pts, replace, on_progress, whole)


def open_writer(
    parts: StoreContext,
    name: str,
    size: tuple[int, int],
    form: WriterSettings,
    replace: bool,
    again: str,
    opened: Callable[[LogicalVideo], Opened],
) -> VideoWriter[Opened]:
    """Return a writer for single pictures.

    `opened` makes its result.  `again` is the hint if a whole file could not be published.
    """
    parts.require_writable()
    name = "/".join(split_path(name))
    _require_writable_name(parts, name, replace)
    size = width_and_height(size)

    def publish(file: PartialFile, times: FileTimestamps) -> Opened:
        with _note_whole_file(file, again):
            return opened(publish_file(parts, file, replace, partial(_require_times, times)))

    return VideoWriter(parts, name, size, form, publish)


def publish_file(
    parts: StoreContext,
    file: PartialFile,
    replace: bool,
    check: Callable[[Examination], None] = lambda _: None,
) -> LogicalVideo:
    """Make a video of a whole private file.  `check` may raise to refuse it."""
    with room_for(repr(file.name)):
        source = SourceFile(file.path, file.name, file.path.stat().st_size)
        return ingest_own_file(parts, source, replace=replace, check=check)


def recover(parts: StoreContext, recording: UnfinishedRecording, name: str | None) -> LogicalVideo:
    """Make a video of a recording; see `Store.recover`."""
    parts.require_writable()
    if not isinstance(recording, UnfinishedRecording):
        raise UsageError(
            f"recording must be of type UnfinishedRecording, got {shown(recording)}",
            hint="give one of Store.recordings()",
        )
    with recording.claimed():
        name = recovered_name(parts, recording) if name is None else "/".join(split_path(name))
        source = SourceFile(recording.path, name, recording.path.stat().st_size)
        with room_for(repr(name)):
            video = ingest_own_file(parts, source)
        if recording.captured is not None:
            with parts.catalog.writing() as change:
                change.videos.set_captured(video.id, recording.captured)
                video = change.videos.get(video.id)
        recording.forget()
    return video


def _require_writable_name(parts: StoreContext, name: str, replace: bool) -> None:
    """Check the name before any data is read.

    Raises as `require_free`, and `HeldError` if a hold keeps the file that would be replaced.
    """
    require_name_free(parts, name, replace)
    if replace:
        with parts.catalog.reading() as seen, suppress(NotFoundError):
            seen.retention.require_free(seen.tree.resolve(name).ino)


def _write_pictures(
    parts: StoreContext,
    name: str,
    each: _InputFrames,
    size: tuple[int, int] | None,
    pts: Ticks | None,
    replace: bool,
    on_progress: OnWritten | None,
    form: WriterSettings,
) -> LogicalVideo:
    times = parse_pts(pts, form)
    first = next(each, None)
    if first is None:
        raise UsageError("at least one picture must be given")
    if size is None:
        size = input_layout(form.format).size(first[0].shape)
    writer = open_writer(parts, name, size, form, replace, RECOVER_HINT, lambda video: video)
    try:
        with writer:
            for picture, own in chain([first], _frames_until_error(each, writer)):
                tick = own if times is None else next(times, None)
                writer.write(picture, None if form.time_base is None else tick)
                if on_progress is not None:
                    on_progress(1)
            if times is not None and next(times, None) is not None:
                raise UsageError("pts must have one time for each picture, got more")
    finally:
        writer.leave()  # no caller has the writer, so nothing else can finish its file
    return writer.video


def _write_stream(
    parts: StoreContext, name: str, data: RawInput, replace: bool, on_progress: OnWritten | None
) -> LogicalVideo:
    parts.require_writable()
    name = "/".join(split_path(name))
    _require_writable_name(parts, name, replace)
    with room_for(repr(name)):
        file = create_partial(parts.objects, name)
    try:
        with open(file.path, "r+b", 0) as writing, _note_partial_file(file):
            for chunk in iter_chunks(data):
                with room_for(repr(name)):
                    write_all(writing, chunk)
                if on_progress is not None:
                    on_progress(len(chunk))
        with _note_whole_file(file, RECOVER_HINT):
            video = publish_file(parts, file, replace)
    except BaseException as error:
        if is_retryable(error) and not file.is_empty:  # the stream may not come a second time
            file.keep_for_recovery()
        else:
            file.remove()
        raise
    file.remove()
    return video


def _frames_until_error(each: _InputFrames, writer: VideoWriter[LogicalVideo]) -> _InputFrames:
    """Yield all pictures; after an error of their source, the writer keeps the earlier ones."""
    try:
        yield from each
    except (CutOffError, OSError) as error:
        writer.cut_short(error)
        raise


@contextmanager
def _note_whole_file(file: PartialFile, again: str) -> Iterator[None]:
    """Add a note to errors that leave a whole file unpublished."""
    try:
        yield
    except BaseException as error:
        if is_retryable(error):
            if isinstance(error, ClosedError):
                again = _WHEN_ENDED
            error.add_note(f"{file.name!r} is not lost: the whole file is {file.path}; {again}")
        raise


@contextmanager
def _note_partial_file(file: PartialFile) -> Iterator[None]:
    """Add a note to errors that leave a part of a file on the disk."""
    try:
        yield
    except BaseException as error:
        if is_retryable(error) and not file.is_empty:
            error.add_note(
                f"the first part of {file.name!r} is not lost: it is {file.path}; {RECOVER_HINT}"
            )
        raise


def _y4m_settings(header: Y4mHeader, form: WriteOptions) -> WriterSettings:
    """Return the settings for a YUV4MPEG2 file.  Raises `UsageError` if neither has a rate."""
    if "format" in form:
        raise UsageError("format must not be given for YUV4MPEG2, which has its own")
    options: WriteOptions = {**form, "format": header.pixel_format}
    if form.get("fps") is None and form.get("time_base") is None:
        if header.rate is None:
            raise UsageError("YUV4MPEG2 with F0:0 has no rate", hint="give fps")
        options["fps"] = header.rate
    if form.get("color_range") is None:
        options["color_range"] = header.color_range
    if form.get("sample_aspect_ratio") is None:
        options["sample_aspect_ratio"] = header.sample_aspect_ratio
    return WriterSettings(**options)


def _require_times(times: FileTimestamps, found: Examination) -> None:
    """Raises `IntegrityError` if the file has other times than the caller gave."""
    times.require_written(found.columns.pts[found.order], found.media.time_base)
