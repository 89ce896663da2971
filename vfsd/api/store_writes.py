"""Writing videos: the part of `vfsd.api.store.Store` that makes them of pictures and streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import Path
from reprlib import repr as shown
from typing import TYPE_CHECKING, TypedDict, Unpack

from vfsd.catalog import split_path
from vfsd.core.model import FileState, LogicalVideo
from vfsd.core.timebase import Seconds
from vfsd.errors import (
    ClosedError,
    CutOffError,
    NotFoundError,
    UsageError,
)
from vfsd.storage.context import StoreContext
from vfsd.validation import width_and_height, yes_or_no

if TYPE_CHECKING:
    from vfsd.api.growing_video import GrowingVideo
    from vfsd.api.video import Video
    from vfsd.codecs.audio.audio_input import AudioInput
    from vfsd.codecs.containers.file_timestamps import FileTimestamps
    from vfsd.codecs.probing.probe import Examination
    from vfsd.core.frames import Pixels
    from vfsd.read.read_context import ReadContext
    from vfsd.write.frame_input import FrameInput, RawInput
    from vfsd.write.partial_files import PartialFile, UnfinishedRecording
    from vfsd.write.video_writer import Ticks, VideoWriter
    from vfsd.write.writer_settings import WriterSettings
    from vfsd.write.y4m import Y4mHeader

Written = Callable[[int], None]
"""Called with the number of pictures, or of bytes of a stream, since the last call."""

_BUFFER = 1 << 20
_CLOSE_AGAIN = "close its writer again, or let `vfsd recover` do that when this process has ended"
_WHEN_ENDED = "`vfsd recover` makes a video of it when this process has ended"


class WriteOptions(TypedDict, total=False):
    """The fields of a `WriterSettings`."""

    fps: Seconds | None
    time_base: Seconds | None
    format: str
    codec: str
    pixel_format: str | None
    quality: int | None
    psnr: float | None
    lossless: bool
    key_interval: int | None
    color_range: str | None
    color_space: str | None
    sample_aspect_ratio: Seconds | None
    sound: AudioInput | None
    sound_codec: str | None


class StoreWrites:
    """Makes videos of what is in memory, or on its way."""

    _parts: StoreContext

    @property
    def _tools(self) -> ReadContext:
        raise NotImplementedError

    def open_video(self, info: LogicalVideo) -> Video:
        """A video that the catalog has described."""
        from vfsd.api.video import Video

        return Video(self._parts, self._tools, info)

    def write(
        self,
        name: str,
        data: FrameInput | RawInput,
        *,
        size: tuple[int, int] | None = None,
        pts: Ticks | None = None,
        replace: bool = False,
        on_progress: Written | None = None,
        **form: Unpack[WriteOptions],
    ) -> Video:
        """Make a video of pictures, or of a stream.

        - Pictures: an array of frames x height x width x channels, or what numpy makes one of,
          frames that were read, or any sequence of these, with `fps`, or with a `time_base` and the
          `pts` of each; the other fields of `WriterSettings` say what is written.
        - Bare samples: bytes or an open file, and the `size` (width, height) besides.
        - YUV4MPEG2: bytes or an open file of it, without `size` or `format`, are pictures, too, and
          tell their rate, range and aspect where `form` does not.  Under a name that ends with
          .y4m they are a stream.
        - A stream: bytes or an open file with neither size nor times is a video file, of any kind
          that `ingest` takes, and is kept as it is.

            store.write("a.mp4", pixels, fps=25)
            store.write("b.mkv", other.iterate(size=(640, 360)), fps=other.rate, codec="ffv1")
            store.write("c.mp4", open("c.rgb", "rb"), size=(640, 360), fps="29.97", quality=18)
            store.write("e.mp4", pixels, fps=25, codec="hevc", psnr=42)
            store.write("f.mp4", pixels, fps=25, sound="talk.wav")
            store.write("g.mkv", pixels, fps=25, sound=(samples, 48000), sound_codec="flac")
            store.write("d.ts", socket.makefile("rb"))

        All of it is there at once when it is done, or nothing.  Raises `UsageError` for what does
        not fit together, for names that no mount can show and for times that the container cannot
        tell, `NotFoundError` where the file of `sound` is not there, `RefusedMediaError` for a
        stream that is no video, `ExistsError` (unless `replace`), `BusyError` while somebody else
        writes that name, `NoSpaceError`, `IntegrityError` for a file in which other times are found
        than were given.  Where all of it has come, and only could not be published at the moment,
        as with a catalog that others keep locked, it is kept as a recording, which a note of the
        error tells: see `recover`.  So is what there is where the disk is full or fails on the way,
        and where a pipe ends in the middle of a picture (`CutOffError`), or what is given raises an
        `OSError`, as a connection does that breaks.
        """
        from vfsd.codecs.audio.sample_arrays import SoundFormat
        from vfsd.write.frame_input import (
            PeekableFile,
            is_raw_input,
            iter_input_frames,
            iter_raw_frames,
        )
        from vfsd.write.writer_settings import WriterSettings
        from vfsd.write.y4m import MAGIC, read_y4m_frames, read_y4m_header

        if isinstance(form.get("sound"), SoundFormat):
            raise UsageError("sound in pieces is for a writer", hint="see Store.writer")
        replace = yes_or_no(replace, "replace")
        each: Iterator[tuple[Pixels, int | None]]
        timed = form.get("fps") is not None or form.get("time_base") is not None
        if is_raw_input(data) and size is None and not str(name).lower().endswith(".y4m"):
            peeked = PeekableFile(data, len(MAGIC))
            if peeked.head == MAGIC:
                file = BufferedReader(peeked, _BUFFER)
                header = read_y4m_header(file)
                told = _told_by(header, form)
                each = ((picture, None) for picture in read_y4m_frames(file, header))
                size = header.width, header.height
                return self._write_pictures(name, each, size, pts, replace, on_progress, told)
            data = peeked.given
        if is_raw_input(data):
            if not timed and size is None:
                if form or pts is not None:
                    raise UsageError(
                        f"{', '.join([*form, 'pts'][:3])} is about pictures, and bytes without a "
                        "size and a rate are a stream",
                        hint="give size and fps, or neither",
                    )
                return self._write_stream(name, data, replace, on_progress)
            if size is None or not timed:
                raise UsageError("bare samples need a size and a rate", hint="give size and fps")
            pixel_format = form.get("format", "rgb24")
            each = ((picture, None) for picture in iter_raw_frames(data, pixel_format, size))
        else:
            if not timed:
                raise UsageError("pictures need times", hint="give fps")
            each = iter_input_frames(data, form.get("format", "rgb24"))
        return self._write_pictures(
            name, each, size, pts, replace, on_progress, WriterSettings(**form)
        )

    def writer(
        self,
        name: str,
        *,
        width: int,
        height: int,
        replace: bool = False,
        **form: Unpack[WriteOptions],
    ) -> VideoWriter[Video]:
        """For pictures that come one by one; see `VideoWriter`.  `form` is as for `write`.

        With ``sound=SoundFormat(48000, "stereo", "int16")`` sound comes piece by piece, too.

        Raises `UsageError`, `NotFoundError` where the file of `sound` is not there, `ExistsError`
        (unless `replace`), `BusyError`, `NoSpaceError`.
        """
        from vfsd.write.writer_settings import WriterSettings

        replace = yes_or_no(replace, "replace")
        return self._writer(name, (width, height), WriterSettings(**form), replace, _CLOSE_AGAIN)

    def growing(self, name: str) -> GrowingVideo:
        """What there is of a video that is being written, here or in another process.

        By a `writer`, or through a mount.  Raises `NotFoundError` where nobody writes that name,
        `BusyError` while nothing can be read of it: before its first fragment is complete, and
        while it is being finished.
        """
        from vfsd.api.growing_video import is_being_written
        from vfsd.write.partial_files import active_partials

        name = "/".join(split_path(name))
        for file in active_partials(self._parts.objects):
            if file.name == name:
                with suppress(FileNotFoundError):  # it is finished right now
                    return self._growing(name, file.path, partial(is_being_written, file))
        with suppress(FileNotFoundError, NotFoundError), self._parts.catalog.reading() as seen:
            node = seen.tree.resolve(name)
            if node.state is FileState.SPOOLED:
                path = self._parts.directory.spool_file(node.ino)
                return self._growing(name, path, partial(self._is_spooled, node.ino))
        raise NotFoundError(
            f"nobody writes {name!r}", hint="what is finished is opened by its name alone"
        )

    def recordings(self) -> list[UnfinishedRecording]:
        """Recordings that were not finished, the oldest first: their writers died, or could not
        publish them.  They take room, and are no videos: see `recover`."""
        from vfsd.write.partial_files import unfinished_recordings

        return unfinished_recordings(self._parts)

    def recover(self, recording: UnfinishedRecording, name: str | None = None) -> Video:
        """Make a video of what there is of a recording.

        It gets `name`.  Default: the name that it was meant to have or, where somebody has taken
        that or is just writing it, one like it: ``a-recovered.mp4``.

            for one in store.recordings():
                store.recover(one)

        Raises `RefusedMediaError` where it shows no picture, `ExistsError` for a `name` that is
        taken, `NotFoundError` where it has gone, `BusyError`, `NoSpaceError`, `UsageError`; the
        recording is kept then.
        """
        from vfsd.disk.enospc import room_for
        from vfsd.write.ingest_file import SourceFile, ingest_own_file
        from vfsd.write.partial_files import UnfinishedRecording, recovered_name

        self._require_writable()
        if not isinstance(recording, UnfinishedRecording):
            raise UsageError(
                f"recording must be one of Store.recordings(), got {shown(recording)}",
                hint="give one of Store.recordings()",
            )
        with recording.claimed():
            name = (
                recovered_name(self._parts, recording)
                if name is None
                else "/".join(split_path(name))
            )
            source = SourceFile(recording.path, name, recording.path.stat().st_size)
            with room_for(repr(name)):
                video = self.open_video(ingest_own_file(self._parts, source))
            recording.forget()
        return video

    def _growing(self, name: str, path: Path, is_written: Callable[[], bool]) -> GrowingVideo:
        from vfsd.api.growing_video import GrowingVideo

        return GrowingVideo(self._parts, self._tools, name, str(path), is_written)

    def _is_spooled(self, ino: int) -> bool:
        """Whether a mount has that file, and it may be written."""
        if self._parts.directory.mounted_by() is None:
            return False
        with suppress(NotFoundError), self._parts.catalog.reading() as seen:
            return seen.tree.node(ino).state is FileState.SPOOLED
        return False

    def _require_place(self, name: str, replace: bool) -> None:
        """Before anything is taken in.  Raises as `require_free`, and `HeldError` where what would
        have to go must not."""
        from vfsd.write.ingest_file import require_name_free

        require_name_free(self._parts, name, replace)
        if replace:
            with self._parts.catalog.reading() as seen, suppress(NotFoundError):
                seen.originals.require_free(seen.tree.resolve(name).ino)

    def _writer(
        self, name: str, size: tuple[int, int], form: WriterSettings, replace: bool, again: str
    ) -> VideoWriter[Video]:
        """`again` says what can be done where it is whole, and not published."""
        from vfsd.write.video_writer import VideoWriter

        self._require_writable()
        name = "/".join(split_path(name))
        self._require_place(name, replace)
        size = width_and_height(size)

        def publish(file: PartialFile, times: FileTimestamps) -> Video:
            with _told(file, again):
                return self._publish(file, replace, partial(_require_times, times))

        return VideoWriter(self._parts, name, size, form, publish)

    def _write_pictures(
        self,
        name: str,
        each: Iterator[tuple[Pixels, int | None]],
        size: tuple[int, int] | None,
        pts: Ticks | None,
        replace: bool,
        on_progress: Written | None,
        form: WriterSettings,
    ) -> Video:
        from vfsd.codecs.frames.pixel_layouts import input_layout
        from vfsd.write.partial_files import RECOVER_HINT
        from vfsd.write.video_writer import parse_pts

        times = parse_pts(pts, form)
        first = next(each, None)
        if first is None:
            raise UsageError("at least one picture must be given")
        if size is None:
            size = input_layout(form.format).size(first[0].shape)
        writer = self._writer(name, size, form, replace, RECOVER_HINT)
        try:
            with writer:
                for picture, own in chain([first], _while_they_come(each, writer)):
                    pts = own if times is None else next(times, None)
                    writer.write(picture, None if form.time_base is None else pts)
                    if on_progress is not None:
                        on_progress(1)
                if times is not None and next(times, None) is not None:
                    raise UsageError("more times than pictures were given")
        finally:
            writer.leave()  # nobody has it who could close it again
        return writer.video

    def _write_stream(
        self, name: str, data: RawInput, replace: bool, on_progress: Written | None
    ) -> Video:
        from vfsd.disk.enospc import room_for, write_all
        from vfsd.write.frame_input import iter_chunks
        from vfsd.write.partial_files import RECOVER_HINT, create_partial, is_retryable

        self._require_writable()
        name = "/".join(split_path(name))
        self._require_place(name, replace)
        with room_for(repr(name)):
            file = create_partial(self._parts.objects, name)
        try:
            with open(file.path, "r+b", 0) as writing, _told_of_part(file):
                for chunk in iter_chunks(data):
                    with room_for(repr(name)):
                        write_all(writing, chunk)
                    if on_progress is not None:
                        on_progress(len(chunk))
            with _told(file, RECOVER_HINT):
                video = self._publish(file, replace)
        except BaseException as error:
            if is_retryable(error) and not file.is_empty:  # it may not come again
                file.leave()
            else:
                file.remove()
            raise
        file.remove()
        return video

    def _publish(
        self,
        file: PartialFile,
        replace: bool,
        check: Callable[[Examination], None] = lambda _: None,
    ) -> Video:
        from vfsd.disk.enospc import room_for
        from vfsd.write.ingest_file import SourceFile, ingest_own_file

        with room_for(repr(file.name)):
            source = SourceFile(file.path, file.name, file.path.stat().st_size)
            return self.open_video(
                ingest_own_file(self._parts, source, replace=replace, check=check)
            )

    def _require_writable(self) -> None:
        self._parts.require_writable()


def _while_they_come(
    each: Iterator[tuple[Pixels, int | None]], writer: VideoWriter[Video]
) -> Iterator[tuple[Pixels, int | None]]:
    """All of them; where they are cut off, or who gives them fails, those that came are kept."""
    try:
        yield from each
    except (CutOffError, OSError) as error:
        writer.cut_short(error)
        raise


@contextmanager
def _told(file: PartialFile, again: str) -> Iterator[None]:
    """Errors say what becomes of a whole file that could not be published."""
    from vfsd.write.partial_files import is_retryable

    try:
        yield
    except BaseException as error:
        if is_retryable(error):
            if isinstance(error, ClosedError):
                again = _WHEN_ENDED
            error.add_note(f"{file.name!r} is whole, and not lost: it is {file.path}; {again}")
        raise


@contextmanager
def _told_of_part(file: PartialFile) -> Iterator[None]:
    """Errors say what becomes of what has come, where any of it is on the disk."""
    from vfsd.write.partial_files import RECOVER_HINT, is_retryable

    try:
        yield
    except BaseException as error:
        if is_retryable(error) and not file.is_empty:
            error.add_note(
                f"what has come of {file.name!r} is not lost: it is {file.path}; {RECOVER_HINT}"
            )
        raise


def _told_by(header: Y4mHeader, form: WriteOptions) -> WriterSettings:
    """What is written of YUV4MPEG2.  Raises `UsageError` where nobody tells its rate."""
    from vfsd.write.writer_settings import WriterSettings

    if "format" in form:
        raise UsageError("YUV4MPEG2 tells its pixel format itself", hint="leave out format")
    told: WriteOptions = {**form, "format": header.pixel_format}
    if form.get("fps") is None and form.get("time_base") is None:
        if header.rate is None:
            raise UsageError("YUV4MPEG2 with F0:0 does not tell its rate", hint="give fps")
        told["fps"] = header.rate
    if form.get("color_range") is None:
        told["color_range"] = header.color_range
    if form.get("sample_aspect_ratio") is None:
        told["sample_aspect_ratio"] = header.sample_aspect_ratio
    return WriterSettings(**told)


def _require_times(times: FileTimestamps, found: Examination) -> None:
    """Raises `IntegrityError` where a file shows its pictures at other times than were given."""
    times.require_written(found.columns.pts[found.order], found.media.time_base)
