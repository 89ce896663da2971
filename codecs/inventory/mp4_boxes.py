"""Lists the boxes of an MP4 or MOV file (ISO/IEC 14496-12, QuickTime File Format).

`FileWindow` reads small pieces of a file without a system call for each.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vfsd.codecs.inventory.inventory import ItemCollector
from vfsd.disk.checksums import MediaSource

_WINDOW = 1 << 16
_CHUNK = 1 << 20


class FileWindow:
    """Buffered reads of a source at any position. Not thread-safe."""

    def __init__(self, source: MediaSource) -> None:
        self._source = source
        self.size = source.size
        self._start = 0
        self._data = b""

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes from `position` on; fewer only at the end of the file."""
        offset = position - self._start
        if offset < 0 or offset + size > len(self._data):
            self._start, offset = position, 0
            self._data = self._source.read_at(position, max(size, _WINDOW))
        return self._data[offset : offset + size]

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes in ``start <= offset < end``, in parts."""
        while start < end:
            part = self._source.read_at(start, min(_CHUNK, end - start))
            if not part:
                return
            yield part
            start += len(part)


PICTURES_PATH = "pictures"
"""The name of the pictures' track in paths."""

_MAX_DEPTH = 16
# Most bytes of a leaf to hold in memory; larger ones are only digested.
_MAX_LEAF = 1 << 20
_HEAD = 8

CONTAINER_BOXES = frozenset(b"moov mdia minf stbl edts dinf mvex moof mfra".split())
"""Boxes that hold other boxes and nothing else."""
_VIDEO_ENTRY = 78
_MTXI_BYTES = 44
_AUDIO_ENTRY = 28
_AUDIO_EXTENSIONS = {1: 16, 2: 36}
_RATE_BYTES = 20


@dataclass(frozen=True, slots=True)
class Mp4Box:
    """The position of a box in a file."""

    kind: bytes  #: four characters
    start: int  #: offset of the header
    content: int
    end: int


def iter_boxes(window: FileWindow, start: int, end: int) -> Iterator[Mp4Box]:
    """Yield the boxes in ``start <= offset < end``, up to the first that does not fit."""
    at = start
    while at + _HEAD <= end:
        head = window.read(at, 16)
        if len(head) < _HEAD:
            return
        size, kind = struct.unpack_from(">I4s", head)
        content = at + _HEAD
        if size == 1 and len(head) == 16:
            (size,) = struct.unpack_from(">Q", head, 8)
            content += 8
        elif size == 0:
            size = end - at
        if size < content - at or at + size > end:
            return
        yield Mp4Box(kind, at, content, at + size)
        at += size


def child_boxes(window: FileWindow, parent: Mp4Box) -> Iterator[Mp4Box]:
    """Yield the boxes in a box that holds nothing else."""
    return iter_boxes(window, parent.content, parent.end)


def first_mp4_box(window: FileWindow, parent: Mp4Box | None, kind: bytes) -> Mp4Box | None:
    """Return the first box of a kind in `parent` (None: in the file); None if there is none."""
    start, end = (0, window.size) if parent is None else (parent.content, parent.end)
    return next((one for one in iter_boxes(window, start, end) if one.kind == kind), None)


def track_id(window: FileWindow, header: Mp4Box | None) -> int:
    """Return the ID in a tkhd box; 0 without one."""
    if header is None:
        return 0
    wide = 8 if window.read(header.content, 1) == b"\1" else 4
    return int.from_bytes(window.read(header.content + 4 + 2 * wide, 4), "big")


def mediamtx_start(path: str | os.PathLike[str]) -> int | None:
    """Return the Unix time in ns of the first frame that MediaMTX wrote into a file; None without.

    Its box mtxi has version, stream, number of the segment, DTS, and that time.
    """
    with MediaSource(os.fspath(path)) as source:
        window = FileWindow(source)
        box: Mp4Box | None = None
        for kind in (b"moov", b"udta", b"mtxi"):
            box = first_mp4_box(window, box, kind)
            if box is None:
                return None
        assert box is not None
        data = window.read(box.content, _MTXI_BYTES)
    if len(data) < _MTXI_BYTES or box.end - box.content < _MTXI_BYTES or data[0]:
        return None
    (start,) = struct.unpack_from(">q", data, _MTXI_BYTES - 8)
    return int(start) if start > 0 else None


def kind_name(kind: bytes) -> str:
    """Return a printable box type: hexadecimal if needed."""
    text = kind.decode("latin-1")
    return text if text.isprintable() else f"0x{kind.hex()}"


def add_boxes(window: FileWindow, stream_index: int, into: ItemCollector) -> None:
    """Add all boxes of a file; track number `stream_index`, from 0, has the pictures."""
    _BoxWalker(window, stream_index, into).file()


class _BoxWalker:
    """Walks the boxes of a file and adds their data."""

    def __init__(self, window: FileWindow, stream_index: int, into: ItemCollector) -> None:
        self._window = window
        self._stream_index = stream_index
        self._into = into
        self._tracks: dict[int, str] = {}  # names by track ID
        self._count = 0
        self._name = ""
        self._handler = b""
        self._display = (0, 0)
        self._keys: list[str] = []
        self._references: list[tuple[str, bytes]] = []
        self._handlers: dict[bytes, Callable[[Mp4Box, str, int], None]] = {
            b"trak": self._trak,
            b"traf": self._traf,
            b"tkhd": self._tkhd,
            b"mvhd": self._mvhd,
            b"mdhd": self._mdhd,
            b"hdlr": self._hdlr,
            b"vmhd": self._vmhd,
            b"stsd": self._stsd,
            b"udta": self._udta,
            b"meta": self._meta,
            b"ilst": self._ilst,
            b"tref": self._tref,
            b"tapt": self._tapt,
            b"sgpd": self._group,
            b"sbgp": self._group,
            b"uuid": self._uuid,
            b"mdat": self._nothing,
        }

    def file(self) -> None:
        self._children(0, self._window.size, "", 0)
        for path, ids in self._references:
            tracks = (int.from_bytes(ids[at : at + 4], "big") for at in range(0, len(ids), 4))
            named = ", ".join(self._tracks.get(one, f"track {one}") for one in tracks)
            self._into.add_text(path, named)

    def _children(self, start: int, end: int, path: str, depth: int) -> None:
        at = start
        for box in iter_boxes(self._window, start, end):
            self._box(box, path, depth)
            at = box.end
        self._rest(at, end, path)

    def _rest(self, start: int, end: int, path: str) -> None:
        """Add bytes after the last box, where some vendors append data."""
        size = end - start
        if size > _MAX_LEAF or self._window.read(start, size).strip(b"\0"):
            self._digest(start, end, f"{path}/bytes behind the last box".lstrip("/"))

    def _box(self, box: Mp4Box, path: str, depth: int) -> None:
        inner = f"{path}/{kind_name(box.kind)}".lstrip("/")
        handler = self._handlers.get(box.kind)
        if depth >= _MAX_DEPTH:
            self._digest(box.content, box.end, inner)
        elif handler is not None:
            handler(box, inner, depth + 1)
        elif box.kind in CONTAINER_BOXES:
            self._children(box.content, box.end, inner, depth + 1)
        else:
            self._digest(box.content, box.end, inner)

    def _digest(self, start: int, end: int, path: str, text: str = "") -> None:
        self._into.add_pieces(path, self._window.chunks(start, end), end - start, text)

    def _bytes(self, box: Mp4Box) -> bytes:
        return self._window.read(box.content, min(box.end - box.content, _MAX_LEAF))

    def _nothing(self, box: Mp4Box, path: str, depth: int) -> None:
        """Do nothing: samples are compared as packets."""

    def _trak(self, box: Mp4Box, path: str, depth: int) -> None:
        is_pictures = self._count == self._stream_index
        self._name = PICTURES_PATH if is_pictures else f"stream {self._count}"
        self._count += 1
        self._children(box.content, box.end, f"{path.removesuffix('/trak')}/{self._name}", depth)

    def _traf(self, box: Mp4Box, path: str, depth: int) -> None:
        name = "a track"
        for inner in iter_boxes(self._window, box.content, box.end):
            if inner.kind == b"tfhd":
                number = int.from_bytes(self._bytes(inner)[4:8], "big")
                name = self._tracks.get(number, name)
        self._children(box.content, box.end, f"moof/{name}", depth)

    def _tref(self, box: Mp4Box, path: str, depth: int) -> None:
        for inner in iter_boxes(self._window, box.content, box.end):
            self._references.append((f"{path}/{kind_name(inner.kind)}", self._bytes(inner)))

    def _mvhd(self, box: Mp4Box, path: str, depth: int) -> None:
        data = self._bytes(box)
        wide = 8 if data[:1] == b"\1" else 4
        self._times(data, wide, path)
        rest = data[4 + 2 * wide + 4 + wide :]
        self._into.add(f"{path}/rate and volume", rest[:6])
        self._into.add(f"{path}/matrix", rest[16:52])
        if rest[52:76].strip(b"\0"):
            self._into.add(f"{path}/preview, poster and selection", rest[52:76])

    def _tkhd(self, box: Mp4Box, path: str, depth: int) -> None:
        data = self._bytes(box)
        wide = 8 if data[:1] == b"\1" else 4
        at = 4 + 2 * wide
        self._tracks[int.from_bytes(data[at : at + 4], "big")] = self._name
        self._times(data, wide, path)
        flags = int.from_bytes(data[1:4], "big")
        self._into.add_text(f"{path}/flags", f"{flags:#x}")
        rest = data[at + 8 + wide + 8 :]
        self._into.add(f"{path}/layer and group", rest[:4])
        self._into.add(f"{path}/volume", rest[4:6])
        self._into.add(f"{path}/matrix", rest[8:44])
        if len(rest) >= 52:
            self._display = struct.unpack_from(">II", rest, 44)

    def _mdhd(self, box: Mp4Box, path: str, depth: int) -> None:
        data = self._bytes(box)
        wide = 8 if data[:1] == b"\1" else 4
        self._times(data, wide, path)
        at = 4 + 2 * wide + 4 + wide
        self._into.add_text(f"{path}/language", _language(data[at : at + 2]))

    def _times(self, data: bytes, wide: int, path: str) -> None:
        for name, at in (("creation time", 4), ("modification time", 4 + wide)):
            seconds = int.from_bytes(data[at : at + wide], "big")
            if seconds:
                self._into.add_text(f"{path}/{name}", f"{seconds} s after 1904")

    def _hdlr(self, box: Mp4Box, path: str, depth: int) -> None:
        data = self._bytes(box)
        if len(data) < 24 or path.endswith("minf/hdlr"):
            return  # QuickTime's data handler, which says that samples are in the file
        self._handler = data[8:12]
        self._into.add_text(f"{path}/type", kind_name(data[8:12]))
        name = data[24:]
        if name and name[0] == len(name) - 1:
            name = name[1:]  # QuickTime stores a Pascal string
        name = name.rstrip(b"\0")
        if name:
            self._into.add(f"{path}/name", name, name.decode("utf-8", "replace"))

    def _vmhd(self, box: Mp4Box, path: str, depth: int) -> None:
        mode = int.from_bytes(self._bytes(box)[4:6], "big")
        self._into.add_text(f"{path}/graphics mode", f"{mode:#x}")

    def _tapt(self, box: Mp4Box, path: str, depth: int) -> None:
        """Add QuickTime apertures, unless they equal the size of the track."""
        sizes = {
            struct.unpack_from(">II", data, 4)
            for data in map(self._bytes, iter_boxes(self._window, box.content, box.end))
            if len(data) >= 12
        }
        if sizes - {self._display}:
            self._digest(box.content, box.end, path)

    def _group(self, box: Mp4Box, path: str, depth: int) -> None:
        data = self._bytes(box)
        self._digest(box.content, box.end, f"{path} {kind_name(data[4:8])}")

    def _uuid(self, box: Mp4Box, path: str, depth: int) -> None:
        number = self._window.read(box.content, 16)
        self._digest(box.content, box.end, f"{path} {number.hex()}")

    def _stsd(self, box: Mp4Box, path: str, depth: int) -> None:
        count = 0
        for entry in iter_boxes(self._window, box.content + 8, box.end):
            count += 1
            self._entry(entry, path if count == 1 else f"{path} {count}", depth)
        if count > 1:
            self._into.add_text(f"{path}/descriptions", str(count))

    def _entry(self, box: Mp4Box, path: str, depth: int) -> None:
        head = self._window.read(box.content, 16)
        if self._handler == b"vide":
            start = box.content + _VIDEO_ENTRY
        elif self._handler == b"soun":
            version = int.from_bytes(head[8:10], "big")
            start = box.content + _AUDIO_ENTRY + _AUDIO_EXTENSIONS.get(version, 0)
        else:
            data = without_rates(self._bytes(box))
            self._into.add(f"{path}/{kind_name(box.kind)}", data)
            return
        for inner in iter_boxes(self._window, start, box.end):
            data = self._bytes(inner)
            name = kind_name(inner.kind)
            if inner.kind == b"colr":
                name = f"colr {kind_name(data[:4])}"
            elif inner.kind == b"fiel" and data[:1] == b"\1":
                continue  # progressive, as without it
            if inner.kind == b"uuid":
                name = f"uuid {data[:16].hex()}"
            self._digest(inner.content, inner.end, f"{path}/{name}")

    def _udta(self, box: Mp4Box, path: str, depth: int) -> None:
        end = box.end
        at = box.content
        for inner in iter_boxes(self._window, box.content, box.end):
            self._box(inner, path, depth)
            at = inner.end
        self._rest(at, end, path)

    def _meta(self, box: Mp4Box, path: str, depth: int) -> None:
        # A full box in MP4, a plain box in QuickTime.
        is_plain = self._window.read(box.content + 4, 4) == b"hdlr"
        start = box.content + (0 if is_plain else 4)
        outer, self._keys = self._keys, []
        handler = self._handler
        for inner in iter_boxes(self._window, start, box.end):
            if inner.kind == b"keys":
                self._keys = list(_keys(self._bytes(inner)))
        for inner in iter_boxes(self._window, start, box.end):
            if inner.kind == b"keys":
                continue  # they are listed as names of the values
            if inner.kind == b"hdlr":
                kind = self._window.read(inner.content + 8, 4)
                self._into.add_text(f"{path}/hdlr", kind_name(kind))
            else:
                self._box(inner, path, depth)
        self._keys, self._handler = outer, handler

    def _ilst(self, box: Mp4Box, path: str, depth: int) -> None:
        for inner in iter_boxes(self._window, box.content, box.end):
            name = kind_name(inner.kind)
            number = int.from_bytes(inner.kind, "big")
            if self._keys and 0 < number <= len(self._keys):
                name = self._keys[number - 1]
            elif inner.kind == b"----":
                name = self._freeform(inner)
            self._digest(inner.content, inner.end, f"{path}/{name}", self._value(inner))

    def _freeform(self, box: Mp4Box) -> str:
        texts = [
            self._bytes(inner)[4:].decode("utf-8", "replace")
            for inner in iter_boxes(self._window, box.content, box.end)
            if inner.kind in (b"mean", b"name")
        ]
        return ":".join(("----", *texts))

    def _value(self, box: Mp4Box) -> str:
        """Return a value if it is text; else an empty string."""
        for inner in iter_boxes(self._window, box.content, box.end):
            data = self._bytes(inner)
            if inner.kind == b"data" and data[:4] == b"\0\0\0\1":
                return data[8:].decode("utf-8", "replace")
        return ""


def _keys(data: bytes) -> Iterator[str]:
    """Yield the names in a keys box."""
    at = 8
    while at + _HEAD <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if size < _HEAD or at + size > len(data):
            return
        yield data[at + _HEAD : at + size].decode("utf-8", "replace")
        at += size


def _language(data: bytes) -> str:
    code = int.from_bytes(data, "big")
    if code < 0x400:
        return "und" if code in (0, 0x3FF) else f"Macintosh language {code}"
    if code == 0x7FFF:
        return "und"
    return "".join(chr((code >> shift & 31) + 0x60) for shift in (10, 5, 0))


def without_rates(entry: bytes) -> bytes:
    """Return a sample entry without bit rate boxes, since each writer appends one."""
    while len(entry) > _RATE_BYTES and entry[-_RATE_BYTES:].startswith(b"\0\0\0\x14btrt"):
        entry = entry[:-_RATE_BYTES]
    return entry
