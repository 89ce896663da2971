"""Which layouts a video has and when, in a line: ``uniform 3x4 0-12s, 1 of 2x5 12-13s``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from vfsd.codecs.cells.tile_codecs import tile_codec
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import PhysicalVideo, Segment
from vfsd.core.orientation import layout_in_display
from vfsd.errors import UsageError
from vfsd.tiling.uniform import uniform

_MOST = 32
"""Stretches that are told one by one."""
_UNTILED = "untiled"


def layout_text(original: PhysicalVideo, table: FrameTable, segments: Sequence[Segment]) -> str:
    """Rows x columns of the displayed frame, with seconds, for each stretch of the same layout.

    Where not all tiles are stored, how many are stands before.

    `segments` are those that reads may use.  ``untiled`` alone: there are none.
    """
    if not segments:
        return _UNTILED
    pieces = list(_pieces(original, segments))
    stretches = [list(group) for _, group in groupby(pieces, lambda piece: piece[1])]
    told = [
        f"{stretch[0][1]} {_seconds(original, table, stretch[0][0].start)}"
        f"-{_seconds(original, table, stretch[-1][0].stop)}s"
        for stretch in stretches[:_MOST]
    ]
    if len(stretches) > _MOST:
        told.append(f"and {len(stretches) - _MOST} more")
    return ", ".join(told)


def _pieces(original: PhysicalVideo, segments: Sequence[Segment]) -> Iterator[tuple[range, str]]:
    """(frames, layout) without gaps; where segments overlap, the newest counts."""
    edges = {0, original.frames}
    for segment in segments:
        edges |= {segment.first_frame, segment.end_frame}
    for start, end in pairwise(sorted(edges)):
        here = [segment for segment in segments if start in segment.frames]
        newest = max(here, key=lambda one: one.id, default=None)
        yield range(start, end), _UNTILED if newest is None else _named(original, newest)


def _named(original: PhysicalVideo, segment: Segment) -> str:
    shown = layout_in_display(segment.layout, original.media)
    cut = f"{len(shown.heights)}x{len(shown.widths)}"
    if not segment.is_whole:
        cut = f"{len(segment.cells)} of {cut}"
    return f"uniform {cut}" if _is_uniform(original, segment) else cut


def _is_uniform(original: PhysicalVideo, segment: Segment) -> bool:
    layout, media = segment.layout, original.media
    try:
        rules = tile_codec(segment.profile, media).rules
        rows, columns = len(layout.heights), len(layout.widths)
        return layout == uniform(media.width, media.height, rows, columns, rules)
    except UsageError:  # no longer a codec or a layout that could be made
        return False


def _seconds(original: PhysicalVideo, table: FrameTable, frame: int) -> str:
    if frame >= len(table):
        return f"{float(original.duration):.6g}"
    ticks = table.frame_pts(frame) - original.first_pts
    return f"{float(ticks * original.time_base):.6g}"
