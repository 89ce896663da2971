"""Records of tiles: segments, proposals and decisions.

Layouts and regions refer to the displayed frame, and times to the first frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.timebase import iso_time

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.catalog import Catalog
    from vfsd.core.model import Cell, Segment, TilingDecision, TilingReason
    from vfsd.derive.proposals import Proposal
    from vfsd.derive.tile_encoder import PlannedSegment


SEGMENT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "frames": "[first, end) of its frames",
        "span": "[from, to] in seconds",
        "layout": "widths x heights of its columns and rows, on the displayed frame",
        "codec": "name of the tile codec: fast, small, stitchable or lossless",
        "size": "bytes",
        "psnr": "dB of its worst tile",
        "gop": "frames from one key picture of a tile to the next",
        "created": "when it was made, ISO 8601, UTC",
        "tiles": "list of objects, one for each stored tile: tile (its number), region (WxH+X+Y "
        "of the displayed frame), size (bytes), quality (rate factor; for lossless, the "
        "compression level) and psnr (dB)",
    }
)
"""Keys of a segment of tiles."""


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
"""Keys of `vfsd layout show --json`, which `vfsd retile --layout-file` reads."""


def start_of(video: Video, frame: int) -> Fraction:
    """Time in seconds at which a frame is shown; for the frame after the last, the end."""
    from vfsd.api.video import context_of

    if frame >= len(video):
        return video.duration
    return (
        context_of(video).table.frame_pts(frame) - video.original.first_pts
    ) * video.original.time_base


def span_of(video: Video, frames: range) -> tuple[Fraction, Fraction]:
    return start_of(video, frames.start), start_of(video, frames.stop)


def displayed_layout_of(video: Video, segment: Segment) -> str:
    """The layout of a segment on the displayed frame."""
    from vfsd.core.frames import to_display_layout

    return str(to_display_layout(segment.layout, video.original.media))


def segment_record(video: Video, segment: Segment) -> dict[str, Any]:
    """The values of `SEGMENT_FIELDS`."""
    return {
        "frames": [segment.first_frame, segment.end_frame],
        "span": [float(at) for at in span_of(video, segment.frames)],
        "layout": displayed_layout_of(video, segment),
        "codec": segment.profile,
        "size": segment.size,
        "psnr": segment.psnr,
        "gop": segment.gop_frames,
        "created": iso_time(segment.created_ns),
        "tiles": [_tile_record(video, cell) for cell in segment.cells],
    }


def _tile_record(video: Video, cell: Cell) -> dict[str, Any]:
    from vfsd.core.frames import to_display_rect

    return {
        "tile": cell.tile,
        "region": str(to_display_rect(cell.rect, video.original.media)),
        "size": cell.size,
        "quality": cell.quality,
        "psnr": cell.psnr,
    }


def layout_record(video: Video, found: Sequence[Segment]) -> dict[str, Any]:
    return {
        "name": video.name,
        "width": video.width,
        "height": video.height,
        "total_frames": len(video),
        "segments": [segment_record(video, segment) for segment in found],
    }


_PLACE_FIELDS = {
    "name": "path from the root of the store",
    "frames": "[first, end) of its frames",
    "span": "[from, to] in seconds",
    "layout": "widths x heights of its columns and rows, on the displayed frame; for a rendition "
    "the size of its pictures",
    "tiles": "list of the stored regions (WxH+X+Y of the displayed frame, or of the rendition's "
    "pictures)",
    "codec": "tile codec: fast, small or stitchable; h264, hevc or av1 if encoded for a view and "
    "kept",
    "gop": "frames from one key picture to the next",
    "reasons": "reads that it serves: list of objects with label (an expression, or null), "
    "region (WxH+X+Y of the displayed frame, or null), size ([width, height] of whole frames, or "
    "null) and reads (count)",
    "reads": "number of reads in the log that it makes cheaper",
}


PROPOSAL_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        **_PLACE_FIELDS,
        "seconds": "predicted CPU seconds to make it",
        "bytes": "predicted size",
        "spent": "predicted CPU seconds of decoding for the reads now",
        "saved": "part of these seconds that it saves",
        "value": "saved / seconds",
        "allowed": "whether it fits the budget, after those before it",
    }
)


DECISION_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "id": "number of the decision",
        "at": "when its tiles were made, ISO 8601, UTC",
        "maker": "tune or background",
        **_PLACE_FIELDS,
        "predicted_seconds": "predicted CPU seconds to make it",
        "seconds": "measured CPU seconds",
        "predicted_bytes": "predicted size",
        "bytes": "actual size",
        "saved": "predicted savings for the reads, in CPU seconds",
        "state": "in use, undone, replaced (by later tiles) or gone",
        "undone": "when it was undone, ISO 8601, UTC, or null",
    }
)


def proposal_record(video: Video, proposal: Proposal, *, allowed: bool) -> dict[str, Any]:
    """The values of `PROPOSAL_FIELDS`."""
    return {
        **_plan_record(video, proposal.plan, proposal.settings.codec, proposal.reasons),
        "reads": proposal.reads,
        "seconds": proposal.seconds,
        "bytes": proposal.bytes,
        "spent": proposal.spent,
        "saved": proposal.saved,
        "value": proposal.value,
        "allowed": allowed,
    }


def decision_record(video: Video, decision: TilingDecision) -> dict[str, Any]:
    """The values of `DECISION_FIELDS`."""
    from vfsd.derive.tile_encoder import PlannedSegment

    plan = PlannedSegment(decision.frames, decision.layout, decision.tiles, decision.gop)
    return {
        "id": decision.id,
        "at": iso_time(decision.at_ns),
        "maker": decision.maker,
        **_plan_record(video, plan, decision.profile, decision.reasons),
        "reads": decision.reads,
        "predicted_seconds": decision.predicted_seconds,
        "seconds": decision.seconds,
        "predicted_bytes": decision.predicted_bytes,
        "bytes": decision.bytes,
        "saved": decision.predicted_saved,
        "state": decision.state,
        "undone": None if decision.undone_ns is None else iso_time(decision.undone_ns),
    }


def _plan_record(
    video: Video, plan: PlannedSegment, codec: str, reasons: Iterable[TilingReason]
) -> dict[str, Any]:
    from vfsd.core.frames import to_display_layout, to_display_rect

    # A rendition has pictures of its own size.
    media = replace(video.original.media, width=plan.layout.width, height=plan.layout.height)
    return {
        "name": video.name,
        "frames": [plan.frames.start, plan.frames.stop],
        "span": [float(at) for at in span_of(video, plan.frames)],
        "layout": str(to_display_layout(plan.layout, media)),
        "tiles": [str(to_display_rect(plan.layout.tile(tile), media)) for tile in plan.stored],
        "codec": codec,
        "gop": plan.gop or len(plan.frames),
        "reasons": [
            {
                "label": one.label,
                "region": displayed_region(video, one),
                "size": displayed_size(video, one),
                "reads": one.reads,
            }
            for one in reasons
        ],
    }


def displayed_size(video: Video, reason: TilingReason) -> list[int] | None:
    if reason.size is None:
        return None
    return list(reason.size if video.original.media.rotation % 180 == 0 else reason.size[::-1])


def displayed_region(video: Video, reason: TilingReason) -> str | None:
    from vfsd.core.frames import to_display_rect

    if reason.region is None:
        return None
    return str(to_display_rect(reason.region, video.original.media))


RENDITION_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "width": "pixels of the displayed frame",
        "height": "pixels of the displayed frame",
        "codecs": "list of codecs: fast, small, lossless; h264, hevc or av1 if encoded for a view",
        "origins": "list of sources of its segments: command (`vfsd render`, or frames that were "
        "written), tuner, view (encoded for a view)",
        "segments": "number of segments",
        "frames": "number of frames in them",
        "total_frames": "number of frames of the video",
        "bytes": "their size",
        "psnr": "dB of luma of the worst segment, against the original in that size",
        "gop": "[least, most]: frames from one key picture to the next",
        "spans": "list of [from, to]: seconds that it covers",
    }
)


def rendition_records(catalog: Catalog, video: Video) -> Iterator[dict[str, Any]]:
    by_size: dict[tuple[int, int], list[Segment]] = {}
    for segment in catalog.renditions(video.info):
        by_size.setdefault(segment.picture, []).append(segment)
    decided = {one.segment_id for one in catalog.decisions(video.info)}
    is_turned = video.original.media.rotation in (90, 270)
    for size, segments in sorted(by_size.items(), reverse=True):
        width, height = size[::-1] if is_turned else size
        yield {
            "name": video.name,
            "width": width,
            "height": height,
            "codecs": sorted({segment.profile for segment in segments}),
            "origins": sorted({_origin_of(segment, decided) for segment in segments}),
            "segments": len(segments),
            "frames": sum(len(segment.frames) for segment in segments),
            "total_frames": len(video),
            "bytes": sum(segment.size for segment in segments),
            "psnr": min(segment.psnr for segment in segments),
            "gop": [
                min(segment.gop_frames for segment in segments),
                max(segment.gop_frames for segment in segments),
            ],
            "spans": [
                [float(at) for at in span_of(video, frames)] for frames in _joined_frames(segments)
            ],
        }


def _origin_of(segment: Segment, decided: Collection[int | None]) -> str:
    """The source of a segment: ``view`` if it was encoded for a view, else ``tuner`` or
    ``command``.

    `decided` has the ids of the segments that decisions made.
    """
    if segment.is_from_view:
        return "view"
    return "tuner" if segment.id in decided else "command"


def _joined_frames(segments: Sequence[Segment]) -> list[range]:
    """The frames of segments, which are in order, with neighbours as one range."""
    found: list[range] = []
    for one in segments:
        if found and found[-1].stop >= one.first_frame:
            found[-1] = range(found[-1].start, max(found[-1].stop, one.end_frame))
        else:
            found.append(one.frames)
    return found
