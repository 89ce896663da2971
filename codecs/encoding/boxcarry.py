"""Copies boxes of metadata from one MP4 or MOV file to another, byte for byte.

FFmpeg's muxer writes what it has read of user data, QuickTime keys, XMP and projections in
its own way, or not at all.  Boxes of these kinds hold no places in the file, so that they mean the
same in another one.  A box of any other kind is left out.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping

from vfsd.codecs.containers.boxes import box
from vfsd.codecs.decoding.source import Source
from vfsd.codecs.inventory.boxtree import Box, boxes, first_box, inside, track_id
from vfsd.codecs.inventory.window import Window
from vfsd.errors import RefusedMediaError

_USER_DATA = frozenset(
    b"XMP_ name titl auth perf gnre dscp cprt albm yrrc loci rtng clsf kywd coll date chpl Xtra "
    b"GPMF FIRM LENS CAME SETT MUID HMMT mdln cmnm cmid manu modl".split()
)
"""Kinds in a udta box that hold no places; those that begin with © do not either."""
_METADATA = frozenset((b"hdlr", b"keys", b"ilst", b"free", b"xml ", b"ID32"))
_MARKS = frozenset((b"st3d", b"sv3d", b"mdcv", b"clli", b"SmDm", b"CoLL", b"amve"))
_PROFILES = (b"prof", b"rICC")
_XMP = bytes.fromhex("be7acfcb97a942e89c71999491e3afac")
_SPHERICAL = bytes.fromhex("ffcc8263f8554a938814587a02521fdd")
_ENTRY_BYTES = 78
_MOST_BYTES = 1 << 26
_MOST_HANDLER = 1 << 12
_CHUNK = 1 << 22
_PARENTS = (b"mdia", b"minf", b"stbl")


def carry_boxes(
    source: Source, target: str | os.PathLike[str], tracks: Mapping[int, int], pictures: int
) -> None:
    """Put the boxes of `source` into the file at `target`, in which the moov box stands anywhere.

    `tracks` are the track IDs of `target`, each with the number of its track in `source`, counted
    from 0; `pictures` is the number of the pictures' track there.

    Raises `RefusedMediaError` where chunk offsets of 32 bits do not reach far enough, `OSError`.
    """
    with open(target, "r+b") as file, Source(file.fileno()) as made:
        _Carrier(Window(source), Window(made), file.fileno(), tracks, pictures).carry()


class _Carrier:
    def __init__(
        self, given: Window, made: Window, fd: int, tracks: Mapping[int, int], pictures: int
    ) -> None:
        self._given = given
        self._made = made
        self._fd = fd
        self._tracks = tracks
        self._pictures = pictures

    def carry(self) -> None:
        old = first_box(self._given, None, b"moov")
        new = first_box(self._made, None, b"moov")
        if old is None or new is None:
            return
        sources = [one for one in inside(self._given, old) if one.kind == b"trak"]
        parts: list[bytes] = []
        for one in inside(self._made, new):
            if one.kind == b"trak":
                number = self._tracks.get(
                    track_id(self._made, first_box(self._made, one, b"tkhd")), -1
                )
                if 0 <= number < len(sources):
                    parts.append(self._track(one, sources[number], number == self._pictures))
                    continue
            parts.append(_raw(self._made, one))
        moov = _merged(parts, self._safe(old))
        growth = _HEAD_BYTES + len(moov) - (new.end - new.start)
        if growth and any(
            one.kind == b"mdat" and one.start >= new.end
            for one in boxes(self._made, 0, self._made.size)
        ):
            moov = _moved(moov, growth)
        self._write(new, box(b"moov", moov), growth)
        self._append()

    # -- the tree

    def _track(self, new: Box, old: Box, is_pictures: bool) -> bytes:
        """A trak box with the boxes of `old`."""
        marks = self._entry_marks(old) if is_pictures else b""
        media = first_box(self._given, old, b"mdia")
        parts = [
            self._media(one, media, marks)
            if one.kind == b"mdia" and media is not None
            else _raw(self._made, one)
            for one in inside(self._made, new)
        ]
        return box(b"trak", _merged(parts, self._safe(old)))

    def _media(self, new: Box, old: Box, marks: bytes) -> bytes:
        """An mdia box with the handler of `old`, which has a name, and with `marks`."""
        handler = first_box(self._given, old, b"hdlr")
        parts = []
        for one in inside(self._made, new):
            if one.kind == b"hdlr" and handler is not None and self._are_alike(one, handler):
                parts.append(_raw(self._given, handler))
            elif one.kind == b"minf" and marks:
                parts.append(self._with_marks(one, marks))
            else:
                parts.append(_raw(self._made, one))
        return box(b"mdia", *parts)

    def _are_alike(self, new: Box, old: Box) -> bool:
        """Whether two hdlr boxes are of the same kind of track."""
        kinds = self._made.read(new.content + 4, 8), self._given.read(old.content + 4, 8)
        return kinds[0][4:] == kinds[1][4:] and old.end - old.start <= _MOST_HANDLER

    def _with_marks(self, parent: Box, marks: bytes) -> bytes:
        """A minf box, or one in it, with `marks` in its sample description."""
        if parent.kind == b"stsd":
            head = self._made.read(parent.content, 8)
            entries = [
                _raw(self._made, one) for one in boxes(self._made, parent.content + 8, parent.end)
            ]
            first = entries[0] + marks
            first = struct.pack(">I", len(first)) + first[4:]
            return box(b"stsd", head, first, *entries[1:])
        parts = [
            self._with_marks(one, marks)
            if one.kind in (*_PARENTS, b"stsd")
            else _raw(self._made, one)
            for one in inside(self._made, parent)
        ]
        return box(parent.kind, *parts)

    def _entry_marks(self, trak: Box) -> bytes:
        """The marks in the sample description of a track of the source."""
        place: Box | None = trak
        for kind in (*_PARENTS, b"stsd"):
            place = place and first_box(self._given, place, kind)
        if place is None:
            return b""
        found: list[bytes] = []
        for entry in boxes(self._given, place.content + 8, place.end):
            for one in boxes(self._given, entry.content + _ENTRY_BYTES, entry.end):
                is_profile = self._given.read(one.content, 4) in _PROFILES
                if one.kind in _MARKS or (one.kind == b"colr" and is_profile):
                    found.append(_raw(self._given, one))
            break
        return b"".join(found)

    def _safe(self, parent: Box) -> dict[bytes, list[bytes]]:
        """Boxes of metadata right in `parent` that mean the same in another file, by kind."""
        found: dict[bytes, list[bytes]] = {}
        for one in inside(self._given, parent):
            if one.end - one.start <= _MOST_BYTES and self._is_safe(one):
                found.setdefault(one.kind, []).append(_raw(self._given, one))
        return found

    def _is_safe(self, one: Box) -> bool:
        if one.kind == b"udta":
            return all(
                child.kind in _USER_DATA
                or child.kind[:1] == b"\xa9"
                or (child.kind == b"meta" and self._is_safe(child))
                for child in inside(self._given, one)
            )
        if one.kind == b"meta":
            is_plain = self._given.read(one.content + 4, 4) == b"hdlr"
            start = one.content + (0 if is_plain else 4)
            return all(child.kind in _METADATA for child in boxes(self._given, start, one.end))
        if one.kind == b"uuid":
            return self._given.read(one.content, 16) in (_XMP, _SPHERICAL)
        return one.kind == b"tapt"

    # -- the file

    def _write(self, old: Box, moov: bytes, growth: int) -> None:
        size = os.fstat(self._fd).st_size
        if growth:
            for start, end in _parts(old.end, size, backwards=growth > 0):
                data = os.pread(self._fd, end - start, start)
                _write_all(self._fd, data, start + growth)
        if growth < 0:
            os.ftruncate(self._fd, size + growth)
        _write_all(self._fd, moov, old.start)

    def _append(self) -> None:
        """XMP that stands outside of the moov box."""
        for one in boxes(self._given, 0, self._given.size):
            if one.kind == b"uuid" and self._is_safe(one) and one.end - one.start <= _MOST_BYTES:
                _write_all(self._fd, _raw(self._given, one), os.fstat(self._fd).st_size)


_HEAD_BYTES = 8


def _merged(parts: list[bytes], carried: Mapping[bytes, list[bytes]]) -> bytes:
    """Boxes, in which those of the kinds that are carried are replaced."""
    kept = [one for one in parts if one[4:8] not in carried]
    return b"".join((*kept, *(one for found in carried.values() for one in found)))


def _moved(moov: bytes, growth: int) -> bytes:
    """The contents of a moov box with all chunk offsets moved.  Raises `RefusedMediaError`."""
    data = bytearray(moov)
    for kind, start, end in _offset_boxes(moov, 0, len(moov)):
        wide = 4 if kind == b"stco" else 8
        for at in range(start + 8, end, wide):
            told = int.from_bytes(data[at : at + wide], "big") + growth
            if told >= 1 << 8 * wide:
                raise RefusedMediaError("its metadata would move samples beyond 4 GiB")
            data[at : at + wide] = told.to_bytes(wide, "big")
    return bytes(data)


def _offset_boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(kind, start, end) of the contents of stco and co64 boxes."""
    at = start
    while at + _HEAD_BYTES <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        if size < _HEAD_BYTES:
            return
        if kind in (b"trak", *_PARENTS):
            yield from _offset_boxes(data, at + _HEAD_BYTES, at + size)
        elif kind in (b"stco", b"co64"):
            yield kind, at + _HEAD_BYTES, at + size
        at += size


def _raw(window: Window, one: Box) -> bytes:
    return window.read(one.start, one.end - one.start)


def _parts(start: int, end: int, *, backwards: bool) -> Iterator[tuple[int, int]]:
    starts = range(start, end, _CHUNK)
    for at in reversed(starts) if backwards else starts:
        yield at, min(at + _CHUNK, end)


def _write_all(fd: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view, position = view[written:], position + written
