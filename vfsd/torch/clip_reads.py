"""Chooses the clips of an epoch, and plans the reads of a batch.  Pure functions of numbers.

Every choice is a hash of the seed, the epoch and the number of the clip.  It does not depend on the
process that makes it, on the order of the clips, or on the version of a random generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vfsd.core.frame_table_pages import Ints
from vfsd.tiling import Rect

Floats = npt.NDArray[np.float64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MAX_MERGED_BYTES = 256 << 20
"""Clips that share a GOP are read one by one if the common read would be larger.  Each of them then
decodes the GOP."""


class Purpose(IntEnum):
    """Separates the random numbers of one clip."""

    START = 1
    LABEL = 2
    LEFT = 3
    TOP = 4
    STAY = 5
    PIECE = 6
    BATCH = 7


class ClipIndex(NamedTuple):
    """The index of a clip in an epoch.  Samplers yield it, and data sets accept it as an index."""

    epoch: int
    clip: int


def random_units(seed: int, epoch: int, purpose: Purpose, numbers: Ints) -> Floats:
    """Return a random number in ``0 <= u < 1`` for each of `numbers`.

    It depends on the arguments alone (SplitMix64).
    """
    key = 0
    for part in (seed, epoch, int(purpose)):
        key = _mixed(key ^ (part & _MASK))
    mixed = numbers.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(value: int) -> int:
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def scaled_units(units: Floats, counts: Ints) -> Ints:
    """Return a number in ``0 <= n < count`` for each unit; 0 where the count is less than 1."""
    # A product close to the count may be rounded up to it.
    return np.maximum(np.minimum((units * counts).astype(np.int64), counts - 1), 0)


@dataclass(frozen=True, eq=False)
class ClipStarts:
    """The clips of a data set: `per_video` of each video, numbered video by video."""

    lengths: Ints  #: frames of each video
    spans: Ints  #: frames from the first to the last of a clip, inclusive, by video
    per_video: int
    seed: int
    is_uniform: bool = False  #: evenly spaced instead of random
    labelled: tuple[Ints, ...] | None = None
    """By video: the ascending frames with the wanted labels; each clip shows one of them."""

    def __len__(self) -> int:
        return len(self.lengths) * self.per_video

    def of(self, epoch: int, clips: Ints) -> Ints:
        """Return the number of the first frame of each of `clips`."""
        videos, place = np.divmod(clips, self.per_video)
        room = np.maximum(self.lengths[videos] - self.spans[videos], 0)
        if self.labelled is not None:
            return self._labelled(epoch, clips, videos, room)
        if self.is_uniform:
            even = room // 2 if self.per_video == 1 else room * place // (self.per_video - 1)
            return np.asarray(even, np.int64)
        return scaled_units(random_units(self.seed, epoch, Purpose.START, clips), room + 1)

    def _labelled(self, epoch: int, clips: Ints, videos: Ints, room: Ints) -> Ints:
        assert self.labelled is not None
        counts = np.array([len(found) for found in self.labelled], np.int64)[videos]
        if self.is_uniform:
            at = counts * (2 * (clips % self.per_video) + 1) // (2 * self.per_video)
            before = self.spans[videos] // 2
        else:
            at = scaled_units(random_units(self.seed, epoch, Purpose.LABEL, clips), counts)
            units = random_units(self.seed, epoch, Purpose.START, clips)
            before = scaled_units(units, self.spans[videos])
        pairs = zip(videos.tolist(), at.tolist(), strict=True)
        frames = np.array([self.labelled[video][place] for video, place in pairs], np.int64)
        return np.asarray(np.clip(frames - before, 0, room), np.int64)


class ClipRequest(NamedTuple):
    """The frames of one clip, and the part of them that is read."""

    video: int
    frames: Ints  #: ascending; may repeat
    region: Rect | None  #: of the displayed frame; None: all of it


@dataclass(frozen=True, slots=True, eq=False)
class BatchRead:
    """One read that serves some clips of a batch."""

    video: int
    frames: Ints  #: ascending, without repeats
    region: Rect | None  #: holds the regions of all clips
    clips: tuple[int, ...]  #: their places in the batch


def plan_batch(
    requests: Sequence[ClipRequest],
    keyframes: Callable[[int], Ints],
    bytes_per_pixel: int,
    pixels: Callable[[int, Rect | None], int],
) -> list[BatchRead]:
    """Return the reads that serve a batch of clips, so that each GOP is decoded once.

    Clips of one video are read together if the later one starts in a GOP that the earlier one
    reaches.

    Args:
        requests: The clips.
        keyframes: Returns the ascending key frames of a video.
        bytes_per_pixel: Of the result.
        pixels: Returns the number of pixels of a frame that a read of this region yields.
    """
    order = sorted(
        range(len(requests)), key=lambda at: (requests[at].video, int(requests[at].frames[0]))
    )
    found: list[BatchRead] = []
    for place in order:
        one = requests[place]
        if found and found[-1].video == one.video:
            merged = _merged(found[-1], one, place)
            keys = keyframes(one.video)
            begins = int(keys[max(0, np.searchsorted(keys, one.frames[0], side="right") - 1)])
            size = len(merged.frames) * bytes_per_pixel * pixels(one.video, merged.region)
            if begins <= int(found[-1].frames[-1]) and size <= _MAX_MERGED_BYTES:
                found[-1] = merged
                continue
        found.append(BatchRead(one.video, _without_repeats(one.frames), one.region, (place,)))
    return found


def _merged(read: BatchRead, clip: ClipRequest, place: int) -> BatchRead:
    frames = _without_repeats(np.sort(np.concatenate([read.frames, clip.frames])))
    region = None
    if read.region is not None and clip.region is not None:
        region = Rect.around((read.region, clip.region))
    return BatchRead(read.video, frames, region, (*read.clips, place))


def _without_repeats(ascending: Ints) -> Ints:
    is_new = np.ones(len(ascending), np.bool_)
    is_new[1:] = ascending[1:] != ascending[:-1]
    return ascending[is_new]


class DecodeSpans(NamedTuple):
    """The frames that each clip of an epoch needs decoded; one row for each clip."""

    video: Ints
    key: Ints  #: the key frame at or before the first frame
    start: Ints  #: the first frame
    last: Ints  #: the last frame


def gop_groups(spans: DecodeSpans, size: int) -> list[Ints]:
    """Divide clips into groups that share GOPs, each in the order of time.

    Clips that start in one GOP are in one group.  A chain of overlapping clips is divided between
    GOPs where a group has `size` clips already.
    """
    order = np.lexsort((spans.start, spans.key, spans.video))
    cuts: list[int] = []
    video = key = end = -1
    first = 0
    rows = zip(*(column[order].tolist() for column in spans), strict=True)
    for place, (of, starts_at, _, last) in enumerate(rows):
        is_full = place - first >= size and starts_at != key
        if of != video or starts_at > end or is_full:
            cuts.append(place)
            first, end = place, last
        video, key, end = of, starts_at, max(end, last)
    return np.split(order, cuts[1:]) if cuts else []


def divide_by_rank(pieces: Iterable[Ints], targets: Sequence[int]) -> list[list[Ints]]:
    """Give whole pieces to ranks until rank r has ``targets[r]`` clips.

    Each piece goes to the rank with the most room.  A piece is divided only where it does not fit,
    which happens at most once for each rank.  Clips beyond the sum of `targets` are left out.
    """
    room = list(targets)
    found: list[list[Ints]] = [[] for _ in targets]
    for piece in pieces:
        rest = piece
        while len(rest) and any(room):
            rank = room.index(max(room))
            mine, rest = rest[: room[rank]], rest[room[rank] :]
            found[rank].append(mine)
            room[rank] -= len(mine)
    return found


def batch_sizes(count: int, batch_size: int, batches: int) -> list[int]:
    """Return the sizes of `batches` batches with `count` clips together.

    All but the last two are full.  A rank with one clip less than others makes as many batches as
    they do, where it has enough clips.
    """
    sizes = [batch_size] * (count // batch_size)
    if count % batch_size:
        sizes.append(count % batch_size)
    if len(sizes) < batches and sizes and sizes[-1] > 1:
        sizes[-1] -= 1
        sizes.append(1)
    return sizes


def pack_batches(pieces: Sequence[Ints], sizes: Sequence[int], window: int) -> list[Ints]:
    """Fill batches of these sizes with pieces, in their order.

    Whole pieces are preferred: each batch takes the first of the next `window` pieces that fits.
    If none fits, it takes a part of the first one.
    """
    waiting = list(reversed(pieces))
    ready: list[Ints] = []
    batches = []
    for size in sizes:
        taken: list[Ints] = []
        room = size
        while room:
            while waiting and len(ready) < window:
                ready.append(waiting.pop())
            place = next((at for at, piece in enumerate(ready) if len(piece) <= room), None)
            if place is not None:
                mine = ready.pop(place)
            else:
                mine, ready[0] = ready[0][:room], ready[0][room:]
            taken.append(mine)
            room -= len(mine)
        batches.append(np.concatenate(taken))
    return batches
