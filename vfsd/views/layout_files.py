"""``layout.png`` and ``layout/``: tiles drawn over frames, see `vfsd.views.layout_image`.

layout.png          the first second that has tiles, or the first of all
layout/12.5.png     that of the frame that is on the screen after so many seconds
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from fractions import Fraction

from vfsd.catalog import Catalog
from vfsd.codecs.frames.npy_png import png, png_size
from vfsd.core.frame_times import FrameTimes
from vfsd.core.model import LogicalVideo
from vfsd.core.text_image import Picture
from vfsd.core.timebase import seconds
from vfsd.errors import NotFoundError
from vfsd.read.context import Tools
from vfsd.views.context import Workshop
from vfsd.views.layout import EvenSlots, Slots
from vfsd.views.layout_facts import layout_facts
from vfsd.views.layout_image import draw_layout, picture_size
from vfsd.views.read_notes import Pictures
from vfsd.views.source import Footage

LAYOUT = "layout"
LAYOUT_PICTURE = "layout.png"

_MOMENT = re.compile(r"layout/([0-9]{1,9}(?:\.[0-9]{1,18})?)\.png")


class LayoutRendition:
    """A picture of what the catalog knows when it is first looked at, and for that reader alone.

    Its size follows from the frame's, so that it may be told before there is a picture.
    """

    storable = range(0)
    is_work = True
    memory = 0

    def __init__(self, digest: str, size: tuple[int, int], draw: Callable[[], Picture]) -> None:
        self.key = uuid.uuid4().hex  # the next reader may see more
        self.digest = digest
        self.slots: Slots = EvenSlots(0, png_size(*size), 1)
        self._draw = draw
        self._data: bytes | None = None

    def make(self, slot: int, workshop: Workshop) -> bytes:
        if not slot:
            return b""
        if self._data is None:  # a cache may have let go of it, and the reader is half through
            self._data = png(self._draw())
        return self._data

    def pictures(self, slots: Sequence[int]) -> Pictures | None:
        """Who looks at where it was read has not read there."""
        return None


def is_of_layouts(path: str) -> bool:
    return path in (LAYOUT, LAYOUT_PICTURE) or path.startswith(LAYOUT + "/")


def layout_names(footage: Footage, most: int) -> list[tuple[str, bool]]:
    """A picture for each second; none where they are more than `most`."""
    count = footage.physical.duration.__ceil__()
    return [(f"{second}.png", False) for second in range(count if count <= most else 0)]


def layout_rendition(
    catalog: Catalog, tools: Tools, video: LogicalVideo, footage: Footage, path: str
) -> LayoutRendition:
    """The picture at `path`.  Raises `NotFoundError`, `OutOfRangeError`."""
    segments = footage.tiles.segments if footage.tiles is not None else ()
    frame = None if path == LAYOUT_PICTURE else _frame_of(footage, path)
    at = frame
    if at is None:
        at = segments[0].first_frame if segments else 0
    here = [segment for segment in segments if at in segment.frames]
    segment = max(here, key=lambda one: one.created_ns, default=None)
    frames = _second(footage, at) if segment is None else segment.frames
    media = footage.physical.media

    def draw() -> Picture:
        facts = layout_facts(catalog, video, footage.table, segment, frames, frame)
        return draw_layout(footage.table, tools, facts)

    size = picture_size(media.display_width, media.display_height)
    return LayoutRendition(video.digest, size, draw)


def _frame_of(footage: Footage, path: str) -> int:
    match = _MOMENT.fullmatch(path)
    if match is None:
        raise NotFoundError(f"no such view: {path!r}")
    return FrameTimes(footage.physical, footage.table).at(seconds(match[1]))


def _second(footage: Footage, frame: int) -> range:
    """The frames that appear in the same second of the timeline."""
    physical, table = footage.physical, footage.table
    shown = (table.frame_pts(frame) - physical.first_pts) * physical.time_base
    second, times = Fraction(shown.__floor__()), FrameTimes(physical, table)
    found = times.between(second, second + 1)
    # Its time stamp may be rounded down to the second before the one in which it is due.
    return found if frame in found else times.between(second + 1, second + 2)
