"""The items of an inventory: each place in a file with a digest of the data found there.

`ItemCollector` gathers them; `pack_inventory` sends them from the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Protocol

from blake3 import blake3

from vfsd.errors import IntegrityError, RefusedMediaError

MAX_ITEMS = 20_000
"""Distinct places in one file.  A file with more is refused rather than compared in part."""
MAX_INVENTORY_BYTES = 1 << 26
_MAX_PATH = 1000
_MAX_TEXT = 80
_DIGEST_DIGITS = 32


@dataclass(frozen=True, slots=True)
class InventoryItem:
    """The data at one place of a file.

    Data that repeats, such as a message in every packet, is one item.
    """

    count: int  #: how many pieces there are
    size: int  #: bytes of all pieces
    digest: str  #: digest of the pieces and their lengths, in file order
    text: str = ""  #: the common value of all pieces, for messages; empty if they differ

    def __str__(self) -> str:
        if self.text:
            return self.text
        pieces = f"{self.count} times, " if self.count > 1 else ""
        return f"{pieces}{self.size} bytes"


Inventory = Mapping[str, InventoryItem]
"""Items by path.  A path names containers from the outside in: ``moov/udta/©xyz``."""


class _Digest(Protocol):
    def update(self, data: bytes, /) -> object: ...
    def hexdigest(self) -> str: ...


class ItemAdder(Protocol):
    """Accepts data by path."""

    def add(self, path: str, data: bytes, text: str = "") -> None:
        """Add one piece of data."""

    def add_text(self, path: str, text: str) -> None:
        """Add a value that is shown as it is."""

    def add_lasting(self, path: str, data: bytes) -> None:
        """Add data that holds until other data comes, and may be repeated."""


class ItemCollector:
    """Collects the items of one file."""

    def __init__(self) -> None:
        self._digests: dict[str, _Digest] = {}
        self._counts: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    def add(self, path: str, data: bytes, text: str = "") -> None:
        """Add one piece of data.  Raises `RefusedMediaError` above `MAX_ITEMS` paths."""
        self.add_pieces(path, (data,), len(data), text)

    def add_text(self, path: str, text: str) -> None:
        """Add a value that is shown as it is."""
        self.add(path, text.encode("utf-8", "surrogateescape"), text)

    def add_lasting(self, path: str, data: bytes) -> None:
        """Add data as `add` does."""
        self.add(path, data)

    def add_pieces(self, path: str, pieces: Iterable[bytes], size: int, text: str = "") -> None:
        """Add one piece of data of `size` bytes that is read in parts."""
        path = path[:_MAX_PATH].encode("utf-8", "backslashreplace").decode()[:_MAX_PATH]
        digest = self._digests.get(path)
        if digest is None:
            if len(self._digests) >= MAX_ITEMS:
                raise RefusedMediaError(f"the file holds more than {MAX_ITEMS} kinds of data")
            digest = self._digests[path] = blake3()
        digest.update(size.to_bytes(8, "little"))
        for piece in pieces:
            digest.update(piece)
        self._counts[path] = self._counts.get(path, 0) + 1
        self._sizes[path] = self._sizes.get(path, 0) + size
        if self._texts.setdefault(path, text[:_MAX_PATH]) != text[:_MAX_PATH]:
            self._texts[path] = ""

    def discard(self, path: str) -> None:
        """Remove the data that was added at `path`."""
        self._digests.pop(path, None)

    def items(self) -> dict[str, InventoryItem]:
        """Return all items by path."""
        return {
            path: InventoryItem(
                self._counts[path],
                self._sizes[path],
                digest.hexdigest()[:_DIGEST_DIGITS],
                _shortened(self._texts[path]),
            )
            for path, digest in self._digests.items()
        }


def _shortened(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text[: _MAX_TEXT + 1]).strip()
    return printable if len(printable) <= _MAX_TEXT else printable[:_MAX_TEXT] + "..."


def pack_inventory(found: Inventory) -> bytes:
    """Return an inventory in the wire format; see `unpack_inventory`."""
    rows = [[path, one.count, one.size, one.digest, one.text] for path, one in found.items()]
    return json.dumps(rows).encode("ascii")


def unpack_inventory(data: bytes) -> dict[str, InventoryItem]:
    """Return an inventory from an untrusted process.

    Raises `IntegrityError` for data that `pack_inventory` does not write.
    """
    try:
        return dict(_unpacked_rows(json.loads(data)))
    except (ValueError, TypeError, RecursionError) as error:
        raise IntegrityError(f"not an inventory of a file: {error}") from error


def _unpacked_rows(rows: Any) -> Iterator[tuple[str, InventoryItem]]:
    if type(rows) is not list or len(rows) > MAX_ITEMS:
        raise ValueError("not a list of items")
    for path, count, size, digest, text in rows:
        if any(type(one) is not str for one in (path, digest, text)):
            raise ValueError("path, digest and text must be text")
        if any(type(one) is not int or not 0 <= one < 1 << 62 for one in (count, size)):
            raise ValueError("count or size out of range")
        if len(path) > _MAX_PATH or len(digest) > _DIGEST_DIGITS or len(text) > _MAX_TEXT + 3:
            raise ValueError("item too long")
        yield path, InventoryItem(count, size, digest, text)


class PictureAdder:
    """Adds data of packets in display order of their pictures.

    Each piece is added with the number of its picture. Two encodings of the same pictures with
    another packet order then give equal items.
    """

    def __init__(self, into: ItemCollector) -> None:
        self._into = into
        self._given = 0
        self._shown = 0
        self._lasting: dict[str, bytes] = {}  # the last data by path
        # Data of the current packet; None: data of the configuration is added at once.
        self._now: list[tuple[str, bytes, str]] | None = None
        self._waiting: list[tuple[int, int, list[tuple[str, bytes, str]]]] = []

    def begin(self, pts: int) -> None:
        """Start the data of the next packet, whose picture is shown at `pts`."""
        self._now = []
        heappush(self._waiting, (pts, self._given, self._now))
        self._given += 1
        if len(self._waiting) > _MAX_REORDERED:
            self._take()

    def finish(self) -> None:
        """Add the data of the remaining packets."""
        while self._waiting:
            self._take()

    def add(self, path: str, data: bytes, text: str = "") -> None:
        """Add data of the current packet, or of the configuration before the first one."""
        if self._now is None:
            self._put(path, data, text, 0)
        else:
            self._now.append((path, data, text))

    def add_text(self, path: str, text: str) -> None:
        """Add a value that is shown as it is."""
        self.add(path, text.encode("utf-8", "surrogateescape"), text)

    def add_lasting(self, path: str, data: bytes) -> None:
        """Add data unless it repeats the last data at `path`."""
        self._lasting.setdefault(path, b"")
        self.add(path, data)

    def _take(self) -> None:
        for path, data, text in heappop(self._waiting)[2]:
            self._put(path, data, text, self._shown)
        self._shown += 1

    def _put(self, path: str, data: bytes, text: str, picture: int) -> None:
        if path in self._lasting:
            if self._lasting[path] == data:
                return
            self._lasting[path] = data
        self._into.add_pieces(path, (picture.to_bytes(8, "little"), data), len(data), text)


_MAX_REORDERED = 64
"""Most packets that are held back to sort them; decoders delay fewer pictures."""
