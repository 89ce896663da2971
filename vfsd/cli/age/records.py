"""How lines of the log of originals are shown."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.cli.output import iso_time, shown
from vfsd.core.timebase import human_bytes

if TYPE_CHECKING:
    from vfsd.core.policy import Entry

ENTRY_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "id": "number of the line",
        "at": "ISO 8601, UTC",
        "action": "replaced, decayed, deleted, left (nothing could be done, or saved), held or "
        "released",
        "name": "path from the root of the store, as it was then",
        "reason": "why",
        "digest": "blake3 of the file before",
        "bytes": "of the file before",
        "new_digest": "blake3 of the file afterwards; null: it is the same, or the file is gone",
        "new_bytes": "of the file afterwards, or null",
        "saved": "bytes that are free since: of those that other files had, too, none; negative "
        "where they stay beside the new ones",
        "psnr": "dB that each picture has at least against the very first original, or null",
        "details": "object: what was measured, and how it was made",
    }
)


def entry_record(entry: Entry) -> dict[str, Any]:
    """The values of `ENTRY_FIELDS`."""
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


def entry_text(entry: Entry) -> str:
    """For people."""
    text = f"{entry.action.value} {shown(entry.name)} ({entry.reason})"
    if entry.new_size is not None:
        text += f": {human_bytes(entry.size)} became {human_bytes(entry.new_size)}"
    why = (entry.details or {}).get("why")
    return f"{text}: {why}" if why else text
