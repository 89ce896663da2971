"""Candidates by colour."""

from __future__ import annotations

import numpy as np

from sample_videos.cameras import Cameras, FilmedScene
from tests.overlap.making import pictures
from vfsd.overlap.overlap_search import RADIUS, Signature, candidate_pairs, color_signature


def plain(red: int, green: int, blue: int) -> Signature:
    return color_signature([np.full((20, 30, 3), (red, green, blue), np.uint8)])


def test_cameras_of_one_place_are_candidates() -> None:
    left, right = pictures(FilmedScene.of(Cameras(overlap=0.3), seed=1))
    red = plain(200, 30, 30)
    assert candidate_pairs([color_signature(left), red, color_signature(right)]) == [(0, 2)]


def test_a_half_that_both_have_is_enough() -> None:
    rng = np.random.default_rng(1)
    wide = np.concatenate(
        [rng.integers(low, low + 60, (90, 100, 3)) for low in (10, 90, 180)], axis=1
    ).astype(np.uint8)
    assert candidate_pairs(
        [color_signature([wide[:, :200]]), color_signature([wide[:, 100:]])]
    ) == [(0, 1)]


def test_only_the_nearest_are_compared() -> None:
    """Many videos of one kind: as many pairs as neighbours, not all."""
    rng = np.random.default_rng(2)
    some = [
        color_signature([rng.normal(100, 10 + index % 7, (30, 40, 3)).astype(np.uint8)])
        for index in range(300)
    ]
    found = candidate_pairs(some, most=4)
    assert 300 <= len(found) <= 4 * 300
    assert all(i < j for i, j in found)
    assert {i for pair in found for i in pair} == set(range(300))


def test_none_without_a_second_one() -> None:
    assert candidate_pairs([]) == []
    assert candidate_pairs([plain(1, 2, 3)]) == []
    assert candidate_pairs([plain(255, 0, 0), plain(0, 0, 255)], radius=RADIUS) == []
