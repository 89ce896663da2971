"""Layout files: the output of ``vfsd layout show --json``, or a list written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from vfsd.derive.tile_settings import PlannedSegment
from vfsd.errors import UsageError
from vfsd.tiling import TileLayout
from vfsd.validation import no_such_file

_REQUIRED = ("frames", "layout")
_TILES = "tiles"


def read_layout_file(
    path: Path,
    frames: int,
    as_layout: Callable[[str], TileLayout],
    known: Mapping[str, frozenset[str]],
) -> list[PlannedSegment]:
    """The segments in a file, for a video of `frames` frames.

    `known` has the allowed keys of the object ("show") and of each segment ("segment"). Raises
    `UsageError` with the wrong key or value, `NotFoundError`.
    """
    entries, allowed = _entries(path, known)
    planned: list[PlannedSegment] = []
    for number, entry in enumerate(entries):
        where = f"{path}: segment {number}"
        if not isinstance(entry, dict):
            raise UsageError(f'{where} must be an object with "frames" and "layout"')
        _check_keys(where, entry, allowed)
        for key in _REQUIRED:
            if key not in entry:
                raise UsageError(f'{where} has no "{key}"')
        layout = _layout(where, entry["layout"], as_layout)
        planned.append(
            PlannedSegment(
                _frames(where, entry["frames"], frames), layout, _tiles(where, entry, layout)
            )
        )
    planned.sort(key=lambda one: one.frames.start)
    for before, after in pairwise(planned):
        if after.frames.start < before.frames.stop:
            raise UsageError(f"{path}: frame {after.frames.start} is in two segments")
    return planned


def _entries(path: Path, known: Mapping[str, frozenset[str]]) -> tuple[list[Any], frozenset[str]]:
    """The segments, and the allowed keys of each."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise no_such_file(path) from None
    except (ValueError, RecursionError) as error:  # also for numbers with too many digits
        raise UsageError(
            f"{path} must be a JSON file: {error}", hint="write one with `vfsd layout show --json`"
        ) from error
    if isinstance(content, list):
        return content, frozenset((*_REQUIRED, _TILES))
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise UsageError(
            f'{path} must have a list "segments"', hint="write one with `vfsd layout show --json`"
        )
    _check_keys(str(path), content, known["show"])
    return content["segments"], known["segment"]


def _check_keys(where: str, entry: Mapping[str, Any], allowed: frozenset[str]) -> None:
    unknown = sorted(set(entry) - allowed)
    if unknown:
        raise UsageError(
            f"{where} has an unknown key {unknown[0]!r}",
            hint=f"known keys: {', '.join(sorted(allowed))}",
        )


def _frames(where: str, given: Any, frames: int) -> range:
    whole = isinstance(given, list) and len(given) == 2 and all(type(at) is int for at in given)
    if not whole:
        raise UsageError(f'"frames" of {where} must be [first, end], as in [0, 30], got {given!r}')
    first, end = given
    if not 0 <= first < end <= frames:
        raise UsageError(f'"frames" of {where} must be within 0 to {frames}, got {first} to {end}')
    return range(first, end)


def _layout(where: str, given: Any, as_layout: Callable[[str], TileLayout]) -> TileLayout:
    if not isinstance(given, str):
        raise UsageError(f'"layout" of {where} must be text, got {given!r}')
    try:
        return as_layout(given)
    except UsageError as error:
        raise UsageError(f"{where}: {error}", hint=error.hint) from error


def _tiles(where: str, entry: Mapping[str, Any], layout: TileLayout) -> tuple[int, ...] | None:
    """The numbers of the tiles to store, from numbers or from objects of `vfsd layout show`."""
    given = entry.get(_TILES)
    if given is None:
        return None
    entries = given if isinstance(given, list) else []
    numbers: list[Any] = [one.get("tile") if isinstance(one, dict) else one for one in entries]
    if not numbers or any(type(one) is not int for one in numbers):
        raise UsageError(
            f'"tiles" of {where} must be a list of numbers, got {given!r}',
            hint="leave it out to store all tiles",
        )
    wrong = [one for one in numbers if not 0 <= one < layout.count]
    if wrong:
        raise UsageError(
            f"tile numbers of {where} must be 0 to {layout.count - 1} for {layout}, got {wrong[0]}"
        )
    return tuple(numbers)
