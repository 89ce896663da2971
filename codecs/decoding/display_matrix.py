"""The matrix by which a container or a codec says how pictures are turned before they are shown."""

from __future__ import annotations

import os
import struct
from contextlib import suppress

import av
from av.error import FFmpegError
from av.sidedata.sidedata import Type as SideDataType

from vfsd.codecs.decoding.demuxer import Source, demuxed_to_the_end, open_stream
from vfsd.codecs.decoding.side_data import known_side_data
from vfsd.codecs.pyav import decode
from vfsd.core.model import MediaInfo

Matrix = tuple[int, int, int, int, int, int, int, int, int]
"""a, b, u, c, d, v, x, y, w: as ISO/IEC 14496-12 has it, row by row, in fixed point."""

UNITY: Matrix = (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
"""That of pictures that are shown as they are stored."""

_LAYOUT = struct.Struct("<9i")


def display_matrix(frame: av.VideoFrame) -> Matrix:
    """What a decoded picture comes with, to the bit; `UNITY` where it comes with none."""
    for data in known_side_data(frame):
        if data.type == SideDataType.DISPLAYMATRIX:
            return _LAYOUT.unpack_from(bytes(data))
    return UNITY


def display_matrix_of(path: str | os.PathLike[str], media: MediaInfo) -> Matrix:
    """That of a file: of its first picture that can be decoded.  Raises `OSError`."""
    first = first_picture(path, media)
    return UNITY if first is None else display_matrix(first)


def first_picture(path: str | os.PathLike[str], media: MediaInfo) -> av.VideoFrame | None:
    """As the stream's own decoder gives it, with all that it comes with; None: there is none."""
    with Source(path) as source:
        opened, stream = open_stream(source, media.container, media.stream_index)
        with opened:
            for packet in demuxed_to_the_end(opened, stream):
                with suppress(FFmpegError):
                    for picture in decode(stream.codec_context, packet):
                        return picture
    return None
