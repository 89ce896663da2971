"""Deciding what may become of originals: policies, and holds that forbid everything."""

from __future__ import annotations

import time
from collections.abc import Mapping
from reprlib import repr as shown

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import LogicalVideo
from vfsd.core.policy import Action, Entry, Hold, Policy
from vfsd.errors import NotFoundError, ReadOnlyError, UsageError
from vfsd.storage.context import Parts
from vfsd.validation import require_storable_text


def policy_of(parts: Parts, video: LogicalVideo) -> Policy:
    """The one that counts for a video."""
    with parts.catalog.reading() as seen:
        return seen.originals.policy(video.ino)


def usual_psnr(parts: Parts, video: LogicalVideo) -> float:
    """dB of luma that tiles of a video need so that reads which ask for none may use them: by its
    policy, else as the store has it."""
    said = policy_of(parts, video).reads
    return float(parts.settings.minimum_psnr) if said is None else said


def set_policy(parts: Parts, path: str, policy: Policy | str | None) -> Policy:
    """Say what may become of a video's original, or of those below a directory; what counts now.

    None: as where nothing was said of it.  Raises `NotFoundError`, `UsageError` for the root of
    the store, which can have none, for a file that is no video, and for one that is said to go by
    what a directory has.
    """
    _require_writable(parts)
    chosen = Policy.parse(policy) if isinstance(policy, str) else policy
    if not isinstance(chosen, Policy | None):
        raise UsageError(
            f"policy must be text, got {shown(policy)}", hint="as in original=replaceable"
        )

    def say(change: Transaction) -> Policy:
        node = change.tree.resolve(path)
        if node.ino == ROOT:
            raise UsageError("a policy is for videos and directories, not for a whole store")
        if not node.is_dir:
            change.videos.of_node(node, path)
            if chosen is not None and chosen.delete_above is not None:
                raise UsageError(
                    "delete-above is about all videos of a directory, not about one",
                    hint="say it of the directory",
                )
        change.originals.set_policy(node.ino, chosen)
        return change.originals.policy(node.ino)

    return parts.write_with_reserve(say)


def holds(parts: Parts, video: LogicalVideo) -> list[Hold]:
    """Those on a video, the oldest first."""
    with parts.catalog.reading() as seen:
        return seen.originals.holds(video.id)


def hold(parts: Parts, video: LogicalVideo, reason: str) -> Hold:
    """Forbid everybody to change or remove a video.

    Raises `UsageError` without a reason, `NotFoundError` where it is gone but for who has it open.
    """
    _require_writable(parts)
    _require_reason(reason)

    def add(change: Transaction) -> Hold:
        change.videos.require(video)
        now = change.videos.get(video.id)
        if change.tree.nodes([now.ino])[now.ino].nlink == 0:
            # Somebody has it open, and else it would be gone.
            raise NotFoundError(f"the video {video.name!r} was removed")
        made = change.originals.hold(Hold(0, now.id, reason, time.time_ns()))
        change.originals.add(entry_of(now, Action.HELD, reason))
        return made

    return parts.write_with_reserve(add)


def release(
    parts: Parts, video: LogicalVideo, reason: str, hold_id: int | None = None
) -> list[Hold]:
    """Lift one hold of a video, or all; gives those.  Raises `NotFoundError` for none."""
    _require_writable(parts)
    _require_reason(reason)

    def lift(change: Transaction) -> list[Hold]:
        change.videos.require(video)
        now = change.videos.get(video.id)
        found = [
            one for one in change.originals.holds(now.id) if hold_id is None or one.id == hold_id
        ]
        if not found:
            raise NotFoundError(f"{now.name} has no such hold", hint="see `vfsd hold ls`")
        change.originals.release(one.id for one in found)
        for one in found:
            why = f"{reason} (held for: {one.reason})"
            change.originals.add(entry_of(now, Action.RELEASED, why))
        return found

    return parts.write_with_reserve(lift)


def entry_of(
    video: LogicalVideo, action: Action, reason: str, details: Mapping[str, object] | None = None
) -> Entry:
    """What is done to a video now, for the log of originals; its bytes stay, or it goes."""
    return Entry(
        id=0,
        at_ns=time.time_ns(),
        action=action,
        video_id=video.id,
        name=video.name,
        reason=reason,
        digest=video.digest,
        size=video.size,
        details=details,
    )


def _require_reason(reason: str) -> None:
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError("a hold needs a reason", hint="say why, as in 'case 17'")
    require_storable_text(reason, "a reason")


def _require_writable(parts: Parts) -> None:
    if parts.read_only:
        raise ReadOnlyError("the store was opened read-only")
