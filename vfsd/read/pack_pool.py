"""Packs kept open, and decoders for their cells kept warm."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from time import monotonic, thread_time

from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.cell_decoders import CellDecoder, cell_decoder
from vfsd.codecs.cells.pack import PackedCell, open_pack
from vfsd.codecs.frames.interlace import Scanning
from vfsd.core.atfork import at_fork, keep_for_good
from vfsd.core.model import Segment
from vfsd.disk.object_store import ObjectStore
from vfsd.errors import ClosedError, DamagedPackError, IntegrityError
from vfsd.read.joined_reader import JoinedSide, side_of
from vfsd.tiling.cost import LOSSLESS, Work

_OPEN_PACKS = 64
_IDLE_PIXELS = 1 << 24
"""Of the pictures of idle decoders, each of which has memory for several: some 100 MB."""
_READ_BYTES = 4 << 20
"""One read is at most as large, unless a packet is larger."""


Note = Callable[[Segment, Work, float], None]
"""Called with what was decoded of a segment, and the CPU seconds that it took."""


class OpenPack:
    """An open pack; closed when nobody refers to it any more.

    Raises `DamagedPackError` for what is no pack, `OSError` where it is gone.
    """

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._key = key
        try:
            self._fd, table = open_pack(objects.path(key))
        except IntegrityError as error:
            raise DamagedPackError(str(error), key) from error
        self.cells = table.cells
        self._joint = table.joint
        self._sides: dict[str, JoinedSide] = {}

    def side(self, profile: str) -> JoinedSide:
        """How the pictures of one of two cameras that are joined are made of the cells.

        Raises `DamagedPackError` where the pack does not hold such cells.
        """
        found = self._sides.get(profile)
        if found is None:
            try:
                found = self._sides[profile] = side_of(self._joint, self.cells, profile)
            except IntegrityError as error:
                raise DamagedPackError(str(error), self._key) from error
        return found

    def packets(self, cell: PackedCell, first: int, end: int) -> Iterator[memoryview]:
        """The packets ``first <= p < end`` of a cell, each as it was written.

        Raises `DamagedPackError`, `OSError`.
        """
        offsets = cell.offsets
        while first < end:
            upto = first + 1
            while upto < end and offsets[upto + 1] - offsets[first] <= _READ_BYTES:
                upto += 1
            base = offsets[first]
            data = os.pread(self._fd, offsets[upto] - base, base)
            if len(data) < offsets[upto] - base:
                raise DamagedPackError("a pack of tiles is cut off", self._key)
            view = memoryview(data)
            for number in range(first, upto):
                packet = view[offsets[number] - base : offsets[number + 1] - base]
                if not cell.is_whole(number, packet):
                    raise DamagedPackError("a pack of tiles is damaged", self._key)
                yield packet
            first = upto

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)


class _Idle:
    """A decoder that nobody uses at the moment, and where in which cell it stands."""

    def __init__(self, place: tuple[str, int], cell: PackedCell, decoder: CellDecoder) -> None:
        self.place = place
        self.pixels = cell.width * cell.height
        self.decoder = decoder
        self.since = monotonic()


class PackPool:
    """Reads cells.  Safe to use from several threads; after a fork the child starts afresh."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._is_closed = False
        self._begin_empty()
        at_fork(self)

    def _begin_empty(self) -> None:
        self._packs: OrderedDict[str, OpenPack] = OrderedDict()
        self._idle: list[_Idle] = []  # the one used last at the end
        self._guard = threading.Lock()

    def begin_anew(self) -> None:
        """See `vfsd.core.atfork`."""
        keep_for_good(self._idle)  # decoders, which may have threads
        self._begin_empty()

    def pictures(
        self,
        segment: Segment,
        tile: int,
        wanted: Sequence[int],
        note: Note | None = None,
        *,
        interlaced: bool = False,
    ) -> Generator[tuple[int, VideoFrame]]:
        """(frame of the video, picture) of the frames in `wanted`, which ascends.

        Where the video is `interlaced`, pictures say so, of which no lossy codec of tiles tells it.

        A picture is the caller's until the next is asked for.  What that took is told to `note`
        in the end.  Raises `IntegrityError` for a damaged pack, `OSError` where it is gone.
        """
        pack = self._pack(segment.object_key)
        numbers = [frame - segment.first_frame for frame in wanted]
        if segment.is_joined:
            pictures = self._woven(segment, pack, numbers)
        else:
            pictures = self._decoded(segment, pack, segment.place(tile), numbers, note)
        scanning = Scanning(interlaced=True) if interlaced and segment.profile != LOSSLESS else None
        for number, picture in pictures:
            shown = picture if scanning is None else scanning.of(picture)
            yield segment.first_frame + number, shown

    def _woven(
        self, segment: Segment, pack: OpenPack, numbers: Sequence[int]
    ) -> Iterator[tuple[int, VideoFrame]]:
        """(number in the segment, picture) of one of two cameras that are joined.

        What that took is not told: OpenCV projects with threads of its own, whose time is not seen.
        """
        side = pack.side(segment.profile)
        streams = [self._decoded(segment, pack, place, numbers, None) for place in side.places]
        for together in zip(*streams, strict=True):
            yield together[0][0], side.picture([picture for _, picture in together])

    def _decoded(
        self,
        segment: Segment,
        pack: OpenPack,
        where: int,
        numbers: Sequence[int],
        note: Note | None,
    ) -> Iterator[tuple[int, VideoFrame]]:
        """(number in the segment, picture) of the cell that lies there in the pack."""
        cell = pack.cells[where]
        place = (segment.object_key, where)
        decoder = self._decoder(place, cell, numbers[0])
        left = iter(numbers)
        expected = next(left, None)
        decoder.skip(numbers[0])
        first = decoder.fed
        spent = 0.0
        for payload in pack.packets(cell, first, numbers[-1] + 1):
            start = thread_time()
            pictures = decoder.decode(payload)
            spent += thread_time() - start
            for number, picture in pictures:
                if number == expected:
                    yield number, picture
                    expected = next(left, None)
        if expected is not None:  # it holds some back
            for number, picture in decoder.drain():
                if number == expected:
                    yield number, picture
                    expected = next(left, None)
        if expected is not None:
            raise IntegrityError(f"frame {segment.first_frame + expected} of a tile is missing")
        if note is not None:
            note(segment, _work(cell, first, numbers[-1] + 1), spent)
        with self._guard:
            if not self._is_closed:
                self._idle.append(_Idle(place, cell, decoder))
            while len(self._idle) > 1 and sum(one.pixels for one in self._idle) > _IDLE_PIXELS:
                self._idle.pop(0)

    def cells(self, segment: Segment) -> Sequence[PackedCell]:
        """What is in the pack of a segment: the tiles that are stored, ascending.

        Raises `IntegrityError` where that is not what the catalog says, `OSError` where it is gone.
        """
        cells = self._pack(segment.object_key).cells
        frames = len(segment.frames)
        if len(cells) != len(segment.cells) or any(len(c.offsets) != frames + 1 for c in cells):
            raise IntegrityError("a pack holds other tiles or frames than the catalog says")
        return cells

    def payloads(self, segment: Segment, tile: int, frames: int) -> list[bytes]:
        """The packets of the first `frames` frames of a cell, as they are stored.

        Raises as `cells`.
        """
        cell = self.cells(segment)[segment.place(tile)]
        return [bytes(part) for part in self._pack(segment.object_key).packets(cell, 0, frames)]

    def cool(self, seconds: float) -> None:
        """Keep no decoder that nobody has used for so long."""
        with self._guard:
            before = monotonic() - seconds
            while self._idle and self._idle[0].since < before:
                self._idle.pop(0)

    def empty(self) -> None:
        """Keep nothing of what was read: no table of a pack, no decoder."""
        with self._guard:
            self._packs.clear()
            self._idle.clear()

    def close(self) -> None:
        """Nothing can be read any more."""
        with self._guard:
            self._is_closed = True
        self.empty()

    def _pack(self, key: str) -> OpenPack:
        with self._guard:
            if self._is_closed:
                raise ClosedError
            pack = self._packs.get(key)
            if pack is not None:
                self._packs.move_to_end(key)
                return pack
        pack = OpenPack(self._objects, key)
        with self._guard:
            if self._is_closed:
                raise ClosedError
            self._packs[key] = pack
            while len(self._packs) > _OPEN_PACKS:
                self._packs.popitem(last=False)
        return pack

    def _decoder(self, place: tuple[str, int], cell: PackedCell, first: int) -> CellDecoder:
        """One that stands before packet `first` of the cell, as near as there is."""
        with self._guard:
            ahead = [
                one for one in self._idle if one.place == place and 0 < one.decoder.fed <= first
            ]
            if ahead:
                best = max(ahead, key=lambda one: one.decoder.fed)
                self._idle.remove(best)
                return best.decoder
            like = next((one for one in self._idle if one.decoder.fits(cell)), None)
            if like is not None:
                self._idle.remove(like)
        if like is None:
            return cell_decoder(cell)
        like.decoder.restart(cell)
        return like.decoder


def _work(cell: PackedCell, first: int, end: int) -> Work:
    pictures = end - first
    return Work(
        starts=int(not first),
        pictures=pictures,
        pixels=pictures * cell.width * cell.height,
        bytes=cell.offsets[end] - cell.offsets[first],
    )
