"""The strip above a picture of a layout: what is shown, and what its colours mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vfsd.core.orientation import layout_in_display
from vfsd.core.text_image import (
    GROUND,
    LETTERS,
    Colour,
    Picture,
    line_height,
    plain,
    size_for,
    text_width,
    write_line,
)
from vfsd.core.timebase import clock, human_bytes
from vfsd.views.layout_facts import LayoutFacts

RAMP: tuple[Colour, ...] = ((40, 70, 235), (140, 40, 230), (235, 30, 140), (255, 40, 30))
"""From where little was read to where most was."""
_FAINT: Colour = (190, 190, 190)
_LINES = 3


def headline_height(unit: float) -> int:
    """In pixels; `unit` is how many times as large as in the smallest picture everything is."""
    return _LINES * line_height(0.62 * unit) + 2 * round(12 * unit)


def headline(width: int, facts: LayoutFacts, unit: float, colours: dict[str, Colour]) -> Picture:
    """A strip above the picture: what is shown, and what its colours mean."""
    strip = np.full((headline_height(unit), width, 3), GROUND, np.uint8)
    margin, step = round(12 * unit), line_height(0.62 * unit)
    what = f"{facts.video.name}  frame {facts.frame}, {clock(facts.seconds)}"
    size = size_for([plain(what), plain(_tiles(facts))], 0.62 * unit, width - 2 * margin)
    for number, (line, colour) in enumerate(((what, LETTERS), (_tiles(facts), _FAINT))):
        base = (margin, margin + (number + 1) * step - round(9 * 0.62 * unit))
        write_line(strip, plain(line), base, size, colour)
    base = (margin, margin + _LINES * step - round(9 * 0.62 * unit))
    _legend(strip, base, facts, unit, colours)
    return strip


def _tiles(facts: LayoutFacts) -> str:
    frames = f"frames {facts.frames.start}-{facts.frames.stop - 1}"
    segment = facts.segment
    if segment is None:
        return f"untiled, {frames}"
    shown = layout_in_display(segment.layout, facts.video.original.media)
    return (
        f"{shown}, {segment.profile}, {frames}, {human_bytes(segment.size)}, "
        f"from {segment.psnr:.1f} dB"
    )


def _legend(
    strip: Picture,
    base: tuple[int, int],
    facts: LayoutFacts,
    unit: float,
    colours: dict[str, Colour],
) -> None:
    """What the colours of the heat and of boxes mean; of many labels, those seen most."""
    gap, room = round(22 * unit), strip.shape[1] - 2 * base[0]
    heat, *labels = _entries(facts, colours)
    shown = len(labels)
    while True:
        size = 0.55 * unit
        entries = [heat, *labels[:shown]]
        if shown < len(labels):
            entries.append(("", (), f"and {len(labels) - shown} more labels"))
        while size > 0.38 * unit and _legend_width(entries, size, gap) > room:
            size *= 0.95
        if not shown or _legend_width(entries, size, gap) <= room:
            break
        shown -= 1
    x = base[0]
    for before, swatch, after in entries:
        if before:
            write_line(strip, before, (x, base[1]), size, _FAINT)
            x += text_width(before, size) + _pad(size)
        if swatch:
            _fill(strip, (x, base[1]), swatch, size)
            x += _swatch_length(swatch, size) + _pad(size)
        write_line(strip, after, (x, base[1]), size, _FAINT)
        x += text_width(after, size) + gap


def _fill(strip: Picture, base: tuple[int, int], swatch: Sequence[Colour], size: float) -> None:
    """Colours from left to right, as high as letters are."""
    x, middle, half = base[0], base[1] - round(size * 10), round(size * 9)
    room = strip[max(0, middle - half) : middle + half, x : x + _swatch_length(swatch, size)]
    room[...] = _stretched(swatch, _swatch_length(swatch, size))[: room.shape[1]]


_Entry = tuple[str, Sequence[Colour], str]
"""Text, colours (there may be none), and text behind them."""


def _entries(facts: LayoutFacts, colours: dict[str, Colour]) -> list[_Entry]:
    most = int(facts.heat.max())
    times = "read" if facts.reads == 1 else "reads"
    entries: list[_Entry] = []
    if most > 1:
        entries.append(("read once", RAMP, f"{most} times, of {facts.reads} {times}"))
    elif most:
        entries.append(("", RAMP[-1:], f"read once, of {facts.reads} {times}"))
    else:
        entries.append(("", (GROUND,), "never read"))
    here = facts.boxes.labels[facts.boxes.frames == facts.frame]
    seen = {label: int((facts.boxes.labels == label).sum()) for label in colours}
    for label in sorted(seen, key=lambda one: (-seen[one], one)):
        now = int((here == label).sum())
        entries.append(("", (colours[label],), f"{plain(label)} {now} of {seen[label]} boxes"))
    return entries


def _legend_width(entries: Sequence[_Entry], size: float, gap: int) -> int:
    total = 0
    for before, swatch, after in entries:
        total += text_width(before, size) + _pad(size) if before else 0
        total += _swatch_length(swatch, size) + _pad(size) if swatch else 0
        total += text_width(after, size) + gap
    return total - gap


def _swatch_length(swatch: Sequence[Colour], size: float) -> int:
    return round(size * (150 if len(swatch) > 1 else 30))


def _pad(size: float) -> int:
    return round(size * 14)


def _stretched(swatch: Sequence[Colour], length: int) -> Picture:
    """length x 3."""
    at, stops = np.linspace(0, 1, length), np.linspace(0, 1, len(swatch))
    parts = [np.interp(at, stops, [colour[part] for colour in swatch]) for part in range(3)]
    return np.stack(parts, axis=-1).astype(np.uint8)
