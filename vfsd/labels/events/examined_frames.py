"""How long a box counts: until its source looks again."""

from __future__ import annotations

import numpy as np

from vfsd.core.detections import Ints


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
