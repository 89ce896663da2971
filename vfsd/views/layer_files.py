"""The tree ``layers/`` of a video: its maps, as pictures and arrays, and their description."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote, unquote

import numpy as np

from vfsd.catalog import NAME_BYTES
from vfsd.codecs.encoding.encoder import uncompressed_png, uncompressed_png_size
from vfsd.core.detections import contiguous_ranges
from vfsd.core.layers import BITS, StoredLayer, layer_fault
from vfsd.core.model import LogicalVideo
from vfsd.core.view_request import View
from vfsd.errors import IntegrityError, NotFoundError
from vfsd.views.render_context import RenderContext
from vfsd.views.rendered_view import RenderedView, StillView, TextView, view_key
from vfsd.views.view_input import PictureForm, ViewInput, picture_form
from vfsd.views.view_slots import DecodedFrames, FixedSizeSlots, Slots

LAYERS_DIR = "layers"
_MAP = re.compile(r"(\d{1,12})\.(png|npy)")
_SUFFIX = ".json"


class MapView(StillView):
    """A map as a picture file of one channel, or as an array of height x width."""

    def __init__(self, source: ViewInput, position: int, suffix: str) -> None:
        """Show the map at `position`; `suffix` is png or npy."""
        media = source.physical.media
        rect = media.frame_rect
        super().__init__(source, position, rect, suffix)
        self.key = view_key(source, f"map/{position}.{suffix}")
        self._bits = BITS[media.pixel_format]
        if suffix == "png":
            size = uncompressed_png_size(rect.width, rect.height, self._bits // 8)
        else:
            size = len(_npy_header(rect.height, rect.width, self._bits))
            size += rect.area * self._bits // 8
        self.slots: Slots = FixedSizeSlots(0, size, 1)

    def make(self, slot: int, context: RenderContext) -> bytes:
        codes = self._pixels(context)
        if self._suffix == "png":
            return uncompressed_png(codes)
        height, width, _ = codes.shape
        samples = np.ascontiguousarray(codes[..., 0], f"<u{self._bits // 8}")
        return _npy_header(height, width, self._bits) + samples.tobytes()

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        """Return None: reads of maps are not logged, as tiles would not make them cheaper."""
        return None

    def _form(self) -> PictureForm:
        name = "gray" if self._bits == 8 else "gray16"
        return picture_form(self._source.physical.media, View(region=self._region), name)


def _npy_header(height: int, width: int, bits: int) -> bytes:
    stream = io.BytesIO()
    form = {
        "descr": "|u1" if bits == 8 else "<u2",
        "fortran_order": False,
        "shape": (height, width),
    }
    np.lib.format.write_array_header_1_0(stream, form)
    return stream.getvalue()


class LayerTree:
    """The tree ``layers/`` of one video.  Reads its layers once.  Thread-safe."""

    def __init__(
        self,
        video: LogicalVideo,
        layers: Callable[[], Sequence[tuple[StoredLayer, LogicalVideo]]],
        source_of: Callable[[LogicalVideo], ViewInput],
    ) -> None:
        """`layers` returns the layers of the video with their files."""
        self._video = video
        self._ask = layers
        self._source_of = source_of
        self._known: Mapping[str, tuple[StoredLayer, LogicalVideo]] | None = None
        self._sources: dict[str, ViewInput] = {}

    def __bool__(self) -> bool:
        """Whether the video has any layers."""
        return bool(self._layers())

    def is_folder(self, path: str) -> bool:
        match path.split("/")[1:]:
            case []:
                return bool(self)
            case [name]:
                return name in self._layers()
        return False

    def entries(self, path: str, most: int) -> list[tuple[str, bool]]:
        """List a directory; its files are omitted if there are more than `most`."""
        match path.split("/")[1:]:
            case [] if self:
                names = [name for name in self._layers() if len(name + _SUFFIX) <= NAME_BYTES]
                return [
                    *((name, True) for name in names),
                    *((name + _SUFFIX, False) for name in names),
                ]
            case [name] if name in self._layers():
                frames = self._frames(name)
                shown = frames if len(frames) <= most else range(0)
                return [(f"{frame:06}.png", False) for frame in shown]
        raise NotFoundError(f"no such folder: {path!r}")

    def view(self, path: str) -> RenderedView:
        """Return the view at `path`.  Raises `NotFoundError`."""
        match path.split("/")[1:]:
            case [name] if name.removesuffix(_SUFFIX) in self._layers() and name.endswith(_SUFFIX):
                return TextView(self._description(name.removesuffix(_SUFFIX)))
            case [name, file] if name in self._layers() and (found := _MAP.fullmatch(file)):
                frames, frame = self._frames(name), int(found[1])
                if frame not in frames:
                    raise NotFoundError(f"layer {unquote(name)} has no map for frame {frame}")
                return MapView(self._source(name), frames.index(frame), found[2])
        raise NotFoundError(f"no such view: {path!r}")

    def _layers(self) -> Mapping[str, tuple[StoredLayer, LogicalVideo]]:
        """Return the layers by the names of their directories."""
        if self._known is None:
            self._known = {
                quote(layer.name, safe=" "): (layer, file) for layer, file in self._ask()
            }
        return self._known

    def _frames(self, name: str) -> Sequence[int]:
        """Return the frames with a map.  Raises `IntegrityError` where maps and frames differ."""
        layer, file = self._layers()[name]
        fault = layer_fault(layer, self._video.original, file.original)
        if fault is not None:
            raise IntegrityError(f"layer {layer.name}: {fault}")
        if layer.frames is None:
            return range(self._video.original.frames)
        found: list[int] = layer.frames.tolist()
        return found

    def _source(self, name: str) -> ViewInput:
        if name not in self._sources:
            self._sources[name] = self._source_of(self._layers()[name][1])
        return self._sources[name]

    def _description(self, name: str) -> bytes:
        layer, file = self._layers()[name]
        media = file.original.media
        frames = self._frames(name)
        parts = contiguous_ranges(np.asarray(frames, np.int64))
        source = layer.source
        record = {
            "layer": layer.name,
            "file": file.name,
            "maps": len(frames),
            "frames": [[part.start, part.stop] for part in parts],
            "size": [media.display_width, media.display_height],
            "bits": BITS[media.pixel_format],
            "scale": layer.meaning.scale,
            "zero": layer.meaning.zero,
            "unit": layer.meaning.unit,
            "source": None if source is None else source.record(),
        }
        return json.dumps(record, indent=2).encode() + b"\n"
