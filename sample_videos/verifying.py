"""Does a file still hold what its ground truth says?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np

from sample_videos.stamp import read_frame_number
from sample_videos.textures import Image
from sample_videos.truth import GroundTruth
from sample_videos.writing import upright

FAITHFUL = 14.0
"""Mean difference, in levels of 256, that lossy coding at the default quality stays well below."""


def pictures(path: Path, rotation: int = 0) -> Iterator[tuple[int | None, Image]]:
    """The frames that `path` shows: pts in ticks, and the upright picture as RGB."""
    with av.open(str(path)) as source:
        for frame in source.decode(video=0):
            rgb = frame.to_ndarray(format="rgb24").astype(np.uint8, copy=False)
            yield frame.pts, upright(rgb, rotation)


def problems(path: str | Path) -> list[str]:
    """Decodes `path` and lists, in words, where it differs from the ground truth next to it.

    An empty list means: as many frames as there should be, at the right times, in the right order
    (by their stamped numbers), looking like the scene, with the boxes that the scene gives.
    Raises `OSError` where either file is missing, `av.FFmpegError` where decoding fails.
    """
    path = Path(path)
    truth = GroundTruth.load(path)
    scene = truth.scene
    found = []
    count = 0
    for pts, picture in pictures(path, truth.encoding.rotation):
        count += 1
        if count > truth.frames:
            continue
        index = truth.first_frame + count - 1
        if truth.pts is not None and pts != truth.pts[count - 1]:
            found.append(f"frame {index} is at tick {pts}, not {truth.pts[count - 1]}")
        if picture.shape != (scene.height, scene.width, 3):
            found.append(f"frame {index} has shape {picture.shape}")
            continue
        if scene.numbered and (number := read_frame_number(picture)) != index:
            found.append(f"frame {number} stands in the place of frame {index}")
        difference = np.abs(picture.astype(np.int16) - scene.frame(index)).mean()
        if difference > FAITHFUL:
            found.append(f"frame {index} differs from its scene by {difference:.1f} levels")
        if list(truth.boxes[count - 1]) != scene.boxes(index):
            found.append(f"the boxes of frame {index} are not those of its scene")
    if count != truth.frames:
        found.append(f"{count} frames are shown, not {truth.frames}")
    return found
