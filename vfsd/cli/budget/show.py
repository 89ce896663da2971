"""``vfsd budget show``: what derived data takes, and may take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.budget.common import LIMIT_FIELDS, limit_record, limit_text
from vfsd.cli.command import define
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vfsd.api.store import Store
    from vfsd.core.budgets import Pin, Usage

_HEADINGS = ("allowed", "used", "tiles", "renditions", "joined", "retired", "pinned", "video")
_ALIGNMENT = ">>>>>>><"

Row = tuple[str | None, "Usage", "Sequence[Pin]"]


@define(
    "budget show",
    examples=["vfsd -s videos budget show", "vfsd -s videos budget show cam1/traffic.mp4 --json"],
    fields={
        **LIMIT_FIELDS,
        "original": "bytes of the originals as they were written, before others took their places",
        "tiles": "bytes of tiles that reads may use",
        "renditions": "bytes of renditions that reads may use",
        "joined": "bytes of what is joined with other cameras' videos: its share",
        "retired": "bytes of what is kept for a step back",
        "pinned": "bytes of what is pinned, which are not charged",
        "pins": "list of objects with frames ([first, end]) and what (all, tiles, or a size WxH)",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.pass_obj
def command(session: Session, names: tuple[str, ...]) -> None:
    """Show what tiles and renditions take, and may take.

    A VIDEO is a name or a pattern; without one the store as a whole is shown, and the videos that
    have any, or of which somebody has said something.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root) as store:
        rows = list(_named(store, paths) if names else _all(store))
    if session.json:
        for row in rows:
            print_json(_record(*row))
        return
    for line in columns([_HEADINGS, *(_cells(*row) for row in rows)], _ALIGNMENT):
        print_line(line)
    for name, _, pins in rows:
        for pin in pins:
            where = f"frames {pin.frames.start} to {pin.frames.stop - 1}"
            print_line(f"pinned: {_what(pin)}, {where} of {shown(name or '')}")


def _named(store: Store, paths: Sequence[str]) -> Iterator[Row]:
    for video in videos_named(store, paths):
        yield video.name, video.budget.usage(), video.pins()


def _all(store: Store) -> Iterator[Row]:
    from vfsd.core.budgets import OF_VIDEO

    yield None, store.budget.usage(), ()
    for video in store.find():
        usage, pins = video.budget.usage(), video.pins()
        if usage.used or usage.pinned or pins or usage.limit != OF_VIDEO:
            yield video.name, usage, pins


def _record(name: str | None, usage: Usage, pins: Sequence[Pin]) -> dict[str, Any]:
    return {
        **limit_record(name, usage),
        "original": usage.original,
        "tiles": usage.tiles,
        "renditions": usage.renditions,
        "joined": usage.joined,
        "retired": usage.retired,
        "pinned": usage.pinned,
        "pins": [
            {"frames": [pin.frames.start, pin.frames.stop], "what": _what(pin)} for pin in pins
        ],
    }


def _cells(name: str | None, usage: Usage, _: Sequence[Pin]) -> tuple[str, ...]:
    allowed = limit_text(usage.limit)
    if usage.limit.times is not None:
        allowed = f"{human_bytes(usage.allowed or 0)} ({usage.limit})"
    parts = (
        usage.used,
        usage.tiles,
        usage.renditions,
        usage.joined,
        usage.retired,
        usage.pinned,
    )
    return (
        allowed,
        *(human_bytes(part) for part in parts),
        "all of the store" if name is None else shown(name),
    )


def _what(pin: Pin) -> str:
    if pin.size is not None:
        return f"{pin.size[0]}x{pin.size[1]}"
    return "all" if pin.role is None else "tiles"
