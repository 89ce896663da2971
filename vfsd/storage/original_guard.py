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


def policy_of(context: StoreContext, video: LogicalVideo) -> RetentionPolicy:
    """Return the effective policy of a video."""
    with context.catalog.reading() as seen:
        return seen.retention.policy(video.ino)


def default_psnr(context: StoreContext, video: LogicalVideo) -> float:
    """Return the luma PSNR in dB that tiles need for reads that ask for none.

    The policy of the video has precedence over the settings of the store.
    """
    said = policy_of(context, video).reads
    return float(context.settings.minimum_psnr) if said is None else said


def set_policy(
    context: StoreContext, path: str, policy: RetentionPolicy | str | None
) -> RetentionPolicy:
    """Set the policy of a video or directory; return the policy in effect.

    None removes it. Raises `NotFoundError`. Raises `UsageError` for the root of the store, for a
    file that is not a video, and for ``delete-above`` on a single video.
    """
    _require_writable(context)
    chosen = RetentionPolicy.parse(policy) if isinstance(policy, str) else policy
    if not isinstance(chosen, RetentionPolicy | None):
        raise UsageError(
            f"policy must be text, got {shown(policy)}", hint="for example original=replaceable"
        )

    def say(change: Transaction) -> RetentionPolicy:
        node = change.tree.resolve(path)
        if node.ino == ROOT:
            raise UsageError("a policy must be for a video or directory, got the root of the store")
        if not node.is_dir:
            change.videos.by_node(node, path)
            if chosen is not None and chosen.delete_above is not None:
                raise UsageError(
                    "delete-above must be set on a directory, got a video",
                    hint="set it on the directory",
                )
        change.retention.set_policy(node.ino, chosen)
        return change.retention.policy(node.ino)

    return context.write_with_reserve(say)


def holds(context: StoreContext, video: LogicalVideo) -> list[Hold]:
    """Return the holds of a video, oldest first."""
    with context.catalog.reading() as seen:
        return seen.retention.holds(video.id)


def hold(context: StoreContext, video: LogicalVideo, reason: str) -> Hold:
    """Add a hold: the video can be neither changed nor removed.

    Raises `UsageError` without a reason, `NotFoundError` if the video has no name any more.
    """
    _require_writable(context)
    _require_reason(reason)

    def add(change: Transaction) -> Hold:
        change.videos.require(video)
        now = change.videos.get(video.id)
        if change.tree.nodes([now.ino])[now.ino].nlink == 0:
            # The row exists only because the file is still open.
            raise NotFoundError(f"the video {video.name!r} was removed")
        made = change.retention.hold(Hold(0, now.id, reason, time.time_ns()))
        change.retention.add(entry_of(now, Action.HELD, reason))
        return made

    return context.write_with_reserve(add)


def release(
    context: StoreContext, video: LogicalVideo, reason: str, hold_id: int | None = None
) -> list[Hold]:
    """Lift one hold of a video, or all (None); return the lifted ones. Raises `NotFoundError`."""
    _require_writable(context)
    _require_reason(reason)

    def lift(change: Transaction) -> list[Hold]:
        change.videos.require(video)
        now = change.videos.get(video.id)
        found = [
            one for one in change.retention.holds(now.id) if hold_id is None or one.id == hold_id
        ]
        if not found:
            raise NotFoundError(f"{now.name} has no such hold", hint="see `vfsd hold ls`")
        change.retention.release(one.id for one in found)
        for one in found:
            why = f"{reason} (held for: {one.reason})"
            change.retention.add(entry_of(now, Action.RELEASED, why))
        return found

    return context.write_with_reserve(lift)


def entry_of(
    video: LogicalVideo, action: Action, reason: str, details: Mapping[str, object] | None = None
) -> OriginalLogEntry:
    """Return an entry for the log of originals with the current state of a video."""
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
        raise UsageError("a hold needs a reason", hint="give one, for example 'case 17'")
    require_storable_text(reason, "a reason")


def _require_writable(context: StoreContext) -> None:
    if context.read_only:
        raise ReadOnlyError("the store was opened read-only")


ATTRIBUTE = "user.vfsd.open"
"""Extended attribute of a file in a mount, in no listing: 1 while the file is open, else 0."""


def require_closed(context: StoreContext, names: Iterable[str]) -> None:
    """Raise `BusyError` if one of these files of the store is open in its mount.

    The kernel identifies a file by its name, whatever bytes another process puts there. A reader
    would find the file truncated at the new size, and writes would be lost. Also raised if the
    mount cannot be asked or does not answer: it may belong to another user or container.
    """
    holder = context.directory.mounted_by()
    place = None if holder is None else holder.get("place")
    if not isinstance(place, str):
        return
    for name in names:
        try:
            own = context.directory.identity
            is_open = own_attribute(os.path.join(place, name), ATTRIBUTE, own) == b"1"
        except OSError as error:
            raise BusyError(
                f"the mount in {place} cannot be asked whether {name} is open: {error.strerror}",
                hint="unmount it, or try again as the user and in the container that mounted it",
            ) from error
        if is_open:
            raise BusyError(f"{name} is open in {place}", hint="try again when it is closed")
