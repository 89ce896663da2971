"""``vfsd searches``: searches that are kept under a name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.events import event_cells
from vfsd.cli.labels import print_boxes, print_unknown_labels, timed_boxes
from vfsd.cli.output import print_json, print_line, print_table, printable
from vfsd.cli.session import Session
from vfsd.errors import NotFoundError, OutOfRangeError, ReadOnlyError
from vfsd.records.label_records import SEARCH_FIELDS, box_record, event_record, search_record

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.store_labels import StoreDetections


@define(
    "searches ls",
    examples=["vfsd -s videos searches ls", "vfsd -s videos searches ls --json"],
    fields=SEARCH_FIELDS,
    listing=True,
)
def searches_ls(session: Session) -> None:
    """List the saved searches.

    `vfsd labels query --save NAME` and `vfsd events --save NAME` save them. A line has a name, what
    the search finds (boxes or events) and its arguments.
    """
    with session.opened(session.root()) as store:
        found = store.searches.all()
    if session.json:
        for one in found:
            print_json(search_record(one))
        return
    print_table(
        (
            (printable(one.name), one.kind, printable(json.dumps(dict(one.arguments))))
            for one in found
        ),
        "<<<",
    )
    if not found:
        session.remark("no searches saved")


@define(
    "searches run",
    examples=[
        "vfsd -s videos searches run 'cars at the gate'",
        "vfsd -s videos searches run 'cars at the gate' --json",
    ],
    fields={
        "search": "name of the search",
        "kind": "boxes or events",
        "result": "object: a box as of `vfsd labels query`, or an event as of `vfsd events`",
    },
    exits=[NotFoundError, OutOfRangeError],
    listing=True,
    unknown_labels=True,
)
@click.argument("name", metavar="SEARCH")
def searches_run(session: Session, name: str) -> None:
    """Run a saved SEARCH.

    It finds what there is now, also in videos that came after it was saved. The lines are those of
    `vfsd labels query` or `vfsd events`.
    """
    from vfsd.api.events import EventList

    with session.opened(session.root()) as store:
        found = store.searches.find(name)
        if not isinstance(found, EventList):
            _print_boxes(session, store, name, found)
        elif session.json:
            for event in found:
                print_json({"search": name, "kind": "events", "result": event_record(event)})
        else:
            print_table(map(event_cells, found), "<<<<")
        print_unknown_labels(session, found.unknown_labels)


def _print_boxes(session: Session, store: Store, name: str, found: StoreDetections) -> None:
    for path, rows in found.by_video():
        video = store[path]
        if session.json:
            for one, seconds in timed_boxes(video, rows):
                record = {"name": path, **box_record(one, seconds)}
                print_json({"search": name, "kind": "boxes", "result": record})
            continue
        print_line(f"{printable(path)}:")
        print_boxes(session, video, rows)


@define(
    "searches rm",
    examples=["vfsd -s videos searches rm 'cars at the gate'"],
    fields={"search": "name of the search"},
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="SEARCH...", nargs=-1, required=True)
def searches_rm(session: Session, names: tuple[str, ...]) -> None:
    """Remove saved searches; boxes and events stay."""
    with session.opened(session.root(), writing=True) as store:
        for name in names:
            store.searches.remove(name)
            session.report({"search": name}, f"removed {printable(name)}")
