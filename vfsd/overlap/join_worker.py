"""The work of joining: runs of frames of two videos, decoded, joined, measured and published."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

from vfsd.catalog import Transaction
from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.tile_codecs import tile_codec
from vfsd.codecs.frames.chroma_location import blank_like
from vfsd.codecs.frames.color import ColorSettler
from vfsd.codecs.frames.planes import plane_samples
from vfsd.codecs.joints.geometry import Matrix
from vfsd.codecs.joints.plane_merge import Joint, upright
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import Cell, LogicalVideo, MediaInfo, PhysicalVideo, Role, Segment
from vfsd.core.psnr import chained_psnr
from vfsd.derive.crf_memory import RateFactors
from vfsd.derive.tile_encoder import StoppedError, encoding_in_packs, require_same_bytes
from vfsd.derive.tile_spec import TileSettings
from vfsd.errors import OutdatedError
from vfsd.overlap.frame_pairing import FramePairs
from vfsd.overlap.join_encoder import JointEncoder, JointPack, PairMark, woven_psnr
from vfsd.overlap.join_fit import JointFit
from vfsd.overlap.join_settings import JoinSettings, require_alike
from vfsd.overlap.overlap_pair import COPY
from vfsd.read.decoder_pool import DecoderPool
from vfsd.read.output_quality import likeness_to_first
from vfsd.read.tile_planner import Costs, original_work, tile_work
from vfsd.storage.context import Parts
from vfsd.storage.enforce_budget import make_room
from vfsd.storage.reclaim import clear_away
from vfsd.tiling import TileLayout, meet
from vfsd.tiling.cost import JOINED_SIDES, encode_cost
from vfsd.write.publish import arrival_of_bytes


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """What came of a run of frames."""

    frames: FramePairs
    why: str = ""  #: it stays as it is; empty: it is joined
    psnr: tuple[float, float] | None = None
    """dB of the left and the right pictures, of the worst plane of the worst one; of one that
    stays as it is, what it would have come to; None: that was not measured."""
    is_copy: bool = False  #: the right pictures are nothing but the left ones
    bytes: int = 0  #: of the pack

    @property
    def is_joined(self) -> bool:
        return not self.why


@dataclass(frozen=True, slots=True)
class _Side:
    video: LogicalVideo
    table: FrameTable


@dataclass(slots=True)
class _Best:
    """The best of what was tried."""

    psnr: tuple[float, float] | None = None
    why: str = "these pictures do not tell how they lie to each other"
    made: tuple[Joint, JointPack] | None = field(default=None)

    def note(self, psnr: tuple[float, float], asked: float) -> None:
        if self.psnr is None or min(psnr) > min(self.psnr):
            self.psnr = psnr
            self.why = f"less than {asked:g} dB"


class JointWork:
    """Joins runs of frames of a left and a right video, all with the same settings.  Thread-safe.

    Raises `UsageError` for videos that cannot be joined.
    """

    def __init__(
        self,
        parts: Parts,
        pool: DecoderPool,
        left: tuple[LogicalVideo, FrameTable],
        right: tuple[LogicalVideo, FrameTable],
        settings: JoinSettings,
    ) -> None:
        self.stop = threading.Event()  #: ends work at the next picture
        self._parts = parts
        self._pool = pool
        self._sides = (_Side(*left), _Side(*right))
        self._settings = settings
        media = tuple(side.video.original.media for side in self._sides)
        require_alike(*media)
        self._media = (_upright(media[0]), _upright(media[1]))
        self._turned = (media[0].rotation, media[1].rotation)
        self._codec = tile_codec(settings.codec, media[0])
        cells = TileSettings(settings.codec, settings.cells, settings.quality)
        self._encoder = JointEncoder(
            self._codec, RateFactors(self._codec, cells), *self._media, self._pause
        )
        self._publishing = threading.Lock()
        self._made: set[int] = set()  # segments that do not go for each other

    def join(self, frames: FramePairs, known: Matrix | None, *, publish: bool = True) -> JoinedRun:
        """Join a run of frames, if that can be done as well as is asked for.

        `known` is a homography that was found elsewhere.  Nothing is stored without `publish`.
        Raises `IntegrityError`, `NoSpaceError`, `OverBudgetError`, and `OutdatedError` where
        somebody else has joined some of these frames meanwhile, or a video has got other bytes;
        nothing of it is there then.
        """
        left = self._pictures(self._sides[0], frames.left)
        right = self._pictures(self._sides[1], frames.right)
        if left is None or right is None:
            return JoinedRun(frames, "the colours of some pictures are coded in another way")
        best = self._best(left, right, known, self._mark(frames))
        if best.made is None:
            return JoinedRun(frames, best.why, best.psnr)
        joint, pack = best.made
        if publish:
            self._publish(frames, pack)
        return JoinedRun(frames, "", self._against_first(pack.psnr), joint.is_copy, len(pack.data))

    def require_same_bytes(self) -> None:
        """Raises `OutdatedError` where a video has another original by now, `NotFoundError`."""
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
        known: Matrix | None,
        mark: PairMark,
    ) -> _Best:
        best = _Best()
        fit = JointFit(left, right, self._media, self._settings.merge, self._turned)
        for joint in fit.joints(known):
            asked = max(self._settings.psnr, COPY) if joint.is_copy else self._settings.psnr
            before = woven_psnr(joint, fit.left, fit.right)
            if min(self._against_first((before, before))) < asked:  # encoding makes nothing better
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
        """What both have at least against their very first originals."""
        left, right = (side.video.original.error for side in self._sides)
        return chained_psnr(psnr[0], left), chained_psnr(psnr[1], right)

    def _pictures(self, side: _Side, frames: range) -> list[VideoFrame] | None:
        """Copies that are turned upright; decoders need their own again.

        None where what samples mean changes on the way: pieces say it once, for both cameras.
        """
        copies = []
        media = side.video.original.media
        settler = ColorSettler(media)
        with self._pool.decoder(side.video.original, side.table) as decoder:
            stream = decoder.stream(frames.start, frames.stop, before_packet=self._pause)
            for _, picture in stream:
                if not settler.is_settled(picture):
                    return None
                copy = blank_like(picture, media.display_width, media.display_height)
                turned = upright(plane_samples(picture), media.rotation)
                for samples, plane in zip(plane_samples(copy), turned, strict=True):
                    samples[...] = plane
                copies.append(copy)
        return copies

    def _pause(self) -> None:
        if self.stop.is_set():
            raise StoppedError

    # -- publishing

    def _publish(self, frames: FramePairs, pack: JointPack) -> None:
        """Bytes first, then one transaction in which both sides come to be."""
        what = f"joined pictures of {self._sides[0].video.name}"
        now = time.time_ns()
        arrival = arrival_of_bytes(self._parts, pack.data, what)
        with arrival, self._publishing, arrival.recorded() as change:
            both: list[int] = []
            for number, run in enumerate((frames.left, frames.right)):
                segment = self._segment(change, number, run, pack, arrival.key, now)
                change.holdings.note_made(
                    segment.id, expected=self._making(segment), gain=self._gain(number, segment)
                )
                both.append(segment.id)
            for side, made in zip(self._sides, both, strict=True):
                keep = {*self._made, *both}
                make_room(change, side.video.id, now_ns=now, made=made, keep=keep)
            released = change.segments.released
        self._made.update(both)
        if released:
            clear_away(self._parts, keys=released)

    def _segment(
        self,
        change: Transaction,
        number: int,
        frames: range,
        pack: JointPack,
        key: str,
        now_ns: int,
    ) -> Segment:
        video = self._sides[number].video
        original = video.original
        require_same_bytes(video, change)
        if any(meet(one.frames, frames) for one in change.segments.joined(original.id)):
            raise OutdatedError(
                f"frames {frames.start} to {frames.stop - 1} of {video.name} were joined meanwhile"
            )
        layout = TileLayout.untiled(original.media.width, original.media.height)
        extent, psnr = pack.extents[number], self._against_first(pack.psnr)[number]
        picture = (original.media.width, original.media.height)
        _, *others = likeness_to_first(pack.likeness[number], original, picture).figures
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
        """CPU seconds that encoding it takes, by the rule: somebody has ordered it."""
        pixels = segment.layout.width * segment.layout.height * len(segment.frames)
        return encode_cost(self._codec.name).seconds(1, pixels, segment.size)

    def _gain(self, number: int, segment: Segment) -> float:
        """CPU seconds that reading all frames of that side saves, by the rules."""
        side, costs = self._sides[number], Costs()
        original = side.video.original
        whole = original_work(original, side.table, segment.frames)
        mine = tile_work(segment, segment.tiles, segment.end_frame - 1)
        saved = costs.of_original(original).seconds(whole) - costs.of_tiles(segment).seconds(mine)
        return max(0.0, saved)

    def _encoding(self, change: Transaction, original: PhysicalVideo, now_ns: int) -> int:
        """The encoding that joined segments with these settings are added to."""
        parameters = self._settings.parameters()
        for there in change.videos.physicals(original.video_id):
            if there.role is Role.JOINED and dict(there.parameters) == parameters:
                return there.id
        described = encoding_in_packs(
            original, Role.JOINED, original.media, self._codec, parameters, now_ns
        )
        return change.videos.add_physical(original.video_id, described, ()).id


def _upright(media: MediaInfo) -> MediaInfo:
    return replace(media, width=media.display_width, height=media.display_height, rotation=0)
