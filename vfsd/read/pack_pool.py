"""`PackPool` keeps packs open and decoders for their cells ready.

`JoinedSide` reassembles the pictures of one camera of a joined pair from the pieces in a pack.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, thread_time
from typing import Any, Protocol

from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.cell_decoders import CellDecoder, cell_decoder
from vfsd.codecs.cells.overlap_geometry import ImageSize
from vfsd.codecs.cells.pack import (
    PackedCell,
    PackTable,
    open_pack,
    packed_table,
    unpacked_table,
)
from vfsd.codecs.cells.plane_merge import (
    PlaneArray,
    PlaneJoint,
    PlaneMerger,
    Subsampling,
    rotated_planes,
)
from vfsd.codecs.frames.color import InterlaceSetter, blank_like
from vfsd.codecs.frames.planes import plane_samples, plane_subsampling
from vfsd.core.model import Segment
from vfsd.core.process_control import leak, reset_after_fork
from vfsd.disk.object_reader import StoredObjects
from vfsd.errors import ClosedError, DamagedPackError, IntegrityError, VfsdError
from vfsd.read.tile_planner import cell_ranges, pack_ranges
from vfsd.tiling.cost import JOINED_LEFT, JOINED_RIGHT, LOSSLESS, DecodeWork

_PIECES_BY_PROFILE = {JOINED_LEFT: ("left", "middle"), JOINED_RIGHT: ("middle", "right")}
"""Pieces of each side."""


@dataclass(frozen=True, eq=False, slots=True)
class JoinedSide:
    """One of two joined cameras.  Thread-safe."""

    profile: str  #: one of `vfsd.tiling.cost.JOINED_SIDES`
    merger: PlaneMerger
    pieces: tuple[str, ...]  #: pieces of its pictures
    places: tuple[int, ...]  #: their indices in the cells of the pack

    @property
    def turned(self) -> int:
        """Clockwise rotation in degrees that turns its pictures upright."""
        return self.merger.joint.turned[self.profile == JOINED_RIGHT]

    @property
    def size(self) -> ImageSize:
        """Size of its pictures before they are turned upright."""
        cut = self.merger.joint.cut
        size = cut.left if self.profile == JOINED_LEFT else cut.right
        return size if self.turned % 180 == 0 else size[::-1]

    def extent(self, cells: Sequence[PackedCell]) -> PackedCell:
        """Return the part of the pack with its pieces as one cell without packets of its own."""
        mine = [cells[place] for place in self.places]
        ends = (mine[0].offsets[0], mine[-1].offsets[-1])
        return PackedCell(self.profile, *self.size, b"", ends)

    def picture(self, decoded: Sequence[VideoFrame]) -> VideoFrame:
        """Return a picture composed of those of its pieces, given in order.

        Raises `IntegrityError` for pieces of another form than the joint's.
        """
        # For the left camera the middle piece has the properties of the pictures.
        like = decoded[0 if self.profile == JOINED_LEFT else -1]
        if subsampling_of_planes(like) != self.merger.joint.shares:
            raise IntegrityError(f"pieces of a joint have the pixel format {like.format.name}")
        made = blank_like(like, *self.size)
        planes = {
            piece: plane_samples(picture)
            for piece, picture in zip(self.pieces, decoded, strict=True)
        }
        out = self.upright(made)
        if self.profile == JOINED_LEFT:
            self.merger.left(planes.get("left"), planes["middle"], out)
        else:
            self.merger.right(planes["middle"], planes.get("right"), out)
        return made

    def upright(self, picture: VideoFrame) -> list[PlaneArray]:
        """Return views of the samples of one of its pictures, turned upright."""
        return rotated_planes(plane_samples(picture), self.turned)


def joined_side(
    described: Mapping[str, Any] | None, cells: Sequence[PackedCell], profile: str
) -> JoinedSide:
    """Return the side `profile` for the cells of a pack with the given joint record.

    Raises `IntegrityError` if the cells do not fit.
    """
    if described is None:
        raise IntegrityError("a pack has no record of how its cameras are joined")
    try:
        joint = PlaneJoint.from_record(described)
    except (ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"the joint record of a pack is damaged: {error}") from error
    cut = joint.cut
    sizes = {
        "left": (cut.seam, cut.left[1]),
        "middle": cut.middle,
        "right": (cut.right[0] - cut.edge, cut.right[1]),
    }
    if [(cell.width, cell.height) for cell in cells] != [sizes[piece] for piece in joint.pieces]:
        raise IntegrityError("a pack does not have the pieces of its joint")
    mine = tuple(piece for piece in joint.pieces if piece in _PIECES_BY_PROFILE[profile])
    places = tuple(joint.pieces.index(piece) for piece in mine)
    return JoinedSide(profile, PlaneMerger(joint), mine, places)


def subsampling_of_planes(picture: VideoFrame) -> tuple[Subsampling, ...]:
    """Return the number of columns and rows that share a sample, for each plane."""
    return tuple(plane_subsampling(picture, number) for number in range(len(picture.planes)))


_MAX_OPEN_PACKS = 64
_MAX_IDLE_PIXELS = 1 << 24
"""Limit for idle decoders; each has memory for several pictures: some 100 MB."""
_READ_BYTES = 4 << 20
"""Maximum size of one read, unless a packet is larger."""


_PackPlace = tuple[str, int]
"""Key of an object, and the position of a pack in it."""


def _place(segment: Segment) -> _PackPlace:
    return segment.object_key, segment.pack_at


OnDecoded = Callable[[Segment, DecodeWork, float], None]
"""Called with the decoded work of a segment and its CPU seconds."""


class RemoteTables(Protocol):
    """Tables of packs in a bucket that are known without a request to it.

    `vfsd.storage.remote_objects.RemoteObjects` has them.
    """

    def pack_tables(self, packs: Collection[_PackPlace]) -> Mapping[_PackPlace, bytes]: ...
    def keep_table(self, key: str, at: int, packed: bytes) -> None: ...


class OpenPack:
    """An open pack; closed with its last reference.

    Raises `DamagedPackError` for an invalid pack, `OSError` if it is gone.
    """

    def __init__(
        self,
        objects: StoredObjects,
        segment: Segment,
        soon: Sequence[tuple[int, int]] = (),
        table: PackTable | None = None,
    ) -> None:
        """The half-open ranges `soon` of a remote object are fetched along with the table, unless
        that is given.
        """
        self._key = key = segment.object_key
        if table is not None:
            self._reader = objects.open(key)
        else:
            try:
                self._reader, table = open_pack(objects, key, soon, segment.pack_at)
            except IntegrityError as error:
                raise DamagedPackError(str(error), key) from error
        self.cells = table.cells
        self._joint = table.joint
        self._sides: dict[str, JoinedSide] = {}

    def side(self, profile: str) -> JoinedSide:
        """Return how the pictures of one joined camera are assembled from the cells.

        Raises `DamagedPackError` if the pack does not have these cells.
        """
        found = self._sides.get(profile)
        if found is None:
            try:
                found = self._sides[profile] = joined_side(self._joint, self.cells, profile)
            except IntegrityError as error:
                raise DamagedPackError(str(error), self._key) from error
        return found

    def packets(self, cell: PackedCell, first: int, end: int) -> Iterator[memoryview]:
        """Yield the packets ``first <= p < end`` of a cell as they were written.

        Raises `DamagedPackError`, `OSError`.
        """
        offsets = cell.offsets
        while first < end:
            upto = first + 1
            while upto < end and offsets[upto + 1] - offsets[first] <= _READ_BYTES:
                upto += 1
            base = offsets[first]
            data = self._reader.read(base, offsets[upto] - base)
            if len(data) < offsets[upto] - base:
                raise DamagedPackError("a pack of tiles is truncated", self._key)
            view = memoryview(data)
            for number in range(first, upto):
                packet = view[offsets[number] - base : offsets[number + 1] - base]
                if not cell.is_whole(number, packet):
                    size = offsets[number + 1] - offsets[number]
                    # It may be right on the server, or on the disk.
                    packet = memoryview(self._reader.read_again(offsets[number], size))
                    if not cell.is_whole(number, packet):
                        raise DamagedPackError("a pack of tiles is damaged", self._key)
                yield packet
            first = upto

    def packed_table(self, at: int) -> bytes:
        """Return a copy of the table of the pack, which is at position `at`, for the catalog."""
        return packed_table(self._reader.read, at)

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See `ObjectReader.prefetch`."""
        self._reader.prefetch(ranges)

    def __del__(self) -> None:
        if hasattr(self, "_reader"):
            self._reader.close()


class _IdleCellDecoder:
    """An idle decoder and its cell."""

    def __init__(
        self, place: tuple[_PackPlace, int], cell: PackedCell, decoder: CellDecoder
    ) -> None:
        self.place = place
        self.pixels = cell.width * cell.height
        self.decoder = decoder
        self.since = monotonic()


class PackPool:
    """Reads cells of packs.  Thread-safe; after a fork the child starts with an empty pool."""

    def __init__(self, objects: StoredObjects, tables: RemoteTables | None = None) -> None:
        """`tables` belong to `objects` that are in a bucket."""
        self._objects = objects
        self._tables = tables
        self._is_closed = False
        self._begin_empty()
        reset_after_fork(self)

    def _begin_empty(self) -> None:
        self._packs: OrderedDict[_PackPlace, OpenPack] = OrderedDict()
        self._idle: list[_IdleCellDecoder] = []  # least recently used first
        self._guard = threading.Lock()

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        leak(self._idle)  # decoders may have threads
        self._begin_empty()

    def pictures(
        self,
        segment: Segment,
        tile: int,
        wanted: Sequence[int],
        note: OnDecoded | None = None,
        *,
        interlaced: bool = False,
    ) -> Generator[tuple[int, VideoFrame]]:
        """Yield (frame of the video, picture) of the frames in `wanted`, which must ascend.

        With `interlaced`, pictures get that flag, which lossy tile codecs do not keep.

        A picture is valid until the next iteration.  `note` is called with the work at the end.
        Raises `IntegrityError` for a damaged pack, `OSError` if it is gone.
        """
        pack = self._pack(segment, tile, wanted)
        numbers = [frame - segment.first_frame for frame in wanted]
        if segment.is_joined:
            pictures = self._joined_pictures(segment, pack, numbers)
        else:
            pictures = self._decoded(segment, pack, segment.place(tile), numbers, note)
        scanning = (
            InterlaceSetter(interlaced=True) if interlaced and segment.profile != LOSSLESS else None
        )
        for number, picture in pictures:
            shown = picture if scanning is None else scanning.convert(picture)
            yield segment.first_frame + number, shown

    def _joined_pictures(
        self, segment: Segment, pack: OpenPack, numbers: Sequence[int]
    ) -> Iterator[tuple[int, VideoFrame]]:
        """Yield (index in the segment, picture) of one of two joined cameras.

        The work is not reported, because OpenCV projects in threads with unknown CPU time.
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
        note: OnDecoded | None,
    ) -> Iterator[tuple[int, VideoFrame]]:
        """Yield (index in the segment, picture) of the cell with index `where` in the pack."""
        cell = pack.cells[where]
        place = (_place(segment), where)
        decoder = self._decoder(place, cell, numbers[0])
        decoder.skip(numbers[0])
        work, spent = DecodeWork(), 0.0
        for wanted in _split_at_gaps(decoder, numbers):
            left = iter(wanted)
            expected = next(left, None)
            decoder.skip(wanted[0])
            first, end = decoder.fed, wanted[-1] + 1
            for payload in pack.packets(cell, first, end):
                start = thread_time()
                pictures = decoder.decode(payload)
                spent += thread_time() - start
                for number, picture in pictures:
                    if number == expected:
                        yield number, picture
                        expected = next(left, None)
            if expected is not None:  # the decoder holds some back
                for number, picture in decoder.drain():
                    if number == expected:
                        yield number, picture
                        expected = next(left, None)
            if expected is not None:
                raise IntegrityError(f"frame {segment.first_frame + expected} of a tile is missing")
            work += _decode_work(cell, first, end)
        if note is not None:
            note(segment, work, spent)
        with self._guard:
            if not self._is_closed:
                self._idle.append(_IdleCellDecoder(place, cell, decoder))
            while len(self._idle) > 1 and sum(one.pixels for one in self._idle) > _MAX_IDLE_PIXELS:
                self._idle.pop(0)

    def cells(self, segment: Segment) -> Sequence[PackedCell]:
        """Return the cells in the pack of a segment: the stored tiles, ascending.

        Raises `IntegrityError` if they differ from the catalog, `OSError` if the pack is gone.
        """
        cells = self._pack(segment).cells
        frames = len(segment.frames)
        if len(cells) != len(segment.cells) or any(len(c.offsets) != frames + 1 for c in cells):
            raise IntegrityError("a pack does not have the tiles and frames that the catalog lists")
        return cells

    def prefetch(self, runs: Iterable[tuple[Segment, Sequence[int], Sequence[int]]]) -> None:
        """Have tiles fetched at once that are on a server.

        Each run is a segment, some of its tiles, and frames of the video, ascending.
        """
        runs = list(runs)
        self._open_known([segment for segment, _, _ in runs])
        for segment, tiles, frames in runs:
            with self._guard:
                pack = self._packs.get(_place(segment))
            if pack is None:
                with suppress(OSError, VfsdError):  # the read reports it
                    reader = self._objects.open(segment.object_key)
                    reader.prefetch(pack_ranges(segment, tiles, frames))
                    reader.close()
                continue
            if segment.is_joined:
                continue
            first, end = frames[0] - segment.first_frame, frames[-1] + 1 - segment.first_frame
            ranges = []
            for tile in tiles:
                cell = pack.cells[segment.place(tile)]
                ranges.append((cell.offsets[cell.key_before(first)], cell.offsets[end]))
            pack.prefetch(ranges)

    def payloads(self, segment: Segment, tile: int, frames: int) -> list[bytes]:
        """Return the packets of the first `frames` frames of a cell, as stored.

        Raises as `cells` does.
        """
        cell = self.cells(segment)[segment.place(tile)]
        return [bytes(part) for part in self._pack(segment).packets(cell, 0, frames)]

    def evict_idle(self, seconds: float) -> None:
        """Close decoders that have been idle for `seconds`."""
        with self._guard:
            before = monotonic() - seconds
            while self._idle and self._idle[0].since < before:
                self._idle.pop(0)

    def empty(self) -> None:
        """Close all packs and decoders."""
        with self._guard:
            self._packs.clear()
            self._idle.clear()

    def close(self) -> None:
        """Close the pool; later reads raise `ClosedError`."""
        with self._guard:
            self._is_closed = True
        self.empty()

    def _pack(
        self, segment: Segment, tile: int | None = None, frames: Sequence[int] = ()
    ) -> OpenPack:
        """Return the pack of a segment. `frames` of `tile` will be read, if that is known."""
        key = _place(segment)
        with self._guard:
            if self._is_closed:
                raise ClosedError
            pack = self._packs.get(key)
            if pack is not None:
                self._packs.move_to_end(key)
                return pack
        self._open_known([segment])
        with self._guard:
            pack = self._packs.get(key)
        if pack is not None:
            return pack
        soon = (
            () if tile is None or self._objects.is_local else cell_ranges(segment, [tile], frames)
        )
        pack = OpenPack(self._objects, segment, soon)
        if self._tables is not None:
            with suppress(OSError, VfsdError):
                self._tables.keep_table(*key, pack.packed_table(segment.pack_at))
        self._keep(key, pack)
        return pack

    def _open_known(self, segments: Iterable[Segment]) -> None:
        """Open the packs in a bucket with tables that are known; a read opens the others."""
        if self._tables is None:
            return
        with self._guard:
            missing = {_place(one): one for one in segments if _place(one) not in self._packs}
        if not missing:
            return
        with suppress(OSError, VfsdError):  # without the server, the pack has its table
            for place, packed in self._tables.pack_tables(missing.keys()).items():
                # Of the packs of one object, more may be found than were asked for.
                if (segment := missing.get(place)) is None:
                    continue
                table = unpacked_table(packed, segment.pack_at)
                if table is not None:
                    self._keep(place, OpenPack(self._objects, segment, table=table))

    def _keep(self, key: _PackPlace, pack: OpenPack) -> None:
        with self._guard:
            if self._is_closed:
                raise ClosedError
            self._packs[key] = pack
            while len(self._packs) > _MAX_OPEN_PACKS:
                self._packs.popitem(last=False)

    def _decoder(self, place: tuple[_PackPlace, int], cell: PackedCell, first: int) -> CellDecoder:
        """Return the decoder that is nearest before packet `first` of the cell."""
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


def _split_at_gaps(decoder: CellDecoder, numbers: Sequence[int]) -> list[list[int]]:
    """Divide ascending pictures where a key packet lets the decoder skip packets."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and decoder.first_packet(number) <= parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return parts


def _decode_work(cell: PackedCell, first: int, end: int) -> DecodeWork:
    pictures = end - first
    return DecodeWork(
        starts=int(cell.key_before(first) == first),
        pictures=pictures,
        pixels=pictures * cell.width * cell.height,
        bytes=cell.offsets[end] - cell.offsets[first],
    )
