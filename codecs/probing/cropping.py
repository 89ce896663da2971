"""How much of each picture a container crops away: MP4's clean aperture, Matroska's PixelCrop.

Streams crop as well, which decoders see to.  Everything is as FFmpeg's command shows it, which
keeps whole samples of colour: where two columns or rows share these, an odd number is rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from vfsd.codecs.decoding.demuxer import Source
from vfsd.codecs.frames.planes import chroma_shares
from vfsd.codecs.inventory.matroska_elements import Element, elements
from vfsd.codecs.inventory.mp4_boxes import Box, boxes
from vfsd.codecs.inventory.window import Window
from vfsd.core.model import NOT_CROPPED, Crop, MediaInfo

_VIDEO_ENTRY = 78
"""Bytes of a sample entry ahead of the boxes in it."""
_CLAP = 32
_SEGMENT, _CLUSTER, _TRACKS, _ENTRY, _VIDEO = 0x18538067, 0x1F43B675, 0x1654AE6B, 0xAE, 0xE0
_LEFT, _TOP, _RIGHT, _BOTTOM = 0x54CC, 0x54BB, 0x54DD, 0x54AA


def cropped(source: Source, media: MediaInfo) -> MediaInfo:
    """`media`, which describes pictures as they are decoded, as these are shown."""
    if media.container in ("mp4", "mov"):
        told = _clean_aperture(Window(source), media)
    elif media.container in ("matroska", "webm"):
        told = _pixel_crop(Window(source), media.stream_index)
    else:
        return media
    crop = _on_grid(told, media)
    if crop == NOT_CROPPED:
        return media
    left, top, right, bottom = crop
    width, height = media.width - left - right, media.height - top - bottom
    return replace(media, width=width, height=height, crop=crop)


def _on_grid(told: Crop, media: MediaInfo) -> Crop:
    """`told`, rounded to whole samples of colour; `NOT_CROPPED` where that leaves no picture."""
    across, down = chroma_shares(media.pixel_format)
    left, width = _rounded(told[0], told[2], media.width, across)
    top, height = _rounded(told[1], told[3], media.height, down)
    if width <= 0 or height <= 0:
        return NOT_CROPPED
    return left, top, media.width - left - width, media.height - top - height


def _rounded(before: int, after: int, length: int, grid: int) -> tuple[int, int]:
    """(how much is cropped ahead, how much is left)"""
    if before <= 0 and after <= 0:
        return 0, length
    kept = length - before - after
    return before // grid * grid, kept // grid * grid


# ------------------------------------------------------------------------------------------ MP4


def _clean_aperture(window: Window, media: MediaInfo) -> Crop:
    for moov in _inside(window, None, b"moov"):
        for number, trak in enumerate(_inside(window, moov, b"trak")):
            if number == media.stream_index:
                box = _found(window, trak, b"mdia", b"minf", b"stbl", b"stsd")
                return NOT_CROPPED if box is None else _of_entry(window, box)
    return NOT_CROPPED


def _of_entry(window: Window, table: Box) -> Crop:
    """Of the first sample entry."""
    entry = next(boxes(window, table.content + 8, table.end), None)
    if entry is None:
        return NOT_CROPPED
    size = window.read(entry.content + 24, 4)
    for box in boxes(window, entry.content + _VIDEO_ENTRY, entry.end):
        if box.kind == b"clap" and box.end - box.content >= _CLAP:
            width, height = (int.from_bytes(size[at : at + 2], "big") for at in (0, 2))
            data = window.read(box.content, _CLAP)
            across = _edges(data[:8] + data[16:24], width)
            down = _edges(data[8:16] + data[24:], height)
            if across is not None and down is not None:
                return across[0], down[0], across[1], down[1]
    return NOT_CROPPED


def _edges(data: bytes, length: int) -> tuple[int, int] | None:
    """(pixels cropped ahead, and behind), by a size and an offset of the centre.

    None where what is left does not lie within the picture.
    """
    over, under, offset_over, offset_under = (
        int.from_bytes(data[at : at + 4], "big", signed=True) for at in (0, 4, 8, 12)
    )
    if over <= 0 or under <= 0 or offset_under <= 0:
        return None
    half = (Fraction(over, under) - 1) / 2
    centre = Fraction(length - 1, 2) + Fraction(offset_over, offset_under)
    first, last = centre - half, centre + half
    if first < 0 or last > length - 1 or half < 0:
        return None
    return math.floor(first), length - 1 - math.floor(last)


def _found(window: Window, parent: Box, *path: bytes) -> Box | None:
    found: Box | None = parent
    for kind in path:
        found = found and next(_inside(window, found, kind), None)
    return found


def _inside(window: Window, parent: Box | None, kind: bytes) -> Iterator[Box]:
    start, end = (0, window.size) if parent is None else (parent.content, parent.end)
    return (box for box in boxes(window, start, end) if box.kind == kind)


# ------------------------------------------------------------------------------------- Matroska


def _pixel_crop(window: Window, stream_index: int) -> Crop:
    for segment in elements(window, 0, window.size):
        if segment.identifier != _SEGMENT:
            continue
        for part in elements(window, segment.content, segment.end):
            if part.identifier == _CLUSTER and part.is_open:
                return NOT_CROPPED  # nothing is found beyond
            if part.identifier == _TRACKS:
                return _of_track(window, part, stream_index)
    return NOT_CROPPED


def _of_track(window: Window, tracks: Element, stream_index: int) -> Crop:
    inside = elements(window, tracks.content, tracks.end)
    entries = [one for one in inside if one.identifier == _ENTRY]
    if stream_index >= len(entries):
        return NOT_CROPPED
    entry = entries[stream_index]
    for video in elements(window, entry.content, entry.end):
        if video.identifier == _VIDEO:
            told = {
                one.identifier: int.from_bytes(
                    window.read(one.content, one.end - one.content), "big"
                )
                for one in elements(window, video.content, video.end)
                if one.end - one.content <= 8
            }
            left, top, right, bottom = (told.get(one, 0) for one in (_LEFT, _TOP, _RIGHT, _BOTTOM))
            return left, top, right, bottom
    return NOT_CROPPED
