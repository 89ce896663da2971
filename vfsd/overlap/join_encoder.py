"""The pieces of a joint, from pictures that were taken at the same time: made, and measured."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.cell_decoders import cell_decoder
from vfsd.codecs.cells.pack import CellStream, PackedCell, write_pack
from vfsd.codecs.cells.tile_codecs import CellEncoder, TileCodec
from vfsd.codecs.frames.chroma_location import blank_like
from vfsd.codecs.frames.planes import plane_samples
from vfsd.codecs.frames.quality import Comparer, Shot, Tally
from vfsd.codecs.joints.plane_merge import Joint, Weaver, errors_of
from vfsd.codecs.joints.seam import Cut
from vfsd.core.likeness import Likeness
from vfsd.core.model import MediaInfo
from vfsd.core.psnr import psnr_of_squares
from vfsd.derive.crf_memory import TRIES, RateFactors
from vfsd.read.joined_reader import JoinedSide, side_of
from vfsd.tiling import Rect
from vfsd.tiling.cost import JOINED_LEFT, JOINED_RIGHT, JOINED_SIDES

_PEAK = 255

Pictures = Sequence[VideoFrame]

PairMark = tuple[tuple[int, int], tuple[int, int]]
"""Of the left and the right run: the number of the original, and its first frame."""


@dataclass(frozen=True, slots=True)
class JointPack:
    """A pack with the pieces of a run of frames of two cameras."""

    data: bytes
    extents: tuple[PackedCell, PackedCell]
    """Of the left and the right side: the part of the pack that its pictures are made of."""
    qualities: tuple[int, ...]  #: the rate factor of each piece
    likeness: tuple[Likeness, Likeness]
    """Of the left and the right side, of the worst picture."""

    @property
    def psnr(self) -> tuple[float, float]:
        """dB of the left and the right side, of the worst plane of the worst picture."""
        left, right = self.likeness
        return left.planes, right.planes

    def shares(self) -> tuple[int, int]:
        """The bytes of the pack, shared out: what both need counts half for each."""
        left, right = self.extents
        both = left.offsets[-1] - right.offsets[0]
        alone = left.size - both, right.size - both
        mine = alone[0] + (len(self.data) - sum(alone)) // 2
        return mine, len(self.data) - mine


def woven_psnr(joint: Joint, left: Pictures, right: Pictures) -> float:
    """dB of the worst plane of the worst of these pictures on either side, before any encoding."""
    weaver = Weaver(joint)
    cut = joint.cut
    worst = 0.0
    for one, other in zip(left, right, strict=True):
        mine, its = plane_samples(one), plane_samples(other)
        middle = weaver.middle(mine, its)
        shown = [plane.copy() for plane in mine], [plane.copy() for plane in its]
        seams = [cut.seam // across for across, _ in joint.shares]
        edges = [cut.edge // across for across, _ in joint.shares]
        weaver.left([p[:, :at] for p, at in zip(mine, seams, strict=True)], middle, shown[0])
        weaver.right(middle, [p[:, at:] for p, at in zip(its, edges, strict=True)], shown[1])
        worst = max(worst, *errors_of(shown[0], mine), *errors_of(shown[1], its))
    return psnr_of_squares(worst, _PEAK)


class JointEncoder:
    """Makes packs of joints, all with the same settings.  Thread-safe.

    Pictures, and what is said of them, are turned upright.

    `between` is called before each picture that is encoded or decoded; it may raise.
    """

    def __init__(
        self,
        codec: TileCodec,
        factors: RateFactors,
        left: MediaInfo,
        right: MediaInfo,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._codec = codec
        self._factors = factors
        self._left, self._right = left, right
        self._between = between

    def pack(self, joint: Joint, left: Pictures, right: Pictures, pair: PairMark) -> JointPack:
        """Encode the pieces, decode them again as a reader will, and compare every picture.

        `pair` makes the bytes those of these two runs of frames alone, whatever they show: who
        shares a pack is told by its name.  Raises `UsageError` where the encoder refuses,
        `IntegrityError` when what it made does not decode to as many pictures.
        """
        weaver = Weaver(joint)
        middles = [self._middle(weaver, one, other) for one, other in zip(left, right, strict=True)]
        sources = {"left": left, "middle": middles, "right": right}
        made = [self._cell(joint.cut, piece, sources[piece]) for piece in joint.pieces]
        streams = [stream for stream, _ in made]
        record = {**joint.to_record(), "pair": pair}
        buffer = io.BytesIO()
        packed = write_pack(buffer, streams, record)
        told = json.loads(json.dumps(record))  # as a reader finds it
        sides = {profile: side_of(told, packed, profile) for profile in JOINED_SIDES}
        return JointPack(
            buffer.getvalue(),
            (sides[JOINED_LEFT].extent(packed), sides[JOINED_RIGHT].extent(packed)),
            tuple(quality for _, quality in made),
            (
                self._measured(sides[JOINED_LEFT], self._left, streams, left),
                self._measured(sides[JOINED_RIGHT], self._right, streams, right),
            ),
        )

    def _middle(self, weaver: Weaver, left: VideoFrame, right: VideoFrame) -> VideoFrame:
        self._between()
        made = blank_like(left, *weaver.joint.cut.middle)
        planes = weaver.middle(plane_samples(left), plane_samples(right))
        for samples, plane in zip(plane_samples(made), planes, strict=True):
            samples[...] = plane
        return made

    def _part(self, cut: Cut, piece: str) -> tuple[MediaInfo, Rect]:
        """What a piece is cut out of, and where."""
        if piece == "left":
            return self._left, Rect(0, 0, cut.seam, cut.left[1])
        if piece == "right":
            return self._right, Rect(cut.edge, 0, *cut.right)
        width, height = cut.middle
        return replace(self._left, width=width, height=height), Rect.of_size(width, height)

    def _cell(self, cut: Cut, piece: str, pictures: Pictures) -> tuple[CellStream, int]:
        """A piece, and its rate factor."""
        media, rect = self._part(cut, piece)
        finer: int | None = self._factors.first(piece)
        for _ in range(TRIES):
            assert finer is not None
            quality = finer
            encoder = CellEncoder(self._codec, media, rect, quality)
            try:
                for picture in pictures:
                    self._between()
                    encoder.put(Shot(picture))
            except BaseException:
                encoder.abandon()
                raise
            stream, achieved = encoder.finish()
            finer = self._factors.next(quality, achieved.luma)
            if finer is None:
                break
        self._factors.note(piece, quality, achieved.luma)
        return stream, quality

    def _measured(
        self,
        side: JoinedSide,
        media: MediaInfo,
        streams: Sequence[CellStream],
        pictures: Pictures,
    ) -> Likeness:
        """What the worst picture has, of each the worst."""
        pieces = [_decoded(streams[place]) for place in side.places]
        comparer = Comparer(media, media.width, media.height)
        tally = Tally()
        for *decoded, picture in zip(*pieces, pictures, strict=True):
            self._between()
            shown = _upright(side, side.picture(decoded), picture)
            tally.add(comparer.compare(Shot(picture), shown))
        return tally.likeness


def _upright(side: JoinedSide, shown: VideoFrame, like: VideoFrame) -> VideoFrame:
    if not side.turned:
        return shown
    made = blank_like(like, like.width, like.height)
    for samples, plane in zip(plane_samples(made), side.upright(shown), strict=True):
        samples[...] = plane
    return made


def _decoded(stream: CellStream) -> Iterator[VideoFrame]:
    """Its pictures, each valid until the next is asked for."""
    form = (stream.codec, stream.width, stream.height, stream.extradata)
    decoder = cell_decoder(PackedCell(*form, (0, 0), siting=stream.siting))
    for packet in stream.packets:
        for _, picture in decoder.decode(memoryview(packet)):
            yield picture
    for _, picture in decoder.drain():
        yield picture
