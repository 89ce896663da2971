"""Which side data and metadata each kind of view keeps, and which it loses: color, mastering,
spherical and stereo data, tags, other streams.
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
"""Tags about the file itself, in lower case, in which nothing of its content is lost."""
_STATISTICS_TAGS = ("duration", "bps", "number_of_", "_statistics_")
"""Tags of Matroska that count packets: how they begin, in lower case."""


def side_data_of_copy(media: MediaInfo, container: str) -> Mapping[str, str]:
    """The marks that the header of a view of copied packets tells."""
    return {
        name: value
        for name, value in container_side_data(container, media.marks).items()
        if name not in (IN_PACKETS, ALPHA)
    }


def side_data_of_smart_cut(media: MediaInfo, container: str) -> Mapping[str, str]:
    """The marks that hold for copied packets and for the encoded ends of a view."""
    told = side_data_of_copy(media, container)
    return {name: value for name, value in told.items() if name != DOVI}


def side_data_of_encoding(
    media: MediaInfo, container: str, pictures: PictureForm, *, steady: bool
) -> Mapping[str, str]:
    """The marks that the header of a view tells whose pictures are encoded.

    `steady`: it shows each frame of its span.
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
    """The names of the marks that a view loses whose header tells `told`.

    `copied`: all of its packets are those of the file.
    """
    kept = set(told) | (packet_side_data(media.marks) if copied else frozenset())
    lost = [name for name in side_data_names(media.marks) if name not in kept]
    # No encoder of views takes an alpha channel.
    if not copied and has_alpha(media.pixel_format) and ALPHA not in lost:
        lost = sorted([*lost, ALPHA])
    return lost


def lost_streams_and_tags(media: MediaInfo, sound: str | None) -> list[str]:
    """The streams and tags that no view carries; `sound` is the codec of the sound that one does.

    Streams of sound are named only where there is more than one.
    """
    heard = 0 if sound is None else 1
    streams = [
        f"stream {one.index} ({one.kind}, {one.codec})"
        for one in media.side_streams
        if one.kind != "audio"
    ]
    audio = [one for one in media.side_streams if one.kind == "audio"]
    if len(audio) > 1:
        streams.append(f"{len(audio) - heard} of {len(audio)} streams of sound")
    tags = sorted(
        tag
        for tag, value in media.tags.items()
        if tag.lower() not in _WRITER_TAGS
        and not tag.lower().startswith(_STATISTICS_TAGS)
        and (tag.lower(), value) != ("language", "und")
    )
    return [*streams, *([f"tags ({', '.join(tags)})"] if tags else [])]
