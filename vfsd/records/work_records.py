"""Records of orders of work."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.timebase import iso_time

if TYPE_CHECKING:
    from vfsd.work.orders import Order, OrderState


ORDER_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "order": "id of the order: eight hexadecimal digits",
        "verb": "the command, such as retile",
        "created": "when it was planned, ISO 8601, UTC",
        "cancelled": "when it was cancelled, or null",
        "units": "number of units",
        "outcomes": "object, number of units by outcome: made, skipped (nothing was left to do), "
        "outdated (the video has other bytes, or is gone), taken (the name has another file), "
        "failed, refused (three workers crashed while they performed it), cancelled, and waiting",
        "cost": "expected CPU seconds",
        "cpu_seconds": "CPU seconds spent, by all attempts",
        "runs": "number of attempts",
        "again": "number of attempts that found a server busy or away, or whose process ended, and "
        "were repeated",
        "workers": "number of processes",
        "running": "number of processes that are performing a unit, as far as is known",
        "frames": "number of frames worked on",
        "made": "number of new segments, boxes or videos, or of files that were checked",
        "bytes_read": "approximate number of bytes of originals",
        "bytes_written": "bytes of new data",
    }
)
"""Keys of an order."""


def order_record(order: Order, state: OrderState) -> dict[str, Any]:
    record = order.record
    cancelled = record.cancelled_ns
    return {
        "order": order.id,
        "verb": record.verb,
        "created": iso_time(record.created_ns),
        "cancelled": None if cancelled is None else iso_time(cancelled),
        "units": state.units,
        "outcomes": dict(state.counts),
        "cost": record.cost,
        "cpu_seconds": state.cpu_seconds,
        "runs": state.runs,
        "again": state.again,
        "workers": len(state.workers),
        "running": len(set(state.running.values())),
        "frames": state.frames,
        "made": state.made,
        "bytes_read": state.bytes_read,
        "bytes_written": state.bytes_written,
    }
