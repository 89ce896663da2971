"""Copies header fields that muxers write in their own way from one MP4 file to another, in place.

These are times of creation, track flags, layers, volumes, matrices and languages.  FFmpeg's muxer
takes some of them from tags, and has no way to be given the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from vfsd.codecs.decoding.demuxer import Source
from vfsd.codecs.inventory.mp4_boxes import Box, first_box, inside, track_id
from vfsd.codecs.inventory.window import Window

_WIDE = b"\1"


@dataclass(frozen=True, slots=True)
class _Headers:
    """Where the headers of a file and of its tracks lie."""

    movie: Box | None
    tracks: Mapping[int, tuple[Box | None, Box | None]]  #: tkhd and mdhd


def copy_header_fields(
    source: Source, target: str | os.PathLike[str], tracks: Mapping[int, int]
) -> None:
    """Write the fields of `source` into the file at `target`.

    `tracks` are the track IDs of `target`, each with the number of its track in `source`, counted
    from 0.  A field that does not fit is left as it is.  Raises `OSError`.
    """
    with open(target, "r+b") as file, Source(file.fileno()) as made:
        given, taking = Window(source), Window(made)
        old, new = _headers(given), _headers(taking)
        if old.movie is not None and new.movie is not None:
            _copy(given, old.movie, file.fileno(), taking, new.movie, _MOVIE)
        by_id = {track_id(taking, pair[0]): pair for pair in new.tracks.values() if pair[0]}
        for number, place in tracks.items():
            pairs = zip(old.tracks.get(place, ()), by_id.get(number, ()), _TRACK, strict=False)
            for before, after, fields in pairs:
                if before is not None and after is not None:
                    _copy(given, before, file.fileno(), taking, after, fields)


_MOVIE = ((0, 16), (16, 52), (52, 76))
"""Fields behind the duration of an mvhd box: rate and volume, matrix, and QuickTime's previews."""
_TRACK = (((8, 14), (16, 52)), ((0, 4),))
"""Of a tkhd box: layer, group and volume, and the matrix; of an mdhd box the language."""


def _copy(
    given: Window,
    before: Box,
    fd: int,
    taking: Window,
    after: Box,
    fields: tuple[tuple[int, int], ...],
) -> None:
    old = given.read(before.content, before.end - before.content)
    new = bytearray(taking.read(after.content, after.end - after.content))
    old_wide, new_wide = (8 if data[:1] == _WIDE else 4 for data in (old, new))
    for number in (0, 1):
        told = int.from_bytes(old[4 + number * old_wide : 4 + (number + 1) * old_wide], "big")
        if told < 1 << 8 * new_wide:
            at = 4 + number * new_wide
            new[at : at + new_wide] = told.to_bytes(new_wide, "big")
    if after.kind == b"tkhd":
        new[1:4] = old[1:4]
    # Behind the times: ID and time scale, in an mvhd or mdhd box the latter alone, and a duration.
    identified = 8 if after.kind == b"tkhd" else 4
    old_rest, new_rest = (4 + 2 * wide + identified + wide for wide in (old_wide, new_wide))
    for start, end in fields:
        if old_rest + end <= len(old) and new_rest + end <= len(new):
            new[new_rest + start : new_rest + end] = old[old_rest + start : old_rest + end]
    os.pwrite(fd, new, after.content)


def _headers(window: Window) -> _Headers:
    movie: Box | None = None
    tracks: dict[int, tuple[Box | None, Box | None]] = {}
    moov = first_box(window, None, b"moov")
    for box in inside(window, moov) if moov else ():
        if box.kind == b"mvhd":
            movie = box
        elif box.kind == b"trak":
            media = first_box(window, box, b"mdia")
            told = media and first_box(window, media, b"mdhd")
            tracks[len(tracks)] = (first_box(window, box, b"tkhd"), told)
    return _Headers(movie, tracks)
