"""`VideoWriter` encodes a new video frame by frame and publishes it when it is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from reprlib import repr as shown
from types import TracebackType
from typing import TYPE_CHECKING, Generic, SupportsIndex, TypeAlias, TypeVar

import numpy as np

from vfsd.codecs.audio.sample_arrays import AudioArray, AudioSamples
from vfsd.codecs.containers.file_timestamps import FileTimestamps
from vfsd.codecs.encoding.file_writer import FileWriter
from vfsd.codecs.frames.from_array import FrameMaker
from vfsd.core.atfork import OwnerProcess, leak, reset_after_fork
from vfsd.core.frames import Pixels
from vfsd.disk.enospc import NO_SPACE
from vfsd.errors import NoSpaceError, UsageError
from vfsd.storage.context import StoreContext
from vfsd.validation import whole_number
from vfsd.write.frame_input import FrameInput, iter_input_frames
from vfsd.write.partial_files import RECOVER_HINT, PartialFile, create_partial, is_retryable
from vfsd.write.writer_settings import WriterSettings

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_V = TypeVar("_V")

Ticks: TypeAlias = SupportsIndex | Iterable[SupportsIndex]
"""The time of a picture, or of each of several; those of numpy, too."""


class VideoWriter(Generic[_V]):
    """Writes a video that appears when the block ends, whole, or not at all.

        with store.writer("cam1/live.mp4", width=640, height=360, fps=25) as writer:
            for picture in camera:
                writer.write(picture)
        video = writer.video

    An error in the block leaves the store as it was.  Where all pictures have come, and only the
    publishing fails for a while (see `close`), the file is kept; and so is what there is when the
    disk is full or fails, pictures cannot be as good as was asked for, or the process is killed
    (see `Store.recordings`).  Takes the memory of a few pictures.  One thread may write the
    pictures while another writes their sound.  A child that is forked in the block can neither
    write nor finish it, and leaves it to its parent.

        sound = SoundFormat(48000, "stereo", "int16")
        with store.writer("cam1/talk.mp4", width=640, height=360, fps=25, sound=sound) as writer:
            for picture, samples in recording:
                writer.write(picture)
                writer.write_sound(samples)
    """

    def __init__(
        self,
        parts: StoreContext,
        name: str,
        size: tuple[int, int],
        form: WriterSettings,
        publish: Callable[[PartialFile, FileTimestamps], _V],
    ) -> None:
        """`publish` makes a video of the whole file, if that has the times of its pictures.

        Raises `UsageError`, `BusyError` while somebody else writes that name, `NoSpaceError`.
        """
        self.name = name
        self.frames = 0  #: that were written
        self._form = form
        self._writing = threading.RLock()
        self._publish = publish
        self._video: _V | None = None
        file_form = form.file_form(name, size)
        self._maker = FrameMaker(
            form.format,
            *size,
            file_form.pixel_format,
            color_range=form.color_range,
            color_space=form.color_space,
        )
        self._cut_by: Exception | None = None  # why no more was taken
        self._pts = -1  # of the last picture
        self._origin = 0  # the pts of the first
        with self._making_room():
            self.unfinished = create_partial(parts.objects, name)
        try:
            self._file = _FullWriteFile(self.unfinished.path, "r+b")
            try:
                with self._making_room():
                    self._writer = FileWriter(self._file, file_form)
            except BaseException:
                self._file.close()
                raise
        except BaseException:
            self.unfinished.remove()
            raise
        self._is_open = True
        self._is_whole = False  # it has its end, and is to be published
        self._began_in = OwnerProcess()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`: in a child it is closed, and the file stays the parent's."""
        # To free it would write the end of the file, and wait for the threads of an encoder.
        leak(self._writer)
        self._is_open = self._is_whole = False
        self._cut_by = None
        self._writing = threading.RLock()

    def __enter__(self) -> VideoWriter[_V]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.close()
        finally:
            if not self._is_whole:  # else it is to be asked for again
                self.leave()

    @property
    def video(self) -> _V:
        """What was written.  Raises `UsageError` before the block has ended."""
        if self._video is None:
            raise UsageError(f"{self.name!r} is not finished", hint="ask when the block has ended")
        return self._video

    def write(self, data: FrameInput, pts: Ticks | None = None) -> int:
        """The next picture, or pictures; how many there are now.

        With a `time_base`, `pts` is the tick, or the ticks, at which they appear, ascending whole
        numbers; frames that were read bring their own.  The video starts with the first.  An array
        of another shape or type, a missing time, one that the container cannot tell (see
        `FileTimestamps.require`) and what the encoder refuses are a `UsageError`, and what was
        written before stays as it is.  A full disk is a `NoSpaceError`, after which nothing more
        can be written: see `leave`.  So it is with the `UsageError` for a group of pictures that
        cannot have the `psnr` that was asked for: the file ends before them, and `frames` says
        where.
        """
        self._require_open()
        times = parse_pts(pts, self._form)
        for picture, own in iter_input_frames(data, self._form.format):
            with self._writing:
                self._require_open()
                self._put(picture, next(times, None) if times is not None else own)
        if times is not None and next(times, None) is not None:
            raise UsageError("more times than pictures were given")
        return self.frames

    def write_sound(self, samples: AudioArray | AudioSamples, first: int | None = None) -> int:
        """The next piece of sound; how many samples of each channel there are now.

        `samples` are of the form that `sound=SoundFormat(...)` has told, samples x channels; with
        (samples, rate) the rate is compared, too.  Sample 0 is heard with the first picture, and
        each piece goes on where the last one ended, or begins with sample number `first`: between
        them it is silent.

        Sound and pictures may come in any order, but no more than 10 seconds
        (`MAX_OFFSET_SECONDS`) apart. Where pictures are further ahead, the sound that is missing
        is taken for silence, and too late.  That, sound that is further ahead, and samples of
        another form are a `UsageError`, and nothing of them is taken; a full disk is a
        `NoSpaceError`.  What is heard when the last picture has gone is left out, up to a second
        of it; see `close`.
        """
        with self._writing:
            self._require_open()
            with self._making_room():
                return self._writer.put_sound(samples, first)

    def cut_short(self, error: Exception) -> None:
        """Finish the file with what there is, as `error` tells that no more will come.

        Unless it is closed all the same, it is a recording when it is left, which a note of the
        error tells.  Nothing where there is no picture.
        """
        with self._writing:
            self._require_open()
            if self.frames:
                self._finish()
                frames = f"{self.frames} frames are" if self.frames > 1 else "1 frame is"
                error.add_note(
                    f"{frames} whole, and not lost: {self.unfinished.path} has what came of "
                    f"{self.name!r}; {RECOVER_HINT}"
                )

    def close(self) -> None:
        """Finish the file and publish the video; nothing where that is done already.

        Raises `UsageError` where sound goes on for more than a second after the last picture; more
        of these can still be written then.  `IntegrityError` where the file that was made shows
        pictures at other times than were given; the store is then as it was.  In a forked child it
        is not closed, but left alone.

        What may pass, as a catalog that others keep locked (`BusyError`), a full disk
        (`NoSpaceError`), a disk that fails or too many open files (`OSError`), a name that was
        taken meanwhile (`ExistsError`) or what it was to replace and is held (`HeldError`), does
        not cost the recording: it keeps its name and its file, which a note of the error tells,
        until it is closed again, with success, or abandoned.  When this process ends, or calls
        `leave`, that is a recording of which `Store.recover` makes a video.  Why no more was taken
        than there is, is raised here again.
        """
        with self._writing:
            if self._cut_by is not None:
                self.leave()
                raise self._cut_by
            if self._is_open:
                self._writer.require_end()
                self._finish()
            if self._is_whole:
                self._publish_it()

    def abandon(self) -> None:
        """Forget it; the store is as it was."""
        with self._writing:
            try:
                if self._is_open:
                    self._writer.abandon()
                    self._let_go()
            finally:
                self._is_whole = False
                self.unfinished.remove()

    def leave(self) -> None:
        """Nobody goes on with it: where it is whole, and only was not published, or no more was
        taken (see `write`), it becomes a recording to be recovered (see `Store.recordings`), else
        it is forgotten."""
        with self._writing:
            if not (self._is_whole or self._has_part):
                self.abandon()
                return
            self._is_whole = False
            if self._is_open:
                self._let_go()  # first: what the muxer writes at the end is for whole files
                self._writer.abandon()
            self.unfinished.leave()

    @property
    def _has_part(self) -> bool:
        return self._cut_by is not None and self.frames > 0 and not self.unfinished.is_empty

    def _finish(self) -> None:
        try:
            if not self.frames:
                raise UsageError(f"no picture was written to {self.name!r}")
            with self._making_room(), self._without_lost():
                self._writer.finish()
            self._let_go()
        except BaseException:
            self.leave()
            raise
        self._is_whole = True

    def _publish_it(self) -> None:
        try:
            self._video = self._publish(self.unfinished, self._writer.times)
        except BaseException as error:
            if not is_retryable(error):
                self.abandon()
            raise
        self._is_whole = False
        self.unfinished.remove()

    def _require_open(self) -> None:
        self._began_in.require_same_process(f"{self.name!r}, a video")
        if not self._is_open:
            if self._cut_by is not None:
                raise self._cut_by
            raise UsageError(f"{self.name!r} is finished, or was given up")

    def _let_go(self) -> None:
        self._is_open = False
        self._file.close()

    def _put(self, picture: Pixels, pts: SupportsIndex | None) -> None:
        if self._form.time_base is None:
            pts = self.frames
        elif pts is None:
            raise UsageError(
                f"frame {self.frames} has no time", hint="give pts, or fps instead of time_base"
            )
        tick = whole_number(pts, f"pts of frame {self.frames}")
        if not self.frames:
            self._origin = tick
        with self._making_room(), self._without_lost():
            self._writer.put(self._maker.picture(picture), tick - self._origin)
        self.frames += 1

    @contextmanager
    def _without_lost(self) -> Iterator[None]:
        """Where pictures that were taken turn out not to be in the file, it ends before them."""
        try:
            yield
        except UsageError as error:
            lost = range(self._writer.frames, self.frames)
            if not lost:
                raise
            self.frames = lost.start
            if self.frames:
                self.cut_short(error)
                self._is_whole = False  # not what was to be written
            self._cut_by = error
            raise

    @contextmanager
    def _making_room(self) -> Iterator[None]:
        if self._cut_by is not None:
            raise self._cut_by  # FFmpeg has lost what came then
        try:
            yield
        except OSError as error:
            self._cut_by = error
            if error.errno in NO_SPACE:
                self._cut_by = NoSpaceError(f"no room for {self.name!r}: {error.strerror}")
            if self._has_part:
                self._cut_by.add_note(
                    f"what was written of {self.name!r} is not lost: it is {self.unfinished.path}; "
                    f"{RECOVER_HINT}"
                )
            if self._cut_by is error:
                raise
            raise self._cut_by from error


class _FullWriteFile(FileIO):
    """Writes all that it is given, or fails: FFmpeg takes no notice of what was left over."""

    def write(self, data: ReadableBuffer, /) -> int:
        left = memoryview(data).cast("B")
        while left:
            left = left[super().write(left) :]
        return memoryview(data).nbytes


def parse_pts(pts: Ticks | None, form: WriterSettings) -> Iterator[SupportsIndex] | None:
    """Each of the times that somebody gives, if any.

    Raises `UsageError` for what are none, and where the form has a rate, which tells them all.
    """
    if pts is None:
        return None
    if form.time_base is None:
        raise UsageError("a constant rate leaves no choice of times", hint="give time_base")
    if isinstance(pts, (int, np.integer)):
        return iter([pts])
    try:
        return iter(pts)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(
            f"pts must be whole ticks, got {shown(pts)}", hint="give one number for each picture"
        ) from None
