"""`Thumbnails`: small pictures of key frames, and sheets of them, as JPEG.

They are made once and kept in the store's cache of views, which is bounded and drops them with
their video.  The read log gets no note: the tuner must not make tiles for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from vfsd import __version__
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.codecs.encoding.encoder import encode_jpeg
from vfsd.core.frame_table_pages import Ints
from vfsd.core.pixel_array import Pixels
from vfsd.core.view_request import View
from vfsd.errors import OutOfRangeError, UsageError
from vfsd.read.read_executor import PlanExecutor
from vfsd.read.read_plan import plan_frames
from vfsd.storage.file_cache import FileCache, cache_file_name

COLUMNS = ROWS = 10
MAX_THUMBNAILS = 500
"""Most pictures of a video: more key frames are thinned out evenly."""
WIDTHS = (80, 120, 160, 240, 320, 480, 640)
_QUANTISER = 5
_AT_ONCE = 2


class SpritePlan(NamedTuple):
    """The pictures of a video, without their pixels."""

    width: int  #: pixels of a picture
    height: int
    frames: Ints  #: ascending key frames
    key: str  #: identifies the pictures

    @property
    def sheets(self) -> int:
        """Number of sheets of 10 x 10 pictures, row by row."""
        return -(-len(self.frames) // (COLUMNS * ROWS))


class Thumbnails:
    """Makes pictures of the videos of a store.  Thread-safe."""

    def __init__(self, store: Store) -> None:
        parts = store.parts
        self._cache = None if parts.read_only else FileCache.of_store(parts)
        self._guard = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._turns = threading.Semaphore(_AT_ONCE)

    def plan(self, video: Video, width: int) -> SpritePlan:
        """Return the pictures of that width.  Raises `UsageError` unless it is in `WIDTHS`."""
        if width not in WIDTHS:
            raise UsageError(f"w must be one of {', '.join(map(str, WIDTHS))}, got {width}")
        frames = video.keyframes
        if len(frames) > MAX_THUMBNAILS:
            places = np.arange(MAX_THUMBNAILS) * len(frames) // MAX_THUMBNAILS
            frames = frames[places]
        return SpritePlan(*_size(video, width), frames, _key(video, f"sprite/{width}", frames))

    def sheet(self, video: Video, plan: SpritePlan, number: int) -> bytes:
        """Return a sheet as JPEG.  Raises `OutOfRangeError` for a number beyond the last."""
        if not 0 <= number < plan.sheets:
            raise OutOfRangeError(f"sheet {number} does not exist: there are {plan.sheets}")

        def make() -> bytes:
            each = COLUMNS * ROWS
            frames = plan.frames[number * each : (number + 1) * each]
            pictures = _pictures(video, frames, (plan.width, plan.height))
            rows = -(-len(frames) // COLUMNS)
            sheet = np.zeros((rows * plan.height, COLUMNS * plan.width, 3), np.uint8)
            for place, picture in enumerate(pictures):
                top, left = place // COLUMNS * plan.height, place % COLUMNS * plan.width
                sheet[top : top + plan.height, left : left + plan.width] = picture
            return encode_jpeg(sheet, quantiser=_QUANTISER)

        return self._kept(cache_file_name(video.info.digest, f"{plan.key}.{number}"), make)

    def poster(self, video: Video, width: int) -> bytes:
        """Return a key frame after a tenth of the video: the first frames are often black."""
        if width not in WIDTHS:
            raise UsageError(f"w must be one of {', '.join(map(str, WIDTHS))}, got {width}")
        keys = video.keyframes
        place = min(int(np.searchsorted(keys, len(video) // 10)), len(keys) - 1)
        frames = keys[place : place + 1]

        def make() -> bytes:
            (picture,) = _pictures(video, frames, _size(video, width))
            return encode_jpeg(picture, quantiser=_QUANTISER)

        key = _key(video, f"poster/{width}", frames)
        return self._kept(cache_file_name(video.info.digest, f"{key}.0"), make)

    def _kept(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return a file of the cache; one thread makes it, and others wait."""
        found = None if self._cache is None else self._cache.get(name)
        if found is not None:
            return found
        with self._guard:
            turn = self._making.setdefault(name, threading.Lock())
        with turn:
            try:
                found = None if self._cache is None else self._cache.get(name)
                if found is None:
                    with self._turns:
                        found = make()
                    if self._cache is not None:
                        self._cache.put(name, found)
                return found
            finally:
                with self._guard:
                    self._making.pop(name, None)


def _size(video: Video, width: int) -> tuple[int, int]:
    width = min(width, video.width)
    return width, max(1, round(video.height * width / video.width))


def _key(video: Video, what: str, frames: Ints) -> str:
    original = video.original
    facts = (original.verified, original.first_pts, original.end_pts, original.media.rotation)
    text = f"{__version__}/{what}/{video.info.digest}/{facts}"
    return blake3(text.encode() + frames.tobytes()).hexdigest()


def _pictures(video: Video, frames: Ints, size: tuple[int, int]) -> Pixels:
    """Return frames x height x width x 3, RGB.  Raises `IntegrityError`."""
    context = context_of(video)
    snapshot = context.snapshot()
    plan = plan_frames(
        frames,
        View(size=size),
        snapshot.original,
        snapshot.table,
        tiles=context.tiles(snapshot.info, None),
    )
    return PlanExecutor(snapshot.table, context.tools).execute(plan, pixel_format="rgb24")
