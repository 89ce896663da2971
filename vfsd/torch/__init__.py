"""Clips of a store for PyTorch: `ClipDataset` reads them, `GopSampler` orders them.

    from vfsd.torch import ClipDataset, GopSampler

    clips = ClipDataset("/srv/videos", "cam1/**", frames=16, step=2, size=256, crop=224)
    loader = DataLoader(clips, batch_sampler=GopSampler(clips, 8), num_workers=8)

PyTorch is imported when the first clip is read.
"""

from vfsd.torch.clip_dataset import ClipDataset
from vfsd.torch.clip_reads import ClipIndex
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
