"""Predicts the decoding of an epoch of clips, and makes the renditions that pay for it.

`explain_epochs` and `prepare` plan the very reads that the data set carries out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from vfsd.api.tiles import VideoTiles
from vfsd.api.video import Video, context_of
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import Segment
from vfsd.core.timebase import byte_count, human_bytes, human_wait
from vfsd.derive.derived_data import drop_segments
from vfsd.derive.retile import sample_segment
from vfsd.errors import OverBudgetError, UsageError
from vfsd.torch.clip_reads import ClipIndex
from vfsd.torch.clip_renditions import (
    CODECS,
    ClipRendition,
    ClipRenditions,
    EpochCost,
    EpochTotal,
    RenditionOption,
    explain_batch_read,
)
from vfsd.torch.gop_sampler import GopSampler
from vfsd.validation import non_negative, whole_number

if TYPE_CHECKING:
    from vfsd.torch.clip_dataset import ClipDataset

_MAX_PLANNED_CLIPS = 2048
"""Clips that `explain_epochs` plans; a plan takes about a millisecond."""
_DEFAULT_BATCH = 8
_MOST_SAMPLED = 16
"""Videos with a segment that is encoded to correct the predicted sizes."""
_SAMPLED_IN_ALL_CODECS = 4
_UNDERESTIMATE = 8.0
"""Renditions are smaller than this many times the predicted size."""
_HALVINGS = 50
"""Steps of the search for the price of a byte."""
_SEGMENTS_AT_ONCE = 8
"""Segments that are made before the budget is checked again."""
_SIZE_SAFETY_FACTOR = 1.25
"""Segments of one video differ in size."""

OnProgress = Callable[[int, int], None]


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
    codec: str | None  #: the tile codec; None: no rendition was chosen
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
    renditions = ClipRenditions(clips, epochs, epoch)
    alone, together, prepared = EpochTotal(), EpochTotal(), EpochTotal()
    for batch in batches:
        for clip in batch.tolist():
            for read in clips.plan(clips.requests([ClipIndex(epoch, clip)])):
                alone.add(explain_batch_read(clips, read), 1)
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
    renditions = ClipRenditions(clips, epochs, epoch)
    batches = _all_batches(clips, sampler, epoch)
    reads = [
        read
        for batch in batches
        for read in clips.plan(clips.requests([ClipIndex(epoch, one) for one in batch.tolist()]))
    ]
    before = EpochTotal()
    for read in reads:
        before.add(renditions.of(read.video).note(clips, read), len(read.clips))
    done = BudgetedMaker(limit, epochs, on_progress).make_all(renditions.known())
    after = EpochTotal()
    for read in reads:
        after.add(explain_batch_read(clips, read), len(read.clips))
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


class BudgetedMaker:
    """Makes renditions until the budget is used up."""

    def __init__(self, budget: int, epochs: int, on_progress: OnProgress | None) -> None:
        self._budget = budget
        self._epochs = epochs
        self._made = 0
        # Bytes by codec, and by codec and GOP length: of the segments encoded, and those predicted
        # for them with `_factors`.
        self._actual: Counter[str | tuple[str, int | None]] = Counter()
        self._expected: Counter[str | tuple[str, int | None]] = Counter()
        self._factors: dict[ClipRendition, float] = {}
        self._usual_factor = 1.0
        self._on_progress = on_progress

    def make_all(self, renditions: Sequence[ClipRendition]) -> list[PreparedVideo]:
        """Make what the budget allows, the most useful for their bytes first."""
        done, left = [], []
        for one in renditions:
            if one.size is None:
                done.append(_nothing(one, "no rendition fits its clips"))
            elif one.is_there:
                done.append(_nothing(one, ""))
            elif one.best(self._epochs) is None:
                done.append(_nothing(one, "encoding would not pay"))
            else:
                left.append(one)
        self._sample(left)
        while left:
            # Chosen again for each video, as the sizes of those made correct the prediction.
            chosen = self.chosen(left)
            one, option = max(chosen, key=lambda pair: self._value(*pair))
            done.append(self._make(one, option))
            left.remove(one)
        return done

    def chosen(self, left: Sequence[ClipRendition]) -> list[tuple[ClipRendition, RenditionOption]]:
        """Return the options with the largest gain whose bytes fit the rest of the budget.

        A price of a byte, the same for all videos, decides between few bytes and little decoding
        (Everett, Operations Research 11, 1963). If not even the smallest options fit, those of the
        lowest price that leaves any are returned.
        """
        room = self._budget - self._made

        def options(price: float) -> list[tuple[ClipRendition, RenditionOption]]:
            found = ((one, one.best(self._epochs, price, partial(self._size, one))) for one in left)
            return [(one, option) for one, option in found if option is not None]

        def fits(some: list[tuple[ClipRendition, RenditionOption]]) -> bool:
            return sum(self._size(*pair) for pair in some) <= room

        chosen = options(0.0)
        if fits(chosen):
            return chosen
        low, high = 0.0, max(self._value(one, option) for one in left for option in one.options)
        found: list[tuple[ClipRendition, RenditionOption]] = []
        for _ in range(_HALVINGS):
            price = (low + high) / 2
            some = options(price)
            if not some or fits(some):
                high, found = price, some or found
            else:
                low = price
        return found or options(low)

    def _sample(self, left: Sequence[ClipRendition]) -> None:
        """Encode a segment of some videos, whose sizes correct the prediction.

        The size depends on the content, and on how much the pictures are reduced.
        """
        best = [(one, one.best(self._epochs)) for one in left]
        expected = sum(option.bytes for _, option in best if option is not None)
        if _UNDERESTIMATE * expected <= self._budget:
            return
        sampled = left[:: -(-len(left) // _MOST_SAMPLED)]
        total = predicted = 0.0
        for number, one in enumerate(sampled):
            smallest = {option.settings.codec: option for option in reversed(one.options)}
            for codec in CODECS if number < _SAMPLED_IN_ALL_CODECS else CODECS[:1]:
                if codec not in smallest:
                    continue
                option = smallest[codec]
                size = self._sampled_size(one, option)
                usual = option.hypothetical[0].size
                if codec == CODECS[0]:
                    self._factors[one] = size / usual
                    total, predicted = total + size, predicted + usual
                self._note(one, option, size, usual)
        if predicted:
            self._usual_factor = total / predicted

    def _sampled_size(self, one: ClipRendition, option: RenditionOption) -> int:
        context = context_of(one.video)
        return sample_segment(
            context.parts,
            context.tools.pool,
            context.info,
            context.table,
            option.missing[0],
            option.settings,
        ).bytes

    def _note(
        self, one: ClipRendition, option: RenditionOption, size: float, predicted: float
    ) -> None:
        codec = option.settings.codec
        for key in (codec, (codec, option.gop)):
            self._actual[key] += round(size)
            self._expected[key] += round(predicted * self._factors.get(one, self._usual_factor))

    def _size(self, one: ClipRendition, option: RenditionOption) -> float:
        """Return the predicted bytes, corrected by those of what was encoded."""
        size = option.bytes * self._factors.get(one, self._usual_factor)
        codec = option.settings.codec
        key = (codec, option.gop) if self._expected[codec, option.gop] else codec
        return size * self._actual[key] / self._expected[key] if self._expected[key] else size

    def _value(self, one: ClipRendition, option: RenditionOption) -> float:
        """Return the saved CPU seconds for each byte."""
        return one.net(option, self._epochs) / max(1.0, self._size(one, option))

    def _make(self, one: ClipRendition, option: RenditionOption) -> PreparedVideo:
        missing, codec = option.missing, option.settings.codec
        waiting = iter(missing)
        expected = max(1.0, self._size(one, option) / len(missing))
        made: list[Segment] = []
        reason = ""
        while True:
            room = (self._budget - self._made) / (_SIZE_SAFETY_FACTOR * expected)
            some = list(islice(waiting, min(_SEGMENTS_AT_ONCE, max(0, int(room)))))
            if not some:
                break
            try:
                new = VideoTiles(context_of(one.video)).retile(some, settings=option.settings)
            except OverBudgetError as error:
                reason = str(error)
                break
            size = sum(segment.size for segment in new)
            self._note(one, option, size, option.bytes * len(some) / len(missing))
            new = self._within_budget(one.video, new)
            made += new
            self._made += sum(segment.size for segment in new)
            expected = max(1.0, size / len(some))
            if self._on_progress is not None:
                self._on_progress(self._made, self._budget)
        if not reason and len(made) < len(missing):
            reason = f"the budget has no room for {len(missing) - len(made)} more segments"
        size = sum(segment.size for segment in made)
        return PreparedVideo(one.video.name, one.size, codec, option.gop, len(made), size, reason)

    def _within_budget(self, video: Video, new: list[Segment]) -> list[Segment]:
        """Drop the last of the new segments until the budget holds."""
        kept, surplus = list(new), []
        while kept and self._made + sum(segment.size for segment in kept) > self._budget:
            surplus.append(kept.pop())
        if surplus:
            drop_segments(context_of(video).parts, surplus)
        return kept


def _nothing(one: ClipRendition, reason: str) -> PreparedVideo:
    return PreparedVideo(one.video.name, one.size, None, None, 0, 0, reason)


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
