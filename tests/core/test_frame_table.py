"""The paged frame table returns the same as the plain arrays that it was made from."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.selection import examples
from vfsd.core.frame_table import FrameTable, GrowingTable
from vfsd.core.frame_table_pages import (
    Ints,
    PacketColumns,
    PacketFlag,
    decode_page,
    page_cuts,
    paginate,
)
from vfsd.errors import IntegrityError, OutOfRangeError

BASE = Fraction(1, 1000)


def make(
    pts: list[int], flags: list[int], *, page_packets: int = 4
) -> tuple[FrameTable, PacketColumns, Ints]:
    """A table of packets with those times, in decode order."""
    count = len(pts)
    sizes = np.arange(count, dtype=np.int64) % 7 * 100 + 10
    columns = PacketColumns(
        np.array(pts, np.int64),
        np.arange(count, dtype=np.int64) * 40 - 80,
        np.cumsum(sizes + 3),
        sizes,
        np.array(flags, np.uint8),
    )
    shown = np.flatnonzero((columns.flags & PacketFlag.HIDDEN) == 0)
    order = shown[np.argsort(columns.pts[shown], kind="stable")]
    table = FrameTable.in_memory(
        columns, order, time_base=BASE, end_pts=max(pts) + 40, page_packets=page_packets
    )
    return table, columns, order


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """GOPs with B-frames, sometimes open, sometimes with hidden packets; uneven times."""
    pts: list[int] = []
    flags: list[int] = []
    now = draw(st.integers(-1000, 1000))
    for number in range(draw(st.integers(1, 6))):
        frames = draw(st.integers(1, 9))
        times = []
        for _ in range(frames):
            times.append(now)
            now += draw(st.integers(1, 90))
        leading = draw(st.integers(0, min(2, frames - 1))) if number else 0
        rest = times[leading + 1 :]
        # Pairs are swapped, as with one B-frame.
        for at in range(0, len(rest) - 1, 2):
            rest[at], rest[at + 1] = rest[at + 1], rest[at]
        ordered = [times[leading], *times[:leading], *rest]
        pts += ordered
        for at in range(frames):
            flag = PacketFlag.KEY if at == 0 else PacketFlag(0)
            if 1 <= at <= leading:
                flag |= PacketFlag.LEADING
            elif at and draw(st.integers(0, 9)) == 0:
                flag |= PacketFlag.HIDDEN
            elif at and draw(st.booleans()):
                flag |= PacketFlag.DISPOSABLE
            flags.append(int(flag))
    return pts, flags


@given(streams(), st.integers(1, 9))
@settings(max_examples=examples(150), deadline=None)
def test_pages_round_trip(stream: tuple[list[int], list[int]], size: int) -> None:
    table, columns, order = make(*stream, page_packets=size)
    back = table.columns(0, table.packets)
    for name in ("pts", "dts", "position", "size", "flags"):
        assert np.array_equal(getattr(back, name), getattr(columns, name)), name
    assert len(table) == len(order)
    assert np.array_equal(table.pts(), columns.pts[order])
    assert np.array_equal(table.packets_of(range(len(table))), order)


@given(streams(), st.integers(1, 9), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_frame_number_is_the_display_order(
    stream: tuple[list[int], list[int]], size: int, data: st.DataObject
) -> None:
    table, columns, order = make(*stream, page_packets=size)
    index = data.draw(st.integers(0, len(table) - 1))
    entry = table.frame(index)
    shown = columns.pts[order]
    assert (entry.pts, entry.packet) == (shown[index], order[index])
    following = shown[index + 1] if index + 1 < len(shown) else table.end_pts
    assert entry.duration == following - entry.pts
    assert table.frame_at(entry.pts) == index
    assert table.frame_at(entry.pts + entry.duration - 1) == index


@given(streams(), st.integers(1, 9), st.integers(-1100, 3000), st.integers(1, 900))
@settings(max_examples=examples(150), deadline=None)
def test_frames_between_two_times(
    stream: tuple[list[int], list[int]], size: int, start: int, length: int
) -> None:
    table, columns, order = make(*stream, page_packets=size)
    shown = columns.pts[order]
    starting = table.frames_starting_between(start, start + length)
    assert list(starting) == [i for i, pts in enumerate(shown) if start <= pts < start + length]


@given(streams(), st.integers(1, 9), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_run_starts_at_a_usable_key_frame(
    stream: tuple[list[int], list[int]], size: int, data: st.DataObject
) -> None:
    table, columns, order = make(*stream, page_packets=size)
    index = data.draw(st.integers(0, len(table) - 1))
    run = table.decode_run(index)
    packet = int(order[index])
    assert columns.flags[run.first_packet] & PacketFlag.KEY
    assert run.first_packet <= packet < run.end_packet
    assert run.wanted == {packet: index}
    keys = np.flatnonzero(columns.flags & PacketFlag.KEY)
    before = keys[keys <= packet]
    if columns.flags[packet] & PacketFlag.LEADING:
        assert run.first_packet == before[-2]
    else:
        assert run.first_packet == before[-1]


@given(streams(), st.integers(1, 9), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_runs_cover_every_wanted_frame_once(
    stream: tuple[list[int], list[int]], size: int, data: st.DataObject
) -> None:
    table, _, _ = make(*stream, page_packets=size)
    wanted = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=12))
    runs = table.decode_runs(wanted)
    found = [frame for run in runs for frame in run.wanted.values()]
    assert sorted(found) == sorted(set(wanted))
    for run in runs:
        assert all(run.first_packet <= packet < run.end_packet for packet in run.wanted)
        single = [table.decode_run(frame) for frame in run.wanted.values()]
        assert run.first_packet == min(one.first_packet for one in single)


@given(streams(), st.integers(1, 60), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_runs_of_many_frames_start_like_runs_of_one(
    stream: tuple[list[int], list[int]], size: int, data: st.DataObject
) -> None:
    table, columns, _ = make(*stream, page_packets=size)
    frames = sorted(data.draw(st.lists(st.integers(0, len(table) - 1), max_size=60)))
    first, end = table.packets_to_decode(np.array(frames, np.int64))
    runs = [table.decode_run(frame) for frame in frames]
    assert first.tolist() == [run.first_packet for run in runs]
    assert end.tolist() == [run.end_packet for run in runs]
    sizes = [int(columns.size[run.first_packet : run.end_packet].sum()) for run in runs]
    assert table.bytes_between(first.tolist(), end.tolist()) == sizes


@given(streams())
@settings(max_examples=examples(60), deadline=None)
def test_gops_partition_the_packets(stream: tuple[list[int], list[int]]) -> None:
    table, columns, _ = make(*stream)
    gops = list(table.gops())
    assert [gop.first_packet for gop in gops] == list(np.flatnonzero(columns.flags & 1))
    assert sum(gop.packets for gop in gops) == table.packets
    assert sum(gop.frames for gop in gops) == len(table)
    assert sum(gop.size for gop in gops) == columns.size.sum()


@given(streams(), st.integers(1, 6), st.data())
def test_batch_lookup_equals_single_lookup(
    stream: tuple[list[int], list[int]], size: int, data: st.DataObject
) -> None:
    table, _, _ = make(*stream, page_packets=size)
    asked = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=12))
    one_by_one = [table.frame_pts(index) for index in asked]
    assert table.pts_of(np.array(asked, np.int64)).tolist() == one_by_one
    for beyond in (-1, len(table)):
        with pytest.raises(OutOfRangeError, match=str(beyond)):
            table.pts_of(np.array([*asked, beyond], np.int64))


@given(streams(), st.integers(1, 6), st.data())
def test_packet_offsets_of_a_run(
    stream: tuple[list[int], list[int]], size: int, data: st.DataObject
) -> None:
    table, _, _ = make(*stream, page_packets=size)
    start = data.draw(st.integers(0, len(table)))
    frames = range(start, data.draw(st.integers(start, len(table))))
    positions, sizes = table.extents(frames)
    entries = sorted((table.frame(index) for index in frames), key=lambda entry: entry.packet)
    assert positions.tolist() == [entry.position for entry in entries]
    assert sizes.tolist() == [entry.size for entry in entries]


def test_backward_times_are_searched_in_display_order() -> None:
    """Two recordings were joined, so timestamps restart in the middle."""
    pts = [0, 40, 80, 0, 40, 80]
    columns = PacketColumns(
        np.array(pts, np.int64),
        np.array(pts, np.int64),
        np.arange(6, dtype=np.int64),
        np.ones(6, np.int64),
        np.array([1, 0, 0, 1, 0, 0], np.uint8),
    )
    table = FrameTable.in_memory(columns, np.arange(6), time_base=BASE, end_pts=120, page_packets=2)
    assert [table.frame(i).pts for i in range(6)] == pts
    assert table.frame_at(50) == 4
    assert table.frame(2).duration == 0  # the next one is earlier; never negative


def test_out_of_range_is_refused() -> None:
    table, _, _ = make([0, 40, 80], [1, 0, 0])
    for index in (-1, 3):
        with pytest.raises(OutOfRangeError, match="has 3"):
            table.frame(index)
    for ticks in (-1, 120):
        with pytest.raises(OutOfRangeError):
            table.frame_at(ticks)


def test_damaged_page_is_an_error() -> None:
    _, columns, order = make([0, 40, 80], [1, 0, 0])
    ((bounds, blob),) = paginate(columns, order)
    for broken in (b"", blob[:-3], b"xxxx" + blob[4:], blob[:10] + b"\0\0" + blob[12:]):
        with pytest.raises(IntegrityError):
            decode_page(bounds, broken)


def test_missing_page_is_an_error() -> None:
    _, columns, order = make([at * 40 for at in range(12)], [1] + [0] * 11)
    bounds = [each for each, _ in paginate(columns, order, page_packets=4)]
    for kept in ([bounds[0], bounds[2]], bounds[1:]):
        with pytest.raises(IntegrityError, match="gap at packet"):
            FrameTable(kept, lambda _: b"", time_base=BASE, end_pts=480)


def test_packet_range_ends_at_the_last_packet() -> None:
    table, columns, _ = make([at * 40 for at in range(10)], [1] + [0] * 9)
    assert table.columns(8, 13).pts.tolist() == columns.pts[8:].tolist()
    assert len(table.columns(10, 13).pts) == 0
    assert table.bytes_of(8, 13) == columns.size[8:].sum()


def test_long_video_needs_few_bytes_per_frame() -> None:
    """With B-frames and realistic sizes, the table has far less than 24 bytes per frame."""
    count = 200_001
    rng = np.random.default_rng(1)
    pts = np.arange(count, dtype=np.int64) * 512
    pts[1::3], pts[2::3] = pts[2::3].copy(), pts[1::3].copy()
    sizes = rng.integers(200, 60_000, count)
    flags = np.where(np.arange(count) % 30 == 0, 1, 0).astype(np.uint8)
    columns = PacketColumns(pts, np.arange(count) * 512 - 512, np.cumsum(sizes), sizes, flags)
    order = np.argsort(pts, kind="stable")
    stored = sum(len(blob) + 40 for _, blob in paginate(columns, order))
    assert stored / count < 8


@given(streams(), st.data())
@settings(max_examples=examples(50), deadline=None)
def test_growing_table_equals_a_complete_one(
    stream: tuple[list[int], list[int]], data: st.DataObject
) -> None:
    whole, columns, order = make(*stream)
    shown_before, is_clean = page_cuts(columns, order)
    places = np.flatnonzero(is_clean[1:-1]) + 1
    ends = [int(p) for p in places if data.draw(st.booleans())]
    growing = GrowingTable(BASE)
    for start, end in itertools.pairwise([0, *ends, len(columns)]):
        mine = order[shown_before[start] : shown_before[end]] - start
        growing.extend(columns[start:end], mine, end_pts=int(columns.pts[:end].max()) + 1)
    assert growing.pts().tolist() == whole.pts().tolist()
    assert growing.keyframes().tolist() == whole.keyframes().tolist()
    for frame in range(len(whole)):
        assert growing.decode_run(frame) == whole.decode_run(frame)
