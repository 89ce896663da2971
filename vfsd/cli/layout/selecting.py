"""What the commands about layouts share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfsd.cli.values import a_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.model import Segment

SPAN = click.option("--span", metavar="A-B", type=a_span, help="Only what touches these seconds.")


def both(store: Store, video: Video) -> tuple[list[Segment], list[Segment]]:
    """(retired, active) segments."""
    with store.catalog.reading() as seen:
        original = video.original.id
        return seen.segments.retired(original), seen.segments.active(original)


def touching(segments: Sequence[Segment], frames: range) -> list[Segment]:
    return [
        segment
        for segment in segments
        if segment.first_frame < frames.stop and frames.start < segment.end_frame
    ]
