"""The part of each video that goes into a data set, and the split of the videos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path

import numpy as np

from vfsd.api.video import Video, context_of
from vfsd.core.detections import DetectionColumns, Examined, Ints, Source, contiguous_ranges
from vfsd.core.label_query import Labels
from vfsd.core.timebase import Seconds
from vfsd.errors import UsageError
from vfsd.labels import LabelExport, examined_frames
from vfsd.validation import not_one_of, whole_number

SPLITS = ("train", "val", "test")

FRAMES = ("examined", "boxes", "all")
"""Frames that a source examined or that have a box; frames with a selected box; all frames."""

Split = str | Mapping[str, Sequence[str]]
"""Shares such as "0.8/0.1/0.1", or the names of the videos of each split."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The boxes and frames of a data set."""

    labels: Labels | None = None
    source: Source | str | None = None
    min_confidence: float | None = None
    span: tuple[Seconds, Seconds | None] | None = None
    frames: str = "examined"  #: one of `FRAMES`
    every: int = 1  #: keep the frames with these multiples as numbers

    def __post_init__(self) -> None:
        if self.frames not in FRAMES:
            raise not_one_of("frames", self.frames, FRAMES)
        if whole_number(self.every, "every") < 1:
            raise UsageError(f"every must be at least 1, got {self.every}")

    def of(self, video: Video) -> LabelExport:
        """Return the selected frames of a video, and the boxes on them.

        Boxes are clipped at the edge of the frame; those outside are left out.  Raises
        `OutOfRangeError` where the span starts after the end of the video.
        """
        numbers = np.arange(len(video), dtype=np.int64)
        if self.span is not None:
            numbers = np.asarray(video.frames_in(self.span), np.int64)
        numbers = numbers[numbers % self.every == 0]
        found = video.labels.query(
            self.labels, span=self.span, source=self.source, min_confidence=self.min_confidence
        )
        rows = found.columns().clipped(video.width, video.height)
        rows = rows.select(np.isin(rows.frames, numbers))
        examined = _among(video.labels.examined(self.source), numbers)
        if self.frames == "boxes":
            numbers = np.unique(rows.frames)
        elif self.frames == "examined":
            # A frame with another label has no selected box, and is an example without objects.
            others = video.labels.query(source=self.source, span=self.span).frames()
            known = np.union1d(examined_frames(rows, examined), others)
            numbers = numbers[np.isin(numbers, known)]
        return LabelExport(rows, _among(examined, numbers), video.labels.clip, numbers)


def _among(examined: Sequence[Examined], numbers: Ints) -> list[Examined]:
    return [
        Examined(one.source, run)
        for one in examined
        for run in contiguous_ranges(numbers[np.isin(numbers, np.asarray(one.frames))])
    ]


def class_names(exports: Iterable[LabelExport]) -> list[str]:
    """Return the labels of all boxes, sorted."""
    return sorted({name for one in exports for name in _used(one.columns)})


def _used(rows: DetectionColumns) -> set[str]:
    return {rows.names[code] for code in np.unique(rows.codes).tolist()}


def split_videos(videos: Sequence[Video], split: Split, seed: int = 0) -> dict[str, list[Video]]:
    """Return the videos of each of `SPLITS`.

    With shares, the order of the videos depends on `seed` and their bytes alone, and copies of one
    video stay together.  A split with a share gets a video if there are enough.  With names, all
    other videos go to "train".  Raises `UsageError` for malformed shares, an unknown split, and a
    name that is given twice or is not among the videos.
    """
    if not isinstance(split, str):
        return _split_by_name(videos, split)
    groups: dict[str, list[Video]] = {}
    for video in videos:
        groups.setdefault(video.info.digest, []).append(video)
    order = sorted(groups, key=lambda digest: blake2b(f"{seed} {digest}".encode()).digest())
    made: dict[str, list[Video]] = {}
    first = 0
    for name, count in zip(SPLITS, _counts(_shares(split), len(order)), strict=True):
        chosen = {video for digest in order[first : first + count] for video in groups[digest]}
        made[name] = [video for video in videos if video in chosen]
        first += count
    return made


def _split_by_name(
    videos: Sequence[Video], names: Mapping[str, Sequence[str]]
) -> dict[str, list[Video]]:
    place: dict[str, str] = {}
    known = {video.name for video in videos}
    for split, of_split in names.items():
        if split not in SPLITS:
            raise not_one_of("split", split, SPLITS)
        for name in of_split:
            if name not in known:
                raise UsageError(
                    f"{name!r} is in the split {split}, but not among the selected videos"
                )
            if place.setdefault(name, split) != split:
                raise UsageError(f"{name!r} is in two splits: {place[name]} and {split}")
    return {
        split: [video for video in videos if place.get(video.name, "train") == split]
        for split in SPLITS
    }


def _shares(text: str) -> list[Fraction]:
    try:
        shares = [Fraction(part) for part in text.split("/")]
    except (ValueError, ZeroDivisionError):
        shares = []
    if not 1 <= len(shares) <= len(SPLITS) or min(shares) < 0 or not sum(shares):
        raise UsageError(
            f"split must be shares of {'/'.join(SPLITS)}, got {text!r}", hint="give 0.8/0.1/0.1"
        )
    shares += [Fraction(0)] * (len(SPLITS) - len(shares))
    return [share / sum(shares) for share in shares]


def _counts(shares: Sequence[Fraction], total: int) -> list[int]:
    """Return whole numbers near `total` times each share, with the sum `total`."""
    counts = [int(share * total) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda at: counts[at] - shares[at] * total)
    for at in by_remainder[: total - sum(counts)]:
        counts[at] += 1
    # A validation set without videos is of no use: take one from the largest split.
    for at, share in enumerate(shares):
        largest = counts.index(max(counts))
        if share and not counts[at] and counts[largest] > 1:
            counts[at] += 1
            counts[largest] -= 1
    return counts


def mount_place(video: Video) -> Path:
    """Return the directory where the store of a video is mounted.

    Raises `UsageError` for a store without a mount.
    """
    holder = context_of(video).parts.directory.mounted_by() or {}
    place = holder.get("place")
    if not isinstance(place, str):
        raise UsageError(
            "links need a mounted store",
            hint="mount the store, or give mount= the directory where it will be mounted",
            command_hint="mount the store, or give `--mount` the directory of a later mount",
        )
    return Path(place)
