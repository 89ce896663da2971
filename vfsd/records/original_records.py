"""Records of what happens to originals: policies, holds, and ``vfsd age``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.timebase import iso_time

if TYPE_CHECKING:
    from vfsd.core.retention_policy import Hold, OriginalLogEntry, RetentionPolicy
    from vfsd.derive.reencode import ReencodeForecast
    from vfsd.maintenance.due_rules import DueStep, FreedSpace, RetentionCandidate


POLICY_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "policy": "its policy, in the syntax of `vfsd policy set`",
        "own": "whether it was set for this file or directory itself",
        "original": "keep or replaceable",
        "psnr": "minimum dB of a replacement, per plane of each picture, against the very first "
        "original",
        "codec": "codec for replacements",
        "replace_after": "age in seconds at which `vfsd age` replaces an original, or null",
        "decay_after": "age in seconds from which only regions with the labels of keep stay "
        "sharp, or null",
        "keep": "labels, or null",
        "delete_after": "age in seconds at which `vfsd age` deletes a video, or null",
        "delete_below": "bytes: `vfsd age` deletes the oldest videos while less is free on the "
        "disk; or null",
        "delete_above": "bytes: `vfsd age` deletes the oldest videos of the directory while it "
        "has more; or null",
        "reads": "minimum luma dB of tiles for reads without a minimum of their own; null for "
        "the setting minimum_psnr",
        "clock": "the time from which ages count: latest (of recording, arrival and change) or "
        "recording",
        "browser": "greatest width in pixels of the rendition for browsers, or null",
    }
)


def policy_record(name: str, policy: RetentionPolicy, own: bool) -> dict[str, Any]:
    """The values of `POLICY_FIELDS`."""
    return {
        "name": name,
        "policy": str(policy),
        "own": own,
        "original": policy.original.value,
        "psnr": policy.psnr,
        "codec": policy.codec,
        "replace_after": policy.replace_after,
        "decay_after": policy.decay_after,
        "keep": policy.keep,
        "delete_after": policy.delete_after,
        "delete_below": policy.delete_below,
        "delete_above": policy.delete_above,
        "reads": policy.reads,
        "clock": policy.clock.value,
        "browser": policy.browser,
    }


HOLD_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "id": "number of the hold",
        "reason": "text of --reason",
        "since": "ISO 8601, UTC",
    }
)


def hold_record(name: str, hold: Hold) -> dict[str, Any]:
    """The values of `HOLD_FIELDS`."""
    return {
        "name": name,
        "id": hold.id,
        "reason": hold.reason,
        "since": iso_time(hold.at_ns),
    }


LOG_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "id": "number of the entry",
        "at": "ISO 8601, UTC",
        "action": "replaced, decayed, deleted, left (impossible, or nothing saved), held or "
        "released",
        "name": "path from the root of the store at that time",
        "reason": "why",
        "digest": "BLAKE3 of the file before",
        "bytes": "size of the file before",
        "new_digest": "BLAKE3 of the file afterwards; null if unchanged or deleted",
        "new_bytes": "size of the file afterwards, or null",
        "saved": "bytes freed: 0 if another file has the same bytes; negative if they stay in "
        "addition to the new ones",
        "psnr": "minimum dB of each picture against the very first original, or null",
        "details": "object: measurements and encoder settings",
    }
)


def log_record(entry: OriginalLogEntry) -> dict[str, Any]:
    """The values of `LOG_FIELDS`."""
    return {
        "id": entry.id,
        "at": iso_time(entry.at_ns),
        "action": entry.action.value,
        "name": entry.name,
        "reason": entry.reason,
        "digest": entry.digest,
        "bytes": entry.size,
        "new_digest": entry.new_digest,
        "new_bytes": entry.new_size,
        "saved": entry.saved,
        "psnr": entry.psnr,
        "details": dict(entry.details or {}),
    }


AGE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "stage": "replace, decay or delete; held: due, but protected by a hold; left: "
        "impossible, or nothing would be saved",
        "reason": "rule of the policy; null for held",
        "since": "ISO 8601, UTC: the time from which its age counts",
        "clock": "the origin of that time: recording, arrival (in the store), change (of the "
        "file) or correction (written over, or added while the clock was wrong)",
        "bytes": "size of the file",
        "saved": "estimated bytes freed: 0 if another file has the same bytes; negative if they "
        "stay in addition to the new ones; null: not known",
        "psnr": "dB of the worst encoded picture against the very first original, for decay in "
        "the kept regions; null if nothing was encoded",
        "frames": "number of frames encoded",
        "failed": "why the sample could not be encoded, or the action is impossible, if that was "
        "found in this run; else null",
    }
)


def forecast_record(
    due: DueStep,
    forecast: ReencodeForecast | None,
    why: str | None,
    freed_so_far: FreedSpace,
    made: set[object],
    now_ns: int,
) -> dict[str, Any]:
    """The values of `AGE_FIELDS` for a step of a plan.

    Args:
        due: the step.
        forecast: its forecast; None: nothing was encoded.
        why: why nothing could be encoded.
        freed_so_far: the bytes that the steps before it free; this one is added.
        made: the encodings that the steps before it make; this one's is added.
        now_ns: Unix time of the plan.
    """
    saved = _saved_bytes(due, forecast, freed_so_far, made)
    return {
        "name": due.candidate.name,
        "stage": due.stage.value,
        "reason": due.reason,
        **_born_record(due.candidate, now_ns),
        "bytes": due.candidate.size,
        "saved": saved,
        "psnr": None if forecast is None or forecast.psnr == float("inf") else forecast.psnr,
        "frames": 0 if forecast is None else forecast.frames,
        "failed": why,
    }


def _saved_bytes(
    due: DueStep, forecast: ReencodeForecast | None, freed_so_far: FreedSpace, made: set[object]
) -> int | None:
    """Bytes that would be freed, or None if unknown.

    Equal results of equal bytes are one file, stored once; `made` has those counted so far.
    """
    if due.stage.value == "delete":
        return freed_so_far.release(due.candidate)
    if forecast is None:
        freed_so_far.note_possible(due.candidate)
        return None
    if not forecast.saves:
        return 0
    freed = freed_so_far.release(due.candidate)
    new = (due.candidate.digest, due.stage, forecast.codec, forecast.psnr, forecast.new_size)
    added = 0 if new in made else forecast.new_size
    made.add(new)
    return None if freed is None else freed - added


def unchanged_record(
    candidate: RetentionCandidate, stage: str, reason: str | None, now_ns: int
) -> dict[str, Any]:
    """The values of `AGE_FIELDS` for a video that stays as it is."""
    return {
        "name": candidate.name,
        "stage": stage,
        "reason": reason,
        **_born_record(candidate, now_ns),
        "bytes": candidate.size,
        "saved": 0,
        "psnr": None,
        "frames": 0,
        "failed": None,
    }


def _born_record(candidate: RetentionCandidate, now_ns: int) -> dict[str, Any]:
    at_ns, source = candidate.born(now_ns)
    return {"since": iso_time(at_ns), "clock": source.value}
