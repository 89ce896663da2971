"""How many slices FFV1 can have in pictures of a size.

FFmpeg's encoder refuses numbers with which a slice would end between pixels that share their
colours, but not all: of 4:1:1 with 101 columns in four slices the last colours come out as zeros.
So it is tried what comes back.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import chain

import av
import numpy as np
from av.error import FFmpegError

from vfsd.codecs.frames.planes import plane_bytes
from vfsd.codecs.pyav import decode
from vfsd.codecs.registry import new_decoder, new_encoder

_WANTED = 4
_HIGHEST = 256
_ASIDE = 2
"""Four slices are two beside each other and two below each other."""


@lru_cache(1024)
def ffv1_slices(width: int, height: int, pixel_format: str) -> int:
    """Four, or else the next number with which every sample is kept.

    Takes a few encodes where four will not do, and one where a side does not go into slices evenly.
    """
    form = av.VideoFormat(pixel_format)
    across, down = 16 // form.chroma_width(16), 16 // form.chroma_height(16)
    if across == down == 1 or width % (_ASIDE * across) == height % (_ASIDE * down) == 0:
        return _WANTED
    picture = av.VideoFrame(width, height, pixel_format)
    for plane in plane_bytes(picture):
        plane[...] = 1
    for number in chain(range(_WANTED, _HIGHEST + 1), range(1, _WANTED)):
        if _keeps(picture, number):
            return number
    return _WANTED  # whose refusal is told


def _keeps(picture: av.VideoFrame, slices: int) -> bool:
    encoder, decoder = new_encoder("ffv1"), new_decoder("ffv1")
    encoder.width, encoder.height = picture.width, picture.height
    encoder.pix_fmt, encoder.time_base = picture.format.name, Fraction(1, 25)
    encoder.options = {"level": "3", "coder": "0", "context": "0", "slices": str(slices)}
    try:
        packets = [*encoder.encode(picture), *encoder.encode(None)]
    except FFmpegError:  # as it opens
        return False
    decoder.extradata = encoder.extradata
    decoder.width, decoder.height = picture.width, picture.height
    (shown,) = [*decode(decoder, packets[0]), *decode(decoder, None)]
    planes = zip(plane_bytes(picture), plane_bytes(shown), strict=True)
    return all(np.array_equal(one, other) for one, other in planes)
