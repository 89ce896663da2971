"""Filmed clips with their boxes, looped, for simulations of a fixed camera.  The boxes of some
clips come from a detector, those of others from motion detection."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from benchmarks.simulated import Boxes
from vfsd.tiling.cost import DEFAULT_COSTS
from vfsd.tiling.policy import ByteDensity, CostRates, VideoProfile

OFTEN = 0.1
"""Labels that are on a smaller part of the frames are left out: mistakes, mostly."""


@dataclass(frozen=True, eq=False)
class Clip:
    """The properties of a clip's file."""

    width: int
    height: int
    rate: int  #: frames a second, rounded
    frames: int
    codec: str
    bytes: int  #: of all packets

    @classmethod
    def probe(cls, path: Path) -> Clip:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            sizes = [packet.size for packet in container.demux(stream) if packet.size]
            rate = round(float(stream.average_rate or 25))
            codec = stream.codec_context
            return cls(codec.width, codec.height, rate, len(sizes), codec.name, sum(sizes))


def filmed(
    folder: Path, seconds: int, rates: CostRates
) -> dict[str, tuple[VideoProfile, CostRates]]:
    """The clips of `folder`/real that have boxes in `folder`/gt, by name, `seconds` of each.

    Decoding costs are those of the original's codec, and bytes are scaled to those of the file.
    """
    found = {}
    for path in sorted((folder / "real").glob("*")):
        kinds = (folder / "gt" / f"{path.stem}.{kind}.csv" for kind in ("boxes", "motion"))
        boxes = next((file for file in kinds if file.exists()), None)
        if boxes is not None:
            found[path.stem] = _looped(Clip.probe(path), boxes, seconds, rates)
    return found


def _looped(
    clip: Clip, file: Path, seconds: int, rates: CostRates
) -> tuple[VideoProfile, CostRates]:
    boxes = _read(clip, file)
    frames = seconds * clip.rate
    times = -(-frames // clip.frames)
    late = np.repeat(np.arange(times) * clip.frames, len(boxes.frames))
    looped = Boxes(
        np.tile(boxes.frames, times) + late,
        np.tile(boxes.labels, times),
        np.tile(boxes.corners, (times, 1)),
    )
    footage = looped.footage(clip.width, clip.height, frames, clip.rate)
    return footage, CostRates(
        DEFAULT_COSTS[clip.codec], rates.tiles, rates.encode, _density(clip, boxes, rates.density)
    )


def _read(clip: Clip, file: Path) -> Boxes:
    with open(file, newline="", encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    numbers = np.array([int(row["frame"]) for row in rows])
    labels = np.array([row["label"] for row in rows])
    sides = np.array([[float(row[side]) for side in ("x1", "y1", "x2", "y2")] for row in rows])
    most = (clip.width, clip.height, clip.width, clip.height)
    whole = np.concatenate([np.floor(sides[:, :2]), np.ceil(sides[:, 2:])], axis=1)
    corners = whole.astype(np.int64).clip(0, most)
    often = [
        label
        for label in np.unique(labels)
        if len(np.unique(numbers[labels == label])) >= OFTEN * clip.frames
    ]
    kept = np.isin(labels, often) & (numbers < clip.frames)
    kept &= (corners[:, 0] < corners[:, 2]) & (corners[:, 1] < corners[:, 3])
    return Boxes(numbers[kept], labels[kept], corners[kept])


def _density(clip: Clip, boxes: Boxes, usual: ByteDensity) -> ByteDensity:
    """The usual density, scaled so that the whole clip has the bytes of its file."""
    x1, y1, x2, y2 = boxes.corners.T
    moving = int(((x2 - x1) * (y2 - y1)).sum())
    bytes_ = usual.still * clip.width * clip.height * clip.frames + usual.moving * moving
    factor = clip.bytes / bytes_
    return ByteDensity(usual.still * factor, usual.moving * factor)
