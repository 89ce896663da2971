"""``vfsd cameras``: archives that other recorders have made."""

from __future__ import annotations

from pathlib import Path

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, printable
from vfsd.cli.session import Session
from vfsd.core.capture_time import capture_record, time_zone
from vfsd.errors import ExistsError, NotFoundError, RefusedMediaError, UsageError


@define(
    "cameras import",
    examples=[
        "vfsd -s videos cameras import archive --from frigate --events archive/frigate.db",
        "vfsd -s videos cameras import archive --from mediamtx --zone Europe/Zurich --to hall",
    ],
    fields={
        "source": "path of the file",
        "name": "path from the root of the store; null if the file was refused",
        "camera": "name of the camera in the archive",
        "status": "ingested, skipped (exists) or refused",
        "reason": "why it was refused, else null",
        "captured": "when the first frame was recorded: time (ISO 8601, UTC), ns (Unix time), and "
        "clock (name or container); null if refused",
        "boxes": "number of boxes from --events; null without",
    },
    exits=[NotFoundError, ExistsError, RefusedMediaError],
    listing=True,
)
@click.argument(
    "folder", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--from",
    "recorder",
    type=click.Choice(("frigate", "mediamtx", "viseron", "unifi")),
    required=True,
    help="The recorder that wrote the files; unifi is unifi-protect-backup.",
)
@click.option("--to", metavar="DIR", default="", help="Directory in the store.")
@click.option("--camera", "cameras", metavar="NAME", multiple=True, help="Only this camera.")
@click.option("--copy", is_flag=True, help="Copy the files; by default they stay where they are.")
@click.option(
    "--events",
    "database",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Frigate's database, frigate.db: its tracked objects become boxes of the source frigate.",
)
@click.option(
    "--zone",
    metavar="ZONE",
    help="Time zone of names of mediamtx and unifi, like Europe/Zurich. The default is UTC.",
)
def cameras_import(
    session: Session,
    folder: Path,
    recorder: str,
    to: str,
    cameras: tuple[str, ...],
    copy: bool,
    database: Path | None,
    zone: str | None,
) -> None:
    """Add the archive of another recorder.

    Each recording becomes CAMERA/2026-05-01/10-05-30.mp4 in DIR, in UTC, with its time. Files that
    the store has already are skipped, so the same command continues an import, or adds new files.

    Frigate stores the box of an object for a few moments: when it appears, enters a zone, stops or
    leaves. Each becomes a box on the frame of that time, with label, score and track, and with
    event, moment, sub_label and zones as attributes.
    """
    from vfsd.datasets.recorder_archives import (
        add_frigate_objects,
        archived_files,
        frigate_moments,
        import_archive,
    )

    if database is not None and recorder != "frigate":
        raise UsageError("--events needs --from frigate")
    if zone is not None and recorder not in ("mediamtx", "unifi"):
        raise UsageError(f"--zone cannot be combined with --from {recorder}, which writes UTC")
    place = session.place(to)
    with session.opened(place.root, writing=True) as store:
        moments = [] if database is None else list(frigate_moments(database))
        files = archived_files(folder, recorder, time_zone(zone or "UTC"), frozenset(cameras))
        outcomes = import_archive(store, files, place.name, link=not copy)
        pairs = [(one.file.camera, one.video) for one in outcomes if one.video is not None]
        boxes = add_frigate_objects(pairs, moments)
        refused = 0
        for one in outcomes:
            refused += one.video is None
            if session.json:
                info = None if one.video is None else one.video.info
                name = None if info is None else info.name
                print_json(
                    {
                        "source": str(one.file.path),
                        "name": name,
                        "camera": one.file.camera,
                        "status": "ingested" if one.is_new else "skipped" if name else "refused",
                        "reason": one.reason,
                        "captured": capture_record(None if info is None else info.captured),
                        "boxes": None if database is None else boxes.get(name or "", 0),
                    }
                )
            elif one.is_new and one.video is not None:
                print_line(printable(one.video.name))
            elif one.reason is not None:
                session.remark(f"refused: {printable(str(one.file.path))}: {one.reason}")
    new = sum(one.is_new for one in outcomes)
    text = f"{new} ingested, {len(outcomes) - new - refused} skipped, {refused} refused"
    if database is not None:
        text += f"; {sum(boxes.values())} boxes of {len(moments)} moments"
    session.remark(text)
    if refused:
        click.get_current_context().exit(RefusedMediaError.exit_code)
