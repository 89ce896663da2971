"""How finely views are encoded, and how much more coarsely where they turn out too large."""

from __future__ import annotations

import math

from vfsd.codecs.encoding.encoder import WORST_QUALITY

QUALITY = {"h264": 20, "hevc": 20, "av1": 28, "mjpeg": 3, "ffv1": 0}
"""Quantisers that are hard to tell from the source, see `EncoderSettings`; FFV1 has none."""

_STEPS_PER_HALF = {"h264": 7.0, "hevc": 5.5, "av1": 10.0}
"""Measured; with too few, what is encoded again is too large again."""
_JPEG_EXPONENT = 2.0
"""By which the quantiser of JPEG, which is a factor, grows for pictures that get smaller."""


def is_lossless(codec: str) -> bool:
    return codec == "ffv1"


def coarser(codec: str, quality: int, excess: float) -> int:
    """A quality for what took `excess` times the room, at least a step coarser.

    `quality` is not the coarsest yet.
    """
    if codec == "mjpeg":
        wanted = quality * math.pow(excess, _JPEG_EXPONENT)
    else:
        wanted = quality + _STEPS_PER_HALF[codec] * math.log2(excess)
    return min(WORST_QUALITY[codec], max(quality + 1, math.ceil(wanted)))
