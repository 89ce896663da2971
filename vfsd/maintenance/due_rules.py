"""Pure: what becomes of videos as they grow old, by their policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from vfsd.core.retention_policy import Fate, RetentionPolicy, Share, age_text
from vfsd.errors import ForbiddenError

NS = 1_000_000_000

_MANY = 10
"""Where there are fewer videos, all may grow old at once."""


class RetentionStage(Enum):
    """What becomes of a video; each is later than the one before."""

    REPLACE = "replace"
    DECAY = "decay"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RetentionCandidate:
    """A video as far as its age matters."""

    video_id: int
    name: str
    digest: str  #: of its original
    size: int  #: bytes of that
    holders: int  #: how many files of the store have these bytes, itself among them
    modified_ns: int  #: Unix time
    created_ns: int  #: when the store got it
    policy: RetentionPolicy
    is_replaced: bool  #: its original has taken the place of another
    is_decayed: bool
    is_held: bool
    is_linked: bool  #: indexed in place: not the store's to change
    is_missing: bool = False  #: its bytes are not there, and cannot make room
    not_before_ns: int = 0
    """Since when, at most, there is what was written over, or came while the clock was behind; 0:
    it was neither."""
    limited_by: tuple[int, ...] = ()
    """Inodes of the directories of whose videos it is one, each of which may have only so many
    bytes together; none where it does not go by that."""

    def age_ns(self, now_ns: int) -> int:
        """Since its last change, or since the store got it if that was later.

        A time that is still to come says nothing, and what a clock said that was behind is not
        believed.
        """
        # The youngest time counts: footage copied in with an old mtime must not be deleted the same
        # night, and cameras' clocks are often wrong.
        born = max(self.created_ns, self.not_before_ns)
        if self.modified_ns <= now_ns:
            born = max(born, self.modified_ns)
        return now_ns - born


class FreedSpace:
    """What is free as videos give up their bytes, one after the other: those that several files
    have are free once the last has given them up."""

    def __init__(self) -> None:
        self._by: dict[str, int] = {}  # how many have given them up, by digest
        self._perhaps: dict[str, int] = {}  # of how many that is not known

    def left(self, aged: RetentionCandidate) -> int:
        """How many files still have its bytes."""
        return aged.holders - self._by.get(aged.digest, 0)

    def by(self, aged: RetentionCandidate) -> int | None:
        """Let it give them up, too; how many bytes are free by that.  None: that depends on what
        others have `perhaps` done."""
        self._by[aged.digest] = self._by.get(aged.digest, 0) + 1
        left, unknown = self.left(aged), self._perhaps.get(aged.digest, 0)
        if left == 0:
            return 0 if aged.is_missing else aged.size
        return None if left <= unknown else 0

    def perhaps(self, aged: RetentionCandidate) -> None:
        """It may give them up or keep them: nobody knows."""
        self._perhaps[aged.digest] = self._perhaps.get(aged.digest, 0) + 1


@dataclass(frozen=True, slots=True)
class DueStep:
    """Something that is to be done, and why."""

    aged: RetentionCandidate
    stage: RetentionStage
    reason: str
    together: tuple[int, ...] = ()
    """Numbers of the videos with the same bytes, itself among them, that make room only if all of
    them go."""


def due_by_age(videos: Iterable[RetentionCandidate], now_ns: int) -> list[DueStep]:
    """What is due, the oldest first; nothing of held and linked videos."""
    found = []
    for aged in sorted(videos, key=lambda one: -one.age_ns(now_ns)):
        if aged.is_held or aged.is_linked:
            continue
        stage = stage_of(aged, now_ns)
        if stage is not None:
            found.append(DueStep(aged, stage, _why(aged.policy, stage)))
    return found


def stage_of(aged: RetentionCandidate, now_ns: int) -> RetentionStage | None:
    """What is due of a video by its age; None: nothing, or it was done before."""
    policy, age = aged.policy, aged.age_ns(now_ns) // NS
    if policy.delete_after is not None and age >= policy.delete_after:
        return RetentionStage.DELETE
    if policy.original is not Fate.REPLACEABLE or aged.is_decayed:
        return None
    if policy.decay_after is not None and age >= policy.decay_after:
        return RetentionStage.DECAY
    if policy.replace_after is not None and age >= policy.replace_after and not aged.is_replaced:
        return RetentionStage.REPLACE
    return None


def until_next_ns(aged: RetentionCandidate, now_ns: int) -> int | None:
    """How long until something is due of a video by its age; None where that never comes."""
    if aged.is_held or aged.is_linked:
        return None
    policy, age = aged.policy, aged.age_ns(now_ns)
    ages = [policy.delete_after]
    if policy.original is Fate.REPLACEABLE and not aged.is_decayed:
        ages += [policy.decay_after, None if aged.is_replaced else policy.replace_after]
    left = [after * NS - age for after in ages if after is not None]
    return min((ns for ns in left if ns > 0), default=None)


class FreeSpace:
    """What is free on the disk, and what directories have of their `shares`, as videos give up
    their bytes."""

    def __init__(self, free: int, shares: Mapping[int, Share] | None = None) -> None:
        """`shares` are by inode of the directory: all that `RetentionCandidate.limited_by` names,
        and what these have `besides`."""
        self._free = free
        self._shares = shares or {}
        self._sizes = {each: dict(share.sizes) for each, share in self._shares.items()}
        self._taken = {each: share.taken for each, share in self._shares.items()}
        self._crowded = set(self._shares)  # have too much
        self._settle()
        self._given_up = FreedSpace()

    def left(self, aged: RetentionCandidate) -> int:
        """How many files still have its bytes."""
        return self._given_up.left(aged)

    def give_up(self, aged: RetentionCandidate) -> None:
        """Let a video go."""
        if self._given_up.by(aged):
            self._free += aged.size
            for directory in aged.limited_by:
                self._drop(directory, aged.digest)
            self._settle()

    def reasons(self, aged: RetentionCandidate) -> list[str]:
        """Why a video is to make room, the most pressing first; none where it is not."""
        if not may_make_room(aged):
            return []
        found = []
        wanted, most = aged.policy.delete_below, aged.policy.delete_above
        if wanted is not None and self._free < wanted:
            found.append(f"less than {wanted} bytes were free")
        if aged.limited_by and all(self._has_too_much(one, aged) for one in aged.limited_by):
            found.append(f"its directory had more than {most} bytes")
        return found

    def _has_too_much(self, directory: int, aged: RetentionCandidate) -> bool:
        """Of which a video has some that no other keeps."""
        return directory in self._crowded and aged.digest in self._sizes[directory]

    def _drop(self, directory: int, digest: str) -> None:
        self._taken[directory] -= self._sizes[directory].pop(digest, 0)

    def _settle(self) -> None:
        """What several directories have goes only while each of them has too much: where one has
        not, others do not have it either, as nothing else is to go for what stays."""
        while roomy := [
            each for each in self._crowded if self._taken[each] <= self._shares[each].limit
        ]:
            self._crowded.difference_update(roomy)
            for each in roomy:
                for digest, others in self._shares[each].besides.items():
                    for other in others:
                        self._drop(other, digest)


def may_make_room(aged: RetentionCandidate) -> bool:
    """Whether a video would go where less is free, or more is there."""
    if aged.is_held or aged.is_linked or aged.is_missing:
        return False
    return aged.policy.delete_below is not None or bool(aged.limited_by)


def due_for_room(
    videos: Iterable[RetentionCandidate], room: FreeSpace, now_ns: int
) -> list[DueStep]:
    """Which go, the oldest first, as less is free, or more is there, than their policies ask for.

    Those of one policy make `room` until there is as much as it asks for.  Videos with the same
    bytes go together, when it is the turn of the last of them: one alone would make no room.  So
    they stay where another file has these bytes that does not go, now or before.
    """
    found = []
    waiting: dict[str, list[DueStep]] = {}  # for others with the same bytes, by digest
    for aged in sorted(videos, key=lambda one: -one.age_ns(now_ns)):
        reasons = room.reasons(aged)
        if not reasons:
            continue
        same = waiting.setdefault(aged.digest, [])
        same.append(DueStep(aged, RetentionStage.DELETE, reasons[0]))
        if len(same) == room.left(aged):
            together = tuple(one.aged.video_id for one in same)
            found += [replace(one, together=together) for one in same]
            for one in same:
                room.give_up(one.aged)
    return found


def due_after(
    by_age: Iterable[DueStep], videos: Sequence[RetentionCandidate], room: FreeSpace, now_ns: int
) -> list[DueStep]:
    """What of the videos is due for room where those have gone that are to go `by_age`."""
    going = {due.aged.video_id for due in by_age if due.stage is RetentionStage.DELETE}
    for one in videos:
        if one.video_id in going:
            room.give_up(one)
    return due_for_room((one for one in videos if one.video_id not in going), room, now_ns)


def is_still_due(due: DueStep, aged: RetentionCandidate, now_ns: int) -> bool:
    """Whether what was due of a video by its age is still due of it as it is now, for the same
    reason."""
    again = due_by_age([aged], now_ns)
    return (due.stage, due.reason) in [(one.stage, one.reason) for one in again]


def reason_still(due: DueStep, aged: RetentionCandidate, room: FreeSpace) -> str | None:
    """Why a video that was to make room still is, as it is now: for the same reason, or for another
    where only that one is left.  None: it is not."""
    reasons = room.reasons(aged)
    return due.reason if due.reason in reasons else next(iter(reasons), None)


def require_few(dues: Sequence[DueStep], videos: int, *, is_trusted: bool) -> None:
    """Raises `ForbiddenError` where most of many videos would be deleted at once.

    That is what a wrong clock does.  With `is_trusted` somebody has said that it is meant.
    """
    gone = sum(due.stage is RetentionStage.DELETE for due in dues)
    if videos >= _MANY and 2 * gone > videos and not is_trusted:
        raise ForbiddenError(
            f"{gone} of {videos} videos would be deleted at once: the clock may be wrong",
            hint="look at it; where it is right, say --clock-is-right",
        )


def _why(policy: RetentionPolicy, stage: RetentionStage) -> str:
    age = {
        RetentionStage.REPLACE: policy.replace_after,
        RetentionStage.DECAY: policy.decay_after,
        RetentionStage.DELETE: policy.delete_after,
    }[stage]
    assert age is not None
    after = f"{stage.value} after {age_text(age)}"
    if stage is RetentionStage.DELETE:
        return after
    kept = f", keeping {policy.keep}" if stage is RetentionStage.DECAY else ""
    return f"{after}: {policy.psnr:g} dB in {policy.codec}{kept}"
