"""Camera-like scenes, computed frame by frame."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from sample_videos.objects import KINDS, paint_all
from sample_videos.stamp import BITS, SMALLEST_HEIGHT, SMALLEST_WIDTH, write_frame_number
from sample_videos.textures import NOISE_BIAS, Image, backdrop, sensor_noise
from sample_videos.tracks import Street, Track, schedule

_NOISE_FIELDS = 4
_NOISE_SHIFT = 64  # a frame sees a noise field from one of this many squared corners
_PAN_SECONDS = 12  # from the middle to the right, to the left and back


@dataclass(frozen=True, slots=True)
class Box:
    """Where one object is in one frame: pixels ``x1 <= x < x2`` and ``y1 <= y < y2``.

    It is the smallest box around the part of the object that lies within the picture, whether or
    not another object (or the stamped frame number) hides it there.
    """

    track: int  #: the same for one object in every frame
    label: str  #: one of `sample_videos.objects.KINDS`
    x1: int
    y1: int
    x2: int
    y2: int


@dataclass(frozen=True)
class Scene:
    """A fixed camera's view, determined to the last bit by these values.

    `frame` and `boxes` are pure functions of the scene and the frame's index.  Raises `ValueError`
    for values that describe no scene.
    """

    width: int = 320  #: pixels
    height: int = 240
    frames: int = 60
    rate: Fraction = Fraction(30)  #: frames per second
    density: float = 0.1  #: part of the picture within boxes, averaged over time; 0: no objects
    classes: tuple[str, ...] = tuple(KINDS)
    noise: float = 2.0  #: sigma of the sensor noise, in levels of 256
    drift: float = 0.0  #: part of the light that is gone at night, halfway through the scene
    pan: int = 0  #: pixels that the camera swings to either side
    seed: int = 0
    numbered: bool = True  #: the frame's index is stamped into the top left corner

    def __post_init__(self) -> None:
        if self.width < SMALLEST_WIDTH or self.height < SMALLEST_HEIGHT:
            raise ValueError(
                f"{self.width}x{self.height} is smaller than {SMALLEST_WIDTH}x{SMALLEST_HEIGHT}"
            )
        if not 1 <= self.frames <= 1 << BITS:
            raise ValueError(f"{self.frames} frames are not within 1 .. {1 << BITS}")
        if self.rate <= 0:
            raise ValueError(f"a rate of {self.rate} is not positive")
        if not 0 <= self.density <= 0.9:
            raise ValueError(f"a density of {self.density} is not within 0 .. 0.9")
        if not self.classes or not set(self.classes) <= set(KINDS):
            raise ValueError(f"classes must be some of {', '.join(KINDS)}, not {self.classes}")
        if not 0 <= self.noise <= 30:
            raise ValueError(f"noise of {self.noise} is not within 0 .. 30")
        if not 0 <= self.drift <= 1:
            raise ValueError(f"a drift of {self.drift} is not within 0 .. 1")
        if self.pan < 0 or self.seed < 0:
            raise ValueError("pan and seed must not be negative")

    def frame(self, index: int) -> Image:
        """The picture at `index`: height x width x 3 RGB, the caller's to keep.

        Raises `IndexError` unless ``0 <= index < frames``.
        """
        stage = _stage(self)
        x = self.pan + self._swing(index)
        picture = stage.backdrop[:, x : x + self.width].copy()
        # Objects lower in the picture are nearer to the camera and hide those behind.
        for view in sorted(self._views(index), key=lambda view: view.feet):
            height, width = view.mask.shape
            spot = picture[view.y : view.y + height, view.x : view.x + width]
            cv2.copyTo(view.rgb, view.mask, spot)
        rng = np.random.default_rng((self.seed, 4, index))
        field = stage.noise[int(rng.integers(_NOISE_FIELDS))]
        top, left = rng.integers(_NOISE_SHIFT, size=2)
        noise = field[top : top + self.height, left : left + self.width]
        cv2.addWeighted(picture, self._light(index), noise, 1.0, -NOISE_BIAS, picture)
        if self.numbered:
            write_frame_number(picture, index)
        return picture

    def boxes(self, index: int) -> list[Box]:
        """Where the objects are at `index`, by ascending track.

        Raises `IndexError` unless ``0 <= index < frames``.
        """
        boxes = []
        for view in self._views(index):
            x, y, width, height = cv2.boundingRect(view.mask)
            if width and height:
                x1, y1 = view.x + x, view.y + y
                box = Box(view.track, view.label, x1, y1, x1 + width, y1 + height)
                boxes.append(box)
        return boxes

    def _views(self, index: int) -> list[_View]:
        """The visible part of each object at `index`, by ascending track."""
        if not 0 <= index < self.frames:
            raise IndexError(f"frame {index} is not within 0 .. {self.frames - 1}")
        views = []
        for track in _stage(self).alive(index):
            sprite = track.sprite
            x, y = track.corner(index)
            x -= self._swing(index)
            x1, x2 = max(x, 0), min(x + sprite.width, self.width)
            y1, y2 = max(y, 0), min(y + sprite.height, self.height)
            if x1 < x2 and y1 < y2:
                part = slice(y1 - y, y2 - y), slice(x1 - x, x2 - x)
                feet = y + sprite.height
                views.append(
                    _View(
                        track.number,
                        sprite.label,
                        x1,
                        y1,
                        feet,
                        sprite.rgb[part],
                        sprite.mask[part],
                    )
                )
        return views

    def _swing(self, index: int) -> int:
        """Pixels that the camera looks to the right of its middle position."""
        return round(self.pan * math.sin(2 * math.pi * index / (_PAN_SECONDS * self.rate)))

    def _light(self, index: int) -> float:
        """Brightness: 1 by day, at both ends of the scene; 1 - `drift` by night, in its middle."""
        return 1 - self.drift * (1 - math.cos(2 * math.pi * index / self.frames)) / 2


@dataclass(frozen=True, slots=True)
class _View:
    """The part of one object's sprite that lies within a picture."""

    track: int
    label: str
    x: int  #: of its left upper pixel, in the picture
    y: int
    feet: int  #: row below the whole sprite, maybe below the picture
    rgb: Image
    mask: Image


@dataclass(frozen=True)
class _Stage:
    """Parts of a scene that are computed once."""

    backdrop: Image  #: as wide as the picture and what a pan reveals on both sides
    noise: tuple[Image, ...]
    tracks: tuple[Track, ...]
    spans: npt.NDArray[np.int64]  #: 2 x tracks: first and last of each

    def alive(self, index: int) -> list[Track]:
        first, last = self.spans
        return [self.tracks[n] for n in np.flatnonzero((first <= index) & (index < last))]


@lru_cache(maxsize=2)  # tens of megabytes for a large picture
def _stage(scene: Scene) -> _Stage:
    # One random stream for each purpose: scenes that differ in their objects share the backdrop.
    backdrop_rng, noise_rng, looks_rng, tracks_rng = (
        np.random.default_rng((scene.seed, purpose)) for purpose in range(4)
    )
    tracks: tuple[Track, ...] = ()
    if scene.density > 0:
        sprites = paint_all(scene.classes, scene.width, scene.height, scene.density, looks_rng)
        street = Street(scene.width, scene.height, scene.pan, float(scene.rate))
        tracks = schedule(street, sprites, scene.frames, scene.density, tracks_rng)
    return _Stage(
        backdrop=backdrop(scene.height, scene.width + 2 * scene.pan, backdrop_rng),
        noise=tuple(
            sensor_noise(
                scene.height + _NOISE_SHIFT, scene.width + _NOISE_SHIFT, scene.noise, noise_rng
            )
            for _ in range(_NOISE_FIELDS)
        ),
        tracks=tracks,
        spans=np.array([(t.first, t.last) for t in tracks], np.int64).reshape(-1, 2).T,
    )
