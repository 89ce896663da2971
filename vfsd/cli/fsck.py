"""``vfsd fsck``: is everything there, and does it fit together?"""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, shown, styled
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.errors import EXIT_FINDINGS, BusyError

_LEFT = (
    "`vfsd scrub --from BACKUP` puts back bytes that are damaged or gone, and so does "
    "`vfsd ingest` of the same files"
)


@define(
    "fsck",
    examples=["vfsd -s videos fsck", "vfsd -s videos fsck --deep --repair"],
    fields={
        "check": "name of the check that found it",
        "message": "what is wrong",
        "repaired": "whether it has been put right",
    },
    exits=[BusyError, EXIT_FINDINGS],
    listing=True,
)
@click.option("--repair", is_flag=True, help="Put right what can be put right.")
@click.option("--deep", is_flag=True, help="Read every byte and compare it with its checksum.")
@click.pass_obj
def command(session: Session, repair: bool, deep: bool) -> None:
    """Check the store.

    Prints a line for each thing that is wrong; nothing when all is well.  Ends with 30 when
    something is left that was not repaired.  What only a store at rest can be asked is left out
    while it is mounted.  Recordings that were not finished are told, and left to `vfsd recover`.
    Originals without sums of their blocks are not wrong: how many there are
    goes to stderr.
    """
    from vfsd.maintenance import fsck
    from vfsd.storage import checksum_registry

    with session.opened(session.root(), writing=repair) as store:
        with Progress("checking", None, shown=session.shows_progress) as progress:

            def on_progress(name: str, done: int, total: int) -> None:
                progress.label(f"checking {name}")
                progress.reach(done, total)

            findings = fsck.run(store.parts, repair=repair, deep=deep, on_progress=on_progress)
        unsummed = checksum_registry.without_sums(store.catalog)
        under_way = fsck.under_way(store.parts)
        for finding in findings:
            if session.json:
                print_json(
                    {
                        "check": finding.check,
                        "message": finding.message,
                        "repaired": finding.repaired,
                    }
                )
            else:
                print_line(_line(finding.check, finding.message, finding.repaired))
    if unsummed:
        session.remark(f"{unsummed}; {checksum_registry.SUMS_ADVICE}")
    if under_way:
        session.remark(
            f"{under_way} files were in use when this backup was made: who mounts what is restored "
            "of it sees to them"
        )
    left = sum(not finding.repaired for finding in findings)
    if not findings:
        session.remark("nothing is wrong")
    elif not left:
        session.remark(f"{len(findings)} repaired")
    else:
        # Of these each line tells itself what can be done.
        told = all(
            finding.repaired or finding.check in ("recordings", "permissions")
            for finding in findings
        )
        again = "--deep --repair" if deep else "--repair"
        advice = "" if told else f"; {_LEFT}" if repair else f"; try {again}"
        session.remark(f"{left} not repaired{advice}")
        click.get_current_context().exit(EXIT_FINDINGS)


def _line(check: str, message: str, repaired: bool) -> str:
    state = styled("repaired", "green") if repaired else styled("wrong", "red")
    return f"{state}  {check}: {shown(message)}"
