"""Tracks of objects that cross the picture from side to side, at a given density."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sample_videos.objects import KINDS, Sprite, mirrored

_FEET = (0.3, 1.04)  # where an object may touch the ground, in frame heights
_CLIMB = 0.08  # most that it moves up or down on its way, in frame heights


@dataclass(frozen=True, slots=True)
class Track:
    """One object's straight way through the scene.  Under way in frames ``first <= i < last``."""

    number: int
    sprite: Sprite
    first: int  #: may be negative: it was under way before the scene began
    last: int
    left: float  #: pixels, at frame `first`
    top: float
    step_x: float  #: pixels per frame
    step_y: float

    def corner(self, frame: int) -> tuple[int, int]:
        """Left and top pixel of the sprite at `frame`; may lie outside of the picture."""
        age = frame - self.first
        return round(self.left + self.step_x * age), round(self.top + self.step_y * age)


@dataclass(frozen=True, slots=True)
class Street:
    """The area that objects cross: a picture, and `margin` pixels on each side for a pan."""

    width: int
    height: int
    margin: int
    rate: float  #: frames per second

    def distance(self, sprite: Sprite) -> int:
        """Pixels from where `sprite` is not yet in sight to where it no longer is."""
        return self.width + 2 * self.margin + sprite.width

    def mean_area(self, sprite: Sprite) -> float:
        """Pixels of the sprite's box in the picture, averaged over its way."""
        return sprite.height * sprite.width * self.width / self.distance(sprite)

    def crossing(self, number: int, sprite: Sprite, first: int, rng: np.random.Generator) -> Track:
        """A track that sets out at frame `first`, at a side and with a speed drawn from `rng`."""
        speed = KINDS[sprite.label].speed * self.width / self.rate * rng.uniform(0.6, 1.5)
        steps = math.ceil(self.distance(sprite) / speed)
        leftwards = bool(rng.integers(2))
        return Track(
            number=number,
            sprite=mirrored(sprite) if leftwards else sprite,
            first=first,
            last=first + steps,
            left=self.width + self.margin if leftwards else -self.margin - sprite.width,
            top=rng.uniform(*_FEET) * self.height - sprite.height,
            step_x=-speed if leftwards else speed,
            step_y=rng.uniform(-_CLIMB, _CLIMB) * self.height / steps,
        )


def schedule(
    street: Street,
    sprites: Sequence[Sprite],
    frames: int,
    density: float,
    rng: np.random.Generator,
) -> tuple[Track, ...]:
    """Tracks that keep about `density` of the picture covered in frames ``0 <= i < frames``.

    They are numbered from 0 in the order in which they set out.
    """
    # Boxes overlap: randomly strewn boxes of total area a (in pictures) cover 1 - exp(-a) of it.
    wanted = -math.log1p(-density) * street.width * street.height
    slowest = min(KINDS[sprite.label].speed for sprite in sprites)
    tracks: list[Track] = []
    under_way: list[tuple[int, float]] = []  # (frame at which it is gone, mean area)
    candidate = sprites[int(rng.integers(len(sprites)))]
    # Starts long before frame 0, so that the scene is peopled by then.
    for clock in range(-round(2.5 * street.rate / slowest), frames):
        under_way = [(last, area) for last, area in under_way if last > clock]
        load = sum(area for _, area in under_way)
        while load + street.mean_area(candidate) / 2 <= wanted:
            track = street.crossing(len(tracks), candidate, clock, rng)
            under_way.append((track.last, street.mean_area(candidate)))
            load += street.mean_area(candidate)
            if track.last > 0:
                tracks.append(track)
            candidate = sprites[int(rng.integers(len(sprites)))]
    return tuple(tracks)
