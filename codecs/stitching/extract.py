"""The reverse of stitching: a tile of a tiled HEVC stream becomes a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import DamagedError
from vfsd.codecs.bitstreams.hevc_pps import Tiles
from vfsd.codecs.bitstreams.hevc_slices import SliceSyntax
from vfsd.codecs.bitstreams.hevc_vps_sps import Window
from vfsd.codecs.stitching.hevc_tiles import (
    Sets,
    TileStream,
    refusing_damage,
    require_profile,
    slices_of,
)
from vfsd.errors import UsageError
from vfsd.tiling.geometry import Rect


def extract_all(
    parameter_sets: tuple[bytes, ...], pictures: Sequence[bytes], *, profile: str
) -> list[TileStream]:
    """Every tile, row by row.

    `pictures` are packets with start codes and without parameter sets; each tile has to be one
    slice.  Raises `RefusedMediaError` where the stream cannot be taken apart.
    """
    require_profile(profile)
    with refusing_damage():
        sets = Sets.parse(parameter_sets)
        tiles = _Tiles(sets)
        units = [slices_of(packet) for packet in pictures]
        return [tiles.extract(index, units) for index in range(len(tiles))]


def extract(
    parameter_sets: tuple[bytes, ...], pictures: Sequence[bytes], index: int, *, profile: str
) -> TileStream:
    """The tile numbered `index` from 0, row by row; as `extract_all`.

    Raises `UsageError` where there is no such tile.
    """
    require_profile(profile)
    with refusing_damage():
        tiles = _Tiles(Sets.parse(parameter_sets))
        if not 0 <= index < len(tiles):
            raise UsageError(f"tile {index} does not exist: the picture has {len(tiles)}")
        return tiles.extract(index, [slices_of(packet) for packet in pictures])


class _Tiles:
    """The tiles of pictures with these parameter sets."""

    def __init__(self, sets: Sets) -> None:
        self._sets = sets
        self._layout = sets.picture.tiles_of(sets.sequence)
        self._reader = SliceSyntax(sets.sequence, sets.picture)

    def __len__(self) -> int:
        return len(self._layout.columns) * len(self._layout.rows)

    def extract(self, index: int, units: Sequence[Sequence[bytes]]) -> TileStream:
        """Given the slices of each picture."""
        row, column = divmod(index, len(self._layout.columns))
        x, y = sum(self._layout.columns[:column]), sum(self._layout.rows[:row])
        address = y * sum(self._layout.columns) + x
        rect, sets = self._alone(row, column)
        writer = SliceSyntax(sets.sequence, sets.picture)
        pictures = []
        for found in units:
            if len(found) != len(self):
                raise DamagedError("a picture has not one slice for each tile")
            part = self._reader.parse(found[index])
            if part.address != address:
                raise DamagedError("a slice does not begin where its tile does")
            pictures.append(nal.START_CODE + writer.write(part, 0))
        return TileStream(rect, sets.write(), tuple(pictures))

    def _alone(self, row: int, column: int) -> tuple[Rect, Sets]:
        """Where a tile is, and the parameter sets of its stream."""
        sequence, layout = self._sets.sequence, self._layout
        block = sequence.tree_block
        x1, y1 = sum(layout.columns[:column]) * block, sum(layout.rows[:row]) * block
        x2 = min(x1 + layout.columns[column] * block, sequence.width)
        y2 = min(y1 + layout.rows[row] * block, sequence.height)
        hidden = Window(
            max(0, x2 - (sequence.width - sequence.window.right)),
            max(0, y2 - (sequence.height - sequence.window.bottom)),
        )
        if hidden.right >= x2 - x1 or hidden.bottom >= y2 - y1:
            raise DamagedError("a tile shows nothing")
        one = Tiles((layout.columns[column],), (layout.rows[row],))
        sets = self._sets.changed(x2 - x1, y2 - y1, hidden, one)
        return Rect(x1, y1, x2 - hidden.right, y2 - hidden.bottom), sets
