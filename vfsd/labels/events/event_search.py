"""Finds events: runs of the steps, one after another, of the same objects.

A step holds from `x` to `y` within a run, for at least its least time; the next step begins at `y`
or later, and ends at most `within` after `y`.  For each set of objects, the search keeps all
possible `y` of a step as intervals, which makes it exact: [a, b] and a run [s, e] lead to
[max(s, a) + least, min(e, b + within)].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vfsd.core.detections import Ints
from vfsd.labels.events.bound_event import BoundStep
from vfsd.labels.events.event_rows import (
    TOLERANCE,
    EventRuns,
    codes_of,
    matching_rows,
    needed_time,
    rows_between,
)

_NEVER = 1 << 45
"""Microseconds that no video lasts: over a year."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundEvents:
    """Events, one in each row, by video, then by start."""

    variables: tuple[str, ...]
    objects: Ints  #: N x variables
    videos: Ints
    starts: Ints  #: N x steps, microseconds
    ends: Ints  #: N x steps

    def __len__(self) -> int:
        return len(self.videos)


@dataclass(frozen=True, slots=True, eq=False)
class _Ends:
    """Possible ends of a step for sets of objects: disjoint intervals, by `keys`, then `low`."""

    keys: Ints
    low: Ints
    high: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The runs of one step for sets of objects, by `keys`, then `starts`."""

    keys: Ints
    starts: Ints
    ends: Ints
    least: Ints

    def after(self, clip: Ints) -> _Table:
        """Return what is left of the runs after a time for each key."""
        starts = np.maximum(self.starts, clip[self.keys])
        keep = self.ends - starts >= self.least
        return _Table(self.keys[keep], starts[keep], self.ends[keep], self.least[keep])


def find_events(
    steps: Sequence[BoundStep], runs: Sequence[EventRuns], within: int | None
) -> FoundEvents:
    """Return all events of `steps` with these runs.

    An event with one step is a whole run.  With several steps, it is the first to end, and as short
    as possible; the next event of the same objects begins after it.  `within` is the most time from
    the end of a step to that of the next, in microseconds; None: any.
    """
    if len(steps) == 1:
        only = runs[0]
        return _sorted(
            only.variables, only.objects, only.videos, only.starts[:, None], only.ends[:, None]
        )
    most = _NEVER if within is None else within + TOLERANCE
    least = [needed_time(step, some) for step, some in zip(steps, runs, strict=True)]
    variables, objects, videos = _object_sets(runs, least, most)
    tables = [
        _table(variables, objects, some, times) for some, times in zip(runs, least, strict=True)
    ]
    found: list[tuple[Ints, Ints, Ints]] = []
    clip = np.zeros(len(objects), np.int64)
    while True:
        rows, starts, ends = _first_events([one.after(clip) for one in tables], most)
        if not len(rows):
            break
        found.append((rows, starts, ends))
        # Sets of objects without a further event drop out.
        clip = np.full(len(objects), _NEVER, np.int64)
        clip[rows] = ends[:, -1]
    if not found:
        nothing = np.empty((0, len(steps)), np.int64)
        return FoundEvents(variables, objects[:0], videos[:0], nothing, nothing)
    rows, starts, ends = (np.concatenate([part[at] for part in found]) for at in range(3))
    return _sorted(variables, objects[rows], videos[rows], starts, ends)


def _sorted(
    variables: tuple[str, ...], objects: Ints, videos: Ints, starts: Ints, ends: Ints
) -> FoundEvents:
    order = np.lexsort((*objects.T, ends[:, -1], starts[:, 0], videos))
    return FoundEvents(variables, objects[order], videos[order], starts[order], ends[order])


def _object_sets(
    runs: Sequence[EventRuns], least: Sequence[Ints], most: int
) -> tuple[tuple[str, ...], Ints, Ints]:
    """Return the sets of objects that have an event, and their videos."""
    first = runs[0]
    variables, objects, videos = first.variables, first.objects, first.videos
    low, high = first.starts + least[0], first.ends
    for some, times in zip(runs[1:], least[1:], strict=True):
        shared = [name for name in variables if name in some.variables]
        new = [name for name in some.variables if name not in variables]
        ours = _columns(videos, variables, objects, shared)
        theirs = _columns(some.videos, some.variables, some.objects, shared)
        keys = codes_of(np.concatenate([ours, theirs]))
        left, right, low, high = _advanced(
            _Ends(keys[: len(ours)], low, high),
            _Table(keys[len(ours) :], some.starts, some.ends, times),
            most,
        )
        added = some.objects[right][:, [some.variables.index(name) for name in new]]
        keep = np.ones(len(left), bool)
        for column in added.T:
            keep &= (objects[left] != column[:, None]).all(axis=1)
        objects = np.concatenate([objects[left], added], axis=1)[keep]
        videos, low, high = videos[left][keep], low[keep], high[keep]
        variables = (*variables, *new)
        codes = codes_of(objects)
        ends = _merged(codes, low, high)
        representatives = np.unique(codes, return_index=True)[1]
        objects, videos = objects[representatives][ends.keys], videos[representatives][ends.keys]
        low, high = ends.low, ends.high
    rows = np.unique(codes_of(objects), return_index=True)[1]
    return variables, objects[rows], videos[rows]


def _columns(
    videos: Ints, variables: tuple[str, ...], objects: Ints, wanted: Sequence[str]
) -> Ints:
    chosen = objects[:, [variables.index(name) for name in wanted]]
    return np.concatenate([videos[:, None], chosen], axis=1)


def _table(variables: tuple[str, ...], objects: Ints, runs: EventRuns, least: Ints) -> _Table:
    """Return the runs of each set of objects; a key is the row of its set."""
    wanted = objects[:, [variables.index(name) for name in runs.variables]]
    codes = codes_of(np.concatenate([wanted, runs.objects]))
    sets, found = codes[: len(wanted)], codes[len(wanted) :]
    order = np.argsort(found, kind="stable")
    first = np.searchsorted(found[order], sets, "left")
    keys, places = matching_rows(first, np.searchsorted(found[order], sets, "right"))
    rows = order[places]
    by_start = np.lexsort((runs.starts[rows], keys))
    keys, rows = keys[by_start], rows[by_start]
    return _Table(keys, runs.starts[rows], runs.ends[rows], least[rows])


def _advanced(before: _Ends, runs: _Table, most: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return rows of both, and the ends of the next step that they lead to."""
    latest = np.minimum(before.high + most, _NEVER)
    left, right = rows_between(before.keys, before.low, latest, runs.keys, runs.starts, runs.ends)
    least = runs.least[right]
    low = np.maximum(runs.starts[right], before.low[left]) + least
    high = np.minimum(runs.ends[right], latest[left])
    keep = (low <= high) & (least <= most)
    return left[keep], right[keep], low[keep], high[keep]


def _merged(keys: Ints, low: Ints, high: Ints) -> _Ends:
    """Join the intervals of a key that touch."""
    order = np.lexsort((low, keys))
    keys, low, high = keys[order], low[order], high[order]
    if not len(keys):
        return _Ends(keys, low, high)
    # The highest end so far; an offset keeps keys apart.
    span = int(high.max()) + 1
    reached = np.maximum.accumulate(keys * span + high) - keys * span
    begins = np.ones(len(keys), bool)
    begins[1:] = (keys[1:] != keys[:-1]) | (low[1:] > reached[:-1])
    at = np.nonzero(begins)[0]
    last = np.append(at[1:], len(keys)) - 1
    return _Ends(keys[at], low[at], reached[last])


def _first_events(tables: Sequence[_Table], most: int) -> tuple[Ints, Ints, Ints]:
    """Return the keys with an event, and when its steps start and end, N x steps."""
    states = [_merged(tables[0].keys, tables[0].starts + tables[0].least, tables[0].ends)]
    for table in tables[1:]:
        left, _, low, high = _advanced(states[-1], table, most)
        states.append(_merged(states[-1].keys[left], low, high))
    keys, rows = np.unique(states[-1].keys, return_index=True)
    starts = np.empty((len(keys), len(tables)), np.int64)
    ends = np.empty_like(starts)
    end = states[-1].low[rows]
    # Back from the earliest end, each step as late as it can be.
    for step in range(len(tables) - 1, -1, -1):
        table = tables[step]
        run = _last_before(table.keys, table.starts, keys, end - 1)
        start = np.maximum(end - table.least[run], table.starts[run])
        starts[:, step], ends[:, step] = start, end
        if step:
            before = states[step - 1]
            interval = _last_before(before.keys, before.low, keys, start)
            end = np.minimum(before.high[interval], start)
    return keys, starts, ends


def _last_before(keys: Ints, times: Ints, wanted: Ints, latest: Ints) -> Ints:
    """Return the last row of each wanted key with a time of at most `latest`.

    `keys` and `times` are sorted.
    """
    span = 1 + max(int(times.max(initial=0)), int(latest.max(initial=0)))
    found: Ints = np.searchsorted(keys * span + times, wanted * span + latest, "right") - 1
    return found
