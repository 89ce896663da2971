"""Where the tiles of a video are others than those of the step before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from vfsd.api.video import Video
from vfsd.cli.layout.records import displayed, span_of
from vfsd.core.model import Segment
from vfsd.core.timebase import clock, human_bytes


@dataclass(frozen=True, slots=True)
class Difference:
    """Frames whose tiles are others now; either side may be empty."""

    frames: range
    before: tuple[Segment, ...]
    now: tuple[Segment, ...]

    def record(self, video: Video) -> dict[str, Any]:
        return {
            "name": video.name,
            "frames": [self.frames.start, self.frames.stop],
            "span": [float(at) for at in span_of(video, self.frames)],
            "before": _side(video, self.before),
            "now": _side(video, self.now),
        }

    def cells(self, video: Video) -> tuple[str, ...]:
        """Seconds, then layout and size of both sides, and how the quality changed."""
        start, end = span_of(video, self.frames)
        before, now = _side(video, self.before), _side(video, self.now)
        return (
            f"{clock(start)}-{clock(end)}",
            "untiled" if before is None else _told(before),
            "" if before is None else human_bytes(before["size"]),
            "->",
            "untiled" if now is None else _told(now),
            "" if now is None else human_bytes(now["size"]),
            "" if now is None else f"{now['psnr']:.1f} dB",
        )


def differences(
    video: Video, before: Sequence[Segment], now: Sequence[Segment]
) -> list[Difference]:
    """By time, where there is or was anything; neighbours with the same change are one.

    `before` are the segments that are retired, `now` those in use.
    """
    edges = sorted({edge for one in (*before, *now) for edge in (one.first_frame, one.end_frame)})
    found = [
        Difference(range(start, end), _at(before, start), _at(now, start))
        for start, end in pairwise(edges)
    ]
    merged = []
    for _, group in groupby(
        (one for one in found if one.before or one.now),
        lambda one: (_names(video, one.before), _names(video, one.now)),
    ):
        merged += _joined(list(group))
    return merged


def _joined(changes: list[Difference]) -> list[Difference]:
    """Those that touch, as one."""
    joined: list[Difference] = []
    for change in changes:
        if joined and joined[-1].frames.stop == change.frames.start:
            last = joined[-1]
            joined[-1] = Difference(
                range(last.frames.start, change.frames.stop),
                tuple(dict.fromkeys((*last.before, *change.before))),
                tuple(dict.fromkeys((*last.now, *change.now))),
            )
        else:
            joined.append(change)
    return joined


def _at(segments: Sequence[Segment], frame: int) -> tuple[Segment, ...]:
    return tuple(one for one in segments if frame in one.frames)


def _names(video: Video, segments: Sequence[Segment]) -> tuple[str, ...]:
    return tuple(f"{displayed(video, one)} {one.tiles} {one.profile}" for one in segments)


def _told(side: dict[str, Any]) -> str:
    return f"{side['layout']} ({side['tiles']} tiles)"


def _side(video: Video, segments: Sequence[Segment]) -> dict[str, Any] | None:
    if not segments:
        return None
    return {
        "layout": ", ".join(dict.fromkeys(displayed(video, one) for one in segments)),
        "codec": ", ".join(dict.fromkeys(one.profile for one in segments)),
        "tiles": sum(len(one.cells) for one in segments),
        "size": sum(one.size for one in segments),
        "psnr": min(one.psnr for one in segments),
    }
