"""Pairs of cameras that see the same generated scene, and the frames that tests compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from sample_videos.cameras import FilmedScene
from vfsd.codecs.cells.overlap_geometry import PixelArray, image_size
from vfsd.overlap.overlap_pair import Matches, VideoSamples, features_of, match_features

AT = (0, 12, 24, 48)
"""Frames of a scene that tests compare; a scene has 30 frames a second."""


def pictures(
    filmed: FilmedScene, at: Sequence[int] = AT
) -> tuple[list[PixelArray], list[PixelArray]]:
    """(left, right)"""
    return [filmed.left(index) for index in at], [filmed.right(index) for index in at]


def matched(left: Sequence[PixelArray], right: Sequence[PixelArray]) -> list[Matches]:
    return [
        match_features(features_of(a), features_of(b)) for a, b in zip(left, right, strict=True)
    ]


def moments(
    shown: Sequence[PixelArray], at: Sequence[int] = AT, *, bytes: int = 1_000_000
) -> VideoSamples:
    """The compared moments of a video with these frames."""
    by_time = {Fraction(index, 30): picture for index, picture in zip(at, shown, strict=True)}
    features = {time: features_of(picture) for time, picture in by_time.items()}
    return VideoSamples(image_size(shown[0]), Fraction(4), bytes, by_time, features)


def filmed_at(picture: Callable[[int], PixelArray], at: Sequence[int] = AT) -> VideoSamples:
    return moments([picture(index) for index in at], at)
