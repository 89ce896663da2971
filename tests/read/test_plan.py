"""The choice between the original, tiles and renditions, against reference planners."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from sample_videos import FOLDER
from tests.support.planning import (
    LAYOUTS,
    REGION,
    Oracle,
    Way,
    as_ways,
    some_costs,
    some_frames,
    some_segments,
)
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.video import context_of
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Cell, PhysicalVideo, Segment
from vfsd.read.tile_planner import DecodeCosts, choose_tiles, in_full_size
from vfsd.tiling.cost import DecodeCost, RemoteCost

CLIPS = ("traffic.mp4", "open-gop.mov", "open-gop.mkv", "variable-rate.mp4")


def of_40_db(segment: Segment, tiles: Sequence[int]) -> bool:
    return all(segment.cell(tile).psnr >= 40 for tile in tiles)


@pytest.fixture(scope="module", params=one_in(2, CLIPS))
def known(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PhysicalVideo, FrameTable]]:
    with new_store(tmp_path_factory.mktemp("plan") / "store") as store:
        video = store.ingest(FOLDER / request.param)
        yield video.original, context_of(video).table


def test_plans_are_optimal(
    known: tuple[PhysicalVideo, FrameTable],
) -> None:
    """Thousands of small cases are compared with all possible plans; a greedy choice is never
    better."""
    original, table = known
    rng = np.random.default_rng(len(table))
    tried = tiled = better = 0
    while tried < 700:
        segments = some_segments(rng, len(table), int(rng.integers(1, 6)))
        costs, wanted = some_costs(rng), some_frames(rng, len(table))
        oracle = Oracle(original, table, costs, segments)
        parts = oracle.parts(wanted)
        ways = [oracle.ways(part) for part in parts]
        if np.prod([float(len(here)) for here in ways]) > 1500:
            continue
        tried += 1
        needed = in_full_size(original.media, REGION)
        runs = choose_tiles(
            np.array(wanted), needed, original, table, segments, costs, good=of_40_db
        )
        found = oracle.total(as_ways(parts, runs))
        best = min(oracle.total(way) for way in itertools.product(*ways))
        greedy = oracle.total([min(here, key=oracle.alone) for here in ways])
        assert found == pytest.approx(best, rel=1e-9, abs=1e-12)
        assert found <= greedy + 1e-12
        tiled += bool(runs)
        better += found < greedy - 1e-9
    assert tiled > 100, "too few of them had a use for tiles"
    assert better, "dependencies never mattered"


def test_plans_equal_an_integer_program(
    known: tuple[PhysicalVideo, FrameTable],
) -> None:
    """Cases with too many plans to enumerate are solved by HiGHS, a hundred at a time."""
    original, table = known
    rng = np.random.default_rng(2 * len(table))
    needed = in_full_size(original.media, REGION)
    ways_tried, tiled = 0.0, 0
    for _ in range(5):
        oracles, ways, found = [], [], []
        for _ in range(100):
            segments = some_segments(rng, len(table), int(rng.integers(1, 13)))
            costs, wanted = some_costs(rng), some_frames(rng, len(table))
            oracle = Oracle(original, table, costs, segments)
            parts = oracle.parts(wanted)
            runs = choose_tiles(
                np.array(wanted), needed, original, table, segments, costs, good=of_40_db
            )
            oracles.append(oracle)
            ways.append([oracle.ways(part) for part in parts])
            found.append(oracle.total(as_ways(parts, runs)))
            ways_tried = max(ways_tried, float(np.prod([float(len(here)) for here in ways[-1]])))
            tiled += bool(runs)
        best = [
            oracle.total(chosen)
            for oracle, chosen in zip(oracles, best_ways(oracles, ways), strict=True)
        ]
        assert found == pytest.approx(best, rel=1e-7, abs=1e-12)
    assert ways_tried > 1e6, "all of them could have been tried"
    assert tiled > 100, "too few of them had a use for tiles"


def best_ways(
    oracles: Sequence[Oracle], cases: Sequence[Sequence[Sequence[Way]]]
) -> list[list[Way]]:
    """The cheapest plan of each case, as VSS (SIGMOD 2021) states it: one integer program for all
    cases, which are independent.

    For each part one source is chosen (variables x).  Continuing with the source of the previous
    part saves the frames that it has decoded: a separate variable (y) that is at most either x.
    """
    prices: list[float] = []
    one_each: list[list[int]] = []
    pairs: list[tuple[int, int, int]] = []  # y, x before, x
    for oracle, case in zip(oracles, cases, strict=True):
        before: list[tuple[int, Way]] = []
        for part in case:
            here = [(len(prices) + number, way) for number, way in enumerate(part)]
            prices += [oracle.alone(way) for way in part]
            one_each.append([number for number, _ in here])
            for (earlier, old), (now, way) in itertools.product(before, here):
                saved = oracle.saved(old, way)
                if saved > 0:
                    pairs.append((len(prices), earlier, now))
                    prices.append(-saved)
            before = here
    entries = [(row, x, 1.0) for row, choice in enumerate(one_each) for x in choice]
    limits = list(enumerate(((y, x) for y, *both in pairs for x in both), len(one_each)))
    entries += [(row, column, part) for row, (y, x) in limits for column, part in ((y, 1), (x, -1))]
    rows, columns, values = zip(*entries, strict=True)
    total = len(one_each) + len(limits)
    lower = np.array([1.0] * len(one_each) + [-np.inf] * len(limits))
    upper = np.array([1.0] * len(one_each) + [0.0] * len(limits))
    solved = milp(
        np.array(prices) / max(prices) * 1e3,  # otherwise its tolerances would exceed some costs
        integrality=np.ones(len(prices)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(
            coo_array((values, (rows, columns)), (total, len(prices))), lower, upper
        ),
        options={"mip_rel_gap": 0.0},
    )
    assert solved.success, solved.message
    taken = (max(choice, key=solved.x.__getitem__) - choice[0] for choice in one_each)
    return [[part[next(taken)] for part in case] for case in cases]


def test_decoder_threads_per_source(
    known: tuple[PhysicalVideo, FrameTable],
) -> None:
    """A decoder of a large original has two threads; decoders of parallel segments have one
    each."""
    original, table = known
    media = replace(original.media, width=640, height=480)
    original = replace(original, media=media)
    own, tile = DecodeCost(0, 0, 1e-9, 0), DecodeCost(0, 0, 2.4e-9, 0)  # tiles: 0.6 of the original
    by_name = {media.codec: own, "fast": tile}
    layout = LAYOUTS[0]
    cells = (Cell(0, layout.tile(0), 0, 1, 20, 40.0),)

    def chosen(*ends: int, threads: int = 2) -> list[int]:
        """The numbers of the used segments; each begins at the end of the previous one."""
        segments = [
            Segment(number, 2, 1, first, end, layout, "fast", "", 1, 40.0, 0, None, cells)
            for number, (first, end) in enumerate(itertools.pairwise((0, *ends)), 1)
        ]
        runs = choose_tiles(
            np.arange(ends[-1]),
            lambda *_: REGION,
            original,
            table,
            segments,
            DecodeCosts(by_name, threads=threads),
            good=of_40_db,
        )
        return [run.segment.id for run in runs]

    assert chosen(30) == []
    assert chosen(30, 60) == [1, 2]
    assert chosen(30, 31) == []  # the second finishes long before the first
    assert chosen(30, threads=1) == [1]


def test_cached_bytes_cost_no_fetch(known: tuple[PhysicalVideo, FrameTable]) -> None:
    """A tile that saves decoding loses if only the original is cached."""
    original, table = known
    by_name = {
        original.media.codec: DecodeCost(0, 0, 20e-9, 0),
        "fast": DecodeCost(0, 0, 5e-9, 0),
    }
    layout = LAYOUTS[0]
    cells = (Cell(0, layout.tile(0), 4096, 20_000, 20, 40.0),)
    segments = [
        Segment(
            number, 2, 1, first, first + 10, layout, "fast", f"{number}", 1, 40.0, 0, None, cells
        )
        for number, first in ((1, 0), (2, 10))
    ]
    own = str(original.place.object_key)

    def used(*cached: str, frames: int = 10) -> list[int]:
        """The numbers of the used segments if all bytes of some objects are cached."""
        looked_up.clear()

        def missing(key: str, ranges: Sequence[tuple[int, int]]) -> float:
            looked_up.append(key)
            assert ranges
            assert all(0 <= start < end for start, end in ranges)
            return 0.0 if key in cached else 1.0

        runs = choose_tiles(
            np.arange(frames),
            lambda *_: REGION,
            original,
            table,
            segments,
            DecodeCosts(by_name, remote=RemoteCost(wait=0.1), missing=missing),
            good=of_40_db,
        )
        return [run.segment.id for run in runs]

    looked_up: list[str] = []
    assert used() == [1]
    assert sorted(looked_up) == sorted([own, "1"])  # once for each source
    assert used(own) == []
    assert used("1") == used("1", own) == [1]
    assert used(frames=20) == [1, 2]
    assert used(own, frames=20) == []
    assert used("1", "2", frames=20) == [1, 2]
    # One round trip brings both.
    assert used("1", frames=20) == [1, 2]


def test_each_frame_is_in_one_run(
    known: tuple[PhysicalVideo, FrameTable],
) -> None:
    original, table = known
    rng = np.random.default_rng(1)
    for _ in range(100):
        segments = some_segments(rng, len(table), 12)
        wanted = some_frames(rng, len(table))
        runs = choose_tiles(
            np.array(wanted),
            in_full_size(original.media, REGION),
            original,
            table,
            segments,
            some_costs(rng),
            good=lambda *_: True,
        )
        frames = [frame for run in runs for frame in run.frames]
        assert len(frames) == len(set(frames))
        assert set(frames) <= set(wanted)
        for run in runs:
            assert set(run.frames) <= set(run.segment.frames)
            assert run.segment.holds(run.tiles)
            assert list(run.tiles) == run.segment.layout.covering(REGION)
