"""Reads the stored vectors, and keeps the tables of the blocks that were searched last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
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
    damaged_block,
    unit,
)
from vfsd.disk.object_reader import ObjectReader
from vfsd.disk.object_store import ObjectStore
from vfsd.errors import IntegrityError

_MOST_BYTES = 256 << 20
"""Memory for tables, and for the vectors of small searches."""


_CENTRES_AT_ONCE = 64


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


class VectorCache:
    """Tables of blocks, and vectors at length 1, by object; those used last stay.  Thread-safe.

    Objects are immutable, so nothing in it is ever outdated.
    """

    def __init__(self, objects: ObjectStore, most_bytes: int = _MOST_BYTES) -> None:
        self._objects = objects
        self._most_bytes = most_bytes
        self._known: OrderedDict[tuple[str, bool], VectorBlock | Singles] = OrderedDict()
        self._bytes = 0
        self.distances: FarDistances | None = None  #: of the last sample
        self._guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        self._guard = threading.Lock()

    def tables(self, stored: StoredVectors) -> VectorBlock:
        """Return all of a block but its matrix.  Raises `IntegrityError`."""
        found = self._get((stored.object_key, False))
        if not isinstance(found, VectorBlock):
            with opened_block(self._objects, stored.object_key) as reader:
                found = read_tables(reader, stored)
            self._put((stored.object_key, False), found, found.memory)
        return found

    def units(self, stored: StoredVectors) -> Singles:
        """Return all vectors of a block at length 1, also those without frames.

        Raises `IntegrityError`.
        """
        found = self._get((stored.object_key, True))
        if not isinstance(found, np.ndarray):
            found = unit(self.rows(stored, np.arange(stored.rows)))
            self._put((stored.object_key, True), found, found.nbytes)
        return found

    def rows(self, stored: StoredVectors, rows: Ints) -> Matrix:
        """Return some rows of a block, given ascending, as stored.  Raises `IntegrityError`."""
        block = self.tables(stored)
        extents = [block.extent(part) for part in contiguous_ranges(rows)]
        with opened_block(self._objects, stored.object_key) as reader:
            data = b"".join(reader.read_many(extents))
        return block.decoded(rows, data, stored.object_key)

    def _get(self, key: tuple[str, bool]) -> VectorBlock | Singles | None:
        with self._guard:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
            return found

    def _put(self, key: tuple[str, bool], value: VectorBlock | Singles, size: int) -> None:
        if size > self._most_bytes:
            return
        with self._guard:
            if key in self._known:
                return
            self._known[key] = value
            self._bytes += size
            while self._bytes > self._most_bytes:
                _, old = self._known.popitem(last=False)
                self._bytes -= old.memory if isinstance(old, VectorBlock) else old.nbytes
