"""Clips of a store for PyTorch: `ClipDataset` reads them, `GopSampler` orders them.

    from vfsd.torch import ClipDataset, GopSampler

    clips = ClipDataset("/srv/videos", "cam1/**", frames=16, step=2, size=256, crop=224)
    loader = DataLoader(clips, batch_sampler=GopSampler(clips, 8), num_workers=8)

PyTorch is imported when the first clip is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vfsd.torch.clip_dataset import ClipDataset
from vfsd.torch.clip_reads import ClipIndex

if TYPE_CHECKING:
    from vfsd.torch.clip_renditions import EpochCost
    from vfsd.torch.epoch_cost import EpochExplanation, PrepareReport
    from vfsd.torch.gop_sampler import GopSampler

__all__ = [
    "ClipDataset",
    "ClipIndex",
    "EpochCost",
    "EpochExplanation",
    "GopSampler",
    "PrepareReport",
]

_HOMES = {
    "EpochCost": "vfsd.torch.clip_renditions",
    "EpochExplanation": "vfsd.torch.epoch_cost",
    "GopSampler": "vfsd.torch.gop_sampler",
    "PrepareReport": "vfsd.torch.epoch_cost",
}


def __getattr__(name: str) -> Any:
    # A worker reads clips alone: it should not wait for what encodes renditions and chooses them.
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
