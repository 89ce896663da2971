"""Reading packets of sound by the table that was made when a file was examined."""

from __future__ import annotations

from vfsd.codecs.audio.pes import UnitReader
from vfsd.codecs.decoding.demuxer import File
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Access, MediaInfo, Sound

SoundReader = PacketReader | UnitReader
"""Both have ``read(first, end)`` and ``close()``."""


def sound_reader(source: File, media: MediaInfo, sound: Sound, table: FrameTable) -> SoundReader:
    """A reader of the packets of `table`, which belong to `sound`.  Raises `OSError`."""
    if sound.access is Access.DEMUX:
        return UnitReader(source, media.container, sound.stream_index, table)
    return PacketReader(source, media, Access.EXTENT, table)
