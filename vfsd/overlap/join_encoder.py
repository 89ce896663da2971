"""Fits, encodes and measures a run of frames of two cameras as shared and separate pieces.

`JoinSettings` says how to join; `require_joinable` refuses pictures that cannot be joined.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.cells.cell_decoders import cell_decoder
from vfsd.codecs.cells.cell_encoders import CellEncoder, TileCodec
from vfsd.codecs.cells.overlap_geometry import (
    Homography,
    ImageSize,
    SeamCut,
    corner_displacement,
    cut_at_seam,
    resize_homography,
)
from vfsd.codecs.cells.pack import CellStream, PackedCell, write_pack
from vfsd.codecs.cells.plane_merge import (
    MERGES,
    PlaneJoint,
    PlaneMerger,
    is_divisible,
    match_plane_exposure,
    plane_mean_squares,
)
from vfsd.codecs.frames.color import blank_like, media_coding
from vfsd.codecs.frames.planes import plane_samples
from vfsd.codecs.frames.quality import FrameComparer, QualityAccumulator, SourcePicture
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.core.model import MediaInfo, PsnrFigures, psnr_from_mse
from vfsd.derive.tile_encoder import MAX_CRF_TRIES, CrfMemory
from vfsd.errors import UsageError
from vfsd.labels.detectors import fit_size
from vfsd.overlap.overlap_pair import (
    COPY_MAX_DISPLACEMENT,
    MIN_PSNR,
    Matches,
    align_videos,
    features_of,
    is_fine_enough,
    match_features,
    pixel_count,
)
from vfsd.read.pack_pool import JoinedSide, joined_side, subsampling_of_planes
from vfsd.tiling import Rect
from vfsd.tiling.cost import JOINED_LEFT, JOINED_RIGHT, JOINED_SIDES
from vfsd.validation import not_one_of

PSNR = 30.0
"""dB that VSS calls near-lossless."""
# Pixel formats that can be joined, with the columns and rows that share a sample of each plane.
_SHARES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "yuv420p": ((1, 1), (2, 2), (2, 2)),
    "yuvj420p": ((1, 1), (2, 2), (2, 2)),
    "yuv422p": ((1, 1), (2, 1), (2, 1)),
    "yuvj422p": ((1, 1), (2, 1), (2, 1)),
    "yuv444p": ((1, 1), (1, 1), (1, 1)),
    "yuvj444p": ((1, 1), (1, 1), (1, 1)),
}

SAMPLED_FRAMES = 3
"""Pictures of a run that are examined."""
# Stored name of the merge for copies, a key of `MERGES`: the pixels of the left picture.
_COPY_MERGE = "unprojected"
# Longer side in pixels of the pictures that homographies are found in.
_LONGEST = 640

_PEAK = 255

Pictures = Sequence[VideoFrame]

PairMark = tuple[tuple[int, int], tuple[int, int]]
"""For the left and the right run: id of the original, and first frame."""


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """How two videos are joined.  Raises `UsageError` for invalid values."""

    merge: str = "mean"  #: `mean`, or `unprojected`: the pixels of the left picture
    psnr: float = PSNR  #: minimum dB of every plane of every picture of either video
    codec: str = "fast"  #: tile codec of the pieces: fast or small
    cells: float = 40.0  #: minimum dB of luma of every piece, if `quality` is None
    quality: int | None = None  #: one rate factor for all pieces instead

    def __post_init__(self) -> None:
        if self.merge not in MERGES:
            raise not_one_of("merge", self.merge, MERGES)
        if self.codec not in ("fast", "small"):
            raise not_one_of("the codec of joined pictures", self.codec, ("fast", "small"))
        if self.psnr < MIN_PSNR:
            raise UsageError(
                f"psnr must be at least {MIN_PSNR:g} dB, got {self.psnr:g}",
                hint="with less, joined pictures show objects twice",
            )

    def parameters(self) -> dict[str, object]:
        """Return the settings as stored with the encoding."""
        aim = {"cells": self.cells} if self.quality is None else {"quality": self.quality}
        return {"merge": self.merge, "psnr": self.psnr, "codec": self.codec, **aim}


def require_joinable(left: MediaInfo, right: MediaInfo) -> None:
    """Raises `UsageError` for videos whose pictures cannot be joined."""
    for media in (left, right):
        shares = _SHARES.get(media.pixel_format)
        if shares is None:
            raise UsageError(
                f"pictures in {media.pixel_format} cannot be joined",
                hint=f"they must be in {_one_of(_SHARES)}",
            )
        if media.interlaced:
            raise UsageError("interlaced pictures cannot be joined")
        if media.mirrored:
            raise UsageError("mirrored pictures cannot be joined")
        if media.rotation % 180 and any(across != down for across, down in shares):
            raise UsageError(f"rotated pictures in {media.pixel_format} cannot be joined")
        if not is_divisible((media.width, media.height), shares):
            raise UsageError(f"pictures of {media.width}x{media.height} cannot be joined")
    coded = [(media.pixel_format, media_coding(media)) for media in (left, right)]
    if coded[0] != coded[1]:
        raise UsageError(
            "both videos must have the same color coding, got "
            f"{_coding_text(left)}, and {_coding_text(right)}"
        )


def _coding_text(media: MediaInfo) -> str:
    """Return the coding of samples, with defaults for unknown properties."""
    levels = "full" if media_coding(media).is_full else "limited"
    return f"{media.pixel_format} of {levels} range and {media.color_space or 'bt601'}"


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"


class JoinFit:
    """Two cameras in a run of frames; some pictures are examined.

    Pictures and properties are upright; `turned` gives the rotations that were undone.
    """

    def __init__(
        self,
        left: Sequence[VideoFrame],
        right: Sequence[VideoFrame],
        media: tuple[MediaInfo, MediaInfo],
        merge: str,
        turned: tuple[int, int] = (0, 0),
    ) -> None:
        chosen = np.unique(
            np.linspace(0, len(left) - 1, SAMPLED_FRAMES).round().astype(int)
        ).tolist()
        self.left = [left[at] for at in chosen]  #: that are looked at
        self.right = [right[at] for at in chosen]
        self._media = media
        self._merge = merge
        self._turned = turned
        self._sizes: tuple[ImageSize, ImageSize] = (
            (media[0].width, media[0].height),
            (media[1].width, media[1].height),
        )

    def joints(self, known: Homography | None) -> Iterator[PlaneJoint]:
        """Yield joints that save pixels, by the `known` homography and by that of these pictures.

        Where a homography is close to the identity, a joint with the identity comes first.
        """
        if known is not None:
            yield from self._with(known)
        own = self._own()
        if own is not None:
            yield from self._with(own)

    def _with(self, matrix: Homography) -> Iterator[PlaneJoint]:
        left, right = self._sizes
        if left == right and corner_displacement(matrix, left, right) <= COPY_MAX_DISPLACEMENT:
            yield from self._cut(np.eye(3), _COPY_MERGE)
        yield from self._cut(matrix, self._merge)

    def _cut(self, matrix: Homography, merge: str) -> Iterator[PlaneJoint]:
        found = cut_at_seam(matrix, *self._sizes)
        if found is None or not is_fine_enough(found.matrix, found.left, found.right):
            return
        if not _saves(found):
            return
        planes = [
            (plane_samples(one), plane_samples(other))
            for one, other in zip(self.left, self.right, strict=True)
        ]
        samples = subsampling_of_planes(self.left[0])
        light = match_plane_exposure(planes, found, samples)
        yield PlaneJoint(found, light, merge, samples, self._turned)

    def _own(self) -> Homography | None:
        """Return the homography of these pictures; None if there is none, or not the
        same for all.
        """
        small: list[ImageSize] = [fit_size(*size, _LONGEST) for size in self._sizes]
        converters = [
            PixelConverter(media, size=size) for media, size in zip(self._media, small, strict=True)
        ]
        found: list[Matches] = []
        for pair in zip(self.left, self.right, strict=True):
            one, other = (one.convert(frame) for one, frame in zip(converters, pair, strict=True))
            found.append(match_features(features_of(one), features_of(other)))
        alignment = align_videos(found, small[0], small[1])
        if alignment is None or not alignment.fixed:
            return None
        left, right = self._sizes
        return resize_homography(alignment.matrices[0], (small[0], left), (small[1], right))


def _saves(found: SeamCut) -> bool:
    left, right = pixel_count(found.left), pixel_count(found.right)
    return found.left_kept * left + found.right_kept * right < left + right


@dataclass(frozen=True, slots=True)
class JoinPack:
    """A pack with the pieces of a run of frames of two cameras."""

    data: bytes
    extents: tuple[PackedCell, PackedCell]
    """For the left and the right side: the part of the pack with its pieces."""
    qualities: tuple[int, ...]  #: rate factor of each piece
    likeness: tuple[PsnrFigures, PsnrFigures]
    """For the left and the right side: the worst picture."""

    @property
    def psnr(self) -> tuple[float, float]:
        """dB of the worst plane of the worst picture, for the left and the right side."""
        left, right = self.likeness
        return left.planes, right.planes

    def shares(self) -> tuple[int, int]:
        """Return the bytes of the pack for each side; common pieces count half for each."""
        left, right = self.extents
        both = left.offsets[-1] - right.offsets[0]
        alone = left.size - both, right.size - both
        mine = alone[0] + (len(self.data) - sum(alone)) // 2
        return mine, len(self.data) - mine


def merged_psnr(joint: PlaneJoint, left: Pictures, right: Pictures) -> float:
    """Return the dB of the worst plane of the worst picture on either side, before encoding."""
    merger = PlaneMerger(joint)
    cut = joint.cut
    worst = 0.0
    for one, other in zip(left, right, strict=True):
        mine, its = plane_samples(one), plane_samples(other)
        middle = merger.middle(mine, its)
        shown = [plane.copy() for plane in mine], [plane.copy() for plane in its]
        seams = [cut.seam // across for across, _ in joint.shares]
        edges = [cut.edge // across for across, _ in joint.shares]
        merger.left([p[:, :at] for p, at in zip(mine, seams, strict=True)], middle, shown[0])
        merger.right(middle, [p[:, at:] for p, at in zip(its, edges, strict=True)], shown[1])
        worst = max(worst, *plane_mean_squares(shown[0], mine), *plane_mean_squares(shown[1], its))
    return psnr_from_mse(worst, _PEAK)


class JoinEncoder:
    """Encodes packs for joints, all with the same settings.  Thread-safe.

    Pictures and properties are upright.  `between` is called before each picture that is encoded or
    decoded; it may raise.
    """

    def __init__(
        self,
        codec: TileCodec,
        factors: CrfMemory,
        left: MediaInfo,
        right: MediaInfo,
        between: Callable[[], None] = lambda: None,
    ) -> None:
        self._codec = codec
        self._factors = factors
        self._left, self._right = left, right
        self._between = between

    def pack(self, joint: PlaneJoint, left: Pictures, right: Pictures, pair: PairMark) -> JoinPack:
        """Encode the pieces, decode them as a reader will, and compare every picture.

        `pair` makes the bytes unique to these two runs of frames, as the partners of a pack are
        identified by its key.  Raises `UsageError` if the encoder rejects the input, and
        `IntegrityError` if the result does not decode to the same number of pictures.
        """
        merger = PlaneMerger(joint)
        middles = [self._middle(merger, one, other) for one, other in zip(left, right, strict=True)]
        sources = {"left": left, "middle": middles, "right": right}
        made = [self._cell(joint.cut, piece, sources[piece]) for piece in joint.pieces]
        streams = [stream for stream, _ in made]
        record = {**joint.to_record(), "pair": pair}
        buffer = io.BytesIO()
        packed = write_pack(buffer, streams, record)
        stored = json.loads(json.dumps(record))  # as a reader will load it
        sides = {profile: joined_side(stored, packed, profile) for profile in JOINED_SIDES}
        return JoinPack(
            buffer.getvalue(),
            (sides[JOINED_LEFT].extent(packed), sides[JOINED_RIGHT].extent(packed)),
            tuple(quality for _, quality in made),
            (
                self._measured(sides[JOINED_LEFT], self._left, streams, left),
                self._measured(sides[JOINED_RIGHT], self._right, streams, right),
            ),
        )

    def _middle(self, merger: PlaneMerger, left: VideoFrame, right: VideoFrame) -> VideoFrame:
        self._between()
        made = blank_like(left, *merger.joint.cut.middle)
        planes = merger.middle(plane_samples(left), plane_samples(right))
        for samples, plane in zip(plane_samples(made), planes, strict=True):
            samples[...] = plane
        return made

    def _part(self, cut: SeamCut, piece: str) -> tuple[MediaInfo, Rect]:
        """Return the source of a piece, and its rectangle in it."""
        if piece == "left":
            return self._left, Rect(0, 0, cut.seam, cut.left[1])
        if piece == "right":
            return self._right, Rect(cut.edge, 0, *cut.right)
        width, height = cut.middle
        return replace(self._left, width=width, height=height), Rect.of_size(width, height)

    def _cell(self, cut: SeamCut, piece: str, pictures: Pictures) -> tuple[CellStream, int]:
        """Return a piece, and its rate factor."""
        media, rect = self._part(cut, piece)
        finer: int | None = self._factors.first(piece)
        for _ in range(MAX_CRF_TRIES):
            assert finer is not None
            quality = finer
            encoder = CellEncoder(self._codec, media, rect, quality)
            try:
                for picture in pictures:
                    self._between()
                    encoder.put(SourcePicture(picture))
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
    ) -> PsnrFigures:
        """Return the worst picture's figures, each the worst of its kind."""
        pieces = [_decoded(streams[place]) for place in side.places]
        comparer = FrameComparer(media, media.width, media.height)
        tally = QualityAccumulator()
        for *decoded, picture in zip(*pieces, pictures, strict=True):
            self._between()
            shown = _upright_planes(side, side.picture(decoded), picture)
            tally.add(comparer.compare(SourcePicture(picture), shown))
        return tally.likeness


def _upright_planes(side: JoinedSide, shown: VideoFrame, like: VideoFrame) -> VideoFrame:
    if not side.turned:
        return shown
    made = blank_like(like, like.width, like.height)
    for samples, plane in zip(plane_samples(made), side.upright(shown), strict=True):
        samples[...] = plane
    return made


def _decoded(stream: CellStream) -> Iterator[VideoFrame]:
    """Yield the pictures of a stream, each valid until the next one."""
    form = (stream.codec, stream.width, stream.height, stream.extradata)
    decoder = cell_decoder(PackedCell(*form, (0, 0), siting=stream.siting))
    for packet in stream.packets:
        for _, picture in decoder.decode(memoryview(packet)):
            yield picture
    for _, picture in decoder.drain():
        yield picture
