"""Pictures put together from tiles."""

from __future__ import annotations

from typing import Any

import av
import numpy.typing as npt

from vfsd.codecs.frames.chroma_location import blank_like, means_like
from vfsd.codecs.frames.planes import copy_colors, plane_pixels, shares
from vfsd.tiling import Rect

_Place = tuple[tuple[slice, slice], npt.NDArray[Any]]
"""Rows and columns of a plane of a tile, and the samples that they are copied to."""


def cut_out(source: av.VideoFrame, rect: Rect, target: av.VideoFrame) -> None:
    """Copy ``rect`` of `source` to `target`, of the same format and as large or larger.

    What `target` has more is the last column and row, repeated.  `rect` begins where chroma
    samples begin.
    """
    for number, (samples, copies) in enumerate(
        zip(plane_pixels(source), plane_pixels(target), strict=True)
    ):
        across, down = shares(source, number)
        x, y = rect.x1 // across, rect.y1 // down
        part = samples[y : -(-rect.y2 // down), x : -(-rect.x2 // across)]
        rows, columns = part.shape[:2]
        copies[:rows, :columns] = part
        if columns < copies.shape[1]:
            copies[:rows, columns:] = part[:, -1:]
        if rows < copies.shape[0]:
            copies[rows:] = copies[rows - 1]


class Composer:
    """A picture of `area` into which tiles are put one after the other.

    `area` and tiles are parts of the same larger picture, and begin where chroma samples begin.
    """

    def __init__(self, area: Rect) -> None:
        self.area = area
        self._picture: av.VideoFrame | None = None
        self._places: dict[Rect, list[_Place]] = {}  # of tiles, by where these lie

    def put(self, tile: av.VideoFrame, rect: Rect) -> av.VideoFrame:
        """Copy a tile, which lies at `rect`, as far as it lies in the area; the picture so far.

        The picture is this object's own, and is changed by what is put next.
        """
        picture = self._picture
        if picture is None or not means_like(picture, tile):
            even = (self.area.width + self.area.width % 2, self.area.height + self.area.height % 2)
            picture = self._picture = blank_like(tile, *even)
            self._places.clear()
        copy_colors(tile, picture)
        if rect not in self._places:
            self._places[rect] = self._places_of(rect, picture)
        places = self._places[rect]
        if places:
            for samples, (part, copies) in zip(plane_pixels(tile), places, strict=True):
                copies[...] = samples[part]
        return picture

    def _places_of(self, rect: Rect, picture: av.VideoFrame) -> list[_Place]:
        """For each plane: what of a tile at `rect` is wanted, and where in `picture` it goes."""
        common = rect.intersection(self.area)
        if common is None:
            return []
        places = []
        for number, copies in enumerate(plane_pixels(picture)):
            across, down = shares(picture, number)
            mine = _part(common, self.area, across, down)
            places.append((_part(common, rect, across, down), copies[mine]))
        return places


def _part(common: Rect, origin: Rect, across: int, down: int) -> tuple[slice, slice]:
    """The rows and columns of a plane, which begins at `origin`, with the samples of `common`."""
    inner = common.moved(-origin.x1, -origin.y1)
    return (
        slice(inner.y1 // down, -(-inner.y2 // down)),
        slice(inner.x1 // across, -(-inner.x2 // across)),
    )
