"""Pages of videos in the order of a key, each found without looking at those before it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.schema import (
    ROOT,
    detections,
    entries,
    holds,
    labels,
    nodes,
    physical_videos,
    sounds,
)
from vfsd.catalog.schema import videos as video_rows
from vfsd.catalog.tree import TreeReader, split_path
from vfsd.catalog.video_query import VideoFilter, filter_statement, name_matcher
from vfsd.core.capture_time import NS
from vfsd.core.model import FileState, Role
from vfsd.errors import UsageError
from vfsd.validation import not_one_of

_CHUNK = 512
_ORDERS: dict[str, sa.ColumnElement[Any]] = {
    "captured": video_rows.c.captured_ns,
    "modified": nodes.c.mtime_ns,
    "size": nodes.c.size,
    "frames": physical_videos.c.frames,
}
ORDERS = ("name", *_ORDERS)
"""Keys of the order of a page; a minus sign before one turns it around, but not for names."""


class FoundVideo(NamedTuple):
    """A video of a page."""

    ino: int
    name: str
    key: str  #: where the next page begins after it


class CapturedVideo(NamedTuple):
    """A video with a known time of recording."""

    id: int
    ino: int
    name: str
    start_ns: int  #: Unix time of its first frame
    end_ns: int  #: Unix time at which its last frame ends
    clock: str
    frames: int
    state: str  #: another one after each change of its bytes or its frame table


class VideoPages:
    """The videos that match a filter, page by page.

    Names are ordered by their directories: `a/b` comes before `a.mp4`.
    """

    def __init__(
        self,
        connection: Connection,
        what: VideoFilter,
        *,
        label: str | None = None,
        directory: str = "",
        is_deep: bool = True,
    ) -> None:
        """Select videos by `what`, by a label that they have, and by their directory.

        `is_deep` includes the directories below.
        """
        self._connection = connection
        self._tree = TreeReader(connection)
        self._statement = filter_statement(what)
        if label is not None:
            self._statement = self._statement.where(_has_label(label))
        self._has_conditions = label is not None or what != VideoFilter(what.name)
        self._directory = "/".join(split_path(directory))
        self._is_deep = is_deep
        self._matches = name_matcher(what.name) if what.name is not None else None

    def page(self, order: str, after: str | None, limit: int) -> list[FoundVideo]:
        """Return at most `limit` videos that come after a key.

        Raises `UsageError` for another order or a malformed key, `NotFoundError` for a missing
        directory.
        """
        if order == "name":
            return list(islice(self._by_name(after), limit))
        if order.removeprefix("-") not in _ORDERS:
            raise not_one_of("sort", order, ORDERS)
        return list(islice(self._by_column(order, after), limit))

    def _by_name(self, after: str | None) -> Iterator[FoundVideo]:
        begin = [] if after is None else split_path(after)
        top = self._tree.resolve(self._directory)
        inside = split_path(self._directory)
        rest = begin[len(inside) :] if begin[: len(inside)] == inside else []
        if begin and not rest and tuple(begin) > tuple(inside):
            return
        walked = self._walk(top.ino, self._directory, [os.fsencode(one) for one in rest])
        while some := list(islice(walked, _CHUNK)):
            kept = self._filtered([ino for ino, _ in some]) if self._has_conditions else None
            for ino, name in some:
                if kept is None or ino in kept:
                    yield FoundVideo(ino, name, name)

    def _walk(self, ino: int, above: str, after: Sequence[bytes]) -> Iterator[tuple[int, str]]:
        """Yield (inode, name) of the videos below a directory, after the names in `after`."""
        low, is_inside = (after[0], len(after) > 1) if after else (b"", False)
        while True:
            operator = entries.c.name.__ge__ if is_inside else entries.c.name.__gt__
            rows = self._connection.execute(
                sa.select(entries.c.name, nodes.c.ino, nodes.c.mode, nodes.c.state)
                .join(nodes, nodes.c.ino == entries.c.ino)
                .where(entries.c.parent == ino, operator(low))
                .order_by(entries.c.name)
                .limit(_CHUNK)
            ).all()
            for name, child, mode, state in rows:
                path = f"{above}/{os.fsdecode(name)}" if above else os.fsdecode(name)
                if state == FileState.VIDEO.value:
                    if not (is_inside and name == low) and self._is_named(path):
                        yield child, path
                elif self._is_deep and mode & 0o170000 == 0o040000:
                    within = after[1:] if is_inside and name == low else ()
                    yield from self._walk(child, path, within)
            if len(rows) < _CHUNK:
                return
            low, is_inside, after = rows[-1][0], False, ()

    def _is_named(self, path: str) -> bool:
        return self._matches is None or self._matches(path)

    def _filtered(self, inos: Sequence[int]) -> set[int]:
        found = self._connection.execute(self._statement.where(nodes.c.ino.in_(inos)))
        return {row.ino for row in found}

    def _by_column(self, order: str, after: str | None) -> Iterator[FoundVideo]:
        column, is_turned = _ORDERS[order.removeprefix("-")], order.startswith("-")
        # A null has no place in the order of a database.
        known = sa.func.coalesce(column, 0)
        place = None if after is None else _parsed_key(after)
        while True:
            query = self._statement.add_columns(known)
            if place is not None:
                value, ino = place
                beyond = known < value if is_turned else known > value
                same = nodes.c.ino < ino if is_turned else nodes.c.ino > ino
                query = query.where(sa.or_(beyond, sa.and_(known == value, same)))
            ends = (known.desc(), nodes.c.ino.desc()) if is_turned else (known, nodes.c.ino)
            rows = self._connection.execute(query.order_by(*ends).limit(_CHUNK)).all()
            names = VideoLists(self._connection).names([row[0] for row in rows])
            for ino, value in rows:
                name = names.get(ino)
                if name is not None and self._is_placed(name) and self._is_named(name):
                    yield FoundVideo(ino, name, f"{value}.{ino}")
            if len(rows) < _CHUNK:
                return
            place = rows[-1][1], rows[-1][0]

    def _is_placed(self, name: str) -> bool:
        within = f"{self._directory}/" if self._directory else ""
        return name.startswith(within) and (self._is_deep or "/" not in name[len(within) :])


def _parsed_key(text: str) -> tuple[int, int]:
    value, _, ino = text.rpartition(".")
    try:
        return int(value), int(ino)
    except ValueError:
        raise UsageError(f"after must be the `next` of a page, got {text!r}") from None


def _has_label(label: str) -> sa.ColumnElement[bool]:
    numbers = sa.select(labels.c.id).where(labels.c.name == label).scalar_subquery()
    return sa.exists().where(
        detections.c.video_id == video_rows.c.id, detections.c.label_id == numbers
    )


class VideoLists:
    """Facts about many videos and directories, in a few statements for all of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def pages(
        self,
        what: VideoFilter,
        *,
        label: str | None = None,
        directory: str = "",
        is_deep: bool = True,
    ) -> VideoPages:
        """Return the videos that match; see `VideoPages`."""
        return VideoPages(self._connection, what, label=label, directory=directory, is_deep=is_deep)

    def names(self, inos: Iterable[int]) -> dict[int, str]:
        """Return the first path of each inode that has one, with a statement for each level."""
        parents: dict[int, tuple[int, bytes]] = {}
        waiting = set(inos)
        wanted = list(waiting)
        while waiting:
            found: dict[int, tuple[int, bytes]] = {}
            for some in _chunks(sorted(waiting)):
                for ino, parent, name in self._connection.execute(
                    sa.select(entries.c.ino, entries.c.parent, entries.c.name).where(
                        entries.c.ino.in_(some)
                    )
                ):
                    found[ino] = min(found.get(ino, (parent, name)), (parent, name))
            parents |= found
            waiting = {parent for parent, _ in found.values() if parent != ROOT} - set(parents)
        paths: dict[int, str] = {}
        for ino in wanted:
            names: list[bytes] = []
            at = ino
            while at in parents and len(names) <= len(parents):
                at, name = parents[at]
                names.append(name)
            if at == ROOT and names:
                paths[ino] = os.fsdecode(b"/".join(reversed(names)))
        return paths

    def ids_of(self, names: Mapping[int, str]) -> dict[int, str]:
        """Return the names of videos by id, for names by inode."""
        found: dict[int, str] = {}
        for some in _chunks(sorted(names)):
            query = sa.select(video_rows.c.id, video_rows.c.ino).where(video_rows.c.ino.in_(some))
            found.update((number, names[ino]) for number, ino in self._connection.execute(query))
        return found

    def names_of_videos(self, video_ids: Iterable[int]) -> dict[int, str]:
        """Return the first path of each video that has one, by id."""
        inos: dict[int, int] = {}
        for some in _chunks(sorted(video_ids)):
            query = sa.select(video_rows.c.id, video_rows.c.ino).where(video_rows.c.id.in_(some))
            inos.update((number, ino) for number, ino in self._connection.execute(query))
        names = self.names(inos.values())
        return {number: names[ino] for number, ino in inos.items() if ino in names}

    def captured(self) -> list[CapturedVideo]:
        """Return all videos with a known time of recording, in any order."""
        rows = self._connection.execute(
            sa.select(
                video_rows.c.id,
                video_rows.c.ino,
                video_rows.c.captured_ns,
                video_rows.c.captured_clock,
                physical_videos.c.first_pts,
                physical_videos.c.end_pts,
                physical_videos.c.time_base_num,
                physical_videos.c.time_base_den,
                physical_videos.c.frames,
                video_rows.c.digest,
                physical_videos.c.packets,
                physical_videos.c.verified,
                sounds.c.packets,
            )
            .join(physical_videos, physical_videos.c.video_id == video_rows.c.id)
            .outerjoin(sounds, sounds.c.physical_id == physical_videos.c.id)
            .join(nodes, nodes.c.ino == video_rows.c.ino)
            .where(
                physical_videos.c.role == Role.ORIGINAL.value,
                nodes.c.state == FileState.VIDEO.value,
                video_rows.c.captured_ns.is_not(None),
            )
        ).all()
        names = self.names([row[1] for row in rows])
        return [
            CapturedVideo(
                number,
                ino,
                names[ino],
                start,
                start + max(1, (end - first) * over * NS // under),
                clock or "",
                frames,
                f"{digest}/{frames}/{first}/{end}/{state}",
            )
            for number, ino, start, clock, first, end, over, under, *rest in rows
            for frames, digest, *state in (rest,)
            if ino in names
        ]

    def labels(self, video_ids: Sequence[int]) -> dict[int, list[str]]:
        """Return the labels of videos, sorted, without reading their boxes."""
        found: dict[int, list[str]] = {number: [] for number in video_ids}
        some = sa.exists().where(
            detections.c.video_id == video_rows.c.id, detections.c.label_id == labels.c.id
        )
        query = (
            sa.select(video_rows.c.id, labels.c.name)
            .select_from(video_rows.join(labels, sa.true()))
            .where(video_rows.c.id.in_(list(video_ids)), some)
            .order_by(labels.c.name)
        )
        for number, name in self._connection.execute(query):
            found[number].append(name)
        return found

    def held(self, video_ids: Sequence[int]) -> set[int]:
        """Return those of the videos that have holds."""
        query = sa.select(holds.c.video_id).where(holds.c.video_id.in_(list(video_ids)))
        return {row[0] for row in self._connection.execute(query)}

    def directories(self, path: str) -> list[tuple[str, int, int]]:
        """Return (name, videos, directories) of each directory in a directory, by name.

        Videos are all below it, directories those in it.
        """
        top = TreeReader(self._connection).resolve(path).ino
        is_dir = nodes.c.mode.op("&")(0o170000) == 0o040000
        tree = (
            sa.select(
                entries.c.ino.label("top"), entries.c.ino.label("ino"), sa.literal(0).label("at")
            )
            .join(nodes, nodes.c.ino == entries.c.ino)
            .where(entries.c.parent == top, is_dir)
            .cte("tree", recursive=True)
        )
        below = entries.alias()
        inner = nodes.alias()
        tree = tree.union_all(
            sa.select(tree.c.top, below.c.ino, tree.c.at + 1)
            .join(below, below.c.parent == tree.c.ino)
            .join(inner, inner.c.ino == below.c.ino)
            .where(inner.c.mode.op("&")(0o170000) == 0o040000, tree.c.at < 1000)
        )
        counted = entries.alias()
        file = nodes.alias()
        amounts: dict[int, int] = {
            row[0]: row[1]
            for row in self._connection.execute(
                sa.select(tree.c.top, sa.func.count())
                .join(counted, counted.c.parent == tree.c.ino)
                .join(file, file.c.ino == counted.c.ino)
                .where(file.c.state == FileState.VIDEO.value)
                .group_by(tree.c.top)
            )
        }
        inside: dict[int, int] = {
            row[0]: row[1]
            for row in self._connection.execute(
                sa.select(tree.c.top, sa.func.count()).where(tree.c.at == 1).group_by(tree.c.top)
            )
        }
        found = self._connection.execute(
            sa.select(entries.c.name, entries.c.ino)
            .join(nodes, nodes.c.ino == entries.c.ino)
            .where(entries.c.parent == top, is_dir)
            .order_by(entries.c.name)
        )
        return [(os.fsdecode(name), amounts.get(ino, 0), inside.get(ino, 0)) for name, ino in found]


def _chunks(values: Sequence[int]) -> Iterator[Sequence[int]]:
    return (values[at : at + _CHUNK] for at in range(0, len(values), _CHUNK))
