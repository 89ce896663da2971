"""Which picture comes out of a decoder, and when, as far as the kind of codec tells it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vfsd.codecs.bitstreams.packet_flag import Trait
from vfsd.codecs.bitstreams.packet_flags import INTRA_CODECS
from vfsd.codecs.probing.packet_scan import Scan
from vfsd.core.frame_table_pages import Ints

_HELD_BACK = frozenset({"mpeg1video", "mpeg2video", "mpeg4"})
"""Codecs whose decoders may hold a picture back until the next one that others refer to."""
_SKIPPED_TO_KEY = frozenset({"mpeg1video", "mpeg2video"})
"""Codecs whose decoders show nothing before the first key picture."""
_AT_ONCE = INTRA_CODECS | {"ffv1", "theora", "vp8", "vp9"}
_AT_ONCE |= {"flv1", "msmpeg4v2", "msmpeg4v3", "wmv1", "wmv2"}
"""Codecs whose decoders give a picture for each packet as it comes."""
BY_STAMPS = INTRA_CODECS | {"h264", "hevc", "vp8", "vp9", "av1"}
"""Codecs whose pictures are shown in the order of their time stamps, where these can be trusted."""


@dataclass(frozen=True)
class Output:
    """The pictures that a decoder gives, one array element each."""

    order: Ints  #: the packet of each frame, in the order in which they come out
    fed: Ints  #: the packet that the decoder had just been given; past the last: it was drained


def predictions(codec: str, scanned: Scan) -> list[Output]:
    """What a decode of all packets may give; which of these, or whether any, a trial must tell.

    Empty where nothing is known of the codec.
    """
    if codec in _HELD_BACK:
        packets, is_reference = _shown(codec, scanned)
        return [_predicted(scanned, packets, is_reference, held) for held in (True, False)]
    if codec in _AT_ONCE:
        packets = np.flatnonzero((scanned.size > 0) & (scanned.traits & Trait.HIDDEN == 0))
        packets = packets[~scanned.discard[packets]]
        return [Output(packets, packets)]
    return []


def _shown(codec: str, scanned: Scan) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """(packets that show a picture, whether others refer to it)"""
    traits = scanned.traits
    is_shown = (scanned.size > 0) & (traits & Trait.HIDDEN == 0)
    starts = traits & Trait.STARTS != 0
    key = np.maximum.accumulate(np.where(starts, np.arange(len(traits)), -1))
    first = int(np.argmax(starts)) if starts.any() else 0
    if codec in _SKIPPED_TO_KEY:
        is_shown &= key >= 0
    # What leads the first key picture refers to one that was never there.
    is_shown &= (traits & Trait.LEADING == 0) | (key > first)
    packets = np.flatnonzero(is_shown)
    return packets, traits[packets] & (Trait.UNREFERENCED | Trait.UNPACKED) == 0


def _predicted(
    scanned: Scan,
    packets: Ints,
    is_reference: np.ndarray[tuple[int], np.dtype[np.bool_]],
    held: bool,
) -> Output:
    fed = packets.copy()
    if held:
        references = packets[is_reference]
        fed[is_reference] = np.append(references[1:], len(scanned))[: len(references)]
    # A picture that was held back comes out before one of the packet that pushes it out.
    ranks = np.lexsort((packets, fed))
    kept = ranks[~scanned.discard[packets[ranks]]]
    return Output(packets[kept], fed[kept])
