"""Applies retention policies: finds the videos that are due, carries out each step and logs the
reason. `DirectoryUsage` tracks the contents of directories with a size limit.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from vfsd.api.video import Video
from vfsd.catalog import Transaction
from vfsd.core.capture_time import CaptureTime
from vfsd.core.model import LogicalVideo
from vfsd.core.retention_policy import (
    REPLACED_BYTES_KEYWORD,
    Action,
    OriginalLogEntry,
    RetentionPolicy,
    Share,
    TrustedClock,
    require_trusted_clock,
)
from vfsd.derive.reencode import OnProgress, ReencodeForecast
from vfsd.errors import (
    IntegrityError,
    NotFoundError,
    NothingSavedError,
    OutdatedError,
    RefusedMediaError,
    UsageError,
)
from vfsd.maintenance.due_rules import (
    NS,
    DueStep,
    FreeSpace,
    RetentionCandidate,
    RetentionStage,
    current_reason,
    due_after,
    due_by_age,
    is_still_due,
    may_make_room,
    require_few_deletions,
    until_next_ns,
)
from vfsd.storage.context import StoreContext
from vfsd.storage.original_guard import entry_of
from vfsd.storage.reclaim import TransactionPacer, reclaim_or_log

IMPOSSIBLE_ERRORS = (NothingSavedError, RefusedMediaError, UsageError)
"""Errors after which a video is left unchanged for good."""


class DirectoryUsage:
    """Caches the shares of directories with a size limit while videos are deleted one by one."""

    # Adding up the sizes takes time proportional to the size of the directories. `look` therefore
    # does it outside of write transactions. Within one, `of` only checks that nothing has changed.

    def __init__(self, parts: StoreContext) -> None:
        self._parts = parts
        self._since: Hashable = None  # the `sharing_key` of the cached values
        self._shares: dict[int, Share] = {}
        self._sizes: dict[int, dict[str, int]] = {}  # `Share.sizes` of each of `_shares`
        self._there: set[str] = set()  # keys of objects that were found to exist
        self._settled: set[str] = set()

    def forget(self) -> None:
        """Discard all cached values."""
        self._since = None
        self._there.clear()

    def look(self, directories: Iterable[int]) -> None:
        """Refresh the shares of the directories. Must not be called within a transaction."""
        with self._parts.catalog.reading() as seen:
            if seen.retention.sharing_key() != self._since:
                self.forget()
            said = seen.retention.policies()  # a limit or directory may have been removed
            self.of(seen, [each for each in directories if _has_limit(said.get(each))])

    def of(self, seen: Transaction, directories: Iterable[int]) -> dict[int, Share]:
        """Return the shares of the directories, and of those that share videos with them, by inode.

        The bytes of several identical files count until the last of these files is deleted.
        """
        since = seen.retention.sharing_key()
        if since != self._since:
            self._since = since
            self._shares.clear()
            self._sizes.clear()
            self._settled.clear()

        def share(directory: int) -> Share:
            if directory not in self._shares:
                found = self._stored(seen.retention.share(directory))
                self._sizes[directory] = dict(found.sizes)
                self._shares[directory] = replace(found, sizes=self._sizes[directory])
            return self._shares[directory]

        return _with_related_shares(directories, share)

    def without_holds(self, seen: Transaction, directories: Iterable[int]) -> dict[int, Share]:
        """Return the same as `of`, but as if there were no holds."""
        return _with_related_shares(
            directories, lambda each: self._stored(seen.retention.share_without_holds(each))
        )

    def is_settled(self, digest: str) -> bool:
        """Return whether `settle` was called for these bytes and nothing has changed since."""
        return digest in self._settled

    def settle(self, digest: str) -> None:
        """Record that all files with these bytes are to be deleted."""
        self._settled.add(digest)

    def note_deleted(self, digest: str, left: int, since: Hashable) -> None:
        """Record that a file with these bytes was deleted; `left` files still have them.

        Call it after the commit. `since` is the new `sharing_key`. All other cached values remain
        valid for it.
        """
        self._since = since
        if left == 0:
            for sizes in self._sizes.values():
                sizes.pop(digest, None)

    def _stored(self, share: Share) -> Share:
        """Return the share without missing objects. They do not matter below the limit."""
        if share.taken <= share.limit:
            return share
        exists = self._parts.objects.exists
        self._there.update(key for key in share.sizes.keys() - self._there if exists(key))
        there = {key: size for key, size in share.sizes.items() if key in self._there}
        return replace(share, sizes=there)


def _has_limit(policy: RetentionPolicy | None) -> bool:
    return policy is not None and policy.delete_above is not None


def _with_related_shares(
    directories: Iterable[int], share: Callable[[int], Share]
) -> dict[int, Share]:
    found: dict[int, Share] = {}
    waiting = list(directories)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = share(each)
            waiting += {other for others in found[each].besides.values() for other in others}
    return found


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The steps that are due, the oldest video first, and those that are blocked."""

    due: tuple[DueStep, ...]
    held: tuple[RetentionCandidate, ...]  #: would be due if they had no hold
    left: tuple[DueStep, ...]  #: known to be impossible, or to save nothing
    waiting: tuple[
        tuple[int, RetentionCandidate], ...
    ]  #: (ns until its next step, video), the soonest first
    may_free_space: bool  #: some videos may be deleted to make room
    now_ns: int  #: Unix time at which this was found


class RetentionExecutor:
    """Carries out the retention policies of some videos.

    It refuses to plan unless the clock can be trusted: see `require_trusted_clock`.
    With `is_clock_right` the caller confirms that it can.
    """

    def __init__(
        self, parts: StoreContext, videos: Sequence[Video], *, is_clock_right: bool = False
    ) -> None:
        self._parts = parts
        self._videos = {video.info.id: video for video in videos}
        self._is_clock_right = is_clock_right
        self._trusted: TrustedClock | None = None  # set by the last plan
        self._not_before: dict[int, int] = {}  # set by the last plan, ns by video id
        self._shares = DirectoryUsage(parts)
        self._turns = TransactionPacer()

    def plan(self) -> RetentionPlan:
        """Return the steps that are due now.

        Raises `ForbiddenError` if the clock cannot be trusted or most videos would be deleted.
        Raises `StoreError` if all objects are missing, for example because their disk is not
        mounted. The free space would then be that of another disk.
        """
        self._parts.require_objects_present()
        now = time.time_ns()
        with self._parts.catalog.reading() as seen:
            trusted = seen.clock_history.trusted()
            if not self._is_clock_right:
                _require_clock(seen, now, trusted)
            known = seen.clock_history.newest_rows()
            not_before = seen.clock_history.not_before(now, trusted)
            candidate = [
                _candidate_of(self._parts, seen, video.info, not_before.get(number, 0))
                for number, video in self._videos.items()
            ]
            by_age = due_by_age(candidate, now)
            left = [
                due
                for due in by_age
                if seen.retention.is_left(
                    due.candidate.video_id,
                    self._videos[due.candidate.video_id].info.digest,
                    due.reason,
                )
            ]
            self._shares.forget()
            free, limiting = self._free(), {each for one in candidate for each in one.limited_by}
            shares = self._shares.of(seen, limiting)
            held = self._held(seen, candidate, free, limiting, now)
        for_room = due_after(by_age, candidate, FreeSpace(free, shares), now)
        gone = {due.candidate.video_id for due in for_room}
        settled = gone | {due.candidate.video_id for due in left}
        due = [one for one in by_age if one.candidate.video_id not in settled]
        due += for_room
        require_few_deletions(due, len(candidate), is_trusted=self._is_clock_right)
        until = [(until_next_ns(one, now), one) for one in candidate]
        waiting = sorted(
            ((ns, one) for ns, one in until if ns is not None), key=lambda each: each[0]
        )
        self._trusted, self._not_before = TrustedClock(now, known), not_before
        may_free_space = any(may_make_room(one) for one in candidate)
        return RetentionPlan(
            tuple(due), tuple(held), tuple(left), tuple(waiting), may_free_space, now
        )

    def _held(
        self,
        seen: Transaction,
        videos: Sequence[RetentionCandidate],
        free: int,
        limiting: Iterable[int],
        now_ns: int,
    ) -> list[RetentionCandidate]:
        """Return the videos that would be due now if they had no hold."""
        held = [one for one in videos if one.is_held]
        if not held:
            return []
        freed = [replace(one, is_held=False) for one in videos]
        room = FreeSpace(free, self._shares.without_holds(seen, limiting))
        due = due_by_age(freed, now_ns)
        due += due_after(due, freed, room, now_ns)
        would = {one.candidate.video_id for one in due}
        # Each video that makes room on the disk counts, even if deleting the others were enough.
        full = FreeSpace(free)
        for one in freed:
            if full.reasons(one):
                would.add(one.video_id)
        return [one for one in held if one.video_id in would]

    def remember_clock(self) -> None:
        """Record that the last plan trusted the clock. Call it before the plan is carried out."""
        # Later plans check only times recorded from now on, so that a wrong time needs
        # `is_clock_right` only once.
        trusted = self._trusted
        if trusted is None:
            return

        def note(change: Transaction) -> None:
            change.clock_history.trust(trusted, self._not_before)

        self._parts.write_with_reserve(note)

    def forecast(self, due: DueStep, on_progress: OnProgress) -> ReencodeForecast | None:
        """Estimate the savings and the loss by encoding a few seconds; None for a deletion.

        Raises the errors of `VideoPolicy.forecast_replacement`.
        """
        video, policy = self._videos[due.candidate.video_id], due.candidate.policy
        if due.stage is RetentionStage.REPLACE:
            return video.policy.forecast_replacement(
                psnr=policy.psnr, codec=policy.codec, on_progress=on_progress
            )
        if due.stage is RetentionStage.DECAY:
            return video.policy.forecast_decay(
                policy.keep or "", psnr=policy.psnr, codec=policy.codec, on_progress=on_progress
            )
        return None

    def apply(self, due: DueStep, on_progress: OnProgress) -> OriginalLogEntry:
        """Carry out a step and return its log entry.

        A step that is impossible, or would save nothing, is logged as left alone. It is not tried
        again with the same bytes.

        A plan may be hours old. Raises `OutdatedError` if the step is no longer due, because the
        policy or the video has changed or there is enough room again. Raises `HeldError`,
        `ForbiddenError`, `BusyError`, `NoSpaceError` or `IntegrityError`, and `StoreError` like
        `plan`. Nothing has changed after an error.
        """
        video, policy = self._videos[due.candidate.video_id], due.candidate.policy
        if due.stage is RetentionStage.DELETE:
            return self._delete(video.info, due)
        require = partial(_require_due, self._parts, video.info, due)
        try:
            if due.stage is RetentionStage.DECAY:
                video.policy.decay(
                    policy.keep or "",
                    psnr=policy.psnr,
                    codec=policy.codec,
                    reason=due.reason,
                    require=require,
                    on_progress=on_progress,
                )
            else:
                video.policy.replace_original(
                    psnr=policy.psnr,
                    codec=policy.codec,
                    reason=due.reason,
                    require=require,
                    on_progress=on_progress,
                )
        except IMPOSSIBLE_ERRORS as error:
            return self._leave(video.info, due.reason, str(error))
        return video.policy.log()[0]

    def _delete(self, video: LogicalVideo, due: DueStep) -> OriginalLogEntry:
        """Delete a video with all its names, and log the reason.

        Raises `HeldError`, `OutdatedError` if the video was replaced or is no longer due, and
        `StoreError` like `plan`.
        """
        parts = self._parts
        parts.require_objects_present()
        self._turns.pause()
        makes_room = bool(due.together)
        if makes_room:
            self._shares.look(due.candidate.limited_by)

        def go(change: Transaction) -> tuple[OriginalLogEntry, set[str], int, Hashable]:
            now = time.time_ns()
            change.retention.require_free(video.ino)
            if makes_room:
                there, reason = self._require_to_make_room(video, due, change)
            else:
                there, reason = _require_due(parts, video, due, change), due.reason
            names = change.tree.paths_of(video.ino)
            for name in names:
                folder, _, last = name.rpartition("/")
                change.tree.unlink(change.tree.resolve(folder).ino, last, now_ns=now)
            keys = change.objects.of_file(video.ino)
            change.tree.delete(video.ino)
            details: dict[str, object] = {"names": names}
            key = video.original.object_key or ""
            left = change.objects.holders(key)
            if left or not parts.objects.exists(key):
                details[REPLACED_BYTES_KEYWORD] = 0
            entry = change.retention.add(entry_of(there, Action.DELETED, reason, details))
            return entry, keys, left, change.retention.sharing_key()

        entry, keys, left, since = parts.write_with_reserve(go)
        if makes_room:
            self._shares.note_deleted(video.digest, left, since)
        reclaim_or_log(parts, keys=keys, inodes=[video.ino])
        return entry

    def _require_to_make_room(
        self, video: LogicalVideo, due: DueStep, seen: Transaction
    ) -> tuple[LogicalVideo, str]:
        """Return the current video and the reason to delete it.

        Raises `OutdatedError` if there is none.
        """
        there = _require_same(video, seen)
        candidate = _candidate_of(self._parts, seen, there, due.candidate.not_before_ns)
        room = FreeSpace(self._free(), self._shares.of(seen, candidate.limited_by))
        reason = current_reason(due, candidate, room)
        if reason is None:
            raise _not_due_error(video, due)
        if not self._shares.is_settled(video.digest):
            if not _all_make_room(self._parts, seen, there, due.together, room):
                raise OutdatedError(
                    f"{video.name} is not due any more: another file with the same bytes stays, "
                    "so nothing would be freed"
                )
            self._shares.settle(video.digest)
        return there, reason

    def _free(self) -> int:
        return shutil.disk_usage(self._parts.directory.objects).free

    def _leave(self, video: LogicalVideo, reason: str, why: str) -> OriginalLogEntry:
        def note(change: Transaction) -> OriginalLogEntry:
            return change.retention.add(entry_of(video, Action.LEFT, reason, {"why": why}))

        return self._parts.write_with_reserve(note)


def _require_clock(seen: Transaction, now_ns: int, trusted: TrustedClock | None) -> None:
    """Raise `ForbiddenError` unless the clock can be trusted."""
    since = seen.clock_history.first_time() if trusted is None else trusted.at_ns
    require_trusted_clock(now_ns, seen.clock_history.newest_time(trusted), since)


def _require_due(
    parts: StoreContext, video: LogicalVideo, due: DueStep, seen: Transaction
) -> LogicalVideo:
    """Return the current video. Raises `OutdatedError` if the step is no longer due by age."""
    there = _require_same(video, seen)
    candidate = _candidate_of(parts, seen, there, due.candidate.not_before_ns)
    if not is_still_due(due, candidate, time.time_ns()):
        raise _not_due_error(video, due)
    return there


def _require_same(video: LogicalVideo, seen: Transaction) -> LogicalVideo:
    """Return the current video. Raises `OutdatedError` if it was replaced or has no name left."""
    try:
        there = seen.videos.get(video.id)
    except (NotFoundError, IntegrityError):
        raise _outdated_error(video) from None
    if there.digest != video.digest or there.ino != video.ino:
        raise _outdated_error(video)
    if not there.name:
        raise OutdatedError(f"{video.name} has been removed since")
    return there


def _all_make_room(
    parts: StoreContext,
    seen: Transaction,
    video: LogicalVideo,
    together: Sequence[int],
    room: FreeSpace,
) -> bool:
    """Return whether all files with the bytes of a video are still to be deleted with it."""
    going = 0
    for number in together:
        try:
            there = seen.videos.get(number)
        except (NotFoundError, IntegrityError):
            continue  # already deleted
        if there.digest == video.digest:
            candidate = _candidate_of(parts, seen, there, 0)  # its age does not matter
            going += bool(room.reasons(candidate))
    return going == seen.objects.holders(video.original.object_key or "")


def _candidate_of(
    parts: StoreContext, seen: Transaction, video: LogicalVideo, not_before_ns: int
) -> RetentionCandidate:
    original = video.original
    done = seen.retention.replacement(video.id, video.digest)
    policy = seen.retention.policy(video.ino)
    limits = (policy.delete_after, policy.delete_below, policy.delete_above)
    may_go = any(limit is not None for limit in limits)
    return RetentionCandidate(
        video_id=video.id,
        name=video.name,
        digest=video.digest,
        size=video.size,
        holders=seen.objects.holders(original.object_key or ""),
        modified_ns=video.modified_ns,
        created_ns=video.created_ns,
        policy=policy,
        is_replaced=done is not None,
        # Parameters are lost if the same bytes are added again, so the log counts as well.
        is_decayed="decayed" in original.parameters
        or (done is not None and done.action is Action.DECAYED),
        is_held=bool(seen.retention.holds(video.id)),
        is_linked=original.link_path is not None,
        is_missing=may_go and not parts.objects.exists(original.object_key or ""),
        not_before_ns=not_before_ns,
        limited_by=() if policy.delete_above is None else tuple(seen.retention.limiting(video.ino)),
        recorded=_recording_end(video),
    )


def _recording_end(video: LogicalVideo) -> CaptureTime | None:
    """Return when the last frame was recorded; None if that is unknown."""
    captured = video.captured
    if captured is None:
        return None
    return CaptureTime(captured.ns + math.ceil(video.original.duration * NS), captured.clock)


def _not_due_error(video: LogicalVideo, due: DueStep) -> OutdatedError:
    return OutdatedError(f"{video.name} is not due any more: {due.reason}")


def _outdated_error(video: LogicalVideo) -> OutdatedError:
    return OutdatedError(f"{video.name} has changed since", hint="run `vfsd age` again")


def saved(entries: Iterable[OriginalLogEntry]) -> int:
    """Return the number of bytes of originals that these steps freed."""
    return sum(entry.saved for entry in entries)
