"""The muxer for each kind of container."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vfsd.codecs.containers.fmp4 import FragmentMuxer
from vfsd.codecs.containers.matroska import MatroskaMuxer
from vfsd.codecs.containers.segment_muxer import (
    Muxer,
    PacketTimes,
    SegmentIndex,
    SoundPackets,
    SoundTrack,
    Track,
)
from vfsd.core.frame_table_pages import Ints


class ElementaryMuxer:
    """Bare H.264 and HEVC streams (Annex B): packets one after the other, no times."""

    def header(self, index: SegmentIndex | None = None, *, spare: int = 0) -> bytes:
        return b""

    def index_size(self, segments: int) -> int:
        return 0

    def overheads(self, shown: Ints, keys: Ints, starts: Ints) -> Ints:
        return np.zeros(len(starts), np.int64)

    def sound_overheads(self, times: Ints, cuts: Ints, shown: Ints, starts: Ints) -> Ints:
        return np.zeros(len(cuts), np.int64)

    def segment(
        self,
        ordinal: int,
        times: PacketTimes,
        payloads: Sequence[bytes],
        size: int,
        sound: SoundPackets | None = None,
    ) -> bytes:
        return b"".join(payloads)  # any zeros may follow a NAL unit

    def trimmed(self, segment: bytes) -> bytes:
        return segment


def muxer_for(container: str, track: Track, sound: SoundTrack | None = None) -> Muxer:
    """For mp4, matroska, or the name of a codec: its elementary stream, without sound."""
    if container == "mp4":
        return FragmentMuxer(track, sound)
    if container == "matroska":
        return MatroskaMuxer(track, sound)
    return ElementaryMuxer()
