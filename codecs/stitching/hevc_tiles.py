"""Tiles as streams of their own: what goes into stitching and comes out of extracting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.bit_io import DamagedError
from vfsd.codecs.bitstreams.hevc_levels import HIGHEST, Demand
from vfsd.codecs.bitstreams.hevc_pps import PictureSet, Tiles
from vfsd.codecs.bitstreams.hevc_slices import holds_slice
from vfsd.codecs.bitstreams.hevc_vps_sps import SequenceSet, VideoSet, Window
from vfsd.errors import RefusedMediaError
from vfsd.tiling.geometry import Rect

STITCHABLE = "stitchable"
"""The profile of streams whose motion vectors stay within their tile.

Headers do not tell that, and a stream without it would drift unseen: it is known of who made the
stream (`vfsd.codecs.stitching.kvazaar`), and has to be said by who asks for it to be stitched.
"""

_DROPPED = frozenset((35, 36, 37, 38, 39, 40))
"""Delimiters, ends, filling, and supplements, which tell of a picture that is no more the same."""


@dataclass(frozen=True, slots=True)
class TileStream:
    """One tile of one segment: a stream that a decoder can show alone.

    The first picture is an IDR picture; pictures are shown in the order in which they are coded.
    """

    rect: Rect  #: what it shows of the picture
    parameter_sets: tuple[bytes, ...]  #: NAL units: video, sequence, picture
    pictures: tuple[bytes, ...] = ()  #: packets with start codes; none: just the sets are known


@dataclass(frozen=True, slots=True)
class Sets:
    """The parameter sets of one stream."""

    video: VideoSet
    sequence: SequenceSet
    picture: PictureSet

    @classmethod
    def parse(cls, units: tuple[bytes, ...]) -> Sets:
        """Raises `DamagedError`, and `RefusedMediaError` for what cannot be stitched."""
        kinds = [nal.unit_type("hevc", unit) if unit else None for unit in units]
        if kinds != [nal.HEVC_VPS, nal.HEVC_SPS, nal.HEVC_PPS]:
            raise DamagedError("there has to be one parameter set of each kind")
        video, sequence, picture = units
        return cls(VideoSet.parse(video), SequenceSet.parse(sequence), PictureSet.parse(picture))

    def is_like(self, other: Sets) -> bool:
        """Whether pictures of both may be tiles of one picture."""
        return (
            self.video.is_like(other.video)
            and self.sequence.is_like(other.sequence)
            and self.picture.is_like(other.picture)
        )

    def demand(self, width: int, height: int, tiles: Tiles, bits_per_second: int = 0) -> Demand:
        """Of pictures of that coded size, made with these settings."""
        return Demand(
            *(width, height, len(tiles.columns), len(tiles.rows)),
            *(self.sequence.buffers, self.sequence.rate, bits_per_second),
        )

    def changed(
        self,
        width: int,
        height: int,
        window: Window,
        tiles: Tiles,
        *,
        picture_id: int = 0,
        level_idc: int | None = None,
    ) -> Sets:
        """For pictures of another coded size and other tiles.

        The level is the lowest that allows them, whatever their bit rate, unless it is given.
        """
        if level_idc is None:
            level = self.demand(width, height, tiles).lowest_level()
            level_idc = HIGHEST if level is None else level.idc
        return Sets(
            dataclasses.replace(self.video, level_idc=level_idc),
            self.sequence.resized(width, height, window, level_idc),
            self.picture.tiled(tiles, picture_id),
        )

    def write(self) -> tuple[bytes, ...]:
        return self.video.write(), self.sequence.write(), self.picture.write()


def slices_of(packet: bytes) -> list[bytes]:
    """The units of `packet` that hold slices.

    Raises `DamagedError`, and `RefusedMediaError` for units that have no place in a packet.
    """
    found = []
    for start, end in nal.units(packet, 0):
        unit = packet[start:end]
        if holds_slice(unit):
            found.append(unit)
        elif nal.unit_type("hevc", unit) not in _DROPPED:
            raise RefusedMediaError("a packet holds units other than slices")
    return found


def require_profile(profile: str) -> None:
    """Raises `RefusedMediaError` unless motion vectors are known to stay within their tile."""
    if profile != STITCHABLE:
        raise RefusedMediaError(
            f"streams of profile {profile!r} cannot be stitched: their motion vectors leave the "
            "tile, and pictures would drift"
        )


@contextmanager
def refusing_damage() -> Iterator[None]:
    """Damage is what the caller's bytes are refused for."""
    try:
        yield
    except DamagedError as error:
        raise RefusedMediaError(f"this HEVC stream is damaged: {error}") from error
