"""Totals of a directory's videos, and the policy that removes its oldest ones.

The sizes of originals before they were replaced, as used by budgets.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from tests.support.catalog_rows import add_file, add_video
from tests.support.sqlite_steps import counted
from vfsd.catalog import Catalog, Transaction
from vfsd.catalog.schema import entries
from vfsd.core.model import LogicalVideo
from vfsd.core.retention_policy import Action, Hold, OriginalLogEntry, RetentionPolicy, Share

SIZE = 100_048
"""Bytes of each video that is made up here."""
LIMITED = RetentionPolicy(delete_above=5)


def said(change: Transaction, path: str, policy: RetentionPolicy) -> int:
    ino = change.tree.resolve(path).ino
    change.retention.set_policy(ino, policy)
    return ino


def share(there: Catalog, directory: int) -> str:
    """The first letters of the digests in a directory's share."""
    with there.reading() as seen:
        found = seen.retention.share(directory)
    assert (found.limit, found.sizes) == (5, dict.fromkeys(found.sizes, SIZE))
    return "".join(sorted(key[0] for key in found.sizes))


def test_share_of_a_directory_under_its_policy(there: Catalog) -> None:
    with there.writing() as change:
        for path, key in (
            ("cam1/x/y/a.mp4", "a"),
            ("cam1/b.mp4", "b"),
            ("cam1/b2.mp4", "b"),
            ("cam1/own/c.mp4", "c"),
            ("cam1/d.mp4", "d"),
            ("cam1/held.mp4", "e"),
            ("cam1/f.mp4", "f"),
            ("elsewhere/f.mp4", "f"),
        ):
            add_video(change, path, key=key * 64)
        add_file(change, "cam1/text")
        cam1, own = said(change, "cam1", LIMITED), said(change, "cam1/own", LIMITED)
        of_its_own = said(change, "cam1/d.mp4", RetentionPolicy())
        held = change.videos.by_node(change.tree.resolve("cam1/held.mp4"), "")
        for reason in ("one", "another"):
            change.retention.hold(Hold(0, held.id, reason, 1))
        inner = change.tree.resolve("cam1/own/c.mp4").ino
        assert change.retention.limiting(inner) == [own]
        assert change.retention.limiting(of_its_own) == []
        assert change.retention.limiting(change.tree.resolve("elsewhere/f.mp4").ino) == []
        assert change.retention.limiting(change.tree.resolve("cam1/x/y/a.mp4").ino) == [cam1]
    assert share(there, cam1) == "ab"
    assert share(there, own) == "c"
    with there.reading() as seen:
        everything = dict.fromkeys((key * 64 for key in "abe"), SIZE)
        assert seen.retention.share_without_holds(cam1) == Share(5, everything)


def test_names_in_several_directories(there: Catalog) -> None:
    with there.writing() as change:
        video = add_video(change, "one/sub/a.mp4", key="a" * 64)
        for path, key in (("one/b.mp4", "b"), ("two/c.mp4", "c"), ("three/d.mp4", "d")):
            add_video(change, path, key=key * 64)
        one, two = said(change, "one", LIMITED), said(change, "two", LIMITED)
        for folder, name in (("one", "again.mp4"), ("two", "a.mp4")):
            change.tree.link(video.ino, change.tree.resolve(folder).ino, name, now_ns=1)
        assert change.retention.limiting(video.ino) == sorted([one, two])
    assert (share(there, one), share(there, two)) == ("ab", "ac")
    with there.reading() as seen:
        assert seen.retention.share(one).besides == {"a" * 64: (two,)}
        assert seen.retention.share(two).besides == {"a" * 64: (one,)}
    with there.writing() as change:  # which is removed once `two` has space
        copy = add_video(change, "two/copy.mp4", key="a" * 64)
    assert (share(there, one), share(there, two)) == ("b", "c")
    with there.writing() as change:
        change.tree.link(copy.ino, change.tree.resolve("one").ino, "copy.mp4", now_ns=1)
    assert (share(there, one), share(there, two)) == ("ab", "ac")
    with there.writing() as change:
        change.tree.link(video.ino, change.tree.resolve("three").ino, "a.mp4", now_ns=1)
        assert change.retention.limiting(video.ino) == []
    assert (share(there, one), share(there, two)) == ("b", "c")


def test_changes_that_may_affect_shares_are_detected(there: Catalog) -> None:
    with there.writing() as change:
        video = add_video(change, "one/a.mp4", key="a" * 64)
        one = said(change, "one", LIMITED)

    def sharing() -> object:
        with there.reading() as seen:
            return seen.retention.sharing_key()

    known = [sharing()]
    with there.writing() as change:
        hold = change.retention.hold(Hold(0, video.id, "one", 1))
    known.append(sharing())
    with there.writing() as change:
        change.retention.set_policy(one, RetentionPolicy(delete_above=6))
    known.append(sharing())
    with there.writing() as change:
        change.tree.link(video.ino, one, "b.mp4", now_ns=1)
    known.append(sharing())
    with there.writing() as change:
        change.retention.release([hold.id])
    known.append(sharing())
    assert len(set(known)) == len(known)
    with there.writing() as change:
        change.objects.record("b" * 64, 5, now_ns=1)
    assert sharing() == known[-1]


def test_directory_cycle_terminates(there: Catalog) -> None:
    with there.writing() as change:
        add_video(change, "cam1/sub/a.mp4", key="a" * 64)
        cam1 = said(change, "cam1", LIMITED)
        sub = change.tree.resolve("cam1/sub").ino
        there_again = sa.insert(entries).values(parent=sub, name=b"up", ino=cam1)
        change.tree._connection.execute(there_again)
    assert share(there, cam1) == "a"


# --------------------------------------------------------------------------------------------------
# The sizes of originals before they were replaced, as used by budgets


NOW = 100_048
"""Bytes of the video that is there."""


def add_lines(
    change: Transaction, video: LogicalVideo, steps: Sequence[tuple[str, int, str, int]]
) -> None:
    """Add log lines with the digests and sizes before and after each replacement."""
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
        # Overwritten since: the earlier bytes were not replaced by the current ones.
        ([("a", 900_000, "b", 500_000)], NOW),
        ([("a", 900_000, "b", 500_000), ("d", 300_000, "c", NOW)], 300_000),
        # The same replacement twice; and bytes that replace themselves.
        ([("a", 900_000, "c", NOW), ("a", 900_000, "c", NOW)], 900_000),
        ([("a", 900_000, "c", NOW), ("d", 300_000, "c", NOW)], 300_000),
        ([("c", NOW, "c", NOW)], NOW),
        ([("c", NOW, "a", 50_000), ("a", 50_000, "c", NOW)], NOW),
    ],
)
def test_size_of_the_first_original_counts(
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


def test_only_log_lines_of_the_video_are_read(catalog: Catalog) -> None:
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


def test_videos_that_lack_a_browser_rendition(there: Catalog) -> None:
    """The nearest policy counts; of several names, the widest."""
    asked = RetentionPolicy(browser=160)
    names = ("a/1.mp4", "a/sub/2.mp4", "a/off/3.mp4", "a/own.mp4", "b/4.mp4", "c/5.mp4")
    with there.writing() as change:
        videos = {name: add_video(change, name, key=name[-5] * 64) for name in names}
        assert change.retention.browser_key() is None
        for path, policy in (
            ("a", asked),
            ("a/off", RetentionPolicy()),
            ("a/own.mp4", RetentionPolicy(browser=80)),
            ("b", RetentionPolicy(browser=320)),
        ):
            change.retention.set_policy(change.tree.resolve(path).ino, policy)
        change.tree.link(videos["a/1.mp4"].ino, change.tree.resolve("b").ino, "again.mp4", now_ns=1)
    numbers = {video.id: name for name, video in videos.items()}

    def found(**options: object) -> dict[str, int]:
        with there.reading() as seen:
            rows = seen.retention.lacking_browser(**options)  # type: ignore[arg-type]
        return {numbers[number]: width for number, width in rows.items()}

    wanted = {"a/1.mp4": 320, "a/sub/2.mp4": 160, "a/own.mp4": 80, "b/4.mp4": 320}
    assert found() == wanted
    assert len(found(limit=1)) == 1
    with there.reading() as seen:
        before = seen.retention.browser_key()
        c, off = (seen.tree.resolve(path).ino for path in ("c", "a/off"))
    assert found(instead=(c, 64)) == {**wanted, "c/5.mp4": 64}
    assert found(instead=(off, 64)) == {**wanted, "a/off/3.mp4": 64}
    with there.writing() as change:
        for name in ("a/sub/2.mp4", "b/4.mp4"):
            change.retention.note_browser(videos[name], 160, 1)
    del wanted["a/sub/2.mp4"]  # the other one has another width now
    assert found() == wanted
    with there.writing() as change:
        change.retention.set_policy(c, asked)
    with there.reading() as seen:
        assert seen.retention.browser_key() != before
    assert found() == {**wanted, "c/5.mp4": 160}
