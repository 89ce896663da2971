"""Queries for tiling policies, from a workload file or from the read log.

A label query is written as an expression, so that the boxes of `car` and of `car|truck` are two
aims.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from reprlib import repr as shown
from typing import Any, TypeVar

from vfsd.codecs.frames.to_array import needed_area
from vfsd.core.label_query import (
    Clauses,
    LabelClause,
    Labels,
    clauses_of,
    format_labels,
    parse_labels,
)
from vfsd.core.model import LoggedRead, MediaInfo
from vfsd.core.timebase import Seconds, Span, parse_span, seconds, span_ends
from vfsd.errors import UsageError
from vfsd.tiling import Rect, Region
from vfsd.tiling.policy import Aim, Aims, Query, ScaledFrames
from vfsd.validation import no_such_file, whole_number

_EXAMPLE = '{"labels": "car", "span": [0, 60]}'
_KEYS = ("labels", "region", "span", "frames", "times")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkloadQuery:
    """A read, and how many times in a row it is repeated.

    With `labels`, it reads the boxes of `VideoLabels.query`; with a `region` too, only those that
    overlap it.  Otherwise it reads the `region` of every frame, in pixels of the displayed frame.
    `span` (seconds; None for the end) or `frames` limit it to a part of the video.

    Raises `UsageError` for an invalid query.
    """

    labels: Labels | None = None
    region: Region | None = None
    span: Span | None = None
    frames: range | None = None
    times: int = 1

    def __post_init__(self) -> None:
        if self.labels is None and self.region is None:
            raise UsageError('a query must have "labels" or a "region"')
        if self.region is not None:
            object.__setattr__(self, "region", Rect.from_value(self.region))
        if self.frames is not None and not isinstance(self.frames, range):
            raise UsageError(f'"frames" must be a range, got {shown(self.frames)}')
        object.__setattr__(self, "times", whole_number(self.times, "times"))
        if self.span is not None and self.frames is not None:
            raise UsageError(
                'a query must not have both "span" and "frames"', hint="leave out one of them"
            )
        clauses_of(self.labels)
        if self.span is not None:
            start, end = span_ends(self.span)
            if seconds(start) < 0 or (end is not None and seconds(end) <= seconds(start)):
                raise UsageError(
                    f'"span" must not be empty, got {_format_seconds(start)} to '
                    f"{_format_seconds(end)}"
                )
        if self.frames is not None and not (
            0 <= self.frames.start < self.frames.stop and self.frames.step == 1
        ):
            raise UsageError(
                f'"frames" must ascend from 0 or more, got {self.frames.start} to '
                f"{self.frames.stop}"
            )
        if self.times < 1:
            raise UsageError(f'"times" must be at least 1, got {self.times}')

    @property
    def clauses(self) -> Clauses:
        """The clauses of the labels; none without labels."""
        return clauses_of(self.labels)


def read_workload(path: Path) -> list[WorkloadQuery]:
    """Return the queries of a file in order.

    The file is JSON: a list of objects, or an object with such a list as "queries".  Each object
    has "labels" (an expression as for `vfsd labels query`), a "region" ("WxH+X+Y" of the displayed
    frame), or both.  It may have "span" ([from, to] in seconds, to may be null) or "frames"
    ([first, end]), and "times" for a repeated query.

    Raises `UsageError` with the query and the reason, `NotFoundError`.
    """
    return [
        _parse_query(f"{path}: query {n}", entry) for n, entry in enumerate(_read_entries(path))
    ]


def _read_entries(path: Path) -> list[Any]:
    hint = f'write {{"queries": [{_EXAMPLE}]}}'
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_reject_duplicates)
    except FileNotFoundError:
        raise no_such_file(path) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}", hint=error.hint) from error
    except (ValueError, RecursionError) as error:  # also for numbers with too many digits
        raise UsageError(f"{path} must be a JSON file: {error}", hint=hint) from error
    if isinstance(content, dict):
        unknown = sorted(set(content) - {"queries"})
        if unknown:
            raise UsageError(f"{path} has the unknown key {unknown[0]!r}", hint=hint)
        content = content.get("queries")
    if not isinstance(content, list):
        raise UsageError(f'{path} must have a list of "queries"', hint=hint)
    if not content:
        raise UsageError(f"{path} must have at least one query", hint=hint)
    return content


def _reject_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"an object has the key {twice!r} twice", hint="leave out one of them")
    return found


def _parse_query(where: str, entry: Any) -> WorkloadQuery:
    if not isinstance(entry, dict):
        raise UsageError(f"{where} must be a JSON object", hint=f"write it as in {_EXAMPLE}")
    unknown = sorted(set(entry) - set(_KEYS))
    if unknown:
        raise UsageError(
            f"{where} has the unknown key {unknown[0]!r}",
            hint=f"known: {', '.join(_KEYS)}",
        )

    def value(key: str, of: Callable[[Any], _T], form: str) -> _T | None:
        if key not in entry:
            return None
        try:
            return of(entry[key])
        except (TypeError, ValueError) as error:
            if isinstance(error, UsageError):
                raise UsageError(
                    f'{where}: "{key}": {error}', hint=error.hint or f"write {form}"
                ) from error
            raise UsageError(
                f'{where}: "{key}" is {json.dumps(entry[key])}', hint=f"write {form}"
            ) from error

    labels = value("labels", _parse_labels, 'an expression, as in "car|truck & red"')
    region = value("region", _parse_region, "WxH+X+Y or [x1, y1, x2, y2]")
    span = value("span", _parse_span, "[from, to] in seconds, as in [0, 60] or [30, null]")
    frames = value("frames", _parse_frames, "[first, end], as in [0, 30]")
    times = value("times", _parse_int, "a whole number, as in 20")
    try:
        return WorkloadQuery(labels, region, span, frames, 1 if times is None else times)
    except UsageError as error:
        hint = error.hint or f"write it as in {_EXAMPLE}"
        raise UsageError(f"{where}: {error}", hint=hint) from error


def _parse_labels(given: Any) -> list[LabelClause]:
    return parse_labels(_parse_text(given))


def _parse_region(given: Any) -> Rect:
    if not isinstance(given, (str, list)):
        raise TypeError
    return Rect.from_value(given)


def _parse_span(given: Any) -> tuple[Fraction, Fraction | None]:
    if isinstance(given, str):
        return parse_span(given)
    start, end = _parse_pair(given)
    return _parse_time(start), None if end is None else _parse_time(end)


def _parse_frames(given: Any) -> range:
    first, end = _parse_pair(given)
    return range(_parse_int(first), _parse_int(end))


def _parse_pair(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, list):
        raise TypeError
    first, second = given
    return first, second


def _parse_time(given: Any) -> Fraction:
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise TypeError
    return seconds(given)


def _parse_int(given: Any) -> int:
    if type(given) is not int:
        raise TypeError
    return given


def _parse_text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given


def _format_seconds(given: Seconds | None) -> str:
    return "the end" if given is None else f"{float(seconds(given)):g}"


@dataclass(frozen=True, slots=True)
class LoggedQuery:
    """A read that tiles could have made cheaper."""

    query: Query
    at_ns: int  #: start, Unix time


def queries_of_reads(reads: Iterable[LoggedRead], media: MediaInfo) -> list[LoggedQuery]:
    """Return the queries of logged reads of one video, oldest first, without whole frames."""
    whole = Rect.of_size(media.width, media.height)
    known: dict[tuple[object, ...], Aims] = {}  # the same reads are repeated often
    found = []
    for read in sorted(reads, key=lambda read: (read.at_ns, read.id)):
        key = read.labels, read.region
        if key not in known:
            known[key] = _aims_of_read(read, media)
        if whole not in known[key]:  # whole frames cost the same with any tiles
            found += [
                LoggedQuery(Query(frames, known[key]), read.at_ns) for frames in frame_runs(read)
            ]
    return found


def sizes_of_reads(reads: Iterable[LoggedRead], media: MediaInfo) -> list[LoggedQuery]:
    """Return the sizes in which whole frames were read, oldest first.

    Each is the size of the smallest rendition that would serve the read.  Reads in full size count
    if they are random.
    """
    order = sorted(reads, key=lambda read: (read.at_ns, read.id))
    found = []
    for read in order:
        size = _rendition_for(read, media)
        if size is not None:
            found += [
                LoggedQuery(Query(frames, frozenset([size])), read.at_ns)
                for frames in frame_runs(read)
            ]
    return found


_RANDOM_RATIO = 2.0


def is_random(read: LoggedRead, media: MediaInfo) -> bool:
    """Return whether the original decodes much more for a read than the frames that it spans."""
    # Frames between those of a sequential reader with a step count: no GOP length avoids them.
    spanned = sum(run[-1] - run[0] + 1 for run in frame_runs(read))
    return read.untiled_pixels >= _RANDOM_RATIO * spanned * media.width * media.height


def _rendition_for(read: LoggedRead, media: MediaInfo) -> ScaledFrames | None:
    if read.size is None or read.region != media.frame_rect:
        return None
    width, height = read.size if media.rotation % 180 == 0 else read.size[::-1]
    # Renditions have even sizes, because chroma is subsampled.
    times = 1 if width % 2 == height % 2 == 0 else 2
    width, height = times * width, times * height
    fits = width <= media.width and height <= media.height
    is_smaller = fits and (width, height) != (media.width, media.height)
    is_useful = is_smaller or (fits and is_random(read, media))
    return ScaledFrames(width, height) if is_useful else None


def frame_runs(read: LoggedRead) -> list[range]:
    """Return the frames of a read, as runs of evenly spaced frames."""
    if read.runs is None:
        return [_frames_of_read(read)]
    return [range(*run) for run in read.runs]


def _frames_of_read(read: LoggedRead) -> range:
    """Return the frames of a read; scattered ones as the same number of evenly spaced frames."""
    # The log has only the first and the last frame and their number.
    between = read.end_frame - 1 - read.first_frame
    if read.kind == "scan" or read.frames < 2:
        return range(read.first_frame, read.end_frame)
    return range(read.first_frame, read.end_frame, max(1, between // (read.frames - 1)))


def _aims_of_read(read: LoggedRead, media: MediaInfo) -> Aims:
    """Return the aims of a read.

    With labels these are all boxes with the labels, even if the read was limited to a region or
    confidence.
    """
    if read.labels is None:
        # The pixel format of a read is not logged; rgb24 needs the largest margin.
        region = read.region.intersection(media.frame_rect) or media.frame_rect
        aims: list[Aim] = [needed_area(media, "rgb24", region, None)]
        return frozenset(aims)
    if len(read.labels) == 1:
        return frozenset(format_labels([[label]]) for label in read.labels[0])
    return frozenset([format_labels(read.labels)])
