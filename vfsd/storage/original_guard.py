"""Decides whether an original may be replaced or deleted: policies, holds, and a check that the
file is not open through a mount.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from reprlib import repr as shown

from vfsd.catalog import ROOT, Transaction
from vfsd.core.model import LogicalVideo
from vfsd.core.retention_policy import Action, Hold, OriginalLogEntry, RetentionPolicy
from vfsd.disk.mount_queries import own_attribute
from vfsd.errors import BusyError, NotFoundError, ReadOnlyError, UsageError
from vfsd.storage.context import StoreContext
from vfsd.validation import require_storable_text


def policy_of(parts: StoreContext, video: LogicalVideo) -> RetentionPolicy:
    """The one that counts for a video."""
    with parts.catalog.reading() as seen:
        return seen.originals.policy(video.ino)


def usual_psnr(parts: StoreContext, video: LogicalVideo) -> float:
    """dB of luma that tiles of a video need so that reads which ask for none may use them: by its
    policy, else as the store has it."""
    said = policy_of(parts, video).reads
    return float(parts.settings.minimum_psnr) if said is None else said


def set_policy(
    parts: StoreContext, path: str, policy: RetentionPolicy | str | None
) -> RetentionPolicy:
    """Say what may become of a video's original, or of those below a directory; what counts now.

    None: as where nothing was said of it.  Raises `NotFoundError`, `UsageError` for the root of
    the store, which can have none, for a file that is no video, and for one that is said to go by
    what a directory has.
    """
    _require_writable(parts)
    chosen = RetentionPolicy.parse(policy) if isinstance(policy, str) else policy
    if not isinstance(chosen, RetentionPolicy | None):
        raise UsageError(
            f"policy must be text, got {shown(policy)}", hint="as in original=replaceable"
        )

    def say(change: Transaction) -> RetentionPolicy:
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


def holds(parts: StoreContext, video: LogicalVideo) -> list[Hold]:
    """Those on a video, the oldest first."""
    with parts.catalog.reading() as seen:
        return seen.originals.holds(video.id)


def hold(parts: StoreContext, video: LogicalVideo, reason: str) -> Hold:
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
    parts: StoreContext, video: LogicalVideo, reason: str, hold_id: int | None = None
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
) -> OriginalLogEntry:
    """What is done to a video now, for the log of originals; its bytes stay, or it goes."""
    return OriginalLogEntry(
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


def _require_writable(parts: StoreContext) -> None:
    if parts.read_only:
        raise ReadOnlyError("the store was opened read-only")


ATTRIBUTE = "user.vfsd.open"
"""Of a file in a mount, but in no listing: 1 while somebody has it open, else 0."""


def require_closed(parts: StoreContext, names: Iterable[str]) -> None:
    """Raises `BusyError` where one of these files of the store is open in its mount.

    To the kernel a name is a file, whatever bytes another process puts there: who has it open would
    find it cut off where the new bytes end, and what it writes would be lost.  So it is where the
    mount cannot be asked, or does not answer: it may be for others, or in another container.
    """
    holder = parts.directory.mounted_by()
    place = None if holder is None else holder.get("place")
    if not isinstance(place, str):
        return
    for name in names:
        try:
            own = parts.directory.identity
            is_open = own_attribute(os.path.join(place, name), ATTRIBUTE, own) == b"1"
        except OSError as error:
            raise BusyError(
                f"the mount in {place} cannot be asked whether somebody has {name} open: "
                f"{error.strerror}",
                hint="unmount it, or try where it can be seen, as who has mounted it",
            ) from error
        if is_open:
            raise BusyError(
                f"somebody has {name} open in {place}", hint="try again when it is closed"
            )
