"""The order of clips and the reads of a batch.  Nothing here needs PyTorch or a video."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.torch.clip_reads import (
    ClipRequest,
    ClipStarts,
    DecodeSpans,
    Purpose,
    gop_groups,
    plan_batch,
    random_units,
)
from vfsd.torch.gop_sampler import GopSampler

Ints = npt.NDArray[np.int64]


class Drawn:
    """A data set of random clips of `videos` videos with a key frame every `gop` frames."""

    def __init__(
        self, videos: int, per_video: int, *, gop: int = 30, gops: int = 10, span: int = 16
    ) -> None:
        self._per_video = per_video
        self._gop = gop
        self._span = span
        length = np.full(videos, gops * gop, np.int64)
        self.starts = ClipStarts(length, np.full(videos, span, np.int64), per_video, seed=3)
        self.fingerprint = f"{videos} {per_video} {gop} {span}"

    def __len__(self) -> int:
        return len(self.starts)

    def decode_spans(self, epoch: int) -> DecodeSpans:
        clips = np.arange(len(self), dtype=np.int64)
        first = self.starts.of(epoch, clips)
        last = first + self._span - 1
        return DecodeSpans(clips // self._per_video, first // self._gop * self._gop, first, last)

    def gops(self, epoch: int) -> list[tuple[int, int]]:
        """Video and key frame of each clip."""
        spans = self.decode_spans(epoch)
        return list(zip(spans.video.tolist(), spans.key.tolist(), strict=True))


def order(sampler: GopSampler) -> list[int]:
    return [index.clip for batch in sampler for index in batch]


@settings(max_examples=150, deadline=None)
@given(
    videos=st.integers(0, 9),
    per_video=st.integers(1, 12),
    batch=st.integers(1, 9),
    ranks=st.integers(1, 5),
    locality=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    window=st.sampled_from([1, 3, 64]),
    gop=st.sampled_from([1, 12, 250]),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_every_clip_comes_once(
    videos: int,
    per_video: int,
    batch: int,
    ranks: int,
    locality: float,
    window: int,
    gop: int,
    epoch: int,
    drop_last: bool,
    shuffle: bool,
) -> None:
    clips = Drawn(videos, per_video, gop=gop)
    found = []
    for rank in range(ranks):
        sampler = GopSampler(
            clips,
            batch,
            locality=locality,
            window=window,
            shuffle=shuffle,
            drop_last=drop_last,
            rank=rank,
            world_size=ranks,
        )
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert all(index.epoch == epoch for index in chain(*batches))
        found.append([[index.clip for index in one] for one in batches])
    counts = Counter(chain(*chain(*found)))
    assert set(counts.values()) <= {1}
    if drop_last:
        assert len({len(batches) for batches in found}) == 1
        assert all(len(one) == batch for one in chain(*found))
        assert len(clips) - len(counts) < batch * ranks
        return
    assert sorted(counts) == list(range(len(clips)))
    assert all(0 < len(one) <= batch for one in chain(*found))
    if batch > 1 and len(clips) >= ranks:
        assert len({len(batches) for batches in found}) == 1


@settings(max_examples=60, deadline=None)
@given(done=st.integers(0, 30), batch=st.integers(1, 7), locality=st.sampled_from([0.0, 0.5, 1.0]))
def test_resumes_in_the_middle_of_an_epoch(done: int, batch: int, locality: float) -> None:
    def new() -> GopSampler:
        return GopSampler(Drawn(4, 7), batch, locality=locality)

    whole = new()
    whole.set_epoch(5)
    batches = list(whole)
    done = min(done, len(batches))
    first = new()
    first.set_epoch(5)
    iterator = iter(first)
    for _ in range(done):
        next(iterator)
    state = json.loads(json.dumps(first.state_dict()))
    assert state == whole.state_dict(done)
    later = new()
    later.load_state_dict(state)
    assert later.epoch == 5 + (done == len(batches))
    later.set_epoch(later.epoch)  # as the loop of a training does
    rest = list(later)
    if done < len(batches):
        assert rest == batches[done:]
    following = [index.epoch for one in later for index in one]
    assert set(following) == {6 if done < len(batches) else 7}


def test_state_of_another_order_is_refused() -> None:
    state = GopSampler(Drawn(4, 7), 4).state_dict()
    with pytest.raises(UsageError, match="batch_size of the state must be 5"):
        GopSampler(Drawn(4, 7), 5).load_state_dict(state)
    with pytest.raises(UsageError, match="clips of the state must be '3 7 30 16'"):
        GopSampler(Drawn(3, 7), 4).load_state_dict(state)


def test_epochs_follow_and_repeat() -> None:
    sampler = GopSampler(Drawn(5, 8), 4)
    first, second = order(sampler), order(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert order(sampler) == first
    assert order(GopSampler(Drawn(5, 8), 4, seed=1)) != first


def test_an_abandoned_iteration_is_repeated() -> None:
    sampler = GopSampler(Drawn(5, 8), 4)
    next(iter(sampler))
    assert order(sampler) == order(GopSampler(Drawn(5, 8), 4))


def decodes(clips: Drawn, sampler: GopSampler, epoch: int = 0) -> int:
    """How often a GOP is decoded: once for each batch that starts in it."""
    gops = clips.gops(epoch)
    return sum(
        len({gops[clip] for clip in batch.tolist()})
        for rank in range(sampler.world_size)
        for batch in sampler.batches(epoch, rank)
    )


def test_locality_decodes_each_gop_about_once() -> None:
    clips = Drawn(20, 20, gop=60)
    distinct = len(set(clips.gops(0)))
    found = {
        locality: decodes(clips, GopSampler(clips, 8, locality=locality))
        for locality in (0.0, 0.5, 1.0)
    }
    assert found[0.0] > found[0.5] > found[1.0]
    assert found[0.0] > 0.9 * len(clips)
    assert found[1.0] <= 1.1 * distinct


def test_ranks_decode_different_gops() -> None:
    clips = Drawn(20, 20, gop=60)
    gops = clips.gops(0)
    sampler = GopSampler(clips, 8, rank=0, world_size=4)
    ranks = [
        {gops[clip] for batch in sampler.batches(0, rank) for clip in batch.tolist()}
        for rank in range(4)
    ]
    shared = sum(map(len, ranks)) - len(set().union(*ranks))
    assert shared <= 3  # a group may be divided where a rank is full


def test_no_locality_is_a_random_permutation() -> None:
    """Each clip is at each place about equally often."""
    clips = Drawn(2, 4, gop=250)
    seen = np.zeros((8, 8), np.int64)
    sampler = GopSampler(clips, 2, locality=0.0)
    for epoch in range(800):
        for place, clip in enumerate(chain(*(one.tolist() for one in sampler.batches(epoch)))):
            seen[clip, place] += 1
    # 100 each are expected; 9.4 is the standard deviation.
    assert seen.min() > 60
    assert seen.max() < 145


def test_batches_of_whole_groups_have_several_videos() -> None:
    clips = Drawn(40, 3, gop=250, gops=1)
    batches = GopSampler(clips, 9).batches(0)
    videos = [len(set((batch // 3).tolist())) for batch in batches]
    assert videos[:-1] == [3] * (len(batches) - 1)
    assert [batch.tolist() for batch in batches] != sorted(batch.tolist() for batch in batches)


def test_groups_end_where_gops_do() -> None:
    spans = DecodeSpans(
        np.array([0, 0, 0, 0, 1]),
        np.array([0, 0, 30, 90, 0]),
        np.array([5, 20, 35, 95, 0]),
        np.array([20, 35, 50, 110, 15]),
    )
    assert [group.tolist() for group in gop_groups(spans, 8)] == [[0, 1, 2], [3], [4]]
    # A full group takes no clip of another GOP, but all clips of its own.
    assert [group.tolist() for group in gop_groups(spans, 1)] == [[0, 1], [2], [3], [4]]


def test_random_numbers_are_even_and_stable() -> None:
    numbers = np.arange(100_000, dtype=np.int64)
    units = random_units(7, 1, Purpose.START, numbers)
    assert units[:3].tolist() == random_units(7, 1, Purpose.START, numbers[:3]).tolist()
    counts, _ = np.histogram(units, 10, (0, 1))
    assert abs(counts - 10_000).max() < 400
    others = [
        random_units(8, 1, Purpose.START, numbers),
        random_units(7, 2, Purpose.START, numbers),
    ]
    others.append(random_units(7, 1, Purpose.LEFT, numbers))
    for other in others:
        assert abs(np.corrcoef(units, other)[0, 1]) < 0.02


def test_starts_stay_in_the_video() -> None:
    lengths, spans = np.array([100, 10, 31]), np.array([31, 31, 31])
    clips = np.arange(12)
    for is_uniform in (False, True):
        found = ClipStarts(lengths, spans, 4, 0, is_uniform).of(2, clips).reshape(3, 4)
        assert (found >= 0).all()
        assert (found[0] <= 69).all()
        assert (found[1:] == 0).all()
    assert found[0].tolist() == [0, 23, 46, 69]


def test_labelled_clips_show_a_label() -> None:
    labelled = (np.array([3, 50, 51]), np.array([99]))
    lengths = np.array([100, 100])
    for is_uniform in (False, True):
        starts = ClipStarts(lengths, np.array([16, 16]), 30, 0, is_uniform, labelled)
        found = starts.of(0, np.arange(60)).reshape(2, 30)
        for frames, mine in zip(labelled, found.tolist(), strict=True):
            assert all(((first <= frames) & (frames < first + 16)).any() for first in mine)


def reads(requests: list[ClipRequest], keys: list[int]) -> list[tuple[int, list[int], object]]:
    found = plan_batch(requests, lambda video: np.array(keys), 3, lambda video, region: 100)
    assert sorted(chain(*(read.clips for read in found))) == list(range(len(requests)))
    return [(read.video, read.frames.tolist(), read.region) for read in found]


def test_a_batch_reads_each_gop_once() -> None:
    requests = [
        ClipRequest(1, np.array([40, 42]), None),
        ClipRequest(0, np.array([3, 5]), None),
        ClipRequest(1, np.array([28, 31]), None),
        ClipRequest(1, np.array([70, 72]), None),
        ClipRequest(0, np.array([3, 3]), None),
    ]
    assert reads(requests, [0, 30, 60]) == [
        (0, [3, 5], None),
        (1, [28, 31, 40, 42], None),
        (1, [70, 72], None),
    ]


def test_crops_of_one_gop_are_read_together() -> None:
    requests = [
        ClipRequest(0, np.array([3]), Rect(0, 0, 10, 10)),
        ClipRequest(0, np.array([5]), Rect(20, 5, 30, 15)),
    ]
    assert reads(requests, [0]) == [(0, [3, 5], Rect(0, 0, 30, 15))]


def test_large_reads_are_not_merged() -> None:
    requests = [ClipRequest(0, np.array([3]), None), ClipRequest(0, np.array([5]), None)]
    found = plan_batch(requests, lambda video: np.array([0]), 3, lambda *_: 1 << 26)
    assert [read.frames.tolist() for read in found] == [[3], [5]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"locality": 1.5}, "locality must be from 0 to 1, got 1.5"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"rank": 2, "world_size": 2}, "rank must be less than 2, got 2"),
        ({"shuffle": "no"}, "shuffle must be True or False"),
    ],
)
def test_malformed_arguments(options: dict[str, float], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        GopSampler(Drawn(1, 1), 1, **options)  # type: ignore[arg-type]
