"""Tilings for queries that are known beforehand, each of which pays for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from vfsd.tiling.policy.candidates import Combinations
from vfsd.tiling.policy.query import Query, Tiling
from vfsd.tiling.policy.world import World

MOST = 40
"""Combinations of a SOT that are tried; what comes up later is not."""
_SAMPLE = 32
"""Different queries of a SOT by which its candidates are compared at first."""
_FINAL = 2
"""Candidates that are then compared by all of them."""

Beside = Callable[[int, Sequence[Query]], Iterable[Tiling]]
"""More candidates for a SOT that these queries touch."""


def foreseen(
    world: World,
    queries: Sequence[Query],
    thought: Sequence[Query],
    there: Mapping[int, Tiling],
    beside: Beside,
) -> dict[int, Tiling]:
    """Of each SOT the tiling with which making it and reading all queries take least.

    Where none beats the original, the SOT has no tiling.  Candidates are those around what the
    queries look for, alone and together (`thought` is what each of them is taken to look for, for
    this purpose), what is `there` already, which costs nothing to make, and those of `beside`.
    What is chosen never comes to more than what is there, nor than no tiles.

    TASM's "known queries, known objects" has a single candidate, and leaves out its price.
    """
    asked: dict[int, list[int]] = {}
    for number, query in enumerate(queries):
        for sot in world.touched(query):
            asked.setdefault(sot, []).append(number)
    found = {}
    for sot, numbers in sorted(asked.items()):
        mine = [queries[number] for number in numbers]
        combinations = Combinations()
        for number in numbers:
            combinations.add(thought[number].aims)
        around = (world.around(sot, aims) for aims in list(combinations)[:MOST])
        some = [*around, *beside(sot, mine), there.get(sot)]
        candidates = [one for one in dict.fromkeys(some) if one is not None and one.tiles]
        best = _best(world, sot, candidates, mine, there.get(sot))
        if best is not None:
            found[sot] = best
    return found


def _best(
    world: World,
    sot: int,
    candidates: Sequence[Tiling],
    queries: Sequence[Query],
    there: Tiling | None,
) -> Tiling | None:
    counted = list(Counter(queries).items())

    def total(tiling: Tiling | None, some: Sequence[tuple[Query, int]]) -> float:
        made = tiling is None or tiling == there
        price = 0.0 if made or tiling is None else world.making(sot, tiling).seconds
        times = sum(count for _, count in counted) / sum(count for _, count in some)
        return price + times * sum(
            count * world.decode(sot, query, tiling) for query, count in some
        )

    sample = counted[:: -(-len(counted) // _SAMPLE)]
    ranked = sorted(candidates, key=lambda tiling: total(tiling, sample))[:_FINAL]
    last: list[Tiling | None] = [None, *ranked]
    if there is not None and there not in ranked:
        last.append(there)
    # Of equals the first: what need not be made.
    return min(last, key=lambda tiling: total(tiling, counted))
