"""HEVC tiles as streams of their own (`TileStream`), and their extraction from a tiled stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import BitstreamError
from vfsd.codecs.bitstreams.hevc_parameter_sets import (
    HIGHEST_LEVEL_IDC,
    ConformanceWindow,
    LevelRequirements,
    PictureParameterSet,
    SequenceParameterSet,
    TileGrid,
    VideoParameterSet,
)
from vfsd.codecs.bitstreams.hevc_slices import SliceHeaderSyntax, holds_slice
from vfsd.errors import RefusedMediaError, UsageError
from vfsd.tiling.geometry import Rect

STITCHABLE = "stitchable"
"""The profile of streams with motion vectors that stay within their tile.

Headers do not signal this, and without it pictures would drift unnoticed. The encoder
(`vfsd.codecs.stitching.kvazaar`) guarantees it, and callers of the stitcher must state it.
"""

_DROPPED_UNITS = frozenset((35, 36, 37, 38, 39, 40))
"""nal_unit_type (H.265 table 7-1) of AUD, EOS, EOB, FD and SEI. SEI may describe the old
picture.
"""


@dataclass(frozen=True, slots=True)
class TileStream:
    """One tile of one segment: a stream that decodes on its own.

    The first picture is an IDR picture; decode order is display order.
    """

    rect: Rect  #: its part of the picture
    parameter_sets: tuple[bytes, ...]  #: NAL units: VPS, SPS, PPS
    pictures: tuple[bytes, ...] = ()  #: packets with start codes; empty if only sets are known


@dataclass(frozen=True, slots=True)
class ParameterSets:
    """The VPS, SPS and PPS of one stream."""

    video: VideoParameterSet
    sequence: SequenceParameterSet
    picture: PictureParameterSet

    @classmethod
    def parse(cls, units: tuple[bytes, ...]) -> ParameterSets:
        """Parse the units (VPS, SPS, PPS).

        Raises `BitstreamError`, and `RefusedMediaError` for streams that cannot be stitched.
        """
        kinds = [nal.unit_type("hevc", unit) if unit else None for unit in units]
        if kinds != [nal.HEVC_VPS, nal.HEVC_SPS, nal.HEVC_PPS]:
            raise BitstreamError("the stream must have one VPS, SPS and PPS")
        video, sequence, picture = units
        return cls(
            VideoParameterSet.parse(video),
            SequenceParameterSet.parse(sequence),
            PictureParameterSet.parse(picture),
        )

    def is_like(self, other: ParameterSets) -> bool:
        """Return whether pictures of both may be tiles of one picture."""
        return (
            self.video.is_like(other.video)
            and self.sequence.is_like(other.sequence)
            and self.picture.is_like(other.picture)
        )

    def demand(
        self, width: int, height: int, tiles: TileGrid, bits_per_second: int = 0
    ) -> LevelRequirements:
        """Return the level requirements of pictures of that coded size with these settings."""
        return LevelRequirements(
            *(width, height, len(tiles.columns), len(tiles.rows)),
            *(self.sequence.buffers, self.sequence.rate, bits_per_second),
        )

    def changed(
        self,
        width: int,
        height: int,
        window: ConformanceWindow,
        tiles: TileGrid,
        *,
        picture_id: int = 0,
        level_idc: int | None = None,
    ) -> ParameterSets:
        """Return parameter sets for another coded size and other tiles.

        Without `level_idc`, the level is the lowest that allows them at any bit rate.
        """
        if level_idc is None:
            level = self.demand(width, height, tiles).lowest_level()
            level_idc = HIGHEST_LEVEL_IDC if level is None else level.idc
        return ParameterSets(
            dataclasses.replace(self.video, level_idc=level_idc),
            self.sequence.resized(width, height, window, level_idc),
            self.picture.tiled(tiles, picture_id),
        )

    def write(self) -> tuple[bytes, ...]:
        """Return the three NAL units."""
        return self.video.write(), self.sequence.write(), self.picture.write()


def slices_of(packet: bytes) -> list[bytes]:
    """Return the slice units of `packet`.

    Raises `BitstreamError`, and `RefusedMediaError` for other units that matter.
    """
    found = []
    for start, end in nal.nal_units(packet, 0):
        unit = packet[start:end]
        if holds_slice(unit):
            found.append(unit)
        elif nal.unit_type("hevc", unit) not in _DROPPED_UNITS:
            raise RefusedMediaError("a packet holds units other than slices")
    return found


def require_profile(profile: str) -> None:
    """Raise `RefusedMediaError` unless motion vectors are known to stay within their tile."""
    if profile != STITCHABLE:
        raise RefusedMediaError(
            f"streams of profile {profile!r} cannot be stitched: motion vectors may leave the tile"
        )


@contextmanager
def refuse_damaged_streams() -> Iterator[None]:
    """Convert `BitstreamError` to `RefusedMediaError`."""
    try:
        yield
    except BitstreamError as error:
        raise RefusedMediaError(f"this HEVC stream is damaged: {error}") from error


def extract_tiles(
    parameter_sets: tuple[bytes, ...], pictures: Sequence[bytes], *, profile: str
) -> list[TileStream]:
    """Return every tile, row by row.

    `pictures` are packets with start codes and without parameter sets. Each tile must be one slice.
    Raises `RefusedMediaError` if the stream cannot be split.
    """
    require_profile(profile)
    with refuse_damaged_streams():
        sets = ParameterSets.parse(parameter_sets)
        tiles = _TileExtractor(sets)
        units = [slices_of(packet) for packet in pictures]
        return [tiles.extract(index, units) for index in range(len(tiles))]


def extract_tile(
    parameter_sets: tuple[bytes, ...], pictures: Sequence[bytes], index: int, *, profile: str
) -> TileStream:
    """Return tile `index`, counted row by row from 0; see `extract_tiles`.

    Raises `UsageError` if it does not exist.
    """
    require_profile(profile)
    with refuse_damaged_streams():
        tiles = _TileExtractor(ParameterSets.parse(parameter_sets))
        if not 0 <= index < len(tiles):
            raise UsageError(f"tile {index} does not exist: the picture has {len(tiles)}")
        return tiles.extract(index, [slices_of(packet) for packet in pictures])


class _TileExtractor:
    """Extracts tiles from pictures with these parameter sets."""

    def __init__(self, sets: ParameterSets) -> None:
        self._sets = sets
        self._layout = sets.picture.tiles_of(sets.sequence)
        self._reader = SliceHeaderSyntax(sets.sequence, sets.picture)

    def __len__(self) -> int:
        return len(self._layout.columns) * len(self._layout.rows)

    def extract(self, index: int, units: Sequence[Sequence[bytes]]) -> TileStream:
        """Return tile `index`; `units` are the slices of each picture."""
        row, column = divmod(index, len(self._layout.columns))
        x, y = sum(self._layout.columns[:column]), sum(self._layout.rows[:row])
        address = y * sum(self._layout.columns) + x
        rect, sets = self._alone(row, column)
        writer = SliceHeaderSyntax(sets.sequence, sets.picture)
        pictures = []
        for found in units:
            if len(found) != len(self):
                raise BitstreamError("a picture must have one slice for each tile")
            part = self._reader.parse(found[index])
            if part.address != address:
                raise BitstreamError("a slice does not begin at its tile")
            pictures.append(nal.START_CODE + writer.write(part, 0))
        return TileStream(rect, sets.write(), tuple(pictures))

    def _alone(self, row: int, column: int) -> tuple[Rect, ParameterSets]:
        """Return the rectangle of a tile, and the parameter sets of its stream."""
        sequence, layout = self._sets.sequence, self._layout
        block = sequence.tree_block
        x1, y1 = sum(layout.columns[:column]) * block, sum(layout.rows[:row]) * block
        x2 = min(x1 + layout.columns[column] * block, sequence.width)
        y2 = min(y1 + layout.rows[row] * block, sequence.height)
        hidden = ConformanceWindow(
            max(0, x2 - (sequence.width - sequence.window.right)),
            max(0, y2 - (sequence.height - sequence.window.bottom)),
        )
        if hidden.right >= x2 - x1 or hidden.bottom >= y2 - y1:
            raise BitstreamError("a tile shows nothing")
        one = TileGrid((layout.columns[column],), (layout.rows[row],))
        sets = self._sets.changed(x2 - x1, y2 - y1, hidden, one)
        return Rect(x1, y1, x2 - hidden.right, y2 - hidden.bottom), sets
