"""Which objects satisfy the terms of a step, from when to when.

Times are whole microseconds; a condition that holds on a frame holds until the next frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vfsd.core.detections import Ints
from vfsd.labels.events.bound_event import BoundStep, BoundTerm
from vfsd.labels.events.box_relations import EventBoxes

TOLERANCE = 2
"""Times in microseconds that differ by less count as equal: they are rounded."""


@dataclass(frozen=True, slots=True, eq=False)
class ObjectBoxes:
    """The boxes of the objects that a variable may stand for, by `places`.

    An object has at most one row in a place.
    """

    places: Ints  #: video << 32 | frame, ascending
    objects: Ints  #: a number that no object of another video, source or track has
    starts: Ints  #: when the frame appears
    ends: Ints  #: until when it counts
    boxes: EventBoxes

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True, eq=False)
class EventRuns:
    """Maximal runs of frames on which some objects satisfy some terms."""

    variables: tuple[str, ...]
    objects: Ints  #: N x variables
    videos: Ints
    starts: Ints
    ends: Ints
    units: Ints  #: the time of one frame

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: Ints) -> EventRuns:
        """Return some rows."""
        return EventRuns(
            self.variables,
            self.objects[rows],
            self.videos[rows],
            self.starts[rows],
            self.ends[rows],
            self.units[rows],
        )


def runs_of_steps(
    steps: Sequence[BoundStep], candidates: Mapping[str, ObjectBoxes], gap: int
) -> list[EventRuns]:
    """Return the runs of each step that are long enough.

    `gap` is the longest time in microseconds without the condition that does not end a run.
    """
    known: list[tuple[tuple[BoundTerm, ...], EventRuns]] = []
    made = []
    for step in steps:
        found: EventRuns | None = None
        for terms in step.components():
            runs = next((one for same, one in known if same == terms), None)
            if runs is None:
                runs = _runs(*_joined_rows(terms, candidates), candidates, gap)
                known.append((terms, runs))
            found = runs if found is None else _both(found, runs)
        assert found is not None  # a step has terms
        is_long = found.ends - found.starts >= needed_time(step, found)
        made.append(found.take(np.nonzero(is_long)[0]))
    return made


def needed_time(step: BoundStep, runs: EventRuns) -> Ints:
    """Return the least time of a step in each run, less the tolerance."""
    least = np.full(len(runs), step.microseconds - TOLERANCE, np.int64)
    if step.frames:
        least = step.frames * runs.units - TOLERANCE
    return np.maximum(least, runs.units - TOLERANCE)


def _joined_rows(
    terms: Sequence[BoundTerm], candidates: Mapping[str, ObjectBoxes]
) -> tuple[tuple[str, ...], dict[str, Ints]]:
    """Return rows of candidates on the same frame that satisfy all terms, for each variable."""
    rows = {
        name: np.arange(len(candidates[name]))
        for name in sorted({name for term in terms for name in term.variables})
    }
    for name, mine in rows.items():
        own = [term for term in terms if term.variables == (name,)]
        boxes = candidates[name].boxes
        for term in own:
            rows[name] = mine = mine[term.holds({name: boxes.take(mine)})]
    # Variables that few boxes fit come first, then those that a term links with them.
    left = sorted(rows, key=lambda name: len(rows[name]))
    have = {left[0]: rows[left.pop(0)]}
    while left:
        linked = [
            name
            for name in left
            if any(name in term.variables and set(term.variables) & set(have) for term in terms)
        ]
        name = linked[0]
        left.remove(name)
        have = _with_variable(name, rows[name], have, terms, candidates)
    return tuple(sorted(have)), have


def _with_variable(
    name: str,
    mine: Ints,
    have: Mapping[str, Ints],
    terms: Sequence[BoundTerm],
    candidates: Mapping[str, ObjectBoxes],
) -> dict[str, Ints]:
    """Join the rows `mine` of another variable to rows that are there."""
    some = next(iter(have))
    places = candidates[some].places[have[some]]
    here = candidates[name].places[mine]
    left, right = matching_rows(
        np.searchsorted(here, places, "left"), np.searchsorted(here, places, "right")
    )
    right = mine[right]
    different = np.ones(len(left), bool)
    for other, rows in have.items():
        different &= candidates[other].objects[rows[left]] != candidates[name].objects[right]
    left, right = left[different], right[different]
    joined = {other: rows[left] for other, rows in have.items()} | {name: right}
    for term in terms:
        if (
            name in term.variables
            and len(term.variables) > 1
            and set(term.variables) <= set(joined)
        ):
            boxes = {one: candidates[one].boxes.take(joined[one]) for one in term.variables}
            keep = term.holds(boxes)
            joined = {one: rows[keep] for one, rows in joined.items()}
    return joined


def _runs(
    variables: tuple[str, ...],
    rows: Mapping[str, Ints],
    candidates: Mapping[str, ObjectBoxes],
    gap: int,
) -> EventRuns:
    objects = np.stack([candidates[name].objects[rows[name]] for name in variables], axis=1)
    first = candidates[variables[0]]
    starts, videos = first.starts[rows[variables[0]]], first.places[rows[variables[0]]] >> 32
    # The condition is known until each of its boxes is looked for again.
    ends = np.max([candidates[name].ends[rows[name]] for name in variables], axis=0, initial=0)
    codes = codes_of(objects)
    order = np.lexsort((starts, codes))
    objects, videos, codes = objects[order], videos[order], codes[order]
    starts, ends = starts[order], ends[order]
    begins = np.ones(len(starts), bool)
    begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] - ends[:-1] > gap + TOLERANCE)
    at = np.nonzero(begins)[0]
    last = np.append(at[1:], len(starts)) - 1 if len(at) else at
    units = np.minimum.reduceat(ends - starts, at) if len(at) else at
    return EventRuns(variables, objects[at], videos[at], starts[at], ends[last], units)


def _both(one: EventRuns, other: EventRuns) -> EventRuns:
    """Return the times in which a run of `one` and one of `other` overlap, of other objects."""
    left, right = overlapping_rows(one, other)
    starts = np.maximum(one.starts[left], other.starts[right])
    ends = np.minimum(one.ends[left], other.ends[right])
    keep = starts < ends
    for column in range(one.objects.shape[1]):
        mine = one.objects[left, column]
        keep &= (other.objects[right] != mine[:, None]).all(axis=1)
    left, right = left[keep], right[keep]
    return EventRuns(
        one.variables + other.variables,
        np.concatenate([one.objects[left], other.objects[right]], axis=1),
        one.videos[left],
        starts[keep],
        ends[keep],
        np.maximum(one.units[left], other.units[right]),
    )


def overlapping_rows(one: EventRuns, other: EventRuns) -> tuple[Ints, Ints]:
    """Return rows of both that may overlap in one video."""
    return rows_between(one.videos, one.starts, one.ends, other.videos, other.starts, other.ends)


def rows_between(
    videos: Ints, low: Ints, high: Ints, other_videos: Ints, starts: Ints, ends: Ints
) -> tuple[Ints, Ints]:
    """Return pairs (row, other row) of one video where [starts, ends] may touch [low, high]."""
    order = np.lexsort((starts, other_videos))
    longest = int((ends - starts).max(initial=0))
    # Videos are kept apart by an offset that no time reaches.
    span = 1 + longest + int(max(high.max(initial=0), ends.max(initial=0)))
    keys = other_videos[order] * span + starts[order]
    first = np.searchsorted(keys, videos * span + np.maximum(low - longest, 0), "left")
    stop = np.searchsorted(keys, videos * span + np.minimum(high, span - 1), "right")
    left, right = matching_rows(first, stop)
    return left, order[right]


def matching_rows(first: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """Return pairs of a row and each number in its ``range(first, stop)``."""
    counts = np.maximum(stop - first, 0)
    left = np.repeat(np.arange(len(first)), counts)
    offset = np.repeat(np.cumsum(counts) - counts, counts)
    return left, np.arange(len(left)) - offset + np.repeat(first, counts)


def codes_of(columns: Ints) -> Ints:
    """Return a number for each row of a matrix, equal for equal rows."""
    codes = np.zeros(len(columns), np.int64)
    for column in columns.T:
        values = np.unique(column, return_inverse=True)[1]
        codes = codes * (int(values.max(initial=0)) + 1) + values
        codes = np.unique(codes, return_inverse=True)[1]
    return codes.astype(np.int64)


def held_until(frames: Ints, examined: Ints, end: int) -> Ints:
    """Return for each of `frames` the frame at which its box no longer counts.

    That is the next frame of `examined`, which ascends, or, where the source has left out more
    frames than usual, the frame at its usual distance; at most `end`.  A frame that the source has
    not examined counts alone.
    """
    if not len(examined):
        return np.minimum(frames + 1, end)
    distances, counts = np.unique(np.diff(examined), return_counts=True)
    usual = int(distances[counts.argmax()]) if len(distances) else 1
    at = np.searchsorted(examined, frames)
    was_examined = examined[np.minimum(at, len(examined) - 1)] == frames
    following = np.append(examined, end)[np.minimum(at + 1, len(examined))]
    held = np.where(was_examined, np.minimum(following, frames + usual), frames + 1)
    found: Ints = np.minimum(held, end)
    return found


def unexamined(chosen: range, known: list[tuple[Ints, Ints]]) -> Ints:
    """Return the frames of `chosen` that none of `known` covers: (first frames, ends) each."""
    covered = np.zeros(len(chosen) + 1, np.int64)
    for firsts, ends in known:
        for values, step in ((firsts, 1), (ends, -1)):
            inside = np.clip(values - chosen.start, 0, len(chosen))
            np.add.at(covered, inside, step)
    found: Ints = np.nonzero(np.cumsum(covered[:-1]) <= 0)[0] + chosen.start
    return found
