"""Segments of tiles as JSON objects and as lines for people.

Layouts and regions are those of the displayed frame, times count from the first frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.cli.output import iso_time
from vfsd.core.timebase import clock, human_bytes

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.model import Cell, Segment

SEGMENT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "frames": "[first, end]: its frames, the end not included",
        "span": "[from, to] in seconds",
        "layout": "widths x heights of its columns and rows, on the displayed frame",
        "codec": "name of the tile codec: fast, small, stitchable or lossless",
        "size": "bytes",
        "psnr": "dB of its worst tile",
        "created": "when it was made, ISO 8601, UTC",
        "tiles": "list of objects, one for each tile that is stored: tile (its number), "
        "region (WxH+X+Y of the displayed frame), size (bytes), quality (rate factor; of "
        "lossless, how hard it is compressed) and "
        "psnr (dB)",
    }
)
"""What is said of a segment of tiles."""

SHOW_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "width": "pixels of the displayed frame",
        "height": "pixels of the displayed frame",
        "total_frames": "number of frames of the video",
        "segments": "list of objects: "
        + "; ".join(f"{key}: {text}" for key, text in SEGMENT_FIELDS.items()),
    }
)
"""What `vfsd layout show --json` prints, and `vfsd retile --layout-file` takes."""


def start_of(video: Video, frame: int) -> Fraction:
    """Seconds at which a frame appears; for the frame after the last, the end."""
    if frame >= len(video):
        return video.duration
    return (video.table.frame_pts(frame) - video.original.first_pts) * video.original.time_base


def span_of(video: Video, frames: range) -> tuple[Fraction, Fraction]:
    return start_of(video, frames.start), start_of(video, frames.stop)


def displayed(video: Video, segment: Segment) -> str:
    """The layout of a segment on the displayed frame."""
    from vfsd.core.orientation import layout_in_display

    return str(layout_in_display(segment.layout, video.original.media))


def tiles_of(segment: Segment) -> str:
    """How many are stored, and of how many where that is not all."""
    stored = str(len(segment.cells))
    return stored if segment.is_whole else f"{stored} of {segment.layout.count}"


def segment_record(video: Video, segment: Segment) -> dict[str, Any]:
    """The values of `SEGMENT_FIELDS`."""
    return {
        "frames": [segment.first_frame, segment.end_frame],
        "span": [float(at) for at in span_of(video, segment.frames)],
        "layout": displayed(video, segment),
        "codec": segment.profile,
        "size": segment.size,
        "psnr": segment.psnr,
        "created": iso_time(segment.created_ns),
        "tiles": [_tile_record(video, cell) for cell in segment.cells],
    }


def _tile_record(video: Video, cell: Cell) -> dict[str, Any]:
    from vfsd.core.orientation import in_display

    return {
        "tile": cell.tile,
        "region": str(in_display(cell.rect, video.original.media)),
        "size": cell.size,
        "quality": cell.quality,
        "psnr": cell.psnr,
    }


HEADINGS = ("seconds", "frames", "segments", "tiles", "codec", "size", "dB", "layout")
ALIGNMENT = "<<>><>><"


def runs(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Segments that follow each other with the same tiles and codec."""
    place = 0

    def key(pair: tuple[int, Segment]) -> tuple[object, ...]:
        return pair[0], pair[1].layout, pair[1].tiles, pair[1].profile

    numbered: list[tuple[int, Segment]] = []
    for segment in segments:
        if numbered and numbered[-1][1].end_frame != segment.first_frame:
            place += 1
        numbered.append((place, segment))
    for _, group in groupby(numbered, key):
        yield [segment for _, segment in group]


def run_cells(video: Video, run: Sequence[Segment]) -> tuple[str, ...]:
    """A line about segments in a row, under `HEADINGS`."""
    frames = range(run[0].first_frame, run[-1].end_frame)
    start, end = span_of(video, frames)
    return (
        f"{clock(start)}-{clock(end)}",
        f"{frames.start}-{frames.stop - 1}",
        str(len(run)),
        tiles_of(run[0]),
        run[0].profile,
        human_bytes(sum(segment.size for segment in run)),
        f"{min(segment.psnr for segment in run):.1f}",
        displayed(video, run[0]),
    )
