"""Label Studio tasks: JSON with a ``videorectangle`` for each object, boxes in per cent.

Frames count from 1.  A box of a sequence is a key frame.  Label Studio interpolates to the next one
while it is `enabled`, and shows the last one to the end of the video; so does `read`.  The task is
chosen by `data.name`, or is the only one.  Annotations come before predictions.  Confidences are
kept in the sequence, the track or its absence in `meta`.  Attributes and examined frames are not
kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vfsd.core.detections import Detection, DetectionColumns, Examined
from vfsd.labels.formats.coco import joined, parse_json
from vfsd.labels.formats.cvat import tracks_of
from vfsd.labels.formats.label_file import (
    EXACT_CONTEXT,
    LabeledVideo,
    LabelExport,
    LabelFile,
    LabelReadOptions,
    LabelRows,
    LabelWriteOptions,
    Progress,
    decimal_difference,
    decimal_from_float,
    decimal_text,
    parse_decimal,
)

TYPE = "videorectangle"
_DIGITS = (17, 25, 50, 120, 380)
_EDGES = ("x", "y", "width", "height")
# The URL of a file below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT, which is the mount here.
_LOCAL_FILES = "/data/local-files/?d="

_Key = tuple[int, tuple[Decimal, ...], bool, float | None]
"""Frame, shares in per cent, whether it lasts to the next key frame, and confidence."""


def read(
    path: Path, clip: LabeledVideo, options: LabelReadOptions, on_progress: Progress | None = None
) -> LabelFile:
    rows = LabelRows(clip, options, path, on_progress)
    results = _results(rows, _task(rows, parse_json(rows)))
    for number, one in enumerate(results, 1):
        where = f"result {number}"
        with rows.reading(where):
            try:
                _add(rows, where, number, one)
            except (TypeError, AttributeError, KeyError) as error:
                raise rows.error(where, f"not a {TYPE}: {error}") from None
        rows.report(number, len(results))
    return rows.file()


def _task(rows: LabelRows, whole: Any) -> Mapping[str, Any]:
    tasks = whole if isinstance(whole, list) else [whole]
    tasks = [one for one in tasks if isinstance(one, dict) and isinstance(one.get("data"), dict)]
    named = [one for one in tasks if one["data"].get("name") == rows.clip.name]
    if len(named or tasks) != 1:
        raise rows.error(
            "tasks",
            f"one must have data.name {rows.clip.name!r}, or be the only one; got {len(tasks)}",
        )
    found: Mapping[str, Any] = (named or tasks)[0]
    return found


def _results(rows: LabelRows, task: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the results of the last annotation, or without one of all predictions."""
    done = [one for one in _list(rows, task, "annotations") if not one.get("was_cancelled")]
    answers = done[-1:] or _list(rows, task, "predictions")
    results = [one for answer in answers for one in _list(rows, answer, "result")]
    return [one for one in results if one.get("type") == TYPE]


def _list(rows: LabelRows, one: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = one.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise rows.error(key, f"{key} must be a list of objects")
    return found


def _add(rows: LabelRows, where: str, number: int, one: Mapping[str, Any]) -> None:
    value, meta = one["value"], one.get("meta") or {}
    counted = value.get("framesCount", rows.clip.frames)
    if counted != rows.clip.frames:
        raise rows.error(
            where,
            f"framesCount must be {rows.clip.frames}, got {counted}",
            hint="the player counts by a fixed rate: annotate a view such as NAME@/fps=25.mp4",
        )
    labels = value.get("labels") or [rows.options.label or ""]
    track = meta.get("track", number)
    base = 1 if rows.options.frame_base is None else rows.options.frame_base
    keys = [_key(one, base) for one in value["sequence"]]
    for frame, shares, confidence in _each_frame(sorted(keys, key=lambda key: key[0]), rows.clip):
        x1, x2 = _edges(shares[0], shares[2], rows.clip.width)
        y1, y2 = _edges(shares[1], shares[3], rows.clip.height)
        box = (
            decimal_from_float(x1),
            decimal_from_float(y1),
            decimal_from_float(x2),
            decimal_from_float(y2),
        )
        for label in labels:
            rows.add(where, frame, label, box, confidence, track)


def _key(one: Mapping[str, Any], base: int) -> _Key:
    frame, confidence = one["frame"], one.get("confidence")
    if not isinstance(frame, int) or isinstance(frame, bool):
        raise ValueError(f"frame must be a whole number, got {frame!r}")
    if one.get("rotation"):
        raise ValueError("rotated boxes are not supported")
    shares = tuple(parse_decimal(str(one[edge])) for edge in _EDGES)
    if max(map(abs, shares)) > 10**8:
        raise ValueError("a box must be in per cent of the picture")
    return (
        frame - base,
        shares,
        bool(one.get("enabled", True)),
        None if confidence is None else float(parse_decimal(str(confidence))),
    )


def _each_frame(
    keys: Sequence[_Key], clip: LabeledVideo
) -> Iterator[tuple[int, tuple[Decimal, ...], float | None]]:
    """Yield a box for each frame on which Label Studio shows one."""
    for one, after in pairwise(keys):
        yield one[0], one[1], one[3]
        count = after[0] - one[0]
        for step in range(1, min(count, clip.frames) if one[2] else 1):
            share = Decimal(step) / count
            yield (
                one[0] + step,
                tuple(a + (b - a) * share for a, b in zip(one[1], after[1], strict=True)),
                None,
            )
    if keys:
        frame, shares, lasts, confidence = keys[-1]
        yield frame, shares, confidence
        for later in range(frame + 1, clip.frames if lasts else 0):
            yield later, shares, None


def _edges(first: Decimal, extent: Decimal, size: int) -> tuple[float, float]:
    """Return two edges in pixels, computed exactly and rounded once."""
    end = EXACT_CONTEXT.add(first, extent)
    return tuple(  # type: ignore[return-value]
        float(Fraction(EXACT_CONTEXT.multiply(edge, Decimal(size))) / 100) for edge in (first, end)
    )


def write(
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: LabeledVideo,
    options: LabelWriteOptions,
) -> Iterator[tuple[str, Iterable[str]]]:
    yield "", write_dataset([LabelExport(columns, examined, clip)], options)


def write_dataset(videos: Sequence[LabelExport], options: LabelWriteOptions) -> Iterator[str]:
    """Yield pieces of one file with a task for each video."""
    yield "[\n"
    yield from joined("".join(_task_text(one, options)) for one in videos)
    yield "]\n"


def _task_text(one: LabelExport, options: LabelWriteOptions) -> Iterator[str]:
    clip = one.clip
    prefix = _LOCAL_FILES if options.url is None else options.url
    data = {"video": prefix + quote(clip.name), "name": clip.name}
    version = ", ".join(map(str, one.columns.sources))
    yield f'{{"data": {json.dumps(data)}, "predictions": [{{'
    yield f'"model_version": {json.dumps(version)}, "result": [\n'
    yield from joined(
        _result(number, label, boxes, clip, options)
        for (number, label), boxes in tracks_of(one.columns.sorted_by_frame()).items()
    )
    yield "]}]}"


def _result(
    number: int,
    label: str,
    boxes: Sequence[Detection],
    clip: LabeledVideo,
    options: LabelWriteOptions,
) -> str:
    head = {
        "id": f"{number} {label}",
        "type": TYPE,
        "from_name": "box",
        "to_name": "video",
        "meta": {"track": None if number < 0 else number},
    }
    base = 1 if options.frame_base is None else options.frame_base
    followed = [b.frame <= a.frame + 1 for a, b in pairwise(boxes)]
    followed.append(boxes[-1].frame + 1 == clip.frames)
    sequence = ", ".join(
        _keyframe(one, lasts, clip, base) for one, lasts in zip(boxes, followed, strict=True)
    )
    value = {"framesCount": clip.frames, "duration": float(clip.duration), "labels": [label]}
    return (
        f'{json.dumps(head)[:-1]}, "value": {json.dumps(value)[:-1]}, "sequence": [{sequence}]}}}}'
    )


def _keyframe(one: Detection, lasts: bool, clip: LabeledVideo, base: int) -> str:
    x1, y1, x2, y2 = one.box
    x, width = _shares(x1, x2, clip.width)
    y, height = _shares(y1, y2, clip.height)
    rest: dict[str, Any] = {
        "frame": one.frame + base,
        "time": float(clip.duration * one.frame / max(1, clip.frames)),
        "enabled": lasts,
        "rotation": 0,
    }
    if one.confidence is not None:
        rest["confidence"] = one.confidence
    # Formatted by hand: the json module cannot write Decimal.
    shares = ", ".join(
        f'"{edge}": {text}' for edge, text in zip(_EDGES, (x, y, width, height), strict=True)
    )
    return f"{json.dumps(rest)[:-1]}, {shares}}}"


def _shares(low: float, high: float, size: int) -> tuple[str, str]:
    """Return an edge and an extent in per cent, with enough digits to give the edges back."""
    start = decimal_from_float(low)
    extent = decimal_difference(decimal_from_float(high), start)
    for digits in _DIGITS:
        context = Context(prec=digits)
        first = context.divide(EXACT_CONTEXT.multiply(start, Decimal(100)), Decimal(size))
        share = context.divide(EXACT_CONTEXT.multiply(extent, Decimal(100)), Decimal(size))
        if _edges(first, share, size) == (low, high):
            break
    return decimal_text(first), decimal_text(share)
