"""Reading EBML (RFC 8794), of which Matroska is made."""

from __future__ import annotations

from collections.abc import Iterator

_MOST_SIZE_BYTES = 8


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(id with its marker bits, body) of each element that `data` begins with.

    An element of unknown size, or one that is cut off, has all that is left.  Ends where the bytes
    are no element.
    """
    at = 0
    while at < len(data):
        id_length = _length(data[at])
        if id_length > 4 or at + id_length >= len(data):
            return
        identifier = int.from_bytes(data[at : at + id_length], "big")
        at += id_length
        size_length = _length(data[at])
        if size_length > _MOST_SIZE_BYTES or at + size_length > len(data):
            return
        size = int.from_bytes(data[at : at + size_length], "big") & (1 << 7 * size_length) - 1
        at += size_length
        if size == (1 << 7 * size_length) - 1:
            size = len(data) - at
        yield identifier, data[at : at + size]
        at += size


def first(data: bytes, *path: int) -> bytes | None:
    """The body of the first element at a path of ids; None where there is none."""
    for identifier in path:
        found = next((body for name, body in elements(data) if name == identifier), None)
        if found is None:
            return None
        data = found
    return data


def number(body: bytes) -> int:
    """An unsigned integer."""
    return int.from_bytes(body, "big")


def _length(head: int) -> int:
    """Bytes of a variable-size integer, by its first; 9 where that is none."""
    return 9 - head.bit_length()
