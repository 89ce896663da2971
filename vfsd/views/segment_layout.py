"""`SegmentLayout`: where the segments of an MP4 view are, and when each is shown.

Planning a view fixes its bytes, so that a playlist is made without opening or reading one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np

from vfsd.codecs.containers.tracks import SegmentIndex
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import LogicalVideo
from vfsd.core.view_request import ViewSpec
from vfsd.errors import UsageError
from vfsd.read.read_context import ReadContext
from vfsd.storage.context import StoreContext
from vfsd.views.rendered_view import RenderedView, plan_view
from vfsd.views.stream_copy import CopiedView
from vfsd.views.view_input import view_input_of

_INDEX_BYTES, _INDEX_ENTRY_BYTES = 40, 12


@runtime_checkable
class IndexedView(RenderedView, Protocol):
    """A view with an index of its segments in its header."""

    @property
    def segment_index(self) -> SegmentIndex: ...


@dataclass(frozen=True, eq=False, slots=True)
class SegmentLayout:
    """The runs of a file that decode alone, one array element for each.  Bytes are half-open."""

    header: int  #: bytes of the boxes ftyp and moov at the start of the file
    offsets: Ints  #: first byte of each run; one more element: the size of the file
    starts: Ints  #: ticks from the first frame; one more element: the end of the last frame
    time_base: Fraction  #: seconds of a tick
    version: str | None = None
    """Identifies the bytes of a view that tiles may change; None: the video alone decides."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def seconds(self) -> list[Fraction]:
        """Return the times of `starts` in seconds."""
        return [tick * self.time_base for tick in self.starts.tolist()]

    def merged(self, ticks: int) -> SegmentLayout:
        """Return a layout with runs of at least `ticks` each, but the last."""
        kept, at = [], 0
        starts = self.starts
        while at < len(self):
            kept.append(at)
            at = max(at + 1, int(np.searchsorted(starts[:-1], starts[at] + ticks)))
        chosen = np.array([*kept, len(self)], np.int64)
        return replace(self, offsets=self.offsets[chosen], starts=starts[chosen])


def segment_layout(
    parts: StoreContext, tools: ReadContext, info: LogicalVideo, request: ViewSpec
) -> SegmentLayout:
    """Return the layout of an MP4 view by the frame table alone.

    Raises `OutOfRangeError`, and `UsageError` for a view that is no MP4.
    """
    view = plan_view(view_input_of(parts, tools, info), request, tools)
    if request.form.container != "mp4" or not isinstance(view, IndexedView):
        raise UsageError("the view must be an mp4", hint="only mp4 views have a segment index")
    index, first = view.segment_index, view.slots[0].size
    decodable = np.flatnonzero(index.starts_with_key)
    # The first segment always starts with a key picture.
    offsets = first + np.concatenate(([0], np.cumsum(index.sizes)))
    last = np.array([len(index.sizes)])
    return SegmentLayout(
        first - _INDEX_BYTES - _INDEX_ENTRY_BYTES * len(index.sizes),
        offsets[np.concatenate((decodable, last))],
        np.append(index.starts[decodable], index.end),
        info.original.time_base,
        None if isinstance(view, CopiedView) else view.key,
    )
