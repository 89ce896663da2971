"""The search for events, against every choice of objects and frames."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from vfsd.core.detections import Ints
from vfsd.labels.events import (
    BoundStep,
    EventBoxes,
    ObjectBoxes,
    bind,
    find_events,
    parse_event,
    runs_of_steps,
)

FRAME = 100_000  # microseconds: ten frames a second
FRAMES = 24

Boxes = Mapping[int, Mapping[int, tuple[float, float, float, float]]]
"""By object, then by frame."""


def random_boxes(
    rng: np.random.Generator, objects: int
) -> dict[int, dict[int, tuple[float, float, float, float]]]:
    """Objects of a size of 20 pixels that wander about, and are missed now and then."""
    found = {}
    for number in range(objects):
        x, y = rng.uniform(0, 120, 2)
        seen = {}
        for frame in range(FRAMES):
            x, y = x + rng.normal(0, 12), y + rng.normal(0, 12)
            if rng.random() < 0.85:
                seen[frame] = (x, y, x + 20, y + 20)
        found[number] = seen
    return found


def object_boxes(videos: Sequence[Boxes], first: Sequence[int]) -> ObjectBoxes:
    """All objects of all videos; those of a video are numbered from `first`."""
    rows = sorted(
        (at, frame, first[at] + number, box)
        for at, objects in enumerate(videos)
        for number, seen in objects.items()
        for frame, box in seen.items()
    )
    at, frames, numbers = (np.array([row[n] for row in rows], np.int64) for n in range(3))
    nothing = np.full(len(rows), np.nan)
    boxes = np.array([row[3] for row in rows]).reshape(-1, 4)
    return ObjectBoxes(
        (at << 32) + frames,
        numbers,
        frames * FRAME,
        (frames + 1) * FRAME,
        EventBoxes(frames, boxes, nothing, numbers, nothing),
    )


def held(step: BoundStep, objects: Boxes, chosen: Mapping[str, int], gap: int) -> list[bool]:
    """Whether a step holds on each frame, with gaps filled as runs are."""
    result = [True] * FRAMES
    for terms in step.components():
        names = {name for term in terms for name in term.variables}
        holds = []
        for frame in range(FRAMES):
            seen = {name: objects[chosen[name]].get(frame) for name in names}
            there = all(box is not None for box in seen.values())
            one = {
                name: EventBoxes(
                    np.array([frame]),
                    np.array([box], float).reshape(1, 4),
                    np.array([np.nan]),
                    np.array([0]),
                    np.array([np.nan]),
                )
                for name, box in seen.items()
                if box is not None
            }
            holds.append(there and all(bool(term.holds(one)[0]) for term in terms))
        last = None
        for frame in range(FRAMES):
            if holds[frame]:
                if last is not None and frame - last - 1 <= gap:
                    holds[last:frame] = [True] * (frame - last)
                last = frame
        result = [a and b for a, b in zip(result, holds, strict=True)]
    return result


def expected(
    steps: Sequence[BoundStep], truth: Sequence[Sequence[bool]], within: int | None
) -> Iterator[list[tuple[int, int]]]:
    """The events of one choice of objects: first and end frame of each step."""
    least = [max(step.frames, -(-step.microseconds // FRAME), 1) for step in steps]
    if len(steps) == 1:
        frame = 0
        for is_held, group in itertools.groupby(truth[0]):
            length = len(list(group))
            if is_held and length >= least[0]:
                yield [(frame, frame + length)]
            frame += length
        return
    clip = 0
    while True:
        # All chains: by step, each possible (start, end), and the chains that lead there.
        chains: list[list[tuple[int, int]]] = [[]]
        for step, needed in enumerate(least):
            longer = []
            for chain in chains:
                after = chain[-1][1] if chain else clip
                for end in range(after + needed, FRAMES + 1):
                    if chain and within is not None and end - after > within:
                        break
                    start = end - needed  # as late as it can be
                    if all(truth[step][start:end]):
                        longer.append([*chain, (start, end)])
            chains = longer
        if not chains:
            return
        first = min(chain[-1][1] for chain in chains)
        # Backwards, each step as late as it can be.
        best = max((chain for chain in chains if chain[-1][1] == first), key=lambda one: one[::-1])
        yield best
        clip = first


EVENTS = (
    "near(a, b, 2)",
    "near(a, b, 3) for 0.3s",
    "near(a, b, 4) & left_of(a, b) for 3f",
    "near(a, b, 2) for 0.2s; far(a, b, 2.5)",
    "left_of(a, b) for 0.2s; not left_of(a, b) for 0.3s; left_of(a, b)",
    "near(a, b, 3); near(b, c, 3) for 2f",
    "inside(a, 60x200+0+0); inside(b, 60x200+0+0)",
    "inside(a, 60x200+0+0) & inside(b, 60x200+0+0) for 0.2s; near(a, c, 3)",
    "inside(a, 80x200+0+0) for 2f; not inside(a, 80x200+0+0)",
)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize(("within", "gap"), [(None, 0), (5, 0), (3, 2), (None, 1)])
def test_events_are_those_of_every_choice(event: str, within: int | None, gap: int) -> None:
    parsed = parse_event(event)
    names = sorted({word for step in parsed for term in step.terms for word in term.words})
    steps = bind(parsed, names, {}, {})
    rng = np.random.default_rng(len(event) + gap)
    total = 0
    for _ in range(6):
        videos = [random_boxes(rng, int(rng.integers(0, 5))) for _ in range(3)]
        first = np.cumsum([0, *map(len, videos)])
        everything = object_boxes(videos, first.tolist())
        candidates = dict.fromkeys(names, everything)
        runs = runs_of_steps(steps, candidates, gap * FRAME)
        found = find_events(steps, runs, None if within is None else within * FRAME)
        got = {
            (
                int(found.videos[row]),
                tuple(found.objects[row][[found.variables.index(name) for name in names]].tolist()),
                tuple(
                    (frame_of(start), frame_of(end))
                    for start, end in zip(found.starts[row], found.ends[row], strict=True)
                ),
            )
            for row in range(len(found))
        }
        wanted = {
            (at, tuple(int(first[at]) + one for one in chosen), tuple(chain))
            for at, objects in enumerate(videos)
            for chosen in itertools.permutations(objects, len(names))
            for chain in expected(
                steps,
                [held(step, objects, dict(zip(names, chosen, strict=True)), gap) for step in steps],
                within,
            )
        }
        assert got == wanted
        assert len(found) == len(got)
        total += len(got)
    assert total


def frame_of(time: int) -> int:
    return int(np.round(time / FRAME))


def test_conditions_compare_centres_and_areas() -> None:
    def boxes(*rows: Sequence[float]) -> EventBoxes:
        count = len(rows)
        return EventBoxes(
            np.zeros(count, np.int64),
            np.array(rows, float),
            np.full(count, np.nan),
            np.zeros(count, np.int64),
            np.array([0.5] * count),
        )

    a, b = boxes((0, 0, 10, 20), (0, 0, 10, 10)), boxes((12, 5, 32, 15), (5, 0, 15, 10))
    for term, wanted in {
        "near(a, b)": [False, True],
        "near(a, b, 1.2)": [True, True],
        "far(a, b, 1.1)": [True, False],
        "left_of(a, b)": [True, True],
        "right_of(a, b)": [False, False],
        "above(a, b)": [False, False],
        "below(b, a)": [False, False],
        "not below(b, a)": [True, True],
        "overlaps(a, b)": [False, True],
        "overlaps(a, b, 0.34)": [False, False],
        "inside(a, 5x10+5+0)": [False, True],
        "faster(a, 0.4)": [True, True],
        "slower(a, 0.4)": [False, False],
    }.items():
        (step,) = bind(parse_event(term), {"a", "b"} if "b" in term else {"a"}, {}, {})
        assert step.terms[0].holds({"a": a, "b": b}).tolist() == wanted, term
    assert np.count_nonzero(a.widths) == np.count_nonzero(a.heights) == len(a) == 2
    ints: Ints = np.array([1])
    assert a.take(ints).boxes.tolist() == [[0, 0, 10, 10]]
