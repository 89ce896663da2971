"""Which side data and metadata each kind of view keeps or loses: color, mastering, spherical and
stereo data, tags, other streams.
"""

from __future__ import annotations

from collections.abc import Mapping

from vfsd.codecs.containers.stream_side_data import (
    ALPHA,
    DOVI,
    FIELD_ORDER,
    IN_PACKETS,
    SPHERICAL,
    STEREO,
    container_side_data,
    packet_side_data,
    side_data_names,
)
from vfsd.codecs.frames.pixel_layouts import has_alpha
from vfsd.core.model import MediaInfo
from vfsd.views.view_frames import PictureForm

_WHOLE_FRAME_ONLY = frozenset((SPHERICAL, STEREO))
_WRITER_TAGS = frozenset(
    ("encoder", "handler_name", "vendor_id", "major_brand", "minor_version", "compatible_brands")
)
"""Tags about the file itself, in lower case; views may drop them."""
_STATISTICS_TAGS = ("duration", "bps", "number_of_", "_statistics_")
"""Prefixes of Matroska tags that count packets, in lower case."""


def side_data_of_copy(media: MediaInfo, container: str) -> Mapping[str, str]:
    """Return the side data in the header of a view of copied packets."""
    return {
        name: value
        for name, value in container_side_data(container, media.marks).items()
        if name not in (IN_PACKETS, ALPHA)
    }


def side_data_of_smart_cut(media: MediaInfo, container: str) -> Mapping[str, str]:
    """Return the side data that holds for copied packets and for the encoded ends of a view."""
    told = side_data_of_copy(media, container)
    return {name: value for name, value in told.items() if name != DOVI}


def side_data_of_encoding(
    media: MediaInfo, container: str, pictures: PictureForm, *, steady: bool
) -> Mapping[str, str]:
    """Return the side data in the header of a view with encoded pictures.

    `steady`: the view shows each frame of its span.
    """
    dropped = {DOVI}
    is_whole = pictures.region == media.frame_rect and not media.is_turned
    if not is_whole:
        dropped |= _WHOLE_FRAME_ONLY
    if not is_whole or not steady or pictures.size[1] != media.height:
        dropped.add(FIELD_ORDER)
    told = side_data_of_copy(media, container)
    return {name: value for name, value in told.items() if name not in dropped}


def lost_side_data(media: MediaInfo, told: Mapping[str, str], *, copied: bool) -> list[str]:
    """Return the names of the side data that a view with the header `told` loses.

    `copied`: all of its packets are those of the file.
    """
    kept = set(told) | (packet_side_data(media.marks) if copied else frozenset())
    lost = [name for name in side_data_names(media.marks) if name not in kept]
    # No view encoder supports an alpha channel.
    if not copied and has_alpha(media.pixel_format) and ALPHA not in lost:
        lost = sorted([*lost, ALPHA])
    return lost


def lost_streams_and_tags(media: MediaInfo, sound: str | None) -> list[str]:
    """Return the streams and tags that a view with sound of codec `sound` does not carry.

    Audio streams are listed only if there are several.
    """
    heard = 0 if sound is None else 1
    streams = [
        f"stream {one.index} ({one.kind}, {one.codec})"
        for one in media.side_streams
        if one.kind != "audio"
    ]
    audio = [one for one in media.side_streams if one.kind == "audio"]
    if len(audio) > 1:
        streams.append(f"{len(audio) - heard} of {len(audio)} audio streams")
    tags = sorted(
        tag
        for tag, value in media.tags.items()
        if tag.lower() not in _WRITER_TAGS
        and not tag.lower().startswith(_STATISTICS_TAGS)
        and (tag.lower(), value) != ("language", "und")
    )
    return [*streams, *([f"tags ({', '.join(tags)})"] if tags else [])]
