"""`GrowingVideo`: the complete part of a video that is still being written."""

from __future__ import annotations

import io
import os
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import NoReturn

from vfsd.api.video import Video
from vfsd.codecs.probing.growing_fmp4 import GrowingFmp4
from vfsd.codecs.probing.probe import Examination
from vfsd.core.frame_table import GrowingTable
from vfsd.core.frames import Frame
from vfsd.core.model import Access, LogicalVideo
from vfsd.disk.safe_open import open_stored
from vfsd.disk.tempfiles import is_locked
from vfsd.errors import (
    BusyError,
    IntegrityError,
    OutdatedError,
    RefusedMediaError,
    UsageError,
)
from vfsd.read.read_context import ReadContext, VideoContext, VideoSnapshot
from vfsd.read.read_log import ReadTiming
from vfsd.read.read_plan import AvailableTiles, ReadPlan
from vfsd.storage.context import StoreContext
from vfsd.write.ingest_file import describe_original
from vfsd.write.unfinished_files import PartialFile

_LOOK_SECONDS = 0.2
_REST = 4
"""`follow` waits this many times as long as its last look at the file took."""


class GrowingVideo(Video):
    """The frames of a video that is being written, as far as they are certain; exact.

        with store.growing("cam1/live.mp4") as video:
            for frame in video.follow():
                ...

    Its length is that at the time of opening or of the last `refresh`.  Frames that it has returned
    are the same in the finished video.  Reads still work when the writer has finished or died.
    The catalog has no record of it, so `labels`, `tiles`, `save` and so on raise `UsageError` until
    the video is finished and opened by its name.  Reads raise `OutdatedError` where the writer has
    moved earlier bytes.
    """

    _context: GrowingContext

    def __init__(self, context: GrowingContext) -> None:
        """Use `Store.growing`."""
        super().__init__(context)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; later reads raise an error."""
        self._context.close()

    def file(self) -> io.BufferedReader:
        """The complete part of the file, with all of its streams, sound too.

            with live.file() as file, av.open(file) as opened:
                ...

        Readable and seekable: a fragmented file that every decoder takes.  It ends where the video
        ended at opening or at the last `refresh`, and remains readable after `close`.  The caller
        closes it.
        """
        return self._context.file()

    def refresh(self) -> bool:
        """Look for new frames; returns whether more may come.

        Raises `RefusedMediaError` where new bytes do not continue the earlier ones, or these have
        been moved.
        """
        return self._context.refresh()

    def follow(self, start: int = 0) -> Iterator[Frame]:
        """Every frame from number `start` on, each as soon as it is complete.

        Ends when the writer has finished or died.  Raises `UsageError` for a negative number.
        """
        if start < 0:
            raise UsageError(f"start must be 0 or more, got {start}", hint="count from 0")
        return self._followed(start)

    def _followed(self, start: int) -> Iterator[Frame]:
        more, pause = True, threading.Event()
        while True:
            end = len(self)  # another thread may refresh between two frames
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


class GrowingContext(VideoContext):
    """The inner state of a `GrowingVideo`.  Its record and frame table are not in the catalog."""

    def __init__(
        self,
        parts: StoreContext,
        tools: ReadContext,
        name: str,
        path: str,
        is_written: Callable[[], bool],
    ) -> None:
        """`is_written` returns whether more may come.

        Raises `BusyError` while the file has no complete part, `RefusedMediaError` where it never
        will, `OSError` where it is gone.
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
            super().__init__(tools, info)
            self._growing = GrowingTable(original.time_base)
            self._growing.extend(found.columns, found.order, found.end_pts)
            self.adopt(info, self._growing)
        except BaseException:
            os.close(self._fd)
            raise

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.name!r} is still being written and cannot be pickled: "
            "open it by its name in the other process"
        )

    def _first_part(self, name: str) -> Examination:
        """The complete part at opening.  Raises `BusyError`, `RefusedMediaError`."""
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
                f"{name!r} is being finished: the whole file is there, and is examined",
                hint="open it by its name in a moment",
            )
        if found is None:
            raise BusyError(
                f"nothing can be read of {name!r} yet{why}",
                hint="fragmented mp4 and mov can be read while they are written, from their "
                "first whole fragment on; others when they are finished",
            )
        return found

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        super().after_fork()
        self._refreshing = threading.Lock()

    def close(self) -> None:
        with self._refreshing:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self.tools.pool.forget(self.original.id)

    def file(self) -> io.BufferedReader:
        """See `GrowingVideo.file`."""
        with self._refreshing:
            self._require_open()
            return self._prefix.file()

    def refresh(self) -> bool:
        """See `GrowingVideo.refresh`."""
        with self._refreshing:
            self._require_open()
            more = self._is_written()  # before looking: later bytes are found by the next look
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
            info = replace(self.info, size=original.size, original=original)
            self.adopt(info, self._growing)
            if original.id != outdated:
                self.tools.pool.forget(outdated)
            return more

    def _require_open(self) -> None:
        if self._fd < 0:
            raise UsageError(f"{self.name!r} was closed")

    def _id_with(self, found: Examination) -> int:
        """The id of the original from now on."""
        original = self.original
        # Decoders that reorder fewer frames give wrong results now, and demuxers that reached the
        # end do not go on.  Another id makes new ones.
        holds_more = found.media.reorder_delay > original.media.reorder_delay
        return _new_id() if holds_more or found.access is not Access.EXTENT else original.id

    def checking(self) -> AbstractContextManager[None]:
        return self._in_place()

    def checked(self, frames: Generator[Frame, None, None]) -> Generator[Frame, None, None]:
        while True:
            with self._in_place():
                frame = next(frames, None)
            if frame is None:
                return
            yield frame

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """Raise `OutdatedError` where the bytes of a read were moved, or overwritten, before it
        ended."""
        try:
            yield
        except IntegrityError as error:
            self._require_in_place(error)
            raise
        self._require_in_place()

    def _require_in_place(self, error: Exception | None = None) -> None:
        if self._fd >= 0 and not self._prefix.is_in_place:
            raise OutdatedError(
                f"earlier bytes of {self.name} have been moved, or overwritten",
                hint="it can be read when it is finished",
            ) from error

    def tiles(self, info: LogicalVideo, psnr: float | None) -> AvailableTiles | None:
        return None

    def note(
        self, kind: str, snapshot: VideoSnapshot, plan: Callable[[], ReadPlan], timing: ReadTiming
    ) -> None:
        """The read log has no reads of videos that the catalog does not have."""

    def require_finished(self, what: str) -> None:
        raise UsageError(
            f"the video must be finished for {what}, but {self.name!r} is still being written",
            hint="open it by its name when its writer has closed it",
        )


def _new_id() -> int:
    """An id of no other original, because decoders are cached by it."""
    return -1 - (uuid.uuid4().int >> 66)


def is_being_written(file: PartialFile) -> bool:
    """Whether the writer of a file lives, and has not finished."""
    return is_locked(file.path)
