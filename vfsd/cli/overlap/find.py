"""``vfsd overlap find``: which videos of a store show the same place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import columns, print_json, print_line, shown
from vfsd.cli.overlap.records import ALIGNMENT, FIELDS, HEADINGS, cells, record
from vfsd.cli.session import Session
from vfsd.errors import EXIT_FINDINGS, NotFoundError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.overlap.search import OverlapReport


@define(
    "overlap find",
    examples=[
        "vfsd -s videos overlap find",
        "vfsd -s videos overlap find 'cam1/*' --refused --json",
    ],
    fields=FIELDS,
    exits=[NotFoundError, EXIT_FINDINGS],
    listing=True,
)
@click.argument("names", metavar="[VIDEO...]", nargs=-1)
@click.option(
    "--refused", is_flag=True, help="Also pairs that show the same place, but not the same pixels."
)
@click.pass_obj
def command(session: Session, names: tuple[str, ...], refused: bool) -> None:
    """Find pairs of videos that show the same place.

    Looks at all videos of a store, or at those that are named: at a few frames of each, when 0.5,
    1, 2, 4 ... seconds have passed.  All are taken to have started at the same time.  A pair agrees
    at a moment if what both see has 24 dB on either side, and its cameras are fixed if one
    homography holds at all moments.  Videos whose moving things are not the same were taken at
    different times, and are refused.

    What a pair has in common is an estimate, in bytes of the file that has it in fewer.  Joining
    does not save them: originals stay, and what is joined is stored besides.  Files with the very
    same bytes are stored once in any case.  Ends with 30 when a video could not be read.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root) as store:
        report = _found(session, store, paths)
        pairs = report.pairs if refused else report.joinable
        if session.json:
            for pair in pairs:
                print_json(record(pair))
        elif pairs:
            for line in columns([HEADINGS, *map(cells, pairs)], ALIGNMENT):
                print_line(line)
    left_out = len(report.pairs) - len(pairs)
    session.remark(
        f"{len(pairs)} pairs; of {report.videos} videos {report.compared} pairs were compared"
        + (f"; {left_out} more are refused (--refused)" if left_out else "")
    )
    for name, error in report.unreadable.items():
        click.echo(f"{shown(name)} was left out: {error}", err=True)
    if report.unreadable:
        click.get_current_context().exit(EXIT_FINDINGS)


def _found(session: Session, store: Store, names: list[str]) -> OverlapReport:
    from vfsd.cli.progress import Progress
    from vfsd.cli.selecting import videos_named
    from vfsd.overlap.cameras import overlaps

    chosen = [video.name for video in videos_named(store, names)] if names else None
    with Progress("looking at videos", None, shown=session.shows_progress) as progress:

        def tell(what: str, done: int, total: int) -> None:
            progress.label(what)
            progress.reach(done, total)

        return overlaps(store, chosen, on_progress=tell)
