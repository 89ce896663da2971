"""What commands on budgets have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.selecting import videos_named
from vfsd.cli.values import a_budget
from vfsd.core.timebase import human_bytes

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.core.budgets import Held, Limit, Usage
    from vfsd.derive.budget_service import DerivedBudget

LIMIT_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store; null: of the whole store",
        "limit": "bytes, Nx (times the originals as they were written) or none",
        "allowed": "bytes that it comes to, null without a limit",
        "used": "bytes that are charged",
    }
)

Subject = tuple[str | None, "DerivedBudget"]
"""A video's name, or None: the store; and its budget."""


def subjects(store: Store, names: Sequence[str]) -> list[Subject]:
    """The videos with these names; without any, the store.  Raises `NotFoundError`."""
    if not names:
        return [(None, store.budget)]
    return [(video.name, video.budget) for video in videos_named(store, names)]


def limit_record(name: str | None, usage: Usage) -> dict[str, Any]:
    """The values of `LIMIT_FIELDS`."""
    return {
        "name": name,
        "limit": str(usage.limit),
        "allowed": usage.allowed,
        "used": usage.used,
    }


def limit_text(limit: Limit) -> str:
    """For people."""
    if limit.bytes is not None:
        return human_bytes(limit.bytes)
    return "no limit" if limit.times is None else f"{limit} originals"


def kind_text(held: Held) -> str:
    """What a segment is, in a word or two."""
    from vfsd.core.model import Role
    from vfsd.tiling.cost import VIEW_PROFILES

    if held.is_retired:
        return "retired"
    if held.role is Role.TILED:
        return "tiles"
    if held.role is Role.JOINED:
        return "joined"
    origin = " of a view" if held.profile in VIEW_PROFILES else ""
    return f"rendition {held.size[0]}x{held.size[1]}{origin}"


def budget_argument(function: Callable[..., None]) -> Callable[..., None]:
    """The last word of a line: a budget."""
    return click.argument("limit", metavar="BUDGET", type=a_budget)(function)
