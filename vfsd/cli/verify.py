"""``vfsd verify``: decode videos once, to be sure of every frame."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.failure import describe
from vfsd.cli.output import print_json, print_line, shown
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.errors import (
    EXIT_FINDINGS,
    IntegrityError,
    NotFoundError,
    RefusedMediaError,
    UsageError,
    VfsdError,
)
from vfsd.integrity.linkedfile import is_out_of_reach

if TYPE_CHECKING:
    from vfsd.model import LogicalVideo
    from vfsd.store import Store


@define(
    "verify",
    examples=["vfsd -s videos verify cam1/traffic.mp4", "vfsd -s videos verify --all --json"],
    fields={
        "name": "path from the root of the store",
        "status": "right, corrected (the frame table was wrong, or damaged, or what is known of "
        "the pictures was), broken, or forbidden (it may not be read, or is indexed in place and "
        "cannot be reached)",
        "frames": "number of displayed frames, as it is now known",
        "reason": "why it is broken or forbidden, and what to do, else null",
    },
    exits=[NotFoundError, EXIT_FINDINGS],
    listing=True,
)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every video that was not verified yet.")
@click.pass_obj
def command(session: Session, names: tuple[str, ...], everything: bool) -> None:
    """Decode videos from end to end, to check their frames.

    A frame table that turns out to be wrong, or is damaged, is corrected, and so is what is known
    of the pictures: their times, codec, colours, how they are turned.  Videos that go meanwhile are
    passed over.  Ends with 30 when a video does not decode, else with 1 if a file may not be read,
    or is indexed in place and cannot be reached.
    """
    if everything == bool(names):
        raise UsageError("name the videos, or give --all")
    root, paths = (session.root(), []) if everything else session.places(names)
    with session.opened(root, writing=True) as store:
        store.parts.require_filled()  # else all of them would be broken
        if everything:
            videos = [v for v in store.catalog.find() if not v.original.verified]
        else:
            videos = [store[path].info for path in paths]
        statuses = set()
        total = sum(video.size for video in videos)
        with Progress("verifying", total, shown=session.shows_progress, in_bytes=True) as progress:
            done = 0
            for video in videos:
                # What has gone meanwhile is nobody's any more, and the others are.
                with suppress(NotFoundError):
                    status, frames, reason = _verify(store, video, progress, done, total)
                    statuses.add(status)
                    with progress.aside():
                        _print(session, video.name, status, frames, reason)
                done += video.size
                progress.reach(done, total)
    if "broken" in statuses:
        click.get_current_context().exit(EXIT_FINDINGS)
    if "forbidden" in statuses:
        click.get_current_context().exit(VfsdError.exit_code)


def _verify(
    store: Store, info: LogicalVideo, progress: Progress, before: int, total: int
) -> tuple[str, int, str | None]:
    """(status, frames, reason)"""
    progress.label(f"verifying {info.name}")
    video = store.open_video(info)

    def tell(done: int, of: int) -> None:  # of what is read twice each time is half of it
        progress.reach(before + info.size * done // max(1, of), total)

    try:
        corrected = video.verify(on_progress=tell)
    except (RefusedMediaError, IntegrityError) as error:
        return "broken", len(video), _reason(error)
    except OSError as error:
        is_forbidden = isinstance(error, PermissionError) or _is_out_of_reach(store, info)
        return "forbidden" if is_forbidden else "broken", len(video), _reason(error)
    return "corrected" if corrected else "right", len(video), None


def _reason(error: Exception) -> str:
    told = describe(error)
    return told.message if told.hint is None else f"{told.message}; {told.hint}"


def _is_out_of_reach(store: Store, info: LogicalVideo) -> bool:
    path = info.original.link_path
    return path is not None and is_out_of_reach(path, store.path)


def _print(session: Session, name: str, status: str, frames: int, reason: str | None) -> None:
    if session.json:
        print_json({"name": name, "status": status, "frames": frames, "reason": reason})
    else:
        print_line(f"{status.ljust(9)}  {shown(name)}" + (f"  {reason}" if reason else ""))
