"""The tools that views are made with, kept warm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy

from vfsd.codecs.audio.decoded_samples import SoundSamples
from vfsd.codecs.audio.packet_reader import SoundReader, sound_reader
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import PhysicalVideo, Sound
from vfsd.derive.promotion_candidates import Candidates
from vfsd.read.context import Tools
from vfsd.storage.quarantine import Suspects
from vfsd.views.convert import PictureConverter
from vfsd.views.decode_cursors import Cursor, Cursors
from vfsd.views.encodetimes import EncodeTimes
from vfsd.views.render_queue import Check
from vfsd.views.source import Footage

Reader = SoundReader | SoundSamples

_READERS = 4
_CHECK_SECONDS = 0.1
_NEAR_PLACES = 512
"""Pictures between two places in a rendition that hardly have a group of pictures in common."""


def _go_on() -> None:
    """What nobody will give up."""


class PacketReaders:
    """Idle packet readers, at most `_READERS`.  Thread-safe.

    A reader of a container that cannot be sliced knows its way on from where it stands.
    """

    def __init__(self, suspects: Suspects) -> None:
        self._suspects = suspects
        self._idle: list[tuple[str, Reader]] = []
        self._most = _READERS
        self._guard = threading.Lock()

    @contextmanager
    def reader(self, footage: Footage) -> Iterator[PacketReader]:
        """A reader of this block's own.  Raises `OSError`."""
        physical = footage.physical

        def make() -> PacketReader:
            return PacketReader(footage.path, physical.media, physical.access, footage.table)

        with self._lent(physical, footage.key, make) as reader:
            assert isinstance(reader, PacketReader)
            yield reader

    @contextmanager
    def reader_of_sound(
        self, footage: Footage, sound: Sound, table: FrameTable
    ) -> Iterator[SoundReader]:
        """As `reader`, of packets of sound."""

        def make() -> Reader:
            return sound_reader(footage.path, footage.physical.media, sound, table)

        with self._lent(footage.physical, f"{footage.key}/sound", make) as reader:
            assert not isinstance(reader, SoundSamples)
            yield reader

    @contextmanager
    def samples_of_sound(
        self, footage: Footage, sound: Sound, table: FrameTable, layout: str
    ) -> Iterator[SoundSamples]:
        """As `reader`, of decoded sound in a layout of channels."""

        def make() -> Reader:
            media = footage.physical.media
            return SoundSamples(footage.path, media, sound, table, layout, footage.damage)

        with self._lent(footage.physical, f"{footage.key}/samples/{layout}", make) as reader:
            assert isinstance(reader, SoundSamples)
            yield reader

    @contextmanager
    def _lent(
        self, physical: PhysicalVideo, key: str, make: Callable[[], Reader]
    ) -> Iterator[Reader]:
        with self._suspects.decoding(physical):  # some containers only FFmpeg takes apart
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

    def _take(self, key: str) -> Reader | None:
        with self._guard:
            for number in range(len(self._idle) - 1, -1, -1):
                if self._idle[number][0] == key:
                    return self._idle.pop(number)[1]
        return None


class Turns:
    """Lets one thread at a time decode in one part of a rendition: of those who wait, the foremost.

    Parts of a file are made side by side.  If each had a decoder of its own, each would first have
    to decode what another is just decoding.  Who is far from all others does not wait for them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: list[tuple[str, int]] = []
        self._waiting: list[tuple[str, int]] = []

    @contextmanager
    def turn(self, key: str, place: int, check: Check = _go_on) -> Iterator[None]:
        """Wait for the turn of who is at `place`.  Raises what `check` does."""
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
        foremost = all(me <= other for other in self._waiting if _are_near(me, other))
        return foremost and not any(_are_near(me, other) for other in self._busy)


def _are_near(one: tuple[str, int], other: tuple[str, int]) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) <= _NEAR_PLACES


class Workshop:
    """The tools that renditions are made with, shared by all of a process."""

    def __init__(
        self,
        tools: Tools,
        memory: int,
        suspects: Suspects,
        candidates: Candidates | None = None,
    ) -> None:
        """`memory` is what idle decoders may hold: bytes.

        `candidates` are told of what may become a part of a rendition; None: nothing shall.
        """
        self.candidates = candidates
        self.times = EncodeTimes()  #: shared with the copies of `checked`
        self.pool = tools.pool
        self.packs = tools.packs
        self.mender = tools.mender
        self.check: Check = _go_on
        self.readers = PacketReaders(suspects)
        self._tools = tools
        self._cursors = Cursors(tools, memory)
        self._turns = Turns()

    def checked(self, check: Check) -> Workshop:
        """The same tools for one piece of work that ends with what `check` raises."""
        mine = copy(self)
        mine.check = check
        return mine

    def cursor(
        self,
        key: str,
        footage: Footage,
        wanted: PictureConverter,
        frames: Ints,
        place: int,
        threads: int,
    ) -> AbstractContextManager[Cursor]:
        """See `Cursors.at`."""
        return self._cursors.at(key, footage, wanted, frames, place, self.check, threads)

    def turn(self, key: str, place: int) -> AbstractContextManager[None]:
        """See `Turns.turn`."""
        return self._turns.turn(key, place, self.check)

    def cool(self, seconds: float) -> None:
        """Give up decoders, and pictures, that nobody has used for so long."""
        self._cursors.cool(seconds)
        self._tools.cool(seconds)

    def close(self) -> None:
        self._cursors.close()
        self.readers.close()
