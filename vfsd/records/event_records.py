"""Records of events."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vfsd.api.events import Event

EVENT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "frames": "[first, end) of the frames",
        "span": "[from, to] in seconds",
        "steps": "list of [first, end) frames, one for each step",
        "tracks": "object: the track of each variable, or null",
        "view": "name of the view with these frames, without its ending",
    }
)

UNKNOWN_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "unknown": "list of [first, end) frames at which a variable was not looked for",
    }
)


def event_record(one: Event) -> dict[str, Any]:
    return {
        "name": one.video,
        "frames": [one.frames.start, one.frames.stop],
        "span": [float(edge) for edge in one.span],
        "steps": [[step.start, step.stop] for step in one.steps],
        "tracks": dict(one.tracks),
        "view": one.name,
    }
