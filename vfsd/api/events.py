"""`EventList`: times at which objects are related in some way, for `Video.events` and
`Store.events`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast, overload

import numpy as np

from vfsd.core.detections import (
    NO_SOURCE,
    NO_TRACK,
    DetectionColumns,
    Examined,
    Floats,
    Ints,
    Source,
    contiguous_ranges,
)
from vfsd.core.label_query import (
    Clauses,
    LabelClause,
    Labels,
    UnknownLabels,
    clauses_of,
    wanted_labels,
)
from vfsd.core.timebase import Span, seconds
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.labels.events import (
    EventBoxes,
    FoundEvents,
    ObjectBoxes,
    bind,
    find_events,
    parse_event,
    runs_of_steps,
)
from vfsd.labels.events.event_rows import held_until, unexamined
from vfsd.tiling import Rect

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.catalog.catalog_detections import CatalogDetections
    from vfsd.core.timebase import Seconds
    from vfsd.labels.events.box_relations import Relation
    from vfsd.read.read_context import VideoContext
    from vfsd.tiling import Region

_MICRO = 1_000_000
_ROUNDING = 10
"""Microseconds from a frame's time within which a time means that frame."""


class EventOptions(TypedDict, total=False):
    """What `Video.events` and `Store.events` take besides the event and its variables."""

    within: Seconds | None
    gap: Seconds
    span: Span | None
    source: str | Source | None
    min_confidence: float | None
    regions: Mapping[str, Region] | None
    predicates: Mapping[str, Relation] | None


@dataclass(frozen=True, slots=True)
class Event:
    """One time at which objects of a video are related as requested."""

    video: str  #: its name
    frames: range
    span: tuple[Fraction, Fraction]  #: seconds from the first frame, the end exclusive
    steps: tuple[range, ...]  #: the frames of each step
    tracks: Mapping[str, int | None]  #: of each variable; None: a box without a track

    @property
    def name(self) -> str:
        """The frames as a key of views: ``video.views.open(event.name + ".mp4")`` plays them."""
        return f"frames={self.frames.start}-{self.frames.stop}"


@dataclass(frozen=True, slots=True)
class EventList(Sequence[Event]):
    """Events by video, in the order of the videos, then by time."""

    items: tuple[Event, ...]
    unknown: Mapping[str, tuple[range, ...]]
    """Frames that no source of the variables has examined, by name of the video.

    An event there would not be found.
    """
    unknown_labels: UnknownLabels  #: of the variables

    @overload
    def __getitem__(self, at: int) -> Event: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Event, ...]: ...
    def __getitem__(self, at: int | slice) -> Event | tuple[Event, ...]:
        return self.items[at]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.items)


def events(
    videos: Sequence[Video],
    text: str,
    variables: Mapping[str, Labels],
    **options: Unpack[EventOptions],
) -> EventList:
    """Find an event in `videos`; see `Store.events`.  Does not warn of unknown labels."""
    from vfsd.api.video import context_of

    return _Search(text, variables, **options).find([context_of(video) for video in videos])


def check_search(
    text: str, variables: Mapping[str, Labels], **options: Unpack[EventOptions]
) -> None:
    """Raises `UsageError` for an event that cannot be found with these arguments."""
    _Search(text, variables, **options)


def split_arguments(arguments: Mapping[str, Any]) -> tuple[EventOptions, dict[str, Labels]]:
    """Return the options among keyword arguments of `Video.events`, and the variables."""
    options = {name: arguments[name] for name in EventOptions.__annotations__ if name in arguments}
    variables = {name: arguments[name] for name in arguments if name not in options}
    return cast("EventOptions", options), variables


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """One video, the frames to search, and the frames that sources examined."""

    video: VideoContext
    chosen: range  #: the frames to search
    starts: Ints  #: when each frame appears, and when the last one ends, in microseconds
    examined: Mapping[Source, Sequence[range]]  #: frames, ascending


class _Search:
    """One event, looked for in some videos."""

    def __init__(
        self,
        text: str,
        variables: Mapping[str, Labels],
        within: Seconds | None = None,
        gap: Seconds = 0,
        span: Span | None = None,
        source: str | Source | None = None,
        min_confidence: float | None = None,
        regions: Mapping[str, Region] | None = None,
        predicates: Mapping[str, Relation] | None = None,
    ) -> None:
        if not variables:
            raise UsageError(
                "an event needs the labels of its variables",
                hint='for example events("near(a, b) for 2s", a="car|truck", b="person")',
            )
        places = {name: Rect.from_value(region) for name, region in (regions or {}).items()}
        for name, one in (predicates or {}).items():
            if not callable(one):
                raise UsageError(f"the predicate {name!r} must be a function, got {shown(one)}")
        self._steps = bind(parse_event(text), variables, predicates or {}, places)
        self._variables = dict(variables)
        self._within = None if within is None else _microseconds(within, "within")
        self._gap = _microseconds(gap, "gap")
        self._span, self._source, self._confidence = span, source, min_confidence
        # Boxes without a track are one object only where nothing has to recognise it.
        self._needs_tracks = len(self._steps) > 1 or len(variables) > 1

    def find(self, videos: Sequence[VideoContext]) -> EventList:
        videos = self._within_span(videos)
        if not videos:
            return EventList((), {}, UnknownLabels())
        index = videos[0].parts.catalog.detections
        examined = index.examined_in([video.info for video in videos], self._source)
        seen = [self._seen(video, runs) for video, runs in zip(videos, examined, strict=True)]
        # Variables with equal labels share their boxes.
        clauses = {name: clauses_of(wanted) for name, wanted in self._variables.items()}
        read = self._read(index, seen, list(dict.fromkeys(clauses.values())))
        objects = _Objects()
        made = {key: self._candidates(*found, seen, objects) for key, found in read.items()}
        candidates = {name: made[key] for name, key in clauses.items()}
        runs = runs_of_steps(self._steps, candidates, self._gap)
        found = find_events(self._steps, runs, self._within)
        return EventList(
            tuple(
                _event(found, row, seen[int(found.videos[row])], objects.tracks)
                for row in range(len(found))
            ),
            self._unknown(index, seen, read),
            index.unknown_labels(*self._variables.values()),
        )

    def _within_span(self, videos: Sequence[VideoContext]) -> Sequence[VideoContext]:
        """Return the videos that last until the span; raises `OutOfRangeError` if none does."""
        kept, error = [], None
        for video in videos:
            try:
                video.frames_of_span(self._span)
                kept.append(video)
            except OutOfRangeError as found:
                error = found
        if error is not None and not kept:
            raise error
        return kept

    def _seen(self, video: VideoContext, examined: Sequence[Examined]) -> _Seen:
        if video.original.constant_rate is None and any(step.frames for step in self._steps):
            raise UsageError(
                f"lengths in frames need a constant rate, which {video.name} does not have",
                hint="give lengths in seconds, such as 'for 2s'",
            )
        of_source: dict[Source, list[range]] = {}
        for one in examined:
            of_source.setdefault(one.source, []).append(one.frames)
        return _Seen(
            video,
            video.frames_of_span(self._span),
            _frame_starts(video),
            of_source,
        )

    def _read(
        self, index: CatalogDetections, seen: Sequence[_Seen], wanted: Collection[Clauses]
    ) -> dict[Clauses, tuple[Ints, DetectionColumns]]:
        """Return the boxes of each of `wanted`, as `find_in` does, on the frames to search."""
        infos = [one.video.info for one in seen]
        plain = [one for one in wanted if len(one) == 1 and one[0].is_plain]
        words = {word for one in plain for word in one[0].labels}
        # A box that several variables may stand for is read once.
        union = [(LabelClause(tuple(sorted(words))),)] if plain else []
        found = {
            one: _in_span(
                *index.find_in(infos, one, source=self._source, min_confidence=self._confidence),
                seen,
            )
            for one in [*union, *(one for one in wanted if one not in plain)]
        }
        if not plain:
            return found
        videos, columns = found.pop(union[0])
        for one in plain:
            labels = set(one[0].labels)
            codes = [at for at, name in enumerate(columns.names) if name in labels]
            mine = slice(None) if labels == words else np.isin(columns.codes, codes)
            found[one] = videos[mine], columns.select(mine)
        return found

    def _candidates(
        self, videos: Ints, columns: DetectionColumns, seen: Sequence[_Seen], objects: _Objects
    ) -> ObjectBoxes:
        """Return the boxes of a variable; new objects get numbers in `objects`."""
        if self._needs_tracks:
            rows = np.nonzero(columns.tracks != NO_TRACK)[0]
            videos, columns = videos[rows], columns.select(rows)
        codes = columns.source_codes
        sources = np.full(len(columns), NO_SOURCE, np.int64) if codes is None else codes
        numbers = objects.numbers(videos, sources, columns)
        places = (videos << 32) + columns.frames
        # An object has one box for each of its labels; the first one counts.
        order = np.lexsort((numbers, places))
        again = np.zeros(len(order), bool)
        again[1:] = (np.diff(places[order]) == 0) & (np.diff(numbers[order]) == 0)
        order = order[~again]
        videos, numbers, places = videos[order], numbers[order], places[order]
        columns, sources = columns.select(order), sources[order]
        # Where each video's frames begin in the times of all videos.
        times = np.concatenate([one.starts for one in seen])
        lengths = np.array([len(one.starts) for one in seen])
        offsets = (np.cumsum(lengths) - lengths)[videos]
        starts = times[offsets + columns.frames]
        held = np.minimum(columns.frames + 1, lengths[videos] - 1)
        bounds = np.searchsorted(videos, np.arange(len(seen) + 1)).tolist()
        for at, one in enumerate(seen):
            # A source that has examined one range has looked again at the next frame.
            if any(len(ranges) > 1 for ranges in one.examined.values()):
                mine = slice(bounds[at], bounds[at + 1])
                held[mine] = _held(one, columns.frames[mine], sources[mine], columns)
        ends = times[offsets + held]
        speeds = _speeds(numbers, starts, columns.boxes)
        return ObjectBoxes(
            places,
            numbers,
            starts,
            ends,
            EventBoxes(columns.frames, columns.boxes, columns.confidences, columns.tracks, speeds),
        )

    def _unknown(
        self,
        index: CatalogDetections,
        seen: Sequence[_Seen],
        boxes: Mapping[Clauses, tuple[Ints, DetectionColumns]],
    ) -> dict[str, tuple[range, ...]]:
        """Return the frames of each video at which a variable was not looked for."""
        looks: dict[tuple[Source, Clauses], bool] = {}
        bounds = {
            clauses: np.searchsorted(videos, np.arange(len(seen) + 1)).tolist()
            for clauses, (videos, _) in boxes.items()
        }
        found = {}
        for at, one in enumerate(seen):
            unknown = []
            for clauses, (_, columns) in boxes.items():
                for source in one.examined:
                    if (source, clauses) not in looks:
                        wanted = sorted(wanted_labels(clauses))
                        looks[source, clauses] = not wanted or index.looks_for(source, wanted)
                examined = [
                    ranges for source, ranges in one.examined.items() if looks[source, clauses]
                ]
                if any(_covers(part, one.chosen) for ranges in examined for part in ranges):
                    continue
                frames = columns.frames[bounds[clauses][at] : bounds[clauses][at + 1]]
                known = [(frames, frames + 1)]
                for numbers in map(_numbers, examined):
                    known.append((numbers, held_until(numbers, numbers, one.video.original.frames)))
                unknown.append(unexamined(one.chosen, known))
            if unknown:
                ranges = contiguous_ranges(np.unique(np.concatenate(unknown)))
                if ranges:
                    found[one.video.name] = tuple(ranges)
        return found


class _Objects:
    """Numbers the objects of all videos."""

    def __init__(self) -> None:
        self.tracks: list[int] = []  #: of each object, or `NO_TRACK`
        self._known: dict[tuple[int, Source | None, int], int] = {}

    def numbers(self, videos: Ints, sources: Ints, columns: DetectionColumns) -> Ints:
        """Return the number of each box's object: a track of a source in a video."""
        # One number for each key: sorting those takes a fifth of the time of sorting rows.
        tracks, codes = np.unique(columns.tracks, return_inverse=True)
        packed = (videos * (len(columns.sources) + 1) + sources + 1) * len(tracks) + codes
        _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
        keys = np.stack([videos[first], sources[first], columns.tracks[first]], axis=1)
        numbers = np.empty(len(keys), np.int64)
        for at, (video, source, track) in enumerate(keys.tolist()):
            key = (video, None if source == NO_SOURCE else columns.sources[source], track)
            number = self._known.setdefault(key, len(self.tracks))
            if number == len(self.tracks):
                self.tracks.append(track)
            numbers[at] = number
        found: Ints = numbers[inverse]
        return found


def _in_span(
    videos: Ints, columns: DetectionColumns, seen: Sequence[_Seen]
) -> tuple[Ints, DetectionColumns]:
    """Return the boxes on the frames to search."""
    first = np.array([one.chosen.start for one in seen])[videos]
    stop = np.array([one.chosen.stop for one in seen])[videos]
    keep = (first <= columns.frames) & (columns.frames < stop)
    return (videos, columns) if keep.all() else (videos[keep], columns.select(keep))


def _held(seen: _Seen, frames: Ints, sources: Ints, columns: DetectionColumns) -> Ints:
    """Return the frame at which each box of a video no longer counts."""
    last = len(seen.starts) - 1
    found = np.empty(len(frames), np.int64)
    for code in np.unique(sources).tolist():
        mine = sources == code
        source = None if code == NO_SOURCE else columns.sources[code]
        ranges = () if source is None else seen.examined.get(source, ())
        found[mine] = held_until(frames[mine], _numbers(ranges), last)
    return found


def _speeds(objects: Ints, starts: Ints, boxes: Floats) -> Floats:
    """Return the speed of each centre since the object's box before, in its widths a second.

    The first box of an object has the speed to the second one.
    """
    speeds = np.full(len(objects), np.nan)
    order = np.lexsort((starts, objects))
    objects, starts, boxes = objects[order], starts[order], boxes[order]
    centers = (boxes[:, :2] + boxes[:, 2:]) / 2
    apart = np.hypot(*np.diff(centers, axis=0).T)
    passed = np.diff(starts) / _MICRO
    same = (np.diff(objects) == 0) & (passed > 0)
    moved = np.full(len(apart), np.nan)
    moved[same] = apart[same] / passed[same] / (boxes[1:, 2] - boxes[1:, 0])[same]
    found = np.full(len(objects), np.nan)
    found[1:] = moved
    is_first = np.isnan(found)
    found[:-1][is_first[:-1]] = moved[is_first[:-1]]
    speeds[order] = found
    return speeds


def _numbers(ranges: Sequence[range]) -> Ints:
    parts = [np.arange(part.start, part.stop, dtype=np.int64) for part in ranges]
    return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))


def _covers(part: range, frames: range) -> bool:
    return part.start <= frames.start and frames.stop <= part.stop


def _frame_starts(video: VideoContext) -> Ints:
    """Return when each frame appears, and when the last one ends, in microseconds."""
    rate = video.original.constant_rate
    if rate is not None:
        # By the rate: time stamps may be rounded, to milliseconds in Matroska.
        count = video.original.frames
        return np.arange(count + 1) * (rate.denominator * _MICRO) // rate.numerator
    snapshot = video.snapshot()
    original = snapshot.original
    ticks = np.append(snapshot.table.pts_of(np.arange(len(snapshot))), original.end_pts)
    base = original.time_base
    return (ticks - original.first_pts) * base.numerator * _MICRO // base.denominator


def _microseconds(value: Seconds, what: str) -> int:
    found = seconds(value)
    if found < 0:
        raise UsageError(f"{what} must be 0 or more seconds, got {shown(value)}")
    return round(found * _MICRO)


def _event(found: FoundEvents, row: int, seen: _Seen, tracks: Sequence[int]) -> Event:
    steps = tuple(
        _frames_between(seen.starts, int(start), int(end))
        for start, end in zip(found.starts[row], found.ends[row], strict=True)
    )
    frames = range(steps[0].start, steps[-1].stop)
    numbers = [tracks[int(one)] for one in found.objects[row]]
    return Event(
        seen.video.name,
        frames,
        (_seconds_at(seen, frames.start), _seconds_at(seen, frames.stop)),
        steps,
        {
            name: None if track == NO_TRACK else track
            for name, track in sorted(zip(found.variables, numbers, strict=True))
        },
    )


def _frames_between(starts: Ints, start: int, end: int) -> range:
    first = int(np.searchsorted(starts, start + _ROUNDING, "right")) - 1
    stop = int(np.searchsorted(starts, end - _ROUNDING, "left"))
    return range(first, max(stop, first + 1))


def _seconds_at(seen: _Seen, frame: int) -> Fraction:
    """Return when a frame appears, or when the video ends."""
    return seen.video.snapshot().times.seconds_at(frame)
