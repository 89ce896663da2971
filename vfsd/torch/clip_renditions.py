"""The renditions that the clips of a data set could use, and the decoding that each would save."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from vfsd.api.video import Video, context_of
from vfsd.codecs.cells.cell_encoders import TILE_CODECS
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo, Segment
from vfsd.core.timebase import human_bytes
from vfsd.derive.catalog_world import bytes_per_pixel, hypothetical_segment
from vfsd.derive.retile import missing_segments
from vfsd.derive.tile_encoder import PlannedSegment, TileSettings
from vfsd.read.explain_read import ReadExplanation, explain_plan
from vfsd.read.read_plan import plan_frames
from vfsd.read.tile_planner import original_work
from vfsd.tiling import TileLayout
from vfsd.tiling.cost import encode_cost
from vfsd.torch.clip_reads import BatchRead

if TYPE_CHECKING:
    from vfsd.torch.clip_dataset import ClipDataset

CODECS = ("fast", "small")
"""The tile codecs that are considered: `small` takes half of the bytes and twice the time."""
_GOP_LENGTHS = (8, 4, 1)
"""The lengths that are considered, besides about a second."""
_LARGER_GAIN = 1.1
"""A larger rendition must save a tenth more."""


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


def explain_batch_read(
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
class EpochTotal:
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

    def add_all(self, other: EpochTotal) -> None:
        one, two = self.cost, other.cost
        self.cost = EpochCost(
            one.clips + two.clips,
            one.frames + two.frames,
            one.decoded + two.decoded,
            one.gops + two.gops,
            one.bytes + two.bytes,
            one.seconds + two.seconds,
        )


SizeOf = Callable[["RenditionOption"], float]


@dataclass(slots=True)
class RenditionOption:
    """A rendition with one codec and GOP length: its missing segments, the most frequently shown
    first."""

    settings: TileSettings
    gop: int | None
    missing: list[PlannedSegment]
    hypothetical: tuple[Segment, ...]
    make_seconds: float
    then: EpochTotal = field(default_factory=EpochTotal)  #: the reads, if the rendition existed

    @property
    def bytes(self) -> int:
        return sum(one.size for one in self.hypothetical)


class ClipRendition:
    """The rendition that the clips of one video would use, in several codecs and GOP lengths."""

    def __init__(self, clips: ClipDataset, number: int, touched: Ints, psnr: float) -> None:
        """`touched` counts the clips that show each frame."""
        self.video = clips.video(number)
        self.size = _rendition_size(clips, number, self.video)
        self.now = EpochTotal()
        self.is_there = False
        self.options: list[RenditionOption] = []  #: by ascending size
        if self.size is None:
            return
        is_full = self.size == (self.video.width, self.video.height)
        for codec in self._codecs():
            settings = TileSettings(codec, psnr)
            for gop in _GOP_LENGTHS if is_full else (None, *_GOP_LENGTHS):
                option = self._option(touched, settings, gop)
                self.is_there |= option is None
                if option is not None:
                    self.options.append(option)
        self.options.sort(key=lambda option: option.bytes)
        if self.is_there:
            self.options.clear()

    def _codecs(self) -> Iterable[str]:
        """The tile codecs for the pixel format; the first one reports that there are none."""
        pixel_format = self.video.original.media.pixel_format
        supported = [one for one in CODECS if pixel_format in TILE_CODECS[one].pixel_formats]
        return supported or CODECS[:1]

    def _option(
        self, touched: Ints, settings: TileSettings, gop: int | None
    ) -> RenditionOption | None:
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
        missing = missing_segments(context.parts, context.info, plans, settings)
        if not missing:
            return None
        tiles = context.usual_tiles(context.info)
        every = sorted(frame for plan in missing for frame in plan.frames)
        work = original_work(self.video.original, context.table, every)
        known = [one for one in tiles.segments if one.picture != (media.width, media.height)]
        density = bytes_per_pixel(settings.codec, known, work.bytes / max(1, work.pixels))
        new = tuple(
            hypothetical_segment(at, plan, settings, density) for at, plan in enumerate(missing)
        )
        pixels = len(every) * self.size[0] * self.size[1]
        size = sum(one.size for one in new)
        encoding = encode_cost(settings.codec).seconds(len(missing), pixels, size)
        decoding = tiles.costs.of_original(self.video.original).seconds(work)
        return RenditionOption(settings, gop, missing, new, decoding + encoding)

    def note(self, clips: ClipDataset, read: BatchRead) -> ReadExplanation:
        """Count a read of an epoch, and return its decoding today."""
        now = explain_batch_read(clips, read)
        self.now.add(now, len(read.clips))
        for option in self.options:
            option.then.add(explain_batch_read(clips, read, option.hypothetical), len(read.clips))
        return now

    def net(self, option: RenditionOption, epochs: float) -> float:
        """CPU seconds that the option saves in that many epochs, less those to make it."""
        saved = self.now.cost.seconds - option.then.cost.seconds
        return epochs * saved - option.make_seconds

    def best(
        self, epochs: float, byte_price: float = 0.0, size_of: SizeOf | None = None
    ) -> RenditionOption | None:
        """The option that pays, if any, where a byte costs `byte_price` CPU seconds.

        `size_of` returns the bytes of an option (default: those predicted).
        """
        found: tuple[float, RenditionOption] | None = None
        for option in self.options:
            gain = self.net(option, epochs)
            if size_of is not None:
                gain -= byte_price * size_of(option)
            if gain > (0.0 if found is None else _LARGER_GAIN * found[0]):
                found = gain, option
        return None if found is None else found[1]


class ClipRenditions:
    """The possible rendition of each video, by its number."""

    def __init__(self, clips: ClipDataset, epochs: int, epoch: int) -> None:
        self._clips = clips
        self._spans = [clips.decode_spans(one) for one in range(epoch, epoch + epochs)]
        wanted = float(clips.store.settings.minimum_psnr)
        self._psnr = max(wanted, clips.psnr or 0.0)
        self._known: dict[int, ClipRendition] = {}

    def of(self, number: int) -> ClipRendition:
        if number not in self._known:
            frames = len(self._clips.video(number))
            change = np.zeros(frames + 1, np.int64)
            for spans in self._spans:
                mine = spans.video == number
                np.add.at(change, spans.start[mine], 1)
                np.add.at(change, spans.last[mine] + 1, -1)
            touched = np.cumsum(change[:-1])
            self._known[number] = ClipRendition(self._clips, number, touched, self._psnr)
        return self._known[number]

    def known(self) -> list[ClipRendition]:
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
