"""``vfsd push``: copies of objects in a bucket."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import Progress
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    BusyError,
    ExtraMissingError,
    StoreError,
    UnreachableError,
    UsageError,
)


@define(
    "push",
    examples=[
        "vfsd -s videos push --objects s3://bucket/videos --option region=eu-central-1",
        "vfsd -s videos push --json",
    ],
    fields={
        "url": "the bucket, and the prefix of all names in it",
        "objects": "number of objects that this run has copied",
        "bytes": "their size",
        "elsewhere": "number of objects that neither the bucket nor this directory has",
        "damaged": "keys of objects that are damaged here, and were not copied",
    },
    exits=[
        UsageError,
        StoreError,
        BusyError,
        UnreachableError,
        ExtraMissingError,
        EXIT_FINDINGS,
        EXIT_INTERRUPTED,
    ],
)
@click.option(
    "--objects",
    metavar="URL",
    help="The bucket, such as s3://bucket/prefix; needed the first time.",
)
@click.option(
    "--option",
    "options",
    metavar="NAME=VALUE",
    multiple=True,
    help="An option of its server: endpoint, region, profile, path_style or checksum.",
)
def push(session: Session, objects: str | None, options: tuple[str, ...]) -> None:
    """Copy the objects of a store into a bucket.

    Hosts that joined the store read them from there. New objects are uploaded when they are made,
    so only a store that was local before needs this. Only what the bucket lacks is copied; after an
    interruption the same command continues. Credentials come from the environment or a profile, as
    for other programs of AWS. Ends with 30 if objects are damaged here: they are named, and the
    rest is copied.
    """
    from vfsd.maintenance.push import push as push_objects
    from vfsd.maintenance.push import use_bucket

    if options and objects is None:
        raise UsageError("--option needs --objects")
    if objects is not None:
        with session.opened(session.root()) as store:
            use_bucket(store.parts, objects, parsed_options(options))
    with (
        session.opened(session.root()) as store,
        Progress("copying", None, shown=session.shows_progress, in_bytes=True) as progress,
    ):
        done = push_objects(store.parts, on_progress=progress.reach)
        bucket = store.parts.directory.bucket
    assert bucket is not None
    session.print_result(
        {
            "url": bucket[0],
            "objects": done.objects,
            "bytes": done.bytes,
            "elsewhere": done.elsewhere,
            "damaged": list(done.damaged),
        },
        f"{done.objects} objects, {human_bytes(done.bytes)}, to {bucket[0]}",
    )
    if done.elsewhere:
        session.remark(f"{done.elsewhere} objects are files of other homes: run it there, too")
    for key in done.damaged:
        session.remark(f"object {key} is damaged: run `vfsd scrub`")
    if done.damaged:
        click.get_current_context().exit(EXIT_FINDINGS)


def parsed_options(texts: tuple[str, ...]) -> dict[str, str | bool]:
    """Return the options of a server from NAME=VALUE.  Raises `UsageError`."""
    found: dict[str, str | bool] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError(f"an option must be NAME=VALUE, got {text!r}")
        found[name] = value.lower() == "true" if value.lower() in ("true", "false") else value
    return found
