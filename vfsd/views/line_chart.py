"""Line charts as pictures: single curves, or medians of several runs with bands of quartiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
"""(runs, steps): the value of each run after each step."""
Colour = tuple[int, int, int]
"""RGB."""
Picture = npt.NDArray[np.uint8]
"""height x width x 3, RGB."""

_WIDTH, _HEIGHT = 1120, 680
_LEFT, _RIGHT, _TOP, _BOTTOM = 92, 24, 88, 76
_FONT = cv2.FONT_HERSHEY_DUPLEX
_GROUND, _GRID, _LETTERS = (255, 255, 255), (228, 228, 228), (60, 60, 60)
# Letter sizes as factors of the font's own size.
_TITLE, _SMALL = 0.72, 0.52
# Pixels between the names of two curves.
_LINE = 24
# Maximum number of ticks on an axis.
_TICKS = 8
# Opacity of a band of quartiles.
_BAND = 0.16
# Fractional bits of pixel coordinates.
_FINE = 4


def draw(
    path: Path,
    title: str,
    axes: tuple[str, str],
    curves: Mapping[str, Values],
    colours: Mapping[str, Colour],
    highest: float | None = None,
) -> None:
    """Write one `panel` to a file in the format given by its suffix."""
    write(path, [panel(title, axes[0], curves, colours, highest, above=axes[1])], columns=1)


def write(path: Path, panels: Sequence[Picture], columns: int) -> None:
    """Write panels to a file, `columns` in a row, in the format given by its suffix."""
    blank = np.full_like(panels[0], 255)
    filled = [*panels, *[blank] * (-len(panels) % columns)]
    rows = [np.hstack(filled[first : first + columns]) for first in range(0, len(filled), columns)]
    cv2.imwrite(str(path), np.vstack(rows)[:, :, ::-1])


def panel(
    title: str,
    below: str,
    curves: Mapping[str, Values],
    colours: Mapping[str, Colour],
    highest: float | None = None,
    *,
    above: str = "",
) -> Picture:
    """Draw `curves` over their steps, counted from 1: medians, with bands of quartiles.

    Args:
        below: label of the step axis.
        above: label of the value axis, with its unit.
        highest: values above it are cut off; by default nothing is cut off.

    The last value of each curve is written next to its end.  Texts must be ASCII.
    """
    steps = max(values.shape[1] for values in curves.values())
    if highest is None:
        highest = 1.05 * max(float(np.percentile(v, 75, axis=0).max()) for v in curves.values())
    highest = highest or 1.0
    ends = {name: float(np.median(values[:, -1])) for name, values in curves.items()}
    texts = {name: f"{name} {_formatted_value(end, highest)}" for name, end in ends.items()}
    right = max(_length(text, _SMALL) for text in texts.values()) + 12 + _RIGHT
    drawn: Any = np.full((_HEIGHT, _WIDTH, 3), _GROUND, np.uint8)
    room = drawn[_TOP : _HEIGHT - _BOTTOM, _LEFT : _WIDTH - right]
    _grid(drawn, right, steps, highest)
    for name, values in curves.items():
        _curve(room, values, steps, highest, colours[name])
    for name, y in _label_positions({name: end / highest for name, end in ends.items()}).items():
        _write(drawn, texts[name], (_WIDTH - right + 12, y), _SMALL, colours[name])
    _write(drawn, title, (_LEFT, 38), _TITLE)
    middle = (_LEFT + _WIDTH - right) // 2
    _write(drawn, below, (middle - _length(below, _SMALL) // 2, _HEIGHT - 20), _SMALL)
    _write(drawn, above, (_LEFT - 8, _TOP - 16), _SMALL)
    found: Picture = drawn
    return found


def _curve(room: Any, values: Values, steps: int, highest: float, colour: Colour) -> None:
    low, middle, high = np.percentile(values, (25, 50, 75), axis=0)
    if len(values) > 1:
        above = _points(room, high, steps, highest)[::-1]
        band = np.concatenate([_points(room, low, steps, highest), above])
        covered = room.copy()
        cv2.fillPoly(covered, [band], colour, cv2.LINE_AA, _FINE)
        room[...] = (room * (1 - _BAND) + covered * _BAND).astype(np.uint8)
    line = _points(room, middle, steps, highest)
    cv2.polylines(room, [line], False, colour, 2, cv2.LINE_AA, _FINE)


def _points(room: Any, values: Values, steps: int, highest: float) -> npt.NDArray[np.int32]:
    height, width = room.shape[:2]
    x = np.arange(1, len(values) + 1) / steps * width
    if len(values) == 1:  # a constant line
        x, values = np.array([0, width]), np.repeat(values, 2)
    y = (1 - values / highest) * height
    # Values far outside would overflow the integer coordinates.
    points: npt.NDArray[np.int32] = (
        (np.stack([x, y.clip(-height, height)], axis=1) * 2**_FINE).round().astype(np.int32)
    )
    return points


def _grid(drawn: Any, right: int, steps: int, highest: float) -> None:
    end, bottom = _WIDTH - right, _HEIGHT - _BOTTOM
    for step in _ticks(steps, whole=True):
        x = _LEFT + round(step / steps * (end - _LEFT))
        cv2.line(drawn, (x, _TOP), (x, bottom), _GRID, 1)
        text = f"{step:.0f}"
        _write(drawn, text, (x - _length(text, _SMALL) // 2, bottom + 24), _SMALL)
    for value in _ticks(highest, whole=False):
        y = bottom - round(value / highest * (bottom - _TOP))
        cv2.line(drawn, (_LEFT, y), (end, y), _GRID, 1)
        text = f"{value:.10g}"
        _write(drawn, text, (_LEFT - 10 - _length(text, _SMALL), y + 6), _SMALL)


def _ticks(last: float, *, whole: bool) -> Sequence[float]:
    """Return round numbers from 0 to `last`."""
    size = 10.0 ** math.floor(math.log10(last / _TICKS))
    apart = next(size * times for times in (1, 2, 5, 10) if size * times * _TICKS >= last)
    if whole:
        apart = max(1.0, apart)
    # Products are exact where sums of tenths accumulate errors.
    return [round(number * apart, 12) for number in range(int(last / apart + 1e-9) + 1)]


def _formatted_value(value: float, highest: float) -> str:
    """Format a value with the precision of the picture."""
    digits = max(0, 2 - math.floor(math.log10(highest)))
    return f"{value:.{digits}f}"


def _label_positions(ends: Mapping[str, float]) -> dict[str, int]:
    """Return the y position of the name of each curve, near its end and without overlap.

    `ends` are fractions of the highest value.
    """
    bottom = _HEIGHT - _BOTTOM
    names = sorted(ends, key=lambda name: ends[name])
    places: list[float] = []
    for name in names:
        y = bottom - min(ends[name], 1.0) * (bottom - _TOP) + 6
        places.append(min(y, places[-1] - _LINE) if places else y)
    top = float(_TOP)
    for number in reversed(range(len(places))):  # move up the names that had no space
        places[number] = max(places[number], top)
        top = places[number] + _LINE
    return {name: round(y) for name, y in zip(names, places, strict=True)}


def _length(text: str, size: float) -> int:
    (width, _), _ = cv2.getTextSize(text, _FONT, size, 1)
    return int(width)


def _write(
    drawn: Any, text: str, at: tuple[int, int], size: float, colour: Colour = _LETTERS
) -> None:
    cv2.putText(drawn, text, at, _FONT, size, colour, 1, cv2.LINE_AA)
