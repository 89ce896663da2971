"""Describes copied audio in MP4 and Matroska."""

from __future__ import annotations

import struct

from vfsd.codecs.bitstreams import codec_config
from vfsd.codecs.containers.isobmff import make_box, make_full_box, media_box
from vfsd.codecs.containers.segment_muxer import AudioTrack

_MP4_OBJECT_TYPES = {"aac": 0x40, "mp3": 0x6B, "mp2": 0x6B}
"""objectTypeIndication (ISO/IEC 14496-1, 7.2.6.6)."""
_LOW_RATE, _LOW_RATE_TYPE = 24_000, 0x69
"""MP3 and MP2 of up to this sample rate are of ISO/IEC 13818-3, with another type."""
_MP4_ENTRIES = {"opus": b"Opus", "flac": b"fLaC", "ac3": b"ac-3", "alac": b"alac"}
_MATROSKA_IDS = {
    "aac": "A_AAC",
    "mp3": "A_MPEG/L3",
    "mp2": "A_MPEG/L2",
    "ac3": "A_AC3",
    "eac3": "A_EAC3",
    "opus": "A_OPUS",
    "flac": "A_FLAC",
    "vorbis": "A_VORBIS",
    "alac": "A_ALAC",
    "pcm_u8": "A_PCM/INT/LIT",
    "pcm_s16le": "A_PCM/INT/LIT",
    "pcm_s24le": "A_PCM/INT/LIT",
    "pcm_s32le": "A_PCM/INT/LIT",
    "pcm_f32le": "A_PCM/FLOAT/IEEE",
}
_CHANGED_IN_MATROSKA = frozenset({"wavpack", "cook", "sipr", "atrac3", "ra_288"})
"""Codecs whose packets in Matroska differ from those of FFmpeg's demuxers."""
_OPUS_RATE = 48000
_STREAMINFO_BYTES = 34
_ALAC_BYTES = 36  # a box: size, kind, version and flags, and the 24 bytes of the configuration
_MAX_ENTRY_RATE = 1 << 16


def takes_audio(container: str, track: AudioTrack) -> bool:
    """Return whether packets of that codec can be copied into "mp4" or "matroska"."""
    if container not in ("mp4", "matroska"):
        return False
    if container == "matroska" and track.codec not in _MATROSKA_IDS:
        return bool(track.matroska_codec) and track.codec not in _CHANGED_IN_MATROSKA
    if container == "mp4" and track.mp4_entry:
        return track.sample_rate < _MAX_ENTRY_RATE
    is_known = {
        "flac": len(track.configuration) == _STREAMINFO_BYTES,
        "alac": len(track.configuration) == _ALAC_BYTES,
        "opus": track.configuration[:8] == b"OpusHead" and track.sample_rate == _OPUS_RATE,
        "ac3": track.configuration[:2] == b"\x0b\x77",
    }.get(track.codec, True)
    if container == "matroska":
        return is_known and track.codec in _MATROSKA_IDS
    has_entry = track.codec in _MP4_OBJECT_TYPES or track.codec in _MP4_ENTRIES
    return is_known and has_entry and track.sample_rate < _MAX_ENTRY_RATE


def audio_trak(track: AudioTrack) -> bytes:
    """Return the trak box of the audio track, which has ID 2."""
    unity = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    header = struct.pack(">5I8x4H", 0, 0, 2, 0, 0, 0, 0, 1 << 8, 0) + unity + bytes(8)
    smhd = make_full_box(b"smhd", 0, 0, bytes(4))
    return make_box(
        b"trak",
        make_full_box(b"tkhd", 0, 3, header),
        media_box(track.sample_rate, b"soun", b"sound", smhd, _sample_entry(track), track.language),
    )


def _sample_entry(track: AudioTrack) -> bytes:
    if track.mp4_entry:
        return track.mp4_entry
    fields = struct.pack(
        ">6xH8xHH4xI", 1, track.channels, track.bit_depth or 16, track.sample_rate << 16
    )
    object_type = _MP4_OBJECT_TYPES.get(track.codec)
    if object_type is not None:
        if track.codec != "aac" and track.sample_rate <= _LOW_RATE:
            object_type = _LOW_RATE_TYPE
        described = codec_config.esds(track.configuration, object_type, codec_config.AUDIO_STREAM)
        return make_box(b"mp4a", fields, make_box(b"esds", described))
    return make_box(_MP4_ENTRIES[track.codec], fields, _codec_box(track))


def _codec_box(track: AudioTrack) -> bytes:
    reported = track.configuration
    if track.codec == "opus":
        # RFC 7845, 5.1, in big-endian order; "Encapsulation of Opus in ISOBMFF", 4.3.2.
        rate, gain = struct.unpack_from("<Ih", reported, 12)
        return make_box(
            b"dOps", struct.pack(">BBHIh", 0, reported[9], 0, rate, gain) + reported[18:]
        )
    if track.codec == "flac":
        return make_full_box(
            b"dfLa", 0, 0, struct.pack(">I", 0x8000_0000 | len(reported)) + reported
        )
    if track.codec == "ac3":
        return make_box(b"dac3", _dac3(reported))
    return reported  # alac: the configuration is a complete box


def _dac3(head: bytes) -> bytes:
    """Return the AC3SpecificBox (ETSI TS 102 366, F.4) from the first bytes of a frame (4.3)."""
    rate, frame = head[4] >> 6, head[4] & 0x3F
    bits = int.from_bytes(head[5:9], "big")
    stream, mode, channels = bits >> 27, bits >> 24 & 7, bits >> 21 & 7
    at = 21  # bits left
    if channels & 1 and channels != 1:
        at -= 2  # cmixlev
    if channels & 4:
        at -= 2  # surmixlev
    if channels == 2:
        at -= 2  # dsurmod
    low = bits >> at - 1 & 1
    fields = rate << 22 | stream << 17 | mode << 14 | channels << 11 | low << 10 | frame >> 1 << 5
    return fields.to_bytes(3, "big")


def matroska_codec(track: AudioTrack) -> tuple[str, bytes]:
    """Return (CodecID, CodecPrivate); the latter may be empty."""
    if track.codec not in _MATROSKA_IDS:
        return track.matroska_codec, track.matroska_private
    reported = track.configuration
    if track.codec == "flac":
        reported = b"fLaC" + struct.pack(">I", 0x8000_0000 | len(reported)) + reported
    elif track.codec == "alac":
        reported = reported[12:]
    elif track.codec == "opus":
        reported = reported[:10] + bytes(2) + reported[12:]
    elif track.codec not in ("aac", "vorbis"):
        reported = b""
    return _MATROSKA_IDS[track.codec], reported
