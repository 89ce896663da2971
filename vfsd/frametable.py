"""The frame table: for every frame its exact time, and where the packet lies that holds it.

Built once, at ingest, from what the demuxer (and, for odd files, a full decode) says; never
guessed from a frame rate.  Packets are kept in decode order, frames are packets in display order.

A table is stored as *pages* of about `PAGE_PACKETS` packets.  A page ends only where decode order
and display order may be cut at the same place, so a page holds whole runs of both; a single
frame is found by reading one page, whatever the length of the video.  Page format: `FramePage`.
"""

from __future__ import annotations

import itertools
import struct
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from vfsd.errors import IntegrityError, OutOfRangeError
from vfsd.model import Gop

PAGE_PACKETS = 2048
"""Packets after which a page is closed at the next chance: 12 kB compressed, 0.1 ms to read."""

_CACHED_PAGES = 64
_MAGIC = b"vfp1"

Ints = npt.NDArray[np.int64]


class PacketFlag(IntFlag):
    KEY = 1  #: decoding may start here and gives exact pictures
    HIDDEN = 2  #: must be decoded, shows no frame of its own (pre-roll, second field, damage)
    DISPOSABLE = 4  #: nothing refers to it: need not be decoded unless it is wanted
    LEADING = 8  #: shown before the key frame it follows: decoding must start one key earlier


@dataclass(frozen=True)
class PacketColumns:
    """Packets in decode order, one array element each."""

    pts: Ints  #: ticks at which the frame is shown
    dts: Ints  #: ticks; equal to pts where the container has none
    position: Ints  #: byte offset in the file (see `vfsd.model.Access`)
    size: Ints  #: bytes
    flags: npt.NDArray[np.uint8]  #: `PacketFlag`s

    def __len__(self) -> int:
        return len(self.pts)

    def __getitem__(self, key: slice) -> PacketColumns:
        return PacketColumns(
            self.pts[key], self.dts[key], self.position[key], self.size[key], self.flags[key]
        )


@dataclass(frozen=True, slots=True)
class PageBounds:
    """What is known of a page without reading it."""

    first_packet: int
    packets: int
    first_frame: int
    frames: int
    first_pts: int  #: lowest pts of a frame in the page
    last_pts: int  #: highest pts of a frame in the page
    key_packet: int  #: the key packet that the page's first packet decodes from; -1: none


@dataclass(frozen=True)
class FramePage:
    """One page in memory.

    On disk: ``vfp1``, then zlib of: the number of packets and of frames (two little-endian u32),
    then six columns (pts - dts, dts, position - end of the previous packet, size, flags, and the
    packet of each frame in display order, counted from the page's first and less the frame's own
    ordinal).  A column is its numpy type character, its first value (i64), then the differences
    of successive values in the narrowest signed type that holds them all.
    """

    bounds: PageBounds
    columns: PacketColumns
    order: Ints  #: packet index of each frame in display order, counted from the page's first


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
    """Packets to feed to a fresh decoder, in order, and the frames to keep of what comes out."""

    first_packet: int  #: a key packet
    end_packet: int  #: one past the last packet to feed
    wanted: dict[int, int]  #: packet index -> frame index, in display order


# --------------------------------------------------------------------------------------- writing


def _pack_column(values: Ints) -> bytes:
    if not len(values):
        return b"b" + struct.pack("<q", 0)
    steps = np.diff(values)
    kind = "q"
    for code, limit in (("b", 1 << 7), ("h", 1 << 15), ("i", 1 << 31)):
        if not len(steps) or (steps.min() >= -limit and steps.max() < limit):
            kind = code
            break
    body = steps.astype(f"<{_NUMPY_TYPE[kind]}").tobytes()
    return kind.encode() + struct.pack("<q", int(values[0])) + body


_NUMPY_TYPE = {"b": "i1", "h": "i2", "i": "i4", "q": "i8"}


def _unpack_column(data: memoryview, at: int, count: int) -> tuple[Ints, int]:
    kind = _NUMPY_TYPE[chr(data[at])]
    (first,) = struct.unpack_from("<q", data, at + 1)
    at += 9
    values = np.empty(count, np.int64)
    if count:
        steps = np.frombuffer(data, f"<{kind}", count - 1, at)
        values[0] = first
        np.cumsum(steps, dtype=np.int64, out=values[1:])
        values[1:] += first
        at += steps.nbytes
    return values, at


def encode_page(columns: PacketColumns, order: Ints) -> bytes:
    """The stored form of a page; `order` counts from the page's first packet."""
    ends = columns.position + columns.size
    gaps = columns.position - np.concatenate(([0], ends[:-1]))
    parts = [
        struct.pack("<II", len(columns), len(order)),
        _pack_column(columns.pts - columns.dts),
        _pack_column(columns.dts),
        _pack_column(gaps),
        _pack_column(columns.size),
        _pack_column(columns.flags.astype(np.int64)),
        _pack_column(order - np.arange(len(order))),
    ]
    return _MAGIC + zlib.compress(b"".join(parts), 6)


def decode_page(bounds: PageBounds, blob: bytes) -> FramePage:
    """The reverse of `encode_page`.  Raises `IntegrityError` when the bytes are no such page."""
    try:
        if blob[:4] != _MAGIC:
            raise ValueError("bad magic")
        data = memoryview(zlib.decompress(blob[4:]))
        packets, frames = struct.unpack_from("<II", data)
        if (packets, frames) != (bounds.packets, bounds.frames):
            raise ValueError("page and index disagree")
        at = 8
        offsets, at = _unpack_column(data, at, packets)
        dts, at = _unpack_column(data, at, packets)
        gaps, at = _unpack_column(data, at, packets)
        size, at = _unpack_column(data, at, packets)
        flags, at = _unpack_column(data, at, packets)
        order, at = _unpack_column(data, at, frames)
    except (ValueError, KeyError, zlib.error, struct.error, IndexError) as error:
        raise IntegrityError(f"a page of the frame table is damaged: {error}") from error
    # position[i] = gap[i] + end of packet i - 1, all the way down.
    position = np.cumsum(gaps + np.concatenate(([0], size[:-1]))) if packets else gaps
    columns = PacketColumns(dts + offsets, dts, position, size, flags.astype(np.uint8))
    return FramePage(bounds, columns, order + np.arange(frames))


def paginate(
    columns: PacketColumns, order: Ints, *, page_packets: int = PAGE_PACKETS
) -> Iterator[tuple[PageBounds, bytes]]:
    """Cut a whole table into pages.

    `order` lists the packets that show a frame, in display order.
    """
    packets = len(columns)
    # A cut before packet p is allowed when the frames of the packets before p are exactly the
    # first frames in display order.
    shown_before = np.zeros(packets + 1, np.int64)
    shown_before[1:] = np.cumsum((columns.flags & PacketFlag.HIDDEN) == 0)
    latest = np.maximum.accumulate(order) if len(order) else order
    first, frame, key = 0, 0, -1
    while first < packets:
        end = min(first + page_packets, packets)
        while end < packets:
            count = int(shown_before[end])
            if count == 0 or latest[count - 1] < end:
                break
            end += 1
        count = int(shown_before[end])
        part = columns[first:end]
        mine = order[frame:count]
        pts = columns.pts[mine]
        is_key = (part.flags & PacketFlag.KEY) != 0
        if len(part) and is_key[0]:
            key = first
        bounds = PageBounds(
            first_packet=first,
            packets=end - first,
            first_frame=frame,
            frames=count - frame,
            first_pts=int(pts.min()) if len(pts) else int(part.pts.min()),
            last_pts=int(pts.max()) if len(pts) else int(part.pts.max()),
            key_packet=key,
        )
        yield bounds, encode_page(part, mine - first)
        keys = np.flatnonzero(is_key)
        if len(keys):
            key = first + int(keys[-1])
        first, frame = end, count


# --------------------------------------------------------------------------------------- reading


class FrameTable:
    """Read access to a stored frame table.  Safe to use from several threads.

    `fetch` gets the blob of the page with that ordinal; `end_pts` is when the last frame stops
    being shown, in ticks.
    """

    def __init__(
        self,
        bounds: Sequence[PageBounds],
        fetch: Callable[[int], bytes],
        *,
        time_base: Fraction,
        end_pts: int,
    ) -> None:
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
        """A table that is not stored anywhere."""
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

    # -- frames

    def frame(self, index: int) -> FrameEntry:
        """The frame shown as number `index`.  Raises `OutOfRangeError`."""
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
            is_key=bool(columns.flags[packet] & PacketFlag.KEY),
        )

    def frame_pts(self, index: int) -> int:
        """Ticks at which frame `index` is shown.  Raises `OutOfRangeError`."""
        page, within = self._page_of_frame(index)
        return int(page.columns.pts[page.order[within]])

    def pts(self, start: int = 0, stop: int | None = None) -> Ints:
        """Ticks of the frames ``start <= i < stop``, in display order."""
        stop = self._frames if stop is None else min(stop, self._frames)
        parts = []
        at = start
        while at < stop:
            page, within = self._page_of_frame(at)
            upto = min(len(page.order), within + stop - at)
            parts.append(page.columns.pts[page.order[within:upto]])
            at += upto - within
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def frame_at(self, ticks: int) -> int:
        """The frame that is on the screen at `ticks`.

        Raises `OutOfRangeError` before the first frame and at or after `end_pts`.
        """
        found = self._last_frame_not_after(ticks)
        if found < 0 or ticks >= self.end_pts:
            raise OutOfRangeError(
                f"nothing is shown at tick {ticks}: the video runs from "
                f"{self.frame_pts(0)} to {self.end_pts}"
            )
        return found

    def frames_between(self, start: int, stop: int) -> range:
        """The frames shown at some moment ``start <= t < stop``, in ticks.

        The frame that is already on the screen at `start` is part of it.
        """
        if stop <= start or not self._frames or start >= self.end_pts:
            return range(0)
        first = max(0, self._last_frame_not_after(start))
        return range(first, self._last_frame_not_after(stop - 1) + 1)

    def frames_starting_between(self, start: int, stop: int) -> range:
        """The frames whose pts is in ``start <= pts < stop``."""
        first = self._last_frame_not_after(start - 1) + 1
        return range(first, max(first, self._last_frame_not_after(stop - 1) + 1))

    def _last_frame_not_after(self, ticks: int) -> int:
        """Index of the last frame with pts <= ticks, or -1."""
        if not self._in_order:  # time stamps that run backwards somewhere: look at all of them
            found = np.flatnonzero(self.pts() <= ticks)
            return int(found[-1]) if len(found) else -1
        ordinal = bisect_right(self._bounds, ticks, key=lambda b: b.first_pts) - 1
        if ordinal < 0:
            return -1
        page = self._page(ordinal)
        shown = page.columns.pts[page.order]
        found = np.flatnonzero(shown <= ticks)
        if not len(found):
            return page.bounds.first_frame - 1
        return page.bounds.first_frame + int(found[-1])

    # -- packets

    def columns(self, first: int, end: int) -> PacketColumns:
        """The packets ``first <= p < end`` in decode order."""
        parts = []
        at = first
        while at < end:
            page = self._page(bisect_right(self._first_packets, at) - 1)
            base = page.bounds.first_packet
            upto = min(end, base + page.bounds.packets)
            parts.append(page.columns[at - base : upto - base])
            at = upto
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

    def packets_of(self, frames: range) -> Ints:
        """Packet index of each frame of a contiguous range, in display order."""
        parts = []
        at = frames.start
        while at < frames.stop:
            page, within = self._page_of_frame(at)
            upto = min(len(page.order), within + frames.stop - at)
            parts.append(page.order[within:upto] + page.bounds.first_packet)
            at += upto - within
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def decode_run(self, index: int) -> DecodeRun:
        """What to decode to see frame `index`.  Raises `OutOfRangeError`."""
        page, within = self._page_of_frame(index)
        local = int(page.order[within])
        packet = page.bounds.first_packet + local
        start = self._key_for(page, local)
        if page.columns.flags[local] & PacketFlag.LEADING and start > 0:
            start = self._key_at_or_before(start - 1)
        return DecodeRun(start, self._end_of_picture(packet), {packet: index})

    def decode_runs(self, indices: Iterable[int]) -> list[DecodeRun]:
        """What to decode to see all of `indices` (any order, repeats allowed), each frame once.

        Runs are in display order; runs that start at the same key packet, or in the middle of
        what the one before decodes anyway, are one.
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
        """One past the last packet of the picture in `packet` (a field pair is two)."""
        end = packet + 1
        while end < self._packets and end - packet < 4:
            flags = int(self.columns(end, end + 1).flags[0])
            if not flags & PacketFlag.HIDDEN or flags & PacketFlag.KEY:
                break
            end += 1
        return end

    def _key_for(self, page: FramePage, local: int) -> int:
        keys = np.flatnonzero(page.columns.flags[: local + 1] & PacketFlag.KEY)
        if len(keys):
            return page.bounds.first_packet + int(keys[-1])
        return max(0, page.bounds.key_packet)

    def _key_at_or_before(self, packet: int) -> int:
        page = self._page(bisect_right(self._first_packets, packet) - 1)
        return self._key_for(page, packet - page.bounds.first_packet)

    def keyframes(self) -> Ints:
        """Display indices of the frames at which decoding may start, ascending."""
        parts = []
        for ordinal in range(len(self._bounds)):
            page = self._page(ordinal)
            is_key = page.columns.flags[page.order] & PacketFlag.KEY
            parts.append(np.flatnonzero(is_key) + page.bounds.first_frame)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def gops(self) -> Iterator[Gop]:
        """Runs of packets from one key packet to the next, in decode order."""
        starts = [0]
        for ordinal in range(len(self._bounds)):
            page = self._page(ordinal)
            keys = np.flatnonzero(page.columns.flags & PacketFlag.KEY) + page.bounds.first_packet
            starts += [int(k) for k in keys if k > 0]
        shown = 0
        for number, (first, end) in enumerate(
            zip(starts, [*starts[1:], self._packets], strict=True)
        ):
            if first == end:
                continue
            part = self.columns(first, end)
            visible = (part.flags & PacketFlag.HIDDEN) == 0
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
                is_open=bool((part.flags & PacketFlag.LEADING).any()),
            )
            shown += count

    # -- pages

    def _page_of_frame(self, index: int) -> tuple[FramePage, int]:
        if not 0 <= index < self._frames:
            raise OutOfRangeError(f"there is no frame {index}: the video has {self._frames}")
        ordinal = bisect_right(self._first_frames, index) - 1
        return self._page(ordinal), index - self._first_frames[ordinal]

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
