"""Encoding pictures as they come, in groups that are measured before anybody gets to see them.

Each group starts with a key picture and decodes alone.  It is encoded, decoded and compared with
what came, and anew with another rate factor until its worst picture is just good enough.  All
groups have the same parameter sets, as runs of `vfsd.codecs.encoding.file_encoder` do; other than
those they are made for reading single frames: quickly encoded, with no pictures out of order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import cast

import av
from av.packet import Packet
from av.video.stream import VideoStream

from vfsd.codecs.encoding.crf_search import coarsest_run
from vfsd.codecs.encoding.file_encoder import ARCHIVE_CODECS, ArchiveCodec, EncodedRun, encode_run
from vfsd.codecs.registry import SVT_AV1_SOON
from vfsd.core.model import MediaInfo
from vfsd.core.psnr import error_of
from vfsd.errors import UsageError

_HELD_BYTES = 256 << 20
"""Pictures that wait for the end of their group take up no more, unless two do."""

_X264 = "bframes=0:open-gop=0:keyint=infinite:scenecut=0:stitchable=1"
_X265 = "bframes=0:open-gop=0:keyint=-1:scenecut=0:repeat-headers=0:info=0:log-level=none"
GROUP_CODECS: Mapping[str, ArchiveCodec] = MappingProxyType(
    {
        name: replace(
            ARCHIVE_CODECS[name],
            options={**options, "flags": ARCHIVE_CODECS[name].options["flags"]},
            delay=0,
        )
        for name, options in (
            ("h264", {"preset": "veryfast", "x264-params": _X264}),
            ("hevc", {"preset": "veryfast", "x265-params": _X265}),
            ("av1", {"preset": "9", "svtav1-params": f"{SVT_AV1_SOON}:keyint=-1:scd=0"}),
        )
    }
)
"""By name."""


class GroupEncoder:
    """Takes pictures and gives packets, as encoders of PyAV do.  Not thread-safe."""

    def __init__(
        self, codec: ArchiveCodec, media: MediaInfo, psnr: float, key_interval: int
    ) -> None:
        """`psnr` in dB, of the worst plane of the worst picture, see `fidelity` beside this."""
        self._codec = codec
        self._media = media
        self._psnr = psnr
        self._longest = key_interval
        self._quality = codec.quality
        self._waiting: list[av.VideoFrame] = []
        self._given = 0

    @property
    def is_between_groups(self) -> bool:
        return not self._waiting

    def encode(self, picture: av.VideoFrame | None) -> list[Packet[VideoStream]]:
        """Packets that are complete by now; None: all that are left.

        Their pts are the pictures' ordinals.  Raises `UsageError` where the codec is not as good as
        it has to be: nothing has come of that group then, and the next takes its ordinals.
        """
        if picture is not None:
            self._waiting.append(picture)
            each = sum(plane.buffer_size for plane in picture.planes)
            if len(self._waiting) < min(self._longest, max(2, _HELD_BYTES // each)):
                return []
        if not self._waiting:
            return []
        pictures, self._waiting = self._waiting, []
        run, first = self._coarsest(pictures), self._given
        self._given += len(pictures)
        return [_packet(coded.payload, first + coded.shown, coded.is_key) for coded in run.packets]

    def _coarsest(self, pictures: list[av.VideoFrame]) -> EncodedRun:
        def encode(quality: int) -> EncodedRun:
            return encode_run(self._codec, self._media, quality, pictures)

        found = coarsest_run(self._codec, self._quality, error_of(self._psnr), encode)
        if found is None:
            last = self._given + len(pictures) - 1
            raise UsageError(
                f"{self._codec.name} does not give frames {self._given} to {last} the "
                f"{self._psnr:g} dB that are asked for",
                hint="ask for less, or write without loss",
            )
        run, self._quality = found
        return run


def group_media(
    codec: ArchiveCodec,
    size: tuple[int, int],
    pixel_format: str,
    rate: Fraction,
    colors: Mapping[str, str],
    sample_aspect_ratio: Fraction | None,
) -> MediaInfo:
    """What the encoder of groups is told; `colors` are options of encoders."""
    return MediaInfo(
        container="",
        codec=codec.name,
        profile=None,
        width=size[0],
        height=size[1],
        pixel_format=pixel_format,
        time_base=1 / rate,
        average_rate=rate,
        sample_aspect_ratio=sample_aspect_ratio,
        color_range=colors.get("color_range"),
        color_space=colors.get("colorspace"),
        color_primaries=colors.get("color_primaries"),
        color_transfer=colors.get("color_trc"),
    )


def _packet(payload: bytes, ordinal: int, is_key: bool) -> Packet[VideoStream]:
    packet = cast("Packet[VideoStream]", Packet(payload))
    packet.pts = packet.dts = ordinal
    packet.is_keyframe = is_key
    return packet
