"""One file of a span of time, from several videos; packets are copied except at both ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from vfsd.core.view_request import View, ViewForm, ViewSpec, format_view_path
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.read_context import ReadContext
from vfsd.views.joined_views import JoinableView, JoinedView, PlacedView
from vfsd.views.rendered_view import plan_view, view_key
from vfsd.views.smart_cut import SmartCutView, encoded_like
from vfsd.views.stream_copy import CopiedView
from vfsd.views.view_audio import find_audio
from vfsd.views.view_input import ViewInput, timeline_of_view


@dataclass(frozen=True, slots=True)
class TimelinePiece:
    """A part of a video on a timeline."""

    name: str  #: of the video
    source: ViewInput
    span: tuple[Fraction, Fraction]  #: seconds of the video, half-open
    origin: Fraction  #: seconds from a moment that all pieces share to the video's first frame


def timeline_view(
    pieces: Sequence[TimelinePiece], tools: ReadContext, form: ViewForm, *, close_gaps: bool
) -> JoinedView:
    """Return one mp4 file of all frames of `pieces`, which are in the order of time.

    The first frame is at 0.  Gaps stay, so that times in the file follow the clock; with
    `close_gaps`, a piece follows the last one at once.

    Raises `OutOfRangeError` without any frame, `UsageError` for videos that cannot share a file.
    """
    placed: list[PlacedView] = []
    begin = Fraction(0)
    for piece in pieces:
        try:
            view = _planned(piece, tools, form)
        except OutOfRangeError:
            continue  # no frame appears in it
        start = piece.origin + _first_second(piece, view)
        if not placed:
            begin = start
        placed.append(PlacedView(view, Fraction(0) if close_gaps else start - begin))
    if not placed:
        raise OutOfRangeError("no frame appears in that time")
    return JoinedView(placed)


def _planned(piece: TimelinePiece, tools: ReadContext, form: ViewForm) -> JoinableView:
    """Return a view of a piece.  Tiles are not used, as their pictures have other headers."""
    source = replace(piece.source, tiles=None)
    view = View(span=piece.span)
    request = ViewSpec(view, form)
    planned = plan_view(source, request, tools)
    if isinstance(planned, (CopiedView, SmartCutView)):
        return planned
    timeline = timeline_of_view(view, source.physical, source.table)
    sound = find_audio(source, view, form, timeline)
    made = encoded_like(
        view_key(source, f"like {format_view_path(request)}"),
        source,
        form,
        timeline,
        None if isinstance(sound, str) else sound,
    )
    if isinstance(made, str):
        raise UsageError(
            f"{piece.name} cannot be a part of one file: {made}",
            hint="save the videos one by one",
        )
    return made


def _first_second(piece: TimelinePiece, view: JoinableView) -> Fraction:
    """Return the time of the first frame on the video's own timeline."""
    table, physical = piece.source.table, piece.source.physical
    first = view.parts[0].frames.start
    return (table.frame_pts(first) - physical.first_pts) * physical.time_base
