"""What a policy comes to: queries told one after the other, and what all of it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vfsd.tiling.policy.base import Policy
from vfsd.tiling.policy.query import Query, Retile, Tiling
from vfsd.tiling.policy.world import World


@dataclass(slots=True)
class Bill:
    """Seconds by query.  What is made before the first one is charged to it, as in TASM."""

    decoding: list[float] = field(default_factory=list)
    making: list[float] = field(default_factory=list)
    bytes: float = 0.0  #: written in all
    retiles: list[tuple[int, Retile]] = field(default_factory=list)  #: with the query's number

    @property
    def total(self) -> float:
        return sum(self.decoding) + sum(self.making)


def replay(policy: Policy, world: World, queries: Iterable[Query]) -> Bill:
    """What `world` charges for `queries` and for all that `policy` makes meanwhile.

    The policy may believe in another world: one in which things cost something else.
    """
    bill = Bill()
    tilings: dict[int, Tiling] = {}

    def make(number: int, advice: list[Retile]) -> float:
        seconds = 0.0
        for retile in advice:
            making = world.making(retile.sot, retile.tiling)
            tilings[retile.sot] = retile.tiling
            bill.bytes += making.bytes
            bill.retiles.append((number, retile))
            seconds += making.seconds
        return seconds

    before = make(0, policy.start())
    for number, query in enumerate(queries):
        bill.decoding.append(
            sum(world.decode(sot, query, tilings.get(sot)) for sot in world.touched(query))
        )
        bill.making.append(before + make(number, policy.tell(query)))
        before = 0.0
    return bill
