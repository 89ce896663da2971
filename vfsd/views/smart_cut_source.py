"""What a stored stream has to be like for encoded pictures to stand beside its packets."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Protocol

from vfsd.codecs.bitstreams import codec_config, h264_sps, hevc_ps_ids, nal
from vfsd.codecs.bitstreams.bit_io import BitReader, unescaped
from vfsd.codecs.encoding.encoder import EncoderSettings, parameter_sets
from vfsd.core.model import MediaInfo

_PIXEL_FORMATS = ("yuv420p", "yuvj420p")
_MOST_NUMBERS = 32
_LENGTH = 4
"""Bytes of the length before each unit, which what is encoded may need."""


class SpliceSource(Protocol):
    """What the stored stream tells its decoders."""

    codec: ClassVar[str]
    drops_preceding: ClassVar[bool]
    """Whether what is shown before a key picture that it follows can be left out."""

    @property
    def sets(self) -> tuple[bytes, ...]: ...

    @property
    def prefix(self) -> int:
        """As in `nal.units`."""

    @property
    def reorder(self) -> int:
        """Frames that its decoders may have to hold back, as far as it tells."""

    def settings(self, settings: EncoderSettings) -> EncoderSettings:
        """How to encode pictures that stand beside it."""

    def own_sets(self, settings: EncoderSettings, reorder: int) -> tuple[bytes, ...]:
        """The parameter sets of what is encoded; `reorder` frames may have to be held back."""

    def record(self, own: tuple[bytes, ...]) -> bytes:
        """The codec configuration for both."""

    def begins(self, kinds: set[int]) -> bool:
        """Whether decoders begin anew with a picture of slices of these kinds, as `opening` has
        it."""

    def opening(self, packet: bytes) -> bytes:
        """The first packet that is copied."""


@dataclass(frozen=True, slots=True)
class H264Source:
    codec: ClassVar[str] = "h264"
    drops_preceding: ClassVar[bool] = False

    sets: tuple[bytes, ...]
    sequence: h264_sps.Sequence
    prefix: int
    free_number: int  #: that none of its parameter sets has

    @property
    def reorder(self) -> int:
        return self.sequence.reorder or 0

    def settings(self, settings: EncoderSettings) -> EncoderSettings:
        return dataclasses.replace(
            settings, profile=self.sequence.profile_name, number=self.free_number
        )

    def own_sets(self, settings: EncoderSettings, reorder: int) -> tuple[bytes, ...]:
        """Those tell the looks of pictures in the words of the source, so that decoders go on as
        they are."""
        return tuple(
            h264_sps.dressed(unit, self.sequence, reorder)
            if nal.unit_type(self.codec, unit) == nal.H264_SPS
            else unit
            for unit in parameter_sets(settings)
        )

    def record(self, own: tuple[bytes, ...]) -> bytes:
        return codec_config.avcc((*self.sets, *own), _LENGTH)

    def begins(self, kinds: set[int]) -> bool:
        """Others are key pictures, too, but decoders do not forget what was before."""
        return kinds == {nal.H264_IDR}

    def opening(self, packet: bytes) -> bytes:
        return packet


@dataclass(frozen=True, slots=True)
class HevcSource:
    codec: ClassVar[str] = "hevc"
    drops_preceding: ClassVar[bool] = True

    sets: tuple[bytes, ...]
    sequence: hevc_ps_ids.Sequence
    prefix: int
    free_number: int
    block: int  #: side of the smallest coding block, luma samples

    @property
    def reorder(self) -> int:
        return self.sequence.reorder

    def settings(self, settings: EncoderSettings) -> EncoderSettings:
        """Pictures are coded in the same size, so that decoders keep their buffers."""
        return dataclasses.replace(settings, number=self.free_number, smallest_block=self.block)

    def own_sets(self, settings: EncoderSettings, reorder: int) -> tuple[bytes, ...]:
        """A decoder holds back as many frames as the sequence that it is in needs, and shows all
        of one before those of the next (C.5.2.2)."""
        return parameter_sets(settings)

    def record(self, own: tuple[bytes, ...]) -> bytes:
        return codec_config.hvcc((*self.sets, *own), _LENGTH)

    def begins(self, kinds: set[int]) -> bool:
        known = {hevc_ps_ids.IDR}, {hevc_ps_ids.IDR_ALONE}, {hevc_ps_ids.CRA}
        return kinds in known or (len(kinds) == 1 and kinds <= set(hevc_ps_ids.BROKEN_LINKS))

    def opening(self, packet: bytes) -> bytes:
        return hevc_ps_ids.without_preceding(packet, self.prefix)


def source_of(media: MediaInfo) -> SpliceSource | str:
    """The stream of a video; or why nothing that we encode can stand beside it."""
    if media.codec not in ("h264", "hevc"):
        return f"packets of {media.codec} are not spliced"
    if media.interlaced:
        return "its pictures are interlaced"
    if media.pixel_format not in _PIXEL_FORMATS:
        return f"its pictures are {media.pixel_format}, not 4:2:0 of 8 bits"
    try:
        sets = nal.parameter_sets(media.codec, media.extradata)
        prefix = nal.prefix_size(media.codec, media.extradata)
        found = (_h264 if media.codec == "h264" else _hevc)(media, sets, prefix)
    except nal.DamagedError:
        found = None
    return found or "its parameter sets are not such as can have others beside them"


def _h264(media: MediaInfo, sets: tuple[bytes, ...], prefix: int) -> H264Source | None:
    """None where there is more than one set of a sequence, or what x264 would not make."""
    kinds = [nal.unit_type("h264", unit) for unit in sets]
    if kinds.count(nal.H264_SPS) != 1 or nal.H264_PPS not in kinds:
        return None
    sequence = h264_sps.parse(sets[kinds.index(nal.H264_SPS)])
    used = {
        BitReader(unescaped(unit)[1:]).golomb()
        for unit, kind in zip(sets, kinds, strict=True)
        if kind == nal.H264_PPS
    }
    if sequence is None or not sequence.is_plain(media.width, media.height):
        return None
    free = [number for number in range(_MOST_NUMBERS) if number not in used | {sequence.number}]
    return H264Source(sets, sequence, prefix, free[-1]) if free else None


def _hevc(media: MediaInfo, sets: tuple[bytes, ...], prefix: int) -> HevcSource | None:
    """None where there is more than one set of a sequence, or x265 codes no such size."""
    kinds = [nal.unit_type("hevc", unit) for unit in sets]
    if kinds.count(nal.HEVC_SPS) != 1 or not {nal.HEVC_VPS, nal.HEVC_PPS} <= set(kinds):
        return None
    sequence = hevc_ps_ids.parse_sequence(sets[kinds.index(nal.HEVC_SPS)])
    free = hevc_ps_ids.free_number(sets)
    block = sequence.block_of(media.width, media.height)
    if free is None or block is None:
        return None
    return HevcSource(sets, sequence, prefix, free, block)
