"""The classes of objects that move through a scene, and what they look like."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import cv2
import numpy as np

from sample_videos.textures import Image, fractal

Point = tuple[float, float]

_VARIANTS = 5  # looks per class: bounds the memory of a long scene
_SMALLEST = 10  # pixels of height below which a class would not be recognisable


@dataclass(frozen=True, slots=True)
class Part:
    """A filled polygon in the unit square of its object; `tone` scales the object's colour."""

    outline: tuple[Point, ...]
    tone: float = 1.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of objects, facing right.  Its parts touch all four sides of the unit square."""

    height: float  #: of a typical one, in frame heights
    aspect: float  #: width / height
    speed: float  #: frame widths per second
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Sprite:
    """One look of one class.  `mask` is 255 where the object is, 0 around it."""

    label: str
    rgb: Image  #: height x width x 3
    mask: Image  #: height x width

    @property
    def height(self) -> int:
        return int(self.mask.shape[0])

    @property
    def width(self) -> int:
        return int(self.mask.shape[1])


def _disc(x: float, y: float, radius_x: float, radius_y: float) -> tuple[Point, ...]:
    turns = [2 * math.pi * step / 24 for step in range(24)]
    return tuple((x + radius_x * math.cos(turn), y + radius_y * math.sin(turn)) for turn in turns)


def _bar(x1: float, y1: float, x2: float, y2: float) -> tuple[Point, ...]:
    return ((x1, y1), (x2, y1), (x2, y2), (x1, y2))


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "car": Kind(
            height=0.17,
            aspect=2.1,
            speed=0.22,
            parts=(
                Part(
                    (
                        (0, 0.4),
                        (0.16, 0.36),
                        (0.3, 0),
                        (0.68, 0),
                        (0.84, 0.4),
                        (1, 0.5),
                        (1, 0.84),
                        (0, 0.84),
                    )
                ),
                Part(((0.24, 0.36), (0.34, 0.08), (0.48, 0.08), (0.48, 0.36)), 0.3),
                Part(((0.52, 0.36), (0.52, 0.08), (0.65, 0.08), (0.76, 0.36)), 0.3),
                Part(_disc(0.22, 0.81, 0.09, 0.19), 0.2),
                Part(_disc(0.78, 0.81, 0.09, 0.19), 0.2),
            ),
        ),
        "truck": Kind(
            height=0.26,
            aspect=2.3,
            speed=0.15,
            parts=(
                Part(_bar(0, 0, 0.7, 0.86), 1.1),
                Part(((0.72, 0.22), (0.92, 0.22), (1, 0.5), (1, 0.86), (0.72, 0.86)), 0.8),
                Part(((0.8, 0.28), (0.91, 0.28), (0.96, 0.5), (0.8, 0.5)), 0.3),
                Part(_bar(0.68, 0.7, 0.74, 0.86), 0.4),
                Part(_disc(0.15, 0.87, 0.06, 0.13), 0.2),
                Part(_disc(0.5, 0.87, 0.06, 0.13), 0.2),
                Part(_disc(0.85, 0.87, 0.06, 0.13), 0.2),
            ),
        ),
        "person": Kind(
            height=0.25,
            aspect=0.4,
            speed=0.06,
            parts=(
                Part(((0.32, 0.55), (0.52, 0.55), (0.24, 1), (0, 1)), 0.5),
                Part(((0.48, 0.55), (0.7, 0.55), (1, 1), (0.76, 1)), 0.6),
                Part(((0.2, 0.18), (0.8, 0.18), (0.9, 0.55), (0.72, 0.6), (0.3, 0.6), (0.1, 0.55))),
                Part(_disc(0.5, 0.1, 0.24, 0.1), 1.3),
            ),
        ),
        "bicycle": Kind(
            height=0.22,
            aspect=0.95,
            speed=0.12,
            parts=(
                Part(_disc(0.22, 0.77, 0.22, 0.23), 0.35),
                Part(_disc(0.78, 0.77, 0.22, 0.23), 0.35),
                Part(_disc(0.22, 0.77, 0.1, 0.11), 0.8),
                Part(_disc(0.78, 0.77, 0.1, 0.11), 0.8),
                Part(((0.2, 0.74), (0.34, 0.5), (0.74, 0.5), (0.82, 0.76), (0.5, 0.84)), 0.6),
                Part(
                    ((0.3, 0.52), (0.42, 0.16), (0.62, 0.16), (0.8, 0.46), (0.6, 0.5), (0.5, 0.8))
                ),
                Part(_disc(0.56, 0.09, 0.11, 0.1), 1.3),
            ),
        ),
        "dog": Kind(
            height=0.09,
            aspect=1.5,
            speed=0.1,
            parts=(
                Part(((0, 0.16), (0.1, 0.12), (0.18, 0.4), (0.1, 0.5))),
                Part(_bar(0.1, 0.34, 0.76, 0.72)),
                Part(((0.66, 0.36), (0.7, 0), (0.82, 0.1), (1, 0.28), (1, 0.4), (0.8, 0.5)), 1.15),
                Part(_bar(0.1, 0.7, 0.24, 1), 0.7),
                Part(_bar(0.3, 0.7, 0.42, 0.98), 0.6),
                Part(_bar(0.62, 0.7, 0.76, 1), 0.7),
            ),
        ),
    }
)
"""Every class there is, by its label."""


def paint(label: str, height: int, rng: np.random.Generator) -> Sprite:
    """A textured sprite of class `label`, `height` pixels high, of a colour of its own."""
    kind = KINDS[label]
    width = max(4, round(height * kind.aspect))
    tone = np.zeros((height, width), np.float32)
    for part in kind.parts:
        corners = np.rint(np.array(part.outline) * (width - 1, height - 1)).astype(np.int32)
        cv2.fillPoly(tone, [corners], part.tone)
    hue, saturation, value = rng.uniform((0, 0.55, 0.6), (1, 0.95, 1))
    colour = 235 * np.array(colorsys.hsv_to_rgb(hue, saturation, value), np.float32)
    grain = 1 + 0.3 * fractal(height, width, rng, coarsest=max(2, height // 4))
    rgb = np.clip(colour * (tone * grain)[..., None], 0, 255).astype(np.uint8)
    return Sprite(label, rgb, np.where(tone > 0, 255, 0).astype(np.uint8))


def paint_all(
    labels: Sequence[str], width: int, height: int, density: float, rng: np.random.Generator
) -> tuple[Sprite, ...]:
    """A handful of sprites of each class for a picture of `width` x `height`.

    They shrink where objects of natural size could not keep to `density`.
    """
    areas = [KINDS[label].height ** 2 * KINDS[label].aspect * height / width for label in labels]
    natural = sum(areas) / len(areas)
    scale = min(1.0, math.sqrt(density / (4 * natural)))
    sprites = []
    for label in labels:
        for _ in range(_VARIANTS):
            wanted = KINDS[label].height * height * scale * rng.uniform(0.75, 1.25)
            sprites.append(paint(label, max(_SMALLEST, round(wanted)), rng))
    return tuple(sprites)


def mirrored(sprite: Sprite) -> Sprite:
    """The same object, facing left."""
    return Sprite(
        sprite.label,
        np.ascontiguousarray(sprite.rgb[:, ::-1]),
        np.ascontiguousarray(sprite.mask[:, ::-1]),
    )
