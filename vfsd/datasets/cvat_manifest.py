"""The manifest of a video for CVAT, which then reads the video from a share without a copy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from hashlib import md5

import numpy as np

from vfsd.api.video import Video, context_of
from vfsd.errors import UsageError

VERSION = "1.1"


def cvat_manifest(video: Video) -> Iterator[str]:
    """Yield the lines of a manifest.jsonl: a header, then one for each key frame.

    CVAT seeks to the time stamp of a key frame, and compares the MD5 of its RGB pixels.  It takes
    files with a key frame in about 100 frames.

    Raises `UsageError` for a rotated, mirrored or cropped video, and for one of odd size or more
    than 8 bits: CVAT sees other pixels there.
    """
    media = video.original.media
    is_turned = media.rotation or media.mirrored
    is_cropped = (media.width, media.height) != (video.width, video.height)
    is_odd = video.width % 2 or video.height % 2
    if is_turned or is_cropped or is_odd or media.bit_depth > 8:
        raise UsageError(
            f"the pixels of {video.name!r} differ in CVAT: it is turned, cropped, of odd size or "
            "of more than 8 bits",
            hint="let CVAT copy the video instead",
        )
    described = {
        "name": video.name.rpartition("/")[2],
        "resolution": [video.width, video.height],
        "length": len(video),
    }
    for key, value in (("version", VERSION), ("type", "video"), ("properties", described)):
        yield _line({key: value})
    numbers = video.keyframes
    stamps = context_of(video).snapshot().table.pts_of(numbers)
    for number, pts in zip(numbers.tolist(), stamps.tolist(), strict=True):
        pixels = video.frames([number], psnr=math.inf).data[0]
        checksum = md5(np.ascontiguousarray(pixels).tobytes(), usedforsecurity=False).hexdigest()
        yield _line({"number": number, "pts": pts, "checksum": checksum})


def _line(value: Mapping[str, object]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
