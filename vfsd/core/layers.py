"""Layers: videos of one channel whose pictures are maps of frames of another video.

A layer and its video are aligned by frame number alone.  A sample of a map, its code, stands for
the value ``zero + scale * code``.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.core.detections import MAX_TEXT_LENGTH, Floats, Ints, Source
from vfsd.core.model import PhysicalVideo
from vfsd.errors import IntegrityError, UsageError
from vfsd.tiling import Rect

BITS = {"gray": 8, "gray16le": 16}
"""Bits of a sample, by the pixel formats that a layer may have."""

MAX_UNIT_LENGTH = 32


@dataclass(frozen=True, slots=True)
class LayerMeaning:
    """The meaning of samples: a code stands for ``zero + scale * code``, in `unit`."""

    scale: float = 1.0
    zero: float = 0.0
    unit: str = ""

    def __post_init__(self) -> None:
        for name in ("scale", "zero"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
                raise UsageError(f"{name} must be a number, got {shown(value)}")
            object.__setattr__(self, name, float(value))
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise UsageError(f"scale must be above 0 and finite, got {self.scale:g}")
        if not math.isfinite(self.zero):
            raise UsageError(f"zero must be finite, got {self.zero:g}")
        if (
            not isinstance(self.unit, str)
            or not self.unit.isprintable()
            or len(self.unit) > MAX_UNIT_LENGTH
        ):
            raise UsageError(
                f"unit must be at most {MAX_UNIT_LENGTH} printable characters, got "
                f"{shown(self.unit)}"
            )

    def values(self, codes: npt.NDArray[Any]) -> Floats:
        """Return the values that codes stand for, as float64."""
        return self.zero + self.scale * codes.astype(np.float64)

    def codes(self, low: float | None, high: float | None, bits: int) -> tuple[int, int]:
        """Return the half-open range of codes whose values are in ``low <= value < high``.

        None: no limit.  Raises `UsageError` for a limit that is not a number, and for an empty
        range.
        """
        limits: list[float | None] = []
        for name, limit in (("low", low), ("high", high)):
            if limit is None:
                limits.append(None)
                continue
            if isinstance(limit, bool) or not isinstance(limit, (int, float, np.number)):
                raise UsageError(f"{name} must be a number, got {shown(limit)}")
            if math.isnan(float(limit)):
                raise UsageError(f"{name} must be a number, got nan")
            limits.append(float(limit))
        first, end = limits
        if first is not None and end is not None and first >= end:
            raise UsageError(f"low must be below high, got {first:g} and {end:g}")
        # As `values` computes them, so that both agree on the last bit.
        table = self.values(np.arange(1 << bits))
        return (
            0 if first is None else int(np.searchsorted(table, first, "left")),
            1 << bits if end is None else int(np.searchsorted(table, end, "left")),
        )


@dataclass(frozen=True, slots=True, eq=False)
class StoredLayer:
    """The row of a layer."""

    id: int
    video_id: int
    name: str
    file_id: int  #: the video with the maps
    frames: Ints | None  #: frame numbers of the maps, ascending; None: all frames
    meaning: LayerMeaning
    source: Source | None
    created_ns: int


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """The row of a layer's index."""

    physical_id: int
    object_key: str
    size: int  #: bytes
    cell: int  #: side of a cell in pixels
    bins: int
    built_ns: int


def require_layer_name(name: object) -> str:
    """Raises `UsageError` for a name that a mount cannot show as a folder."""
    if (
        not isinstance(name, str)
        or not name.isprintable()
        or name != name.strip()
        or not 0 < len(name.encode()) <= MAX_TEXT_LENGTH - len(".json")
        or "/" in name
        or name.startswith(".")
    ):
        raise UsageError(
            f"the name of a layer must be printable text, got {shown(name)}",
            hint="give 1 to 250 bytes without a slash, and without a dot at the beginning",
        )
    return name


def frames_to_bytes(frames: Ints) -> bytes:
    """Return ascending frame numbers as stored: deltas as little-endian 64 bits, deflated."""
    return zlib.compress(np.diff(frames, prepend=0).astype("<i8").tobytes(), 9)


def frames_from_bytes(data: bytes) -> Ints:
    """Raises `IntegrityError` for bytes that `frames_to_bytes` did not make."""
    try:
        deltas = np.frombuffer(zlib.decompress(data), "<i8").astype(np.int64)
    except (zlib.error, ValueError):
        deltas = np.empty(0, np.int64)
    if not len(deltas) or deltas[0] < 0 or (deltas[1:] < 1).any():
        raise IntegrityError("the frame numbers of a layer are damaged", hint="add it again")
    return np.cumsum(deltas)


def layer_frames(frames: Iterable[int] | Ints | None, maps: int, video_frames: int) -> Ints | None:
    """Return the frame numbers for the maps of a new layer; None: all frames of the video.

    Raises `UsageError` unless there is one for each map, ascending, within the video.
    """
    if frames is None:
        if maps != video_frames:
            raise UsageError(
                f"a layer of {maps} maps for {video_frames} frames needs the numbers of its frames",
                hint="give frames, for example range(0, 1000, 10)",
            )
        return None
    try:
        given = np.asarray(list(frames) if not isinstance(frames, np.ndarray) else frames)
    except (TypeError, ValueError):
        given = np.empty(0, object)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise UsageError(f"frames must be whole numbers, got {shown(frames)}")
    numbers = given.astype(np.int64)
    if len(numbers) != maps:
        raise UsageError(f"frames must have a number for each of {maps} maps, got {len(numbers)}")
    if numbers[0] < 0 or numbers[-1] >= video_frames or (np.diff(numbers) < 1).any():
        raise UsageError(
            f"frames must be ascending numbers from 0 to {video_frames - 1}, got {shown(frames)}"
        )
    return None if maps == video_frames else numbers


def layer_fault(layer: StoredLayer, video: PhysicalVideo, maps: PhysicalVideo) -> str | None:
    """Return why the maps of a layer cannot be those of its frames, or None.

    A later correction of a frame table may have changed a number of frames.
    """
    if maps.media.pixel_format not in BITS:
        return f"its file has {maps.media.pixel_format} pixels, not gray or gray16le"
    if layer.frames is None:
        if maps.frames != video.frames:
            return f"it has {maps.frames} maps for {video.frames} frames"
        return None
    if maps.frames != len(layer.frames):
        return f"it has {maps.frames} maps for {len(layer.frames)} frame numbers"
    if layer.frames[-1] >= video.frames:
        return f"it has a map for frame {layer.frames[-1]}, but the video ends before it"
    return None


def scaled_region(rect: Rect, shape: tuple[int, int], maps: tuple[int, int]) -> Rect:
    """Return a region of a displayed frame in pixels of the maps; sizes are (width, height).

    Raises `UsageError` where its edges lie within pixels of the maps.
    """
    edges = []
    for at, edge in enumerate((rect.x1, rect.y1, rect.x2, rect.y2)):
        whole, rest = divmod(edge * maps[at % 2], shape[at % 2])
        if rest:
            near = nearest_region(rect, shape, maps)
            raise UsageError(
                f"region {rect} does not fit the pixels of the layer, which has "
                f"{maps[0]}x{maps[1]} for {shape[0]}x{shape[1]}",
                hint=f"the nearest that does is {near}",
            )
        edges.append(whole)
    return Rect(*edges)


def nearest_region(rect: Rect, shape: tuple[int, int], maps: tuple[int, int]) -> Rect:
    """Return the nearest region of whole pixels of both a frame and its maps."""
    edges = []
    for at, (first, end) in enumerate(((rect.x1, rect.x2), (rect.y1, rect.y2))):
        step = shape[at] // math.gcd(shape[at], maps[at])  # pixels between edges of both
        low = min(round(first / step), shape[at] // step - 1)
        high = max(round(end / step), low + 1)
        edges.append((low * step, min(high * step, shape[at])))
    (x1, x2), (y1, y2) = edges
    return Rect(x1, y1, x2, y2)


def touched_region(
    box: tuple[float, float, float, float], shape: tuple[int, int], maps: tuple[int, int]
) -> Rect | None:
    """Return the pixels of a map that a box of the displayed frame touches; None: no pixel."""
    edges = []
    for at in (0, 1):
        first = max(0.0, box[at]) * maps[at] / shape[at]
        end = min(float(shape[at]), box[at + 2]) * maps[at] / shape[at]
        edges.append((math.floor(first), math.ceil(end)))
    (x1, x2), (y1, y2) = edges
    return Rect(x1, y1, x2, y2) if x1 < x2 and y1 < y2 else None
