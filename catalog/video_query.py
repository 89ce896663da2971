"""Finds videos by name pattern, tags, metadata and properties."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.rows import json_equals, require_json_keys
from vfsd.catalog.schema import ROOT, nodes, physical_videos, tags, videos
from vfsd.catalog.tree import TreeReader, split_path
from vfsd.catalog.videos import Videos
from vfsd.core.arrow_tables import video_row
from vfsd.core.capture_time import NS
from vfsd.core.model import FileState, LogicalVideo, PhysicalVideo, Role
from vfsd.errors import ExtraMissingError, NotFoundError, UsageError
from vfsd.validation import require_storable_text, within_64_bits

if TYPE_CHECKING:
    import pandas
    import pyarrow

_BATCH = 256
_MAX_CONDITIONS = 50
_MAX_TAGS = 500
"""Maximum number of conditions in a statement, and of tags in one condition."""

Interval = tuple[float | None, float | None]
"""Lowest and highest accepted value, both inclusive; None leaves an end open."""


@dataclass(frozen=True)
class VideoFilter:
    """Conditions on a video; all that are given must hold."""

    name: str | None = None  #: pattern: ``*`` and ``?`` stop at ``/``, ``**`` does not
    tags: frozenset[str] = frozenset()  #: all of them
    metadata: Mapping[str, Any] = field(default_factory=dict)  #: top-level keys, equal values
    codec: str | None = None  #: FFmpeg's name, in any case; likewise `container`
    container: str | None = None
    bytes: Interval | None = None
    seconds: Interval | None = None
    width: Interval | None = None  #: of the displayed frame
    height: Interval | None = None
    modified_ns: Interval | None = None  #: of the file, Unix time
    captured_ns: Interval | None = None  #: a frame of it was recorded then, Unix time


def require_video(video: object) -> None:
    """Raises `UsageError` for anything but a `LogicalVideo`, such as a name or a `Video`."""
    if not isinstance(video, LogicalVideo):
        raise UsageError(
            f"video must be a LogicalVideo, got {shown(video)}",
            hint="give `video.info`, or a result of `Catalog.video` or `Catalog.find`",
        )


def require_encoding(physical: object) -> None:
    """Raises `UsageError` for anything but a `PhysicalVideo`."""
    if not isinstance(physical, PhysicalVideo):
        raise UsageError(
            f"the encoding must be a PhysicalVideo, got {shown(physical)}",
            hint="give `video.original`, or a result of `Catalog.physicals`",
        )


class FindOptions(TypedDict, total=False):
    """The arguments of `Catalog.find` other than the name."""

    tags: set[str] | frozenset[str]
    metadata: Mapping[str, Any] | None
    codec: str | None
    container: str | None
    bytes: Interval | None
    seconds: Interval | None
    width: Interval | None
    height: Interval | None
    modified_ns: Interval | None
    captured_ns: Interval | None


def make_video_filter(
    name: str | None,
    tags: Iterable[str],
    metadata: Mapping[str, Any] | None,
    codec: str | None,
    container: str | None,
    **intervals: Interval | None,
) -> VideoFilter:
    """Return the filter for the arguments of `Catalog.find`.  Raises `UsageError`."""
    if name is not None and not isinstance(name, str):
        raise UsageError(f"name must be a pattern, got {name!r}", hint='for example "cam1/*.mp4"')
    if isinstance(tags, str):
        raise UsageError(f"tags must be a set, got {tags!r}", hint=f"give {{{tags!r}}}")
    if not isinstance(tags, Iterable):
        raise UsageError(f"tags must be a set, got {shown(tags)}", hint='for example {"night"}')
    words = frozenset(tags)
    for word in words:
        if not isinstance(word, str):
            raise UsageError(f"a tag must be text, got {shown(word)}", hint='for example "night"')
        require_storable_text(word, "a tag")
    for one, key in ((codec, "codec"), (container, "container")):
        if one is None:
            continue
        if not isinstance(one, str):
            raise UsageError(
                f"{key} must be a str, got {shown(one)}", hint=f"give the name of a {key}"
            )
        require_storable_text(one, f"a {key}")
    return VideoFilter(
        name,
        words,
        require_json_keys(metadata),
        codec,
        container,
        **{key: _interval(given, key) for key, given in intervals.items()},
    )


class VideoQuery:
    """The videos that match a filter, in order of their names.

    Iterating reads them in batches, each in its own snapshot: videos that are deleted or
    overwritten in the meantime are skipped.
    """

    def __init__(
        self, reading: Callable[[], AbstractContextManager[Connection]], what: VideoFilter
    ) -> None:
        self._reading = reading
        self._filter = what

    def __iter__(self) -> Iterator[LogicalVideo]:
        found = self._names()
        for at in range(0, len(found), _BATCH):
            batch = dict(found[at : at + _BATCH])
            with self._reading() as connection:
                values = Videos(connection).by_inodes(batch)
            yield from sorted(values, key=lambda video: video.name)

    def __len__(self) -> int:
        return len(self._names())

    def names(self) -> list[str]:
        """Return only the names, sorted."""
        return [name for _, name in self._names()]

    def first(self) -> LogicalVideo | None:
        return next(iter(self), None)

    def to_arrow(self) -> pyarrow.Table:
        """Return a table with one row per video.  Raises `ExtraMissingError` without pyarrow.

        The columns are those of the table "videos" (docs/reference/tables.md).
        """
        from vfsd.core.arrow_tables import require_pyarrow, videos_batch

        return require_pyarrow().Table.from_batches([videos_batch(list(self))])

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per video.  Raises `ExtraMissingError`
        without pandas.
        """
        try:
            import pandas
        except ImportError:
            raise _missing("pandas", "pandas") from None
        return pandas.DataFrame([video_row(video) for video in self])

    def _names(self) -> list[tuple[int, str]]:
        """Return (inode, name) of every match, by name; a file with several names counts once."""
        with self._reading() as connection:
            wanted = self._wanted(connection)
            found: dict[int, str] = {}
            for name, ino in self._walk(TreeReader(connection), wanted):
                if ino not in found or name < found[ino]:
                    found[ino] = name
        return sorted(found.items(), key=lambda item: item[1])

    def _walk(self, tree: TreeReader, wanted: set[int]) -> Iterator[tuple[str, int]]:
        pattern = self._filter.name
        start, above = ROOT, ""
        if pattern is not None:
            # Walk only the directory that every match must be in.
            fixed = split_path(re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0])
            above = "/".join(fixed)
            try:
                start = tree.resolve(above).ino
            except NotFoundError:
                return
        matches = name_matcher(pattern) if pattern is not None else None
        for path, node in tree.walk(start, above):
            if node.ino in wanted and (matches is None or matches(path)):
                yield path, node.ino

    def _wanted(self, connection: Connection) -> set[int]:
        """Return the inodes of all matches, ignoring names."""
        conditions = list(_list_conditions(self._filter))
        found: set[int] | None = None
        # Databases take minutes to plan a statement with a thousand conditions, or refuse it.
        while conditions or found is None:
            some, conditions = conditions[:_MAX_CONDITIONS], conditions[_MAX_CONDITIONS:]
            rows = {row.ino for row in connection.execute(_select(self._filter).where(*some))}
            found = rows if found is None else found & rows
            if not found:
                break
        return found or set()


def _list_conditions(what: VideoFilter) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions on tags and metadata, of any number."""
    wanted = sorted(what.tags)
    for at in range(0, len(wanted), _MAX_TAGS):
        some = wanted[at : at + _MAX_TAGS]
        # A correlated query uses the primary key of the tags.  Otherwise SQLite would scan all
        # videos with the tags for every video.
        count = (
            sa.select(sa.func.count())
            .select_from(tags)
            .where(tags.c.video_id == videos.c.id, tags.c.tag.in_(some))
            .correlate(videos)
            .scalar_subquery()
        )
        yield count == len(some)
    for key, value in what.metadata.items():
        yield json_equals(videos.c.metadata, key, value)


def _select(what: VideoFilter) -> sa.Select[tuple[int]]:
    query = (
        sa.select(videos.c.ino)
        .join(nodes, nodes.c.ino == videos.c.ino)
        .join(physical_videos, physical_videos.c.video_id == videos.c.id)
        .where(physical_videos.c.role == Role.ORIGINAL.value)
        .where(nodes.c.state == FileState.VIDEO.value)
    )
    # Both are stored in lower case, like FFmpeg's names.
    if what.codec is not None:
        query = query.where(physical_videos.c.codec == what.codec.lower())
    if what.container is not None:
        query = query.where(physical_videos.c.container == what.container.lower())
    duration = (
        sa.cast(physical_videos.c.end_pts - physical_videos.c.first_pts, sa.Float)
        * physical_videos.c.time_base_num
        / physical_videos.c.time_base_den
    )
    for column, interval in (
        (nodes.c.size, what.bytes),
        (duration, what.seconds),
        (physical_videos.c.width, what.width),
        (physical_videos.c.height, what.height),
        (nodes.c.mtime_ns, what.modified_ns),
        # Of the last frame and the first one: a video that was being recorded then matches.
        (videos.c.captured_ns + duration * NS, _from(what.captured_ns)),
        (videos.c.captured_ns, _until(what.captured_ns)),
    ):
        low, high = interval or (None, None)
        if low is not None:
            query = query.where(column >= _number(low))
        if high is not None:
            query = query.where(column <= _number(high))
    return query


def filter_statement(what: VideoFilter) -> sa.Select[tuple[int]]:
    """Return the statement for the inodes of videos that match, apart from their names."""
    return _select(what).where(*_list_conditions(what))


def _from(interval: Interval | None) -> Interval | None:
    return None if interval is None else (interval[0], None)


def _until(interval: Interval | None) -> Interval | None:
    return None if interval is None else (None, interval[1])


def _number(bound: float) -> sa.ColumnElement[Any]:
    """Return a literal of its own type.

    PostgreSQL would convert it to the type of the column, and fail if that is too small.
    """
    return sa.literal(bound, sa.BigInteger if isinstance(bound, int) else sa.Double)


def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a matcher: ``**`` matches across slashes, ``*`` and ``?`` do not; the rest is
    `fnmatch`.
    """
    parts = re.split(r"(\*\*/?|\*|\?)", pattern)
    special = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}
    text = "".join(special[p] if p in special else _literal(p) for p in parts)
    compiled = re.compile(text, re.DOTALL)
    return lambda path: compiled.fullmatch(path) is not None


def _literal(text: str) -> str:
    """Translate a part of a pattern without stars; character classes keep their meaning."""
    translated = fnmatch.translate(text)
    inner = re.fullmatch(r"\(\?s:(.*)\)\\[Zz]", translated, re.DOTALL)
    return re.escape(text) if inner is None else inner.group(1)


def _missing(package: str, extra: str) -> ExtraMissingError:
    return ExtraMissingError(f"{package} is not installed", hint=f"pip install 'vfsd[{extra}]'")


def _interval(given: Interval | None, what: str) -> Interval | None:
    """Check a pair of numbers or None.  Raises `UsageError`."""
    if given is None:
        return None
    both = tuple(given) if isinstance(given, (tuple, list)) else ()
    if len(both) != 2 or not all(end is None or _is_bound(end) for end in both):
        raise UsageError(
            f"{what} must be (lowest, highest), got {shown(given)}", hint="None leaves an end open"
        )
    low, high = (None if end is None else _bound(end, what) for end in both)
    return low, high


def _is_bound(end: object) -> bool:
    if isinstance(end, (Integral, Fraction)):
        return True  # checked without conversion: a float may overflow
    return isinstance(end, (Real, Decimal)) and not math.isnan(end)


def _bound(end: float, what: str) -> float:
    """Convert a bound to a type that SQLite compares as a number: it takes a numpy scalar for a
    blob.

    Raises `UsageError` for integers beyond 64 bits.
    """
    if isinstance(end, Integral):
        hint = "give a smaller number, or None to leave the end open"
        return within_64_bits(int(end), f"{what}: ", hint=hint)
    try:
        return float(end)
    except OverflowError:  # a fraction
        return math.inf if end > 0 else -math.inf
