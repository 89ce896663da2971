"""``vfsd scrub``: are all stored bytes those that were stored?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.failure import describe, report
from vfsd.cli.output import print_json, print_line, shown, styled
from vfsd.cli.progress import Progress
from vfsd.cli.selecting import videos_named
from vfsd.cli.session import Session
from vfsd.cli.values import Number, a_byte_count
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    NoSpaceError,
    NoStoreError,
    NotFoundError,
    ReadOnlyError,
)

if TYPE_CHECKING:
    from vfsd.maintenance.scrub import Damage

_DAY_SECONDS = 86400.0


@define(
    "scrub",
    examples=[
        "vfsd -s videos scrub",
        "vfsd -s videos scrub 'cam1/*.mp4' --json",
        "vfsd -s videos scrub --rate 50MiB --older-than 30",
    ],
    fields={
        "kind": "original, linked (indexed in place) or tiles (or renditions, or joined)",
        "names": "the videos that it belongs to",
        "object": "key of the object; null for a linked file",
        "path": "of a linked file; null for an object",
        "message": "what is wrong",
        "bytes": "[first, end] of each range of bytes that is damaged; empty: it is gone",
        "frames": "[first, end] of each range of frames that need them; of originals; null where "
        "nobody can tell, as the frame table is damaged, too",
        "repaired": "put back, dropped (tiles: they can be made again), counted anew (its sums "
        "were damaged), recorded (its row had gone), or null",
    },
    exits=[
        NotFoundError,
        ReadOnlyError,
        NoStoreError,
        NoSpaceError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.option(
    "--rate",
    metavar="BYTES",
    type=a_byte_count,
    help="Read so many bytes a second at most: 50MiB.",
)
@click.option(
    "--older-than",
    metavar="DAYS",
    type=Number(0),
    help="Leave out what was looked at since then.",
)
@click.option(
    "--from",
    "sources",
    metavar="STORE",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Take good copies of what is damaged from this store or backup.",
)
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    rate: int | None,
    older_than: float | None,
    sources: tuple[Path, ...],
) -> None:
    """Read all that is stored, and compare it with its checksums.

    Originals, files indexed in place, tiles and renditions: of the VIDEOs, which are names or
    patterns, or of all.  What was not looked at for longest comes first, and what was interrupted
    goes on where it was, within a file too.  It may run while the store is mounted and in use, and
    stands back for all others.

    Damaged tiles and renditions are dropped; damaged originals are put back if a store given with
    --from has them, else a line tells which bytes and frames are lost, also of those that are left
    out and known to be damaged.  What cannot be put back, as where the disk is full, is told at the
    end, and the rest is.  Ends with 30 when anything was damaged, else with 1 when there was
    something that may not be read, or a file indexed in place that cannot be reached: that is
    named, and the rest is looked at.
    """
    from vfsd.core.idle_priority import stand_back
    from vfsd.disk.object_store import ObjectStore
    from vfsd.disk.store_layout import StoreDirectory
    from vfsd.maintenance.scrub import Scrubber

    given = [ObjectStore(StoreDirectory.open(path)) for path in sources]
    root, paths = session.places(names) if names else (session.root(), [])
    began = time.monotonic()
    found: list[Damage] = []
    with session.opened(root, writing=True) as store:
        videos = [video.info for video in videos_named(store, paths)] if names else None
        stand_back()
        with Progress("reading", None, shown=session.shows_progress, in_bytes=True) as progress:
            scrubber = Scrubber(
                store.parts,
                videos,
                older_than=None if older_than is None else older_than * _DAY_SECONDS,
                rate=rate,
                sources=given,
                on_progress=progress.reach,
            )
            if scrubber.goes_on:
                session.remark("going on with what was interrupted")
            for damage in scrubber.run():
                found.append(damage)
                with progress.aside():
                    _tell(session, damage)
    count, size = scrubber.planned
    session.remark(
        f"{count} objects and files, {human_bytes(size)}, in {time.monotonic() - began:.1f} s: "
        + _outcome(found, len(scrubber.unread))
    )
    failures = [describe(error) for error in [*scrubber.unread, *scrubber.stuck]]
    for failure in failures:
        report(failure, as_json=session.json)
    if found:
        click.get_current_context().exit(EXIT_FINDINGS)
    if failures:
        click.get_current_context().exit(failures[0].exit_code)


def _outcome(found: list[Damage], unread: int) -> str:
    outcome = "nothing is damaged"
    if found:
        left = sum(damage.repaired is None for damage in found)
        outcome = f"{len(found)} damaged, of which {left} could not be put right"
    return f"{outcome}; {unread} could not be looked at" if unread else outcome


def _tell(session: Session, damage: Damage) -> None:
    if session.json:
        print_json(
            {
                "kind": damage.kind,
                "names": list(damage.names),
                "object": damage.place.object_key,
                "path": damage.place.link_path,
                "message": damage.message,
                "bytes": [[one.start, one.stop] for one in damage.ranges],
                "frames": None
                if damage.frames is None
                else [[one.start, one.stop] for one in damage.frames],
                "repaired": damage.repaired,
            }
        )
        return
    if damage.repaired is None:
        state = styled("damaged", "red")
    else:
        state = styled(damage.repaired, "green")
    print_line(f"{state}  {shown(damage.message)}")
