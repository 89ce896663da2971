"""`Layer`: masks, depth or other maps of the frames of a video, and queries on them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from reprlib import repr as shown
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

import numpy as np

from vfsd.api.labels import find_boxes, warn_of_unknown_labels
from vfsd.api.layer_maps import (
    Candidate,
    LayerFile,
    LayerWork,
    OnProgress,
    Question,
    best,
    run_candidates,
)
from vfsd.api.reading import rect_of
from vfsd.core.cell_index import Maps
from vfsd.core.detections import Detection, DetectionColumns, Floats, Ints, Source
from vfsd.core.frames import frame_numbers
from vfsd.core.layers import (
    LayerMeaning,
    StoredLayer,
    layer_fault,
    scaled_region,
    touched_region,
)
from vfsd.core.model import LogicalVideo
from vfsd.core.timebase import Span
from vfsd.errors import (
    IntegrityError,
    NotFoundError,
    OutOfRangeError,
    UsageError,
)
from vfsd.read.read_context import VideoContext
from vfsd.tiling import Rect, Region
from vfsd.validation import boolean, whole_number

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.label_query import Labels


class BoxOptions(TypedDict, total=False):
    """Which boxes of the semantic index are regions of a query."""

    source: str | Source | None
    min_confidence: float | None


@dataclass(frozen=True, slots=True)
class LayerFrames:
    """Maps of some frames."""

    frames: Ints  #: their frame numbers in the video
    codes: Maps  #: maps x height x width, uint8 or uint16, as stored
    values: Floats  #: the values that the codes stand for, float64


@dataclass(frozen=True, slots=True)
class LayerHit:
    """One answer of `Layer.top`."""

    video: str  #: its name
    frame: int
    count: int  #: pixels of the map
    box: Detection | None = None  #: the box that was the region


class Layer:
    """A map for each frame, or some frames, of a video: a mask, depth, saliency, classes.

    Maps may be smaller than the frame.  Regions are in pixels of the displayed frame; their edges
    must be edges of pixels of the maps.  Counts are of pixels of the maps.  `low` and `high` are
    values, ``low <= value < high``.  Counts are exact: an index decides most maps, and the others
    are decoded.  Safe to use from several threads.
    """

    def __init__(self, video: VideoContext, row: StoredLayer, info: LogicalVideo) -> None:
        """Use `Video.layers`."""
        fault = layer_fault(row, video.original, info.original)
        if fault is not None:
            raise IntegrityError(
                f"layer {row.name} of {video.name}: {fault}", hint="remove it and add it again"
            )
        self._video = video
        self._row = row
        self._file = LayerFile(video.tools, info)
        frames = np.arange(video.original.frames) if row.frames is None else row.frames
        self._frames: Ints = frames.astype(np.int64)
        self._frames.flags.writeable = False

    def __reduce__(self) -> tuple[Callable[..., Layer], tuple[VideoContext, str]]:
        return open_layer, (self._video, self.name)

    def __repr__(self) -> str:
        width, height = self.size
        return (
            f"<Layer {self.name!r} of {self._video.name!r}: {len(self)} maps, {width}x{height}, "
            f"{self.bits} bits>"
        )

    @property
    def name(self) -> str:
        return self._row.name

    @property
    def video(self) -> str:
        """Name of the video that it is about."""
        return self._video.name

    @property
    def file(self) -> str:
        """Name of the video with the maps, an ordinary file of the store."""
        return self._file.video.name

    @property
    def frames(self) -> Ints:
        """The numbers of the frames that have a map, ascending."""
        return self._frames

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of a map in pixels."""
        return self._file.size

    @property
    def bits(self) -> int:
        """8 or 16 bits a sample."""
        return self._file.bits

    @property
    def meaning(self) -> LayerMeaning:
        """The meaning of the samples: scale, zero and unit."""
        return self._row.meaning

    @property
    def source(self) -> Source | None:
        """The source of the maps."""
        return self._row.source

    @property
    def row(self) -> StoredLayer:
        """The catalog record."""
        return self._row

    @property
    def maps(self) -> LayerFile:
        """The maps by position, for the modules of vfsd that work on them."""
        return self._file

    @property
    def index_bytes(self) -> int | None:
        """Bytes of the stored index; None: the next query makes one."""
        stored = self._file.stored_index
        return None if stored is None else stored.size

    def __len__(self) -> int:
        """Number of maps."""
        return len(self._frames)

    # -- pixels

    def __getitem__(self, frame: int) -> Maps:
        """The map of a frame: height x width codes.  Raises `OutOfRangeError` without one."""
        (number,) = frame_numbers([frame], self._video.original.frames).tolist()
        at = int(np.searchsorted(self._frames, number))
        if at == len(self._frames) or self._frames[at] != number:
            raise OutOfRangeError(
                f"layer {self.name} of {self.video} has no map for frame {number}",
                hint=f"the nearest is that of frame {self._nearest(number)}",
            )
        found: Maps = self._file.read([at])[0]
        return found

    def read(
        self,
        *,
        span: Span | None = None,
        frames: slice | Sequence[int] | Ints | None = None,
        region: Region | None = None,
    ) -> LayerFrames:
        """Read maps, by default all; frames without a map are left out.

        Args:
            span: Seconds of the video, start inclusive and end exclusive.
            frames: Frame numbers of the video; not together with `span`.
            region: x1, y1, x2, y2 in pixels of the displayed frame.

        Raises `UsageError`, `OutOfRangeError`, and `DamagedFramesError` for damaged maps.
        """
        if frames is not None:
            if span is not None:
                raise UsageError("give either a span of time or frames, not both")
            numbers = frame_numbers(frames, self._video.original.frames)
            at = np.searchsorted(self._frames, numbers)
            at = at[self._frames[np.minimum(at, len(self) - 1)] == numbers]
        else:
            positions = self._positions(span)
            at = np.arange(positions.start, positions.stop)
        codes = self._file.read(at, self._rect(region))
        return LayerFrames(self._frames[at], codes, self.meaning.values(codes))

    # -- queries

    def count(
        self,
        region: Region | None = None,
        *,
        low: float | None = None,
        high: float | None = None,
        span: Span | None = None,
    ) -> Ints:
        """The number of pixels in `region` with ``low <= value < high``, for each map.

            layer.count((50, 50, 250, 250), low=153)

        One number for each of `frames`, or for those in `span`.  Raises `UsageError`,
        `OutOfRangeError`, and `DamagedFramesError` for damaged maps, as all queries.
        """
        return self._file.counts(
            self._question(region, low, high), self._positions(span), LayerWork()
        )

    def count_boxes(
        self,
        labels: Labels,
        *,
        low: float | None = None,
        high: float | None = None,
        span: Span | None = None,
        **boxes: Unpack[BoxOptions],
    ) -> tuple[DetectionColumns, Ints]:
        """As `count`, in each box with `labels` on a frame that has a map.

        A box counts the pixels of the map that it touches.  Returns the boxes and their counts.
        """
        self._warn_of_unknown(labels)
        columns, questions, at = self._boxes(labels, low, high, span, boxes)
        counts = np.zeros(len(columns), np.int64)
        open_boxes = []
        for number, asked in enumerate(questions):
            if asked is not None:
                least, most = self._file.one_map_bounds(int(at[number]), asked)
                counts[number] = least
                if least != most:
                    open_boxes.append(number)
        by_map: dict[int, list[int]] = {}
        for number in open_boxes:
            by_map.setdefault(int(at[number]), []).append(number)
        for position, numbers in by_map.items():
            maps = self._file.read([position])
            for number in numbers:
                asked = questions[number]
                assert asked is not None
                counts[number] = asked.counts(maps)[0]
        return columns, counts

    @overload
    def where(
        self,
        region: Region | None = None,
        *,
        low: float | None = None,
        high: float | None = None,
        more_than: float | None = None,
        share: float | None = None,
        span: Span | None = None,
        explain: Literal[False] = False,
    ) -> Ints: ...
    @overload
    def where(
        self,
        region: Region | None = None,
        *,
        low: float | None = None,
        high: float | None = None,
        more_than: float | None = None,
        share: float | None = None,
        span: Span | None = None,
        explain: Literal[True],
    ) -> tuple[Ints, LayerWork]: ...

    def where(
        self,
        region: Region | None = None,
        *,
        low: float | None = None,
        high: float | None = None,
        more_than: float | None = None,
        share: float | None = None,
        span: Span | None = None,
        explain: bool = False,
    ) -> Ints | tuple[Ints, LayerWork]:
        """The numbers of the frames with many pixels in `region` that have such a value.

            layer.where((600, 300, 1000, 600), low=153, more_than=5000)

        Args:
            region: As for `count`.
            low: As for `count`.
            high: As for `count`.
            more_than: A number of pixels of the map; default: 0, so that any pixel counts.
            share: A share of the region instead: 0.4 is more than 40 % of its pixels.
            span: As for `read`.
            explain: Also return how the maps were decided.

        Raises as `count`.
        """
        asked = self._question(region, low, high)
        if share is not None:
            if more_than is not None:
                raise UsageError("give either more_than or share, not both")
            limit = _number(share, "share") * asked.rect.area
        else:
            limit = 0.0 if more_than is None else _number(more_than, "more_than")
        work = LayerWork()
        positions = self._file.above(asked, self._positions(span), limit, work)
        found: Ints = self._frames[positions]
        return (found, work) if boolean(explain, "explain") else found

    def top(
        self,
        count: int,
        region: Region | None = None,
        *,
        low: float | None = None,
        high: float | None = None,
        boxes: Labels | None = None,
        ascending: bool = False,
        span: Span | None = None,
        **options: Unpack[BoxOptions],
    ) -> list[LayerHit]:
        """The frames with the most pixels of such a value, or with `ascending` the fewest.

            layer.top(25, (50, 50, 250, 250), low=153)

        Equal counts are in the order of frames.  With `boxes`, the regions are the boxes with
        these labels, as for `count_boxes`.  Raises as `count`.
        """
        if boxes is not None:
            self._warn_of_unknown(boxes)
        return top_of_layers(
            [self],
            count,
            region,
            low=low,
            high=high,
            boxes=boxes,
            ascending=ascending,
            span=span,
            **options,
        )

    def make_index(self, *, on_progress: OnProgress | None = None) -> int | None:
        """Make the index again; returns its bytes, or None where a budget has no room for it.

        `on_progress` is called with (maps done, maps in all).  Raises `ReadOnlyError`, and
        `DamagedFramesError` for damaged maps.
        """
        self._video.parts.require_writable()
        self._file.make_index(on_progress)
        return self.index_bytes

    # -- for `top_of_layers`

    def candidates(
        self,
        region: Region | None,
        low: float | None,
        high: float | None,
        span: Span | None,
        order: int,
    ) -> list[Candidate]:
        """The maps as candidates of a search."""
        asked = self._question(region, low, high)
        return run_candidates(self._file, asked, self._positions(span), order)

    def box_candidates(
        self,
        labels: Labels,
        low: float | None,
        high: float | None,
        span: Span | None,
        options: BoxOptions,
    ) -> list[tuple[Candidate, Detection]]:
        """The boxes as candidates of a search."""
        columns, questions, at = self._boxes(labels, low, high, span, options)
        found = []
        for number, asked in enumerate(questions):
            if asked is not None:
                position = int(at[number])
                least, most = self._file.one_map_bounds(position, asked)
                maps = range(position, position + 1)
                one = Candidate(self._file, asked, maps, 0, least, most)
                found.append((one, columns[number]))
        return found

    def _boxes(
        self,
        labels: Labels,
        low: float | None,
        high: float | None,
        span: Span | None,
        options: BoxOptions,
    ) -> tuple[DetectionColumns, list[Question | None], Ints]:
        """Return the boxes on frames with a map, their questions, and the maps' positions.

        Boxes outside of the frame have no question.
        """
        codes = self._codes(low, high)
        columns = find_boxes(self._video, labels, span=span, **options).columns()
        at = np.searchsorted(self._frames, columns.frames)
        has_map = self._frames[np.minimum(at, len(self) - 1)] == columns.frames
        columns, at = columns.select(has_map), at[has_map]
        shape = self._shape
        rects = [touched_region(tuple(box), shape, self.size) for box in columns.boxes.tolist()]
        questions = [None if rect is None else Question(rect, *codes) for rect in rects]
        return columns, questions, at

    def _warn_of_unknown(self, labels: Labels) -> None:
        warn_of_unknown_labels(self._video.parts.catalog.detections.unknown_labels(labels))

    def _codes(self, low: float | None, high: float | None) -> tuple[int, int]:
        if low is None and high is None:
            raise UsageError("a query needs low, high or both", hint="for example low=128")
        return self.meaning.codes(low, high, self.bits)

    def _question(self, region: Region | None, low: float | None, high: float | None) -> Question:
        codes = self._codes(low, high)
        return Question(self._rect(region) or self._file.rect, *codes)

    @property
    def _shape(self) -> tuple[int, int]:
        media = self._video.original.media
        return media.display_width, media.display_height

    def _rect(self, region: Region | None) -> Rect | None:
        rect = rect_of(region)
        if rect is None:
            return None
        whole = Rect.of_size(*self._shape)
        if rect.x2 > whole.x2 or rect.y2 > whole.y2:
            raise OutOfRangeError(f"region {rect} is outside of the frame, which is {whole}")
        return scaled_region(rect, self._shape, self.size)

    def frames_in(self, span: Span | None) -> Ints:
        """The numbers of the frames in a span of seconds that have a map."""
        positions = self._positions(span)
        return self._frames[positions.start : positions.stop]

    def _positions(self, span: Span | None) -> range:
        """Return the positions of the maps of a span."""
        if span is None:
            return range(len(self))
        frames = self._video.frames_in(span)
        first, end = np.searchsorted(self._frames, [frames.start, frames.stop]).tolist()
        return range(first, end)

    def _nearest(self, frame: int) -> int:
        return int(self._frames[np.abs(self._frames - frame).argmin()])


def top_of_layers(
    layers: Sequence[Layer],
    count: int,
    region: Region | None = None,
    *,
    low: float | None = None,
    high: float | None = None,
    boxes: Labels | None = None,
    ascending: bool = False,
    span: Span | None = None,
    work: LayerWork | None = None,
    **options: Unpack[BoxOptions],
) -> list[LayerHit]:
    """As `Layer.top`, over several layers; equal counts are in the order of the layers."""
    if whole_number(count, "count") < 1:
        raise UsageError(f"count must be at least 1, got {count}")
    if boxes is None and options:
        raise UsageError(f"{next(iter(options))} requires boxes")
    if boxes is not None and region is not None:
        raise UsageError("give either a region or boxes, not both")
    candidates: list[Candidate] = []
    of_box: dict[int, Detection] = {}
    owners: dict[int, Layer] = {}
    for layer in layers:
        if boxes is None:
            new = layer.candidates(region, low, high, span, len(owners))
            owners[len(owners)] = layer
            candidates += new
            continue
        for one, box in layer.box_candidates(boxes, low, high, span, options):
            of_box[len(owners)] = box
            candidates.append(
                Candidate(one.file, one.asked, one.maps, len(owners), one.least, one.most)
            )
            owners[len(owners)] = layer
    work = LayerWork() if work is None else work
    found = best(candidates, count, ascending=boolean(ascending, "ascending"), work=work)
    hits = []
    for answer, one, position in found:
        layer = owners[one.order]
        frame = int(layer.frames[position])
        hits.append(LayerHit(layer.video, frame, answer, of_box.get(one.order)))
    return hits


def layers_of(videos: Iterable[Video], name: str) -> list[Layer]:
    """Return the layers of videos that have one of that name.  Raises `NotFoundError`."""
    from vfsd.api.video import context_of

    found = []
    for video in videos:
        with suppress(NotFoundError):
            found.append(open_layer(context_of(video), name))
    if not found:
        raise NotFoundError(
            f"no video has a layer {shown(name)}", hint="`vfsd layer ls` lists layers"
        )
    return found


def open_layer(video: VideoContext, name: str) -> Layer:
    """The layer of a video with that name.  Raises `NotFoundError`."""
    with video.parts.catalog.reading() as seen:
        video.stored(seen)
        for row in seen.layers.of_video(video.info.id):
            if row.name == name:
                return Layer(video, row, seen.videos.get(row.file_id))
    raise NotFoundError(
        f"{video.name} has no layer {shown(name)}",
        hint=f"`vfsd layer ls {shlex.quote(video.name)}` lists its layers",
    )


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise UsageError(f"{what} must be a number, got {shown(value)}")
    return float(value)
