"""What originals had before others took their places, which budgets go by."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.catalog.counting import counted
from tests.catalog.make import add_video
from vfsd.catalog import Catalog, Transaction
from vfsd.core.model import LogicalVideo
from vfsd.core.retention_policy import Action, OriginalLogEntry

NOW = 100_048
"""Bytes of the video that is there."""


def add_lines(
    change: Transaction, video: LogicalVideo, steps: Sequence[tuple[str, int, str, int]]
) -> None:
    """Lines of what had which bytes, and how many, before and afterwards."""
    for old, size, new, new_size in steps:
        change.retention.add(
            OriginalLogEntry(
                id=0,
                at_ns=1,
                action=Action.REPLACED,
                video_id=video.id,
                name=video.name,
                reason="by hand",
                digest=old * 64,
                size=size,
                new_digest=new * 64,
                new_size=new_size,
            )
        )


@pytest.mark.parametrize(
    ("steps", "first"),
    [
        ([], NOW),
        ([("a", 900_000, "c", NOW)], 900_000),
        ([("a", 900_000, "b", 500_000), ("b", 500_000, "c", NOW)], 900_000),
        # Written over since: what was before has not become what is there.
        ([("a", 900_000, "b", 500_000)], NOW),
        ([("a", 900_000, "b", 500_000), ("d", 300_000, "c", NOW)], 300_000),
        # The same bytes once more, and again in the same way; bytes that come of themselves.
        ([("a", 900_000, "c", NOW), ("a", 900_000, "c", NOW)], 900_000),
        ([("a", 900_000, "c", NOW), ("d", 300_000, "c", NOW)], 300_000),
        ([("c", NOW, "c", NOW)], NOW),
        ([("c", NOW, "a", 50_000), ("a", 50_000, "c", NOW)], NOW),
    ],
)
def test_the_very_first_original_counts(
    there: Catalog, steps: Sequence[tuple[str, int, str, int]], first: int
) -> None:
    with there.writing() as change:
        video = add_video(change, "a.mp4", key="c" * 64)
        other = add_video(change, "b.mp4", key="d" * 64)
        add_lines(change, other, [("e", 200_000, "d", NOW)])
        add_lines(change, video, steps)
        assert change.derived_usage.original_bytes(video.id) == first
        assert change.derived_usage.original_bytes(other.id) == 200_000
        assert change.derived_usage.original_bytes(None) == first + 200_000


def test_of_one_video_the_lines_of_others_are_not_read(catalog: Catalog) -> None:
    steps = []
    with catalog.writing() as change:
        video = add_video(change, "a.mp4", key="c" * 64)
        other = add_video(change, "b.mp4", key="d" * 64)
        add_lines(change, video, [("a", 900_000, "c", NOW)])
        for _ in range(2):
            add_lines(change, other, [("e", 200_000, "d", NOW)] * 500)
            with counted(change.tree._connection) as found:
                assert change.derived_usage.original_bytes(video.id) == 900_000
            steps.append(found.count)
    assert steps[1] - steps[0] < 500
