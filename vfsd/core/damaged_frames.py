"""Which frames are lost with some bytes of a file.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access

_HEADER_BYTES = 1 << 15
"""Bytes that a demuxer has to see."""
_AT_ONCE = 1 << 16
"""Packets."""

Mask = npt.NDArray[np.bool_]


def damaged_frames_of(table: FrameTable, access: Access, damaged: Sequence[range]) -> list[range]:
    """The frames that cannot be seen without some of these bytes, which ascend, in ranges.

    Those whose packets have any of them, and those that depend on such packets: up to the next key
    frame, and what leads that.
    """
    if not damaged or not table.packets:
        return []
    hit, keys, disposable = _hit_packets(table, access, damaged)
    if access is not Access.EXTENT and damaged[0].start < _HEADER_BYTES:
        return [range(len(table))]  # it cannot even be opened
    if not hit.any():
        return []
    if access is Access.SEQUENTIAL:  # what comes after cannot be reached
        hit[int(np.flatnonzero(hit)[0]) :] = True
    if access is not Access.EXTENT:
        disposable[:] = False  # the demuxer reads them all the same
    # Of the packets before p, so many are hit that others need.
    before = np.concatenate(([0], np.cumsum(hit & ~disposable)))
    shown = table.packets_of(range(len(table)))
    found: list[int] = []
    for frame in np.flatnonzero(_undecodable_packets(hit, keys)[shown]).tolist():
        packet = int(shown[frame])
        run = table.decode_run(frame)
        if before[run.end_packet] > before[run.first_packet] or hit[packet : run.end_packet].any():
            found.append(frame)
    return as_ranges(found)


def count_frames(frames: Iterable[range]) -> int:
    return sum(map(len, frames))


def _hit_packets(
    table: FrameTable, access: Access, damaged: Sequence[range]
) -> tuple[Mask, Mask, Mask]:
    """For each packet whether it is hit, a key packet, disposable."""
    starts = np.array([one.start for one in damaged])
    stops = np.array([one.stop for one in damaged])
    masks: list[tuple[Mask, ...]] = []
    for first in range(0, table.packets, _AT_ONCE):
        end = min(table.packets, first + _AT_ONCE)
        columns = table.columns(first, end)
        begins = columns.position
        ends = begins + columns.size
        if access is not Access.EXTENT:
            # A packet is cut up among others: it reaches to where the next but one begins.
            more = table.columns(first, min(table.packets, end + 2)).position
            later = np.full(len(begins), np.iinfo(np.int64).max)
            later[: max(0, len(more) - 2)] = more[2:][: len(begins)]
            ends = np.maximum(ends, later)
        # The first damage that ends after the packet begins.
        place = np.searchsorted(stops, begins, side="right")
        inside = place < len(starts)
        touched = inside & (starts[np.minimum(place, len(starts) - 1)] < ends)
        flags = columns.flags
        masks.append(
            (
                touched & (columns.size > 0),
                flags & PacketFlag.KEY != 0,
                flags & PacketFlag.DISPOSABLE != 0,
            )
        )
    hit, keys, disposable = (np.concatenate(parts) for parts in zip(*masks, strict=True))
    return hit, keys, disposable


def _undecodable_packets(hit: Mask, keys: Mask) -> Mask:
    """The packets of groups in which something is hit, and of each group that follows such a one:
    what leads its key picture needs those before."""
    groups = np.cumsum(keys)
    has_hit = np.bincount(groups, hit) > 0
    may_be: Mask = has_hit[groups] | np.concatenate(([False], has_hit))[groups]
    return may_be


def as_ranges(frames: Sequence[int]) -> list[range]:
    """Numbers that ascend, those that follow each other as one."""
    found: list[range] = []
    for frame in frames:
        if found and found[-1].stop == frame:
            found[-1] = range(found[-1].start, frame + 1)
        else:
            found.append(range(frame, frame + 1))
    return found
