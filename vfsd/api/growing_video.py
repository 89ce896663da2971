"""`GrowingVideo`: what is there already of a video that is being written."""

from __future__ import annotations

import io
import os
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

from vfsd.api.sequence import VideoSequence
from vfsd.api.video_info import Counted
from vfsd.codecs.probing.growing_fmp4 import GrowingFmp4
from vfsd.codecs.probing.probe import Examination
from vfsd.core.frame_table import GrowingTable
from vfsd.core.frames import Frame, Pixels
from vfsd.core.model import Access, LogicalVideo
from vfsd.core.view_request import View
from vfsd.disk.direct_io import open_stored
from vfsd.disk.tempfiles import is_locked
from vfsd.errors import (
    BusyError,
    IntegrityError,
    OutdatedError,
    RefusedMediaError,
    UsageError,
)
from vfsd.read.read_context import ReadContext
from vfsd.read.read_log import ReadTiming
from vfsd.read.read_plan import AvailableTiles, ReadPlan
from vfsd.storage.context import StoreContext
from vfsd.write.ingest_file import describe_original
from vfsd.write.partial_files import PartialFile

_LOOK_SECONDS = 0.2
_REST = 4
"""Times as long as a look has taken, nobody looks again."""


class GrowingVideo(VideoSequence):
    """The frames of a video that is being written, as far as they are certain; exact.

        with store.growing("cam1/live.mp4") as video:
            for frame in video.follow():
                ...

    Its length is that of when it was opened, or last `refresh`ed; what it has shown does not
    change any more, and is the same in the finished video.  It can be read on when the writer has
    finished, or has died.  Nothing of it is in the catalog.  Reads are an `OutdatedError` where
    the writer has moved what was there.
    """

    def __init__(
        self,
        parts: StoreContext,
        tools: ReadContext,
        name: str,
        path: str,
        is_written: Callable[[], bool],
    ) -> None:
        """`is_written` tells whether more may come.

        Raises `BusyError` while nothing can be read of it, `RefusedMediaError` where nothing ever
        can, `OSError` where it is gone.
        """
        self._is_written = is_written
        self._refreshing = threading.Lock()
        self._fd = open_stored(path)
        try:
            self._prefix = GrowingFmp4(self._fd, name)
            found = self._first_part(name)
            original = replace(
                describe_original(
                    found,
                    object_key=None,
                    link_path=f"/dev/fd/{self._fd}",  # its name may go while it is read
                    size=self._prefix.size,
                    now_ns=0,
                ),
                id=_new_id(),
                growing_name=name,
            )
            info = LogicalVideo(
                original.id, 0, name, original.size, "", 0, 0, frozenset(), {}, original
            )
            super().__init__(parts, tools, info)
            table = GrowingTable(original.time_base)
            table.extend(found.columns, found.order, found.end_pts)
            self._table = self._growing = table
        except BaseException:
            os.close(self._fd)
            raise

    def _first_part(self, name: str) -> Examination:
        """What is there of it when it is opened.  Raises `BusyError`, `RefusedMediaError`."""
        why = ""
        if not self._is_written():
            found = self._prefix.finish()
        else:
            try:
                found = self._prefix.advance()
            except RefusedMediaError as refusal:  # sound may come before the first picture
                found, why = None, f": {refusal}"
        if found is None and self._prefix.is_finished:
            raise BusyError(
                f"{name!r} is being finished: all of it has come, and is looked at",
                hint="wait a little: it is a video of that name then",
            )
        if found is None:
            raise BusyError(
                f"nothing can be read of {name!r} yet{why}",
                hint="mp4 and mov in fragments can be read while they are written, from their "
                "first whole fragment on; others when they are finished",
            )
        return found

    def begin_anew(self) -> None:
        """See `vfsd.core.atfork`."""
        super().begin_anew()
        self._refreshing = threading.Lock()

    def __enter__(self) -> GrowingVideo:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing can be read of it any more."""
        with self._refreshing:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._tools.pool.forget(self.original.id)

    def file(self) -> io.BufferedReader:
        """The file as far as it is complete, with all of its streams, sound too.

            with live.file() as file, av.open(file) as opened:
                ...

        Readable and seekable; a file in fragments that every decoder takes.  It ends with what was
        there when the video was opened, or last `refresh`ed, and can be read on when that was
        closed.  Close it.
        """
        with self._refreshing:
            if self._fd < 0:
                raise UsageError(f"{self.name!r} was closed")
            return self._prefix.file()

    def refresh(self) -> bool:
        """Look what has come since; whether more may come.

        Raises `RefusedMediaError` where what has come does not go on what was there, or that has
        been moved.
        """
        with self._refreshing:
            if self._fd < 0:
                raise UsageError(f"{self.name!r} was closed")
            more = self._is_written()  # before looking: what comes in between is seen next time
            found = self._prefix.advance() if more else self._prefix.finish()
            if found is None:
                return more
            self._growing.extend(found.columns, found.order, found.end_pts)
            original = self.original
            delay = max(found.media.reorder_delay, original.media.reorder_delay)
            original = replace(
                original,
                id=self._id_with(found),
                media=replace(original.media, reorder_delay=delay),
                frames=len(self._growing),
                packets=self._growing.packets,
                end_pts=found.end_pts,
                size=self._prefix.size,
            )
            outdated = self.original.id
            self.info = replace(self.info, size=original.size, original=original)
            if original.id != outdated:
                self._tools.pool.forget(outdated)
            return more

    def _id_with(self, found: Examination) -> int:
        """That of the original from now on, with what was found of it."""
        original = self.original
        # Decoders that hold back less are of no use any more, nor demuxers that met with the end.
        holds_more = found.media.reorder_delay > original.media.reorder_delay
        return _new_id() if holds_more or found.access is not Access.EXTENT else original.id

    def follow(self, start: int = 0) -> Iterator[Frame]:
        """Every frame from number `start` on, each as soon as it is complete, until the writer has
        finished or died.

        Raises `UsageError` for a negative number.
        """
        if start < 0:
            raise UsageError(f"start must be 0 or more, got {start}", hint="count from 0")
        return self._followed(start)

    def _followed(self, start: int) -> Iterator[Frame]:
        more, pause = True, threading.Event()
        while True:
            end = len(self)  # somebody may look again while these are given out
            if start < end:
                yield from self.iterate(frames=range(start, end))
                start = end
            if not more:
                return
            began = time.monotonic()
            more = self.refresh()
            if more and start == len(self):
                # Without key packets a look takes longer and longer.
                pause.wait(max(_LOOK_SECONDS, _REST * (time.monotonic() - began)))

    def _carried_out(
        self,
        make: Callable[[Counted, AvailableTiles | None], ReadPlan],
        pixel_format: str,
        psnr: float | None,
    ) -> tuple[Counted, ReadPlan, Pixels]:
        with self._in_place():
            return super()._carried_out(make, pixel_format, psnr)

    def _stream(
        self,
        kind: str,
        view_of: Callable[[Counted], View | None],
        pixel_format: str,
        psnr: float | None,
    ) -> Generator[Frame, None, None]:
        frames = super()._stream(kind, view_of, pixel_format, psnr)
        while True:
            with self._in_place():
                frame = next(frames, None)
            if frame is None:
                return
            yield frame

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Have what is read meanwhile be an `OutdatedError`, where it was not what is wanted."""
        try:
            yield
        except IntegrityError as error:
            self._require_in_place(error)
            raise
        self._require_in_place()

    def _require_in_place(self, error: Exception | None = None) -> None:
        if self._fd >= 0 and not self._prefix.is_in_place:
            raise OutdatedError(
                f"what was there of {self.name} has been moved, or written over",
                hint="it can be read when it is finished",
            ) from error

    def _tiles(self, info: LogicalVideo, psnr: float | None) -> AvailableTiles | None:
        return None

    def _note(
        self, kind: str, counted: Counted, plan: Callable[[], ReadPlan], timing: ReadTiming
    ) -> None:
        """What is not in the catalog yet is not remembered."""

    def _corrects_table(self) -> bool:
        return False


def _new_id() -> int:
    """That of no other original: decoders are kept by it."""
    return -1 - (uuid.uuid4().int >> 66)


def is_being_written(file: PartialFile) -> bool:
    """Whether the writer of a file lives, and has not finished."""
    return is_locked(file.path)
