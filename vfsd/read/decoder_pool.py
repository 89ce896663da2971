"""`DecoderPool` keeps idle decoders and recently decoded pictures within one memory budget, so
that the next read of a video need not start at a key frame.
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
from vfsd.core.atfork import leak, reset_after_fork
from vfsd.core.frame_table import DecodeRun, FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.hostinfo import available_cores
from vfsd.core.model import MediaInfo, PhysicalVideo
from vfsd.errors import ClosedError
from vfsd.read.tile_planner import decoder_threads
from vfsd.storage.context import StoreContext

P = ParamSpec("P")
T = TypeVar("T")

_MAX_PACKETS_AHEAD = 256
"""How many packets ahead of a decoder count, at most, for what keeping it is worth."""
_PIXELS_PER_BYTE = 40
"""How many pixels of a picture a decoder makes in the time that one byte of its packet takes: 25 to
58 were measured for three clips of H.264 and HEVC, 208 for one."""
_GOP_HISTORY = 32
"""How many of the groups of pictures that were read last are remembered."""
_MIN_GOPS_TO_JUDGE = 16
"""So many groups of a video have to be read before it shows whether readers come back to them."""
_MAX_IDLE_DECODERS = 32
"""Decoders that are kept warm, however small they are: each has threads and a descriptor."""
# 150 pictures of 1080p through a mount: 0.65 s with two threads, 0.61 with three and 0.60 with four
# (two cores). Next to encoders more threads only take CPU time.
_EXTRA_THREADS = 2
"""That a decoder has beyond one for each core, so that the cores are busy while somebody takes a
picture and asks for the next."""
_MAX_THREADS = 6
"""Each holds a picture of its own, and a mount has 64 MiB for each that is being made."""
_MAX_FORGOTTEN_VIDEOS = 256
"""So many of the videos that were forgotten last are known, for those who still read them then."""
_EVICTED_FRACTION = 8
"""Where the budget is full, one part in so many of it is freed at once."""


class _PooledDecoder:
    """A decoder, and the file that it reads from."""

    def __init__(
        self,
        parts: StoreContext,
        physical: PhysicalVideo,
        table: FrameTable,
        on_damage: Callable[[], None],
    ) -> None:
        self.video = physical.id
        self.credit = 0.0
        self.used = 0.0  #: when it became idle, as `time.monotonic` has it
        self._physical = physical
        self._table = table
        self._file = parts.file_of(physical).open()
        # For stores that nobody closes.
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
        """The effort that it saves all those whom it helps, for each byte of memory."""
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
    frame: VideoFrame  #: a copy: the decoder needs its own for the next pictures
    memory: int
    worth: float  #: the effort that it takes to have it again, for each byte
    credit: float = 0.0
    used: float = 0.0  #: when somebody had it last, as `time.monotonic` has it


class DecoderPool:
    """Decoders that were used lately, for whoever next reads the same video.

    Pictures that were decoded on the way to others are kept as well, where readers come back to the
    same groups of pictures.  Together with the idle decoders they hold
    `StoreSettings.decoder_memory` bytes at most, or as many as one decoder takes.  A full pool
    evicts by GreedyDual-Size (Cao and Irani, "Cost-aware WWW proxy caching algorithms", USITS
    1997): the entry worth least for its size, with its age counted in.

    Safe to use from several threads; each decoder and each kept picture has one user at a time.
    After a fork the child starts with an empty pool.
    """

    def __init__(self, parts: StoreContext, threads: int | None = None) -> None:
        self._parts = parts
        self.threads = threads or available_cores()  #: that decode side by side
        self._is_closed = False
        self.concealed: set[int] = set()
        """Encodings in which damage was concealed, and which nobody has examined for it since."""
        self._warned: set[int] = set()
        self._begin_empty()
        reset_after_fork(self)

    def _begin_empty(self) -> None:
        self._idle: list[_PooledDecoder] = []
        self._pictures: dict[tuple[int, int], _CachedPicture] = {}  # by encoding and packet
        # Pictures no longer kept, all of one video and alike, as memory for others: to the system
        # new memory is work, as much as the decoding of a picture.
        self._spare: list[_CachedPicture] = []
        self._memory = 0  # of pictures and spare ones
        self._lent = 0  # bytes that others hold of the budget
        self._groups: OrderedDict[tuple[int, int], None] = OrderedDict()  # read lately; by key
        self._forgotten: deque[int] = deque(maxlen=_MAX_FORGOTTEN_VIDEOS)
        self._level = 0.0  # the credit of what went last
        self._floor = 0.0  # the least credit of what stayed
        self._guard = threading.Lock()
        self._workers: _WorkerThreads | None = None

    def after_fork(self) -> None:
        """See `vfsd.core.atfork`."""
        # Pictures share memory, and a lock on it, with decoders that may have been at work.
        for parents in (self._idle, self._pictures, self._spare, self._workers):
            leak(parents)
        self._begin_empty()

    @property
    def memory(self) -> int:
        """Bytes that are held, roughly, with those that were lent."""
        return self._memory + self._lent + sum(warm.memory for warm in self._idle)

    def warned(self, video: int) -> bool:
        """Whether a warning of the damage of that encoding is due: it is once."""
        is_due = video not in self._warned
        self._warned.add(video)
        return is_due

    def lend(self, size: int) -> None:
        """Others hold `size` bytes more of the budget from now on; below 0: give them back."""
        with self._guard:
            self._lent += size
            if not self._fits(0):
                self._forget_spare()
            surplus = [] if self._fits(0) else self._make_room()
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
        """A decoder for that encoding, this block's own.

        With `run`, the one that has the least left to decode of it: in a long group of pictures,
        decoders that stay where their last reader left them are as good as more key pictures.
        Raises `OSError`, and `RefusedMediaError` for a file that may have crashed a mount.
        """
        with self._parts.suspects.decoding(physical):
            taken = self._take_decoder(physical.id, run, threads)
            on_damage = partial(self.concealed.add, physical.id)
            warm = taken or _PooledDecoder(self._parts, physical, table, on_damage)
            try:
                yield warm.decoder
            except BaseException:
                warm.close()  # nobody knows in what state it is
                raise
        if warm.decoder.origin.is_parent:
            warm.close()
            return
        with self._guard:
            surplus = self._take_back(warm) if self._may_keep(warm.video) else [warm]
        for old in surplus:
            old.close()

    def pictures(
        self, physical: PhysicalVideo, table: FrameTable, run: DecodeRun, *, threads: int = 1
    ) -> Iterator[tuple[int, VideoFrame]]:
        """(frame index, picture) of the frames that `run` wants, in no certain order.

        A picture is the caller's until the next is asked for.  Raises `OSError`, and
        `IntegrityError` naming the frame that the file does not yield.
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

        def keep(packet: int, picture: VideoFrame) -> None:
            # The first may be of the group before, the last beyond what was asked for.
            place = min(max(packet - run.first_packet, 0), len(efforts) - 1)
            self._keep_picture(video, packet, picture, int(efforts[place]))

        with self._guard:
            passing = keep if self._comes_back(video, run.first_packet) else None
        run = replace(run, wanted=left)
        packet_of = {frame: packet for packet, frame in left.items()}
        with self.decoder(physical, table, run, threads=threads) as decoder:
            for frame, picture in decoder.decode(run, threads=threads, passing=passing):
                yield frame, picture
                keep(packet_of[frame], picture)

    def threads_for(self, media: MediaInfo) -> int:
        """How many threads a decoder should have that works alone."""
        return decoder_threads(media, self.threads)

    def threads_ahead(self, media: MediaInfo) -> int:
        """How many it should have where something is done with each picture in between."""
        alone = self.threads_for(media)
        return alone if alone == 1 else min(self.threads + _EXTRA_THREADS, _MAX_THREADS)

    def workers(self) -> ThreadPoolExecutor:
        """Threads for runs that do not depend on each other.  Raises `ClosedError`."""
        with self._guard:
            self._require_open()
            if self._workers is None:
                self._workers = _WorkerThreads(self.threads, thread_name_prefix="decode")
            return self._workers

    def empty(self) -> None:
        """Keep nothing of what was read: no decoder, no picture, no thread.  While nobody reads."""
        with self._guard:
            idle, self._idle = self._idle, []
            self._forget_pictures()
            workers, self._workers = self._workers, None
        for warm in idle:
            warm.close()
        if workers is not None:
            workers.close()

    def cool(self, seconds: float) -> None:
        """Keep nothing that nobody has used for so long."""
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
        """Keep nothing of an encoding that nobody will ask for again, under that id.

        Decoders and pictures that are in use go when they are given back.
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
        """Nothing can be read any more; what is under way raises `ClosedError`, or ends."""
        with self._guard:
            self._is_closed = True
        self.empty()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError

    def _may_keep(self, video: int) -> bool:
        return not self._is_closed and video not in self._forgotten

    def _take_back(self, warm: _PooledDecoder) -> list[_PooledDecoder]:
        """Keep a decoder warm; gives those to be closed for that."""
        warm.credit = self._level + warm.worth(self._idle)
        warm.used = time.monotonic()
        self._idle.append(warm)
        if not self._fits(0):
            self._forget_spare()
        surplus = [] if self._fits(0) else self._make_room()
        if len(self._idle) > _MAX_IDLE_DECODERS:
            surplus.append(self._least())
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
                    # They may help the next reader where they are.
                    more = self._comes_back(video, run.first_packet) and self._fits(best.memory)
                    best = None if more else min(mine, key=lambda one: one.credit)
                self._has_come(video, run.first_packet)
            if best is not None:
                self._idle.remove(best)
            return best

    def _comes_back(self, video: int, key: int) -> bool:
        """Whether readers are likely to come back to that group of pictures.

        They are not where they read all over a long video: what is kept there is kept in vain.
        """
        return (video, key) in self._groups or (
            sum(one == video for one, _ in self._groups) < _MIN_GOPS_TO_JUDGE
        )

    def _has_come(self, video: int, key: int) -> None:
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
            if self._spare and not self._can_hold(video, picture):
                self._forget_spare()
            if not self._spare and not self._fits(size):
                if self._level + worth < self._floor:
                    return  # it would be the first to go
                surplus = self._make_room(like=(video, picture))
            copy = None
            if self._spare:
                spare = self._spare.pop()
                self._memory -= spare.memory
                copy = spare.frame
        for old in surplus:
            old.close()
        if copy is None:
            picture.make_writable()  # which gives it memory of its own
            copy = picture
        else:
            copy_picture(picture, copy)
        self._return_picture(_CachedPicture(video, packet, copy, picture_bytes(copy), worth))

    def _can_hold(self, video: int, picture: VideoFrame) -> bool:
        spare = self._spare[-1]
        return spare.video == video and is_copyable(spare.frame, picture)

    def _fits(self, more: int) -> bool:
        return self.memory + more <= self._parts.settings.decoder_memory

    def _make_room(self, like: tuple[int, VideoFrame] | None = None) -> list[_PooledDecoder]:
        """Forget what has least credit; gives the decoders to be closed.

        Pictures of the same video that are `like` that one become spare ones.
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

    def _least(self) -> _PooledDecoder:
        """The decoder with the least credit, which is forgotten."""
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
    """Those of a store; when it was closed, `submit` raises `ClosedError`."""

    _is_closed = False

    def submit(self, work: Callable[P, T], /, *args: P.args, **named: P.kwargs) -> Future[T]:
        try:
            return super().submit(work, *args, **named)
        except RuntimeError as error:
            if self._is_closed:
                raise ClosedError from error
            raise  # the system has no more threads, or the interpreter ends

    def close(self) -> None:
        """Returns when they have ended."""
        self._is_closed = True
        self.shutdown()


def _decode_efforts(physical: PhysicalVideo, table: FrameTable, first: int, end: int) -> Ints:
    """What decoding takes from packet `first` to each one before `end`, in pixels."""
    media = physical.media
    sizes = table.columns(first, end).size.astype(np.int64)
    return np.cumsum(media.width * media.height + _PIXELS_PER_BYTE * sizes)
