"""`RenderContext`: state that all renders of a process share.

It holds the pools of decoders and packet readers, the decode locks, and the CPU time that encoders
took.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import TypeVar

from vfsd.codecs.audio.audio_decoder import AudioDecoder
from vfsd.codecs.audio.audio_packets import AudioPacketReader, audio_packet_reader
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import PhysicalVideo, Sound
from vfsd.derive.promotion_candidates import CandidateIndex
from vfsd.read.read_context import ReadContext
from vfsd.storage.quarantine import Quarantine
from vfsd.views.decode_cursors import Checkpoint, CursorPool, DecodeCursor, never_cancelled
from vfsd.views.view_frames import PictureConverter
from vfsd.views.view_input import ViewInput

T = TypeVar("T")

_SINGLE_THREADED_CODECS = ("h264", "mjpeg")
"""Codecs that encode in the calling thread; the others use threads of their own."""


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

_MAX_IDLE_READERS = 4
_CHECK_SECONDS = 0.1
_NEARBY_FRAMES = 512
"""Pictures farther apart than this rarely share a group of pictures."""


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
        self, source: ViewInput, sound: Sound, table: FrameTable, layout: str
    ) -> Iterator[AudioDecoder]:
        """Lend a decoder of audio samples in the given channel layout."""

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
        foremost = all(me <= other for other in self._waiting if _are_nearby(me, other))
        return foremost and not any(_are_nearby(me, other) for other in self._busy)


def _are_nearby(one: tuple[str, int], other: tuple[str, int]) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) <= _NEARBY_FRAMES


class RenderContext:
    """Decoders, readers and locks that all renders of a process share."""

    def __init__(
        self,
        tools: ReadContext,
        memory: int,
        suspects: Quarantine,
        candidates: CandidateIndex | None = None,
    ) -> None:
        """Create the pools.

        Args:
            memory: bytes that idle decoders may hold.
            candidates: collects segments that may become part of a rendition; None to collect none.
        """
        self.candidates = candidates
        self.times = EncodeTimes()  #: shared with the copies of `checked`
        self.pool = tools.pool
        self.packs = tools.packs
        self.drop_damaged_tiles = tools.drop_damaged_tiles
        self.check: Checkpoint = never_cancelled
        self.readers = PacketReaders(suspects)
        self._tools = tools
        self._cursors = CursorPool(tools, memory)
        self._locks = DecodeLocks()

    def checked(self, check: Checkpoint) -> RenderContext:
        """Return the same context with another cancel check, for one task."""
        mine = copy(self)
        mine.check = check
        return mine

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
