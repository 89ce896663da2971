"""``vfsd mount`` and ``vfsd umount``."""

from __future__ import annotations

from pathlib import Path

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, printable
from vfsd.cli.session import Session
from vfsd.errors import (
    BusyError,
    ExaminerError,
    FuseMissingError,
    MountError,
    NoStoreError,
    UsageError,
)
from vfsd.mount import mount_log


@define(
    "mount",
    examples=["vfsd mount videos mnt", "vfsd mount videos mnt -o ro,noatime"],
    fields={
        "store": "the store's directory",
        "mountpoint": "mount point",
        "pid": "process that serves the mount, null with --foreground",
        "log": "log file, null for stderr",
    },
    exits=[NoStoreError, BusyError, FuseMissingError, ExaminerError, MountError],
)
@click.argument("places", metavar="[STORE] DIR", nargs=-1, required=True)
@click.option("-f", "--foreground", is_flag=True, help="Serve in this process, until unmounted.")
@click.option(
    "-o", "options", metavar="WORDS", multiple=True, help="Mount options, such as ro,allow_other."
)
@click.option(
    "--log",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Log file. [default: a file in ~/.local/state/vfsd, limited to 10 MiB; with "
    "--foreground stderr]",
)
@click.option(
    "--log-level",
    type=click.Choice(list(mount_log.LEVELS)),
    help=f"Minimum severity to log. [default: {mount_log.DEFAULT}]",
)
def mount(
    session: Session,
    places: tuple[str, ...],
    foreground: bool,
    options: tuple[str, ...],
    log: Path | None,
    log_level: str | None,
) -> None:
    """Show a store as a directory, until `vfsd umount`.

    STORE may be omitted if --store or VFSD_STORE names it; DIR is an empty directory. In the
    background (the default), the command ends as soon as the mount answers, and prints the name of
    the log. The log is a file in the user's state directory, or `mount.log` in the store if that
    directory cannot be used. A log of more than 10 MiB becomes FILE.1.

    Options are those of mount(8) and FUSE (ro, allow_other, uid=N, attr_timeout=S, ...), and
    passthrough. With passthrough the kernel reads videos directly, nearly as fast as from the disk,
    and a video cannot be written while it is open for reading. log=FILE and log_level=LEVEL are
    --log and --log-level for /etc/fstab.
    """
    from vfsd.disk.store_layout import StoreDirectory
    from vfsd.mount import control
    from vfsd.mount.mount_log import log_at

    if len(places) > 2:
        raise UsageError("a store is mounted at one directory")
    root = Path(places[0]) if len(places) == 2 else session.root()
    mountpoint = Path(places[-1]).absolute()
    if foreground:
        from vfsd.mount import daemon
        from vfsd.mount.fuse.mount_options import parse_options

        parsed = parse_options(options)
        named = log or parsed.log
        file = None if named is None else log_at(named, control.place_of(mountpoint)).path
        mount_log.set_up(log_level or parsed.log_level or mount_log.DEFAULT, file)
        _report(session, root, mountpoint, None, file)
        daemon.mount_in_foreground(root, mountpoint, options, log=file)
    else:
        file = control.mount(root, mountpoint, options, log_file=log, log_level=log_level)
        # A read-only store has no record of its mount.
        holder = StoreDirectory.open(root).mounted_by() or {}
        pid = holder.get("pid") or control.daemon_of(mountpoint)
        _report(session, root, mountpoint, pid, file)


def _report(session: Session, root: Path, mountpoint: Path, pid: object, log: Path | None) -> None:
    if session.json:
        record = {
            "store": str(root.absolute()),
            "mountpoint": str(mountpoint),
            "pid": pid,
            "log": None if log is None else str(log),
        }
        print_json(record)
    elif not session.quiet:
        by = "this process" if pid is None else f"process {pid}"
        to = "" if log is None else f", log in {log}"
        print_line(printable(f"{root.absolute()} at {mountpoint}, served by {by}{to}"))


@define(
    "umount",
    examples=["vfsd umount mnt"],
    fields={"mountpoint": "mount point"},
    exits=[BusyError, MountError],
)
@click.argument(
    "mountpoint", metavar="DIR", type=Path
)  # click.Path would stat it, and a dead mount hangs
def umount(session: Session, mountpoint: Path) -> None:
    """End a mount, once all writes are safe.

    Ends with 12 while a process has a file open in it, or if it does not answer.
    """
    from vfsd.mount import control

    control.unmount(mountpoint)
    session.report(
        {"mountpoint": str(mountpoint.absolute())}, f"unmounted {printable(str(mountpoint))}"
    )
