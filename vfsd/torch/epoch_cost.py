"""Predicts the decoding of an epoch of clips, and makes the renditions that pay for it.

`explain_epochs` and `prepare` plan the very reads that the data set carries out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from vfsd.api.tiles import VideoTiles
from vfsd.api.video import Video, context_of
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo, Segment
from vfsd.core.timebase import byte_count, human_bytes, human_wait
from vfsd.derive.catalog_world import bytes_per_pixel, hypothetical_segment
from vfsd.derive.derived_data import drop_segments
from vfsd.derive.retile import missing_segments
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.errors import OverBudgetError, UsageError
from vfsd.read.explain_read import ReadExplanation, explain_plan
from vfsd.read.read_plan import plan_frames
from vfsd.read.tile_planner import original_work
from vfsd.tiling import TileLayout
from vfsd.tiling.cost import encode_cost
from vfsd.torch.clip_reads import BatchRead, ClipIndex
from vfsd.torch.gop_sampler import GopSampler
from vfsd.validation import non_negative, whole_number

if TYPE_CHECKING:
    from vfsd.torch.clip_dataset import ClipDataset

_MAX_PLANNED_CLIPS = 2048
"""Clips that `explain_epochs` plans; a plan takes about a millisecond."""
_DEFAULT_BATCH = 8
_CODEC = "fast"
_GOP_LENGTHS = (8, 4, 1)
"""The lengths that are considered, besides about a second."""
_SHORTER_GOP_GAIN = 1.1
_SEGMENTS_AT_ONCE = 8
"""Segments that are made before the budget is checked again."""
_SIZE_SAFETY_FACTOR = 1.25
"""Segments of one video differ in size."""

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class EpochCost:
    """The predicted decoding of the clips of an epoch, with cold decoders."""

    clips: int
    frames: int  #: of the clips; a frame counts once for each read
    decoded: int  #: pictures
    gops: int  #: decoders that start at a key frame
    bytes: int  #: of the packets
    seconds: float  #: CPU time

    @property
    def decoded_per_clip(self) -> float:
        """Decoded pictures for each clip."""
        return self.decoded / max(1, self.clips)

    def times(self, factor: float) -> EpochCost:
        return EpochCost(
            round(factor * self.clips),
            round(factor * self.frames),
            round(factor * self.decoded),
            round(factor * self.gops),
            round(factor * self.bytes),
            factor * self.seconds,
        )

    def __str__(self) -> str:
        return (
            f"{self.seconds:.3g} CPU s, {human_bytes(self.bytes)}, {self.gops} GOPs, "
            f"{self.decoded_per_clip:.1f} pictures a clip"
        )


@dataclass(frozen=True, slots=True)
class EpochExplanation:
    """The cost of epochs, without and with the sampler and renditions."""

    epochs: int
    random: EpochCost  #: every clip alone, as in random order
    sampled: EpochCost  #: the batches of the sampler
    prepared: EpochCost  #: the same, after `ClipDataset.prepare` with a sufficient budget
    prepare_bytes: int  #: of the renditions that pay
    prepare_seconds: float  #: CPU time to make them

    def __str__(self) -> str:
        return (
            f"{self.epochs} epochs of {self.sampled.clips // max(1, self.epochs)} clips\n"
            f"in random order:   {self.random}\n"
            f"with the sampler:  {self.sampled}\n"
            f"after prepare:     {self.prepared}\n"
            f"prepare makes about {human_bytes(self.prepare_bytes)} "
            f"in {human_wait(self.prepare_seconds)} of CPU time"
        )


@dataclass(frozen=True, slots=True)
class PreparedVideo:
    """The work of `ClipDataset.prepare` for one video."""

    name: str
    size: tuple[int, int] | None  #: (width, height) of the rendition; None: the clips fit none
    gop: int | None  #: frames from one key picture to the next; None: about a second
    segments: int  #: made now
    bytes: int  #: of these segments
    reason: str  #: why there are not more; empty if all are there


@dataclass(frozen=True, slots=True)
class PrepareReport:
    """The result of `ClipDataset.prepare`."""

    budget: int
    videos: tuple[PreparedVideo, ...]  #: in the order in which they were considered
    before: EpochCost  #: an epoch, by prediction
    after: EpochCost

    @property
    def bytes(self) -> int:
        """The size of the new renditions."""
        return sum(one.bytes for one in self.videos)

    def __str__(self) -> str:
        made = [one for one in self.videos if one.segments]
        lines = [
            f"made {human_bytes(self.bytes)} of {human_bytes(self.budget)} for {len(made)} of "
            f"{len(self.videos)} videos",
            f"an epoch before: {self.before}",
            f"an epoch after:  {self.after}",
        ]
        lines += [f"{one.name}: {one.reason}" for one in self.videos if one.reason]
        return "\n".join(lines)


def explain_epochs(
    clips: ClipDataset, epochs: int, sampler: GopSampler | None, epoch: int
) -> EpochExplanation:
    """See `ClipDataset.explain`."""
    epochs, epoch = _epochs(epochs), non_negative(epoch, "epoch")
    batches = list(_first_batches(_all_batches(clips, sampler, epoch)))
    planned = sum(map(len, batches))
    factor = epochs * len(clips) / max(1, planned)
    renditions = _Renditions(clips, epochs, epoch)
    alone, together, prepared = _Total(), _Total(), _Total()
    for batch in batches:
        for clip in batch.tolist():
            for read in clips.plan(clips.requests([ClipIndex(epoch, clip)])):
                alone.add(_explained(clips, read), 1)
        for read in clips.plan(clips.requests([ClipIndex(epoch, clip) for clip in batch.tolist()])):
            together.add(renditions.of(read.video).note(clips, read), len(read.clips))
    paying = []
    for one in renditions.known():
        option = one.best(factor)
        prepared.add_all(one.now if option is None else option.then)
        paying += [] if option is None else [option]
    share = len(clips) / max(1, planned)
    return EpochExplanation(
        epochs,
        alone.cost.times(factor),
        together.cost.times(factor),
        prepared.cost.times(factor),
        round(share * sum(one.bytes for one in paying)),
        share * sum(one.make_seconds for one in paying),
    )


def prepare(
    clips: ClipDataset,
    budget: int | str,
    epochs: int,
    sampler: GopSampler | None,
    epoch: int,
    on_progress: OnProgress | None,
) -> PrepareReport:
    """See `ClipDataset.prepare`."""
    limit, epochs = _bytes(budget), _epochs(epochs)
    if clips.read_size(0) is None:
        raise UsageError(
            "the clips are not scaled, so a rendition cannot serve them",
            hint="give the data set a size, or make tiles with `vfsd retile`",
        )
    clips.store.parts.require_writable()
    epoch = non_negative(epoch, "epoch")
    renditions = _Renditions(clips, epochs, epoch)
    batches = _all_batches(clips, sampler, epoch)
    reads = [
        read
        for batch in batches
        for read in clips.plan(clips.requests([ClipIndex(epoch, one) for one in batch.tolist()]))
    ]
    before = _Total()
    for read in reads:
        before.add(renditions.of(read.video).note(clips, read), len(read.clips))
    order = sorted(renditions.known(), key=lambda one: one.value(epochs), reverse=True)
    maker = _Maker(limit, on_progress)
    done = [maker.make(one, epochs) for one in order]
    after = _Total()
    for read in reads:
        after.add(_explained(clips, read), len(read.clips))
    return PrepareReport(limit, tuple(done), before.cost, after.cost)


# -- reads


def _all_batches(clips: ClipDataset, sampler: GopSampler | None, epoch: int) -> Iterator[Ints]:
    """The batches of all ranks."""
    used = sampler or GopSampler(clips, _DEFAULT_BATCH, rank=0, world_size=1)
    for rank in range(used.world_size):
        yield from used.batches(epoch, rank)


def _first_batches(batches: Iterable[Ints]) -> Iterator[Ints]:
    count = 0
    for batch in batches:
        if count >= _MAX_PLANNED_CLIPS:
            return
        count += len(batch)
        yield batch


def _explained(
    clips: ClipDataset, read: BatchRead, more: Sequence[Segment] = ()
) -> ReadExplanation:
    """The decoding of a read, if the segments `more` existed too."""
    context = context_of(clips.video(read.video))
    snapshot = context.snapshot()
    tiles = context.tiles(snapshot.info, clips.psnr)
    if more:
        tiles = tiles or context.usual_tiles(snapshot.info)
        # Their PSNR is not known; the encoder is asked for enough.
        tiles = replace(tiles, segments=[*tiles.segments, *more], psnr=0.0)
    plan = plan_frames(
        read.frames,
        clips.view(read),
        snapshot.original,
        snapshot.table,
        pixel_format=clips.pixel_format,
        tiles=tiles,
    )
    return explain_plan(plan, snapshot.table, context.costs)


@dataclass(slots=True)
class _Total:
    """Sums the decoding of reads."""

    cost: EpochCost = field(default_factory=lambda: EpochCost(0, 0, 0, 0, 0, 0.0))

    def add(self, found: ReadExplanation, clips: int) -> None:
        work, one = found.work, self.cost
        self.cost = EpochCost(
            one.clips + clips,
            one.frames + len(found.plan.frames),
            one.decoded + work.pictures,
            one.gops + work.starts,
            one.bytes + round(work.bytes),
            one.seconds + found.seconds,
        )

    def add_all(self, other: _Total) -> None:
        one, two = self.cost, other.cost
        self.cost = EpochCost(
            one.clips + two.clips,
            one.frames + two.frames,
            one.decoded + two.decoded,
            one.gops + two.gops,
            one.bytes + two.bytes,
            one.seconds + two.seconds,
        )


# -- renditions


@dataclass(slots=True)
class _Option:
    """A rendition with one GOP length: its missing segments, the most frequently shown first."""

    gop: int | None
    missing: list[PlannedSegment]
    hypothetical: tuple[Segment, ...]
    make_seconds: float
    then: _Total = field(default_factory=_Total)  #: the reads, if the rendition existed

    @property
    def bytes(self) -> int:
        return sum(one.size for one in self.hypothetical)


class _Rendition:
    """The rendition that the clips of one video would use, in several GOP lengths."""

    def __init__(self, clips: ClipDataset, number: int, touched: Ints, psnr: float) -> None:
        """`touched` counts the clips that show each frame."""
        self.video = clips.video(number)
        self.size = _rendition_size(clips, number, self.video)
        self.settings = TileSettings(_CODEC, psnr)
        self.now = _Total()
        self.is_there = False
        self.options: list[_Option] = []
        if self.size is None:
            return
        is_full = self.size == (self.video.width, self.video.height)
        for gop in _GOP_LENGTHS if is_full else (None, *_GOP_LENGTHS):
            option = self._option(touched, gop)
            self.is_there |= option is None
            if option is not None:
                self.options.append(option)
        if self.is_there:
            self.options.clear()

    def _option(self, touched: Ints, gop: int | None) -> _Option | None:
        """None: all segments that the clips show are there."""
        assert self.size is not None
        context, media = context_of(self.video), self.video.original.media
        sums = np.concatenate([[0], np.cumsum(touched)])
        shown = [
            (int(sums[frames.stop] - sums[frames.start]), frames)
            for frames in context.sequences(gop=gop)
            if sums[frames.stop] > sums[frames.start]
        ]
        shown.sort(key=lambda pair: -pair[0])  # the budget may end before the last one
        layout = TileLayout.untiled(*_coded(self.size, media))
        plans = [PlannedSegment(frames, layout, gop=gop) for _, frames in shown]
        missing = missing_segments(context.parts, context.info, plans, self.settings)
        if not missing:
            return None
        tiles = context.usual_tiles(context.info)
        every = sorted(frame for plan in missing for frame in plan.frames)
        work = original_work(self.video.original, context.table, every)
        known = [one for one in tiles.segments if one.picture != (media.width, media.height)]
        density = bytes_per_pixel(_CODEC, known, work.bytes / max(1, work.pixels))
        new = tuple(
            hypothetical_segment(at, plan, self.settings, density)
            for at, plan in enumerate(missing)
        )
        pixels = len(every) * self.size[0] * self.size[1]
        size = sum(one.size for one in new)
        encoding = encode_cost(_CODEC).seconds(len(missing), pixels, size)
        decoding = tiles.costs.of_original(self.video.original).seconds(work)
        return _Option(gop, missing, new, decoding + encoding)

    def note(self, clips: ClipDataset, read: BatchRead) -> ReadExplanation:
        """Count a read of an epoch, and return its decoding today."""
        now = _explained(clips, read)
        self.now.add(now, len(read.clips))
        for option in self.options:
            option.then.add(_explained(clips, read, option.hypothetical), len(read.clips))
        return now

    def net(self, option: _Option, epochs: float) -> float:
        """CPU seconds that the option saves in that many epochs, less those to make it."""
        saved = self.now.cost.seconds - option.then.cost.seconds
        return epochs * saved - option.make_seconds

    def best(self, epochs: float) -> _Option | None:
        """The option that pays, if any.  A shorter GOP must save a tenth more for its bytes."""
        found: _Option | None = None
        for option in self.options:
            least = 0.0 if found is None else _SHORTER_GOP_GAIN * self.net(found, epochs)
            if self.net(option, epochs) > least:
                found = option
        return found

    def value(self, epochs: float) -> float:
        """Saved CPU seconds for each byte."""
        option = self.best(epochs)
        return 0.0 if option is None else self.net(option, epochs) / max(1, option.bytes)


class _Renditions:
    """The possible rendition of each video, by its number."""

    def __init__(self, clips: ClipDataset, epochs: int, epoch: int) -> None:
        self._clips = clips
        self._spans = [clips.decode_spans(one) for one in range(epoch, epoch + epochs)]
        wanted = float(clips.store.settings.minimum_psnr)
        self._psnr = max(wanted, clips.psnr or 0.0)
        self._known: dict[int, _Rendition] = {}

    def of(self, number: int) -> _Rendition:
        if number not in self._known:
            frames = len(self._clips.video(number))
            change = np.zeros(frames + 1, np.int64)
            for spans in self._spans:
                mine = spans.video == number
                np.add.at(change, spans.start[mine], 1)
                np.add.at(change, spans.last[mine] + 1, -1)
            touched = np.cumsum(change[:-1])
            self._known[number] = _Rendition(self._clips, number, touched, self._psnr)
        return self._known[number]

    def known(self) -> list[_Rendition]:
        return list(self._known.values())


def _rendition_size(clips: ClipDataset, number: int, video: Video) -> tuple[int, int] | None:
    """(width, height) of whole frames in the scale of the clips; None: no rendition
    can have it."""
    size, region = clips.read_size(number), clips.region
    if size is None or clips.psnr == math.inf:
        return None
    across, down = video.width, video.height
    if region is not None:
        width, odd = divmod(across * size[0], region.width)
        height, odder = divmod(down * size[1], region.height)
        if odd or odder:
            return None
        size = width, height
    if size[0] > across or size[1] > down:  # enlarged: the clips need every pixel
        size = across, down
    return None if size[0] % 2 or size[1] % 2 else size


def _coded(size: tuple[int, int], media: MediaInfo) -> tuple[int, int]:
    return size if media.rotation % 180 == 0 else (size[1], size[0])


class _Maker:
    """Makes renditions until the budget is used up."""

    def __init__(self, budget: int, on_progress: OnProgress | None) -> None:
        self._budget = budget
        self._made = 0
        self._expected = 0  # bytes that were predicted for what was made
        self._on_progress = on_progress

    def make(self, one: _Rendition, epochs: int) -> PreparedVideo:
        name, option = one.video.name, one.best(epochs)
        if one.size is None:
            return PreparedVideo(name, None, None, 0, 0, "no rendition fits its clips")
        if one.is_there:
            return PreparedVideo(name, one.size, None, 0, 0, "")
        if option is None:
            return PreparedVideo(name, one.size, None, 0, 0, "encoding would not pay")
        gop, missing = option.gop, option.missing
        waiting = iter(missing)
        expected = max(1.0, option.bytes / len(missing))
        if self._made:
            expected *= self._made / self._expected
        made: list[Segment] = []
        reason = ""
        while True:
            room = (self._budget - self._made) / (_SIZE_SAFETY_FACTOR * expected)
            some = list(islice(waiting, min(_SEGMENTS_AT_ONCE, max(0, int(room)))))
            if not some:
                break
            try:
                new = VideoTiles(context_of(one.video)).retile(some, settings=one.settings)
            except OverBudgetError as error:
                reason = str(error)
                break
            new = self._within_budget(one.video, new)
            made += new
            size = sum(segment.size for segment in new)
            self._made += size
            self._expected += round(option.bytes * len(some) / len(missing))
            expected = max(1.0, sum(segment.size for segment in made) / max(1, len(made)))
            if self._on_progress is not None:
                self._on_progress(self._made, self._budget)
        if not reason and len(made) < len(missing):
            reason = f"the budget has no room for {len(missing) - len(made)} more segments"
        size = sum(segment.size for segment in made)
        return PreparedVideo(name, one.size, gop, len(made), size, reason)

    def _within_budget(self, video: Video, new: list[Segment]) -> list[Segment]:
        """Drop the last of the new segments until the budget holds."""
        kept, surplus = list(new), []
        while kept and self._made + sum(segment.size for segment in kept) > self._budget:
            surplus.append(kept.pop())
        if surplus:
            drop_segments(context_of(video).parts, surplus)
        return kept


def _epochs(epochs: int) -> int:
    number = whole_number(epochs, "epochs")
    if number < 1:
        raise UsageError(f"epochs must be at least 1, got {number}")
    return number


def _bytes(budget: int | str) -> int:
    if not isinstance(budget, str):
        return non_negative(budget, "budget")
    try:
        return byte_count(budget)
    except ValueError:
        raise UsageError(
            f"budget must be a number of bytes, got {budget!r}", hint='as in "20G"'
        ) from None
