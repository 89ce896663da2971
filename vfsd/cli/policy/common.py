"""What commands on policies have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vfsd.core.policy import Policy

POLICY_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "policy": "what counts for it, as `vfsd policy set` takes it",
        "own": "whether it was said of that very file or directory",
        "original": "keep or replaceable",
        "psnr": "dB that what takes an original's place has at least, in each plane of each "
        "picture, against the very first original",
        "codec": "that originals are encoded in when they age",
        "replace_after": "seconds of age at which `vfsd age` replaces an original, or null",
        "decay_after": "seconds of age at which only what keep finds keeps its quality, or null",
        "keep": "labels, or null",
        "delete_after": "seconds of age at which `vfsd age` deletes a video, or null",
        "delete_below": "bytes: while less are free on the disk, `vfsd age` deletes the oldest; or "
        "null",
        "delete_above": "bytes: while the videos of the directory that it was said of have more, "
        "`vfsd age` deletes the oldest; or null",
        "reads": "dB of luma that tiles need so that reads which ask for none may use them, or "
        "null: as the store has it in minimum_psnr",
    }
)


def policy_record(name: str, policy: Policy, own: bool) -> dict[str, Any]:
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
    }
