"""The pack format: all cells of one segment.

A table at the beginning lists the offsets and checksums of all packets.  In a bucket, an object has
the packs of many segments, one after the other.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, BinaryIO

from vfsd.codecs.frames.color import SITINGS
from vfsd.disk.object_reader import ObjectReader, StoredObjects
from vfsd.errors import IntegrityError

_HEAD = struct.Struct("<4sBI")
_CHECKSUM = struct.Struct("<I")
_BEGIN = _HEAD.size + _CHECKSUM.size
"""Position of the table in a pack."""
_MAGIC, _VERSION = b"vfpk", 2
TABLE_BYTES = 4096
"""First read of a pack. Most tables fit."""
_MAX_TABLE_BYTES = 1 << 28
_MAX_PACK_BYTES = 1 << 48
_MAX_SIDE = 1 << 16


@dataclass(frozen=True, slots=True)
class PackedCell:
    """One stream of a pack. Packet i shows frame i of the segment."""

    codec: str  #: FFmpeg's name of the codec, or a name of our own
    width: int  #: width of the stored pictures: that of the tile, rounded up to even
    height: int
    extradata: bytes
    offsets: tuple[int, ...]  #: of each packet in the object, and the end of the last
    sums: tuple[int, ...] = ()  #: CRC-32 of each packet; empty if not known
    #: Chroma location (`vfsd.codecs.frames.color`); None: set by the decoder.
    siting: str | None = None
    gop: int | None = None  #: packets from one key packet to the next; None: only the first is one

    @property
    def position(self) -> int:
        """Offset of the first packet in bytes."""
        return self.offsets[0]

    @property
    def size(self) -> int:
        """Bytes of all packets."""
        return self.offsets[-1] - self.offsets[0]

    def key_before(self, number: int) -> int:
        """Return the last key packet at or before packet `number`."""
        return 0 if self.gop is None else number - number % self.gop

    def is_whole(self, number: int, packet: bytes | memoryview) -> bool:
        """Return whether `packet` matches the checksum of packet `number`."""
        return zlib.crc32(packet) == self.sums[number]


@dataclass(frozen=True, slots=True)
class CellStream:
    """A cell from an encoder."""

    codec: str
    width: int
    height: int
    extradata: bytes
    packets: Sequence[bytes]
    siting: str | None = None  #: as in `PackedCell`
    gop: int | None = None  #: as in `PackedCell`


@dataclass(frozen=True, slots=True)
class PackTable:
    """The table of contents of a pack."""

    cells: list[PackedCell]  #: one for each tile, or for each piece of a joint
    joint: Mapping[str, Any] | None = None


def write_pack(
    file: BinaryIO, cells: Sequence[CellStream], joint: Mapping[str, Any] | None = None
) -> list[PackedCell]:
    """Write a pack at the position of `file`; return the cells as `open_pack` returns them."""
    start, at = file.tell(), 0
    rows = []
    for cell in cells:
        sizes = [len(packet) for packet in cell.packets]
        rows.append(
            {
                "codec": cell.codec,
                "width": cell.width,
                "height": cell.height,
                "extradata": cell.extradata.hex(),
                "at": at,
                "sizes": sizes,
                "sums": _packed_checksums(zlib.crc32(packet) for packet in cell.packets),
                **({} if cell.siting is None else {"siting": cell.siting}),
                **({} if cell.gop is None else {"gop": cell.gop}),
            }
        )
        at += sum(sizes)
    frames = len(cells[0].packets)
    described = {"frames": frames, "cells": rows} | ({} if joint is None else {"joint": joint})
    table = json.dumps(described, separators=(",", ":")).encode()
    file.write(_HEAD.pack(_MAGIC, _VERSION, len(table)) + _CHECKSUM.pack(zlib.crc32(table)))
    file.write(table)
    for cell in cells:
        file.writelines(cell.packets)
    return _parsed_table(table, start + _BEGIN + len(table)).cells


def read_table(read_at: Callable[[int, int], bytes], at: int = 0) -> PackTable:
    """Return the table of the pack at position `at` of an object.

    `read_at(offset, size)` reads up to `size` bytes.  Raises `IntegrityError` if it is damaged or
    not a pack.
    """
    table = _whole_table(read_at, at)
    try:
        return _parsed_table(table, at + _BEGIN + len(table))
    except (ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        raise IntegrityError(f"the table of a pack is damaged: {error}") from error


def _whole_table(read_at: Callable[[int, int], bytes], at: int) -> bytes:
    """Return the bytes of a table.  Raises `IntegrityError`."""
    start = read_at(at, TABLE_BYTES)
    if len(start) < _HEAD.size:
        raise IntegrityError("a pack is cut off")
    magic, version, length = _HEAD.unpack_from(start)
    if magic != _MAGIC or version != _VERSION or length > _MAX_TABLE_BYTES:
        raise IntegrityError("not a pack of tiles that this version of vfsd can read")
    end = _BEGIN + length
    table = start[_BEGIN:end]
    if len(table) < length:
        table += read_at(at + len(start), end - len(start))
    if start[_HEAD.size : _BEGIN] != _CHECKSUM.pack(zlib.crc32(table)):
        raise IntegrityError("the table of a pack is damaged")
    return table


def packed_table(read_at: Callable[[int, int], bytes], at: int = 0) -> bytes:
    """Return a short copy of the table of the pack at position `at`; see `unpacked_table`.

    Raises as `read_table`.
    """
    return _packed(_whole_table(read_at, at))


def packed_tables(read_at: Callable[[int, int], bytes], size: int) -> list[tuple[int, bytes]]:
    """Return (position, `packed_table`) of all packs in an object of `size` bytes.

    The list is empty if the object has other content.
    """
    found, at = [], 0
    if read_at(0, len(_MAGIC)) != _MAGIC:
        return []
    while at < size:
        try:
            table = _whole_table(read_at, at)
            cells = _parsed_table(table, at + _BEGIN + len(table)).cells
        except (IntegrityError, ValueError, KeyError, TypeError, RecursionError, struct.error):
            return []
        found.append((at, _packed(table)))
        at = max([at + _BEGIN + len(table), *(cell.offsets[-1] for cell in cells)])
    return found


def unpacked_table(packed: bytes, at: int) -> PackTable | None:
    """Return the table of the pack at position `at` from its copy; None if that is damaged."""
    try:
        table = zlib.decompress(packed[_CHECKSUM.size :])
        if packed[: _CHECKSUM.size] != _CHECKSUM.pack(zlib.crc32(table)):
            return None
        return _parsed_table(table, at + _BEGIN + len(table))
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError, struct.error):
        return None


def _packed(table: bytes) -> bytes:
    return _CHECKSUM.pack(zlib.crc32(table)) + zlib.compress(table)


def open_pack(
    objects: StoredObjects, key: str, soon: Sequence[tuple[int, int]] = (), at: int = 0
) -> tuple[ObjectReader, PackTable]:
    """Return a reader of an object and the table of its pack at position `at`.

    The half-open ranges `soon` of a remote object are fetched along with the table.  Raises
    `IntegrityError`, `OSError`.
    """
    reader = objects.open(key)
    try:
        if soon:
            reader.prefetch([(at, at + TABLE_BYTES), *soon])
        try:
            return reader, read_table(reader.read, at)
        except IntegrityError:  # perhaps only in a cache
            return reader, read_table(reader.read_again, at)
    except BaseException:
        reader.close()
        raise


def _parsed_table(table: bytes, end: int) -> PackTable:
    found = json.loads(table)
    frames = found["frames"]
    joint = found.get("joint")
    if not isinstance(joint, dict | None):
        raise ValueError("a joint must be an object")
    cells = []
    for row in found["cells"]:
        sizes = row["sizes"]
        if len(sizes) != frames:
            raise ValueError("numbers of packets differ")
        if not all(_is_count(number, _MAX_PACK_BYTES) for number in (*sizes, row["at"])):
            raise ValueError("packet size or offset out of range")
        if not all(row[side] and _is_count(row[side], _MAX_SIDE) for side in ("width", "height")):
            raise ValueError("picture size out of range")
        if not isinstance(row["codec"], str):
            raise ValueError("a cell has no codec")
        offsets = tuple(accumulate(sizes, initial=end + row["at"]))
        extradata = bytes.fromhex(row["extradata"])
        sums = _unpacked_checksums(row["sums"])
        if len(sums) != frames:
            raise ValueError("numbers of packets and checksums differ")
        siting = row.get("siting")
        if siting is not None and siting not in SITINGS:
            raise ValueError("unknown chroma location")
        gop = row.get("gop")
        if gop is not None and (not gop or not _is_count(gop, _MAX_PACK_BYTES)):
            raise ValueError("GOP length out of range")
        form = (row["codec"], row["width"], row["height"], extradata)
        cells.append(PackedCell(*form, offsets, sums, siting, gop))
    return PackTable(cells, joint)


def _is_count(value: object, highest: int) -> bool:
    return type(value) is int and 0 <= value <= highest


def _packed_checksums(sums: Iterable[int]) -> str:
    return base64.b64encode(b"".join(map(_CHECKSUM.pack, sums))).decode()


def _unpacked_checksums(text: str) -> tuple[int, ...]:
    data = base64.b64decode(text, validate=True)
    return tuple(value for (value,) in _CHECKSUM.iter_unpack(data))
