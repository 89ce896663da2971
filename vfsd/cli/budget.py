"""``vfsd budget``, ``vfsd pin`` and ``vfsd unpin``: how many bytes tiles and renditions may take,
and what is exempt from eviction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define, limit_option
from vfsd.cli.options import Span, budget_value, size_value, span_value
from vfsd.cli.output import (
    duration_text,
    local_time,
    print_json,
    print_line,
    print_table,
    printable,
)
from vfsd.cli.session import Session, select_video_list, select_videos
from vfsd.core.timebase import human_bytes
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError, UsageError
from vfsd.records.budget_records import (
    EVICTION_FIELDS,
    LIMIT_FIELDS,
    USAGE_FIELDS,
    WHAT_IF_FIELDS,
    eviction_kind,
    eviction_record,
    kind_text,
    limit_record,
    pin_text,
    usage_record,
    what_if_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.budgets import Eviction, Limit, Pin, Usage, WhatIf
    from vfsd.core.view_request import Size
    from vfsd.derive.derived_data import DerivedBudget


Subject = tuple[str | None, "DerivedBudget"]
"""The name of a video, or None for the store; and the budget."""


def budgets_of(store: Store, names: Sequence[str]) -> list[Subject]:
    """The budgets of these videos, or of the store. Raises `NotFoundError`."""
    if not names:
        return [(None, store.budget)]
    return [(video.name, video.budget) for video in select_video_list(store, names)]


def limit_text(limit: Limit) -> str:
    """The limit for people."""
    if limit.bytes is not None:
        return human_bytes(limit.bytes)
    return "no limit" if limit.times is None else f"{limit} originals"


def budget_argument(function: Callable[..., None]) -> Callable[..., None]:
    """The budget, as the last argument."""
    # A type that returned None for "default" would count as a missing argument in Click 8.2.0.
    return click.argument(
        "limit", metavar="BUDGET", callback=lambda _context, _parameter, text: budget_value(text)
    )(function)


_USAGE_HEADINGS = (
    *("allowed", "used", "tiles", "renditions", "joined", "retired", "indexes", "pinned"),
    "video",
)
_USAGE_ALIGNMENT = ">>>>>>>><"

UsageRow = tuple[str | None, "Usage", "Sequence[Pin]"]


@define(
    "budget show",
    examples=["vfsd -s videos budget show", "vfsd -s videos budget show cam1/traffic.mp4 --json"],
    fields=USAGE_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
def budget_show(session: Session, names: tuple[str, ...]) -> None:
    """Show the size of tiles and renditions, and their budgets.

    A VIDEO is a name or a pattern. The default is the store, and all videos with tiles, renditions,
    pins or a budget of their own.
    """
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        rows = list(_rows_of_videos(store, paths) if names else _rows_of_store(store))
    if session.json:
        for row in rows:
            print_json(usage_record(*row))
        return
    print_table([_USAGE_HEADINGS, *(_usage_cells(*row) for row in rows)], _USAGE_ALIGNMENT)
    for name, _, pins in rows:
        for pin in pins:
            where = f"frames {pin.frames.start} to {pin.frames.stop - 1}"
            print_line(f"pinned: {pin_text(pin)}, {where} of {printable(name or '')}")


def _rows_of_videos(store: Store, paths: Sequence[str]) -> Iterator[UsageRow]:
    for video in select_video_list(store, paths):
        yield video.name, video.budget.usage(), video.budget.pins()


def _rows_of_store(store: Store) -> Iterator[UsageRow]:
    from vfsd.core.budgets import DEFAULT_VIDEO_LIMIT

    yield None, store.budget.usage(), ()
    for video in store.find():
        usage, pins = video.budget.usage(), video.budget.pins()
        if usage.used or usage.pinned or pins or usage.limit != DEFAULT_VIDEO_LIMIT:
            yield video.name, usage, pins


def _usage_cells(name: str | None, usage: Usage, _: Sequence[Pin]) -> tuple[str, ...]:
    allowed = limit_text(usage.limit)
    if usage.limit.times is not None:
        allowed = f"{human_bytes(usage.allowed or 0)} ({usage.limit})"
    parts = (
        usage.used,
        usage.tiles,
        usage.renditions,
        usage.joined,
        usage.retired,
        usage.indexes,
        usage.pinned,
    )
    return (
        allowed,
        *(human_bytes(part) for part in parts),
        "the whole store" if name is None else printable(name),
    )


@define(
    "budget set",
    examples=[
        "vfsd -s videos budget set 20G",
        "vfsd -s videos budget set cam1/traffic.mp4 5x",
        "vfsd -s videos budget set 'cam1/*' default",
    ],
    fields={
        **LIMIT_FIELDS,
        "evicted": "number of segments deleted",
        "bytes": "their size",
    },
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@budget_argument
def budget_set(session: Session, names: tuple[str, ...], limit: Limit | None) -> None:
    """Set how much tiles and renditions may take.

    A VIDEO is a name or a pattern; the default is the budget of the store. The BUDGET is a number
    of bytes (500000, 20M, 2G), a multiple of the original's bytes (5x), none for no limit, or
    default: 10x for a video and no limit for the store. Data above the budget is deleted at once:
    first data kept for a rollback, then the data that saves least per byte. Pinned data is not
    counted and not deleted.
    """
    root, paths = session.places_or_root(names)
    with session.opened(root, writing=True) as store:
        for name, budget in budgets_of(store, paths):
            evicted = budget.set(limit)
            usage, freed = budget.usage(), sum(one.bytes for one in evicted)
            if session.json:
                record = limit_record(name, usage)
                print_json({**record, "evicted": len(evicted), "bytes": freed})
                continue
            text = f"{'the store' if name is None else printable(name)}: {limit_text(usage.limit)}"
            if evicted:
                text += f"; {len(evicted)} segments, {human_bytes(freed)}, were deleted"
            session.remark(text)


@define(
    "budget what-if",
    examples=[
        "vfsd -s videos budget what-if 1G",
        "vfsd -s videos budget what-if cam1/traffic.mp4 0.5x",
    ],
    fields=WHAT_IF_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@budget_argument
def budget_what_if(session: Session, names: tuple[str, ...], limit: Limit | None) -> None:
    """Show the cost of another budget.

    Nothing is changed. VIDEO and BUDGET are as for `vfsd budget set`. The cost is the CPU time that
    the deleted segments have saved in reads. Its weight halves with every 500 reads of the store,
    so it predicts the extra time of as many reads as lately.
    """
    if limit is None:
        raise UsageError("BUDGET must be a size, a multiple or none, such as 20M or 10x")
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        of_number = {video.id: video.name for video in store.catalog.find()}
        for name, budget in budgets_of(store, paths):
            found = budget.what_if(limit)
            if session.json:
                print_json(what_if_record(name, found, of_number))
            else:
                _print_what_if(session, name, found, of_number)


def _print_what_if(
    session: Session, name: str | None, found: WhatIf, names: Mapping[int, str]
) -> None:
    subject = (
        f"{'the store' if name is None else printable(name)} with {limit_text(found.usage.limit)}"
    )
    if not found.gone:
        session.remark(f"{subject}: nothing would be deleted")
        return
    sums: dict[tuple[str, str], list[int]] = {}
    for one in found.gone:
        entry = sums.setdefault((names.get(one.video_id, ""), kind_text(one)), [0, 0])
        entry[0] += 1
        entry[1] += one.bytes
    size = sum(one.bytes for one in found.gone)
    print_line(
        f"{subject}: {len(found.gone)} segments, {human_bytes(size)}, would be deleted; they have "
        f"saved {duration_text(found.saved)} in {found.uses:.1f} recent uses"
    )
    rows = [
        (printable(video), kind, str(count), human_bytes(part))
        for (video, kind), (count, part) in sorted(sums.items())
    ]
    print_table([("video", "what", "segments", "size"), *rows], "<<>>")


@define(
    "budget log",
    examples=["vfsd -s videos budget log --limit 20", "vfsd -s videos budget log --json"],
    fields=EVICTION_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@limit_option
def budget_log(session: Session, names: tuple[str, ...], limit: int | None) -> None:
    """List segments deleted for lack of space, newest first.

    The log has the newest 100000 deletions.
    """
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        of_number = {video.id: video.name for video in store.catalog.find()}
        found = [one for _, budget in budgets_of(store, paths) for one in budget.evictions(limit)]
    newest = sorted(found, key=lambda one: -one.id)[:limit]
    rows = [("when", "full", "what", "frames", "bytes", "saved", "video")]
    for one in newest:
        name = of_number.get(one.video_id, "")
        if session.json:
            print_json(eviction_record(name, one))
        else:
            rows.append(_eviction_cells(name, one))
    if session.json:
        return
    if not newest:
        session.remark("nothing was deleted for lack of space")
        return
    print_table(rows, "<<<<>><")


def _eviction_cells(name: str, one: Eviction) -> tuple[str, str, str, str, str, str, str]:
    from vfsd.tiling.cost import VIEW_PROFILES

    kind = eviction_kind(one)
    what = kind if kind == "tiles" else f"{kind} {one.size[0]}x{one.size[1]}"
    if one.profile in VIEW_PROFILES:
        what += " of a view"
    return (
        local_time(one.at_ns),
        one.why,
        f"{what}, retired" if one.is_retired else what,
        f"{one.frames.start}-{one.frames.stop - 1}",
        human_bytes(one.bytes),
        duration_text(one.saved),
        printable(name),
    )


def pin_options(function: Callable[..., None]) -> Callable[..., None]:
    """Options that select the data of a video."""
    for option in (
        click.option(
            "--size", metavar="WxH", type=size_value, help="Only the rendition in that size."
        ),
        click.option("--tiles", is_flag=True, help="Only tiles."),
        click.option(
            "--span", metavar="A-B", type=span_value, help="Only frames in these seconds."
        ),
    ):
        function = option(function)
    return function


def _displayed_size(video: Video, size: Size | None) -> tuple[int, int] | None:
    """A size of the displayed frame, which a rendition of the video may have."""
    if size is None:
        return None
    from vfsd.cli.retile_plan import coded_size

    media = video.original.media
    width, height = coded_size(size, media)
    return (height, width) if media.rotation in (90, 270) else (width, height)


@define(
    "pin",
    examples=[
        "vfsd -s videos pin cam1/traffic.mp4",
        "vfsd -s videos pin cam1/traffic.mp4 --tiles --span 0-2",
        "vfsd -s videos pin cam1/traffic.mp4 --size 160x120",
    ],
    fields={
        "name": "path from the root of the store",
        "frames": "[first, end]",
        "what": "all, tiles, or the size of a rendition, WxH",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@pin_options
def pin(
    session: Session,
    names: tuple[str, ...],
    span: Span | None,
    tiles: bool,
    size: Size | None,
) -> None:
    """Keep tiles and renditions even over budget.

    A VIDEO is a name or a pattern. A pin covers present and future tiles and renditions that reads
    may use; retired tiles are excluded. Pinned bytes do not count for the budget. `vfsd layout
    drop` and `vfsd rendition drop` delete pinned data, too.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        videos = select_videos(store, paths)
        for video in videos.values():
            video.frames_in(span)  # check the span for all videos first
        for path, video in videos.items():
            picture = _displayed_size(video, size)
            pin = video.budget.pin(span=span, tiles=tiles, size=picture)
            what = "tiles" if tiles else "all"
            if picture is not None:
                what = f"{picture[0]}x{picture[1]}"
            if session.json:
                frames = [pin.frames.start, pin.frames.stop]
                print_json({"name": path, "frames": frames, "what": what})
            else:
                session.remark(
                    f"pinned: {what}, frames {pin.frames.start} to {pin.frames.stop - 1} of "
                    f"{printable(path)}"
                )


@define(
    "unpin",
    examples=[
        "vfsd -s videos unpin cam1/traffic.mp4",
        "vfsd -s videos unpin cam1/traffic.mp4 --span 0-1",
    ],
    fields={
        "name": "path from the root of the store",
        "evicted": "number of segments deleted, including those of joined videos",
        "bytes": "their size",
    },
    exits=[NotFoundError, OutOfRangeError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@pin_options
def unpin(
    session: Session,
    names: tuple[str, ...],
    span: Span | None,
    tiles: bool,
    size: Size | None,
) -> None:
    """Remove pins of `vfsd pin`.

    A VIDEO is a name or a pattern. The options select a pin; without options, all pins of a video
    are removed. With `--span`, the rest of a longer pin stays. The bytes count for the budget
    again, and tiles over budget are deleted. Joined data counts for both budgets.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        videos = select_videos(store, paths)
        for video in videos.values():
            video.frames_in(span)  # check the span for all videos first
        for path, video in videos.items():
            evicted = video.budget.unpin(span=span, tiles=tiles, size=_displayed_size(video, size))
            freed = sum(one.bytes for one in evicted)
            if session.json:
                print_json({"name": path, "evicted": len(evicted), "bytes": freed})
                continue
            text = f"{printable(path)} is unpinned"
            if evicted:
                text += f"; {len(evicted)} segments, {human_bytes(freed)}, were deleted"
            session.remark(text)
