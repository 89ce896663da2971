"""Queries that tiling policies work on: those that a workload file lists, and those that the read
log contains. A label query is written as an expression, so that the boxes of `car` and of
`car|truck` are two aims.
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
from vfsd.core.label_query import Clauses, Labels, clauses_of, format_labels, parse_labels
from vfsd.core.model import LoggedRead, MediaInfo
from vfsd.core.timebase import Seconds, seconds, span_ends
from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.tiling.policy import Aim, Aims, Query, ScaledFrames
from vfsd.validation import no_such_file, whole_number

_EXAMPLE = '{"labels": "car", "span": [0, 60]}'
_KEYS = ("labels", "region", "span", "frames", "times")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkloadQuery:
    """One kind of read, and how many times in a row it is done.

    With `labels`, the boxes that `VideoLabels.query` finds for them (with a `region`, too: those
    that share a part of it); else the `region` of every frame, in pixels of the displayed frame.
    Without `span` (seconds, the second None for the end) and `frames`: of all frames.

    Raises `UsageError` where that makes no query.
    """

    labels: Labels | None = None
    region: Rect | tuple[int, int, int, int] | None = None
    span: tuple[Seconds, Seconds | None] | None = None
    frames: range | None = None
    times: int = 1

    def __post_init__(self) -> None:
        if self.labels is None and self.region is None:
            raise UsageError('it has neither "labels" nor a "region" to look for')
        if self.region is not None:
            object.__setattr__(self, "region", Rect.given(self.region))
        if self.frames is not None and not isinstance(self.frames, range):
            raise UsageError(f'"frames" are {shown(self.frames)}', hint="give a range")
        object.__setattr__(self, "times", whole_number(self.times, "times"))
        if self.span is not None and self.frames is not None:
            raise UsageError('it has both "span" and "frames"', hint="leave out one of them")
        clauses_of(self.labels)
        if self.span is not None:
            start, end = span_ends(self.span)
            if seconds(start) < 0 or (end is not None and seconds(end) <= seconds(start)):
                raise UsageError(
                    f'"span" is {_parse_seconds(start)} to {_parse_seconds(end)}, '
                    "in which there is nothing"
                )
        if self.frames is not None and not (
            0 <= self.frames.start < self.frames.stop and self.frames.step == 1
        ):
            raise UsageError(
                f'"frames" are {self.frames.start} to {self.frames.stop}; they have to ascend from '
                "0 or more"
            )
        if self.times < 1:
            raise UsageError(f'"times" is {self.times}; a query is asked once at least')

    @property
    def clauses(self) -> Clauses:
        """The labels as an AND of ORs; nothing without labels."""
        return clauses_of(self.labels)


def read_workload(path: Path) -> list[WorkloadQuery]:
    """The queries of a file, in their order.

    The file is JSON: a list of objects, or an object whose "queries" is one.  Each has "labels"
    (an expression as of `vfsd labels query`), a "region" ("WxH+X+Y" of the displayed frame), or
    both; "span" ([from, to] in seconds, to may be null) or "frames" ([first, end]), or neither;
    and "times", if it is asked more than once.

    Raises `UsageError` that names the query and what is wrong with it, `NotFoundError`.
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
    except (ValueError, RecursionError) as error:  # numbers may have too many digits, too
        raise UsageError(f"{path} must be a JSON file: {error}", hint=hint) from error
    if isinstance(content, dict):
        unknown = sorted(set(content) - {"queries"})
        if unknown:
            raise UsageError(
                f"{path} has a key {unknown[0]!r}, which means nothing here", hint=hint
            )
        content = content.get("queries")
    if not isinstance(content, list):
        raise UsageError(f'{path} has no list of "queries"', hint=hint)
    if not content:
        raise UsageError(f"{path} has no query", hint=hint)
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
            f"{where} has a key {unknown[0]!r}, which means nothing here",
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
    region = value("region", _parse_region, 'WxH+X+Y, as in "640x384+0+0"')
    span = value("span", _parse_span, "[from, to] in seconds, as in [0, 60] or [30, null]")
    frames = value("frames", _parse_frames, "[first, end], as in [0, 30]")
    times = value("times", _parse_int, "a whole number, as in 20")
    try:
        return WorkloadQuery(labels, region, span, frames, 1 if times is None else times)
    except UsageError as error:
        hint = error.hint or f"write it as in {_EXAMPLE}"
        raise UsageError(f"{where}: {error}", hint=hint) from error


def _parse_labels(given: Any) -> list[list[str]]:
    return parse_labels(_parse_text(given))


def _parse_region(given: Any) -> Rect:
    return Rect.parse(_parse_text(given))


def _parse_span(given: Any) -> tuple[Fraction, Fraction | None]:
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


def _parse_seconds(given: Seconds | None) -> str:
    return "the end" if given is None else f"{float(seconds(given)):g}"


@dataclass(frozen=True, slots=True)
class LoggedQuery:
    """A read that tiles could have made cheaper."""

    query: Query
    at_ns: int  #: Unix time at which it began


def queries_of_reads(reads: Iterable[LoggedRead], media: MediaInfo) -> list[LoggedQuery]:
    """What reads of one video looked for, the oldest first.

    Those of whole frames are left out: they take the same whatever tiles there are, so they speak
    neither for a layout nor against it.
    """
    whole = Rect.of_size(media.width, media.height)
    known: dict[tuple[object, ...], Aims] = {}  # people read the same again and again
    found = []
    for read in sorted(reads, key=lambda read: (read.at_ns, read.id)):
        key = read.labels, read.region
        if key not in known:
            known[key] = _aims_of_read(read, media)
        if whole not in known[key]:
            found.append(LoggedQuery(Query(_frames_of_read(read), known[key]), read.at_ns))
    return found


def sizes_of_reads(reads: Iterable[LoggedRead], media: MediaInfo) -> list[LoggedQuery]:
    """Which sizes whole frames were read in, the oldest first.

    Each as the size of the smallest rendition that would serve it: renditions have even sizes, so
    an odd one is asked for as its double.  What is not smaller than the picture is left out.
    """
    order = sorted(reads, key=lambda read: (read.at_ns, read.id))
    found = []
    for read in order:
        size = _rendition_for(read, media)
        if size is not None:
            found.append(LoggedQuery(Query(_frames_of_read(read), frozenset([size])), read.at_ns))
    return found


def _rendition_for(read: LoggedRead, media: MediaInfo) -> ScaledFrames | None:
    if read.size is None or read.region != media.frame_rect:
        return None
    width, height = read.size if media.rotation % 180 == 0 else read.size[::-1]
    times = 1 if width % 2 == height % 2 == 0 else 2
    width, height = times * width, times * height
    fits = width <= media.width and height <= media.height
    is_smaller = fits and (width, height) != (media.width, media.height)
    return ScaledFrames(width, height) if is_smaller else None


def _frames_of_read(read: LoggedRead) -> range:
    """Of frames that are not in a row, as many as there were, evenly spread."""
    between = read.end_frame - 1 - read.first_frame
    if read.kind == "scan" or read.frames < 2:
        return range(read.first_frame, read.end_frame)
    return range(read.first_frame, read.end_frame, max(1, between // (read.frames - 1)))


def _aims_of_read(read: LoggedRead, media: MediaInfo) -> Aims:
    """Of labels, all boxes that carry them: a read that wanted only those in a region, or with some
    confidence, is taken for one of all."""
    if read.labels is None:
        # How it was converted is not remembered; nothing else looks at more than this.
        region = read.region.intersection(media.frame_rect) or media.frame_rect
        aims: list[Aim] = [needed_area(media, "rgb24", region, None)]
        return frozenset(aims)
    if len(read.labels) == 1:
        return frozenset(format_labels([[label]]) for label in read.labels[0])
    return frozenset([format_labels(read.labels)])
