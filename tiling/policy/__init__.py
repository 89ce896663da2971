"""When to tile what: policies that are told queries and answer with tilings.  Pure.

The strategies of TASM (ICDE 2021) are here to be compared with; `Ledger` is ours.
"""

from vfsd.tiling.policy.base import Policy
from vfsd.tiling.policy.box_world import (
    BoxWorld,
    Cheaper,
    Density,
    Footage,
    Original,
    Rates,
    Reading,
    Seen,
    TilesAlways,
    every_tile,
    wanted_tiles,
)
from vfsd.tiling.policy.eager import IncrementalMore, Lazy
from vfsd.tiling.policy.fixed import (
    Fixed,
    all_objects,
    known_queries,
    not_tiled,
    regions_of_interest,
)
from vfsd.tiling.policy.ledger import Ledger
from vfsd.tiling.policy.parameters import Terms
from vfsd.tiling.policy.query import Aim, Aims, Query, Retile, Size, Tiling
from vfsd.tiling.policy.regret import IncrementalRegret
from vfsd.tiling.policy.replay import Bill, replay
from vfsd.tiling.policy.size_world import AtHand, SizeWorld
from vfsd.tiling.policy.world import Making, World

__all__ = [
    "Aim",
    "Aims",
    "AtHand",
    "Bill",
    "BoxWorld",
    "Cheaper",
    "Density",
    "Fixed",
    "Footage",
    "IncrementalMore",
    "IncrementalRegret",
    "Lazy",
    "Ledger",
    "Making",
    "Original",
    "Policy",
    "Query",
    "Rates",
    "Reading",
    "Retile",
    "Seen",
    "Size",
    "SizeWorld",
    "Terms",
    "TilesAlways",
    "Tiling",
    "World",
    "all_objects",
    "every_tile",
    "known_queries",
    "not_tiled",
    "regions_of_interest",
    "replay",
    "wanted_tiles",
]
