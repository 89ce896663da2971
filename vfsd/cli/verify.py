"""``vfsd verify``: decode videos once, to be sure of every frame."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import click

from vfsd.cli.command import define
from vfsd.cli.failure import describe
from vfsd.cli.output import print_json, print_line, shown
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.disk.external_files import is_out_of_reach
from vfsd.errors import (
    EXIT_FINDINGS,
    IntegrityError,
    NotFoundError,
    RefusedMediaError,
    UsageError,
    VfsdError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.core.model import LogicalVideo


class _Outcome(NamedTuple):
    status: str
    frames: int
    damaged: int | None
    reason: str | None


@define(
    "verify",
    examples=["vfsd -s videos verify cam1/traffic.mp4", "vfsd -s videos verify --all --json"],
    fields={
        "name": "path from the root of the store",
        "status": "right, corrected (the frame table was wrong, or damaged, or what is known of "
        "the pictures was), broken, or forbidden (it may not be read, or is indexed in place and "
        "cannot be reached)",
        "frames": "number of displayed frames, as it is now known",
        "damaged": "number of frames that show damage the file came with, null where it is broken "
        "or forbidden",
        "reason": "why it is broken or forbidden, and what to do, else null",
    },
    exits=[NotFoundError, EXIT_FINDINGS],
    listing=True,
)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Every video that was not verified, or examined for damage, yet.",
)
@click.pass_obj
def command(session: Session, names: tuple[str, ...], everything: bool) -> None:
    """Decode videos from end to end, to check their frames.

    A frame table that turns out to be wrong, or is damaged, is corrected, and so is what is known
    of the pictures: their times, codec, colours, how they are turned.  Videos that go meanwhile are
    passed over.  Frames that show damage the file came with are counted; `vfsd info` lists them,
    and they do not make the command fail.

    Ends with 30 when a video does not decode, else with 1 if a file may not be read, or is indexed
    in place and cannot be reached.
    """
    if everything == bool(names):
        raise UsageError("name the videos, or give --all")
    root, paths = (session.root(), []) if everything else session.places(names)
    with session.opened(root, writing=True) as store:
        store.parts.require_filled()  # else all of them would be broken
        if everything:
            videos = [v for v in store.catalog.find() if not _is_examined(v)]
        else:
            videos = [store[path].info for path in paths]
        statuses = set()
        total = sum(video.size for video in videos)
        with Progress("verifying", total, shown=session.shows_progress, in_bytes=True) as progress:
            done = 0
            for video in videos:
                # What has gone meanwhile is nobody's any more, and the others are.
                with suppress(NotFoundError):
                    outcome = _verify(store, video, progress, done, total)
                    statuses.add(outcome.status)
                    with progress.aside():
                        _print(session, video.name, outcome)
                done += video.size
                progress.reach(done, total)
    if "broken" in statuses:
        click.get_current_context().exit(EXIT_FINDINGS)
    if "forbidden" in statuses:
        click.get_current_context().exit(VfsdError.exit_code)


def _is_examined(info: LogicalVideo) -> bool:
    return info.original.verified and info.original.damage is not None


def _verify(
    store: Store, info: LogicalVideo, progress: Progress, before: int, total: int
) -> _Outcome:
    progress.label(f"verifying {info.name}")
    video = store.open_video(info)

    def tell(done: int, of: int) -> None:  # of what is read twice each time is half of it
        progress.reach(before + info.size * done // max(1, of), total)

    try:
        corrected = video.verify(on_progress=tell)
    except (RefusedMediaError, IntegrityError) as error:
        return _Outcome("broken", len(video), None, _reason(error))
    except OSError as error:
        is_forbidden = isinstance(error, PermissionError) or _is_out_of_reach(store, info)
        status = "forbidden" if is_forbidden else "broken"
        return _Outcome(status, len(video), None, _reason(error))
    status = "corrected" if corrected else "right"
    return _Outcome(status, len(video), video.original.damaged_frames, None)


def _reason(error: Exception) -> str:
    told = describe(error)
    return told.message if told.hint is None else f"{told.message}; {told.hint}"


def _is_out_of_reach(store: Store, info: LogicalVideo) -> bool:
    path = info.original.link_path
    return path is not None and is_out_of_reach(path, store.path)


def _print(session: Session, name: str, outcome: _Outcome) -> None:
    if session.json:
        print_json({"name": name, **outcome._asdict()})
        return
    remark = outcome.reason
    if outcome.damaged:
        remark = f"{outcome.damaged} of {outcome.frames} frames are damaged"
    print_line(f"{outcome.status.ljust(9)}  {shown(name)}" + (f"  {remark}" if remark else ""))
