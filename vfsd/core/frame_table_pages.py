"""The stored form of a frame table: pages of packets, and their encoding.

Packets are in decode order, frames in display order.  A page holds about `PAGE_PACKETS` packets. It
ends only where both orders may be cut at the same position, so a page holds whole runs of both. One
frame is found by reading one page, however long the video is.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vfsd.core.model import PageBounds
from vfsd.errors import IntegrityError

PAGE_PACKETS = 2048
"""Packets after which a page ends at the next cut: 12 kB compressed, 0.1 ms to read."""

_MAGIC = b"vfp1"

Ints = npt.NDArray[np.int64]


class PacketFlag(IntFlag):
    """Properties of a packet; may be combined."""

    KEY = 1  #: decoding may start here and gives exact pictures
    HIDDEN = 2  #: must be decoded but shows no frame (pre-roll, second field, damage)
    DISPOSABLE = 4  #: no other packet refers to it: decode it only if it is requested
    LEADING = 8  #: shown before the key frame it follows: decoding starts one key earlier


KEY, HIDDEN, LEADING = (int(PacketFlag[name]) for name in ("KEY", "HIDDEN", "LEADING"))
"""As plain ints, which are faster to test."""


@dataclass(frozen=True)
class PacketColumns:
    """Packets in decode order, one array element each."""

    pts: Ints  #: ticks at which the frame is shown
    dts: Ints  #: ticks; equal to pts where the container has none
    position: Ints  #: byte offset in the file (see `vfsd.core.model.Access`)
    size: Ints  #: bytes
    flags: npt.NDArray[np.uint8]  #: `PacketFlag`s

    def __len__(self) -> int:
        return len(self.pts)

    def __getitem__(self, key: slice | npt.NDArray[np.bool_]) -> PacketColumns:
        return PacketColumns(
            self.pts[key], self.dts[key], self.position[key], self.size[key], self.flags[key]
        )


@dataclass(frozen=True)
class FramePage:
    """One page in memory.

    On disk: ``vfp1``, then zlib of: the number of packets and of frames (two little-endian u32),
    then six columns (pts - dts, dts, position - end of the previous packet, size, flags, and the
    packet of each frame in display order, counted from the page's first and less the frame's own
    ordinal).  A column is its numpy type character, its first value (i64), then the differences
    of successive values in the narrowest signed type that holds them all.
    """

    bounds: PageBounds
    columns: PacketColumns
    order: Ints  #: packet index of each frame in display order, counted from the page's first

    @cached_property
    def key_places(self) -> Ints:
        """Last key packet up to each packet, counted from the page's first; -1: none."""
        places = np.where(self.columns.flags & KEY, np.arange(len(self.columns)), -1)
        return np.maximum.accumulate(places)

    @cached_property
    def bytes_before(self) -> Ints:
        """Total size of the page's first 0, 1, 2 ... packets, up to all of them."""
        return np.concatenate([[0], np.cumsum(self.columns.size)])

    # Planners look up single packets very often; lists are faster than arrays for that.

    @cached_property
    def keys(self) -> list[int]:
        """`key_places` as a list."""
        found: list[int] = self.key_places.tolist()
        return found

    @cached_property
    def flags(self) -> list[int]:
        """The flags of each packet as a list."""
        found: list[int] = self.columns.flags.tolist()
        return found

    @cached_property
    def ends(self) -> list[int]:
        """`bytes_before` as a list."""
        found: list[int] = self.bytes_before.tolist()
        return found


def _pack_column(values: Ints) -> bytes:
    if not len(values):
        return b"b" + struct.pack("<q", 0)
    steps = np.diff(values)
    kind = "q"
    for code, limit in (("b", 1 << 7), ("h", 1 << 15), ("i", 1 << 31)):
        if not len(steps) or (steps.min() >= -limit and steps.max() < limit):
            kind = code
            break
    body = steps.astype(f"<{_NUMPY_TYPE[kind]}").tobytes()
    return kind.encode() + struct.pack("<q", int(values[0])) + body


_NUMPY_TYPE = {"b": "i1", "h": "i2", "i": "i4", "q": "i8"}


def _unpack_column(data: memoryview, at: int, count: int) -> tuple[Ints, int]:
    kind = _NUMPY_TYPE[chr(data[at])]
    (first,) = struct.unpack_from("<q", data, at + 1)
    at += 9
    values = np.empty(count, np.int64)
    if count:
        steps = np.frombuffer(data, f"<{kind}", count - 1, at)
        values[0] = first
        np.cumsum(steps, dtype=np.int64, out=values[1:])
        values[1:] += first
        at += steps.nbytes
    return values, at


def encode_page(columns: PacketColumns, order: Ints) -> bytes:
    """Return the stored form of a page; `order` counts from the page's first packet."""
    ends = columns.position + columns.size
    gaps = columns.position - np.concatenate(([0], ends[:-1]))
    parts = [
        struct.pack("<II", len(columns), len(order)),
        _pack_column(columns.pts - columns.dts),
        _pack_column(columns.dts),
        _pack_column(gaps),
        _pack_column(columns.size),
        _pack_column(columns.flags.astype(np.int64)),
        _pack_column(order - np.arange(len(order))),
    ]
    return _MAGIC + zlib.compress(b"".join(parts), 6)


def _max_page_bytes(bounds: PageBounds) -> int:
    """Return the size of the columns of a page whose differences all take 8 bytes."""
    return 8 + 6 * 9 + 8 * (5 * bounds.packets + bounds.frames)


def _decompress(data: bytes, most: int) -> bytes:
    """Decompress `data`, with memory for at most `most` bytes."""
    # The length in a damaged or malicious blob must not decide how much memory is taken.
    inflating = zlib.decompressobj()
    found = inflating.decompress(data, most + 1)
    if len(found) > most or not inflating.eof:
        raise ValueError("unexpected length")
    return found


def decode_page(bounds: PageBounds, blob: bytes) -> FramePage:
    """Decode the result of `encode_page`.  Raises `IntegrityError` for invalid bytes."""
    try:
        if blob[:4] != _MAGIC:
            raise ValueError("bad magic")
        data = memoryview(_decompress(blob[4:], _max_page_bytes(bounds)))
        packets, frames = struct.unpack_from("<II", data)
        if (packets, frames) != (bounds.packets, bounds.frames):
            raise ValueError("page and index disagree")
        at = 8
        offsets, at = _unpack_column(data, at, packets)
        dts, at = _unpack_column(data, at, packets)
        gaps, at = _unpack_column(data, at, packets)
        size, at = _unpack_column(data, at, packets)
        flags, at = _unpack_column(data, at, packets)
        order, at = _unpack_column(data, at, frames)
    except (ValueError, KeyError, zlib.error, struct.error, IndexError) as error:
        raise IntegrityError(f"a page of the frame table is damaged: {error}") from error
    # position[i] = gap[i] + end of packet i - 1, for every i.
    position = np.cumsum(gaps + np.concatenate(([0], size[:-1]))) if packets else gaps
    columns = PacketColumns(dts + offsets, dts, position, size, flags.astype(np.uint8))
    return FramePage(bounds, columns, order + np.arange(frames))


def last_key(bounds: PageBounds, blob: bytes, before: int | None) -> int | None:
    """Decode a page, and compare it with its `bounds`.

    `before` is the last key packet before the page.  Returns the last key packet up to the end of
    the page, or None if `before` is None.  Raises `IntegrityError`.
    """
    page = decode_page(bounds, blob)
    columns, order = page.columns, page.order
    if len(order) and not 0 <= int(order.min()) <= int(order.max()) < len(columns):
        raise IntegrityError("a page of the frame table refers to packets outside it")
    shown = columns.pts[order] if len(order) else columns.pts
    if len(shown) and (int(shown.min()), int(shown.max())) != (bounds.first_pts, bounds.last_pts):
        raise IntegrityError("a page of the frame table disagrees with its times")
    if before is None:
        return None
    keys = np.flatnonzero(columns.flags & KEY)
    if len(keys) and keys[0] == 0:
        before = bounds.first_packet
    if before != bounds.key_packet:
        raise IntegrityError("a page of the frame table disagrees with its key packet")
    return bounds.first_packet + int(keys[-1]) if len(keys) else before


def is_same_page(bounds: PageBounds, one: bytes, other: bytes) -> bool:
    """Return whether two blobs hold the same page, whichever zlib compressed them.

    Raises `IntegrityError` if one is damaged.
    """
    most = _max_page_bytes(bounds)
    try:
        return one == other or _decompress(one[4:], most) == _decompress(other[4:], most)
    except (ValueError, zlib.error) as error:
        raise IntegrityError(f"a page of the frame table is damaged: {error}") from error


def page_cuts(columns: PacketColumns, order: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return for each packet and for the end: (frames shown before it, whether a page may end
    there).

    A page may end where the packets before it show exactly the first frames in display order.
    """
    shown_before = np.zeros(len(columns) + 1, np.int64)
    np.cumsum((columns.flags & PacketFlag.HIDDEN) == 0, out=shown_before[1:])
    latest = np.full(len(order) + 1, -1, np.int64)
    np.maximum.accumulate(order, out=latest[1:])
    return shown_before, latest[shown_before] < np.arange(len(columns) + 1)


def paginate(
    columns: PacketColumns, order: Ints, *, page_packets: int = PAGE_PACKETS
) -> Iterator[tuple[PageBounds, bytes]]:
    """Cut a whole table into pages.

    `order` lists the packets that show a frame, in display order.
    """
    packets = len(columns)
    shown_before, is_clean = page_cuts(columns, order)
    first, frame, key = 0, 0, -1
    while first < packets:
        end = min(first + page_packets, packets)
        # A page must not split pictures that are reordered across its end.
        while not is_clean[end]:
            end += 1
        count = int(shown_before[end])
        part = columns[first:end]
        mine = order[frame:count]
        pts = columns.pts[mine]
        is_key = (part.flags & PacketFlag.KEY) != 0
        if len(part) and is_key[0]:
            key = first
        bounds = PageBounds(
            first_packet=first,
            packets=end - first,
            first_frame=frame,
            frames=count - frame,
            first_pts=int(pts.min()) if len(pts) else int(part.pts.min()),
            last_pts=int(pts.max()) if len(pts) else int(part.pts.max()),
            key_packet=key,
        )
        yield bounds, encode_page(part, mine - first)
        keys = np.flatnonzero(is_key)
        if len(keys):
            key = first + int(keys[-1])
        first, frame = end, count
