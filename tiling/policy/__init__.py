"""When to tile what: policies that observe queries and return tilings.  Pure.

The strategies of TASM (ICDE 2021) are here for comparison; stores use `Ledger`.
"""

from vfsd.tiling.policy.box_world import (
    BoxWorld,
    ByteDensity,
    CheapestSource,
    CostRates,
    LabelBoxes,
    OriginalWork,
    ReadStrategy,
    TilesOnly,
    VideoProfile,
    every_tile,
    wanted_tiles,
)
from vfsd.tiling.policy.interface import (
    Aim,
    Aims,
    Query,
    ReplayCost,
    Retile,
    ScaledFrames,
    Tiling,
    TilingCost,
    TilingPolicy,
    World,
    replay_queries,
)
from vfsd.tiling.policy.ledger import Ledger, LedgerParameters
from vfsd.tiling.policy.size_world import CachedBytes, SizeWorld
from vfsd.tiling.policy.tasm_policies import (
    FixedTilings,
    IncrementalMore,
    IncrementalRegret,
    TileOnFirstQuery,
    all_objects,
    known_queries,
    not_tiled,
    regions_of_interest,
)

__all__ = [
    "Aim",
    "Aims",
    "BoxWorld",
    "ByteDensity",
    "CachedBytes",
    "CheapestSource",
    "CostRates",
    "FixedTilings",
    "IncrementalMore",
    "IncrementalRegret",
    "LabelBoxes",
    "Ledger",
    "LedgerParameters",
    "OriginalWork",
    "Query",
    "ReadStrategy",
    "ReplayCost",
    "Retile",
    "ScaledFrames",
    "SizeWorld",
    "TileOnFirstQuery",
    "TilesOnly",
    "Tiling",
    "TilingCost",
    "TilingPolicy",
    "VideoProfile",
    "World",
    "all_objects",
    "every_tile",
    "known_queries",
    "not_tiled",
    "regions_of_interest",
    "replay_queries",
    "wanted_tiles",
]
