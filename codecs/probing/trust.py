"""Why a file is not taken at its word about its frames, and has to be decoded from end to end."""

from __future__ import annotations

import numpy as np
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.packet_flag import Trait
from vfsd.codecs.bitstreams.packet_flags import INTRA_CODECS
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.probing.packet_scan import NONE, Scan

LONGEST_CUT = 300
"""Packets that an edit list may leave out at the beginning."""
_DECODING_TIMES = ("asf", "mxf", "rm", "nut")
"""Containers that may tell when pictures are decoded where they should tell when they are shown."""
_WHOLE_PICTURES = ("mp4", "mov", "matroska", "webm")
"""Containers whose packets hold both fields of a picture."""


def packet_doubt(stream: VideoStream, scanned: Scan) -> str:
    """Why no table can be read off these packets; empty where one can be."""
    codec = stream.codec_context.codec.canonical_name
    traits = scanned.traits
    if not scanned.inspected:
        return f"packets of {codec} are not looked into"
    if scanned.error or scanned.corrupt.any():
        return "the container is damaged"
    if (traits[scanned.size > 0] & Trait.DAMAGED != 0).any():
        return "a packet is damaged"
    if scanned.discard.any() and not _is_one_cut(scanned):
        return "an edit list that is more than one cut"
    if scanned.reconfigured or (traits & Trait.FOREIGN != 0).any():
        return "the codec configuration changes on the way"
    if (traits & Trait.ODD != 0).any():
        return "key pictures that may not be exact"
    return ""


def stamps_doubt(container: Container, stream: VideoStream, scanned: Scan) -> str:
    """Why the order of pictures is not that of their time stamps; empty where it is.

    Of packets that a table can be read off.
    """
    codec = stream.codec_context.codec.canonical_name
    if not scanned.size.all():
        return "a packet is damaged"
    if not scanned.traits[0] & Trait.STARTS:
        return "it does not start with a key picture"
    if (scanned.pts == NONE).any():
        return "not every picture has a time stamp"
    if not container.timed and not (codec in INTRA_CODECS and (np.diff(scanned.pts) > 0).all()):
        return f"{container.name} files do not time pictures"
    is_reordered = stream.codec_context.reorder_depth > 0
    if container.name in _DECODING_TIMES and is_reordered and (scanned.pts == scanned.dts).all():
        return "time stamps that may be those of decoding"
    if _has_odd_parameters(container, codec, stream.codec_context.extradata or b""):
        return "fields or hidden pictures may have packets of their own"
    if not _keys_part_the_pictures(scanned):
        return "time stamps that contradict the key pictures"
    return ""


def _is_one_cut(scanned: Scan) -> bool:
    """Whether an edit list leaves pictures out, but repeats none, and keeps their order.

    What is cut off the beginning is so short that a trial can decode it.
    """
    kept = np.flatnonzero(~scanned.discard)
    return bool(
        len(kept)
        and kept[0] <= LONGEST_CUT
        and len(np.unique(scanned.position)) == len(scanned)
        and (scanned.dts != NONE).all()
        and (np.diff(scanned.dts) > 0).all()
    )


def _has_odd_parameters(container: Container, codec: str, extradata: bytes) -> bool:
    try:
        for unit in nal.parameter_sets(codec, extradata) if codec in ("h264", "hevc") else ():
            kind = nal.unit_type(codec, unit)
            if codec == "hevc" and kind == nal.HEVC_PPS and nal.hevc_pps_hides_pictures(unit):
                return True
            if codec == "h264" and kind == nal.H264_SPS and container.name not in _WHOLE_PICTURES:
                return nal.parse_h264_sps(unit).has_fields
    except nal.DamagedError:
        return True
    return False


def _keys_part_the_pictures(scanned: Scan) -> bool:
    """Whether time stamps are unique, and run over a key picture as its kind allows."""
    is_shown = (scanned.traits & Trait.HIDDEN == 0) & ~scanned.discard
    pts, traits = scanned.pts[is_shown], scanned.traits[is_shown]
    if len(np.unique(pts)) < len(pts):
        return False
    keys = np.flatnonzero(traits & Trait.STARTS)
    before = np.maximum.accumulate(pts)
    after = np.minimum.accumulate(pts[::-1])[::-1]
    resets = keys[traits[keys] & Trait.RESETS != 0]
    return bool(
        (before[keys] == pts[keys]).all()
        and (after[resets] == pts[resets]).all()
        and (after[keys[1:]] > pts[keys[:-1]]).all()
    )
