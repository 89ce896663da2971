"""What commands on holds have in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.cli.output import iso_time

if TYPE_CHECKING:
    from vfsd.core.policy import Hold

HOLD_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "id": "number of the hold",
        "reason": "as it was given",
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
