"""Actions that are due by a video's age, and distrust of an implausible clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vfsd.core.capture_time import CaptureClock, CaptureTime
from vfsd.core.retention_policy import Fate, RetentionPolicy, Share, most_protective
from vfsd.errors import ForbiddenError, UsageError
from vfsd.maintenance.due_rules import (
    NS,
    AgeSource,
    DueStep,
    FreedSpace,
    FreeSpace,
    RetentionCandidate,
    RetentionStage,
    current_reason,
    due_by_age,
    due_for_room,
    is_still_due,
    require_few_deletions,
    stage_of,
)

DAY = 86_400
NOW = 1_800_000_000 * NS
RULES = RetentionPolicy.parse(
    "original=replaceable,psnr=38,replace-after=30d,decay-after=90d,keep=car|truck,"
    "delete-after=1y,delete-below=1G"
)


def aged(days: float, policy: RetentionPolicy = RULES, **changes: object) -> RetentionCandidate:
    born = NOW - round(days * DAY * NS)
    one = RetentionCandidate(
        1, f"{days}", f"{days}", 100, 1, born, born, policy, False, False, False, False
    )
    return replace(one, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("days", "stage"),
    [
        (29.9, None),
        (30, RetentionStage.REPLACE),
        (89, RetentionStage.REPLACE),
        (90, RetentionStage.DECAY),
        (364, RetentionStage.DECAY),
        (365, RetentionStage.DELETE),
    ],
)
def test_stages_by_age(days: float, stage: RetentionStage | None) -> None:
    assert stage_of(aged(days), NOW) is stage


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (str(RULES), "original=keep", "original=keep"),
        (
            str(RULES),
            "original=replaceable,psnr=36,replace-after=60d,delete-after=90d,delete-below=500M",
            "original=replaceable,psnr=38,replace-after=60d,delete-after=365d,delete-below=500M",
        ),
        (
            "original=keep,delete-after=2y",
            "original=replaceable,psnr=36,replace-after=30d,delete-after=90d",
            "original=keep,delete-after=730d",
        ),
        (
            str(RULES),
            "original=replaceable,psnr=42,decay-after=120d,keep=car|truck",
            "original=replaceable,psnr=42,decay-after=120d,keep=car|truck",
        ),
        (
            str(RULES),
            "original=replaceable,decay-after=120d,keep=dog,delete-after=2y",
            "original=replaceable,psnr=40,delete-after=730d",
        ),
        ("delete-above=1G", "delete-above=2G", "original=keep,delete-above=2147483648"),
        ("delete-above=1G", "delete-below=1G", "original=keep"),
        ("reads=35", "reads=32", "original=keep,reads=35"),
        ("reads=35", "original=keep", "original=keep"),
        ("delete-after=1d,clock=recording", "delete-after=2d", "delete-after=2d"),
        ("delete-after=1d,clock=recording",) * 3,
    ],
)
def test_most_protective_policy_applies(one: str, other: str, both: str) -> None:
    policies = [RetentionPolicy.parse(text) for text in (one, other)]
    for order in (policies, policies[::-1]):
        assert most_protective(order) == RetentionPolicy.parse(both)


def test_completed_stages_are_not_repeated() -> None:
    assert stage_of(aged(31, is_replaced=True), NOW) is None
    assert stage_of(aged(91, is_replaced=True), NOW) is RetentionStage.DECAY
    assert stage_of(aged(91, is_replaced=True, is_decayed=True), NOW) is None
    assert stage_of(aged(400, is_decayed=True), NOW) is RetentionStage.DELETE
    assert stage_of(aged(400, RetentionPolicy()), NOW) is None


def test_kept_originals_are_deleted_by_a_rule() -> None:
    kept = RetentionPolicy.parse("original=keep,delete-after=1y,delete-below=1G")
    assert [stage_of(aged(days, kept), NOW) for days in (364, 365)] == [None, RetentionStage.DELETE]
    assert [one.candidate.name for one in due_for_room([aged(1, kept)], FreeSpace(0), NOW)] == ["1"]


def test_ages_count_from_the_later_time() -> None:
    old, new = NOW - 100 * DAY * NS, NOW - 2 * DAY * NS
    assert aged(0, modified_ns=old, created_ns=new).age_ns(NOW) == 2 * DAY * NS
    assert aged(0, modified_ns=new, created_ns=old).age_ns(NOW) == 2 * DAY * NS
    assert aged(0, modified_ns=NOW + 50 * DAY * NS, created_ns=old).age_ns(NOW) == 100 * DAY * NS
    assert aged(0, modified_ns=0, created_ns=new).age_ns(NOW) == 2 * DAY * NS


RECORDED = RetentionPolicy.parse("delete-after=30d,clock=recording")
ARRIVED = RetentionPolicy.parse("delete-after=30d")


def recorded(days: float, clock: CaptureClock = CaptureClock.NAME) -> CaptureTime:
    return CaptureTime(NOW - round(days * DAY * NS), clock)


@pytest.mark.parametrize("clock", CaptureClock)
def test_recordings_of_an_archive_count_only_by_trusted_clocks(clock: CaptureClock) -> None:
    years_ago = recorded(1000, clock)
    assert due_by_age([aged(0, ARRIVED, recorded=years_ago)], NOW) == []
    dues = due_by_age([aged(0, RECORDED, recorded=years_ago)], NOW)
    if clock in (CaptureClock.RTCP, CaptureClock.CONTAINER):
        assert dues == []
    else:
        assert [one.reason for one in dues] == [
            f"delete after 30d from its recording ({clock.value})"
        ]


@pytest.mark.parametrize(
    ("policy", "captured", "changes", "days", "source"),
    [
        (ARRIVED, recorded(900), {}, 40, AgeSource.ARRIVAL),
        (ARRIVED, recorded(3), {}, 3, AgeSource.RECORDING),
        (RECORDED, None, {}, 40, AgeSource.ARRIVAL),
        (RECORDED, recorded(900), {}, 900, AgeSource.RECORDING),
        (RECORDED, recorded(900), {"modified_ns": NOW}, 900, AgeSource.RECORDING),
        (RECORDED, recorded(3), {}, 3, AgeSource.RECORDING),
        # Implausible: in the future, and before 2000.
        (RECORDED, recorded(-1), {}, 40, AgeSource.ARRIVAL),
        (RECORDED, recorded(-1), {"modified_ns": NOW}, 0, AgeSource.CHANGE),
        (RECORDED, CaptureTime(DAY * NS, CaptureClock.NAME), {}, 40, AgeSource.ARRIVAL),
        # Written over, or added while the clock was behind.
        (RECORDED, recorded(900), {"not_before_ns": NOW - DAY * NS}, 1, AgeSource.CORRECTION),
    ],
)
def test_clock_that_counts(
    policy: RetentionPolicy,
    captured: CaptureTime | None,
    changes: dict[str, object],
    days: int,
    source: AgeSource,
) -> None:
    one = aged(40, policy, recorded=captured, **changes)
    assert one.born(NOW) == (NOW - days * DAY * NS, source)
    assert one.age_ns(NOW) == days * DAY * NS


@given(
    days=st.floats(0, 500),
    captured=st.none() | st.builds(recorded, st.floats(-2000, 9000), st.sampled_from(CaptureClock)),
    correction=st.none() | st.floats(0, 500),
)
def test_recordings_delete_early_only_on_request(
    days: float, captured: CaptureTime | None, correction: float | None
) -> None:
    not_before = 0 if correction is None else NOW - round(correction * DAY * NS)
    without = aged(days, ARRIVED, not_before_ns=not_before)
    latest = replace(without, recorded=captured)
    assert 0 <= latest.age_ns(NOW) <= without.age_ns(NOW)
    asked = replace(latest, policy=RECORDED)
    assert asked.age_ns(NOW) >= 0
    if captured is None or not captured.is_trusted or captured.ns > NOW:
        assert asked.born(NOW) == without.born(NOW)
    else:
        assert asked.age_ns(NOW) == NOW - max(captured.ns, not_before)


def test_oldest_recording_makes_room_first() -> None:
    rules = RetentionPolicy.parse("delete-below=1G,clock=recording")
    videos = [aged(3, rules, recorded=recorded(5)), aged(9, rules, recorded=recorded(4)), aged(1)]
    gone = due_for_room(videos, FreeSpace((1 << 30) - 50), NOW)
    assert [one.candidate.name for one in gone] == ["3"]
    later = replace(gone[0].candidate, recorded=recorded(-1))
    gone = due_for_room([later, *videos[1:]], FreeSpace(0), NOW)
    assert [one.candidate.name for one in gone] == ["9", "3", "1"]


def test_step_is_not_due_once_another_clock_counts() -> None:
    one = aged(400, RECORDED, recorded=recorded(500))
    (due,) = due_by_age([one], NOW)
    assert is_still_due(due, one, NOW)
    assert not is_still_due(due, replace(one, recorded=None), NOW)


def test_held_and_linked_videos_stay_and_the_oldest_come_first() -> None:
    videos = [aged(31), aged(400), aged(500, is_held=True), aged(500, is_linked=True), aged(100)]
    assert [(one.candidate.name, one.stage) for one in due_by_age(videos, NOW)] == [
        ("400", RetentionStage.DELETE),
        ("100", RetentionStage.DECAY),
        ("31", RetentionStage.REPLACE),
    ]


def test_oldest_are_deleted_until_space_suffices() -> None:
    videos = [aged(1), aged(3), aged(2), aged(9, is_held=True), aged(8, RetentionPolicy())]
    gone = due_for_room(videos, FreeSpace((1 << 30) - 150), NOW)
    assert [one.candidate.name for one in gone] == ["3", "2"]
    assert due_for_room(videos, FreeSpace(1 << 30), NOW) == []


def test_videos_with_the_same_bytes_free_space_together() -> None:
    two = [replace(aged(days), digest="same", holders=2) for days in (9, 4, 2)]
    videos = [two[1], aged(3), two[2], aged(1)]
    for short, names in ((50, ["3"]), (150, ["3", "4", "2"]), (250, ["3", "4", "2", "1"])):
        gone = due_for_room(videos, FreeSpace((1 << 30) - short), NOW)
        assert [one.candidate.name for one in gone] == names
    held = [two[1], aged(3), replace(two[2], is_held=True)]
    assert [one.candidate.name for one in due_for_room(held, FreeSpace(0), NOW)] == ["3"]
    room = FreeSpace(0)
    room.note_deleted(two[0])
    assert [one.candidate.name for one in due_for_room(held, room, NOW)] == ["4", "3"]


def test_oldest_are_deleted_while_the_directory_exceeds_its_limit() -> None:
    rules = RetentionPolicy.parse("delete-above=250")
    a, b = 7, 8
    videos = [aged(days, rules, limited_by=(a,)) for days in (1, 2, 3, 4)]
    twice = aged(9, rules, limited_by=(a, b))  # by two names
    elsewhere = aged(8, rules, limited_by=(a,))
    sizes = {one.digest: one.size for one in [*videos, twice]}

    def gone(limit_of_b: int, **changes: object) -> list[str]:
        some = [replace(videos[3], **changes), *videos[:3], twice, elsewhere]  # type: ignore[arg-type]
        shares = {a: Share(250, sizes), b: Share(limit_of_b, {twice.digest: 100})}
        return [one.candidate.name for one in due_for_room(some, FreeSpace(0, shares), NOW)]

    assert gone(100) == ["4", "3", "2"]
    assert gone(99) == ["9", "4", "3"]
    assert gone(100, is_missing=True) == ["3", "2", "1"]


def test_shared_videos_evict_no_others() -> None:
    rules = RetentionPolicy.parse("delete-above=200")
    a, b = 7, 8
    both = [aged(days, rules, limited_by=(a, b)) for days in (9, 8, 7)]
    alone = [aged(days, rules, limited_by=(a,)) for days in (3, 2, 1)]

    def gone(limit_of_b: int, limit_of_a: int = 200) -> list[str]:
        shares = {
            a: Share(
                limit_of_a,
                {one.digest: one.size for one in [*both, *alone]},
                {one.digest: (b,) for one in both},
            ),
            b: Share(
                limit_of_b,
                {one.digest: one.size for one in both},
                {one.digest: (a,) for one in both},
            ),
        }
        videos = [*alone, *both]
        return [one.candidate.name for one in due_for_room(videos, FreeSpace(0, shares), NOW)]

    assert gone(300) == ["3"]
    assert gone(200) == ["9", "3"]  # after one deletion the others are no longer due
    assert gone(0) == ["9", "8", "7", "3"]
    assert gone(0, 600) == []


def test_delete_for_space_needs_one_remaining_reason() -> None:
    rules = RetentionPolicy.parse("delete-below=1K,delete-above=99")
    one = aged(1, rules, limited_by=(7,))
    share = {7: Share(99, {one.digest: one.size})}
    full, crowded = "less than 1024 bytes were free", "its directory had more than 99 bytes"
    dues = [DueStep(one, RetentionStage.DELETE, reason, (1,)) for reason in (full, crowded)]
    for room, reasons in (
        (FreeSpace(0, share), [full, crowded]),
        (FreeSpace(1 << 30, share), [crowded, crowded]),
        (FreeSpace(0, {7: Share(100, share[7].sizes)}), [full, full]),
        (FreeSpace(1 << 30, {7: Share(100, share[7].sizes)}), [None, None]),
    ):
        assert [current_reason(due, one, room) for due in dues] == reasons


def test_space_freed_by_unknown_holders_is_unknown() -> None:
    same = [replace(aged(days), digest="same", holders=3) for days in (9, 4, 2)]
    one_unknown, two_unknown = FreedSpace(), FreedSpace()
    one_unknown.note_possible(same[0])
    assert one_unknown.release(same[1]) == 0  # the third video shares the bytes
    assert one_unknown.release(same[2]) is None
    for one in same[:2]:
        two_unknown.note_possible(one)
    assert two_unknown.release(same[2]) is None
    assert two_unknown.release(aged(1)) == 100


def test_deleting_most_videos_at_once_is_refused() -> None:
    dues = due_by_age([aged(400 + number) for number in range(12)], NOW)
    with pytest.raises(ForbiddenError, match="12 of 20"):
        require_few_deletions(dues, 20, is_trusted=False)
    require_few_deletions(dues, 24, is_trusted=False)
    require_few_deletions(dues, 20, is_trusted=True)
    with pytest.raises(ForbiddenError, match="9 of 10"):
        require_few_deletions(dues[:9], 10, is_trusted=False)
    require_few_deletions(dues[:9], 9, is_trusted=False)


def test_policy_descriptions() -> None:
    assert RULES.original is Fate.REPLACEABLE
    assert (RULES.replace_after, RULES.delete_after, RULES.keep) == (
        30 * DAY,
        365 * DAY,
        "car|truck",
    )
    assert RetentionPolicy.parse(str(RULES)) == RULES
    decay = "original=replaceable,decay-after=90d,keep="
    for labels in ('"sign,left"|car', '"a ""b"", c" & d', "car|truck & red"):
        one = RetentionPolicy.parse(f"{decay}{labels},delete-after=1y")
        assert (one.keep, one.delete_after) == (labels, 365 * DAY)
        assert RetentionPolicy.parse(str(one)) == one
    given = RetentionPolicy(Fate.REPLACEABLE, decay_after=90 * DAY, keep="car,truck")
    assert RetentionPolicy.parse(str(given)).keep == "car|truck"
    assert str(RECORDED) == "original=keep,delete-after=30d,clock=recording"
    assert RetentionPolicy.parse(str(RECORDED)) == RECORDED
    with pytest.raises(UsageError) as refused:
        RetentionPolicy.parse(f"{decay}car,truck")
    assert "keep=car|truck" in str(refused.value.hint)
    for wrong in (
        "psnr",
        "original=gone",
        "psnr=40,psnr=41",
        "psnr=400",
        "psnr=45",
        "original=keep,codec=h264",
        "replace-after=30d",
        "original=replaceable,decay-after=30d",
        "original=replaceable,keep=car",
        "original=replaceable,replace-after=3d,delete-after=2d",
        "delete-after=30",
        "delete-after=0d",
        "delete-below=10x",
        "delete-after=1y,clock=arrival",
        "reads=35,clock=recording",
        "original=replaceable,codec=vp9",
        "colour=blue",
    ):
        with pytest.raises(UsageError):
            RetentionPolicy.parse(wrong)
