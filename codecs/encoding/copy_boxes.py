"""Copies metadata boxes and header fields from one MP4 or MOV file to another, byte for byte."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from vfsd.codecs.containers.tracks import make_box
from vfsd.codecs.inventory.mp4_boxes import (
    FileWindow,
    Mp4Box,
    child_boxes,
    first_mp4_box,
    iter_boxes,
    track_id,
)
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError

_WIDE = b"\1"


@dataclass(frozen=True, slots=True)
class _HeaderBoxes:
    """The header boxes of a file and of its tracks."""

    movie: Mp4Box | None
    tracks: Mapping[int, tuple[Mp4Box | None, Mp4Box | None]]  #: tkhd and mdhd


def copy_header_fields(
    source: MediaSource, target: str | os.PathLike[str], tracks: Mapping[int, int]
) -> None:
    """Copy mvhd, tkhd and mdhd fields of `source` into the file at `target`.

    `tracks` maps track IDs of `target` to track numbers of `source`, from 0. A field that does not
    fit is not changed. Raises `OSError`.
    """
    with open(target, "r+b") as file, MediaSource(file.fileno()) as opened:
        old_file, new_file = FileWindow(source), FileWindow(opened)
        old, new = _headers(old_file), _headers(new_file)
        if old.movie is not None and new.movie is not None:
            _copy_fields(old_file, old.movie, file.fileno(), new_file, new.movie, _MOVIE)
        by_id = {track_id(new_file, pair[0]): pair for pair in new.tracks.values() if pair[0]}
        for number, place in tracks.items():
            pairs = zip(old.tracks.get(place, ()), by_id.get(number, ()), _TRACK, strict=False)
            for before, after, fields in pairs:
                if before is not None and after is not None:
                    _copy_fields(old_file, before, file.fileno(), new_file, after, fields)


# Byte ranges after the duration of an mvhd box (ISO/IEC 14496-12, 8.2.2): rate and volume, matrix,
# and the QuickTime preview fields.
_MOVIE = ((0, 16), (16, 52), (52, 76))
# Byte ranges after the duration: in a tkhd box (8.3.2) layer, group, volume and matrix; in an mdhd
# box (8.4.2) the language.
_TRACK = (((8, 14), (16, 52)), ((0, 4),))


def _copy_fields(
    old_file: FileWindow,
    before: Mp4Box,
    fd: int,
    taking: FileWindow,
    after: Mp4Box,
    fields: tuple[tuple[int, int], ...],
) -> None:
    old = old_file.read(before.content, before.end - before.content)
    new = bytearray(taking.read(after.content, after.end - after.content))
    old_wide, new_wide = (8 if data[:1] == _WIDE else 4 for data in (old, new))
    for number in (0, 1):
        duration = int.from_bytes(old[4 + number * old_wide : 4 + (number + 1) * old_wide], "big")
        if duration < 1 << 8 * new_wide:
            at = 4 + number * new_wide
            new[at : at + new_wide] = duration.to_bytes(new_wide, "big")
    if after.kind == b"tkhd":
        new[1:4] = old[1:4]
    elif after.kind == b"mvhd":
        _copy_movie_duration(old, old_wide, new, new_wide)
    # After the times: track ID and reserved in a tkhd box, timescale in the others; then duration.
    identified = 8 if after.kind == b"tkhd" else 4
    old_rest, new_rest = (4 + 2 * wide + identified + wide for wide in (old_wide, new_wide))
    for start, end in fields:
        if old_rest + end <= len(old) and new_rest + end <= len(new):
            new[new_rest + start : new_rest + end] = old[old_rest + start : old_rest + end]
    os.pwrite(fd, new, after.content)


def _copy_movie_duration(old: bytes, old_wide: int, new: bytearray, new_wide: int) -> None:
    """Restore a duration that the finer timescale of the new file rounds up by less.

    The last chapter of a chpl box ends with the movie.
    """
    old_at, at = 4 + 2 * old_wide, 4 + 2 * new_wide
    old_scale = int.from_bytes(old[old_at : old_at + 4], "big")
    scale = int.from_bytes(new[at : at + 4], "big")
    if not old_scale or not scale:
        return
    before = Fraction(int.from_bytes(old[old_at + 4 : old_at + 4 + old_wide], "big"), old_scale)
    field = slice(at + 4, at + 4 + new_wide)
    now = Fraction(int.from_bytes(new[field], "big"), scale)
    ticks = math.ceil(before * scale)
    if now < before < now + Fraction(1, old_scale) and ticks < (1 << 8 * new_wide) - 1:
        new[field] = ticks.to_bytes(new_wide, "big")


def _headers(window: FileWindow) -> _HeaderBoxes:
    movie: Mp4Box | None = None
    tracks: dict[int, tuple[Mp4Box | None, Mp4Box | None]] = {}
    moov = first_mp4_box(window, None, b"moov")
    for box in child_boxes(window, moov) if moov else ():
        if box.kind == b"mvhd":
            movie = box
        elif box.kind == b"trak":
            media = first_mp4_box(window, box, b"mdia")
            media_header = media and first_mp4_box(window, media, b"mdhd")
            tracks[len(tracks)] = (first_mp4_box(window, box, b"tkhd"), media_header)
    return _HeaderBoxes(movie, tracks)


DATA_HANDLERS = frozenset((b"tmcd", b"meta", b"text", b"camm", b"data", b"mdta", b"gpmd", b"fdsc"))
"""Handlers of tracks whose samples are copied as they are."""
# Kinds in a udta box that hold no file offsets, nor do those that begin with ©.
_USER_DATA = frozenset(
    b"XMP_ name titl auth perf gnre dscp cprt albm yrrc loci rtng clsf kywd coll date chpl Xtra "
    b"free GPMF FIRM LENS CAME SETT AMBA MUID HMMT BCID GUMI mdln cmnm cmid manu modl "
    # Of Samsung (smta, smrd, SDLN), Adobe (Cr8r, FIEL) and the titles and thumbnails of iMovie.
    b"smta smrd SDLN Cr8r FIEL clfn thmb".split()
)
_METADATA = frozenset((b"hdlr", b"keys", b"ilst", b"free", b"xml ", b"ID32"))
_SIDE_DATA_BOXES = frozenset((b"st3d", b"sv3d", b"mdcv", b"clli", b"SmDm", b"CoLL", b"amve"))
_PROFILES = (b"prof", b"rICC")
# Boxes outside of the moov box, without offsets: WhatsApp writes them.
_MESSENGER = frozenset((b"beam", b"loop"))
_XMP = bytes.fromhex("be7acfcb97a942e89c71999491e3afac")
_SPHERICAL = bytes.fromhex("ffcc8263f8554a938814587a02521fdd")
_ENTRY_BYTES = 78
_ONE = b"\0\0\0\1"
_MAX_BYTES = 1 << 26
_MAX_HANDLER = 1 << 12
_CHUNK = 1 << 22
_PARENTS = (b"mdia", b"minf", b"stbl")


def copy_boxes(
    source: MediaSource, target: str | os.PathLike[str], tracks: Mapping[int, int], pictures: int
) -> None:
    """Copy metadata boxes of `source` into the file at `target`; its moov box may be anywhere.

    `tracks` maps track IDs of `target` to track numbers of `source`, from 0. `pictures` is the
    number of the video track.

    Raises `RefusedMediaError` if chunk offsets of 32 bits would overflow, and `OSError`.
    """
    with open(target, "r+b") as file, MediaSource(file.fileno()) as opened:
        _BoxCopier(FileWindow(source), FileWindow(opened), file.fileno(), tracks, pictures).carry()


class _BoxCopier:
    """Builds a moov box from both files and writes it into the new one."""

    def __init__(
        self,
        old_file: FileWindow,
        new_file: FileWindow,
        fd: int,
        tracks: Mapping[int, int],
        pictures: int,
    ) -> None:
        self._old_file = old_file
        self._new_file = new_file
        self._fd = fd
        self._tracks = tracks
        self._pictures = pictures
        self._new_ids: dict[int, int] = {}  # track IDs of the target by those of the source

    def carry(self) -> None:
        old = first_mp4_box(self._old_file, None, b"moov")
        new = first_mp4_box(self._new_file, None, b"moov")
        if old is None or new is None:
            return
        sources = [one for one in child_boxes(self._old_file, old) if one.kind == b"trak"]
        by_number = {number: track for track, number in self._tracks.items()}
        for number, track in enumerate(sources):
            old_id = track_id(self._old_file, first_mp4_box(self._old_file, track, b"tkhd"))
            self._new_ids[old_id] = by_number.get(number, 0)
        parts: list[bytes] = []
        for one in child_boxes(self._new_file, new):
            if one.kind == b"trak":
                number = self._tracks.get(
                    track_id(self._new_file, first_mp4_box(self._new_file, one, b"tkhd")), -1
                )
                if 0 <= number < len(sources):
                    parts.append(self._track(one, sources[number], number == self._pictures))
                    continue
            parts.append(_box_bytes(self._new_file, one))
        moov = _merge_boxes(parts, self._safe(old))
        growth = _HEAD_BYTES + len(moov) - (new.end - new.start)
        if growth and any(
            one.kind == b"mdat" and one.start >= new.end
            for one in iter_boxes(self._new_file, 0, self._new_file.size)
        ):
            moov = _shift_chunk_offsets(moov, growth)
        self._write(new, make_box(b"moov", moov), growth)
        self._append()

    def _track(self, new: Mp4Box, old: Mp4Box, is_pictures: bool) -> bytes:
        """Return a trak box of the new file with metadata boxes of `old`."""
        side_data = self._entry_side_data(old) if is_pictures else b""
        media = first_mp4_box(self._old_file, old, b"mdia")
        carry = self._data_media if media and self._is_data(media) else self._media
        parts = [
            carry(one, media, side_data)
            if one.kind == b"mdia" and media is not None
            else _box_bytes(self._new_file, one)
            for one in child_boxes(self._new_file, new)
            if one.kind != b"tref"
        ]
        return make_box(b"trak", _merge_boxes([*parts, self._references(old)], self._safe(old)))

    def _references(self, old: Mp4Box) -> bytes:
        """Return the tref box of a track with the new track IDs; empty if a track is missing."""
        found = first_mp4_box(self._old_file, old, b"tref")
        parts = []
        for one in child_boxes(self._old_file, found) if found is not None else ():
            data = self._old_file.read(one.content, one.end - one.content)
            ids = struct.unpack(f">{len(data) // 4}I", data[: len(data) // 4 * 4])
            new_ids = [self._new_ids.get(number, 0) for number in ids]
            if all(new_ids):
                parts.append(make_box(one.kind, struct.pack(f">{len(new_ids)}I", *new_ids)))
        return make_box(b"tref", *parts) if parts else b""

    def _is_data(self, media: Mp4Box) -> bool:
        """Return whether a track holds data that the muxer does not know.

        It must have one sample description, and its samples must lie in the file itself.
        """
        handler = first_mp4_box(self._old_file, media, b"hdlr")
        if handler is None or self._old_file.read(handler.content + 8, 4) not in DATA_HANDLERS:
            return False
        information = first_mp4_box(self._old_file, media, b"minf")
        described = self._at(information, b"stbl", b"stsd")
        references = self._at(information, b"dinf", b"dref")
        if described is None or references is None or described.end - described.start > _MAX_BYTES:
            return False
        counts = [self._old_file.read(one.content + 4, 4) for one in (described, references)]
        if counts != [_ONE, _ONE]:
            return False
        (reference,) = iter_boxes(self._old_file, references.content + 8, references.end)
        return self._old_file.read(reference.content + 3, 1) == b"\1"  # in the file itself

    def _at(self, place: Mp4Box | None, *kinds: bytes) -> Mp4Box | None:
        """Return a box of the source by its path below `place`."""
        for kind in kinds:
            place = place and first_mp4_box(self._old_file, place, kind)
        return place

    def _data_media(self, new: Mp4Box, old: Mp4Box, side_data: bytes) -> bytes:
        """Return an mdia box with the handler, media header and sample description of `old`."""
        parts = []
        for one in child_boxes(self._new_file, new):
            source = first_mp4_box(self._old_file, old, one.kind)
            if one.kind == b"hdlr" and source is not None:
                parts.append(_box_bytes(self._old_file, source))
            elif one.kind == b"minf" and source is not None:
                parts.append(self._data_information(one, source))
            else:
                parts.append(_box_bytes(self._new_file, one))
        return make_box(b"mdia", *parts)

    def _data_information(self, new: Mp4Box, old: Mp4Box) -> bytes:
        """Return a minf box with everything of `old` except the sample tables."""
        parts = []
        for one in child_boxes(self._old_file, old):
            kept = first_mp4_box(self._new_file, new, one.kind)
            if one.kind == b"stbl" and kept is not None:
                parts.append(self._data_tables(kept, one))
            elif one.kind == b"dinf" and kept is not None:
                parts.append(_box_bytes(self._new_file, kept))
            else:
                parts.append(_box_bytes(self._old_file, one))
        return make_box(b"minf", *parts)

    def _data_tables(self, new: Mp4Box, old: Mp4Box) -> bytes:
        described = first_mp4_box(self._old_file, old, b"stsd")
        parts = [
            _box_bytes(self._old_file, described)
            if one.kind == b"stsd" and described is not None
            else _box_bytes(self._new_file, one)
            for one in child_boxes(self._new_file, new)
        ]
        return make_box(b"stbl", *parts)

    def _media(self, new: Mp4Box, old: Mp4Box, side_data: bytes) -> bytes:
        """Return an mdia box with `side_data` and with the handler of `old`, which has its name."""
        handler = first_mp4_box(self._old_file, old, b"hdlr")
        parts = []
        for one in child_boxes(self._new_file, new):
            if one.kind == b"hdlr" and handler is not None and self._are_alike(one, handler):
                parts.append(_box_bytes(self._old_file, handler))
            elif one.kind == b"minf" and side_data:
                parts.append(self._with_side_data(one, side_data))
            else:
                parts.append(_box_bytes(self._new_file, one))
        return make_box(b"mdia", *parts)

    def _are_alike(self, new: Mp4Box, old: Mp4Box) -> bool:
        """Return whether two hdlr boxes are of the same kind of track."""
        kinds = self._new_file.read(new.content + 4, 8), self._old_file.read(old.content + 4, 8)
        return kinds[0][4:] == kinds[1][4:] and old.end - old.start <= _MAX_HANDLER

    def _with_side_data(self, parent: Mp4Box, side_data: bytes) -> bytes:
        """Return a minf box, or a box in it, with `side_data` added to the sample description."""
        if parent.kind == b"stsd":
            head = self._new_file.read(parent.content, 8)
            entries = [
                _box_bytes(self._new_file, one)
                for one in iter_boxes(self._new_file, parent.content + 8, parent.end)
            ]
            first = entries[0] + side_data
            first = struct.pack(">I", len(first)) + first[4:]
            return make_box(b"stsd", head, first, *entries[1:])
        parts = [
            self._with_side_data(one, side_data)
            if one.kind in (*_PARENTS, b"stsd")
            else _box_bytes(self._new_file, one)
            for one in child_boxes(self._new_file, parent)
        ]
        return make_box(parent.kind, *parts)

    def _entry_side_data(self, trak: Mp4Box) -> bytes:
        """Return the side data boxes in the sample description of a source track."""
        place = self._at(trak, *_PARENTS, b"stsd")
        if place is None:
            return b""
        found: list[bytes] = []
        for entry in iter_boxes(self._old_file, place.content + 8, place.end):
            for one in iter_boxes(self._old_file, entry.content + _ENTRY_BYTES, entry.end):
                is_profile = self._old_file.read(one.content, 4) in _PROFILES
                if one.kind in _SIDE_DATA_BOXES or (one.kind == b"colr" and is_profile):
                    found.append(_box_bytes(self._old_file, one))
            break
        return b"".join(found)

    def _safe(self, parent: Mp4Box) -> dict[bytes, list[bytes]]:
        """Return the metadata boxes directly in `parent` that are valid in another file, by
        kind.
        """
        found: dict[bytes, list[bytes]] = {}
        for one in child_boxes(self._old_file, parent):
            if one.end - one.start <= _MAX_BYTES and self._is_safe(one):
                found.setdefault(one.kind, []).append(_box_bytes(self._old_file, one))
        return found

    def _is_safe(self, one: Mp4Box) -> bool:
        if one.kind == b"udta":
            return all(
                child.kind in _USER_DATA
                or child.kind[:1] == b"\xa9"
                or (child.kind == b"meta" and self._is_safe(child))
                for child in child_boxes(self._old_file, one)
            )
        if one.kind == b"meta":
            is_plain = self._old_file.read(one.content + 4, 4) == b"hdlr"
            start = one.content + (0 if is_plain else 4)
            return all(
                child.kind in _METADATA for child in iter_boxes(self._old_file, start, one.end)
            )
        if one.kind == b"uuid":
            return self._old_file.read(one.content, 16) in (_XMP, _SPHERICAL)
        return one.kind == b"tapt"

    def _write(self, old: Mp4Box, moov: bytes, growth: int) -> None:
        size = os.fstat(self._fd).st_size
        if growth:
            for start, end in _chunk_ranges(old.end, size, backwards=growth > 0):
                data = os.pread(self._fd, end - start, start)
                _write_all(self._fd, data, start + growth)
        if growth < 0:
            os.ftruncate(self._fd, size + growth)
        _write_all(self._fd, moov, old.start)

    def _append(self) -> None:
        """Append metadata boxes that are outside of the moov box."""
        for one in iter_boxes(self._old_file, 0, self._old_file.size):
            is_safe = one.kind in _MESSENGER or (one.kind == b"uuid" and self._is_safe(one))
            if is_safe and one.end - one.start <= _MAX_BYTES:
                _write_all(self._fd, _box_bytes(self._old_file, one), os.fstat(self._fd).st_size)


_HEAD_BYTES = 8


def _merge_boxes(parts: list[bytes], carried: Mapping[bytes, list[bytes]]) -> bytes:
    """Return boxes, with those of carried kinds replaced."""
    kept = [one for one in parts if one[4:8] not in carried]
    return b"".join((*kept, *(one for found in carried.values() for one in found)))


def _shift_chunk_offsets(moov: bytes, growth: int) -> bytes:
    """Return the content of a moov box with all chunk offsets moved. Raises `RefusedMediaError`."""
    data = bytearray(moov)
    for kind, start, end in _offset_boxes(moov, 0, len(moov)):
        wide = 4 if kind == b"stco" else 8
        for at in range(start + 8, end, wide):
            offset = int.from_bytes(data[at : at + wide], "big") + growth
            if offset >= 1 << 8 * wide:
                raise RefusedMediaError("metadata would move samples beyond 4 GiB")
            data[at : at + wide] = offset.to_bytes(wide, "big")
    return bytes(data)


def _offset_boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start, end) of the contents of stco and co64 boxes."""
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


def _box_bytes(window: FileWindow, one: Mp4Box) -> bytes:
    return window.read(one.start, one.end - one.start)


def _chunk_ranges(start: int, end: int, *, backwards: bool) -> Iterator[tuple[int, int]]:
    starts = range(start, end, _CHUNK)
    for at in reversed(starts) if backwards else starts:
        yield at, min(at + _CHUNK, end)


def _write_all(fd: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view, position = view[written:], position + written
