"""Workloads: queries that somebody expects to ask of a video, from a file.

{"queries": [
  {"labels": "car|truck & red", "span": [0, 60], "times": 20},
  {"region": "640x384+0+0", "frames": [300, 600]},
  {"labels": "person", "region": "640x384+0+0"}
]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from reprlib import repr as shown
from typing import Any, TypeVar

from vfsd.core.label_query import Clauses, Labels, clauses_of, parse_labels
from vfsd.core.timebase import Seconds, ends, seconds
from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.validation import no_such_file, whole_number

_EXAMPLE = '{"labels": "car", "span": [0, 60]}'
_KEYS = ("labels", "region", "span", "frames", "times")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WorkloadQuery:
    """One kind of read, and how many times in a row it is done.

    With `labels`, the boxes that `Video.detections` finds for them (with a `region`, too: those
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
            start, end = ends(self.span)
            if seconds(start) < 0 or (end is not None and seconds(end) <= seconds(start)):
                raise UsageError(
                    f'"span" is {_seconds(start)} to {_seconds(end)}, in which there is nothing'
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
    return [_query(f"{path}: query {n}", entry) for n, entry in enumerate(_entries(path))]


def _entries(path: Path) -> list[Any]:
    hint = f'write {{"queries": [{_EXAMPLE}]}}'
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once_each)
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


def _once_each(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"an object has the key {twice!r} twice", hint="leave out one of them")
    return found


def _query(where: str, entry: Any) -> WorkloadQuery:
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

    labels = value("labels", _labels, 'an expression, as in "car|truck & red"')
    region = value("region", _region, 'WxH+X+Y, as in "640x384+0+0"')
    span = value("span", _span, "[from, to] in seconds, as in [0, 60] or [30, null]")
    frames = value("frames", _frames, "[first, end], as in [0, 30]")
    times = value("times", _whole, "a whole number, as in 20")
    try:
        return WorkloadQuery(labels, region, span, frames, 1 if times is None else times)
    except UsageError as error:
        hint = error.hint or f"write it as in {_EXAMPLE}"
        raise UsageError(f"{where}: {error}", hint=hint) from error


def _labels(given: Any) -> list[list[str]]:
    return parse_labels(_text(given))


def _region(given: Any) -> Rect:
    return Rect.parse(_text(given))


def _span(given: Any) -> tuple[Fraction, Fraction | None]:
    start, end = _pair(given)
    return _time(start), None if end is None else _time(end)


def _frames(given: Any) -> range:
    first, end = _pair(given)
    return range(_whole(first), _whole(end))


def _pair(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, list):
        raise TypeError
    first, second = given
    return first, second


def _time(given: Any) -> Fraction:
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise TypeError
    return seconds(given)


def _whole(given: Any) -> int:
    if type(given) is not int:
        raise TypeError
    return given


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given


def _seconds(given: Seconds | None) -> str:
    return "the end" if given is None else f"{float(seconds(given)):g}"
