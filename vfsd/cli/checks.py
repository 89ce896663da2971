"""``vfsd fsck``, ``scrub``, ``verify`` and ``gc``: check and clean a store."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from vfsd.cli.command import define
from vfsd.cli.errors import describe, print_failure
from vfsd.cli.options import Number, byte_count_value
from vfsd.cli.output import Progress, print_json, print_line, printable, styled
from vfsd.cli.session import Session, select_or_all, select_video_list
from vfsd.cli.work import ORDER_EXITS, ORDER_VARIANTS, engine_options, run_on
from vfsd.core.timebase import human_bytes
from vfsd.errors import (
    EXIT_FINDINGS,
    EXIT_INTERRUPTED,
    BusyError,
    IntegrityError,
    NoSpaceError,
    NoStoreError,
    NotFoundError,
    ReadOnlyError,
    RefusedMediaError,
    UnreachableError,
    UsageError,
    VfsdError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.core.model import LogicalVideo
    from vfsd.maintenance.fsck.bucket import BucketGarbage
    from vfsd.maintenance.scrub import ScrubDamage


_REPAIR_HINT = (
    "`vfsd scrub --from BACKUP` puts back damaged or missing bytes, and so does `vfsd ingest` of "
    "the same files"
)


@define(
    "fsck",
    examples=[
        "vfsd -s videos fsck",
        "vfsd -s videos fsck --deep --repair",
        "vfsd -s videos fsck --objects",
    ],
    fields={
        "check": "name of the check",
        "message": "the problem",
        "repaired": "whether it was repaired",
    },
    exits=[UsageError, BusyError, UnreachableError, EXIT_FINDINGS, EXIT_INTERRUPTED],
    listing=True,
)
@click.option("--repair", is_flag=True, help="Repair what can be repaired.")
@click.option("--deep", is_flag=True, help="Read every byte and compare it with its checksum.")
@click.option(
    "--objects", is_flag=True, help="List the bucket, and compare it with the recorded objects."
)
def fsck(session: Session, repair: bool, deep: bool, objects: bool) -> None:
    """Check a store for problems.

    Prints a line for each problem, and nothing for a sound store. Ends with 30 if a problem is
    left. Checks that need an idle store are skipped while it is mounted. Unfinished recordings are
    reported for `vfsd recover`. Originals without block checksums are not a problem; their number
    goes to stderr.
    """
    from vfsd.maintenance import fsck
    from vfsd.storage import original_files
    from vfsd.storage.homes import files_elsewhere

    with session.opened(session.root(), writing=repair) as store:
        with Progress("checking", None, shown=session.shows_progress) as progress:

            def on_progress(name: str, done: int, total: int) -> None:
                progress.label(f"checking {name}")
                progress.reach(done, total)

            findings = fsck.run(
                store.parts, repair=repair, deep=deep, objects=objects, on_progress=on_progress
            )
        unsummed = original_files.missing_checksums_message(store.catalog)
        unfinished = fsck.unfinished_file_count(store.parts)
        elsewhere = files_elsewhere(store.parts)
        for finding in findings:
            line = _finding_line(finding.check, finding.message, finding.repaired)
            session.print_result(asdict(finding), line)
    if elsewhere:
        session.remark(elsewhere)
    if unsummed:
        session.remark(f"{unsummed}; {original_files.SUMS_ADVICE}")
    if unfinished:
        session.remark(
            f"{unfinished} files were in use when this backup was made; the next mount of a "
            "restored store completes them"
        )
    left = sum(not finding.repaired for finding in findings)
    if not findings:
        session.remark("no problems")
    elif not left:
        session.remark(f"{len(findings)} repaired")
    else:
        # The messages of these checks have their own advice.
        all_have_advice = all(
            finding.repaired or finding.check in ("recordings", "permissions")
            for finding in findings
        )
        again = "--deep " * deep + "--objects " * objects + "--repair"
        advice = "" if all_have_advice else f"; {_REPAIR_HINT}" if repair else f"; try {again}"
        session.remark(f"{left} not repaired{advice}")
        click.get_current_context().exit(EXIT_FINDINGS)


def _finding_line(check: str, message: str, repaired: bool) -> str:
    state = styled("repaired", "green") if repaired else styled("wrong", "red")
    return f"{state}  {check}: {printable(message)}"


_DAY_SECONDS = 86400.0


@define(
    "scrub",
    examples=[
        "vfsd -s videos scrub",
        "vfsd -s videos scrub 'cam1/*.mp4' --json",
        "vfsd -s videos scrub --rate 50MiB --older-than 30",
    ],
    fields={
        "kind": "original, linked (indexed in place), vectors or tiles (or renditions, or joined)",
        "names": "names of the videos that it belongs to",
        "object": "key of the object; null for a linked file",
        "path": "path of a linked file; null for an object",
        "message": "the problem",
        "bytes": "list of [first, end] of damaged bytes; empty if the file is missing",
        "frames": "list of [first, end] of frames that need them, for originals; null if "
        "unknown, since the frame table is damaged, too",
        "repaired": "put back, dropped (tiles, which can be made again), "
        "recomputed (its checksums were damaged), recorded (its row was missing), or null",
    },
    variants=ORDER_VARIANTS,
    exits=[
        NotFoundError,
        ReadOnlyError,
        NoStoreError,
        NoSpaceError,
        EXIT_INTERRUPTED,
        *ORDER_EXITS,
    ],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.option(
    "--rate",
    metavar="BYTES",
    type=byte_count_value,
    help="Read at most this many bytes per second: 50MiB.",
)
@click.option(
    "--older-than",
    metavar="DAYS",
    type=Number(0),
    help="Skip files checked within this time.",
)
@click.option(
    "--from",
    "sources",
    metavar="STORE",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Take good copies of damaged data from this store or backup.",
)
@engine_options
def scrub(
    session: Session,
    names: tuple[str, ...],
    rate: int | None,
    older_than: float | None,
    sources: tuple[Path, ...],
    on: str | None,
    units: Path | None,
) -> None:
    """Read all stored data, and compare it with its checksums.

    Checks originals, files indexed in place, tiles and renditions: of the VIDEOs, which are names
    or patterns, or of all. Data that was not checked for longest comes first. After an
    interruption, the same command continues, also inside a file. It may run while the store is
    mounted, and gives way to all other work.

    Damaged tiles and renditions are deleted. Damaged originals are put back if a store given with
    --from has them; otherwise a line names the lost bytes and frames. Skipped files with known
    damage get a line, too. If a repair fails, for example on a full disk, the command continues and
    prints the error at the end. Ends with 30 if data was damaged, else with 1 if a file could not
    be read or a linked file could not be reached.
    """
    from vfsd.core.process_control import set_idle_priority
    from vfsd.disk.object_store import ObjectStore
    from vfsd.disk.store_layout import StoreDirectory
    from vfsd.maintenance.scrub import Scrubber

    given = [ObjectStore(StoreDirectory.open(path)) for path in sources]
    root, paths = session.places_or_root(names)
    if on is not None or units is not None:
        if given:
            raise UsageError("--from cannot be used with --on or --units")
        with session.opened(root, writing=True) as store:
            spec = {"rate": rate, "older_than": older_than}
            run_on(session, store, "scrub", select_or_all(store, paths), spec, on=on, units=units)
        return
    began = time.monotonic()
    found: list[ScrubDamage] = []
    with session.opened(root, writing=True) as store:
        videos = [video.info for video in select_video_list(store, paths)] if names else None
        set_idle_priority()
        with Progress("reading", None, shown=session.shows_progress, in_bytes=True) as progress:
            scrubber = Scrubber(
                store.parts,
                videos,
                older_than=None if older_than is None else older_than * _DAY_SECONDS,
                rate=rate,
                sources=given,
                on_progress=progress.reach,
            )
            if scrubber.is_resumed:
                session.remark("continuing an interrupted scrub")
            for damage in scrubber.run():
                found.append(damage)
                with progress.hidden():
                    _print_damage(session, damage)
    count, size = scrubber.planned
    session.remark(
        f"{count} objects and files, {human_bytes(size)}, in {time.monotonic() - began:.1f} s: "
        + _outcome_text(found, len(scrubber.unread))
    )
    failures = [describe(error) for error in [*scrubber.unread, *scrubber.stuck]]
    for failure in failures:
        print_failure(failure, as_json=session.json)
    if found:
        click.get_current_context().exit(EXIT_FINDINGS)
    if failures:
        click.get_current_context().exit(failures[0].exit_code)


def _outcome_text(found: list[ScrubDamage], unread: int) -> str:
    outcome = "nothing is damaged"
    if found:
        left = sum(damage.repaired is None for damage in found)
        outcome = f"{len(found)} damaged, {left} of them not repaired"
    return f"{outcome}; {unread} could not be read" if unread else outcome


def _print_damage(session: Session, damage: ScrubDamage) -> None:
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
    print_line(f"{state}  {printable(damage.message)}")


class _VerifyOutcome(NamedTuple):
    status: str
    frames: int
    damaged: int | None
    reason: str | None


@define(
    "verify",
    examples=["vfsd -s videos verify cam1/traffic.mp4", "vfsd -s videos verify --all --json"],
    fields={
        "name": "path from the root of the store",
        "status": "right, corrected (the frame table or properties of the pictures were wrong or "
        "damaged), broken, or forbidden (unreadable, or indexed in place and out of reach)",
        "frames": "number of displayed frames, after the check",
        "damaged": "number of frames with damage that the file had on arrival, null if broken or "
        "forbidden",
        "reason": "why it is broken or forbidden, with a hint; else null",
    },
    variants=ORDER_VARIANTS,
    exits=[NotFoundError, *ORDER_EXITS],
    listing=True,
)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All videos that were not verified or not examined for damage yet.",
)
@engine_options
def verify(
    session: Session,
    names: tuple[str, ...],
    everything: bool,
    on: str | None,
    units: Path | None,
) -> None:
    """Decode videos from end to end, to check their frames.

    A frame table that is wrong or damaged is corrected, as are properties of the pictures: times,
    codec, colours, rotation. Videos that are deleted during the run are skipped. Frames with damage
    that the file had on arrival are counted; `vfsd info` lists them, and they do not make the
    command fail.

    Ends with 30 if a video cannot be decoded, else with 1 if a file cannot be read, or is indexed
    in place and cannot be reached.
    """
    if everything == bool(names):
        raise UsageError("name the videos, or give --all")
    root, paths = (session.root(), []) if everything else session.places(names)
    with session.opened(root, writing=True) as store:
        store.parts.require_objects_present()  # without objects, all videos would be broken
        if everything:
            videos = [v for v in store.catalog.find() if not _is_examined(v)]
        else:
            videos = [store[path].info for path in paths]
        if on is not None or units is not None:
            opened = [store.open_video(info) for info in videos]
            run_on(session, store, "verify", opened, {"all": everything}, on=on, units=units)
            return
        statuses = set()
        total = sum(video.size for video in videos)
        with Progress("verifying", total, shown=session.shows_progress, in_bytes=True) as progress:
            done = 0
            for video in videos:
                # Videos may be deleted during the run.
                with suppress(NotFoundError):
                    outcome = _verify_video(store, video, progress, done, total)
                    statuses.add(outcome.status)
                    with progress.hidden():
                        _print_verified(session, video.name, outcome)
                done += video.size
                progress.reach(done, total)
    # Damage of the data is worse than a file out of reach, which may come back.
    if "broken" in statuses:
        click.get_current_context().exit(EXIT_FINDINGS)
    if "forbidden" in statuses:
        click.get_current_context().exit(VfsdError.exit_code)


def _is_examined(info: LogicalVideo) -> bool:
    return info.original.verified and info.original.damage is not None


def _verify_video(
    store: Store, info: LogicalVideo, progress: Progress, before: int, total: int
) -> _VerifyOutcome:
    progress.label(f"verifying {info.name}")
    video = store.open_video(info)

    def tell(done: int, of: int) -> None:  # a file that is read twice reports both passes
        progress.reach(before + info.size * done // max(1, of), total)

    try:
        corrected = video.verify(on_progress=tell)
    except (RefusedMediaError, IntegrityError) as error:
        return _VerifyOutcome("broken", len(video), None, _reason_text(error))
    except OSError as error:
        is_forbidden = isinstance(error, PermissionError) or _is_out_of_reach(store, info)
        status = "forbidden" if is_forbidden else "broken"
        return _VerifyOutcome(status, len(video), None, _reason_text(error))
    status = "corrected" if corrected else "right"
    return _VerifyOutcome(status, len(video), video.original.damaged_frames, None)


def _reason_text(error: Exception) -> str:
    failure = describe(error)
    if failure.hint is None:
        return failure.message
    return f"{failure.message}; {failure.hint}"


def _is_out_of_reach(store: Store, info: LogicalVideo) -> bool:
    from vfsd.disk.external_files import is_out_of_reach

    path = info.original.link_path
    return path is not None and is_out_of_reach(path, store.path)


def _print_verified(session: Session, name: str, outcome: _VerifyOutcome) -> None:
    if session.json:
        print_json({"name": name, **outcome._asdict()})
        return
    remark = outcome.reason
    if outcome.damaged:
        remark = f"{outcome.damaged} of {outcome.frames} frames are damaged"
    print_line(f"{outcome.status.ljust(9)}  {printable(name)}" + (f"  {remark}" if remark else ""))


@define(
    "gc",
    examples=[
        "vfsd -s videos gc --dry-run",
        "vfsd -s videos gc --json",
        "vfsd -s videos gc --recordings 0",
    ],
    fields={
        "objects": "list of the keys of the objects",
        "files": "number of private and temporary files, and of rendered parts of views",
        "bytes": "their size",
        "dry_run": "whether nothing was deleted",
        "recordings": "number of unfinished recordings that stay",
        "stuck": "list of paths that could not be deleted: directories in the place of files, "
        "and files without permission",
        "bucket": "files and bytes deleted from the bucket, waiting and waiting_bytes: those that "
        "stay for the grace; with --bucket also lists of names: unnamed, young, foreign, and lost "
        "(keys of objects); null for a store without a bucket",
    },
    exits=[UsageError, UnreachableError, EXIT_FINDINGS, EXIT_INTERRUPTED],
)
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@click.option(
    "--bucket",
    "lists",
    is_flag=True,
    help="List the bucket, too, and delete files that the catalog does not name.",
)
@click.option(
    "--recordings",
    metavar="DAYS",
    type=Number(0),
    default=30,
    show_default=True,
    help="Minimum age of unfinished recordings to delete.",
)
def gc(session: Session, dry_run: bool, lists: bool, recordings: float) -> None:
    """Delete data without references.

    Deletes objects without a file, rendered views of deleted videos, and partial files of processes
    that died. Unfinished recordings are deleted after 30 days without a write; `vfsd recover` makes
    videos of them before that. Objects in a bucket are deleted after the time in the setting
    object_grace; mounts do the same in the background. Ends with 30 if something could not be
    deleted: a directory with contents, or a file without permission; also if --bucket finds an
    object without bytes.
    """
    from vfsd.maintenance import fsck

    bucket, failure = None, None
    with session.opened(session.root(), writing=not dry_run) as store:
        if lists:
            fsck.require_bucket(store.parts)
        found = fsck.collect(store.parts, dry_run=dry_run, recording_days=recordings)
        if not store.parts.objects.is_local:
            try:
                bucket = _collect_bucket(session, store, dry_run=dry_run, lists=lists)
            except UnreachableError as error:
                failure = error
    if session.json:
        print_json(
            {
                "objects": list(found.objects),
                "files": len(found.files),
                "bytes": found.bytes,
                "dry_run": dry_run,
                "recordings": len(found.kept),
                "stuck": [str(path) for path in found.stuck],
                "bucket": None if bucket is None else _bucket_json(bucket),
            }
        )
    elif not session.quiet:
        print_line(
            f"{len(found.objects)} objects and {len(found.files)} files, "
            f"{human_bytes(found.bytes)}" + (", could be deleted" if dry_run else "")
        )
    if found.kept:
        session.remark(
            f"unfinished recordings that stay: {len(found.kept)}; `vfsd recover --dry-run` lists "
            "them"
        )
    for path in found.stuck:
        session.remark(f"{printable(str(path))} {_stuck_text(path)}")
    lost = [] if bucket is None or bucket.state is None else bucket.state.lost
    if bucket is not None:
        _print_bucket(session, bucket, dry_run=dry_run)
    if failure is not None:
        raise failure
    if found.stuck or lost:
        click.get_current_context().exit(EXIT_FINDINGS)


def _collect_bucket(session: Session, store: Store, *, dry_run: bool, lists: bool) -> BucketGarbage:
    from vfsd.maintenance.fsck.bucket import collect_bucket

    shown = session.shows_progress and lists
    with Progress("listing the bucket", None, shown=shown) as progress:
        return collect_bucket(store.parts, dry_run=dry_run, lists=lists, on_progress=progress.reach)


def _bucket_json(found: BucketGarbage) -> dict[str, object]:
    state = found.state
    return {
        "files": found.files,
        "bytes": found.bytes,
        "waiting": found.waiting,
        "waiting_bytes": found.waiting_bytes,
        "unnamed": None if state is None else sorted(state.unnamed),
        "young": None if state is None else sorted(state.young),
        "foreign": None if state is None else state.foreign,
        "lost": None if state is None else [one.key for one in state.lost],
    }


def _print_bucket(session: Session, found: BucketGarbage, *, dry_run: bool) -> None:
    if not session.json and not session.quiet:
        print_line(
            f"{found.files} files of the bucket, {human_bytes(found.bytes)}"
            + (", could be deleted" if dry_run else "")
        )
    if found.waiting:
        session.remark(
            f"{found.waiting} files of the bucket, {human_bytes(found.waiting_bytes)}, are kept "
            "for the time in the setting object_grace"
        )
    if found.state is not None and found.state.young:
        session.remark(
            f"{len(found.state.young)} files that the catalog does not name are too young to delete"
        )
    if found.state is not None and found.state.lost:
        session.remark(
            f"objects without bytes in the bucket: {len(found.state.lost)}; "
            "`vfsd fsck --objects` lists them"
        )


def _stuck_text(path: Path) -> str:
    """Hint for a path that could not be deleted."""
    from vfsd.disk.safe_open import is_nonempty_directory

    if is_nonempty_directory(path):
        return "is a directory with contents: move it away"
    return "may not be deleted: check the permissions of its directory"
