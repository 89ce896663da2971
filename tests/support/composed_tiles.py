"""A simple implementation of composing tiles, as a reference."""

from __future__ import annotations

import math

import av

from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.cells.pack import open_pack
from vfsd.codecs.frames.color import SitingSetter
from vfsd.codecs.frames.to_array import PixelConverter
from vfsd.codecs.frames.transforms import TileComposer
from vfsd.codecs.pyav import strict_decoder
from vfsd.core.model import MeasuredCost, Segment
from vfsd.core.pixel_array import Pixels
from vfsd.core.process_control import host_name
from vfsd.core.view_request import View
from vfsd.read.tile_planner import DecodeCosts
from vfsd.tiling import Rect
from vfsd.tiling.cost import DecodeCost

DEAR = DecodeCost(1, 1, 0, 0)
_ORIGINALS = ("h264", "hevc", "vp9", "av1", "mjpeg", "mpeg4", "ffv1")
DEAR_ORIGINALS = DecodeCosts(dict.fromkeys(_ORIGINALS, DEAR))
"""With these costs, plans use tiles wherever they exist."""


def take_tiles(store: Store) -> None:
    """Make reads use tiles wherever they exist, by setting very high costs for originals."""
    with store.catalog.writing() as change:
        for codec, cost in DEAR_ORIGINALS.by_name.items():
            change.costs.put(MeasuredCost(host_name(), codec, cost, None, 1, 1, "test", 1))


class Composed:
    """All frames of a video that have tiles, composed from tiles that are decoded one by one.

    Pixels that a segment does not store come from the original.
    """

    def __init__(self, store: Store, video: Video) -> None:
        self.media = video.original.media
        self._video = video
        self.segments: dict[int, Segment] = {}
        picture = Rect.of_size(self.media.width, self.media.height)
        self.pictures: dict[int, av.VideoFrame] = {}
        for segment in store.catalog.segments(video.info):
            reader, table = open_pack(store.parts.objects, segment.object_key)
            composers = [TileComposer(picture) for _ in segment.frames]
            for cell, packed in zip(segment.cells, table.cells, strict=True):
                context = strict_decoder(packed.codec, packed.extradata)
                decoded: list[av.VideoFrame] = []
                for start, end in zip(packed.offsets, packed.offsets[1:], strict=False):
                    decoded += context.decode(av.Packet(reader.read(start, end - start)))
                decoded += context.decode(None)
                if packed.siting is not None:
                    decoded = [SitingSetter(packed.siting).convert(tile) for tile in decoded]
                for frame, composer, tile in zip(segment.frames, composers, decoded, strict=True):
                    self.pictures[frame] = composer.put(tile, cell.rect)
                    self.segments[frame] = segment

    def holds(self, frame: int, view: View, form: str) -> bool:
        """Whether tiles cover the whole region."""
        segment = self.segments[frame]
        return segment.holds(segment.layout.covering(self._converter(view, form).needed))

    def original(self, frame: int, view: View, form: str) -> Pixels:
        exact = self._video.frames(
            [frame], region=view.region, size=view.size, format=form, psnr=math.inf
        )
        first: Pixels = exact.data[0]
        return first

    def _converter(self, view: View, form: str) -> PixelConverter:
        region, size = view.region, view.size
        return PixelConverter(self.media, pixel_format=form, region=region, size=size)

    def convert(self, frame: int, view: View, form: str) -> Pixels:
        if not self.holds(frame, view, form):
            return self.original(frame, view, form)
        converter = self._converter(view, form)
        whole = Rect.of_size(self.media.width, self.media.height)
        return converter.convert(self.pictures[frame], held=whole).copy()
