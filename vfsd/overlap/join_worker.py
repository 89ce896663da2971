"""Joins runs of frames of two videos.

`pair_frames` pairs them by time; `JoinWorker` decodes, encodes, measures and publishes a run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from vfsd.catalog import Transaction
from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.cell_encoders import tile_codec
from vfsd.codecs.cells.overlap_geometry import Homography
from vfsd.codecs.cells.plane_merge import PlaneJoint, rotated_planes
from vfsd.codecs.frames.color import ColorNormalizer, blank_like
from vfsd.codecs.frames.planes import plane_samples
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import (
    Cell,
    LogicalVideo,
    MediaInfo,
    PhysicalVideo,
    Role,
    Segment,
    chained_psnr,
)
from vfsd.derive.tile_encoder import (
    CrfMemory,
    EncodingStoppedError,
    TileSettings,
    pack_encoding,
    require_same_bytes,
)
from vfsd.errors import OutdatedError
from vfsd.overlap.join_encoder import (
    JoinEncoder,
    JoinFit,
    JoinPack,
    JoinSettings,
    PairMark,
    merged_psnr,
    require_joinable,
)
from vfsd.overlap.overlap_pair import COPY_PSNR
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.read_plan import likeness_to_first
from vfsd.read.tile_planner import DecodeCosts, original_work, tile_work
from vfsd.storage.context import StoreContext
from vfsd.storage.enforce_budget import make_room
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling import TileLayout, overlaps
from vfsd.tiling.cost import JOINED_SIDES, encode_cost
from vfsd.write.ingest_file import pending_bytes

Seconds = npt.NDArray[np.float64]

MIN_RUN_FRAMES = 4
"""Consecutive frames: fewer are not worth a key picture."""
# Maximum time between paired frames, as a share of the frame interval: beyond that, another frame
# is nearer.
_MAX_TIME_GAP = 0.5


@dataclass(frozen=True, slots=True)
class FramePairs:
    """Equally many frames of the left and the right video, paired in order."""

    left: range
    right: range

    def __len__(self) -> int:
        return len(self.left)


def pair_frames(sequences: Sequence[range], left: Seconds, right: Seconds) -> list[FramePairs]:
    """Return for each run of frames of the left video the longest part with consecutive partners.

    `left` and `right` are the times of the frames in seconds from the first, ascending.  Both
    timelines start at the same time.  No frame has two partners.
    """
    if len(left) < 2 or len(right) < 2:
        return []
    tolerance = _MAX_TIME_GAP * min(
        float(np.median(np.diff(left))), float(np.median(np.diff(right)))
    )
    partner = _nearest(left, right)
    fits = np.abs(right[partner] - left) <= tolerance
    found: list[FramePairs] = []
    taken = 0
    for frames in sequences:
        best = range(0)
        for run in _runs(frames, partner, fits, taken):
            best = max(best, run, key=len)
        if len(best) < MIN_RUN_FRAMES:
            continue
        start = int(partner[best.start])
        taken = start + len(best)
        found.append(FramePairs(best, range(start, taken)))
    return found


def _nearest(times: Seconds, others: Seconds) -> npt.NDArray[np.int64]:
    """Return for each time the index of the nearest other one."""
    after = np.clip(np.searchsorted(others, times), 1, len(others) - 1)
    is_earlier = times - others[after - 1] <= others[after] - times
    return np.where(is_earlier, after - 1, after).astype(np.int64)


def _runs(
    frames: range, partner: npt.NDArray[np.int64], fits: npt.NDArray[np.bool_], taken: int
) -> list[range]:
    """Return the parts of `frames` with consecutive partners, none of them before `taken`."""
    runs: list[range] = []
    for frame in frames:
        if not fits[frame] or partner[frame] < taken:
            continue
        last = runs[-1] if runs else range(0)
        if last and last.stop == frame and partner[frame] == partner[frame - 1] + 1:
            runs[-1] = range(last.start, frame + 1)
        else:
            runs.append(range(frame, frame + 1))
    return runs


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """The result for a run of frames."""

    frames: FramePairs
    why: str = ""  #: why it was not joined; empty: it was
    psnr: tuple[float, float] | None = None
    """dB of the worst plane of the worst picture, left and right.  For a run that was not joined,
    the dB that it would have had; None: not measured.
    """
    is_copy: bool = False  #: the right pictures are copies of the left ones
    bytes: int = 0  #: of the pack

    @property
    def is_joined(self) -> bool:
        return not self.why


@dataclass(frozen=True, slots=True)
class _JoinSide:
    video: LogicalVideo
    table: FrameTable


@dataclass(slots=True)
class _BestJoin:
    """The best result so far."""

    psnr: tuple[float, float] | None = None
    why: str = "these pictures cannot be aligned"
    made: tuple[PlaneJoint, JoinPack] | None = field(default=None)

    def note(self, psnr: tuple[float, float], asked: float) -> None:
        if self.psnr is None or min(psnr) > min(self.psnr):
            self.psnr = psnr
            self.why = f"less than {asked:g} dB"


class JoinWorker:
    """Joins runs of frames of a left and a right video, all with the same settings.  Thread-safe.

    Raises `UsageError` for videos that cannot be joined.
    """

    def __init__(
        self,
        parts: StoreContext,
        pool: DecoderPool,
        left: tuple[LogicalVideo, FrameTable],
        right: tuple[LogicalVideo, FrameTable],
        settings: JoinSettings,
    ) -> None:
        self.stop = threading.Event()  #: stops work at the next picture
        self._parts = parts
        self._pool = pool
        self._sides = (_JoinSide(*left), _JoinSide(*right))
        self._settings = settings
        media = tuple(side.video.original.media for side in self._sides)
        require_joinable(*media)
        self._media = (_upright(media[0]), _upright(media[1]))
        self._turned = (media[0].rotation, media[1].rotation)
        self._codec = tile_codec(settings.codec, media[0])
        cells = TileSettings(settings.codec, settings.cells, settings.quality)
        self._encoder = JoinEncoder(
            self._codec, CrfMemory(self._codec, cells), *self._media, self._pause
        )
        self._publishing = threading.Lock()
        self._made: set[int] = set()  # segments that must not evict each other

    def join(
        self, frames: FramePairs, known: Homography | None, *, publish: bool = True
    ) -> JoinedRun:
        """Join a run of frames, if the required quality can be reached.

        `known` is a homography found earlier.  Without `publish`, nothing is stored.  Raises
        `IntegrityError`, `NoSpaceError`, `OverBudgetError`, and `OutdatedError` if another process
        has joined some of these frames, or the bytes of a video have changed.  Then nothing is
        stored.
        """
        left = self._pictures(self._sides[0], frames.left)
        right = self._pictures(self._sides[1], frames.right)
        if left is None or right is None:
            return JoinedRun(frames, "the color coding changes between pictures")
        best = self._best(left, right, known, self._mark(frames))
        if best.made is None:
            return JoinedRun(frames, best.why, best.psnr)
        joint, pack = best.made
        if publish:
            self._publish(frames, pack)
        return JoinedRun(frames, "", self._against_first(pack.psnr), joint.is_copy, len(pack.data))

    def require_same_bytes(self) -> None:
        """Raises `OutdatedError` if the original of a video was replaced, and `NotFoundError`."""
        with self._parts.catalog.reading() as seen:
            for side in self._sides:
                require_same_bytes(side.video, seen)

    def _mark(self, frames: FramePairs) -> PairMark:
        left, right = (side.video.original.id for side in self._sides)
        return (left, frames.left.start), (right, frames.right.start)

    def _best(
        self,
        left: list[VideoFrame],
        right: list[VideoFrame],
        known: Homography | None,
        mark: PairMark,
    ) -> _BestJoin:
        best = _BestJoin()
        fit = JoinFit(left, right, self._media, self._settings.merge, self._turned)
        for joint in fit.joints(known):
            asked = max(self._settings.psnr, COPY_PSNR) if joint.is_copy else self._settings.psnr
            before = merged_psnr(joint, fit.left, fit.right)
            if min(self._against_first((before, before))) < asked:  # encoding cannot improve it
                best.note(self._against_first((before, before)), asked)
                continue
            pack = self._encoder.pack(joint, left, right, mark)
            psnr = self._against_first(pack.psnr)
            best.note(psnr, asked)
            if min(psnr) >= asked:
                best.made = joint, pack
                break
        return best

    def _against_first(self, psnr: tuple[float, float]) -> tuple[float, float]:
        """Return lower bounds for both against their first originals."""
        left, right = (side.video.original.error for side in self._sides)
        return chained_psnr(psnr[0], left), chained_psnr(psnr[1], right)

    def _pictures(self, side: _JoinSide, frames: range) -> list[VideoFrame] | None:
        """Return upright copies; None if the meaning of samples changes between pictures."""
        copies = []  # decoders reuse their frames
        media = side.video.original.media
        normalizer = ColorNormalizer(media)
        with self._pool.decoder(side.video.original, side.table) as decoder:
            stream = decoder.stream(frames.start, frames.stop, before_packet=self._pause)
            for _, picture in stream:
                # Pieces store the meaning of samples once, for both cameras.
                if not normalizer.is_normal(picture):
                    return None
                copy = blank_like(picture, media.display_width, media.display_height)
                turned = rotated_planes(plane_samples(picture), media.rotation)
                for samples, plane in zip(plane_samples(copy), turned, strict=True):
                    samples[...] = plane
                copies.append(copy)
        return copies

    def _pause(self) -> None:
        if self.stop.is_set():
            raise EncodingStoppedError

    def _publish(self, frames: FramePairs, pack: JoinPack) -> None:
        """Store the bytes, then publish both sides in one transaction."""
        what = f"joined pictures of {self._sides[0].video.name}"
        now = time.time_ns()
        arrival = pending_bytes(self._parts, pack.data, what)
        with arrival, ExitStack() as stack:
            arrival.upload()
            # One run at a time: each must know the segments of the others, which it must not evict.
            stack.enter_context(self._publishing)
            change = stack.enter_context(arrival.recorded())
            both: list[int] = []
            for number, run in enumerate((frames.left, frames.right)):
                segment = self._segment(change, number, run, pack, arrival.key, now)
                change.derived_usage.record_published(
                    segment.id, expected=self._making(segment), gain=self._gain(number, segment)
                )
                both.append(segment.id)
            for side, made in zip(self._sides, both, strict=True):
                keep = {*self._made, *both}
                make_room(change, side.video.id, now_ns=now, made=made, keep=keep)
            released = change.segments.released
        self._made.update(both)
        if released:
            reclaim_or_log(self._parts, keys=released)

    def _segment(
        self,
        change: Transaction,
        number: int,
        frames: range,
        pack: JoinPack,
        key: str,
        now_ns: int,
    ) -> Segment:
        video = self._sides[number].video
        original = video.original
        require_same_bytes(video, change)
        if any(overlaps(one.frames, frames) for one in change.segments.joined(original.id)):
            raise OutdatedError(
                f"frames {frames.start} to {frames.stop - 1} of {video.name} were joined by "
                "another process"
            )
        layout = TileLayout.untiled(original.media.width, original.media.height)
        extent, psnr = pack.extents[number], self._against_first(pack.psnr)[number]
        picture = (original.media.width, original.media.height)
        _, *others = likeness_to_first(pack.likeness[number], original, picture).as_tuple
        quality = max(pack.qualities)
        cell = Cell(0, layout.tile(0), extent.position, extent.size, quality, psnr, *others)
        return change.segments.publish(
            Segment(
                id=0,
                physical_id=self._encoding(change, original, now_ns),
                original_id=original.id,
                first_frame=frames.start,
                end_frame=frames.stop,
                layout=layout,
                profile=JOINED_SIDES[number],
                object_key=key,
                size=pack.shares()[number],
                psnr=psnr,
                created_ns=now_ns,
                retired_ns=None,
                cells=(cell,),
            )
        )

    def _making(self, segment: Segment) -> float:
        """Return the modelled CPU seconds of encoding a segment."""
        pixels = segment.layout.width * segment.layout.height * len(segment.frames)
        return encode_cost(self._codec.name).seconds(1, pixels, segment.size)

    def _gain(self, number: int, segment: Segment) -> float:
        """Return the modelled CPU seconds that a read of all frames of that side saves."""
        side, costs = self._sides[number], DecodeCosts()
        original = side.video.original
        whole = original_work(original, side.table, segment.frames)
        mine = tile_work(segment, segment.tiles, segment.frames)
        saved = costs.of_original(original).seconds(whole) - costs.of_tiles(segment).seconds(mine)
        return max(0.0, saved)

    def _encoding(self, change: Transaction, original: PhysicalVideo, now_ns: int) -> int:
        """Return the encoding of joined segments with these settings; add it if needed."""
        parameters = self._settings.parameters()
        for there in change.videos.physicals(original.video_id):
            if there.role is Role.JOINED and dict(there.parameters) == parameters:
                return there.id
        described = pack_encoding(
            original, Role.JOINED, original.media, self._codec, parameters, now_ns
        )
        return change.videos.add_physical(original.video_id, described, ()).id


def _upright(media: MediaInfo) -> MediaInfo:
    return replace(media, width=media.display_width, height=media.display_height, rotation=0)
