"""``vfsd umount``: end a mount."""

from __future__ import annotations

from pathlib import Path

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.session import Session
from vfsd.errors import BusyError, MountError


@define(
    "umount",
    examples=["vfsd umount mnt"],
    fields={"mountpoint": "where the store was to be seen"},
    exits=[BusyError, MountError],
)
@click.argument("mountpoint", metavar="DIR", type=Path)  # click's own paths ask for their stat
@click.pass_obj
def command(session: Session, mountpoint: Path) -> None:
    """End a mount, once what was written to it is safe.

    Ends with 12 while somebody has a file open in it, and where it does not answer.
    """
    from vfsd.mount import control

    control.unmount(mountpoint)
    if session.json:
        print_json({"mountpoint": str(mountpoint.absolute())})
    else:
        session.remark(f"unmounted {shown(str(mountpoint))}")
