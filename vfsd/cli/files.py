"""``vfsd tag``, ``vfsd mv`` and ``vfsd rm``: change entries of a store."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define, replace_option, yes_option
from vfsd.cli.options import pair_value, word_value
from vfsd.cli.output import printable
from vfsd.cli.session import Session, select_videos
from vfsd.errors import ExistsError, HeldError, NotFoundError, UsageError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.catalog import Catalog
    from vfsd.core.model import LogicalVideo


@define(
    "tag",
    examples=[
        "vfsd -s videos tag cam1/traffic.mp4 --add night --add rain --set site=gate",
        "vfsd -s videos tag cam1/traffic.mp4 --remove rain --unset site",
        "vfsd -s videos tag cam1/traffic.mp4 --json",
    ],
    fields={
        "name": "path from the root of the store",
        "tags": "list of words",
        "metadata": "object, as set by --set",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--add", metavar="WORD", type=word_value, multiple=True, help="Add a tag.")
@click.option("--remove", metavar="WORD", multiple=True, help="Remove a tag.")
@click.option(
    "--set", "pairs", metavar="KEY=VALUE", type=pair_value, multiple=True, help="Set metadata."
)
@click.option("--unset", metavar="KEY", multiple=True, help="Remove metadata.")
def tag(
    session: Session,
    names: tuple[str, ...],
    add: tuple[str, ...],
    remove: tuple[str, ...],
    pairs: tuple[tuple[str, object], ...],
    unset: tuple[str, ...],
) -> None:
    """Show or change the tags and metadata of videos.

    A NAME is a name or a pattern. All changes to all videos are one transaction; the result is
    printed. A VALUE that looks like a number, `true` or `false` is stored as such, anything else as
    text.
    """
    root, paths = session.places(names)
    changes = bool(add or remove or pairs or unset)
    with session.opened(root, writing=changes) as store:
        found = select_videos(store, paths)
        videos = [video.info for video in found.values()]
        if changes:
            videos = _change_tags(store.catalog, videos, add, remove, dict(pairs), unset)
        for video, path in zip(videos, found, strict=True):
            session.print_result(
                {
                    "name": path,
                    "tags": sorted(video.tags),
                    "metadata": dict(video.metadata),
                },
                _tag_line(video, path),
            )


def _change_tags(
    catalog: Catalog,
    videos: list[LogicalVideo],
    add: tuple[str, ...],
    remove: tuple[str, ...],
    values: dict[str, object],
    unset: tuple[str, ...],
) -> list[LogicalVideo]:
    with catalog.writing() as change:
        for video in videos:
            change.videos.remove_tags(video.id, remove)
            change.videos.add_tags(video.id, add)
            if values or unset:
                now = dict(change.videos.get(video.id).metadata) | values
                kept = {key: value for key, value in now.items() if key not in unset}
                change.videos.set_metadata(video.id, kept)
        return [change.videos.get(video.id) for video in videos]


def _tag_line(video: LogicalVideo, path: str) -> str:
    words = sorted(video.tags)
    values = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in sorted(video.metadata.items())
    ]
    return "  ".join(map(printable, [path, *words, *values]))


@define(
    "mv",
    examples=["vfsd -s videos mv cam1/traffic.mp4 archive/2026/traffic.mp4"],
    fields={"old": "path before", "new": "path after"},
    exits=[NotFoundError, ExistsError, HeldError],
)
@click.argument("old")
@click.argument("new")
@replace_option("Replace an existing file.")
def mv(session: Session, old: str, new: str, replace: bool) -> None:
    """Rename or move a file or directory.

    Missing directories of NEW are created. If NEW is a directory, or ends with a slash, OLD moves
    into it. No data is copied.
    """
    root, (old_name, new_name) = session.places([old, new])
    new_name = new_name or "/"
    if new.endswith("/") and new_name != "/":
        new_name += "/"  # marks a directory that may not exist yet
    with session.opened(root, writing=True) as store:
        store.move(old_name, new_name, replace=replace)
    session.report(
        {"old": old_name, "new": new_name}, f"moved {printable(old_name)} to {printable(new_name)}"
    )


@define(
    "rm",
    examples=["vfsd -s videos rm cam1/traffic.mp4", "vfsd -s videos rm -r -y cam1"],
    fields={
        "path": "path from the root of the store",
        "files": "number of files removed",
    },
    exits=[NotFoundError, HeldError],
    listing=True,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("-r", "--recursive", is_flag=True, help="Remove directories with their contents.")
@yes_option
def rm(session: Session, paths: tuple[str, ...], recursive: bool, yes: bool) -> None:
    """Remove files and directories from the store.

    Videos that were indexed in place (`ingest --link`) stay on disk. At a terminal, the command
    asks before it removes a directory with files.
    """
    root, names = session.places(paths)
    with session.opened(root, writing=True) as store:
        for name in names:
            store.node(name)  # check all names before the first removal
        for name in names:
            if not yes and sys.stdin.isatty() and not _confirm_removal(store, name, recursive):
                continue
            count = store.remove(name, recursive=recursive)
            session.report({"path": name, "files": count}, f"removed {printable(name)}")


def _confirm_removal(store: Store, name: str, recursive: bool) -> bool:
    if not recursive or not store.node(name).is_dir:
        return True
    if not name:
        raise UsageError("the root of a store cannot be removed")
    with store.catalog.reading() as seen:
        below = sum(node.is_file for _, node in seen.tree.walk(store.node(name).ino))
    return below == 0 or click.confirm(f"remove {name}/ with {below} files?", err=True)
