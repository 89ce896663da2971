"""The frame table: the exact time of every frame, and the location of the packet that holds it.

Built once, at ingest, from the demuxer and, for irregular files, a full decode.  Times are never
derived from a frame rate.  The table is stored in pages (`vfsd.core.frame_table_pages`), which are
read on demand.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from vfsd.core.frame_table_pages import (
    HIDDEN,
    KEY,
    LEADING,
    PAGE_PACKETS,
    FramePage,
    Ints,
    PacketColumns,
    decode_page,
    paginate,
)
from vfsd.core.model import Gop, PageBounds
from vfsd.core.process_control import reset_after_fork
from vfsd.errors import IntegrityError, OutOfRangeError

_CACHED_PAGES = 64
# Up to this many lookups are done one by one: numpy has a fixed cost per call.
_FEW = 16


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """One displayed frame."""

    index: int
    pts: int  #: ticks
    duration: int  #: ticks until the next frame is shown
    packet: int  #: index in decode order
    position: int
    size: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Packets to feed to a fresh decoder, in order, and the frames to keep of its output."""

    first_packet: int  #: a key packet
    end_packet: int  #: one past the last packet to feed
    wanted: dict[int, int]  #: packet index -> frame index, in display order


class FrameTable:
    """Read access to a stored frame table.  Thread-safe.

    `fetch` returns the blob of the page with the given ordinal.  `end_pts` is the time at which the
    last frame ends, in ticks.
    """

    def __init__(
        self,
        bounds: Sequence[PageBounds],
        fetch: Callable[[int], bytes],
        *,
        time_base: Fraction,
        end_pts: int,
    ) -> None:
        """Raises `IntegrityError` if a page between others is missing."""
        _require_all(bounds)
        self.time_base = time_base
        self.end_pts = end_pts
        self._bounds = bounds
        self._fetch = fetch
        self._first_frames = [b.first_frame for b in bounds]
        self._first_packets = [b.first_packet for b in bounds]
        self._frames = bounds[-1].first_frame + bounds[-1].frames if bounds else 0
        self._packets = bounds[-1].first_packet + bounds[-1].packets if bounds else 0
        self._in_order = all(a.last_pts <= b.first_pts for a, b in itertools.pairwise(bounds))
        self._cache: OrderedDict[int, FramePage] = OrderedDict()
        self._cache_guard = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Drop cached pages; see `vfsd.core.process_control`."""
        self._cache = OrderedDict()
        self._cache_guard = threading.Lock()

    @classmethod
    def in_memory(
        cls,
        columns: PacketColumns,
        order: Ints,
        *,
        time_base: Fraction,
        end_pts: int,
        page_packets: int = PAGE_PACKETS,
    ) -> FrameTable:
        """Return a table that is not stored anywhere."""
        pages = list(paginate(columns, order, page_packets=page_packets))
        return cls(
            [bounds for bounds, _ in pages],
            lambda ordinal: pages[ordinal][1],
            time_base=time_base,
            end_pts=end_pts,
        )

    def __len__(self) -> int:
        """Number of displayed frames."""
        return self._frames

    def __repr__(self) -> str:
        return f"<FrameTable: {self._frames} frames, {self._packets} packets>"

    @property
    def packets(self) -> int:
        return self._packets

    def frame(self, index: int) -> FrameEntry:
        """Return displayed frame number `index`.  Raises `OutOfRangeError`."""
        page, within = self._page_of_frame(index)
        packet = int(page.order[within])
        columns = page.columns
        pts = int(columns.pts[packet])
        if within + 1 < len(page.order):
            following = int(columns.pts[page.order[within + 1]])
        elif index + 1 < self._frames:
            following = self.frame_pts(index + 1)
        else:
            following = self.end_pts
        return FrameEntry(
            index=index,
            pts=pts,
            duration=max(0, following - pts),
            packet=page.bounds.first_packet + packet,
            position=int(columns.position[packet]),
            size=int(columns.size[packet]),
            is_key=bool(columns.flags[packet] & KEY),
        )

    def frame_pts(self, index: int) -> int:
        """Return the ticks at which frame `index` is shown.  Raises `OutOfRangeError`."""
        page, within = self._page_of_frame(index)
        return int(page.columns.pts[page.order[within]])

    def pts(self, start: int = 0, stop: int | None = None) -> Ints:
        """Return the ticks of the frames ``start <= i < stop``, in display order."""
        stop = self._frames if stop is None else min(stop, self._frames)
        parts = []
        at = start
        while at < stop:
            page, within = self._page_of_frame(at)
            stop_at = min(len(page.order), within + stop - at)
            parts.append(page.columns.pts[page.order[within:stop_at]])
            at += stop_at - within
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def pts_of(self, frames: Ints) -> Ints:
        """Return the ticks of `frames`, which may be in any order.  Raises `OutOfRangeError`."""
        if not len(frames):
            return np.empty(0, np.int64)
        order = np.argsort(frames, kind="stable")
        ascending = frames[order]
        self._require_frame(int(ascending[0]))
        self._require_frame(int(ascending[-1]))
        found = np.empty(len(frames), np.int64)
        at = 0
        while at < len(frames):
            page, within = self._page_of_frame(int(ascending[at]))
            first = int(ascending[at]) - within
            stop_at = int(np.searchsorted(ascending, first + len(page.order)))
            shown = page.order[ascending[at:stop_at] - first]
            found[order[at:stop_at]] = page.columns.pts[shown]
            at = stop_at
        return found

    def frame_at(self, ticks: int) -> int:
        """Return the last frame with a pts of at most `ticks`.

        `vfsd.core.frames` converts times.  Raises `OutOfRangeError` before the first frame
        and at or after `end_pts`.
        """
        found = self._last_frame_not_after(ticks)
        if found < 0 or ticks >= self.end_pts:
            first = self.frame_pts(0)
            asked, end = (float((at - first) * self.time_base) for at in (ticks, self.end_pts))
            raise OutOfRangeError(
                f"time must be at least 0 and less than {end:g} seconds, got {asked:g}",
                hint="times count from the first frame; the end is exclusive",
            )
        return found

    def frames_starting_between(self, start: int, stop: int) -> range:
        """Return the frames with ``start <= pts < stop``, in ticks."""
        first = self._last_frame_not_after(start - 1) + 1
        return range(first, max(first, self._last_frame_not_after(stop - 1) + 1))

    def last_not_after(self, ticks: Ints) -> Ints:
        """Return for each of `ticks` the last frame with at most that pts, or -1."""
        if not self._in_order:  # some time stamps run backwards: search all of them
            return _last_not_after(self.pts(), ticks)
        found = np.full(len(ticks), -1, np.int64)
        pages = np.searchsorted([b.first_pts for b in self._bounds], ticks, side="right") - 1
        for ordinal in np.unique(pages[pages >= 0]).tolist():
            page = self._page(ordinal)
            mine = pages == ordinal
            within = _last_not_after(page.columns.pts[page.order], ticks[mine])
            found[mine] = page.bounds.first_frame + within
        return found

    def _last_frame_not_after(self, ticks: int) -> int:
        """Return the last frame with pts <= ticks, or -1."""
        most = np.iinfo(np.int64).max
        return int(self.last_not_after(np.array([max(-most, min(ticks, most))], np.int64))[0])

    def columns(self, first: int, end: int) -> PacketColumns:
        """Return the packets ``first <= p < end`` in decode order, clipped to the table."""
        parts = []
        end = min(end, self._packets)
        at = first
        while at < end:
            page = self._page(bisect_right(self._first_packets, at) - 1)
            base = page.bounds.first_packet
            stop_at = min(end, base + page.bounds.packets)
            parts.append(page.columns[at - base : stop_at - base])
            at = stop_at
        if len(parts) == 1:
            return parts[0]
        if not parts:
            empty = np.empty(0, np.int64)
            return PacketColumns(empty, empty, empty, empty, np.empty(0, np.uint8))
        return PacketColumns(
            np.concatenate([p.pts for p in parts]),
            np.concatenate([p.dts for p in parts]),
            np.concatenate([p.position for p in parts]),
            np.concatenate([p.size for p in parts]),
            np.concatenate([p.flags for p in parts]),
        )

    def bytes_of(self, first: int, end: int) -> int:
        """Return the bytes of the packets ``first <= p < end``, clipped to the table."""
        total = 0
        end = min(end, self._packets)
        at = first
        while at < end:
            page = self._page(bisect_right(self._first_packets, at) - 1)
            base = page.bounds.first_packet
            stop_at = min(end, base + page.bounds.packets)
            total += page.ends[stop_at - base] - page.ends[at - base]
            at = stop_at
        return total

    def bytes_between(self, first: Sequence[int], end: Sequence[int]) -> list[int]:
        """Return `bytes_of` for each pair; fastest if the pairs ascend."""
        if len(first) < _FEW:
            return list(map(self.bytes_of, first, end))
        starts, ends = np.array(first), np.array(end)
        found = np.empty(len(first), np.int64)
        pages = np.searchsorted(self._first_packets, starts, side="right") - 1
        for ordinal in sorted(set(pages.tolist())):
            page = self._page(ordinal)
            base, before = page.bounds.first_packet, page.bytes_before
            mine = np.flatnonzero(pages == ordinal)
            inside = ends[mine] <= base + page.bounds.packets
            whole = mine[inside]
            found[whole] = before[ends[whole] - base] - before[starts[whole] - base]
            for place in mine[~inside].tolist():
                found[place] = self.bytes_of(first[place], end[place])
        return found.tolist()

    def packets_of(self, frames: range) -> Ints:
        """Return the packet index of each frame of a contiguous range, in display order."""
        parts = []
        at = frames.start
        while at < frames.stop:
            page, within = self._page_of_frame(at)
            stop_at = min(len(page.order), within + frames.stop - at)
            parts.append(page.order[within:stop_at] + page.bounds.first_packet)
            at += stop_at - within
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def extents(self, frames: range) -> tuple[Ints, Ints]:
        """Return positions and sizes of the packets of a contiguous range, in decode order."""
        packets = np.sort(self.packets_of(frames))
        if not len(packets):
            return packets, packets
        columns = self.columns(int(packets[0]), int(packets[-1]) + 1)
        within = packets - packets[0]
        return columns.position[within], columns.size[within]

    def decode_run(self, index: int) -> DecodeRun:
        """Return the packets to decode to get frame `index`.  Raises `OutOfRangeError`."""
        page, within = self._page_of_frame(index)
        local = int(page.order[within])
        return DecodeRun(*self._to_decode(page, local), {page.bounds.first_packet + local: index})

    def packets_to_decode(self, frames: Ints) -> Ints:
        """Return the first and end packets of `decode_run` for each of `frames`, which ascend.

        The result has two rows.  Raises `OutOfRangeError`.
        """
        found = np.empty((2, len(frames)), np.int64)
        at = 0
        while at < len(frames):
            page, _ = self._page_of_frame(int(frames[at]))
            stop_at = int(frames.searchsorted(page.bounds.first_frame + page.bounds.frames))
            local = page.order[frames[at:stop_at] - page.bounds.first_frame]
            found[:, at:stop_at] = self._all_to_decode(page, local)
            at = stop_at
        return found

    def _all_to_decode(self, page: FramePage, local: Ints) -> Ints:
        """Vectorized `_to_decode`."""
        if len(local) < _FEW:
            return np.array([self._to_decode(page, packet) for packet in local.tolist()]).T
        flags = page.columns.flags
        keys, after = page.key_places[local], np.minimum(local + 1, len(flags) - 1)
        found = page.bounds.first_packet + np.stack([keys, local + 1])
        is_odd = (keys < 0) | (after == local) | ((flags[local] & LEADING) != 0)
        for place in np.flatnonzero(is_odd | ((flags[after] & HIDDEN) != 0)).tolist():
            found[:, place] = self._to_decode(page, int(local[place]))
        return found

    def _to_decode(self, page: FramePage, local: int) -> tuple[int, int]:
        """Return the packets to decode, (first, end), to get the `local`-th packet of a page."""
        start = self._key_for(page, local)
        if page.flags[local] & LEADING and start > 0:
            start = self._key_at_or_before(start - 1)
        end = page.bounds.first_packet + local + 1
        if local + 1 == len(page.flags) or page.flags[local + 1] & HIDDEN:
            end = self._end_of_picture(end - 1)
        return start, end

    def decode_runs(self, indices: Iterable[int]) -> list[DecodeRun]:
        """Return the packets to decode to get all of `indices` (any order, repeats allowed).

        Runs are in display order.  Runs are merged if they start at the same key packet, or within
        the packets of the run before.
        """
        runs: list[DecodeRun] = []
        for index in sorted(set(indices)):
            run = self.decode_run(index)
            if runs and runs[-1].first_packet <= run.first_packet < runs[-1].end_packet:
                last = runs[-1]
                last.wanted.update(run.wanted)
                runs[-1] = DecodeRun(
                    last.first_packet, max(last.end_packet, run.end_packet), last.wanted
                )
            else:
                runs.append(run)
        return runs

    def _end_of_picture(self, packet: int) -> int:
        """Return one past the last packet of the picture in `packet`; a field pair has two."""
        end = packet + 1
        while end < self._packets and end - packet < 4:
            page = self._page(bisect_right(self._first_packets, end) - 1)
            flags = page.flags[end - page.bounds.first_packet]
            if not flags & HIDDEN or flags & KEY:
                break
            end += 1
        return end

    def _key_for(self, page: FramePage, local: int) -> int:
        key = page.keys[local]
        return max(0, page.bounds.key_packet) if key < 0 else page.bounds.first_packet + key

    def _key_at_or_before(self, packet: int) -> int:
        page = self._page(bisect_right(self._first_packets, packet) - 1)
        return self._key_for(page, packet - page.bounds.first_packet)

    def group(self, packet: int, far: int) -> tuple[int, int]:
        """Return the key packet at or before `packet`, and the next one, at most `far` after it."""
        end = min(self._packets, packet + 1 + far)
        keys = np.flatnonzero(self.columns(packet + 1, end).flags & KEY)
        return self._key_at_or_before(packet), packet + 1 + int(keys[0]) if len(keys) else end

    def keyframes(self) -> Ints:
        """Return the display indices of the frames at which decoding may start, ascending."""
        parts = []
        for ordinal in range(len(self._bounds)):
            page = self._page(ordinal)
            is_key = page.columns.flags[page.order] & KEY
            parts.append(np.flatnonzero(is_key) + page.bounds.first_frame)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def gops(self) -> Iterator[Gop]:
        """Yield the runs of packets from one key packet to the next, in decode order."""
        starts = [0]
        for ordinal in range(len(self._bounds)):
            page = self._page(ordinal)
            keys = np.flatnonzero(page.columns.flags & KEY) + page.bounds.first_packet
            starts += [int(k) for k in keys if k > 0]
        shown = 0
        for number, (first, end) in enumerate(
            zip(starts, [*starts[1:], self._packets], strict=True)
        ):
            if first == end:
                continue
            part = self.columns(first, end)
            visible = (part.flags & HIDDEN) == 0
            count = int(visible.sum())
            yield Gop(
                index=number,
                first_packet=first,
                packets=end - first,
                first_frame=shown,
                frames=count,
                first_pts=int(part.pts[visible].min()) if count else int(part.pts.min()),
                position=int(part.position[0]),
                size=int(part.size.sum()),
                is_open=bool((part.flags & LEADING).any()),
            )
            shown += count

    def _page_of_frame(self, index: int) -> tuple[FramePage, int]:
        self._require_frame(index)
        ordinal = bisect_right(self._first_frames, index) - 1
        return self._page(ordinal), index - self._first_frames[ordinal]

    def _require_frame(self, index: int) -> None:
        if not 0 <= index < self._frames:
            raise OutOfRangeError(f"frame {index} does not exist: the video has {self._frames}")

    def _page(self, ordinal: int) -> FramePage:
        with self._cache_guard:
            page = self._cache.get(ordinal)
            if page is not None:
                self._cache.move_to_end(ordinal)
                return page
        page = decode_page(self._bounds[ordinal], self._fetch(ordinal))
        with self._cache_guard:
            self._cache[ordinal] = page
            while len(self._cache) > _CACHED_PAGES:
                self._cache.popitem(last=False)
        return page


def _last_not_after(pts: Ints, ticks: Ints) -> Ints:
    """Return for each of `ticks` the index of the last pts that is not greater, or -1."""
    least = np.minimum.accumulate(pts[::-1])[::-1]  # of this and all later ones: ascending
    return np.searchsorted(least, ticks, side="right") - 1


def _require_all(bounds: Sequence[PageBounds]) -> None:
    packets = frames = 0
    for page in bounds:
        if (page.first_packet, page.first_frame) != (packets, frames):
            raise IntegrityError(
                f"the frame table has a gap at packet {packets}", hint="run `vfsd fsck --repair`"
            )
        packets += page.packets
        frames += page.frames


class GrowingTable(FrameTable):
    """An in-memory table that grows at its end.  Existing entries never change."""

    def __init__(self, time_base: Fraction) -> None:
        self._pages: list[bytes] = []
        self._last_key = -1  # index of the last key packet
        super().__init__([], self._pages.__getitem__, time_base=time_base, end_pts=0)

    def extend(self, columns: PacketColumns, order: Ints, end_pts: int) -> None:
        """Append packets and the frames that they show, all after the existing ones.

        Readers may use the table at the same time.
        """
        bounds = list(self._bounds)
        for page, blob in list(paginate(columns, order)):
            moved = replace(
                page,
                first_packet=page.first_packet + self._packets,
                first_frame=page.first_frame + self._frames,
                key_packet=page.key_packet + self._packets
                if page.key_packet >= 0
                else self._last_key,  # decoding starts in an earlier part
            )
            self._in_order &= not bounds or bounds[-1].last_pts <= moved.first_pts
            bounds.append(moved)
            self._pages.append(blob)
            self._first_frames.append(moved.first_frame)
            self._first_packets.append(moved.first_packet)
        self._bounds = bounds
        self.end_pts = end_pts
        keys = np.flatnonzero(columns.flags & KEY)
        if len(keys):
            self._last_key = self._packets + int(keys[-1])
        # These come last: they make the new entries visible to readers.
        self._packets += len(columns)
        self._frames += len(order)
