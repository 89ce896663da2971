"""``vfsd doctor``: is everything here that a store and a mount need?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, styled
from vfsd.cli.session import Session
from vfsd.errors import EXIT_FINDINGS, UsageError

if TYPE_CHECKING:
    from vfsd.cli.health import Diagnosis

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@define(
    "doctor",
    examples=["vfsd -s videos doctor", "vfsd doctor --json"],
    fields={
        "check": "what was looked at",
        "status": "ok, warn or fail",
        "message": "what was found",
        "advice": "what to do about it, else null",
    },
    exits=[EXIT_FINDINGS],
    listing=True,
)
@click.pass_obj
def command(session: Session) -> None:
    """See what is missing on this machine, and what ails a store.

    The store is looked at where --store, the mount around the working directory or VFSD_STORE name
    one.  Ends with 30 when something has to be put right; warnings do not count.
    """
    from vfsd.cli import health

    failed = False
    for diagnosis in health.machine():
        failed |= _report(session, diagnosis)
    try:
        root = session.root()
    except UsageError:
        root = None
    if root is not None:
        for diagnosis in health.store(root):
            failed |= _report(session, diagnosis)
    if failed:
        click.get_current_context().exit(EXIT_FINDINGS)


def _report(session: Session, found: Diagnosis) -> bool:
    """Print what was found; whether it is a failure."""
    if session.json:
        print_json(
            {
                "check": found.check,
                "status": found.status,
                "message": found.message,
                "advice": found.advice,
            }
        )
    elif not session.quiet or found.status != "ok":
        status = styled(found.status.ljust(4), _COLOURS[found.status])
        print_line(f"{status}  {found.check.ljust(11)}  {found.message}")
        if found.advice:
            print_line(f"{'':6}{'':13}{found.advice}")
    return found.status == "fail"
