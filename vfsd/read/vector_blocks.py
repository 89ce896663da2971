"""Reads the stored vectors, and keeps the tables of the blocks that were searched last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Ints, contiguous_ranges
from vfsd.core.process_control import reset_after_fork
from vfsd.core.vectors import (
    Matrix,
    Singles,
    StoredVectors,
    VectorBlock,
    bits_of,
    cosines_of,
    damaged_block,
    joined_matrix,
    ones_in,
    rotated,
    unit,
)
from vfsd.disk.object_reader import ObjectReader
from vfsd.disk.object_store import ObjectStore
from vfsd.errors import IntegrityError

_MOST_BYTES = 256 << 20
"""Memory for tables, for the vectors of small searches, and for those that are read often."""
_GROUP_BYTES = 8 << 20
"""Tables that are joined: larger ones cost more to join again after a change."""
_ROWS_AT_ONCE = 1 << 14
"""Rows whose signs, and what is made of them, fit into the caches of a core."""
_CENTRES_AT_ONCE = 64
_MOST_COUNTED = 10_000
"""Objects whose reads are counted."""


class BlockRows(NamedTuple):
    """Vectors of a block, with their runs of frames."""

    runs: Ints  #: N x 2
    matrix: Matrix  #: N x dimension


@contextmanager
def opened_block(objects: ObjectStore, key: str) -> Iterator[ObjectReader]:
    """Open the object of a block.  Raises `IntegrityError` where it is missing."""
    try:
        reader = objects.open(key)
    except FileNotFoundError:
        raise IntegrityError(
            f"the vectors of object {key} are missing",
            hint="run `vfsd scrub --from BACKUP` to restore them, or add them again with `replace`",
        ) from None
    with closing(reader):
        yield reader


def read_tables(reader: ObjectReader, stored: StoredVectors) -> VectorBlock:
    """Read all of a block but its matrix.  Raises `IntegrityError`."""
    block = VectorBlock.read(reader.read, reader.size, stored.object_key)
    expected = stored.dimension, stored.dtype, stored.rows
    if (block.dimension, block.dtype.name, block.rows) != expected:
        raise damaged_block(stored.object_key)
    return block


def read_block(objects: ObjectStore, stored: StoredVectors) -> BlockRows:
    """Read the vectors of a block whose frames exist.  Raises `IntegrityError`."""
    with opened_block(objects, stored.object_key) as reader:
        block = read_tables(reader, stored)
        start, stop = block.extent(range(block.rows))
        data = reader.read(start, stop - start)
    matrix = block.decoded(np.arange(block.rows), data, stored.object_key)
    runs = stored.frames
    if stored.lost:
        live = runs[:, 0] >= 0
        runs, matrix = runs[live], matrix[live]
    return BlockRows(runs, matrix)


class FarDistances:
    """Distances of some vectors from those that were seen, kept from one sample to the next."""

    def __init__(self, key: tuple[int, ...], videos: Ints, runs: Ints, units: Singles) -> None:
        """`key` has the ids of the blocks; the others have a row for each vector, at length 1."""
        self.key = key
        self.videos = videos
        self.runs = runs  #: N x 2
        self.nearest = np.full(len(units), np.inf, np.float32)
        """Squared distance of each vector from the nearest one that was seen."""
        self._units = units
        self._done = np.zeros(len(units), bool)
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()

    def from_row(self, row: int) -> Singles:
        """Return the squared distances from one vector."""
        found: Singles = 2 - 2 * (self._units @ self._units[row])
        return found

    def take_into_account(self, seen: npt.NDArray[np.bool_]) -> None:
        """Bring `nearest` up to date; only vectors seen since the last call are compared."""
        with self._guard:
            if (self._done & ~seen).any():  # labels were removed
                self.nearest = np.full(len(seen), np.inf, np.float32)
                self._done = np.zeros(len(seen), bool)
            new = np.flatnonzero(seen & ~self._done)
            nearest = self.nearest.copy()
            for at in range(0, len(new), _CENTRES_AT_ONCE):
                some = self._units[new[at : at + _CENTRES_AT_ONCE]]
                np.minimum(nearest, 2 - 2 * (self._units @ some.T).max(axis=1), out=nearest)
            self.nearest, self._done = nearest, seen.copy()


class SignTables:
    """All of some blocks of one source but their matrices, joined for one pass over their signs."""

    def __init__(self, blocks: Sequence[VectorBlock]) -> None:
        """`blocks` must not be empty, and have vectors of one dimension."""
        self._rows = np.array([block.rows for block in blocks])
        self._bits = blocks[0].signs.shape[1] * 8
        # Transposed, so that each step works on adjacent numbers.
        signs = np.concatenate([block.signs for block in blocks])
        self._words = np.ascontiguousarray(signs.view(np.uint64).T)
        self._distances = np.concatenate([block.distances for block in blocks])
        self._middles = rotated(np.stack([block.mean for block in blocks]), self._bits)
        none = np.empty(0, np.uint8)
        self.blocks = [replace(one, signs=none, distances=none.view("<f4")) for one in blocks]

    @property
    def memory(self) -> int:
        """Bytes in memory."""
        joined = self._words.nbytes + self._distances.nbytes + self._middles.nbytes
        return joined + sum(block.memory for block in self.blocks)

    def estimates(self, vector: Singles) -> Singles:
        """Return estimates of the squared distances of a vector of length 1 to all rows."""
        apart = rotated(vector[np.newaxis], self._bits) - self._middles
        lengths = np.linalg.norm(apart, axis=1)
        own = np.packbits(apart > 0, axis=1).view(np.uint64)[:, :, np.newaxis]
        ends = np.cumsum(self._rows)
        found = np.repeat(lengths, self._rows)
        space = np.empty((own.shape[1], min(_ROWS_AT_ONCE, len(found))), np.uint64)
        for start in range(0, len(found), _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, len(found))
            words = space[:, : stop - start]
            first, last = np.searchsorted(ends, (start, stop - 1), side="right").tolist()
            at = start
            for number, end in enumerate([*ends[first:last].tolist(), stop], first):
                part = self._words[:, at:end]
                np.bitwise_xor(part, own[number], out=words[:, at - start : end - start])
                at = end
            self._estimate(slice(start, stop), words, found[start:stop])
        return found

    def _estimate(self, rows: slice, words: npt.NDArray[np.uint64], lengths: Singles) -> None:
        """Replace the lengths of the vector from the mean of each row's block by the estimates.

        The bits of `words` are 1 where signs differ.
        """
        kind = np.uint16 if self._bits < 1 << 16 else np.uint32
        differing = ones_in(words).sum(axis=0, dtype=kind)
        distances = self._distances[rows]
        # a**2 + b**2 - 2 a b cos
        found = cosines_of(self._bits).take(differing, mode="clip")
        found *= distances
        found *= -2
        found += lengths
        found *= lengths
        found += distances * distances
        lengths[:] = found


def grouped(blocks: Sequence[StoredVectors]) -> list[list[StoredVectors]]:
    """Divide blocks of one source, in order, into those whose tables are to be joined."""
    groups: list[list[StoredVectors]] = []
    total = 0
    for block in blocks:
        size = block.rows * (bits_of(block.dimension) // 8 + 8) + 8 * block.dimension
        total += size
        if not groups or total > _GROUP_BYTES:
            groups.append([])
            total = size
        groups[-1].append(block)
    return groups


_Kept = SignTables | VectorBlock | Matrix


class VectorCache:
    """Tables and vectors of blocks, by object; those used last stay.  Thread-safe.

    Objects are immutable, so nothing in it is ever outdated.
    """

    def __init__(self, objects: ObjectStore, most_bytes: int = _MOST_BYTES) -> None:
        self._objects = objects
        self._most_bytes = most_bytes
        self._known: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self._bytes = 0
        self._asked: dict[str, int] = {}  # rows that were read singly, by object
        self.distances: FarDistances | None = None  #: of the last sample
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()

    def signs(self, group: Sequence[StoredVectors]) -> SignTables:
        """Return the joined tables of a group of `grouped`.  Raises `IntegrityError`."""
        key = ("signs", *(stored.object_key for stored in group))
        found = self._get(key)
        if not isinstance(found, SignTables):
            found = SignTables([self._read_tables(stored) for stored in group])
            self._put(key, found, found.memory)
        return found

    def nearby(self, group: Sequence[StoredVectors], rows: Ints, vector: Singles) -> Singles:
        """Return the cosines of some rows of a group, given ascending, with a vector of length 1.

        Raises `IntegrityError`.
        """
        tables = self.signs(group)
        ends = np.cumsum([stored.rows for stored in group])
        parts = np.split(rows, np.searchsorted(rows, ends[:-1]))
        found = [
            self._some_rows(stored, block, part - (end - stored.rows))
            for stored, block, part, end in zip(
                group, tables.blocks, parts, ends.tolist(), strict=True
            )
            if len(part)
        ]
        return unit(joined_matrix(found)) @ vector if found else np.empty(0, np.float32)

    def _some_rows(self, stored: StoredVectors, block: VectorBlock, rows: Ints) -> Matrix:
        """Return some rows as stored.  A matrix is kept if half as many rows were read singly."""
        key = ("matrix", stored.object_key)
        found = self._get(key)
        if isinstance(found, np.ndarray):
            return found[rows]
        with self._guard:
            asked = self._asked[key[1]] = self._asked.get(key[1], 0) + len(rows)
            if 2 * asked >= stored.rows or len(self._asked) > _MOST_COUNTED:
                del self._asked[key[1]]
        start, stop = block.extent(range(stored.rows))
        if 2 * asked >= stored.rows and stop - start <= self._most_bytes // 4:
            with suppress(IntegrityError):  # these rows may be intact
                whole = self._read_rows(stored, block, np.arange(stored.rows))
                self._put(key, whole, whole.nbytes)
                return whole[rows]
        return self._read_rows(stored, block, rows)

    def tables(self, stored: StoredVectors) -> VectorBlock:
        """Return all of a block but its matrix.  Raises `IntegrityError`."""
        key = ("tables", stored.object_key)
        found = self._get(key)
        if not isinstance(found, VectorBlock):
            found = self._read_tables(stored)
            self._put(key, found, found.memory)
        return found

    def _read_tables(self, stored: StoredVectors) -> VectorBlock:
        with opened_block(self._objects, stored.object_key) as reader:
            return read_tables(reader, stored)

    def units(self, stored: StoredVectors) -> Singles:
        """Return all vectors of a block at length 1, also those without frames.

        Raises `IntegrityError`.
        """
        found = self._get(("units", stored.object_key))
        if not isinstance(found, np.ndarray):
            found = unit(self.rows(stored, np.arange(stored.rows)))
            self._put(("units", stored.object_key), found, found.nbytes)
        return np.asarray(found, np.float32)

    def rows(self, stored: StoredVectors, rows: Ints) -> Matrix:
        """Return some rows of a block, given ascending, as stored.  Raises `IntegrityError`."""
        return self._read_rows(stored, self.tables(stored), rows)

    def _read_rows(self, stored: StoredVectors, block: VectorBlock, rows: Ints) -> Matrix:
        extents = [block.extent(part) for part in contiguous_ranges(rows)]
        with opened_block(self._objects, stored.object_key) as reader:
            data = b"".join(reader.read_many(extents))
        return block.decoded(rows, data, stored.object_key)

    def _get(self, key: tuple[str, ...]) -> _Kept | None:
        with self._guard:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
            return found

    def _put(self, key: tuple[str, ...], value: _Kept, size: int) -> None:
        if size > self._most_bytes:
            return
        with self._guard:
            if key in self._known:
                return
            self._known[key] = value
            self._bytes += size
            while self._bytes > self._most_bytes:
                _, old = self._known.popitem(last=False)
                self._bytes -= old.nbytes if isinstance(old, np.ndarray) else old.memory
