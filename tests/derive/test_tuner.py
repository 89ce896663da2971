"""Applying proposals: budgets, decisions, undo, and concurrent changes."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.remembered_reads import region_read, remember
from tests.support.replaceable_clips import rich_clip
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.derive import derived_data
from vfsd.derive.tile_encoder import PlannedSegment
from vfsd.derive.tuner import TuningBudget
from vfsd.errors import ExistsError, NotFoundError, OutdatedError, ReadOnlyError
from vfsd.maintenance import fsck
from vfsd.storage.context import StoreContext
from vfsd.tiling import Rect, TileLayout
from vfsd.views import Views

KILLS = 4
ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = range(0, 30), range(30, 60)
CORNER, OTHER = Rect(0, 0, 64, 64), Rect(800, 400, 864, 464)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "store") as opened:
        yield opened
        adds_up(opened)


@pytest.fixture
def video(store: Store, wide_clip: Path) -> Video:
    """A video with frequent reads of its corner, most in the first second."""
    video = store.ingest(wide_clip)
    remember(store, video, region_read(video, range(60), CORNER), times=10)
    remember(store, video, region_read(video, FIRST, CORNER), times=5)
    return video


def adds_up(store: Store) -> None:
    """Check that nothing is left over or missing, and that decisions match segments."""
    assert fsck.run(store.parts) == []
    with store.catalog.reading() as seen:
        segments = {segment.id: segment for segment in seen.segments.all()}
    for one in store.catalog.decisions():
        if one.segment_id is not None:
            mine = segments[one.segment_id]
            assert (mine.frames, mine.layout, mine.size) == (one.frames, one.layout, one.bytes)
            assert mine.tiles == PlannedSegment(one.frames, one.layout, one.tiles).stored
            assert one.in_use == (mine.retired_ns is None)


def is_tiled(video: Video, frames: range, region: Rect = CORNER) -> bool:
    return all(
        one.segment is not None for one in video.explain(frames=frames, region=region).sources
    )


def test_decisions_are_logged(store: Store, video: Video) -> None:
    proposals = store.proposals()
    made = store.tune()
    assert [one.frames for one in made] == [FIRST, SECOND]  # the best value first
    assert store.catalog.decisions() == made[::-1] == store.catalog.decisions(video.info)
    for proposal, one in zip(proposals, made, strict=True):
        assert (one.reasons, one.reads) == (proposal.reasons, proposal.reads)
        assert (one.predicted_seconds, one.predicted_saved, one.predicted_bytes) == (
            proposal.seconds,
            proposal.saved,
            proposal.bytes,
        )
        assert 0 < one.seconds < 60
        assert (one.maker, one.state, one.undone_ns) == ("tune", "in use", None)
    assert is_tiled(video, range(60))
    assert store.tune() == []


def test_apply_one_proposal_at_a_time(store: Store, video: Video) -> None:
    calls = []
    tuner = store.tuner([video.name], maker="background", between=lambda: calls.append(1))
    proposal = tuner.next()
    assert proposal is not None
    assert tuner.make(proposal).maker == "background"
    assert len(calls) >= len(proposal.plan.frames)
    later = tuner.next()
    assert later is not None
    assert later.plan.frames == SECOND
    tuner.make(later)
    assert tuner.next() is None


def test_video_is_verified_once_for_all_proposals(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not video.original.verified
    assert len(store.proposals()) > 1
    examine = StoreContext.examine
    full: list[bool] = []

    def counted(context: StoreContext, *args: Any, **options: Any) -> Any:
        full.append(options.get("full", False))
        return examine(context, *args, **options)

    monkeypatch.setattr(StoreContext, "examine", counted)
    assert len(store.tune()) > 1
    assert full.count(True) == 1


@pytest.mark.parametrize(
    ("budget", "made"),
    [
        (TuningBudget(seconds=0.0), []),
        (TuningBudget(bytes=0), []),
        (TuningBudget(seconds=1e9, bytes=1 << 40), [FIRST, SECOND]),
    ],
)
def test_tuning_stays_within_the_budget(
    store: Store, video: Video, budget: TuningBudget, made: list[range]
) -> None:
    assert [one.frames for one in store.tune(budget=budget)] == made


def test_proposals_that_fit_the_budget_are_applied(store: Store, video: Video) -> None:
    first, second = store.proposals()
    assert store.tuner().next(TuningBudget(bytes=first.bytes)) == first
    (made,) = store.tune(budget=TuningBudget(bytes=max(first.bytes, second.bytes)))
    assert made.frames == FIRST
    # Only the actual size is spent.
    left = max(first.bytes, second.bytes) - made.bytes
    assert left < second.bytes


def test_progress_is_reported_and_may_cancel(store: Store, video: Video) -> None:
    told: list[tuple[int, int]] = []
    store.tune(on_progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (60, 60)
    assert len(told) > 30
    store.undo()
    remember(store, video, region_read(video, SECOND, CORNER), times=10)

    def stop(done: int, total: int) -> None:
        if done > 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.tune(on_progress=stop)
    assert [one.state for one in store.catalog.decisions()] == ["undone", "in use"]


def test_time_between_frames_is_not_counted(
    store: Store, video: Video, monkeypatch: pytest.MonkeyPatch
) -> None:
    perf_counter = time.perf_counter
    waits = itertools.count(1)
    waited = [0]

    def wait() -> None:
        waited[0] = 1000 * next(waits)

    monkeypatch.setattr(time, "perf_counter", lambda: perf_counter() + waited[0])
    tuner = store.tuner(between=wait)
    proposal = tuner.next()
    assert proposal is not None
    before = waited[0]
    made = tuner.make(proposal)
    assert waited[0] > before
    assert made.seconds < 500


def test_read_only_store_is_not_tuned(store: Store, video: Video) -> None:
    with Store.open(store.path, read_only=True) as other:
        assert len(other.proposals()) == 2
        with pytest.raises(ReadOnlyError):
            other.tune()
        with pytest.raises(ReadOnlyError):
            other.undo()


# --------------------------------------------------------------------------------- taking back


def test_undo_without_earlier_tiles_reads_the_original(store: Store, video: Video) -> None:
    store.tune()
    one = store.undo()
    assert (one.frames, one.state) == (SECOND, "undone")
    assert is_tiled(video, FIRST)
    assert not is_tiled(video, SECOND)
    with pytest.raises(ExistsError):
        store.undo(one.id)
    assert store.undo().frames == FIRST
    with pytest.raises(NotFoundError):
        store.undo()
    with pytest.raises(NotFoundError):
        store.undo(17)


def test_undo_restores_earlier_tiles(store: Store, video: Video) -> None:
    first, _ = store.tune()
    for _ in range(2):
        remember(store, video, region_read(video, FIRST, OTHER), times=200)
    (later,) = store.tune()
    assert is_tiled(video, FIRST, OTHER)
    states = {one.id: one.state for one in store.catalog.decisions()}
    assert states[first.id] == "replaced"
    with pytest.raises(OutdatedError) as raised:
        store.undo(first.id)
    assert raised.value.hint == f"undo decision {later.id} first"
    store.undo(later.id)
    assert is_tiled(video, FIRST, CORNER)
    assert not is_tiled(video, FIRST, OTHER)
    assert store.undo(first.id).state == "undone"
    assert not is_tiled(video, FIRST, CORNER)


def test_longer_tiles_return_when_one_of_two_decisions_is_undone(
    store: Store, video: Video
) -> None:
    """They are used where no later tiles are, whichever decision is undone."""
    video.tiles.retile([PlannedSegment(range(60), TileLayout.parse("480+480x540"))])
    remember(store, video, region_read(video, range(60), CORNER), times=50)
    first, second = store.tune()
    (whole,) = [
        one for one in derived_data.layout_history(store.parts, video.info) if len(one.frames) == 60
    ]
    assert whole.retired_ns is not None
    store.undo(first.id)
    active = {one.frames for one in store.catalog.segments(video.info)}
    assert active == {range(60), second.frames}
    store.undo(second.id)
    assert {one.frames for one in store.catalog.segments(video.info)} == {range(60)}


def test_rollback_undoes_the_decision(store: Store, video: Video) -> None:
    store.tune()
    derived_data.rollback_layouts(store.parts, video.info, FIRST)
    assert [one.state for one in store.catalog.decisions()] == ["in use", "undone"]
    assert store.proposals() == []
    derived_data.rollback_layouts(store.parts, video.info, FIRST)
    assert [one.state for one in store.catalog.decisions()] == ["in use", "in use"]
    derived_data.drop_tiles(store.parts, video.info, FIRST)
    assert [(one.state, one.segment_id is None) for one in store.catalog.decisions()] == [
        ("in use", False),
        ("undone", True),
    ]
    assert store.proposals() == []


def test_new_bytes_have_no_decisions(store: Store, video: Video) -> None:
    store.tune()
    store.ingest(FOLDER / "traffic.mp4", video.name, replace=True)
    assert store.catalog.decisions() == []


# ------------------------------------------------------------------------------------- others


def test_outdated_proposals_are_not_applied(store: Store, video: Video) -> None:
    tuner = store.tuner()
    first, second = tuner.proposals()
    video.tiles.retile("480+480x540", span=(0, 1))
    with pytest.raises(OutdatedError):
        tuner.make(first)
    assert store.catalog.decisions() == []
    done = False

    def meanwhile() -> None:
        nonlocal done
        if not done:
            done = True
            with Store.open(store.path) as other:
                other[video.name].tiles.retile("480+480x540", span=(1, 2))

    # Seen only when it is about to be published.
    late = store.tuner(between=meanwhile)
    with pytest.raises(OutdatedError):
        late.make(second)
    assert done
    assert store.catalog.decisions() == []
    assert {one.frames for one in store.catalog.segments(video.info)} == {FIRST, SECOND}
    assert {one.layout.columns for one in store.catalog.segments(video.info)} == {2}
    # A continued run plans again; existing tiles must be beaten by a margin.
    remember(store, video, region_read(video, range(60), CORNER), times=60)
    assert [one.frames for one in store.tune()] == [FIRST, SECOND]


def replace(store: Store, name: str) -> None:
    """Replace the video like another process."""
    with Store.open(store.path) as other:
        other[name].policy.set("original=replaceable,psnr=36")
        other[name].policy.replace_original(codec="h264")


def test_proposals_are_renewed_for_replaced_bytes(store: Store, tmp_path: Path) -> None:
    """The video is replaced before its first use, or when everything is ready; it is not
    damaged."""
    video = store.ingest(rich_clip(tmp_path / "a.mp4"))
    video.verify()
    remember(store, video, region_read(video, range(50), CORNER), times=300)
    waiting = [video.name]

    def meanwhile() -> None:
        if waiting:
            replace(store, waiting.pop())

    failed: list[str] = []
    tuner = store.tuner(between=meanwhile)
    old = tuner.next()
    assert old is not None
    tuner.tune(on_failed=lambda _video, error: failed.append(str(error)))
    assert not waiting
    assert not failed
    # Its first bytes are deleted by now.
    with pytest.raises(OutdatedError, match="was replaced"):
        store.tuner().make(old)
    store.remove(video.name)
    with pytest.raises(NotFoundError):
        store.tuner().make(old)


def test_retile_of_a_replaced_video_is_reported(store: Store, tmp_path: Path) -> None:
    video = store.ingest(rich_clip(tmp_path / "a.mp4"))
    video.verify()
    halves = video.tiles.sequences(None, 1.0)
    replace(store, video.name)
    with pytest.raises(OutdatedError, match="was replaced"):
        video.tiles.retile(
            [PlannedSegment(frames, TileLayout.untiled(160, 128)) for frames in halves]
        )
    assert store.catalog.segments(store[video.name].info) == []


def busy_store(place: Path, clip: Path, copies: int) -> int:
    """A store with videos whose corner is read often; returns the number of segments to be made."""
    with new_store(place) as store:
        for number in range(copies):
            video = store.ingest(clip, f"{number}.mp4")
            remember(store, video, region_read(video, range(60), CORNER), times=10)
        return len(store.proposals())


def tuning(place: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.tuning", place], stdout=subprocess.PIPE, cwd=ROOT
    )


@pytest.mark.thorough
def test_two_tuning_processes_make_every_segment_once(tmp_path: Path, wide_clip: Path) -> None:
    place = tmp_path / "store"
    segments = busy_store(place, wide_clip, 3)
    processes = [tuning(place) for _ in range(2)]
    said = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    numbers = [word for words in said for word in words if word.isdigit()]
    assert len(numbers) == segments == 6
    with Store.open(place) as store:
        adds_up(store)
        assert {one.state for one in store.catalog.decisions()} == {"in use"}
        assert len(store.catalog.decisions()) == segments
        assert store.proposals() == []


@pytest.mark.slow
def test_kill_leaves_decision_and_segment_or_neither(tmp_path: Path, wide_clip: Path) -> None:
    """A decision exists exactly if its segment does."""
    place = tmp_path / "store"
    segments = busy_store(place, wide_clip, 3)
    rng = np.random.default_rng(1)
    kills = made = 0
    while made < segments:
        with tuning(place) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"tuning\n"
            if kills < KILLS:
                for _ in range(int(rng.integers(2))):
                    process.stdout.readline()
                time.sleep(float(rng.uniform(0, 0.25)))
                process.kill()
                kills += 1
        with Store.open(place) as store:
            left = fsck.run(store.parts, repair=True)
            assert {finding.check for finding in left} <= {"garbage"}, left
            adds_up(store)
            decisions = store.catalog.decisions()
            with store.catalog.reading() as seen:
                stored = {segment.id for segment in seen.segments.all()}
            assert {one.segment_id for one in decisions} == stored
            made = len(decisions)
    assert kills > 1  # an idle machine finishes before all kills


def test_readers_see_equal_frames_during_tuning(store: Store, video: Video) -> None:
    exact = video.read(region=CORNER, psnr=float("inf")).data.astype(int)
    views = Views(store.parts, store.tools)
    handle = views.open(video.info.ino, "roi=64x64+0+0.rgb")
    half = handle.size // 2
    before, after = bytearray(half), bytearray(handle.size - half)
    handle.readinto(memoryview(before), 0)

    stop, worst, wrong = threading.Event(), [0.0], list[BaseException]()

    def read() -> None:
        try:
            while not stop.wait(0.01):
                data = video.read(region=CORNER).data.astype(int)
                worst[0] = max(worst[0], float(((data - exact) ** 2).mean()))
        except BaseException as error:
            wrong.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(2):
            made = store.tune()
            assert len(made) == 2
            handle.readinto(memoryview(after), half)
            for one in made:
                store.undo(one.id)
            remember(store, video, region_read(video, range(60), CORNER), times=10)
    finally:
        stop.set()
        reader.join()
    assert wrong == []
    assert worst[0] < 255**2 / 10**3.5  # 35 dB in RGB
    # A file that was opened before keeps its bytes.
    assert bytes(before + after) == exact.astype(np.uint8).tobytes()
    handle.close()
    views.close()
