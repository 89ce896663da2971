"""``vfsd tag``: words and values that users attach to videos."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line, shown
from vfsd.cli.selecting import named
from vfsd.cli.session import Session
from vfsd.cli.values import a_pair, a_word
from vfsd.errors import NotFoundError

if TYPE_CHECKING:
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
        "metadata": "object, as --set made it",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--add", metavar="WORD", type=a_word, multiple=True, help="Attach a word.")
@click.option("--remove", metavar="WORD", multiple=True, help="Take a word away.")
@click.option(
    "--set", "pairs", metavar="KEY=VALUE", type=a_pair, multiple=True, help="Set metadata."
)
@click.option("--unset", metavar="KEY", multiple=True, help="Take metadata away.")
@click.pass_obj
def command(
    session: Session,
    names: tuple[str, ...],
    add: tuple[str, ...],
    remove: tuple[str, ...],
    pairs: tuple[tuple[str, object], ...],
    unset: tuple[str, ...],
) -> None:
    """Show or change the tags and metadata of videos.

    A NAME is a name or a pattern.  All changes to all the videos happen together or not at all;
    the result is printed.  A VALUE that looks like a number, `true` or `false` is kept as such,
    anything else as text.
    """
    root, paths = session.places(names)
    changes = bool(add or remove or pairs or unset)
    with session.opened(root, writing=changes) as store:
        found = named(store, paths)
        videos = [video.info for video in found.values()]
        if changes:
            videos = _change(store.catalog, videos, add, remove, dict(pairs), unset)
        for video, path in zip(videos, found, strict=True):
            if session.json:
                print_json(
                    {
                        "name": path,
                        "tags": sorted(video.tags),
                        "metadata": dict(video.metadata),
                    }
                )
            else:
                print_line(_line(video, path))


def _change(
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


def _line(video: LogicalVideo, path: str) -> str:
    words = sorted(video.tags)
    values = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in sorted(video.metadata.items())
    ]
    return "  ".join(map(shown, [path, *words, *values]))
