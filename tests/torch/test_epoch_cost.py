"""Predicted costs of epochs, and renditions for the clips of a sampler.  No PyTorch is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sample_videos import FOLDER
from tests.support.stores import new_store
from vfsd import Store
from vfsd.errors import UsageError
from vfsd.torch import ClipDataset, GopSampler
from vfsd.torch.clip_renditions import ClipRenditions
from vfsd.torch.epoch_cost import BudgetedMaker


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Store]:
    with new_store(tmp_path / "s") as made:
        made.ingest(FOLDER / "traffic.mp4", "a.mp4")
        made.ingest(FOLDER / "portrait.mp4", "b.mp4")
        yield made


def rendition_bytes(store: Store) -> int:
    return sum(
        segment.size for video in store.values() for segment in store.catalog.renditions(video.info)
    )


def test_the_sampler_decodes_less_than_random_order(filled: Store) -> None:
    clips = ClipDataset(filled, frames=8, size=64, per_video=16)
    found = clips.explain(sampler=GopSampler(clips, 8))
    assert found.random.clips == found.sampled.clips == 32
    assert found.sampled.decoded < 0.7 * found.random.decoded
    assert found.sampled.gops < 0.7 * found.random.gops
    assert found.sampled.seconds < 0.8 * found.random.seconds
    assert found.prepared.seconds < found.sampled.seconds
    assert found.prepare_bytes == 0  # nothing pays within one epoch
    ten = clips.explain(10, sampler=GopSampler(clips, 8))
    assert ten.random.decoded == 10 * found.random.decoded
    assert "10 epochs of 32 clips" in str(ten)


def test_predicted_pictures_are_those_of_the_plan(filled: Store) -> None:
    clips = ClipDataset(filled, "a.mp4", frames=4, per_video=6, starts="uniform")
    wanted = [clips.requests([clip])[0].frames for clip in range(6)]
    keys = filled["a.mp4"].keyframes
    least = sum(int(one[-1] - keys[np.searchsorted(keys, one[0], "right") - 1]) for one in wanted)
    found = clips.explain().random
    assert found.gops >= 6
    assert least < found.decoded <= least + 6 * 8  # frames in another order of decoding


def test_prepare_makes_what_the_clips_read(filled: Store) -> None:
    clips = ClipDataset(filled, frames=8, size=120, crop=64, per_video=8)
    sampler = GopSampler(clips, 4)
    report = clips.prepare("20M", epochs=1000, sampler=sampler)
    assert report.bytes == rendition_bytes(filled) > 0
    assert report.after.seconds < report.before.seconds
    (rendition, *_) = filled.catalog.renditions(filled["a.mp4"].info)
    assert rendition.picture == clips.read_size(0) == (160, 120)
    options = {"frames": clips.requests([0])[0].frames, "size": (160, 120)}
    plan = filled["a.mp4"].explain(**{**options, "frames": range(0, 8)})  # type: ignore[arg-type]
    assert plan.time_gain > 1
    original = filled["a.mp4"].read(**options, psnr=np.inf).data.astype(float)  # type: ignore[arg-type]
    prepared = filled["a.mp4"].read(**options)  # type: ignore[arg-type]
    error = np.square(original - prepared.data).mean((1, 2)).max()  # of a frame and channel
    assert 25 < prepared.psnr <= 10 * np.log10(255**2 / error)
    again = clips.prepare("20M", epochs=1000, sampler=sampler)
    assert (again.bytes, [one.reason for one in again.videos]) == (0, ["", ""])


def test_prepare_stays_within_the_budget(filled: Store) -> None:
    clips = ClipDataset(filled, frames=8, size=120, per_video=8)
    everything = clips.explain(1000).prepare_bytes
    budget = everything // 3
    report = clips.prepare(budget, epochs=1000)
    assert rendition_bytes(filled) == report.bytes <= budget
    assert any("the budget has no room" in one.reason for one in report.videos)
    assert "the budget has no room" in str(report)


def test_budget_is_shared_for_the_largest_gain(filled: Store) -> None:
    clips = ClipDataset(filled, frames=8, size=120, per_video=8)
    renditions = ClipRenditions(clips, 1000, 0)
    for clip in range(len(clips)):
        for read in clips.plan(clips.requests([clip])):
            renditions.of(read.video).note(clips, read)
    every = renditions.known()
    least = sum(one.options[0].bytes for one in every)
    most = sum(one.options[-1].bytes for one in every)
    gains = []
    for budget in range(least, most, (most - least) // 20):
        chosen = BudgetedMaker(budget, 1000, None).chosen(every)
        assert sum(option.bytes for _, option in chosen) <= budget
        gains.append(sum(one.net(option, 1000) for one, option in chosen))
    assert gains == sorted(gains)
    assert 0 < gains[0] < gains[-1]


def test_prepare_makes_nothing_that_does_not_pay(filled: Store) -> None:
    report = ClipDataset(filled, frames=2, size=120).prepare("20M", epochs=1)
    assert report.bytes == 0
    assert all("would not pay" in one.reason for one in report.videos)


def test_only_the_seconds_that_clips_show_are_made(filled: Store) -> None:
    clips = ClipDataset(filled, "a.mp4", frames=8, size=120, starts="uniform")  # frames 56 to 63
    report = clips.prepare("20M", epochs=100_000)
    frames = [one.frames for one in filled.catalog.renditions(filled["a.mp4"].info)]
    assert report.videos[0].segments == len(frames) == 2
    assert sorted((one.start, one.stop) for one in frames) == [(30, 60), (60, 90)]


def test_clips_without_a_size_are_refused(filled: Store) -> None:
    with pytest.raises(UsageError, match="the clips are not scaled"):
        ClipDataset(filled, frames=2).prepare(1000)
    with pytest.raises(UsageError, match="budget must be a number of bytes, got 'much'"):
        ClipDataset(filled, frames=2, size=64).prepare("much")
