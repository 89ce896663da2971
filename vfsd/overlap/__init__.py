"""Cameras that see the same place: finds their videos, and stores their common pictures once.

The method follows VSS's joint compression (SIGMOD 2021), with criteria for trusting a homography
and a test for simultaneous recordings.
"""

from vfsd.overlap.join_encoder import JoinSettings
from vfsd.overlap.join_videos import JoinedPair, JoinReport, join, joined, split
from vfsd.overlap.overlap_search import OverlapReport, VideoPair, overlap, overlaps

__all__ = [
    "JoinReport",
    "JoinSettings",
    "JoinedPair",
    "OverlapReport",
    "VideoPair",
    "join",
    "joined",
    "overlap",
    "overlaps",
    "split",
]
