"""Curves of medians with their quartiles, drawn with OpenCV."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Colour = tuple[int, int, int]

_WIDTH, _HEIGHT = 1120, 680
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 250, 64, 64
_FONT = cv2.FONT_HERSHEY_DUPLEX
_GROUND, _GRID, _LETTERS = (255, 255, 255), (228, 228, 228), (60, 60, 60)
_BAND = 0.16
"""How much of what is behind a band it covers."""
_FINE = 4
"""Bits of a pixel in which lines are placed."""


def draw(
    path: Path,
    title: str,
    axes: tuple[str, str],
    curves: Mapping[str, Values],
    colours: Mapping[str, Colour],
    highest: float,
) -> None:
    """Write a PNG of `curves`: (videos, queries) each, as medians with bands of quartiles.

    What is above `highest` is cut off.  Colours are RGB.
    """
    picture: Any = np.full((_HEIGHT, _WIDTH, 3), _GROUND, np.uint8)
    count = max(values.shape[1] for values in curves.values())
    _grid(picture, count, highest)
    room = picture[_TOP : _HEIGHT - _BOTTOM, _LEFT : _WIDTH - _RIGHT]
    for name, values in curves.items():
        low, middle, high = np.percentile(values, (25, 50, 75), axis=0)
        above = _points(room, high, count, highest)[::-1]
        band = np.concatenate([_points(room, low, count, highest), above])
        covered = room.copy()
        cv2.fillPoly(covered, [band], colours[name], cv2.LINE_AA, _FINE)
        room[...] = (room * (1 - _BAND) + covered * _BAND).astype(np.uint8)
        line = _points(room, middle, count, highest)
        cv2.polylines(room, [line], False, colours[name], 2, cv2.LINE_AA, _FINE)
    _names(
        picture, {name: float(np.median(v[:, -1])) for name, v in curves.items()}, colours, highest
    )
    _write(picture, title, (_LEFT, 38), 0.72)
    _write(picture, axes[0], (_LEFT, _HEIGHT - 14), 0.52)
    _write(picture, axes[1], (_LEFT + 8, _TOP + 20), 0.52)
    cv2.imwrite(str(path), picture[:, :, ::-1])


def _points(room: Any, values: Values, count: int, highest: float) -> npt.NDArray[np.int32]:
    height, width = room.shape[:2]
    x = np.arange(1, len(values) + 1) / count * width
    y = (1 - values / highest) * height
    # Far outside, whole numbers would run over.
    points: npt.NDArray[np.int32] = (
        (np.stack([x, y.clip(-height, height)], axis=1) * 2**_FINE).round().astype(np.int32)
    )
    return points


def _grid(picture: Any, count: int, highest: float) -> None:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for part in range(6):
        x = _LEFT + round(part / 5 * (right - _LEFT))
        cv2.line(picture, (x, _TOP), (x, bottom), _GRID, 1)
        _write(picture, f"{part / 5 * count:.0f}", (x - 12, bottom + 24), 0.5)
        y = bottom - round(part / 5 * (bottom - _TOP))
        cv2.line(picture, (_LEFT, y), (right, y), _GRID, 1)
        _write(picture, f"{part / 5 * highest:.0f}".rjust(4), (_LEFT - 58, y + 6), 0.5)


def _names(
    picture: Any, ends: Mapping[str, float], colours: Mapping[str, Colour], highest: float
) -> None:
    """Beside the end of each curve what it is, moved apart where they meet."""
    bottom, step = _HEIGHT - _BOTTOM, 24
    below = float(bottom) + step
    for name, end in sorted(ends.items(), key=lambda item: item[1]):
        y = bottom - min(end / highest, 1.0) * (bottom - _TOP)
        below = min(y + 6, below - step)
        at = (_WIDTH - _RIGHT + 12, round(below))
        _write(picture, f"{name} {end:.0f}", at, 0.52, colours[name])


def _write(
    picture: Any, text: str, at: tuple[int, int], size: float, colour: Colour = _LETTERS
) -> None:
    cv2.putText(picture, text, at, _FONT, size, colour, 1, cv2.LINE_AA)
