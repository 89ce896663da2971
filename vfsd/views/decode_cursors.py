"""Idle video decoders that keep their position.

`CursorPool` gives a reader the decoder that reaches its next frame at the lowest cost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from vfsd.codecs import VideoFrame
from vfsd.codecs.frames.to_array import FrameRegion
from vfsd.core.frame_table_pages import Ints
from vfsd.errors import DamagedFileError, IntegrityError
from vfsd.read.read_context import ReadContext
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import is_sequential, plan_pictures, tiles_avoiding_damage
from vfsd.views.view_frames import PictureConverter
from vfsd.views.view_input import ViewInput

_log = logging.getLogger(__name__)

_FRAMES_PER_PLAN = 256
"""Scattered frames are planned in batches of this size."""
_MAX_SKIPPED_FRAMES = 4
"""Decoding up to this many unused pictures is preferred to a restart at a later key frame."""
_MAX_IDLE_CURSORS = 16
"""Limit for small cursors too, because each has threads and a descriptor."""
_BUFFERED_PICTURES = 10
"""Pictures in a decoder besides those of its threads and of the reorder buffer."""


Checkpoint = Callable[[], None]
"""Returns at once, or raises `RenderCancelledError`; call it for each picture or packet."""
ByteBuffer = npt.NDArray[np.uint8]
"""The buffer that a slot is rendered into: one dimension."""
DecodedPicture = tuple[VideoFrame, FrameRegion | None]
"""A picture and the part of the stored picture that it holds; None for all of it."""


class DecodeCursor:
    """Decodes the pictures of a list of frames from a position on.  For one user at a time."""

    def __init__(
        self,
        tools: ReadContext,
        source: ViewInput,
        wanted: PictureConverter,
        frames: Ints,
        place: int,
        check: Checkpoint,
        threads: int,
    ) -> None:
        """Start decoding at `place`, an index into `frames`.

        Args:
            wanted: the form that the pictures will be converted to.
            check: called for each packet and picture; an exception that it raises ends the cursor.
            threads: decoder threads for the original.
        """
        self.check = check  #: called for each packet and picture; what it raises ends the cursor
        self._table = source.table
        self._frames = frames
        self._feed = _decoded_pictures(tools, source, wanted, frames, place, self._checked, threads)
        media = source.physical.media
        picture = media.width * media.height * 3 // 2 * (2 if media.bit_depth > 8 else 1)
        kept = _BUFFERED_PICTURES + threads + media.reorder_delay
        self.memory = picture * kept  #: bytes, roughly
        self.place = place  #: index of the next picture
        self.used = 0.0  #: when it became idle, by `time.monotonic`

    def reaches(self, place: int) -> bool:
        """Return whether decoding on to `place` costs no more than a restart there."""
        if not self.place <= place < len(self._frames):
            return False
        if place - self.place <= _MAX_SKIPPED_FRAMES:
            return True
        start = self._table.decode_run(int(self._frames[place])).first_packet
        return start <= self._table.frame(int(self._frames[self.place])).packet

    def _checked(self) -> None:
        self.check()

    def pictures(self, first: int, stop: int) -> Iterator[DecodedPicture]:
        """Yield the pictures ``first <= p < stop``; `first` is not before the current position.

        Raises `IntegrityError` if the file does not yield a frame that its table lists.
        """
        while self.place < stop:
            self.check()
            picture = next(self._feed)
            self.place += 1
            if self.place > first:
                yield picture

    def close(self) -> None:
        self.check = never_cancelled
        if self.place == len(self._frames):
            next(self._feed, None)  # the end of the stream leaves the decoder reusable
        self._feed.close()


class CursorPool:
    """Idle cursors; the least recently used are closed first.  Thread-safe.

    The decoders hold at most `budget` bytes of pictures, or one cursor of any size.  `DecoderPool`
    shrinks by the same amount.
    """

    def __init__(self, tools: ReadContext, budget: int) -> None:
        self._tools = tools
        self._budget = budget
        self._idle: list[tuple[str, DecodeCursor]] = []
        self._closed = False
        self._guard = threading.Lock()

    @contextmanager
    def borrow(
        self,
        key: str,
        source: ViewInput,
        wanted: PictureConverter,
        frames: Ints,
        place: int,
        check: Checkpoint,
        threads: int,
    ) -> Iterator[DecodeCursor]:
        """Lend a cursor at `place`, or shortly before it, for the block.

        Args:
            key: identifies the encoding, the form of the pictures and the list of frames.
            wanted: the form that the pictures will be converted to.
            check: called for each packet and picture; an exception that it raises ends the cursor.
        """
        cursor = self._take(key, place)
        if cursor is None:
            cursor = DecodeCursor(self._tools, source, wanted, frames, place, check, threads)
        cursor.check = check
        try:
            yield cursor
        except BaseException:
            cursor.close()
            raise
        if cursor.place < len(frames):
            cursor.check = never_cancelled
            self._return(key, cursor)
        else:
            cursor.close()

    def evict_idle(self, seconds: float) -> None:
        """Close the cursors that have been idle for `seconds`."""
        with self._guard:
            before = time.monotonic() - seconds
            cold = [cursor for _, cursor in self._idle if cursor.used < before]
            self._idle = [(key, cursor) for key, cursor in self._idle if cursor.used >= before]
        for cursor in cold:
            self._end(cursor)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, cursor in idle:
            self._end(cursor)

    def _take(self, key: str, place: int) -> DecodeCursor | None:
        with self._guard:
            fit = [
                number
                for number, (owner, cursor) in enumerate(self._idle)
                if owner == key and cursor.reaches(place)
            ]
            if not fit:
                return None
            best = max(fit, key=lambda number: self._idle[number][1].place)
            cursor = self._idle.pop(best)[1]
        self._tools.pool.lend(-cursor.memory)
        return cursor

    def _return(self, key: str, cursor: DecodeCursor) -> None:
        surplus = []
        self._tools.pool.lend(cursor.memory)
        cursor.used = time.monotonic()
        with self._guard:
            self._idle.append((key, cursor))
            held = sum(idle.memory for _, idle in self._idle)
            while self._idle and (
                self._closed
                or len(self._idle) > _MAX_IDLE_CURSORS
                or (held > self._budget and len(self._idle) > 1)
            ):
                _, old = self._idle.pop(0)
                held -= old.memory
                surplus.append(old)
        for old in surplus:
            self._end(old)

    def _end(self, cursor: DecodeCursor) -> None:
        """Close a cursor that was idle."""
        self._tools.pool.lend(-cursor.memory)
        cursor.close()


def never_cancelled() -> None:
    """Do nothing: an idle cursor has no reader that could cancel it."""


def _decoded_pictures(
    tools: ReadContext,
    source: ViewInput,
    wanted: PictureConverter,
    frames: Ints,
    place: int,
    check: Checkpoint,
    threads: int,
) -> Generator[DecodedPicture, None, None]:
    needed = wanted.needed_of
    tiles = source.tiles
    while place < len(frames):
        is_tiled = False
        try:
            if tiles is None or not tiles.stored:
                yield from _decoded_from_original(tools, source, frames, place, check, threads)
                return
            chunk = frames[place : place + _FRAMES_PER_PLAN]
            plan = plan_pictures(chunk, needed, wanted.form, source.physical, source.table, tiles)
            is_tiled = bool(plan.tiled)
            if not is_tiled:
                for shown in _decoded_from_original(tools, source, chunk, 0, check, threads):
                    yield shown
                    place += 1
                continue
            for places, picture, held in PlanExecutor(source.table, tools).pictures(plan, needed):
                for _ in places:
                    yield picture, held
                place += len(places)
        except DamagedFileError as error:
            tiles = tiles_avoiding_damage(tiles, error)
        except (IntegrityError, FileNotFoundError) as error:
            if not is_tiled:
                raise
            _log.warning("a view is rendered from the original, not from tiles: %s", error)
            tools.drop_damaged_tiles(error)
            tiles = None


def _decoded_from_original(
    tools: ReadContext,
    source: ViewInput,
    frames: Ints,
    place: int,
    check: Checkpoint,
    threads: int,
) -> Generator[DecodedPicture, None, None]:
    physical, table, pool = source.physical, source.table, tools.pool
    rest = frames[place:]
    if is_sequential(rest):
        with pool.decoder(physical, table) as decoder:
            first, stop = int(rest[0]), int(rest[-1]) + 1
            pictures = decoder.stream(first, stop, threads=threads, before_packet=check)
            for _, picture in pictures:
                yield picture, None
        return
    for start in range(0, len(rest), _FRAMES_PER_PLAN):
        chunk = rest[start : start + _FRAMES_PER_PLAN]
        times = dict(zip(*np.unique(chunk, return_counts=True), strict=True))
        for run in table.decode_runs(chunk.tolist()):
            with pool.decoder(physical, table, run, threads=threads) as decoder:
                pictures = decoder.decode(run, threads=threads, before_packet=check)
                for index, picture in pictures:
                    for _ in range(int(times[index])):
                        yield picture, None
