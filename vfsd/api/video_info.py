"""What is known of a video: the part of `vfsd.Video` that counts frames and decodes none.

But once: to find out whether what is known is right.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from vfsd.catalog import Transaction
from vfsd.codecs.probing.probe import Examination
from vfsd.core.atfork import reset_after_fork
from vfsd.core.display_geometry import to_display_rect
from vfsd.core.frame_selection import FrameTimes
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import NO_CROP_MARGINS, LogicalVideo, MediaInfo, PhysicalVideo
from vfsd.core.timebase import Seconds, exact_span, on_tick
from vfsd.core.view_request import View
from vfsd.disk.block_checksums import merged
from vfsd.errors import NotFoundError, ShortSpanWarning
from vfsd.read.read_context import ReadContext
from vfsd.read.read_plan import select_frames
from vfsd.read.tile_planner import DecodeCosts
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import clear_away
from vfsd.tiling import Rect, cut_sequences
from vfsd.write.ingest_file import describe_original, encoded_pages, put_audio
from vfsd.write.rebuild_index import frames_fault, has_same_picture_properties, is_same_table


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
        return self.times.at(on_tick(time, self.original.time_base))

    @property
    def times(self) -> FrameTimes:
        """From times to frames."""
        return FrameTimes(self.original, self.table)


def warn_of_short_span(end: Fraction | None, original: PhysicalVideo) -> None:
    """Issue a `ShortSpanWarning` where a span ends more than a frame after the video does."""
    duration = original.duration
    if end is None or end <= duration + duration / max(original.frames, 1):
        return
    text = f"the span ends at {float(end):.3f} s, but the video at {float(duration):.3f} s"
    warnings.warn(ShortSpanWarning(text), stacklevel=4)


class VideoFacts:
    """Size, times and frame table of one video."""

    def __init__(
        self,
        parts: StoreContext,
        tools: ReadContext,
        info: LogicalVideo,
    ) -> None:
        self._parts = parts
        self._tools = tools
        self.info = info  #: what the catalog says
        self._table: FrameTable | None = None
        self._guard = threading.Lock()
        reset_after_fork(self)

    def begin_anew(self) -> None:
        """See `vfsd.core.atfork`."""
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
        """Frames per second: the nominal rate where it is constant, such as 30000/1001, whatever
        the time base; else the mean, from the frames' own times."""
        return self.original.mean_rate or Fraction(0)

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
    def costs(self) -> DecodeCosts:
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

        Raises `OutOfRangeError` where the span starts after the end; causes a `ShortSpanWarning`
        where it ends after that.
        """
        counted = self._counted()
        start, end = exact_span(span, counted.original.time_base)
        counted.times.require_before_end(start)
        warn_of_short_span(end, counted.original)
        return counted.times.between(start, end)

    def frames_in(self, span: tuple[Seconds, Seconds | None] | None = None) -> range:
        """The frames that appear in a span of seconds; all of them without one.

        Raises `OutOfRangeError` where the span starts after the end; causes a `ShortSpanWarning`
        where it ends after that.
        """
        if span is None:
            return range(len(self))
        exact = exact_span(span, self.original.time_base)
        chosen = select_frames(View(exact), self.original, self.table)
        warn_of_short_span(exact[1], self.original)
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
        """Decode the whole file and correct the frame table, and what is known of the pictures;
        returns whether either was wrong, or the table damaged.

        `on_progress` is told (bytes done, bytes in all), by which those count twice that are
        compared with their sums first; it may raise to give up.
        Raises `RefusedMediaError` when the file does not decode at all any more, `NotFoundError`
        when the video is gone, or its bytes are others by now, `IntegrityError`, `OSError`.
        """
        found = self._parts.examine(
            self.original, name=self.name, full=True, on_progress=on_progress
        )
        if self._parts.read_only:
            table = self._readable_table()
            if table is not None and _has_numbers_of(found, table):
                self._note_damage(found)
            return not self._is_right(found, table)
        self._parts.suspects.lift(self.original)
        was_right, is_counted_anew = self._settle(found), False
        while was_right is None:  # somebody else was faster: by that it is compared then
            is_counted_anew = self._is_counted_anew() or is_counted_anew
            was_right = self._settle(found)
        return is_counted_anew or not was_right

    def _note_damage(self, found: Examination) -> None:
        """Know of damage without a word in the catalog."""
        original = self.original
        damage = _damage_shown(original, found)
        with self._guard:
            known = dataclasses.replace(original, damage=damage)
            self.info = dataclasses.replace(self.info, original=known)

    def _look_again(self) -> None:
        """Take over what the catalog has learnt of the same frames since."""
        try:
            with self._parts.catalog.reading() as seen:
                info = self._stored(seen)
        except NotFoundError:
            return
        with self._guard:
            if info.original.id == self.info.original.id:
                self.info = info

    def _settle(self, found: Examination) -> bool | None:
        """Let what a full decode has found be what is known; whether it was.

        None, and nothing has changed, where somebody else has counted the frames anew meanwhile.
        """
        original = self.original
        with self._parts.catalog.reading() as seen:
            if self._stored(seen).original.id != original.id:
                return None
        old = self._readable_table()
        is_right = self._is_right(found, old)
        meant = self._packets_meant(old)
        corrected = dataclasses.replace(
            describe_original(
                found,
                object_key=original.object_key,
                link_path=original.link_path,
                size=original.size,
                now_ns=time.time_ns(),
            ),
            parameters=original.parameters,
            error=original.error,
        )
        packs: set[str] = set()
        with self._parts.catalog.writing() as change:
            now = self._stored(change)
            if now.original.id != original.id:
                return None
            damage = _damage_shown(now.original, found)
            if is_right:
                change.videos.mark_verified(original.id, damage)
            elif old is None and is_same_table(change, now.original, found):
                change.videos.put_pages(original.id, encoded_pages(found))
                change.videos.mark_verified(original.id, damage)
            elif (
                old is not None
                and _has_frames_of(found, old)
                and has_same_picture_properties(original.media, found.media)
            ):
                # Not under its number, by which decoders are kept that go by what was wrong.
                change.videos.replace_original(
                    now.id, corrected, encoded_pages(found), digest=now.digest
                )
            else:
                made = change.segments.of_original(original.id)
                change.segments.delete(one.id for one in made)
                packs = change.segments.released
                change.videos.replace_table(original.id, corrected, encoded_pages(found))
                if meant is not None:
                    change.detections.renumber(now.id, _new_numbers(meant, found.order))
                across, down = _moved(original.media, found.media)
                if across or down:
                    change.detections.move(now.id, across, down)
            info = self._stored(change)
            put_audio(change, info.original, found)
        with self._guard:
            self.info, self._table = info, None
        if packs:
            clear_away(self._parts, keys=packs)
        return is_right

    def _is_right(self, found: Examination, table: FrameTable | None) -> bool:
        """Whether all is as it is known; `table` is None where it is damaged."""
        original = self.original
        return (
            table is not None
            and (original.media, original.access) == (found.media, found.access)
            and _has_frames_of(found, table)
        )

    def _packets_meant(self, table: FrameTable | None) -> Ints | None:
        """The packet of each frame, by the numbers that labels have; None: as a full decode
        counts."""
        if table is not None:
            return table.packets_of(range(len(table)))
        if self.original.verified:
            return None
        # It is damaged; what it was made from tells the same again.
        return self._parts.examine(self.original, name=self.name).order

    def _readable_table(self) -> FrameTable | None:
        """None where what is stored of it is damaged, or gone."""
        original = self.original
        with self._parts.catalog.reading() as seen:
            if frames_fault(seen, original) is not None:
                return None
            stored = list(seen.videos.pages(original.id))
        return FrameTable(
            [bounds for bounds, _ in stored],
            lambda ordinal: stored[ordinal][1],
            time_base=original.time_base,
            end_pts=original.end_pts,
        )

    def _require_verified(self) -> None:
        """Tiles go by frame numbers, which must not change afterwards."""
        if not self.original.verified:
            self.verify()

    def _corrects_table(self) -> bool:
        """The file holds other frames than its packets promised.  A full decode tells which."""
        if self._is_counted_anew():
            return True
        if self.original.verified:
            return False
        return self.verify()

    def _is_counted_anew(self) -> bool:
        """Whether somebody else has corrected the table; this video goes by that from now on."""
        try:
            with self._parts.catalog.reading() as seen:
                info = self._stored(seen)
        except NotFoundError:
            return False
        if info.original.id == self.original.id:
            return False
        with self._guard:
            self.info, self._table = info, None
        return True

    def _stored(self, seen: Transaction) -> LogicalVideo:
        """The same bytes, as they are known now.  Raises `NotFoundError` where they are gone."""
        seen.videos.require(self.info)
        try:
            found = seen.videos.of_inode(self.info.ino)
        except NotFoundError:  # somebody writes it
            found = None
        if found is None or found.digest != self.info.digest:
            raise NotFoundError(
                f"the video {self.name!r} has been written anew", hint="look it up again"
            )
        return found


def _damage_shown(original: PhysicalVideo, found: Examination) -> tuple[range, ...] | None:
    """With what the pictures had before another encoding of them took the original's place."""
    if original.parameters and original.damage and found.damage is not None:
        return tuple(merged([*original.damage, *found.damage]))
    return found.damage


def _has_numbers_of(found: Examination, table: FrameTable) -> bool:
    """Whether frames have the same packets, and so the same numbers."""
    return np.array_equal(table.packets_of(range(len(table))), found.order)


def _has_frames_of(found: Examination, table: FrameTable) -> bool:
    columns = table.columns(0, table.packets)
    return (
        np.array_equal(columns.flags, found.columns.flags)
        and np.array_equal(columns.pts, found.columns.pts)
        and np.array_equal(table.packets_of(range(len(table))), found.order)
        and table.end_pts == found.end_pts
    )


def _moved(before: MediaInfo, now: MediaInfo) -> tuple[int, int]:
    """Pixels by which the displayed part has moved right and down; zeros unless only the crop has
    changed."""
    uncropped = before.decoded_width - now.decoded_width
    if (before.rotation, before.mirrored, before.decoded_height) != (
        now.rotation,
        now.mirrored,
        now.decoded_height,
    ) or uncropped < 0:
        return 0, 0
    if uncropped:  # earlier versions showed columns at the left that the stream crops
        left, top, right, bottom = now.crop
        now = dataclasses.replace(now, crop=(left + uncropped, top, right, bottom))
    one, other = (_shown_part(media) for media in (before, now))
    return one.x1 - other.x1, one.y1 - other.y1


def _shown_part(media: MediaInfo) -> Rect:
    """The displayed frame, within that of pictures which are not cropped."""
    left, top, _, _ = media.crop
    decoded = dataclasses.replace(
        media, width=media.decoded_width, height=media.decoded_height, crop=NO_CROP_MARGINS
    )
    return to_display_rect(Rect(left, top, left + media.width, top + media.height), decoded)


def _new_numbers(meant: Ints, order: Ints) -> Ints:
    """Of each frame, whose packets `meant` has, that of the frame with the same packet where
    `order` has the packets of frames; -1: none has."""
    numbers = np.full(max(int(meant.max(initial=0)), int(order.max(initial=0))) + 1, -1, np.int64)
    numbers[order] = np.arange(len(order))
    return numbers[meant]
