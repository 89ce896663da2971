"""Arguments that select videos: names and patterns."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vfsd.cli.output import print_line, print_remark, printable
from vfsd.errors import NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.catalog import Catalog
    from vfsd.cli.session import Session


def select_video_list(store: Store, names: Sequence[str]) -> list[Video]:
    """The videos of `select_videos`, without the names."""
    return list(select_videos(store, names).values())


def select_videos(store: Store, names: Sequence[str]) -> dict[str, Video]:
    """The videos with these names, without duplicates and in this order, by name.

    A name with ``*``, ``?`` or ``[`` is a pattern of `vfsd find`, unless a video has exactly this
    name. Raises `NotFoundError` for a name or pattern without a video.
    """
    found: dict[str, Video] = {}
    for name in names:
        if set("*?[") & set(name) and name not in store:
            fitting = list(store.find(name))
            if not fitting:
                raise NotFoundError(
                    f"no video matches {name!r}",
                    hint="`*` stops at a slash, `**` does not; `vfsd find` lists videos",
                )
            found.update((video.name, video) for video in fitting)
        else:
            found.setdefault(name, store[name])
    return found


def matched_paths(catalog: Catalog, names: Sequence[str]) -> list[str]:
    """Paths of entries of any kind, without duplicates and in this order.

    A name with ``*``, ``?`` or ``[`` is a pattern for names of videos, unless an entry has exactly
    this name. Raises `NotFoundError` for a pattern without a match; other names are not looked up.
    """
    found: dict[str, None] = {}
    for name in names:
        fitting = [name]
        if set("*?[") & set(name) and not _has_entry(catalog, name):
            fitting = [video.name for video in catalog.find(name)]
            if not fitting:
                raise NotFoundError(
                    f"no video matches {name!r}",
                    hint="`*` stops at a slash, `**` does not; `vfsd find` lists videos",
                )
        found.update(dict.fromkeys(fitting))
    return list(found)


def single_path(catalog: Catalog, name: str, command: str) -> str:
    """The path of the entry with this name; a pattern must match exactly one video.

    Raises `NotFoundError` for a pattern without a match, `UsageError` for several matches.
    """
    matches = matched_paths(catalog, [name])
    if len(matches) > 1:
        raise UsageError(
            f"{command} takes one video; {len(matches)} match {name!r}",
            hint=f"`vfsd find {shlex.quote(name)}` lists them",
        )
    return matches[0]


def for_each(
    session: Session,
    videos: Mapping[str, Video],
    work: Callable[[str, Video], None],
    *,
    headed: bool = True,
) -> None:
    """Call `work` with path and video, and print a heading before each one of several videos.

    With several videos, one that lies outside of the requested span, range or region is skipped
    with a warning. Raises `OutOfRangeError` if no video is left, and the errors of `work`.
    """
    several, out_of_range, done = len(videos) > 1, None, 0
    for path, video in videos.items():
        try:
            if several and headed and not session.json:
                print_line(f"{printable(path)}:")
            work(path, video)
            done += 1
        except OutOfRangeError as error:
            if not several:
                raise
            out_of_range = error
            if not session.quiet:
                print_remark(f"warning: skipped {printable(path)}: {error}")
    if out_of_range is not None and not done:
        raise out_of_range


def _has_entry(catalog: Catalog, name: str) -> bool:
    try:
        with catalog.reading() as seen:
            seen.tree.resolve(name)
    except NotFoundError:
        return False
    return True
