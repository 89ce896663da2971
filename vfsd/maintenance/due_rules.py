"""Decides which steps of their retention policies are due for videos. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from vfsd.core.capture_time import CaptureTime
from vfsd.core.retention_policy import AgeClock, Fate, RetentionPolicy, Share, age_text
from vfsd.errors import ForbiddenError

NS = 1_000_000_000

# With fewer videos than this, all may be deleted at once.
_MANY_VIDEOS = 10


class RetentionStage(Enum):
    """The steps of a retention policy, in the order in which they become due."""

    REPLACE = "replace"
    DECAY = "decay"
    DELETE = "delete"


class AgeSource(Enum):
    """The origin of the time from which an age counts."""

    ARRIVAL = "arrival"  #: the video was added to the store
    CHANGE = "change"  #: its file was changed
    RECORDING = "recording"  #: it was recorded
    CORRECTION = "correction"  #: it was written over, or added while the clock was behind


@dataclass(frozen=True, slots=True)
class RetentionCandidate:
    """The properties of a video that its retention depends on."""

    video_id: int
    name: str
    digest: str  #: of its original
    size: int  #: bytes of its original
    holders: int  #: number of files in the store with these bytes, including this one
    modified_ns: int  #: Unix time
    created_ns: int  #: when it was added to the store
    policy: RetentionPolicy
    is_replaced: bool  #: its original is the replacement of another
    is_decayed: bool
    is_held: bool
    is_linked: bool  #: indexed in place: the store must not change it
    is_missing: bool = False  #: its object is missing, so deleting it makes no room
    not_before_ns: int = 0
    """The earliest time from which its age counts, if it was written over or was added while the
    clock was behind; otherwise 0."""
    limited_by: tuple[int, ...] = ()
    """Inodes of the directories with a size limit that it counts towards; empty if no size limit
    applies to it."""
    recorded: CaptureTime | None = None  #: end of its recording; None: unknown

    def born(self, now_ns: int) -> tuple[int, AgeSource]:
        """Return the Unix time from which its age counts, and the origin of that time.

        Ignores times of recording and modification in the future, times from a clock that was
        behind, and times of recording by a clock that is not trusted.
        """
        # The latest time counts: footage copied in with an old mtime must not be deleted the same
        # night, and the clocks of cameras are often wrong.
        correction = (self.not_before_ns, AgeSource.CORRECTION)
        times = [(self.created_ns, AgeSource.ARRIVAL), correction]
        if self.modified_ns <= now_ns:
            times.append((self.modified_ns, AgeSource.CHANGE))
        recorded = self.recorded
        if recorded is not None and recorded.is_trusted and recorded.ns <= now_ns:
            found = (recorded.ns, AgeSource.RECORDING)
            # A time that a user gave stays when other bytes are written over the video, and the
            # host whose clock was behind may have recorded it: the correction counts for both.
            times = (
                [found, correction] if self.policy.clock is AgeClock.RECORDING else [*times, found]
            )
        return max(times, key=lambda each: each[0])

    def age_ns(self, now_ns: int) -> int:
        """Return the time since `born`."""
        return now_ns - self.born(now_ns)[0]


class FreedSpace:
    """Tracks the bytes that are freed as files give up their bytes, one after another.

    Bytes that several files share are freed by the last of these files.
    """

    def __init__(self) -> None:
        self._released_files: dict[
            str, int
        ] = {}  # number of files that gave up their bytes, by digest
        self._possible: dict[str, int] = {}  # the same for files that may or may not

    def left(self, candidate: RetentionCandidate) -> int:
        """Return how many files still have its bytes."""
        return candidate.holders - self._released_files.get(candidate.digest, 0)

    def release(self, candidate: RetentionCandidate) -> int | None:
        """Record that a file gives up its bytes, and return the number of bytes that this frees.

        None: it depends on the files passed to `note_possible`.
        """
        self._released_files[candidate.digest] = self._released_files.get(candidate.digest, 0) + 1
        left, unknown = self.left(candidate), self._possible.get(candidate.digest, 0)
        if left == 0:
            return 0 if candidate.is_missing else candidate.size
        return None if left <= unknown else 0

    def note_possible(self, candidate: RetentionCandidate) -> None:
        """Record that a file may or may not give up its bytes."""
        self._possible[candidate.digest] = self._possible.get(candidate.digest, 0) + 1


@dataclass(frozen=True, slots=True)
class DueStep:
    """A step that is due for a video, and the reason."""

    candidate: RetentionCandidate
    stage: RetentionStage
    reason: str
    together: tuple[int, ...] = ()
    """Ids of the videos with the same bytes, including this one, that make room only if all of them
    are deleted."""


def due_by_age(videos: Iterable[RetentionCandidate], now_ns: int) -> list[DueStep]:
    """Return the steps that are due, the oldest video first; skips held and linked videos."""
    found = []
    for candidate in sorted(videos, key=lambda one: -one.age_ns(now_ns)):
        if candidate.is_held or candidate.is_linked:
            continue
        stage = stage_of(candidate, now_ns)
        if stage is not None:
            found.append(DueStep(candidate, stage, _reason_text(candidate, stage, now_ns)))
    return found


def stage_of(candidate: RetentionCandidate, now_ns: int) -> RetentionStage | None:
    """Return the step that is due for a video by its age; None if there is none or it was done."""
    policy, age = candidate.policy, candidate.age_ns(now_ns) // NS
    if policy.delete_after is not None and age >= policy.delete_after:
        return RetentionStage.DELETE
    if policy.original is not Fate.REPLACEABLE or candidate.is_decayed:
        return None
    if policy.decay_after is not None and age >= policy.decay_after:
        return RetentionStage.DECAY
    if (
        policy.replace_after is not None
        and age >= policy.replace_after
        and not candidate.is_replaced
    ):
        return RetentionStage.REPLACE
    return None


def until_next_ns(candidate: RetentionCandidate, now_ns: int) -> int | None:
    """Return the time until the next step of a video by its age; None if there is none."""
    if candidate.is_held or candidate.is_linked:
        return None
    policy, age = candidate.policy, candidate.age_ns(now_ns)
    ages = [policy.delete_after]
    if policy.original is Fate.REPLACEABLE and not candidate.is_decayed:
        ages += [policy.decay_after, None if candidate.is_replaced else policy.replace_after]
    left = [after * NS - age for after in ages if after is not None]
    return min((ns for ns in left if ns > 0), default=None)


class FreeSpace:
    """Tracks the free space on the disk, and the sizes of directories, as videos are deleted."""

    def __init__(self, free: int, shares: Mapping[int, Share] | None = None) -> None:
        """Start with `free` bytes on the disk and `shares` by inode of the directory.

        These must include all of `RetentionCandidate.limited_by` and of their `Share.besides`.
        """
        self._free = free
        self._shares = shares or {}
        self._sizes = {each: dict(share.sizes) for each, share in self._shares.items()}
        self._taken = {each: share.taken for each, share in self._shares.items()}
        self._crowded = set(self._shares)  # exceed their limits
        self._settle()
        self._released = FreedSpace()

    def left(self, candidate: RetentionCandidate) -> int:
        """Return how many files still have its bytes."""
        return self._released.left(candidate)

    def note_deleted(self, candidate: RetentionCandidate) -> None:
        """Count a video as deleted."""
        if self._released.release(candidate):
            self._free += candidate.size
            for directory in candidate.limited_by:
                self._drop(directory, candidate.digest)
            self._settle()

    def reasons(self, candidate: RetentionCandidate) -> list[str]:
        """Return the reasons to delete a video to make room, the most urgent first."""
        if not may_make_room(candidate):
            return []
        found = []
        wanted, most = candidate.policy.delete_below, candidate.policy.delete_above
        if wanted is not None and self._free < wanted:
            found.append(f"less than {wanted} bytes were free")
        if candidate.limited_by and all(
            self._has_too_much(one, candidate) for one in candidate.limited_by
        ):
            found.append(f"its directory had more than {most} bytes")
        return found

    def _has_too_much(self, directory: int, candidate: RetentionCandidate) -> bool:
        """Return whether a directory exceeds its limit and deleting the video would help."""
        return directory in self._crowded and candidate.digest in self._sizes[directory]

    def _drop(self, directory: int, digest: str) -> None:
        self._taken[directory] -= self._sizes[directory].pop(digest, 0)

    def _settle(self) -> None:
        """Remove the directories that no longer exceed their limits."""
        # A video in several directories is deleted only while all of them exceed their limits. Once
        # one of them does not, the video no longer counts towards the others. Otherwise they would
        # delete other videos to make up for one that stays.
        while roomy := [
            each for each in self._crowded if self._taken[each] <= self._shares[each].limit
        ]:
            self._crowded.difference_update(roomy)
            for each in roomy:
                for digest, others in self._shares[each].besides.items():
                    for other in others:
                        self._drop(other, digest)


def may_make_room(candidate: RetentionCandidate) -> bool:
    """Return whether a video may be deleted if the disk or its directory becomes too full."""
    if candidate.is_held or candidate.is_linked or candidate.is_missing:
        return False
    return candidate.policy.delete_below is not None or bool(candidate.limited_by)


def due_for_room(
    videos: Iterable[RetentionCandidate], room: FreeSpace, now_ns: int
) -> list[DueStep]:
    """Return the deletions that make the room that policies ask for, the oldest video first.

    The videos under a policy are deleted until `room` satisfies it. Videos with the same bytes are
    deleted together, in the turn of the youngest, since one alone would make no room. They all stay
    if another file with these bytes stays.
    """
    found = []
    waiting: dict[str, list[DueStep]] = {}  # for others with the same bytes
    for candidate in sorted(videos, key=lambda one: -one.age_ns(now_ns)):
        reasons = room.reasons(candidate)
        if not reasons:
            continue
        same = waiting.setdefault(candidate.digest, [])
        same.append(DueStep(candidate, RetentionStage.DELETE, reasons[0]))
        if len(same) == room.left(candidate):
            together = tuple(one.candidate.video_id for one in same)
            found += [replace(one, together=together) for one in same]
            for one in same:
                room.note_deleted(one.candidate)
    return found


def due_after(
    by_age: Iterable[DueStep], videos: Sequence[RetentionCandidate], room: FreeSpace, now_ns: int
) -> list[DueStep]:
    """Return the deletions that still make room after the deletions in `by_age`."""
    going = {due.candidate.video_id for due in by_age if due.stage is RetentionStage.DELETE}
    for one in videos:
        if one.video_id in going:
            room.note_deleted(one)
    return due_for_room((one for one in videos if one.video_id not in going), room, now_ns)


def is_still_due(due: DueStep, candidate: RetentionCandidate, now_ns: int) -> bool:
    """Return whether a step is still due by age for the current video, for the same reason."""
    again = due_by_age([candidate], now_ns)
    return (due.stage, due.reason) in [(one.stage, one.reason) for one in again]


def current_reason(due: DueStep, candidate: RetentionCandidate, room: FreeSpace) -> str | None:
    """Return why the current video must still make room, preferably the reason of `due`.

    None: it need not make room any more.
    """
    reasons = room.reasons(candidate)
    return due.reason if due.reason in reasons else next(iter(reasons), None)


def require_few_deletions(dues: Sequence[DueStep], videos: int, *, is_trusted: bool) -> None:
    """Raise `ForbiddenError` if most of many videos would be deleted at once.

    The usual cause is a wrong clock. With `is_trusted` the caller confirms that the clock is right.
    """
    gone = sum(due.stage is RetentionStage.DELETE for due in dues)
    if videos >= _MANY_VIDEOS and 2 * gone > videos and not is_trusted:
        raise ForbiddenError(
            f"{gone} of {videos} videos would be deleted at once: the clock may be wrong",
            hint="check the clock; if it is right, use --clock-is-right",
        )


def _reason_text(candidate: RetentionCandidate, stage: RetentionStage, now_ns: int) -> str:
    policy = candidate.policy
    age = {
        RetentionStage.REPLACE: policy.replace_after,
        RetentionStage.DECAY: policy.decay_after,
        RetentionStage.DELETE: policy.delete_after,
    }[stage]
    assert age is not None
    after = f"{stage.value} after {age_text(age)}"
    if policy.clock is AgeClock.RECORDING and candidate.recorded is not None:
        source = candidate.born(now_ns)[1]
        if source is AgeSource.RECORDING:
            after += f" from its recording ({candidate.recorded.clock.value})"
    if stage is RetentionStage.DELETE:
        return after
    kept = f", keeping {policy.keep}" if stage is RetentionStage.DECAY else ""
    return f"{after}: {policy.psnr:g} dB in {policy.codec}{kept}"
