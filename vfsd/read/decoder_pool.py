"""`DecoderPool` keeps idle decoders and recently decoded pictures within one memory budget.

The next read of a video can continue there instead of starting at a key frame.

- Decoders stay where the last reader stopped, undrained, because draining ruins them for the next
  read. Pictures decoded on the way are copied and kept.
- Both share ``decoder_memory``; GreedyDual-Size evicts the entry that saves the least decoding for
  its bytes.
- On the way to a frame, pictures without references are skipped: a segment 190 frames after its key
  frame takes 1.45 to 1.58 s of CPU instead of 1.70 to 1.83.
- The caller's thread decodes the original, whose decoder has threads of its own. Decoding it ahead
  on a worker was not faster.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import ParamSpec, TypeVar

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.frames.planes import copy_picture, is_copyable, picture_bytes
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo, PhysicalVideo
from vfsd.core.process_control import leak, reset_after_fork
from vfsd.errors import ClosedError
from vfsd.storage.context import StoreContext

P = ParamSpec("P")
T = TypeVar("T")

_MAX_PACKETS_AHEAD = 256
"""Packets ahead of a decoder that count for its value, at most."""
_PIXELS_PER_BYTE = 40
"""Pixels that a decoder produces in the time that one byte of a packet takes.

Measured: 25 to 58 for three clips of H.264 and HEVC, 208 for one."""
_GOP_HISTORY = 32
"""Number of recently read groups of pictures that are remembered."""
_MIN_GOPS_TO_JUDGE = 16
"""Groups of a video that must be read before the pool can tell whether readers return to them."""
_MAX_IDLE_DECODERS = 32
"""Limit for small decoders too, because each has threads and a descriptor."""
# 150 pictures of 1080p through a mount: 0.65 s with two threads, 0.61 with three and 0.60 with four
# (two cores).  Next to encoders more threads only take CPU time.
_EXTRA_THREADS = 2
"""Decoder threads beyond one per core, to keep the cores busy while the caller handles a
picture."""
_MAX_THREADS = 6
"""Each thread holds a picture, and a mount has 64 MiB for the pictures of each read."""
_MAX_FORGOTTEN_VIDEOS = 256
"""Number of removed videos that are remembered, for reads that still use them."""
_EVICTED_FRACTION = 8
"""A full pool frees this fraction of the budget at once."""


class _PooledDecoder:
    """A decoder and the open file that it reads."""

    def __init__(
        self,
        parts: StoreContext,
        physical: PhysicalVideo,
        table: FrameTable,
        on_damage: Callable[[], None],
    ) -> None:
        self.video = physical.id
        self.credit = 0.0
        self.used = 0.0  #: when it became idle, by `time.monotonic`
        self._physical = physical
        self._table = table
        self._file = parts.originals.file_of(physical).open()
        # closes the file of a store that was not closed
        self._dropping = weakref.finalize(self, self._file.close)
        self._dropping.atexit = False
        try:
            self.decoder = FrameDecoder(
                self._file, physical.media, physical.access, table, on_damage=on_damage
            )
        except BaseException:
            self._dropping()
            raise

    @property
    def memory(self) -> int:
        return self.decoder.memory

    def worth(self, others: Iterable[_PooledDecoder]) -> float:
        """Return the effort that this decoder saves its possible users, per byte of memory."""
        fed = self.decoder.fed
        if not fed:
            return 0.0
        key, end = self._table.group(fed - 1, _MAX_PACKETS_AHEAD)
        ahead = [other.decoder.fed for other in others if other.video == self.video]
        helped = min(min((place for place in ahead if place > fed), default=end), end) - fed
        return (
            int(_decode_efforts(self._physical, self._table, key, fed)[-1]) * helped / self.memory
        )

    def close(self) -> None:
        self.decoder.close()
        self._dropping()


@dataclass(slots=True)
class _CachedPicture:
    video: int  #: id of the encoding
    packet: int
    frame: VideoFrame  #: a copy, because the decoder reuses its own buffers
    memory: int
    worth: float  #: the effort to decode it again, per byte
    credit: float = 0.0
    used: float = 0.0  #: last use, by `time.monotonic`


class DecoderPool:
    """Recently used decoders and pictures, for the next reads of the same videos.

    Pictures that were decoded on the way to others are kept too, if readers return to the same
    groups of pictures. All together hold at most `StoreSettings.decoder_memory` bytes, or one
    decoder of any size.  A full pool evicts by GreedyDual-Size (Cao and Irani, "Cost-aware WWW
    proxy caching algorithms", USITS 1997): the entry that saves least for its size, aged by past
    evictions.

    Thread-safe; each decoder and each kept picture has one user at a time.  After a fork the child
    starts with an empty pool.
    """

    def __init__(self, parts: StoreContext, threads: int) -> None:
        """`threads` decode in parallel."""
        self._parts = parts
        self.threads = threads
        self._is_closed = False
        self.concealed: set[int] = set()
        """Encodings with concealed damage that was not examined yet."""
        self._warned: set[int] = set()
        self._begin_empty()
        reset_after_fork(self)

    def _begin_empty(self) -> None:
        self._idle: list[_PooledDecoder] = []
        self._pictures: dict[tuple[int, int], _CachedPicture] = {}  # by encoding and packet
        # Evicted pictures of one video and one format whose memory is reused: allocating new memory
        # costs as much as decoding a picture.
        self._spare: list[_CachedPicture] = []
        self._memory = 0  # of pictures, including the spare ones
        self._lent = 0  # bytes of the budget that other pools use
        # recently read, by key packet
        self._groups: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._forgotten: deque[int] = deque(maxlen=_MAX_FORGOTTEN_VIDEOS)
        self._level = 0.0  # the credit of the last evicted entry
        self._floor = 0.0  # the least credit of the remaining entries
        self._guard = threading.Lock()
        self._workers: _WorkerThreads | None = None

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        # Pictures share memory and its lock with decoders that may have been running at the fork.
        for parents in (self._idle, self._pictures, self._spare, self._workers):
            leak(parents)
        self._begin_empty()

    @property
    def memory(self) -> int:
        """Approximate bytes in use, including lent ones."""
        return self._memory + self._lent + sum(warm.memory for warm in self._idle)

    def should_warn(self, video: int) -> bool:
        """Return whether to warn about damage of that encoding: True once, then False."""
        is_due = video not in self._warned
        self._warned.add(video)
        return is_due

    def lend(self, size: int) -> None:
        """Let other pools use `size` more bytes of the budget; a negative size returns them."""
        with self._guard:
            self._lent += size
            if not self._fits(0):
                self._forget_spare()
            surplus = [] if self._fits(0) else self._evict()
        for old in surplus:
            old.close()

    @contextmanager
    def decoder(
        self,
        physical: PhysicalVideo,
        table: FrameTable,
        run: DecodeRun | None = None,
        *,
        threads: int = 1,
    ) -> Iterator[FrameDecoder]:
        """Lend a decoder of that encoding for the block.

        With `run`, this is the one with the least left to decode: in a long group of pictures,
        decoders that stay at their last position save as much as additional key pictures.  Raises
        `OSError`, and `RefusedMediaError` for a file that may have crashed a mount.
        """
        with self._parts.quarantine.decoding(physical):
            taken = self._take_decoder(physical.id, run, threads)
            on_damage = partial(self.concealed.add, physical.id)
            warm = taken or _PooledDecoder(self._parts, physical, table, on_damage)
            try:
                yield warm.decoder
            except BaseException:
                warm.close()  # its state is unknown
                raise
        if warm.decoder.origin.is_parent:
            warm.close()
            return
        with self._guard:
            surplus = self._take_back(warm) if self._may_keep(warm.video) else [warm]
        for old in surplus:
            old.close()

    def pictures(
        self,
        physical: PhysicalVideo,
        table: FrameTable,
        run: DecodeRun,
        *,
        threads: int = 1,
        keep: bool = True,
    ) -> Iterator[tuple[int, VideoFrame]]:
        """Yield (frame index, picture) of the frames that `run` wants, in any order.

        A picture is valid until the next iteration.  Without `keep`, no picture is copied for later
        reads; the copies take up to a quarter of the time.  Raises `OSError`, and `IntegrityError`
        for a frame that the file does not yield.
        """
        video = physical.id
        left: dict[int, int] = {}
        for packet, frame in run.wanted.items():
            kept = self._take_picture(video, packet)
            if kept is None:
                left[packet] = frame
                continue
            try:
                yield frame, kept.frame
            finally:
                self._return_picture(kept)
        if not left:
            return

        efforts = _decode_efforts(physical, table, run.first_packet, run.end_packet)

        def store(packet: int, picture: VideoFrame) -> None:
            # The first may belong to the previous group, and the last lie beyond the run.
            place = min(max(packet - run.first_packet, 0), len(efforts) - 1)
            self._keep_picture(video, packet, picture, int(efforts[place]))

        with self._guard:
            is_likely = keep and self._is_revisited(video, run.first_packet)
            passing = store if is_likely else None
            # A reader that returns to a group is likely to continue there.
            may_drain = not (
                self._parts.objects.is_local or (video, run.first_packet) in self._groups
            )
        run = replace(run, wanted=left)
        packet_of = {frame: packet for packet, frame in left.items()}
        with self.decoder(physical, table, run, threads=threads) as decoder:
            for frame, picture in decoder.decode(
                run, threads=threads, passing=passing, may_drain=may_drain
            ):
                yield frame, picture
                if keep:
                    store(packet_of[frame], picture)

    def threads_for(self, media: MediaInfo) -> int:
        """Return the number of threads for the only running decoder."""
        return media.decoder_threads(self.threads)

    def threads_ahead(self, media: MediaInfo) -> int:
        """Return the number of threads for a decoder whose pictures are processed in between."""
        alone = self.threads_for(media)
        return alone if alone == 1 else min(self.threads + _EXTRA_THREADS, _MAX_THREADS)

    def workers(self) -> ThreadPoolExecutor:
        """Return the executor for independent runs.  Raises `ClosedError`."""
        with self._guard:
            self._require_open()
            if self._workers is None:
                self._workers = _WorkerThreads(self.threads, thread_name_prefix="decode")
            return self._workers

    def empty(self) -> None:
        """Drop all decoders, pictures and threads.  There must be no running reads."""
        with self._guard:
            idle, self._idle = self._idle, []
            self._forget_pictures()
            workers, self._workers = self._workers, None
        for warm in idle:
            warm.close()
        if workers is not None:
            workers.close()

    def evict_idle(self, seconds: float) -> None:
        """Drop everything that has been idle for `seconds`."""
        with self._guard:
            before = time.monotonic() - seconds
            cold = [warm for warm in self._idle if warm.used < before]
            self._idle = [warm for warm in self._idle if warm.used >= before]
            for key, picture in list(self._pictures.items()):
                if picture.used < before:
                    del self._pictures[key]
                    self._memory -= picture.memory
            if all(spare.used < before for spare in self._spare):
                self._forget_spare()
        for warm in cold:
            warm.close()

    def forget(self, video: int) -> None:
        """Drop everything of an encoding that was removed.

        Decoders and pictures in use are dropped when they are returned.
        """
        with self._guard:
            self._forgotten.append(video)
            dead = [warm for warm in self._idle if warm.video == video]
            self._idle = [warm for warm in self._idle if warm.video != video]
            for key in [key for key in self._pictures if key[0] == video]:
                self._memory -= self._pictures.pop(key).memory
            if self._spare and self._spare[0].video == video:
                self._forget_spare()
            for key in [key for key in self._groups if key[0] == video]:
                del self._groups[key]
        for warm in dead:
            warm.close()

    def close(self) -> None:
        """Close the pool: later reads raise `ClosedError`, and running ones raise it or end."""
        with self._guard:
            self._is_closed = True
        self.empty()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError

    def _may_keep(self, video: int) -> bool:
        return not self._is_closed and video not in self._forgotten

    def _take_back(self, warm: _PooledDecoder) -> list[_PooledDecoder]:
        """Keep a decoder and return those to close instead."""
        warm.credit = self._level + warm.worth(self._idle)
        warm.used = time.monotonic()
        self._idle.append(warm)
        if not self._fits(0):
            self._forget_spare()
        surplus = [] if self._fits(0) else self._evict()
        if len(self._idle) > _MAX_IDLE_DECODERS:
            surplus.append(self._evict_least())
        return surplus

    def _take_decoder(
        self, video: int, run: DecodeRun | None, threads: int
    ) -> _PooledDecoder | None:
        with self._guard:
            self._require_open()
            mine = [warm for warm in self._idle if warm.video == video]
            if run is None:
                best = mine[-1] if mine else None
            else:
                leads = {one: one.decoder.lead(run, threads=threads) for one in mine}
                best = max(leads, key=leads.__getitem__, default=None)
                if best is not None and not leads[best]:
                    # They may help the next reader at their present position.
                    more = self._is_revisited(video, run.first_packet) and self._fits(best.memory)
                    best = None if more else min(mine, key=lambda one: one.credit)
                self._note_visit(video, run.first_packet)
            if best is not None:
                self._idle.remove(best)
            return best

    def _is_revisited(self, video: int, key: int) -> bool:
        """Return whether readers are likely to return to that group of pictures.

        With scattered reads in a long video they are not, and keeping pictures would be useless.
        """
        return (video, key) in self._groups or (
            sum(one == video for one, _ in self._groups) < _MIN_GOPS_TO_JUDGE
        )

    def _note_visit(self, video: int, key: int) -> None:
        self._groups[video, key] = None
        self._groups.move_to_end((video, key))
        if len(self._groups) > _GOP_HISTORY:
            self._groups.popitem(last=False)

    def _take_picture(self, video: int, packet: int) -> _CachedPicture | None:
        with self._guard:
            picture = self._pictures.pop((video, packet), None)
            if picture is not None:
                self._memory -= picture.memory
            return picture

    def _return_picture(self, picture: _CachedPicture) -> None:
        with self._guard:
            picture.credit = self._level + picture.worth
            picture.used = time.monotonic()
            is_kept = (picture.video, picture.packet) in self._pictures
            if not is_kept and self._may_keep(picture.video):
                self._pictures[picture.video, picture.packet] = picture
                self._memory += picture.memory

    def _keep_picture(self, video: int, packet: int, picture: VideoFrame, effort: int) -> None:
        size = picture_bytes(picture)
        worth = effort / size
        surplus: list[_PooledDecoder] = []
        with self._guard:
            if not self._may_keep(video):
                return
            if (video, packet) in self._pictures:
                self._pictures[video, packet].credit = self._level + worth
                return
            if self._spare and not self._fits_spare(video, picture):
                self._forget_spare()
            if not self._spare and not self._fits(size):
                if self._level + worth < self._floor:
                    return  # it would be evicted first
                surplus = self._evict(like=(video, picture))
            copy = None
            if self._spare:
                spare = self._spare.pop()
                self._memory -= spare.memory
                copy = spare.frame
        for old in surplus:
            old.close()
        if copy is None:
            picture.make_writable()  # moves it to memory of its own
            copy = picture
        else:
            copy_picture(picture, copy)
        self._return_picture(_CachedPicture(video, packet, copy, picture_bytes(copy), worth))

    def _fits_spare(self, video: int, picture: VideoFrame) -> bool:
        spare = self._spare[-1]
        return spare.video == video and is_copyable(spare.frame, picture)

    def _fits(self, more: int) -> bool:
        return self.memory + more <= self._parts.settings.decoder_memory

    def _evict(self, like: tuple[int, VideoFrame] | None = None) -> list[_PooledDecoder]:
        """Evict the entries with the least credit and return the decoders to close.

        Pictures of the same video in the format of `like` become spare ones.
        """
        surplus: list[_PooledDecoder] = []
        budget = self._parts.settings.decoder_memory
        missing = self.memory - budget + budget // _EVICTED_FRACTION
        kept: list[_CachedPicture | _PooledDecoder] = [*self._pictures.values(), *self._idle]
        kept.sort(key=lambda one: one.credit)
        while len(kept) > 1 and missing > 0:
            one = kept.pop(0)
            self._level = one.credit
            missing -= one.memory
            if isinstance(one, _PooledDecoder):
                self._idle.remove(one)
                surplus.append(one)
                continue
            del self._pictures[one.video, one.packet]
            if like is not None and one.video == like[0] and is_copyable(one.frame, like[1]):
                self._spare.append(one)
            else:
                self._memory -= one.memory
        self._floor = kept[0].credit if kept else 0.0
        return surplus

    def _evict_least(self) -> _PooledDecoder:
        """Remove and return the decoder with the least credit."""
        least = min(self._idle, key=lambda warm: warm.credit)
        self._level = max(self._level, least.credit)
        self._idle.remove(least)
        return least

    def _forget_spare(self) -> None:
        self._memory -= sum(spare.memory for spare in self._spare)
        self._spare.clear()

    def _forget_pictures(self) -> None:
        self._pictures.clear()
        self._spare.clear()
        self._memory = 0


class _WorkerThreads(ThreadPoolExecutor):
    """The worker threads of a store; after `close`, `submit` raises `ClosedError`."""

    _is_closed = False

    def submit(self, work: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> Future[T]:
        try:
            return super().submit(work, *args, **named)
        except RuntimeError as error:
            if self._is_closed:
                raise ClosedError from error
            raise  # no more threads, or the interpreter is shutting down

    def close(self) -> None:
        """Wait for all threads to end."""
        self._is_closed = True
        self.shutdown()


def _decode_efforts(physical: PhysicalVideo, table: FrameTable, first: int, end: int) -> Ints:
    """Return the effort from packet `first` to each packet before `end`, in pixels."""
    media = physical.media
    sizes = table.columns(first, end).size.astype(np.int64)
    return np.cumsum(media.width * media.height + _PIXELS_PER_BYTE * sizes)
