"""``vfsd age log``: what became of originals."""

from __future__ import annotations

import click

from vfsd.cli.age.records import ENTRY_FIELDS, entry_record
from vfsd.cli.command import define
from vfsd.cli.output import columns, local_time, print_json, print_line, shown
from vfsd.cli.session import Session
from vfsd.core.timebase import human_bytes


@define(
    "age log",
    examples=["vfsd -s videos age log", "vfsd -s videos age log cam1/traffic.mp4 --json"],
    fields=ENTRY_FIELDS,
    listing=True,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Only the newest N.")
@click.pass_obj
def command(session: Session, names: tuple[str, ...], limit: int | None) -> None:
    """List what became of originals and why, the newest first.

    Lines about videos that are gone stay; a NAME is what a video was called then.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.looked_into(root) as parts, parts.catalog.reading() as seen:
        found = [one for one in seen.originals.log() if not paths or one.name in paths][:limit]
    rows = []
    for one in found:
        if session.json:
            print_json(entry_record(one))
            continue
        after = "" if one.new_size is None else human_bytes(one.new_size)
        quality = "" if one.psnr is None else f"{one.psnr:.1f} dB"
        rows.append(
            (
                local_time(one.at_ns),
                one.action.value,
                human_bytes(one.size),
                after,
                quality,
                shown(one.name),
                shown(one.reason),
            )
        )
    if not found:
        session.remark("nothing has become of any original")
    for line in columns(rows, "<<>>><<"):
        print_line(line)
