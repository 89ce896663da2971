"""Columns of a frame table, from what packets say and from what a full decode has shown."""

from __future__ import annotations

import numpy as np

from vfsd.codecs.bitstreams.packet_flag import Trait
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.probing.output_order import Output
from vfsd.codecs.probing.packet_scan import NONE, Scan
from vfsd.codecs.probing.timestamps import continued
from vfsd.core.frame_table_pages import Ints, PacketFlag
from vfsd.core.model import MediaInfo


def packet_flags(
    scanned: Scan, hidden: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """What is known before any decoding; where packets are not looked into, the container's."""
    traits = scanned.traits
    flags = np.zeros(len(scanned), np.uint8)
    starts = traits & Trait.STARTS != 0
    odd = scanned.key & (traits & Trait.ODD != 0)
    flags[starts | odd | (scanned.key if not scanned.inspected else False)] |= np.uint8(
        PacketFlag.KEY
    )
    flags[traits & Trait.LEADING != 0] |= np.uint8(PacketFlag.LEADING)
    flags[hidden] |= np.uint8(PacketFlag.HIDDEN)
    flags[(traits & Trait.UNREFERENCED != 0) & ~hidden] |= np.uint8(PacketFlag.DISPOSABLE)
    return flags


def h264_leading(media: MediaInfo, scanned: Scan) -> Ints:
    """H.264 does not mark the pictures that lead an open key picture: they are shown before it."""
    if media.codec != "h264":
        return np.empty(0, np.int64)
    starts = scanned.traits & Trait.STARTS != 0
    key = np.maximum.accumulate(np.where(starts, np.arange(len(scanned)), 0))
    return np.flatnonzero(scanned.pts < scanned.pts[key])


def reorder_delay(order: Ints) -> int:
    """How many frames a decoder must hold back: the most that a frame moves towards the front."""
    place = np.argsort(order, kind="stable")  # in display order, of each shown packet
    return max(0, int((np.arange(len(order)) - place).max()))


def proven_times(
    container: Container, scanned: Scan, decoded: Output, media: MediaInfo, notes: list[str]
) -> tuple[Ints, Ints, Ints]:
    """(pts, dts, duration), such that pts are known and ascend along the decoder's output.

    Where no time is told, durations are unknown as well: what demuxers then say of the packets
    that they have parsed last is one tick.
    """
    pts, dts, moved = continued(scanned)
    if moved:
        notes.append("time stamps are set back on the way; they are read as going on")
    order = decoded.order
    pts = pts.copy()
    shown = pts[order]
    if container.timed and (shown != NONE).all():
        if (np.diff(shown) > 0).all():
            return pts, dts, scanned.duration
        if len(np.unique(shown)) == len(shown):
            notes.append("pictures do not come in the order of their time stamps; sorted")
            pts[order] = np.sort(shown)
            return pts, np.full(len(pts), NONE, np.int64), scanned.duration
    pts[:] = NONE
    if (dts != NONE).all() and (np.diff(dts) > 0).all():
        pts[order] = _times_of_output(decoded, dts)
        return pts, dts, scanned.duration
    rate = media.average_rate or 25
    notes.append(f"no time stamps: frames are numbered at {rate} per second")
    pts[order] = [round(i / (rate * media.time_base)) for i in range(len(order))]
    return pts, np.full(len(pts), NONE, np.int64), np.zeros(len(pts), np.int64)


def _times_of_output(decoded: Output, dts: Ints) -> Ints:
    """Frames shown when the decoder gives them: the decoding time of the packet it is then fed."""
    steps = np.diff(dts)
    step = int(np.median(steps)) if len(steps) else 1
    drained = np.cumsum(decoded.fed >= len(dts))
    times = np.where(
        drained > 0, dts[-1] + step * drained, dts[np.minimum(decoded.fed, len(dts) - 1)]
    )
    if (np.diff(times) > 0).all():
        return times
    return np.sort(dts[decoded.order])
