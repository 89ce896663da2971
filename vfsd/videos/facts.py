"""What is known of a video: the part of `vfsd.Video` that counts frames and decodes none.

But once: to find out whether what is known is right.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from vfsd.budget.reclaim import clear_away
from vfsd.codecs.examining.examine import Examination
from vfsd.errors import NotFoundError
from vfsd.forks import at_fork
from vfsd.framepages import Ints
from vfsd.frametable import FrameTable
from vfsd.making.ingest import describe_original, pages, put_sound
from vfsd.making.reindexing import frames_fault, is_same_table
from vfsd.model import LogicalVideo, MediaInfo, PhysicalVideo
from vfsd.parts import Parts
from vfsd.reading.plan import require_before_end, select_frames
from vfsd.reading.tileplan import Costs
from vfsd.reading.tools import Tools
from vfsd.tiling import cut_sequences
from vfsd.units import Seconds, exact_span, on_tick, ticks_at_or_after, ticks_at_or_before
from vfsd.view import View


class Counted(NamedTuple):
    """What frames are numbered by, as it was at one moment: a correction changes both."""

    info: LogicalVideo
    table: FrameTable

    @property
    def original(self) -> PhysicalVideo:
        return self.info.original

    def __len__(self) -> int:
        """Number of displayed frames."""
        return self.info.original.frames

    def index_at(self, time: Seconds) -> int:
        """See `VideoFacts.index_at`."""
        base = self.original.time_base
        ticks = ticks_at_or_before(on_tick(time, base), base)
        return self.table.frame_at(self.original.first_pts + ticks)


class VideoFacts:
    """Size, times and frame table of one video."""

    def __init__(
        self,
        parts: Parts,
        tools: Tools,
        info: LogicalVideo,
    ) -> None:
        self._parts = parts
        self._tools = tools
        self.info = info  #: what the catalog says
        self._table: FrameTable | None = None
        self._guard = threading.Lock()
        at_fork(self)

    def begin_anew(self) -> None:
        """See `vfsd.forks`."""
        self._guard = threading.Lock()

    # -- what it is

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def original(self) -> PhysicalVideo:
        return self.info.original

    @property
    def width(self) -> int:
        """Pixels of the displayed frame."""
        return self.original.media.display_width

    @property
    def height(self) -> int:
        """Pixels of the displayed frame."""
        return self.original.media.display_height

    @property
    def duration(self) -> Fraction:
        """Seconds, from the first frame's appearance to the last one's end."""
        return self.original.duration

    @property
    def rate(self) -> Fraction:
        """Mean frames per second, from the frames' own times."""
        return Fraction(len(self)) / self.duration if self.duration else Fraction(0)

    @property
    def table(self) -> FrameTable:
        """Every frame's time and the place of its packet."""
        return self._counted().table

    def _counted(self) -> Counted:
        with self._guard:
            if self._table is None:
                self._table = self._parts.catalog.frame_table(self.original)
            return Counted(self.info, self._table)

    @property
    def costs(self) -> Costs:
        """What decoding takes on this host, as planners know it now."""
        return self._tools.sources.of(self.info, 0.0).costs

    @property
    def keyframes(self) -> Ints:
        """Indices of the frames at which decoding can start, ascending."""
        return self.table.keyframes()

    def __len__(self) -> int:
        """Number of displayed frames."""
        return self.original.frames

    # -- frames and times

    def index_at(self, time: Seconds) -> int:
        """The number of the frame that is on the screen at `time`.  Raises `OutOfRangeError`."""
        return self._counted().index_at(time)

    def frames_of_span(self, span: tuple[Seconds, Seconds | None]) -> range:
        """The numbers of the frames that appear in ``span[0] <= t < span[1]`` seconds.

        Raises `OutOfRangeError` where the span starts after the end.
        """
        original, base, table = self.original, self.original.time_base, self.table
        start, end = exact_span(span, base)
        require_before_end(start, original)
        low = original.first_pts + ticks_at_or_after(start, base)
        high = None if end is None else original.first_pts + ticks_at_or_after(end, base)
        return table.frames_starting_between(low, table.end_pts if high is None else high)

    def frames_in(self, span: tuple[Seconds, Seconds | None] | None = None) -> range:
        """The frames that appear in a span of seconds; all of them without one.

        Raises `OutOfRangeError` where the span starts after the end.
        """
        if span is None:
            return range(len(self))
        chosen = select_frames(
            View(exact_span(span, self.original.time_base)), self.original, self.table
        )
        return range(int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else range(0)

    def sequences(
        self, span: tuple[Seconds, Seconds | None] | None = None, seconds_each: float = 1.0
    ) -> list[range]:
        """The runs of frames that share a layout (SOTs), those that have frames in `span`."""
        table = self.table
        times = (np.append(table.pts(), table.end_pts) - self.original.first_pts).astype(float)
        times *= float(self.original.time_base)
        found = cut_sequences(self.keyframes, np.maximum.accumulate(times), seconds_each)
        chosen = self.frames_in(span)
        return [
            frames for frames in found if frames.start < chosen.stop and chosen.start < frames.stop
        ]

    # -- checking

    def verify(self, *, on_progress: Callable[[int, int], None] | None = None) -> bool:
        """Decode the whole file and correct the frame table, and how pictures are turned; returns
        whether either was wrong, or the table damaged.

        `on_progress` is told (bytes done, bytes in all); it may raise to give up.
        Raises `RefusedMediaError` when the file does not decode at all any more, `NotFoundError`
        when the video is gone.
        """
        self._parts.require_whole(self.original)
        path = self._parts.bytes_of(self.original)
        found = self._parts.examiner.examine(
            path, name=self.name, full=True, on_progress=on_progress
        )
        old = self._readable_table()
        is_turned_so = _orientation(self.original.media) == _orientation(found.media)
        same = is_turned_so and old is not None and _says_the_same(old, found)
        corrected = dataclasses.replace(
            describe_original(
                found,
                object_key=self.original.object_key,
                link_path=self.original.link_path,
                size=self.original.size,
                now_ns=self.original.created_ns,
            ),
            parameters=self.original.parameters,
            error=self.original.error,
        )
        if not self._parts.read_only:
            self._parts.suspects.lift(self.original)
            packs: set[str] = set()
            with self._parts.catalog.writing() as change:
                change.videos.require(self.info)  # it may be gone meanwhile
                original = change.videos.physical(self.original.id)
                if same:
                    change.videos.mark_verified(original.id)
                elif old is None and is_same_table(change, original, found):
                    change.videos.put_pages(original.id, pages(found))
                    change.videos.mark_verified(original.id)
                else:
                    made = change.segments.of_original(original.id)
                    change.segments.delete(one.id for one in made)
                    packs = change.segments.released
                    original = change.videos.replace_table(original.id, corrected, pages(found))
                    if old is not None:  # else nobody knows which frames were meant
                        change.detections.renumber(self.info.id, _new_numbers(old, found.order))
                put_sound(change, original, found)
                info = change.videos.get(self.info.id)
            with self._guard:
                self.info, self._table = info, None
            if packs:
                clear_away(self._parts, keys=packs)
        return not same

    def _readable_table(self) -> FrameTable | None:
        """None where what is stored of it is damaged."""
        with self._parts.catalog.reading() as seen:
            if frames_fault(seen, self.original) is not None:
                return None
        return self.table

    def _require_verified(self) -> None:
        """Tiles go by frame numbers, which must not change afterwards."""
        if not self.original.verified:
            self.verify()

    def _corrects_table(self) -> bool:
        """The file holds other frames than its packets promised.  A full decode tells which."""
        return self._is_counted_anew() or (not self.original.verified and self.verify())

    def _is_counted_anew(self) -> bool:
        """Whether somebody else has corrected the table; this video goes by that from now on."""
        with self._parts.catalog.reading() as seen:
            try:
                info = seen.videos.get(self.info.id)
            except NotFoundError:
                return False
        if info.digest != self.info.digest or info.original.id == self.original.id:
            return False
        with self._guard:
            self.info, self._table = info, None
        return True


def _orientation(media: MediaInfo) -> tuple[int, bool]:
    return media.rotation, media.mirrored


def _says_the_same(table: FrameTable, found: Examination) -> bool:
    columns = table.columns(0, table.packets)
    return (
        np.array_equal(columns.flags, found.columns.flags)
        and np.array_equal(columns.pts, found.columns.pts)
        and np.array_equal(table.packets_of(range(len(table))), found.order)
        and table.end_pts == found.end_pts
    )


def _new_numbers(old: FrameTable, order: Ints) -> Ints:
    """Of each frame of a table, that of the frame with the same packet where `order` has the
    packets of frames; -1: none has."""
    packets = old.packets_of(range(len(old)))
    numbers = np.full(max(int(packets.max(initial=0)), int(order.max(initial=0))) + 1, -1, np.int64)
    numbers[order] = np.arange(len(order))
    return numbers[packets]
