"""The index of a layer: for each map, the number of pixels by cell and by range of values.

Cells are squares of pixels, bins are ranges of codes.  The counts bound how many pixels of any
rectangle have codes in any range, so that most maps need not be decoded.  Maps are taken in runs of
up to `RUN` maps, and a first level bounds all maps of a run at once: for each cell and bin, the
highest and the lowest number of pixels with a code in that bin or above.

An object is a head, a table and compressed blocks: one for each `GROUP` runs with the first level,
and one for each run with the counts of its maps.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from vfsd.core.detections import Ints
from vfsd.errors import IntegrityError
from vfsd.tiling import Rect

RUN = 32
"""Most maps of a run."""
GROUP = 256
"""Runs of a block of the first level."""
BINS = 16
_SMALLEST_CELL = 8
SHARE = 0.05
"""Most bytes of an index, as a share of the layer's file."""
_TARGET = 0.04
"""The share that the first choice of cells aims at: the choice is made by a sample."""
_MOST_VALUES = 256
"""Codes that an index lists, if the layer has no more different ones."""
_CACHED_BYTES = 64 << 20
_HEAD = struct.Struct("<4sHII")
_MAGIC, _VERSION = b"vfci", 1

Counts = npt.NDArray[Any]
"""Unsigned numbers of pixels: bins x rows x columns of cells x maps."""
_Planes = npt.NDArray[np.uint8]
"""Bytes of numbers: those of the lowest weight, then the others."""
Maps = npt.NDArray[Any]
"""maps x height x width, uint8 or uint16."""


class _Table(msgspec.Struct, frozen=True, array_like=True):
    """The table of contents of an index."""

    width: int
    height: int
    bits: int
    cell: int
    edges: list[int]
    maps: int
    values: list[int]  # all different codes of the layer; empty: too many
    groups: list[tuple[int, int, int]]  # position, size and CRC-32
    runs: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class _Covered:
    """The cells that a rectangle touches."""

    rows: slice
    columns: slice
    inside: Counts  #: pixels of each cell in the rectangle, rows x columns x 1
    outside: Counts  #: the other pixels of each cell

    @classmethod
    def by(cls, rect: Rect, cell: int, width: int, height: int) -> _Covered:
        across = _overlaps(rect.x1, rect.x2, cell, width)
        down = _overlaps(rect.y1, rect.y2, cell, height)
        inside = np.outer(down[1], across[1])[..., None]
        return cls(down[0], across[0], inside, np.outer(down[2], across[2])[..., None] - inside)


def _overlaps(first: int, end: int, cell: int, length: int) -> tuple[slice, Ints, Ints]:
    """Return the cells that an interval touches, the pixels of each in it, and all of each."""
    cells = slice(first // cell, -(-end // cell))
    starts = np.arange(cells.start, cells.stop, dtype=np.int64) * cell
    ends = np.minimum(starts + cell, length)
    return cells, np.minimum(ends, end) - np.maximum(starts, first), ends - starts


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The bins that cover a range of codes, and those that lie within it."""

    around: slice
    within: slice


class CellIndex:
    """An index that is read from an object.  Not thread-safe."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        """`read` returns bytes by position and size.  Raises `IntegrityError` for other bytes."""
        head = read(0, _HEAD.size)
        if len(head) != _HEAD.size:
            raise _damage_error()
        magic, version, size, sum_ = _HEAD.unpack(head)
        if (magic, version) != (_MAGIC, _VERSION):
            raise _damage_error()
        packed = read(_HEAD.size, size)
        if zlib.crc32(packed) != sum_:
            raise _damage_error()
        self._table = msgspec.msgpack.decode(zlib.decompress(packed), type=_Table)
        self._read = read
        self._start = _HEAD.size + len(packed)
        self._blocks: OrderedDict[tuple[str, int], _Planes] = OrderedDict()
        self._held = 0
        side = self._table.cell
        self._kind = _dtype(side)
        self._shape = (
            len(self._table.edges) - 1,
            -(-self._table.height // side),
            -(-self._table.width // side),
        )

    def __len__(self) -> int:
        """Number of maps."""
        return self._table.maps

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of a map."""
        return self._table.width, self._table.height

    @property
    def cell(self) -> int:
        """Side of a cell in pixels."""
        return self._table.cell

    @property
    def bins(self) -> int:
        return len(self._table.edges) - 1

    @property
    def runs(self) -> int:
        return len(self._table.runs)

    def run_maps(self, run: int) -> range:
        """Return the maps of a run."""
        return range(run * RUN, min((run + 1) * RUN, len(self)))

    def run_bounds(self, rect: Rect, low: int, high: int) -> tuple[Ints, Ints]:
        """Return bounds for all runs: at least, and at most, so many pixels of each map of a run.

        They count the pixels of `rect` with codes in ``low <= code < high``.
        """
        found = [
            self._group_bounds(group, rect, low, high) for group in range(len(self._table.groups))
        ]
        least, most = zip(*found, strict=True)
        return np.concatenate(least), np.concatenate(most)

    def map_bounds(
        self, run: int, rect: Rect, low: int, high: int, place: int | None = None
    ) -> tuple[Ints, Ints]:
        """Return bounds for each map of a run, or for that at one place; see `run_bounds`."""
        block = self._block("run", run, (*self._shape, len(self.run_maps(run))))
        covered, ranges = self._covered(rect), self._ranges(low, high)

        def counted(bins: slice) -> Ints:
            # Sums of differences are differences of sums, so few numbers are added up.
            cells = _numbers(block[:, bins, covered.rows, covered.columns], self._kind)
            found = cells.sum(0, dtype=self._kind).cumsum(-1, dtype=self._kind)
            if place is not None:
                found = found[..., place : place + 1]
            numbers: Ints = found.astype(np.int64)
            return numbers

        most, least = counted(ranges.around), counted(ranges.within)
        return (
            np.maximum(least - covered.outside, 0).sum((0, 1)),
            np.minimum(most, covered.inside).sum((0, 1)),
        )

    def _group_bounds(self, group: int, rect: Rect, low: int, high: int) -> tuple[Ints, Ints]:
        covered, ranges = self._covered(rect), self._ranges(low, high)
        runs = min(GROUP, self.runs - group * GROUP)
        block = self._block("group", group, (2, *self._shape, runs))

        def above(side: int, edge: int) -> Ints:
            if edge >= self.bins:
                return np.zeros((*covered.inside.shape[:2], runs), np.int64)
            cells = _numbers(block[:, side, edge, covered.rows, covered.columns], self._kind)
            found: Ints = cells.cumsum(-1, dtype=self._kind).astype(np.int64)
            return found

        most = above(0, ranges.around.start) - above(1, ranges.around.stop)
        least = above(1, ranges.within.start) - above(0, ranges.within.stop)
        if ranges.within.start >= ranges.within.stop:
            least = np.zeros_like(least)
        return (
            np.maximum(least - covered.outside, 0).sum((0, 1)),
            np.minimum(np.maximum(most, 0), covered.inside).sum((0, 1)),
        )

    def _covered(self, rect: Rect) -> _Covered:
        return _Covered.by(rect, self._table.cell, *self.size)

    def _ranges(self, low: int, high: int) -> _Ranges:
        """Return the bins of a range of codes.

        A limit may be moved between the codes that occur in the layer on either side of it.
        """
        first, last = self._moves(low)
        outer = int(np.searchsorted(self._table.edges, last, "right")) - 1
        inner = int(np.searchsorted(self._table.edges, first, "left"))
        first, last = self._moves(high)
        end_inner = int(np.searchsorted(self._table.edges, last, "right")) - 1
        end_outer = int(np.searchsorted(self._table.edges, first, "left"))
        return _Ranges(slice(outer, max(outer, end_outer)), slice(inner, max(inner, end_inner)))

    def _moves(self, limit: int) -> tuple[int, int]:
        """Return the lowest and the highest limit that separates the same codes."""
        values = self._table.values
        if not values:
            return limit, limit
        at = int(np.searchsorted(values, limit, "left"))
        below = values[at - 1] + 1 if at else 0
        return below, values[at] if at < len(values) else 1 << self._table.bits

    def _block(self, level: str, number: int, shape: tuple[int, ...]) -> _Planes:
        """Return the bytes of the differences in a block, those of equal weight together."""
        found = self._blocks.get((level, number))
        if found is not None:
            self._blocks.move_to_end((level, number))
            return found
        entries = self._table.groups if level == "group" else self._table.runs
        position, size, sum_ = entries[number]
        packed = self._read(self._start + position, size)
        if len(packed) != size or zlib.crc32(packed) != sum_:
            raise _damage_error()
        found = _planes(packed, shape, self._kind)
        self._blocks[level, number] = found
        self._held += found.nbytes
        while self._held > _CACHED_BYTES and len(self._blocks) > 1:
            self._held -= self._blocks.popitem(last=False)[1].nbytes
        return found


class CellIndexBuilder:
    """Makes an index of maps, which come in order."""

    def __init__(self, sample: Maps, following: Maps, file_bytes: float) -> None:
        """Choose cells and bins.

        Args:
            sample: Maps from all of the layer, for the bins.
            following: Maps that follow each other, for the size of the cells.
            file_bytes: Bytes of the layer's file for each map.
        """
        self._height, self._width = sample.shape[1:]
        self._bits = sample.dtype.itemsize * 8
        self._edges = _edges_of(sample, self._bits)
        self._seen = np.zeros(1 << self._bits, bool)
        self._waiting: list[Maps] = []
        self._runs: list[bytes] = []
        self._suffixes: list[tuple[Counts, Counts]] = []
        self._maps = 0
        self._cell = self._chosen_cell(following[:RUN], file_bytes)

    @property
    def maps(self) -> int:
        """Number of maps so far."""
        return self._maps

    @property
    def cell(self) -> int:
        """Side of a cell in pixels; `finish` may double it."""
        return self._cell

    @property
    def bins(self) -> int:
        return len(self._edges) - 1

    def add(self, maps: Maps) -> None:
        """Add up to `RUN` maps; only the last call may have fewer."""
        self._seen[np.unique(maps) if self._bits > 8 else maps.reshape(-1)] = True
        self._maps += len(maps)
        self._add_run(self._counted(maps, self._cell))

    def finish(self, most_bytes: int) -> bytes:
        """Return the object: at most `most_bytes`, unless one cell for each map takes more."""
        while True:
            data = self._written()
            if len(data) <= most_bytes or self._cell >= max(self._width, self._height):
                return data
            self._coarsen()

    def _chosen_cell(self, maps: Maps, file_bytes: float) -> int:
        cell = _SMALLEST_CELL
        while cell < max(self._width, self._height):
            packed = _packed(self._counted(maps, cell))
            if len(packed) / len(maps) <= _TARGET * file_bytes:
                break
            cell *= 2
        return cell

    def _counted(self, maps: Maps, cell: int) -> Counts:
        """Return the counts of some maps."""
        down, across = -(-self._height // cell), -(-self._width // cell)
        bins = len(self._edges) - 1
        places = (np.arange(self._height) // cell)[:, None] * across
        places = (places + np.arange(self._width) // cell) * bins
        bin_of = np.repeat(np.arange(bins), np.diff(self._edges))
        counts = np.empty((bins, down, across, len(maps)), _dtype(cell))
        for at, one in enumerate(maps):
            found = np.bincount((places + bin_of[one]).reshape(-1), minlength=down * across * bins)
            counts[..., at] = np.moveaxis(found.reshape(down, across, bins), -1, 0)
        return counts

    def _add_run(self, counts: Counts) -> None:
        self._runs.append(_packed(counts))
        # In the type of the counts: a suffix is a part of its cell, too.
        suffix = counts[::-1].cumsum(0, dtype=counts.dtype)[::-1]
        self._suffixes.append((suffix.max(-1), suffix.min(-1)))

    def _coarsen(self) -> None:
        """Join two by two cells."""
        before, shapes = self._runs, list(self._shapes())
        kind = _dtype(self._cell)
        self._runs, self._suffixes = [], []
        self._cell *= 2
        for packed, shape in zip(before, shapes, strict=True):
            self._add_run(_joined(_unpacked(packed, shape, kind), _dtype(self._cell)))

    def _shapes(self) -> Iterator[tuple[int, ...]]:
        """Yield the shape of each run's counts."""
        down, across = -(-self._height // self._cell), -(-self._width // self._cell)
        for run in range(len(self._runs)):
            yield self.bins, down, across, min(RUN, self._maps - run * RUN)

    def _written(self) -> bytes:
        groups = [
            _packed(np.stack([np.stack([one[side] for one in some], axis=-1) for side in (0, 1)]))
            for some in _in_groups(self._suffixes, GROUP)
        ]
        values = np.flatnonzero(self._seen)
        table = _Table(
            self._width,
            self._height,
            self._bits,
            self._cell,
            self._edges,
            self._maps,
            values.tolist() if len(values) <= _MOST_VALUES else [],
            _places(groups, 0),
            _places(self._runs, sum(map(len, groups))),
        )
        packed = zlib.compress(msgspec.msgpack.encode(table), 9)
        head = _HEAD.pack(_MAGIC, _VERSION, len(packed), zlib.crc32(packed))
        return b"".join([head, packed, *groups, *self._runs])


def _edges_of(sample: Maps, bits: int) -> list[int]:
    """Return the edges of the bins: one bin for each code if these are few."""
    codes = np.unique(sample)
    if len(codes) <= BINS:
        inner = codes[1:]
    elif bits == 8:
        inner = np.arange(1, BINS) * (256 // BINS)
    else:
        shares = np.arange(1, BINS) / BINS
        inner = np.unique(np.quantile(codes, shares, method="nearest"))
    return [0, *(int(edge) for edge in inner if edge > 0), 1 << bits]


def _dtype(cell: int) -> np.dtype[Any]:
    return np.dtype("<u2") if cell * cell <= 0xFFFF else np.dtype("<u4")


def _packed(counts: Counts) -> bytes:
    """Return counts compressed: the differences from map to map, by bytes of equal weight."""
    deltas = counts.copy()
    deltas[..., 1:] -= counts[..., :-1]  # modulo the range of the type
    planes = deltas.reshape(-1).view(np.uint8).reshape(-1, counts.itemsize).T
    return zstandard.ZstdCompressor(level=9).compress(planes.tobytes())


def _unpacked(packed: bytes, shape: tuple[int, ...], kind: np.dtype[Any]) -> Counts:
    """Raises `IntegrityError` for bytes of another size."""
    counts: Counts = _numbers(_planes(packed, shape, kind), kind).cumsum(-1, dtype=kind)
    return counts


def _numbers(planes: _Planes, kind: np.dtype[Any]) -> Counts:
    """Return the numbers with these bytes."""
    found: Counts = planes[0].astype(kind)
    for weight, plane in enumerate(planes[1:], 1):
        found |= plane.astype(kind) << (8 * weight)
    return found


def _planes(packed: bytes, shape: tuple[int, ...], kind: np.dtype[Any]) -> _Planes:
    """Raises `IntegrityError` for bytes of another size."""
    count = math.prod(shape)
    try:
        data = zstandard.ZstdDecompressor().decompress(
            packed, max_output_size=count * kind.itemsize
        )
    except zstandard.ZstdError:
        raise _damage_error() from None
    if len(data) != count * kind.itemsize:
        raise _damage_error()
    return np.frombuffer(data, np.uint8).reshape(kind.itemsize, *shape)


def _joined(counts: Counts, kind: np.dtype[Any]) -> Counts:
    """Return the counts of cells of twice the side."""
    bins, down, across, maps = counts.shape
    padded = np.zeros((bins, down + down % 2, across + across % 2, maps), kind)
    padded[:, :down, :across] = counts
    quarters = padded.reshape(bins, (down + 1) // 2, 2, (across + 1) // 2, 2, maps)
    joined: Counts = quarters.sum((2, 4), dtype=kind)
    return joined


def _in_groups(parts: Sequence[tuple[Counts, Counts]], size: int) -> Iterator[Any]:
    for first in range(0, len(parts), size):
        yield parts[first : first + size]


def _places(blocks: Iterable[bytes], start: int) -> list[tuple[int, int, int]]:
    found = []
    for block in blocks:
        found.append((start, len(block), zlib.crc32(block)))
        start += len(block)
    return found


def _damage_error() -> IntegrityError:
    return IntegrityError("the index of a layer is damaged")
