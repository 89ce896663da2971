"""Maps damaged byte ranges of a file to the frames that cannot be decoded without them.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import contiguous_ranges
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import Access

# Bytes that a demuxer needs to open the file.
_HEADER_BYTES = 1 << 15
# Packets examined at a time.
_AT_ONCE = 1 << 16

Mask = npt.NDArray[np.bool_]


def damaged_frames_of(table: FrameTable, access: Access, damaged: Sequence[range]) -> list[range]:
    """Return the frames that cannot be decoded without the bytes in `damaged`, as ascending ranges.

    A frame is included if its packets overlap `damaged` (ascending), or if it depends on such
    packets: up to the next key frame, and the pictures that lead it.
    """
    if not damaged or not table.packets:
        return []
    hit, keys, disposable = _hit_packets(table, access, damaged)
    if access is not Access.EXTENT and damaged[0].start < _HEADER_BYTES:
        return [range(len(table))]  # the file cannot even be opened
    if not hit.any():
        return []
    if access is Access.SEQUENTIAL:  # packets after the damage cannot be reached
        hit[int(np.flatnonzero(hit)[0]) :] = True
    if access is not Access.EXTENT:
        disposable[:] = False  # the demuxer reads them anyway
    # Number of damaged packets before packet p that other packets refer to.
    before = np.concatenate(([0], np.cumsum(hit & ~disposable)))
    shown = table.packets_of(range(len(table)))
    found: list[int] = []
    for frame in np.flatnonzero(_undecodable_packets(hit, keys)[shown]).tolist():
        packet = int(shown[frame])
        run = table.decode_run(frame)
        if before[run.end_packet] > before[run.first_packet] or hit[packet : run.end_packet].any():
            found.append(frame)
    return contiguous_ranges(found)


def _hit_packets(
    table: FrameTable, access: Access, damaged: Sequence[range]
) -> tuple[Mask, Mask, Mask]:
    """Return three masks over the packets: damaged, key, disposable."""
    starts = np.array([one.start for one in damaged])
    stops = np.array([one.stop for one in damaged])
    masks: list[tuple[Mask, ...]] = []
    for first in range(0, table.packets, _AT_ONCE):
        end = min(table.packets, first + _AT_ONCE)
        columns = table.columns(first, end)
        begins = columns.position
        ends = begins + columns.size
        if access is not Access.EXTENT:
            # Packets are interleaved, so one may extend to the start of the next but one.
            more = table.columns(first, min(table.packets, end + 2)).position
            later = np.full(len(begins), np.iinfo(np.int64).max)
            later[: max(0, len(more) - 2)] = more[2:][: len(begins)]
            ends = np.maximum(ends, later)
        # The first damaged range that ends after the packet begins.
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
    """Return the packets of groups that contain damage, and of the group after each of those."""
    # Leading pictures of a key frame need the group before it.
    groups = np.cumsum(keys)
    has_hit = np.bincount(groups, hit) > 0
    may_be: Mask = has_hit[groups] | np.concatenate(([False], has_hit))[groups]
    return may_be
