"""`StoreSearches`: searches that are kept under a name; `Store.searches`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from reprlib import repr as shown
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from vfsd.api.events import EventOptions, check_search, events, split_arguments
from vfsd.api.labels import warn_of_unknown_labels
from vfsd.api.store_labels import detections
from vfsd.catalog.detection_query import make_filter
from vfsd.catalog.searches import BOXES, EVENTS, SavedSearch, missing_search
from vfsd.core.detections import Source
from vfsd.core.label_query import Labels, clauses_of, format_labels
from vfsd.core.timebase import Seconds, Span, seconds, span_ends
from vfsd.errors import UsageError
from vfsd.tiling import Rect
from vfsd.validation import boolean, is_storable

if TYPE_CHECKING:
    from vfsd.api.events import EventList
    from vfsd.api.store import Store
    from vfsd.api.store_labels import StoreDetections
    from vfsd.catalog.catalog_detections import BoxConditions

_LONGEST_NAME = 255
_RATIO = re.compile(r"([0-9]{1,40})/([1-9][0-9]{0,39})")
_KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        BOXES: (
            *("labels", "names", "span", "region", "source"),
            *("min_confidence", "track", "attributes"),
        ),
        EVENTS: (
            *("event", "names", "variables", "within", "gap"),
            *("span", "source", "min_confidence", "regions"),
        ),
    }
)


class StoreSearches:
    """The saved searches of a store: queries of boxes or of events, with all their arguments.

        store.searches.save_boxes("parked", "car & not moving", "cam1/**", min_confidence=0.5)
        store.searches.save_events("close", "near(a, b) for 2s", "cam1/**", a="car", b="person")
        store.searches.run("close")  # the events that there are now

    They are in the catalog, and so in its backups.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def save_boxes(
        self,
        name: str,
        labels: Labels | None = None,
        names: str | Iterable[str] | None = None,
        *,
        span: Span | None = None,
        replace: bool = False,
        **conditions: Unpack[BoxConditions],
    ) -> SavedSearch:
        """Save a call of `Store.detections`.

        Args:
            name: The name of the search.
            labels: As for `Store.detections`, like `names`, `span` and `conditions`.
            names: A pattern is kept, so that later videos are searched, too.
            span: Seconds of each video.
            replace: Replace the search of that name.
            conditions: Other conditions.

        Raises `UsageError`, `ExistsError` for a name that is taken, and `ReadOnlyError`.
        """
        what = make_filter(labels, **conditions)
        arguments = {
            "labels": format_labels(what.labels) or None,
            "names": _listed(names),
            "span": _span_text(span),
            "region": None if what.region is None else list(what.region),
            "source": _source_record(what.source),
            "min_confidence": what.min_confidence,
            "track": what.track,
            "attributes": dict(what.attributes) or None,
        }
        return self._save(name, BOXES, arguments, replace)

    def save_events(
        self,
        name: str,
        event: str,
        names: str | Iterable[str] = "**",
        /,
        *,
        replace: bool = False,
        **arguments: Any,
    ) -> SavedSearch:
        """Save a call of `Store.events`; `arguments` are its variables and options.

        Raises as `save_boxes`; `UsageError` also for `predicates`, which are functions.
        """
        options, variables = split_arguments(arguments)
        if options.get("predicates"):
            raise UsageError("a saved search must not have predicates: functions are not saved")
        check_search(event, variables, **options)
        regions = options.get("regions") or {}
        found = {
            "event": event,
            "names": _listed(names),
            "variables": {key: format_labels(clauses_of(one)) for key, one in variables.items()},
            "within": _seconds_text(options.get("within")),
            "gap": _seconds_text(options.get("gap")),
            "span": _span_text(options.get("span")),
            "source": _source_record(options.get("source")),
            "min_confidence": make_filter(
                None, min_confidence=options.get("min_confidence")
            ).min_confidence,
            "regions": {key: str(Rect.from_value(one)) for key, one in regions.items()} or None,
        }
        return self._save(name, EVENTS, found, replace)

    def save(
        self, name: str, kind: str, arguments: Mapping[str, Any], *, replace: bool = False
    ) -> SavedSearch:
        """Save a search whose arguments have the form of `SavedSearch.arguments`.

        Raises as `save_boxes`.
        """
        saver = self.save_events if kind == EVENTS else self.save_boxes

        def save(*given: Any, **rest: Any) -> SavedSearch:
            return saver(name, *given, replace=replace, **rest)

        saved: SavedSearch = _call(kind, arguments, save)
        return saved

    def all(self) -> list[SavedSearch]:
        """The saved searches, by name."""
        with self._store.catalog.reading() as seen:
            return seen.searches.all()

    def get(self, name: str) -> SavedSearch:
        """The search with that name.  Raises `NotFoundError`."""
        if not isinstance(name, str) or not is_storable(name):
            raise missing_search(name)
        with self._store.catalog.reading() as seen:
            return seen.searches.get(name)

    def run(self, name: str) -> StoreDetections | EventList:
        """The boxes or the events that a search finds now.

        Raises `NotFoundError`, and as `Store.detections` or `Store.events`.
        """
        found = self.find(name)
        warn_of_unknown_labels(found.unknown_labels)
        return found

    def find(self, name: str) -> StoreDetections | EventList:
        """Like `run`, without a warning: for a program that prints unknown labels itself."""
        search, store = self.get(name), self._store

        def boxes(labels: Labels, names: list[str], span: Any = None, **rest: Any) -> Any:
            return detections(store, labels, names, span, **rest)

        def of_events(event: str, names: list[str], /, **rest: Any) -> Any:
            options, variables = split_arguments(rest)
            return events(store.named(names), event, variables, **options)

        finder = of_events if search.kind == EVENTS else boxes
        found: StoreDetections | EventList = _call(search.kind, search.arguments, finder)
        return found

    def remove(self, name: str) -> None:
        """Remove a search.  Raises `NotFoundError` and `ReadOnlyError`."""
        self._store.parts.require_writable()
        self.get(name)
        with self._store.catalog.writing() as change:
            change.searches.remove(name)

    def _save(
        self, name: str, kind: str, arguments: Mapping[str, Any], replace: bool
    ) -> SavedSearch:
        self._store.parts.require_writable()
        replace = boolean(replace, "replace")
        if (
            not isinstance(name, str)
            or not name.isprintable()
            or name != name.strip()
            or not 0 < len(name) <= _LONGEST_NAME
        ):
            raise UsageError(
                f"name must be printable text of 1 to {_LONGEST_NAME} characters, got {shown(name)}"
            )
        kept = {key: value for key, value in arguments.items() if value is not None}
        search = SavedSearch(name, kind, kept, time.time_ns())
        with self._store.catalog.writing() as change:
            change.searches.put(search, replace=replace)
        return search


def _call(kind: str, arguments: Mapping[str, Any], function: Callable[..., Any]) -> Any:
    """Call a function with the arguments of a search."""
    if not isinstance(kind, str) or kind not in _KEYS:
        raise UsageError(f"kind must be {BOXES} or {EVENTS}, got {shown(kind)}")
    if not isinstance(arguments, Mapping):
        raise UsageError(f"arguments must be an object, got {shown(arguments)}")
    unknown = sorted(map(str, arguments.keys() - {*_KEYS[kind]}))
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is not an argument here",
            hint=f"the arguments are {', '.join(_KEYS[kind])}",
        )
    rest = {key: value for key, value in arguments.items() if value is not None}
    for key, read in _READERS.items():
        if key in rest:
            rest[key] = read(rest[key])
    if kind == BOXES:
        return function(rest.pop("labels", None), rest.pop("names", None), **rest)
    variables = rest.pop("variables", {})
    if not isinstance(variables, Mapping):
        raise UsageError(f"variables must be an object, got {shown(variables)}")
    taken = sorted(variables.keys() & {*rest, *EventOptions.__annotations__, "replace"})
    if taken:
        raise UsageError(f"{taken[0]} must not be the name of a variable")
    return function(rest.pop("event", ""), rest.pop("names", "**"), **rest, **variables)


def _listed(names: str | Iterable[str] | None) -> list[str] | None:
    if names is None:
        return None
    found = [names] if isinstance(names, str) else []
    if not isinstance(names, str) and isinstance(names, Iterable):
        found = list(names)
    if not found or not all(isinstance(one, str) and is_storable(one) for one in found):
        raise UsageError(f"names must be a list of names, got {shown(names)}")
    return found


def _seconds_text(value: Seconds | None) -> str | None:
    return None if value is None else str(seconds(value))


def _span_text(span: Span | None) -> list[str | None] | None:
    if span is None:
        return None
    start, end = span_ends(span)
    if seconds(start) < 0 or (end is not None and seconds(end) <= seconds(start)):
        raise UsageError(f"span must not be empty, got {shown(span)}")
    return [_seconds_text(start), _seconds_text(end)]


def _source_record(source: str | Source | None) -> str | dict[str, Any] | None:
    if not isinstance(source, Source):
        return source
    return {**source.record(), "parameters": dict(source.parameters)}


def _read_seconds(value: Any) -> Fraction:
    match = _RATIO.fullmatch(value) if isinstance(value, str) else None
    return seconds(value) if match is None else Fraction(int(match[1]), int(match[2]))


def _read_span(value: Any) -> tuple[Fraction, Fraction | None]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise UsageError(f"span must be [from, to] in seconds, got {shown(value)}")
    start, end = value
    return _read_seconds(start), None if end is None else _read_seconds(end)


def _read_regions(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"regions must be an object, got {shown(value)}")
    return value


def _read_source(value: Any) -> str | Source:
    if isinstance(value, str):
        return value
    try:
        return Source(**value)
    except TypeError:
        raise UsageError(
            f"source must be a name, or an object of name, model, version and parameters, got "
            f"{shown(value)}"
        ) from None


_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "within": _read_seconds,
        "gap": _read_seconds,
        "span": _read_span,
        "source": _read_source,
        "regions": _read_regions,
        "names": _listed,
    }
)
