"""`Store.sample`: runs of frames without labels, at random or far from those seen."""

from __future__ import annotations

import warnings
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sample_videos import FOLDER
from vfsd import Store
from vfsd.api import sample as sample_module
from vfsd.api.sample import Sample
from vfsd.core.detections import Detection
from vfsd.errors import NotFoundError, UsageError


@pytest.fixture
def filled(store: Store) -> Store:
    """Videos of 4.8 and 2 seconds."""
    store.ingest(FOLDER / "traffic.mp4", "cam1/a.mp4")
    store.ingest(FOLDER / "portrait.mp4", "cam2/b.mp4")
    return store


def seen_by(store: Store, source: str) -> set[tuple[str, int]]:
    found = set()
    for video in store.find():
        found |= {(video.name, box.frame) for box in video.labels.query(source=source)}
        for one in video.labels.examined(source):
            found |= {(video.name, frame) for frame in one.frames}
    return found


def frames_of(found: list[Sample]) -> list[tuple[str, int]]:
    return [(one.video, frame) for one in found for frame in one.frames]


def test_windows_cover_the_videos_and_play(filled: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = filled.sample(1000)
    sizes = {video.name: int(video.duration) for video in filled.find()}
    assert Counter(one.video for one in found) == sizes
    assert len(frames_of(found)) == len(set(frames_of(found)))
    for one in found:
        video = filled[one.video]
        assert one.frames == video.frames_in(one.span)
        assert one.span[1] - one.span[0] == 1
    one = found[0]
    with filled[one.video].views.open(f"{one.name},size=48x0.mp4") as file:
        assert file.read(12)[4:8] == b"ftyp"
    assert [one.video for one in filled.sample(9, names="cam2/*", seconds=60)] == ["cam2/b.mp4"]
    assert filled.sample(0) == []


def test_a_seed_repeats_and_all_are_as_likely(filled: Store) -> None:
    assert filled.sample(3, seed=4) == filled.sample(3, seed=4)
    total = len(filled.sample(1000))
    counts = Counter(filled.sample(1, seed=seed)[0] for seed in range(60 * total))
    assert len(counts) == total
    assert 25 < min(counts.values()) <= max(counts.values()) < 100


def test_labelled_windows_are_left_out(filled: Store) -> None:
    video = filled["cam1/a.mp4"]
    video.labels.add([Detection(30, "car", (0, 0, 9, 9))], "anna")
    video.labels.mark_examined(range(95, 99), "anna")
    video.labels.mark_examined(range(120), "bob")
    found = filled.sample(1000, unlabelled="anna")
    assert not set(frames_of(found)) & seen_by(filled, "anna")
    assert len(found) == len(filled.sample(1000)) - 2
    assert {one.video for one in filled.sample(1000, unlabelled="bob")} == {"cam2/b.mp4"}
    assert filled.sample(5, names="cam1/*", unlabelled="bob") == []


@pytest.mark.parametrize("most", [50_000, 60])
def test_far_is_greedy_k_centre(filled: Store, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_module, "_MOST_VECTORS", most)
    random = np.random.default_rng(0)
    video, other = filled["cam1/a.mp4"], filled["cam2/b.mp4"]
    matrix = random.normal(size=(140, 16)).astype(np.float32)
    video.vectors.add(matrix[:50], range(0, 100, 2), "clip")
    video.vectors.add(matrix[50:100], range(1, 100, 2), "clip")
    other.vectors.add(matrix[100:], range(40), "clip")
    video.labels.mark_examined([3, 60, 61], "anna")
    units = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    rows = {("cam1/a.mp4", at): (at // 2 if at % 2 == 0 else 50 + at // 2) for at in range(100)}
    rows |= {("cam2/b.mp4", at): 100 + at for at in range(40)}
    for _ in range(3):  # each time, more is seen
        found = filled.sample(4, how="far", unlabelled="anna")
        seen = [rows[place] for place in seen_by(filled, "anna")]
        for one in found:
            assert len(one.frames) == 1
            distances = ((units[:, None] - units[seen][None]) ** 2).sum(axis=2).min(axis=1)
            mine = rows[one.video, one.frames.start]
            if most > 140:
                assert distances[mine] == pytest.approx(distances.max(), abs=1e-5)
            assert mine not in seen
            seen.append(mine)
            filled[one.video].labels.mark_examined(one.frames, "anna")
    # Without labels, and with fewer: nothing of them is kept.
    assert len(filled.sample(200, how="far")) == min(most, 140)
    assert filled.sample(3, how="far", seed=1) == filled.sample(3, how="far", seed=1)
    wide = filled.sample(3, how="far", seconds=0.4, unlabelled="anna")
    assert not set(frames_of(wide)) & seen_by(filled, "anna")
    assert all(one.span[1] - one.span[0] == Fraction(2, 5) for one in wide)
    assert len(set(frames_of(wide))) == len(frames_of(wide))


def test_refusals(filled: Store) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"n": -1}, "0 or more, got -1"),
        ({"n": 1, "how": "near"}, "random or far, got 'near'"),
        ({"n": 1, "seconds": 0}, "positive, got 0"),
        ({"n": 1, "source": "clip"}, "requires how='far'"),
        ({"n": 1, "unlabelled": 3}, "must be a source, got 3"),
    ]
    for arguments, text in refused:
        with pytest.raises(UsageError, match=text):
            filled.sample(**arguments)
    with pytest.raises(NotFoundError, match="no vectors"):
        filled.sample(1, how="far")
    with pytest.raises(NotFoundError):
        filled.sample(1, names="cam3/*")
