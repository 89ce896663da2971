"""Derived data stays within its budget, whichever operation or process adds to it."""

from __future__ import annotations

import math
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.composed_tiles import take_tiles
from tests.support.selection import one_in
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.core.budgets import DEFAULT_VIDEO_LIMIT, MAX_BYTES_TEXT, Limit, Pin
from vfsd.core.model import Role, Segment
from vfsd.derive.deferred_compression import recompress_segment
from vfsd.derive.derived_data import (
    drop_renditions,
    drop_retired_tiles,
    drop_tiles,
    rollback_layouts,
)
from vfsd.derive.tile_encoder import SegmentMaker, TileSettings
from vfsd.errors import NotFoundError, OverBudgetError, ReadOnlyError, UsageError
from vfsd.maintenance import fsck

ROOT = FOLDER.parent
NAME = "traffic.mp4"


@pytest.fixture
def video(store: Store) -> Video:
    return store.ingest(FOLDER / NAME)  # 320x240, 120 frames, 4 segments


def everything(store: Store, video: Video) -> list[Segment]:
    with store.catalog.reading() as seen:
        return seen.segments.of_original(video.original.id)


def charged(store: Store, video: Video, pins: list[Pin]) -> int:
    """The charged bytes, counted by a simple reference."""
    total = 0
    for segment in everything(store, video):
        is_tiled = segment.picture == (video.width, video.height)
        role = Role.TILED if is_tiled else Role.RENDITION
        pinned = segment.retired_ns is None and any(
            pin.role in (None, role)
            and pin.size in (None, segment.picture)
            and set(pin.frames) & set(segment.frames)
            for pin in pins
        )
        total += 0 if pinned else segment.size
    return total


def require_sound(store: Store) -> None:
    """Check that fsck finds nothing and that there are no unreferenced bytes."""
    assert fsck.run(store.parts, deep=True) == []
    assert fsck.collect(store.parts, dry_run=True).objects == []


# -- limits


def test_default_limit_of_a_video(store: Store, video: Video) -> None:
    usage = video.budget.usage()
    assert (usage.limit, usage.allowed) == (DEFAULT_VIDEO_LIMIT, 10 * video.original.size)
    assert store.budget.usage().allowed is None
    tiles = video.tiles.retile("uniform:2x2")
    renditions = video.renditions.make((160, 120))
    usage = video.budget.usage()
    assert usage.tiles == sum(one.size for one in tiles)
    assert usage.renditions == sum(one.size for one in renditions)
    assert (usage.retired, usage.pinned) == (0, 0)
    assert store.budget.usage().used == usage.used == usage.tiles + usage.renditions
    video.tiles.retile("uniform:3x3")
    assert video.budget.usage().retired == usage.tiles


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("500", Limit(bytes=500)),
        ("2.5kB", Limit(bytes=2560)),
        ("20MiB", Limit(bytes=20 << 20)),
        ("1G", Limit(bytes=1 << 30)),
        ("10x", Limit(times=10.0)),
        ("0.5X", Limit(times=0.5)),
        ("none", Limit()),
    ],
)
def test_human_readable_budgets(text: str, limit: Limit) -> None:
    assert Limit.parse(text) == limit
    assert Limit.parse(str(limit)) == limit


def test_invalid_budgets_are_refused(video: Video) -> None:
    for text in ("", "ten", "-5", "5y", "x", "1e9"):
        with pytest.raises(UsageError):
            video.budget.set(text)
    nonsense: list[Any] = [-1, math.nan, 1e9, 2**70, "9" * 400 + "T", "9" * 400 + "x", [1]]
    for given in nonsense:
        with pytest.raises(UsageError):
            video.budget.set(given)
    assert video.budget.limit == Limit(times=10.0)
    for wrong, told in ((-1, "got -1 bytes"), (2**70, f"got {2**70} bytes"), ("9" * 40 + "x", "x")):
        with pytest.raises(UsageError, match=f"budget must be .*{told}") as refused:
            video.budget.set(wrong)
        assert MAX_BYTES_TEXT in str(refused.value)
    assert Limit.parse(MAX_BYTES_TEXT).bytes == 2**63 - 2**40
    with pytest.raises(UsageError, match="not both"):
        Limit(bytes=1, times=1.0)
    video.budget.set(np.int64(5))  # type: ignore[arg-type]
    assert video.budget.limit == Limit(bytes=5)


# -- making space


def test_smaller_budget_takes_effect_at_once(store: Store, video: Video) -> None:
    tiles = video.tiles.retile("uniform:2x2")
    foretold = video.budget.what_if(tiles[0].size + tiles[1].size)
    assert video.budget.usage().used == sum(one.size for one in tiles), "nothing has gone yet"
    gone = video.budget.set(tiles[0].size + tiles[1].size)
    assert [one.id for one in gone] == [one.id for one in foretold.gone]
    left = store.catalog.segments(video.info)
    assert {one.id for one in left} == {one.id for one in tiles} - {one.id for one in gone}
    assert video.budget.usage().used == foretold.usage.used == sum(one.size for one in left)
    logged = video.budget.evictions()
    assert {(one.frames, one.bytes, one.why) for one in logged} == {
        (one.frames, one.bytes, "video") for one in gone
    }
    assert not any(store.parts.objects.path(one.object_key).exists() for one in gone)
    require_sound(store)


def test_lowest_savings_per_byte_are_evicted_first(store: Store, video: Video) -> None:
    take_tiles(store)
    tiles = video.tiles.retile("uniform:2x2")
    for _ in range(3):
        video.read(frames=range(35, 55), region=(0, 0, 100, 100))
    gone = video.budget.set(sum(one.size for one in tiles) - 1)
    assert [one.frames for one in gone] != [range(30, 60)]
    video.budget.set(max(one.size for one in tiles))
    (left,) = store.catalog.segments(video.info)
    assert left.frames == range(30, 60)


def test_retired_tiles_are_evicted_first(store: Store, video: Video) -> None:
    old = video.tiles.retile("uniform:2x2")
    new = video.tiles.retile("uniform:3x3")
    gone = video.budget.set(sum(one.size for one in new))
    assert {one.id for one in gone} == {one.id for one in old}
    assert store.catalog.segments(video.info) == new


def test_publication_evicts_before_exceeding_the_budget(store: Store, video: Video) -> None:
    tiles = video.tiles.retile("uniform:2x2")
    video.budget.set(sum(one.size for one in tiles))
    renditions = video.renditions.make((160, 120))
    assert len(store.catalog.renditions(video.info)) == len(renditions) == 4
    assert len(store.catalog.segments(video.info)) < 4
    usage = video.budget.usage()
    assert usage.allowed is not None
    assert usage.used <= usage.allowed
    require_sound(store)


def test_command_does_not_evict_its_own_results(store: Store, video: Video) -> None:
    tiles = video.tiles.retile("uniform:2x2")
    video.budget.set(tiles[0].size + tiles[1].size + 100)
    assert len(everything(store, video)) == 2
    with pytest.raises(OverBudgetError, match="no other data is worth less"):
        video.tiles.retile("uniform:2x3", jobs=1)
    left = store.catalog.segments(video.info)
    assert {str(one.layout) for one in left} == {str(left[0].layout)} != {str(tiles[0].layout)}
    with pytest.raises(OverBudgetError, match="no other data is worth less"):
        video.tiles.retile("uniform:2x3", jobs=1)
    assert store.catalog.segments(video.info) == left, "nor when it is said again"
    require_sound(store)


def test_request_over_budget_is_refused_and_leaves_nothing(store: Store, video: Video) -> None:
    (first, *_) = video.renditions.make((80, 60), span=(0, 1))
    video.budget.set(first.size)
    before = everything(store, video), video.budget.evictions()
    with pytest.raises(OverBudgetError, match=r"traffic\.mp4, frames .* cannot be stored") as told:
        video.tiles.retile("uniform:2x2", jobs=1)
    assert "vfsd budget set traffic.mp4" in (told.value.hint or "")
    assert (everything(store, video), video.budget.evictions()) == before
    require_sound(store)


@pytest.mark.parametrize("scope", ["video", "store"])
def test_oversized_lossless_request_is_refused_before_encoding(
    store: Store, video: Video, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise eviction would have removed other data in vain."""
    lossless = TileSettings("lossless")
    (first, *rest) = video.renditions.make((80, 60), settings=lossless)
    size = sum(segment.size for segment in (first, *rest))
    before = everything(store, video), video.budget.evictions()
    (video if scope == "video" else store).budget.set(2 * size)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentMaker, "encode_chunk", None)
        with pytest.raises(OverBudgetError, match=r"of traffic\.mp4 would take about") as told:
            video.renditions.make((160, 120), settings=lossless)
    assert "vfsd budget set" in (told.value.hint or "")
    assert (everything(store, video), video.budget.evictions()) == before
    # Half of it fits after evictions; pinned data is not charged.
    assert len(video.renditions.make((160, 120), span=(0, 1.5), settings=lossless)) == 2
    video.budget.pin()
    assert len(video.renditions.make((160, 120), settings=lossless)) == 2
    require_sound(store)


def test_store_budget_covers_all_videos(store: Store, video: Video) -> None:
    other = store.ingest(FOLDER / "variable-rate.mp4")
    video.tiles.retile("uniform:2x2")
    other.renditions.make((160, 120))
    used = store.budget.usage().used
    gone = store.budget.set(used // 2)
    assert gone
    assert store.budget.usage().used <= used // 2
    assert {one.why for one in store.budget.evictions()} == {"store"}
    video.renditions.make((160, 120))
    assert store.budget.usage().used <= used // 2
    require_sound(store)


def test_relative_budget_shrinks_with_the_originals(store: Store, video: Video) -> None:
    other = store.ingest(FOLDER / "variable-rate.mp4")
    store.budget.set(Limit(times=1.0))
    video.budget.set("none")
    for size in ((160, 120), (240, 180), (80, 60)):
        video.renditions.make(size)
    allowed = store.budget.usage().allowed
    video.tiles.retile("uniform:2x2")
    store.remove(other.name)
    usage = store.budget.usage()
    assert usage.allowed is not None
    assert allowed is not None
    assert usage.used <= usage.allowed < allowed
    require_sound(store)


def test_growing_packs_stay_within_the_budget(store: Store, video: Video) -> None:
    video.budget.set("none")
    (first, second) = video.tiles.retile(
        "uniform:1x1", span=(0, 2), settings=TileSettings("lossless", quality=9)
    )
    video.budget.set(video.budget.usage().used)
    larger = recompress_segment(store.parts, second, 1)
    assert larger.size > second.size
    assert [one.id for one in store.catalog.segments(video.info)] == [second.id]
    assert [one.frames for one in video.budget.evictions()] == [first.frames]
    video.budget.set(larger.size)
    smaller = recompress_segment(store.parts, larger, 9)
    video.budget.set(smaller.size)
    with pytest.raises(OverBudgetError):
        recompress_segment(store.parts, smaller, 1)
    assert store.catalog.segments(video.info) == [smaller]
    require_sound(store)


# -- pins


def test_pinned_data_is_neither_charged_nor_evicted(store: Store, video: Video) -> None:
    tiles = video.tiles.retile("uniform:2x2")
    small = video.renditions.make((160, 120))
    video.budget.pin(size=(160, 120))
    usage = video.budget.usage()
    assert usage.pinned == sum(one.size for one in small)
    assert usage.used == sum(one.size for one in tiles)
    video.budget.set(0)
    assert store.catalog.segments(video.info) == []
    assert store.catalog.renditions(video.info) == small
    gone = video.budget.unpin()
    assert {one.id for one in gone} == {one.id for one in small}
    assert everything(store, video) == []
    with pytest.raises(NotFoundError):
        video.budget.unpin()
    require_sound(store)


def test_pin_of_future_data(store: Store, video: Video) -> None:
    video.budget.set(0)
    video.budget.pin(tiles=True, span=(1, 2))
    with pytest.raises(OverBudgetError):
        video.tiles.retile("uniform:2x2", jobs=1)
    assert len(video.tiles.retile("uniform:2x2", span=(1, 2))) == 1
    assert video.budget.pin(tiles=True, span=(1, 2)) == video.budget.pins()[0], "not pinned twice"


def test_pin_size_is_a_pair_or_the_short_side(video: Video) -> None:
    sizes: list[Any] = [(5,), 5.5, (160.0, 120)]
    for size in sizes:
        for way in (video.budget.pin, video.budget.unpin):
            with pytest.raises(UsageError, match="size"):
                way(size=size)
    assert video.budget.pins() == []
    small: Any = np.array([160, 120], np.uint8)
    assert video.budget.pin(size=small).size == (160, 120)
    assert video.budget.pin(size=120).size == (160, 120)


def test_unpin_a_part(video: Video) -> None:
    video.budget.pin()
    video.budget.unpin(span=(1, 2))
    assert [pin.frames for pin in video.budget.pins()] == [range(30), range(60, 120)]
    with pytest.raises(NotFoundError):
        video.budget.unpin(tiles=True)
    with pytest.raises(UsageError):
        video.budget.pin(tiles=True, size=(160, 120))


def test_pins_and_evictions_are_removed_with_their_bytes(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:2x2")
    video.budget.pin(span=(0, 1))
    video.budget.set("0.001x")
    assert len(video.budget.evictions()) == 3
    other = store.ingest(FOLDER / "variable-rate.mp4")
    with store.catalog.writing() as change:  # like a mount when a file is overwritten
        again = change.videos.put(
            video.info.ino, other.original, [], digest=other.info.digest, now_ns=1
        )
    assert again.id == video.info.id
    assert (video.budget.pins(), video.budget.evictions()) == ([], [])
    assert video.budget.limit == Limit(times=0.001), "that was said of the file"


# -- random operations


DOINGS = (
    *("render", "render", "retile", "retile", "pin", "unpin"),
    *("set", "set", "drop", "rollback", "tune", "read"),
)


@pytest.mark.parametrize("seed", one_in(4, range(4)))
def test_no_sequence_of_operations_exceeds_the_budget(
    store: Store, video: Video, seed: int
) -> None:
    """Compared with a model that sums the sizes of existing data and tracks pins and limits."""
    chance = random.Random(seed)
    take_tiles(store)
    original = video.original.size
    pins: list[Pin] = []
    limit = 10 * original
    refused = 0

    def span() -> tuple[int, int]:
        start = chance.randrange(4)
        return start, chance.randrange(start, 4) + 1

    for _ in range(14):
        kept = [
            segment
            for segment in everything(store, video)
            if segment.retired_ns is None
            and any(set(pin.frames) & set(segment.frames) for pin in pins if pin.role is None)
        ]
        what = chance.choice(DOINGS)
        explicit = False
        try:
            if what == "render":
                size = chance.choice(((160, 120), (80, 60), (240, 180)))
                settings = TileSettings(quality=chance.randrange(20, 40))
                explicit = True
                video.renditions.make(size, span=span(), settings=settings)
            elif what == "retile":
                explicit = True
                video.tiles.retile(chance.choice(("uniform:2x2", "uniform:1x2")), span=span())
            elif what == "pin":
                pins.append(video.budget.pin(span=span(), tiles=chance.random() < 0.3))
                pins = [pin for n, pin in enumerate(pins) if pin not in pins[:n]]
            elif what == "unpin" and pins:
                explicit = True
                video.budget.unpin()
                pins = []
            elif what == "set":
                limit = chance.choice((0, original // 20, original // 5, original, 3 * original))
                video.budget.set(limit)
            elif what == "drop":
                explicit = True
                choice = chance.randrange(3)
                if choice == 0:
                    drop_tiles(store.parts, video.info, range(chance.randrange(100), 120))
                elif choice == 1:
                    drop_retired_tiles(store.parts, video.info)
                else:
                    drop_renditions(store.parts, video.info)
            elif what == "rollback":
                explicit = True
                rollback_layouts(store.parts, video.info, range(chance.randrange(100), 120))
            elif what == "tune":
                explicit = True
                store.tune()
            else:
                for _ in range(5):
                    video.read(region=(0, 0, 60, 60), span=span())
        except (OverBudgetError, NotFoundError) as error:
            refused += isinstance(error, OverBudgetError)
        assert charged(store, video, pins) <= limit, what
        assert video.budget.usage().used == charged(store, video, pins)
        if not explicit:
            there = {segment.id for segment in everything(store, video)}
            assert {segment.id for segment in kept} <= there, what
    require_sound(store)


def test_tuning_skips_proposals_over_budget(store: Store, video: Video) -> None:
    take_tiles(store)
    for _ in range(15):
        video.read(size=(80, 60))
    assert store.proposals()
    video.budget.set(100)
    assert store.proposals() == []
    assert store.tune() == []
    assert everything(store, video) == []
    video.budget.set(None)
    assert len(store.tune()) > 0


def test_underestimated_proposal_is_not_made_repeatedly(store: Store, video: Video) -> None:
    take_tiles(store)
    for _ in range(15):
        video.read(size=(80, 60))
    tuner = store.tuner()
    video.budget.set(min(one.bytes for one in tuner.proposals()) + 1)
    tries = 0
    while (proposal := tuner.next()) is not None and tries < 50:
        tries += 1
        video.budget.set(proposal.bytes)
        with store.catalog.writing() as change:  # frames turn out to be larger
            change.derived_usage.set_limit(video.info.id, Limit(bytes=1))
        with pytest.raises(OverBudgetError):
            tuner.make(proposal)
        video.budget.set(proposal.bytes)
    assert 0 < tries < 9
    assert everything(store, video) == []
    video.budget.set("none")
    assert tuner.next() is not None


def test_tuning_does_not_evict_more_valuable_data(store: Store, video: Video) -> None:
    take_tiles(store)
    tiles = video.tiles.retile("uniform:2x2")
    for _ in range(25):
        video.read(frames=range(0, 110, 10), region=(0, 0, 60, 60))
    for _ in range(15):
        video.read(size=(80, 60))
    small = {one.plan.layout.width for one in store.proposals()}
    assert 80 in small
    video.budget.set(sum(one.size for one in tiles))
    store.tune()
    saved = {one.id: one for one in store.catalog.segments(video.info)}
    assert set(saved) == {one.id for one in tiles}


# -- concurrency and crashes


def test_open_data_survives_eviction(store: Store, video: Video) -> None:
    take_tiles(store)
    video.renditions.make((160, 120), settings=TileSettings(quality=20))
    exact = video.read(size=(160, 120), psnr=math.inf).data
    expected = video.read(size=(160, 120)).data
    assert not np.array_equal(exact, expected)
    frames = video.iterate(size=(160, 120))
    first = next(frames)
    video.budget.set(0)
    assert store.catalog.renditions(video.info) == []
    rest = [first.data, *(frame.data for frame in frames)]
    for number, data in enumerate(rest):
        assert np.array_equal(data, expected[number]) or np.array_equal(data, exact[number])
    assert np.array_equal(video.read(size=(160, 120)).data, exact)


def test_read_during_eviction(store: Store, video: Video) -> None:
    take_tiles(store)
    exact = video.read(size=(160, 120), psnr=math.inf).data.astype(int)
    stop = threading.Event()
    wrong: list[float] = []

    def look() -> None:
        while not stop.is_set():
            found = video.read(size=(160, 120)).data.astype(int)
            wrong.append(float(np.abs(found - exact).mean()))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for quality in (20, 22, 24, 26):
            video.renditions.make((160, 120), settings=TileSettings(quality=quality))
            video.budget.set(0)
            video.budget.set("10x")
    finally:
        stop.set()
        reader.join()
    assert wrong
    assert max(wrong) < 4


@pytest.mark.parametrize("evictions", one_in(2, [1, 6]))
def test_kill_during_eviction_leaves_a_consistent_store(tmp_path: Path, evictions: int) -> None:
    place = tmp_path / "store"
    with new_store(place) as store:
        video = store.ingest(FOLDER / NAME)
        video.renditions.make((160, 120))
        allowed = video.budget.usage().used * 3 // 2
        video.budget.set(allowed)
        with started(place, 0) as process:
            wait_for_evictions(video, evictions)
            process.kill()  # during another eviction, or just after it
    with Store.open(place) as store:
        found = fsck.run(store.parts, repair=True)
        assert {one.check for one in found} <= {"garbage"}, "bytes come before rows"
        fsck.collect(store.parts)
        require_sound(store)
        budget = store[NAME].budget
        assert len(budget.evictions()) >= evictions
        assert 0 < budget.usage().used <= allowed


@pytest.mark.thorough
def test_two_processes_share_the_budget(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with new_store(place) as store:
        video = store.ingest(FOLDER / NAME)
        video.renditions.make((160, 120))
        allowed = video.budget.usage().used * 3 // 2
        video.budget.set(allowed)
        with started(place, 0) as one, started(place, 7) as other:
            wait_for_evictions(video, 12, check=lambda: video.budget.usage().used <= allowed)
            one.kill()
            other.kill()
        assert video.budget.usage().used <= allowed


def wait_for_evictions(video: Video, count: int, check: Callable[[], bool] = lambda: True) -> None:
    """Wait with sleeps: a busy loop would take a core from the evicting process."""
    end = time.monotonic() + 240
    while len(video.budget.evictions()) < count:
        assert check()
        assert time.monotonic() < end, f"{len(video.budget.evictions())} of {count} evictions"
        time.sleep(0.01)


def started(place: Path, first: int) -> subprocess.Popen[bytes]:
    """Start another process that renders and evicts forever."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.evicting", str(place), NAME, str(first)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"busy\n"
    return process


# -- uses


def test_uses_are_counted_per_segment(store: Store, video: Video) -> None:
    take_tiles(store)
    tiles = video.tiles.retile("uniform:2x2")
    video.read(frames=range(40, 50), region=(0, 0, 60, 60))
    video.read(frames=range(20, 50), region=(0, 0, 60, 60))
    list(video.scan(roi=(0, 0, 60, 60), frames=range(40, 50)).areas())
    store.tools.read_log.flush()
    with store.catalog.reading() as seen:
        held = {one.id: one for one in seen.derived_usage.segments(video.info.id)}
        newest = seen.derived_usage.newest_read()
    assert newest == 3
    uses = [held[one.id].uses_at(newest) for one in tiles]
    assert uses == pytest.approx([1, 3, 0, 0], abs=0.05)
    assert held[tiles[1].id].saved > held[tiles[0].id].saved > 0 == held[tiles[2].id].saved
    reads = list(store.catalog.reads())
    total = sum(read.untiled_predicted - read.predicted for read in reads)
    noted = sum(one.saved_at(newest) for one in held.values())
    assert noted == pytest.approx(total, rel=0.05)
    store.catalog.forget_reads()
    with store.catalog.reading() as seen:
        assert seen.derived_usage.newest_read() == newest


def test_fsck_finds_impossible_budget_rows(store: Store, video: Video) -> None:
    video.budget.pin()
    path = store.parts.directory.root / "catalog.sqlite3"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE pins SET first_frame = 1000, end_frame = 1001")
        database.execute("INSERT INTO budgets (bytes) VALUES (5), (6)")
    database.close()
    found = fsck.run(store.parts, repair=True)
    assert [one.check for one in found] == ["budgets", "budgets"]
    assert all(one.repaired for one in found)
    require_sound(store)


def test_fsck_evicts_data_over_budget(store: Store, video: Video) -> None:
    video.tiles.retile("uniform:2x2")
    video.budget.set("none")
    path = store.parts.directory.root / "catalog.sqlite3"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE budgets SET bytes = 5")
    database.close()
    (found,) = fsck.run(store.parts, repair=True)
    assert (found.check, found.repaired) == ("budgets", True)
    assert everything(store, video) == []
    require_sound(store)


def test_read_only_store(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.ingest(FOLDER / NAME).tiles.retile("uniform:2x2")
    with Store.open(tmp_path / "store", read_only=True) as store:
        video = store[NAME]
        assert len(video.budget.what_if("0").gone) == 4
        for change in (lambda: video.budget.set(0), video.budget.pin, video.budget.unpin):
            with pytest.raises(ReadOnlyError):
                change()
