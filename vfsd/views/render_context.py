"""`RenderContext`: state that all renders of a process share.

It includes `CursorPool`, the idle video decoders that keep their position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vfsd.codecs import VideoFrame
from vfsd.codecs.audio.audio_decoder import AudioDecoder, AudioPacketReader, audio_packet_reader
from vfsd.codecs.decoding.packet_decoder import PacketReader
from vfsd.codecs.frames.to_array import FrameRegion
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import PhysicalVideo, Sound
from vfsd.derive.promotion_candidates import CandidateIndex
from vfsd.errors import DamagedFileError, IntegrityError
from vfsd.read.pack_pool import PackPool
from vfsd.read.read_context import ReadContext
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import is_sequential, plan_pictures, tiles_avoiding_damage
from vfsd.storage.context import StoreContext
from vfsd.storage.file_cache import FileCache
from vfsd.storage.quarantine import Quarantine
from vfsd.views.view_input import PictureConverter, ViewInput

_log = logging.getLogger(__name__)

# Scattered frames are planned in batches of this size.
_FRAMES_PER_PLAN = 256
# Decoding up to this many unused pictures is preferred to a restart at a later key frame.
_MAX_SKIPPED_FRAMES = 4
# Limit for small cursors too, because each has threads and a descriptor.
_MAX_IDLE_CURSORS = 16
# Pictures in a decoder besides those of its threads and of the reorder buffer.
_BUFFERED_PICTURES = 10
T = TypeVar("T")
# Codecs that encode in the calling thread; the others use threads of their own.
_SINGLE_THREADED_CODECS = ("h264", "mjpeg")
_MAX_IDLE_READERS = 4
_CHECK_SECONDS = 0.1
# Pictures farther apart than this rarely share a group of pictures.
_NEARBY_FRAMES = 512

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


class EncodeTimes:
    """Sums of pixels and CPU seconds, by codec.  Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._sums: dict[str, tuple[int, float]] = {}

    def add(self, codec: str, pixels: int, seconds: float) -> None:
        """Add `seconds` of CPU time of the calling thread for encoding `pixels`."""
        if codec not in _SINGLE_THREADED_CODECS:
            return
        with self._guard:
            before = self._sums.get(codec, (0, 0.0))
            self._sums[codec] = before[0] + pixels, before[1] + seconds

    def take(self, least: int) -> dict[str, float]:
        """Remove the sums of at least `least` pixels and return CPU seconds per pixel, by codec."""
        with self._guard:
            full = {codec: one for codec, one in self._sums.items() if one[0] >= least}
            for codec in full:
                del self._sums[codec]
        return {codec: seconds / pixels for codec, (pixels, seconds) in full.items()}


class EncodeTimer:
    """CPU time of this thread inside an encoder, without the time for producing its pictures."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def given(self, pictures: Iterator[T]) -> Iterator[T]:
        """Yield `pictures`; their production does not count."""
        while True:
            began = time.thread_time()
            picture = next(pictures, None)
            self.seconds -= time.thread_time() - began
            if picture is None:
                return
            yield picture

    def taken(self, packets: Iterator[bytes]) -> Iterator[bytes]:
        """Yield `packets`; their production counts."""
        while True:
            began = time.thread_time()
            packet = next(packets, None)
            self.seconds += time.thread_time() - began
            if packet is None:
                return
            yield packet


ViewAudioReader = AudioPacketReader | AudioDecoder


class PacketReaders:
    """Idle packet readers, at most `_MAX_IDLE_READERS`.  Thread-safe.

    A reader keeps its position, which matters for containers that FFmpeg has to demux in sequence.
    """

    def __init__(self, suspects: Quarantine) -> None:
        self._suspects = suspects
        self._idle: list[tuple[str, ViewAudioReader]] = []
        self._most = _MAX_IDLE_READERS
        self._guard = threading.Lock()

    @contextmanager
    def reader(self, source: ViewInput) -> Iterator[PacketReader]:
        """Lend a packet reader for the block.  Raises `OSError`."""
        physical = source.physical

        def make() -> PacketReader:
            return PacketReader(source.path, physical.media, physical.access, source.table)

        with self._borrowed(physical, source.key, make) as reader:
            assert isinstance(reader, PacketReader)
            yield reader

    @contextmanager
    def audio_reader(
        self, source: ViewInput, sound: Sound, table: FrameTable
    ) -> Iterator[AudioPacketReader]:
        """Lend a reader of audio packets."""

        def make() -> ViewAudioReader:
            return audio_packet_reader(source.path, source.physical.media, sound, table)

        with self._borrowed(source.physical, f"{source.key}/sound", make) as reader:
            assert not isinstance(reader, AudioDecoder)
            yield reader

    @contextmanager
    def audio_samples(
        self, source: ViewInput, sound: Sound, table: FrameTable, layout: str | None
    ) -> Iterator[AudioDecoder]:
        """Lend a decoder of audio samples in the given channel layout; None: as stored."""

        def make() -> ViewAudioReader:
            media = source.physical.media
            return AudioDecoder(source.path, media, sound, table, layout, source.damage)

        with self._borrowed(source.physical, f"{source.key}/samples/{layout}", make) as reader:
            assert isinstance(reader, AudioDecoder)
            yield reader

    @contextmanager
    def _borrowed(
        self, physical: PhysicalVideo, key: str, make: Callable[[], ViewAudioReader]
    ) -> Iterator[ViewAudioReader]:
        with self._suspects.decoding(physical):  # FFmpeg demuxes some containers
            reader = self._take(key) or make()
            try:
                yield reader
            except BaseException:
                reader.close()
                raise
        with self._guard:
            self._idle.append((key, reader))
            surplus = self._idle[: max(0, len(self._idle) - self._most)]
            del self._idle[: len(surplus)]
        for _, old in surplus:
            old.close()

    def close(self) -> None:
        with self._guard:
            self._most = 0
            idle, self._idle = self._idle, []
        for _, reader in idle:
            reader.close()

    def _take(self, key: str) -> ViewAudioReader | None:
        with self._guard:
            for number in range(len(self._idle) - 1, -1, -1):
                if self._idle[number][0] == key:
                    return self._idle.pop(number)[1]
        return None


class DecodeLocks:
    """Lets one thread at a time decode in one part of a view; the earliest frame goes first.

    Segments of a file are rendered in parallel.  Separate decoders would decode the same group of
    pictures several times.  A thread that is far from all others does not wait for them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: list[tuple[str, int]] = []
        self._waiting: list[tuple[str, int]] = []

    @contextmanager
    def acquire(self, key: str, place: int, check: Checkpoint = never_cancelled) -> Iterator[None]:
        """Hold the lock around picture `place` for the block.  Raises what `check` raises."""
        me = (key, place)
        with self._changed:
            self._waiting.append(me)
            try:
                while not self._changed.wait_for(lambda: self._may_start(me), _CHECK_SECONDS):
                    check()
                # From here on, threads nearby wait until the pictures are decoded.
                self._busy.append(me)
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._busy.remove(me)
                self._changed.notify_all()

    def _may_start(self, me: tuple[str, int]) -> bool:
        is_first = all(me <= other for other in self._waiting if _are_nearby(me, other))
        return is_first and not any(_are_nearby(me, other) for other in self._busy)


def _are_nearby(one: tuple[str, int], other: tuple[str, int]) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) <= _NEARBY_FRAMES


class RenderContext:
    """Decoders, readers and locks that all renders of a process share."""

    def __init__(self, parts: StoreContext, tools: ReadContext, files: FileCache | None) -> None:
        """`files` is the cache that segments are kept in; None for a store that is read-only."""
        self._candidate_files = files if parts.settings.admit_views else None
        self.times = EncodeTimes()  #: shared with the copies of `checked`
        self.pool = tools.pool
        self.drop_damaged_tiles = tools.drop_damaged_tiles
        self.check: Checkpoint = never_cancelled
        self.readers = PacketReaders(parts.quarantine)
        self._tools = tools
        # Half, so that single reads keep idle decoders as well.
        self._cursors = CursorPool(tools, parts.settings.decoder_memory // 2)
        self._locks = DecodeLocks()

    @property
    def candidates(self) -> CandidateIndex | None:
        """Collects segments that may become part of a rendition; None if none are wanted."""
        return None if self._candidate_files is None else CandidateIndex(self._candidate_files)

    @property
    def packs(self) -> PackPool:
        return self._tools.packs

    def checked(self, check: Checkpoint) -> RenderContext:
        """Return the same context with another cancel check, for one task."""
        copied = copy(self)
        copied.check = check
        return copied

    def cursor(
        self,
        key: str,
        source: ViewInput,
        wanted: PictureConverter,
        frames: Ints,
        place: int,
        threads: int,
    ) -> AbstractContextManager[DecodeCursor]:
        """See `CursorPool.borrow`."""
        return self._cursors.borrow(key, source, wanted, frames, place, self.check, threads)

    def decode_lock(self, key: str, place: int) -> AbstractContextManager[None]:
        """See `DecodeLocks.acquire`."""
        return self._locks.acquire(key, place, self.check)

    def evict_idle(self, seconds: float) -> None:
        """Close decoders and drop pictures that have been idle for `seconds`."""
        self._cursors.evict_idle(seconds)
        self._tools.evict_idle(seconds)

    def close(self) -> None:
        self._cursors.close()
        self.readers.close()
