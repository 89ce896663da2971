"""Procedural surfaces: fractal noise, a static backdrop, sensor noise.

Everything takes a `numpy.random.Generator` and is a pure function of its state.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]

NOISE_BIAS = 128
"""Sensor noise is stored as unsigned bytes around this value."""


def fractal(
    height: int, width: int, rng: np.random.Generator, *, coarsest: int, finest: int = 2
) -> Floats:
    """Multi-octave noise, `height` x `width`, scaled into -1 .. 1.

    Octaves go from cells of `coarsest` pixels down to cells of `finest` pixels; each is weaker
    than the one before.
    """
    field = np.zeros((height, width), np.float32)
    amplitude = 1.0
    cell = coarsest
    while cell >= finest:
        rows, columns = height // cell + 2, width // cell + 2
        grid = rng.standard_normal((rows, columns), dtype=np.float32)
        smooth = cv2.resize(grid, (columns * cell, rows * cell), interpolation=cv2.INTER_CUBIC)
        field += amplitude * smooth[:height, :width]
        amplitude *= 0.75
        cell //= 2
    return field / np.float32(max(np.abs(field).max(), 1e-6))


def backdrop(height: int, width: int, rng: np.random.Generator) -> Image:
    """A static scenery, `height` x `width` x 3 RGB: tinted ground, and slabs with hard edges.

    Values stay within 24 .. 208, so that noise added later is seldom clipped.
    """
    light = fractal(height, width, rng, coarsest=max(4, height // 3))
    ground = np.empty((height, width, 3), np.float32)
    for channel, level in enumerate((112.0, 118.0, 106.0)):
        tint = fractal(height, width, rng, coarsest=max(4, height // 2), finest=16)
        ground[..., channel] = level + 52 * light + 12 * tint
    for _ in range(14):
        slab_height, slab_width = (int(rng.uniform(0.04, 0.2) * side) for side in (height, width))
        top, left = (int(rng.uniform(0, 0.9) * side) for side in (height, width))
        ground[top : top + slab_height, left : left + slab_width] += rng.uniform(
            -30, 30
        ) + rng.uniform(-9, 9, 3)
    scenery: Image = np.clip(ground, 24, 208).astype(np.uint8)
    return scenery


def sensor_noise(height: int, width: int, sigma: float, rng: np.random.Generator) -> Image:
    """Gaussian noise of `sigma` levels, `height` x `width` x 3, stored around `NOISE_BIAS`."""
    noise = rng.standard_normal((height, width, 3), dtype=np.float32)
    levels: Image = np.clip(np.rint(noise * sigma + NOISE_BIAS), 0, 255).astype(np.uint8)
    return levels
