"""Proposals and decisions as JSON objects and as words for people.

Layouts, regions and sizes are those of the displayed frame, times count from the first frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.cli.layout.records import span_of
from vfsd.cli.output import iso_time

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.model import Decision, Reason
    from vfsd.derive.proposals import Proposal
    from vfsd.derive.tile_spec import PlannedSegment

_PLACE_FIELDS = {
    "name": "path from the root of the store",
    "frames": "[first, end]: its frames, the end not included",
    "span": "[from, to] in seconds",
    "layout": "widths x heights of its columns and rows, on the displayed frame; of a rendition "
    "the size of its pictures",
    "tiles": "list of the regions (WxH+X+Y of the displayed frame, or of the rendition's pictures) "
    "that are stored",
    "codec": "name of the tile codec: fast, small or stitchable; h264, hevc or av1: of what was "
    "encoded for a view, and is kept",
    "reasons": "what is read there: list of objects with label (an expression, or null), region "
    "(WxH+X+Y of the displayed frame, or null), size ([width, height] of whole frames, or null) "
    "and reads (how often)",
    "reads": "number of remembered reads that it makes cheaper",
}

PROPOSAL_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        **_PLACE_FIELDS,
        "seconds": "CPU seconds that making it would take, predicted",
        "bytes": "that it would have, predicted",
        "spent": "CPU seconds of decoding that the reads take as things are, predicted",
        "saved": "CPU seconds of these that they would take less",
        "value": "saved / seconds",
        "allowed": "whether the budget allows it, after those before it",
    }
)

DECISION_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "id": "number of the decision",
        "at": "when its tiles were there, ISO 8601, UTC",
        "maker": "who made it: tune or background",
        **_PLACE_FIELDS,
        "predicted_seconds": "CPU seconds that making it would take, as was thought",
        "seconds": "that making it took, measured",
        "predicted_bytes": "bytes that it would have, as was thought",
        "bytes": "that it has",
        "saved": "CPU seconds that the reads would have taken less, as was thought",
        "state": "in use, undone, replaced (later tiles took its place) or gone",
        "undone": "when somebody took it back, ISO 8601, UTC; null: nobody did",
    }
)


def proposal_record(video: Video, proposal: Proposal, *, allowed: bool) -> dict[str, Any]:
    """The values of `PROPOSAL_FIELDS`."""
    return {
        **_place(video, proposal.plan, proposal.settings.codec, proposal.reasons),
        "reads": proposal.reads,
        "seconds": proposal.seconds,
        "bytes": proposal.bytes,
        "spent": proposal.spent,
        "saved": proposal.saved,
        "value": proposal.value,
        "allowed": allowed,
    }


def decision_record(video: Video, decision: Decision) -> dict[str, Any]:
    """The values of `DECISION_FIELDS`."""
    from vfsd.derive.tile_spec import PlannedSegment

    plan = PlannedSegment(decision.frames, decision.layout, decision.tiles)
    return {
        "id": decision.id,
        "at": iso_time(decision.at_ns),
        "maker": decision.maker,
        **_place(video, plan, decision.profile, decision.reasons),
        "reads": decision.reads,
        "predicted_seconds": decision.predicted_seconds,
        "seconds": decision.seconds,
        "predicted_bytes": decision.predicted_bytes,
        "bytes": decision.bytes,
        "saved": decision.predicted_saved,
        "state": decision.state,
        "undone": None if decision.undone_ns is None else iso_time(decision.undone_ns),
    }


def what_for(video: Video, reasons: Sequence[Iterable[Reason]]) -> str:
    """What several segments are good for, in words, what is read most first."""
    counted: dict[str, int] = {}
    for reason in (one for mine in reasons for one in mine):
        size = _size(video, reason)
        name = reason.label or _region(video, reason) or "x".join(map(str, size or ()))
        counted[name] = counted.get(name, 0) + reason.reads
    return ", ".join(sorted(counted, key=lambda name: (-counted[name], name)))


def _place(
    video: Video, plan: PlannedSegment, codec: str, reasons: Iterable[Reason]
) -> dict[str, Any]:
    from vfsd.core.orientation import in_display, layout_in_display

    # A rendition has pictures of its own size.
    media = replace(video.original.media, width=plan.layout.width, height=plan.layout.height)
    return {
        "name": video.name,
        "frames": [plan.frames.start, plan.frames.stop],
        "span": [float(at) for at in span_of(video, plan.frames)],
        "layout": str(layout_in_display(plan.layout, media)),
        "tiles": [str(in_display(plan.layout.tile(tile), media)) for tile in plan.stored],
        "codec": codec,
        "reasons": [
            {
                "label": one.label,
                "region": _region(video, one),
                "size": _size(video, one),
                "reads": one.reads,
            }
            for one in reasons
        ],
    }


def _size(video: Video, reason: Reason) -> list[int] | None:
    if reason.size is None:
        return None
    return list(reason.size if video.original.media.rotation % 180 == 0 else reason.size[::-1])


def _region(video: Video, reason: Reason) -> str | None:
    from vfsd.core.orientation import in_display

    if reason.region is None:
        return None
    return str(in_display(reason.region, video.original.media))
