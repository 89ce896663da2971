"""Vectors of runs of frames: their values, and the bytes of a block of them.

A block is one immutable object with the vectors of one video and one source that were stored
together, little-endian:

    magic       8 bytes
    dim         u32, numbers in a vector
    bits        u32, signs of a vector: a power of two
    item        u32, bytes of a number: 2 for float16, 4 for float32
    tables      u32, CRC-32 of the sections up to the signs
    rows        u64
    head        u32, CRC-32 of the above
    mean        dim x float32, of the rows at length 1
    distances   rows x float32, from each row at length 1 to the mean
    sums        rows x u32, CRC-32 of each row of the matrix
    signs       rows x bits / 8 bytes, see `signs_of`
    matrix      rows x dim numbers, exactly as given

The signs estimate the distance of a vector to all rows without reading the matrix.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from reprlib import repr as shown
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import Ints, Source
from vfsd.errors import IntegrityError, UsageError

Singles = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float16] | npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

MAX_DIMENSION = 1 << 16
_MAGIC = b"VFSDVEC1"
_HEAD = struct.Struct("<8sIIIIQ")
_SUM = struct.Struct("<I")
_LEAST_BITS = 256
"""Signs of shorter vectors would estimate too roughly."""
_ROWS_AT_ONCE = 4096
_NO_FRAMES = -1
"""First and last frame of a vector whose frames do not exist any more."""


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """The vectors of one video from one source, by first frame."""

    source: Source
    frames: Ints  #: N x 2: first frame, and one past the last
    matrix: Matrix  #: N x dimension; float16 if all of them were given so, else float32

    def __len__(self) -> int:
        return len(self.frames)


@dataclass(frozen=True, slots=True)
class VectorSummary:
    """The vectors that a video has from one source."""

    source: Source
    vectors: int
    dimension: int
    dtype: str  #: float16 or float32
    first_frame: int  #: lowest
    end_frame: int  #: one past the highest


@dataclass(frozen=True, slots=True)
class StoredVectors:
    """One block of vectors in the catalog."""

    id: int
    video_id: int
    source_id: int
    object_key: str
    dimension: int
    dtype: str
    rows: int  #: of the object
    lost: int  #: rows whose frames do not exist any more
    packed_frames: bytes  #: see `pack_runs`

    @property
    def frames(self) -> Ints:
        """First frame and end of each row; rows without frames have `_NO_FRAMES`."""
        return unpack_runs(self.packed_frames, self.rows)


# -- arguments


def require_matrix(matrix: object) -> Matrix:
    """Return vectors as N x dimension.  Raises `UsageError`."""
    given = np.asarray(matrix)
    if given.dtype not in (np.float16, np.float32):
        raise UsageError(
            f"vectors must be float16 or float32, got {given.dtype}",
            hint='round them with matrix.astype("float32") or "float16"',
        )
    if given.ndim != 2 or not 1 <= given.shape[1] <= MAX_DIMENSION:
        raise UsageError(
            f"vectors must be N x dimension (1 to {MAX_DIMENSION}), got the shape {given.shape}",
            hint="one vector is a matrix with one row: vector[np.newaxis]",
        )
    finite = np.isfinite(given).all(axis=1)
    if not finite.all():
        raise UsageError(
            f"vectors must be finite, got NaN or infinity in row {int(np.argmin(finite))}"
        )
    return np.ascontiguousarray(given, given.dtype.newbyteorder("<"))


def require_runs(frames: Any, rows: int) -> Ints:
    """Return runs of frames as N x 2: numbers, pairs (first, end) or ranges.

    Raises `UsageError`, also for a run that is given twice.
    """
    runs = _runs_of(frames)
    if runs is None:
        raise UsageError(
            f"frames must be numbers, (first, end) pairs or ranges, got {shown(frames)}",
            hint="for example [(0, 30), (30, 60)]",
        )
    if len(runs) != rows:
        raise UsageError(f"each vector needs a run of frames: {rows} vectors, {len(runs)} runs")
    wrong = (runs[:, 0] < 0) | (runs[:, 0] >= runs[:, 1])
    if wrong.any():
        first, end = runs[int(np.argmax(wrong))].tolist()
        raise UsageError(f"a run of frames needs 0 <= first < end, got ({first}, {end})")
    unique, counts = np.unique(runs, axis=0, return_counts=True)
    if len(unique) < len(runs):
        first, end = unique[int(np.argmax(counts))].tolist()
        raise UsageError(f"the run of frames ({first}, {end}) is given twice")
    return runs


def _runs_of(frames: Any) -> Ints | None:
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(frames, np.ndarray):
            frames = [(one.start, one.stop) if isinstance(one, range) else one for one in frames]
        given = np.asarray(frames)
        if not len(given):
            return np.empty((0, 2), np.int64)
        if given.dtype.kind not in "iu":
            return None
        given = given.astype(np.int64)
        if given.ndim == 1:
            return np.stack([given, given + 1], axis=1)
        if given.ndim == 2 and given.shape[1] == 2:
            return given
    return None


def pack_runs(runs: Ints) -> bytes:
    """Return N x 2 runs of frames as bytes; regular runs need few."""
    steps = np.diff(runs, axis=0, prepend=np.zeros((1, 2), np.int64))
    return zlib.compress(np.ascontiguousarray(steps.T, "<i8").tobytes(), 6)


def unpack_runs(packed: bytes, rows: int) -> Ints:
    """Return the N x 2 runs of `pack_runs`.  Raises `IntegrityError`."""
    try:
        steps = np.frombuffer(zlib.decompress(packed), "<i8").reshape(2, rows)
    except (zlib.error, ValueError):
        raise IntegrityError(
            "the frames of stored vectors are damaged", hint="run `vfsd fsck`"
        ) from None
    runs: Ints = np.cumsum(steps.T, axis=0, dtype=np.int64)
    return runs


def renumbered(runs: Ints, new_of: Ints) -> Ints:
    """Return runs with frame ``i`` called ``new_of[i]``; negative numbers mean lost frames.

    A run without a frame left becomes `_NO_FRAMES`.
    """
    found = np.full_like(runs, _NO_FRAMES)
    for at, (first, end) in enumerate(runs.tolist()):
        left = new_of[first:end] if first >= 0 else new_of[:0]
        left = left[left >= 0]
        if len(left):
            found[at] = int(left.min()), int(left.max()) + 1
    return found


# -- estimates


def unit(rows: npt.NDArray[Any]) -> Singles:
    """Return vectors (N x dimension) at length 1; zeros stay zeros."""
    wide = np.asarray(rows, np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    made: Singles = (wide / np.where(lengths > 0, lengths, 1)[:, None]).astype(np.float32)
    return made


def bits_of(dimension: int) -> int:
    """Return the number of signs of a vector."""
    return max(_LEAST_BITS, 1 << (dimension - 1).bit_length())


def signs_of(rows: Singles, bits: int) -> Bytes:
    """Return the signs of vectors (N x dimension) after `rotated`, as N x bits / 8 bytes."""
    return np.packbits(rotated(rows, bits) > 0, axis=1)


def rotated(rows: Singles, bits: int) -> Singles:
    """Return vectors (N x dimension) after a fixed rotation, as N x bits.

    The rotation spreads what few numbers of a vector say over all signs: two Hadamard transforms,
    each after a fixed pseudo-random change of signs.
    """
    turned = np.zeros((len(rows), bits), np.float32)
    turned[:, : rows.shape[1]] = rows
    for flips in _flips(bits):
        turned *= flips
        half = 1
        while half < bits:
            pairs = turned.reshape(len(rows), -1, 2, half)
            turned = np.stack(
                [pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2
            ).reshape(len(rows), bits)
            half *= 2
        turned *= np.float32(bits**-0.5)
    return turned


@cache
def _flips(bits: int) -> tuple[Singles, Singles]:
    # A hash, since the streams of numpy's generators may change.
    drawn = np.frombuffer(hashlib.shake_256(b"vfsd vectors").digest(bits // 4), np.uint8)
    plus = np.unpackbits(drawn).reshape(2, bits)
    first, second = (np.where(row, 1, -1).astype(np.float32) for row in plus)
    return first, second


def ones_in(words: npt.NDArray[np.uint64]) -> Bytes:
    """Return the number of bits that are 1 in each word."""
    count: Callable[..., Any] | None = getattr(np, "bitwise_count", None)
    if count is None:  # numpy 1 cannot count bits
        each = _byte_counts()[words[..., np.newaxis].view(np.uint8)]
        return np.asarray(each.sum(axis=-1, dtype=np.uint8))
    return np.asarray(count(words))


@cache
def _byte_counts() -> Bytes:
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
    counts: Bytes = bits.sum(axis=1, dtype=np.uint8)
    return counts


# -- blocks


def encode_block(matrix: Matrix) -> bytes:
    """Return the bytes of a block with these vectors."""
    rows, dimension = matrix.shape
    bits = bits_of(dimension)
    total = np.zeros(dimension)
    parts = [slice(at, at + _ROWS_AT_ONCE) for at in range(0, rows, _ROWS_AT_ONCE)]
    for part in parts:
        total += unit(matrix[part]).sum(axis=0, dtype=np.float64)
    mean = (total / max(1, rows)).astype("<f4")
    distances = np.empty(rows, "<f4")
    signs = np.empty((rows, bits // 8), np.uint8)
    for part in parts:
        apart = unit(matrix[part]) - mean
        distances[part] = np.linalg.norm(apart, axis=1)
        signs[part] = signs_of(apart, bits)
    data = matrix.tobytes()
    size = dimension * matrix.dtype.itemsize
    view = memoryview(data)
    sums = np.array([zlib.crc32(view[at : at + size]) for at in range(0, len(data), size)], "<u4")
    tables = b"".join(one.tobytes() for one in (mean, distances, sums, signs))
    head = _HEAD.pack(_MAGIC, dimension, bits, matrix.dtype.itemsize, zlib.crc32(tables), rows)
    return b"".join((head, _SUM.pack(zlib.crc32(head)), tables, data))


@dataclass(frozen=True, slots=True, eq=False)
class VectorBlock:
    """All of a block but its matrix."""

    dimension: int
    dtype: np.dtype[Any]
    rows: int
    mean: Singles
    distances: Singles
    sums: npt.NDArray[np.uint32]
    signs: Bytes  #: rows x bits / 8
    start: int  #: position of the matrix

    @classmethod
    def read(cls, read: Callable[[int, int], bytes], size: int, key: str) -> VectorBlock:
        """Read a block of `size` bytes with `read(position, count)`; `key` is for messages.

        Raises `IntegrityError`.
        """
        data = read(0, _HEAD.size + _SUM.size)
        head, total = data[: _HEAD.size], data[_HEAD.size :]
        if len(data) < _HEAD.size + _SUM.size or _SUM.unpack(total)[0] != zlib.crc32(head):
            raise damaged_block(key)
        magic, dimension, bits, item, tables_sum, rows = _HEAD.unpack(head)
        if magic != _MAGIC or item not in (2, 4) or not dimension:
            raise damaged_block(key)
        lengths = (4 * dimension, 4 * rows, 4 * rows, rows * bits // 8)
        start = len(data) + sum(lengths)
        if size != start + rows * dimension * item:
            raise damaged_block(key)
        tables = read(len(data), sum(lengths))
        if zlib.crc32(tables) != tables_sum:
            raise damaged_block(key)
        ends = np.cumsum(lengths)
        mean, distances, sums, signs = np.split(np.frombuffer(tables, np.uint8), ends[:-1])
        return cls(
            dimension,
            np.dtype(f"<f{item}"),
            rows,
            # Copies: aligned, and without the rest.
            mean.view("<f4").copy(),
            distances.view("<f4").copy(),
            sums.view("<u4").copy(),
            signs.reshape(rows, bits // 8).copy(),
            start,
        )

    @property
    def memory(self) -> int:
        """Bytes in memory."""
        return self.mean.nbytes + self.distances.nbytes + self.sums.nbytes + self.signs.nbytes

    def extent(self, rows: range) -> tuple[int, int]:
        """Return the half-open range of bytes that rows of the matrix take."""
        size = self.dimension * self.dtype.itemsize
        return self.start + rows.start * size, self.start + rows.stop * size

    def decoded(self, rows: Ints, data: bytes, key: str) -> Matrix:
        """Return rows of the matrix from their bytes.  Raises `IntegrityError`."""
        size = self.dimension * self.dtype.itemsize
        view = memoryview(data)
        if len(data) != len(rows) * size or self.sums[rows].tolist() != [
            zlib.crc32(view[at : at + size]) for at in range(0, len(data), size)
        ]:
            raise damaged_block(key)
        return np.frombuffer(data, self.dtype).reshape(len(rows), self.dimension)


@cache
def cosines_of(bits: int) -> Singles:
    """Return the estimated cosine for each number of signs that differ, of so many.

    The angle between two vectors is the share of planes through 0 that lie between them.
    """
    cosines: Singles = np.cos(np.pi / bits * np.arange(bits + 1)).astype(np.float32)
    return cosines


def damaged_block(key: str) -> IntegrityError:
    """Return the error for an object of vectors with wrong bytes."""
    return IntegrityError(
        f"the vectors of object {key} are damaged",
        hint="run `vfsd scrub --from BACKUP` to restore them, or add them again with `replace`",
    )


def joined_matrix(parts: Sequence[Matrix]) -> Matrix:
    """Return vectors of several blocks as one matrix; float16 if all are."""
    dtype = np.result_type(*(part.dtype for part in parts))
    return np.concatenate([part.astype(dtype, copy=False) for part in parts])
