"""``vfsd ls`` and ``vfsd find``: the entries of a store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.options import byte_count_value, moment_value, pair_value
from vfsd.cli.output import local_time, print_json, print_line, print_table, printable
from vfsd.cli.session import Session
from vfsd.core.capture_time import to_ns
from vfsd.core.timebase import clock_text, human_bytes
from vfsd.errors import NotFoundError
from vfsd.records.video_records import (
    ENTRY_FIELDS,
    FOUND_FIELDS,
    entry_record,
    found_record,
    kind_of,
    size_of,
)

if TYPE_CHECKING:
    from vfsd.catalog import Transaction
    from vfsd.core.model import LogicalVideo, Node


ENTRY_ALIGNMENT = "<>>>><<<"
"""Alignment of the cells of `entry_cells`."""


def entry_cells(label: str, node: Node, video: LogicalVideo | None, size: int) -> tuple[str, ...]:
    """A line of a long listing: kind, size, frames, WxH, duration, codec, time, name."""
    kind = kind_of(node)
    frames = picture = duration = codec = "-"
    if video is not None:
        media = video.original.media
        frames = str(video.original.frames)
        picture = f"{media.display_width}x{media.display_height}"
        duration = clock_text(video.original.duration)
        codec = media.codec
    name = printable(label)
    if node.is_symlink and node.target is not None:
        name += f" -> {printable(node.target)}"
    if node.is_dir:
        name += "/"
    bytes_ = "-" if node.is_dir else human_bytes(size)
    return kind, bytes_, frames, picture, duration, codec, local_time(node.mtime_ns), name


Entry = tuple[str, "Node"]


@define(
    "ls",
    examples=[
        "vfsd -s videos ls cam1",
        "vfsd -s videos ls -lR",
        "vfsd -s videos ls -R --json",
    ],
    fields=ENTRY_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("path", default="")
@click.option("-l", "--long", is_flag=True, help="Print details of each entry.")
@click.option("-R", "--recursive", is_flag=True, help="List the contents of directories, too.")
def ls(session: Session, path: str, long: bool, recursive: bool) -> None:
    """List a directory, by name.

    PATH is a directory or a file. The default is the root of the store, or the working directory if
    it is in a mount. With -R, names are relative to PATH. A long line has kind, size, frames, width
    x height, duration, codec, time of the last change and name. The kind is `file` for files that
    are not videos.
    """
    place = session.place(path)
    with (
        session.opened_context(place.root) as parts,
        parts.catalog.reading() as seen,
    ):
        entries = _entries_below(seen, place.name, recursive=recursive)
        if session.json:
            for name, node in entries:
                video = _video_of(seen, node)
                print_json(entry_record(name, node, video, size_of(parts, node)))
            return
        above = f"{place.name}/" if place.name else ""
        labelled = ((name.removeprefix(above) or name, node) for name, node in entries)
        if not long:
            for label, node in labelled:
                print_line(printable(label) + ("/" if node.is_dir else ""))
            return
        rows = (
            entry_cells(label, node, _video_of(seen, node), size_of(parts, node))
            for label, node in labelled
        )
        print_table(rows, ENTRY_ALIGNMENT)


def _entries_below(seen: Transaction, path: str, *, recursive: bool) -> Iterator[Entry]:
    """(path from the root, node) of each entry to list."""
    node = seen.tree.resolve(path)
    if not node.is_dir:
        yield path, node
    elif recursive:
        yield from seen.tree.walk(node.ino, path)
    else:
        for name, child in seen.tree.children(node.ino):
            yield f"{path}/{name}" if path else name, child


def _video_of(seen: Transaction, node: Node) -> LogicalVideo | None:
    if not node.is_file:
        return None
    try:
        return seen.videos.by_inode(node.ino)
    except NotFoundError:
        return None


_DATE = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])


@define(
    "find",
    examples=[
        "vfsd -s videos find 'cam1/**' --codec h264",
        "vfsd -s videos find --tag night --min-seconds 2 --long",
        "vfsd -s videos find --meta site=gate --json",
        "vfsd -s videos find --from 2026-05-01T10:00Z --to 2026-05-01T11:00Z",
    ],
    fields=FOUND_FIELDS,
    listing=True,
)
@click.argument("pattern", required=False)
@click.option(
    "--tag",
    "tags",
    metavar="WORD",
    multiple=True,
    help="With this tag, and with all other tags given.",
)
@click.option(
    "--meta",
    metavar="KEY=VALUE",
    type=pair_value,
    multiple=True,
    help="With this metadata: the same number, word or truth value.",
)
@click.option("--codec", metavar="NAME", help="With this codec: h264, hevc, vp9 ...")
@click.option("--container", metavar="NAME", help="In this container: mp4, matroska, avi ...")
@click.option("--min-seconds", type=float, help="Minimum duration.")
@click.option("--max-seconds", type=float, help="Maximum duration.")
@click.option("--min-width", type=int, help="Minimum width of the displayed frame.")
@click.option("--max-width", type=int, help="Maximum width of the displayed frame.")
@click.option("--min-height", type=int, help="Minimum height of the displayed frame.")
@click.option("--max-height", type=int, help="Maximum height of the displayed frame.")
@click.option(
    "--min-bytes", metavar="BYTES", type=byte_count_value, help="Minimum size of the file."
)
@click.option(
    "--max-bytes", metavar="BYTES", type=byte_count_value, help="Maximum size of the file."
)
@click.option(
    "--since", type=_DATE, metavar="DATE", help="Last changed (mtime) at this time or later."
)
@click.option(
    "--until", type=_DATE, metavar="DATE", help="Last changed (mtime) at this time or earlier."
)
@click.option(
    "--from",
    "first",
    type=moment_value,
    metavar="TIME",
    help="Recorded at this time or later, at least in part.",
)
@click.option(
    "--to",
    "last",
    type=moment_value,
    metavar="TIME",
    help="Recorded at this time or earlier, at least in part.",
)
@click.option("-l", "--long", is_flag=True, help="Print details of each video.")
def find(
    session: Session,
    pattern: str | None,
    tags: tuple[str, ...],
    meta: tuple[tuple[str, object], ...],
    codec: str | None,
    container: str | None,
    min_seconds: float | None,
    max_seconds: float | None,
    min_width: int | None,
    max_width: int | None,
    min_height: int | None,
    max_height: int | None,
    min_bytes: int | None,
    max_bytes: int | None,
    since: datetime | None,
    until: datetime | None,
    first: datetime | None,
    last: datetime | None,
    long: bool,
) -> None:
    """Find videos by name and contents.

    PATTERN must match the whole path from the root of the store: `*` and `?` stop at a slash, `**`
    does not. A video must meet all options. DATE is 2026-01-31 or 2026-01-31T13:45, in the local
    time zone. --since and --until compare it with the last change of a file (mtime). TIME is
    2026-05-01T10:00:00Z, or without Z in the local time zone. --from and --to compare it with the
    time of recording (`vfsd captured`); videos without one do not match.
    """
    from vfsd.core.model import FileState

    with session.opened_context(session.root()) as parts:
        found = parts.catalog.find(
            pattern,
            tags=frozenset(tags),
            metadata=dict(meta),
            codec=codec,
            container=container,
            bytes=(min_bytes, max_bytes),
            seconds=(min_seconds, max_seconds),
            width=(min_width, max_width),
            height=(min_height, max_height),
            modified_ns=(_unix_ns(since), _unix_ns(until)),
            captured_ns=(_exact_ns(first), _exact_ns(last)),
        )
        if session.json:
            for video in found:
                print_json(found_record(video))
        elif long:
            print_table(map(_video_row, found), ">>>><<<<")
        else:
            for name in found.names():
                print_line(printable(name))
        # Only a pattern without any match gets the hint; other options may exclude its matches.
        nothing = (
            pattern is not None
            and "/" not in pattern
            and not len(found)
            and not len(parts.catalog.find(pattern))
        )
        with parts.catalog.reading() as seen:
            pending = len(seen.tree.files_in_state(FileState.SPOOLED))
    if nothing:
        session.remark(f"no name matches; `**/{pattern}` searches all directories, too")
    if pending:
        files = "1 file is" if pending == 1 else f"{pending} files are"
        session.remark(f"{files} pending: recently written files may be videos, too")


def _video_row(video: LogicalVideo) -> tuple[str, ...]:
    original = video.original
    return (
        human_bytes(video.size),
        str(original.frames),
        f"{original.media.display_width}x{original.media.display_height}",
        clock_text(original.duration),
        original.media.codec,
        local_time(video.modified_ns),
        printable(video.name),
        " ".join(sorted(video.tags)),
    )


def _exact_ns(moment: datetime | None) -> int | None:
    return None if moment is None else to_ns(moment)


def _unix_ns(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp()) * 1_000_000_000
