"""``vfsd recover``: make videos of recordings that were not finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.failure import Failure, describe
from vfsd.cli.output import local_time, print_json, print_line, print_remark, shown
from vfsd.cli.session import Session, store_name
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    BusyError,
    ExistsError,
    NoSpaceError,
    NotFoundError,
    ReadOnlyError,
    RefusedMediaError,
    UsageError,
    VfsdError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.write.recordings import Recording


@define(
    "recover",
    examples=["vfsd -s videos recover --dry-run", "vfsd -s videos recover --json"],
    fields={
        "name": "path from the root of the store that it was to have",
        "bytes": "of what there is",
        "written": "when it was last written, Unix time",
        "file": "where it lies, or lay",
        "recovered": "path of the video that was made; null where none was",
        "frames": "how many that has; null where none was made",
        "error": "why none was made; null where nothing is wrong",
    },
    exits=[
        NotFoundError,
        ExistsError,
        RefusedMediaError,
        ReadOnlyError,
        BusyError,
        NoSpaceError,
    ],
    listing=True,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--as", "wanted", metavar="NAME", help="Call the video so; of one recording only.")
@click.option("--dry-run", is_flag=True, help="Only list them.")
@click.pass_obj
def command(session: Session, names: tuple[str, ...], wanted: str | None, dry_run: bool) -> None:
    """Make videos of recordings that were not finished.

    These are left by a `vfsd write` or a writer in Python that was killed, or had no more room on
    the disk, by one whose input ended in the middle of a picture, and by one that had everything
    and could not publish it, as while others keep the catalog locked.  Without a NAME, all of them;
    the oldest first.

    Each gets the name that it was to have, or one like that where that is taken, or is being
    written by now: cam-recovered.mp4.  What shows no picture stays, as all do that nobody recovers,
    until `vfsd gc` takes it.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root, writing=not dry_run) as store:
        found = _named(store, paths)
        if wanted is not None and len(found) != 1:
            raise UsageError(
                f"--as is for one recording, and there are {len(found)}",
                hint="say which NAME; `vfsd recover --dry-run` lists them",
            )
        name = None if wanted is None else store_name(wanted)
        failures = []
        for one in found:
            if dry_run:
                _say(session, one, None, None)
                continue
            try:
                _say(session, one, store.recover(one, name), None)
            except (VfsdError, OSError) as error:
                failures.append(describe(error))
                _say(session, one, None, failures[-1])
    if not found:
        session.remark("no recording was left unfinished")
    if failures:
        click.get_current_context().exit(failures[0].exit_code)


def _named(store: Store, names: list[str]) -> list[Recording]:
    """Raises `NotFoundError`."""
    found = store.recordings()
    for name in names:
        if not any(one.name == name for one in found):
            raise NotFoundError(
                f"no recording of {name!r} was left unfinished",
                hint="`vfsd recover --dry-run` lists those that were",
            )
    return [one for one in found if not names or one.name in names]


def _say(
    session: Session, recording: Recording, made: Video | None, failure: Failure | None
) -> None:
    if session.json:
        print_json(
            {
                "name": recording.name,
                "bytes": recording.size,
                "written": recording.at_ns / 1e9,
                "file": str(recording.path),
                "recovered": None if made is None else made.name,
                "frames": None if made is None else len(made),
                "error": None if failure is None else failure.message,
            }
        )
    elif made is not None:
        print_line(f"{shown(made.name)}: {len(made)} frames, {human_bytes(recording.size)}")
    elif failure is not None:
        print_remark(
            f"vfsd: {shown(recording.name)} is left in {recording.path}: {failure.message}"
        )
    else:
        print_line(
            f"{shown(recording.name)}: {human_bytes(recording.size)}, last written "
            f"{local_time(recording.at_ns)}"
        )
