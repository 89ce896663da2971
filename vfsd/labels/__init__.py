"""Reads and writes label files of other programs; independent of stores.

Internally, frames count from 0 and boxes are ``x1, y1, x2, y2``, the second corner exclusive.
Arithmetic is decimal, so a box that is written and read again is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from vfsd.core.detections import NO_TRACK, DetectionColumns, Examined, Source
from vfsd.errors import UsageError
from vfsd.labels.formats import coco, csv, cvat, label_studio, mot, voc, yolo
from vfsd.labels.formats.label_file import (
    LabeledVideo,
    LabelExport,
    LabelFile,
    LabelReadOptions,
    LabelWriteOptions,
    Progress,
    examined_frames,
    names_for,
)
from vfsd.validation import no_such_file

__all__ = [
    "FORMATS",
    "LabelExport",
    "LabelFile",
    "LabelReadOptions",
    "LabelWriteOptions",
    "LabeledVideo",
    "examined_frames",
    "export_path",
    "format_of",
    "from_supervision",
    "names_for",
    "read_labels",
    "unsupported_content",
    "write_dataset",
    "write_labels",
]


_MODULES: Mapping[str, ModuleType] = MappingProxyType(
    {
        "coco": coco,
        "mot": mot,
        "yolo": yolo,
        "voc": voc,
        "csv": csv,
        "cvat": cvat,
        "label-studio": label_studio,
    }
)
FORMATS = tuple(_MODULES)

FOLDERS = ("yolo", "voc")
"""Formats with one file per frame."""

SINGLE_FILES = ("coco", "label-studio")
"""Formats with one file for several videos."""

# Suffix of the file of one video in an export of several.
_EXPORT_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {"mot": ".txt", "csv": ".csv", "cvat": ".xml"}
)

_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {".json": "coco", ".csv": "csv", ".txt": "mot", ".xml": "voc"}
)


def format_of(path: Path) -> str:
    """Return the format of a file or a directory by its names; of XML and JSON also by its start.

    Raises `UsageError`.
    """
    if path.is_dir():
        suffixes = {child.suffix.lower() for child in path.iterdir()}
        for suffix, name in ((".xml", "voc"), (".txt", "yolo")):
            if suffix in suffixes:
                return name
        if not suffixes:
            return "voc"  # an export without boxes; in yolo there would be a classes.txt
    elif path.suffix.lower() in _SUFFIXES:
        found = _SUFFIXES[path.suffix.lower()]
        start = b""
        if found in ("voc", "coco") and path.is_file():
            with path.open("rb") as file:
                start = file.read(4096)
        if found == "voc" and b"<annotations>" in start:
            return "cvat"
        if found == "coco" and start.lstrip().startswith(b"[") and b'"data"' in start:
            return "label-studio"
        return found
    raise UsageError(
        f"the name of {path} does not show its format",
        hint=f"give the format: {', '.join(FORMATS)}",
    )


def read_labels(
    path: Path,
    format: str,
    clip: LabeledVideo,
    options: LabelReadOptions | None = None,
    *,
    on_progress: Progress | None = None,
) -> LabelFile:
    """Read the labels of a video from a file, or from a directory of files.

    Raises `UsageError` with the file and the position in it, and `NotFoundError`.

    Args:
        path: The file or directory.
        format: One of `FORMATS`.
        clip: The video that the labels belong to.
        options: Details that the file does not contain.
        on_progress: Called with (rows or files done, total; 0: unknown); may raise to cancel.
    """
    if not path.exists():
        raise no_such_file(path)
    if path.is_dir() and format not in FOLDERS:
        raise UsageError(f"{format} must be a single file, but {path} is a directory")
    found: LabelFile = _MODULES[format].read(path, clip, options or LabelReadOptions(), on_progress)
    return found


def write_labels(
    format: str,
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: LabeledVideo,
    options: LabelWriteOptions | None = None,
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield (name, pieces of text) for each file to write.

    An empty name means the requested file; `export_path` returns the path of the others.
    """
    made: Iterator[tuple[str, Iterable[str]]] = _MODULES[format].write(
        columns, examined, clip, options or LabelWriteOptions()
    )
    return made


def write_dataset(
    format: str, videos: Sequence[LabelExport], options: LabelWriteOptions | None = None
) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield (path below the directory, pieces of text) for each file, for several videos.

    COCO and Label Studio are one file with an empty path.  Other formats have a file or directory
    for each video, named after it.
    """
    if format in SINGLE_FILES:
        yield "", _MODULES[format].write_dataset(videos, options or LabelWriteOptions())
        return
    for one in videos:
        out = Path(one.clip.name if format in FOLDERS else one.clip.name + _EXPORT_SUFFIXES[format])
        for name, pieces in write_labels(format, one.columns, one.examined, one.clip, options):
            yield str(export_path(out, format, name)), pieces


def export_path(out: Path, format: str, name: str) -> Path:
    """Return the path of a file from `write_labels` in an export to `out`.

    It is in the directory `out`, or next to the file `out` under a similar name, so that several
    exports can share a directory.  Raises `UsageError` if `out` itself has such a name.
    """
    if format in FOLDERS:
        return out / name
    companion = mot.names_file(out) if format == "mot" else out
    return companion if name else out


def unsupported_content(
    format: str, columns: DetectionColumns, examined: Sequence[Examined] = ()
) -> list[str]:
    """Return the kinds of content, in these rows and examined frames, that the format
    cannot hold.
    """
    lost = []
    if _loses_attributes(format, columns):
        lost.append("attributes")
    if format == "coco":
        return lost
    if format != "csv" and len(columns.sources) > 1:
        lost.append("sources")
    if any(source.parameters for source in columns.sources):
        lost.append("parameters of sources")
    if _loses_examined(format, columns, examined):
        lost.append("examined frames")
    return lost


def _loses_attributes(format: str, columns: DetectionColumns) -> bool:
    some = [row for row in columns.attributes or () if row]
    if format == "mot":
        return not all(map(mot.supports_attributes, some))
    if format == "cvat":
        return not all(map(cvat.supports_attributes, some))
    return format in ("yolo", "label-studio") and bool(some)


def _loses_examined(format: str, columns: DetectionColumns, examined: Sequence[Examined]) -> bool:
    """Return whether the format loses the sources of examined frames."""
    if format not in FOLDERS:
        return bool(examined)
    of_each: dict[Source, set[int]] = {source: set() for source in columns.sources}
    for one in examined:
        of_each.setdefault(one.source, set()).update(one.frames)
    first, *others = of_each.values() or [set()]
    return any(frames != first for frames in others)


def from_supervision(
    detections: Any, frame: int, names: Sequence[str] | Mapping[int, str] | None = None
) -> DetectionColumns:
    """Convert the detections on one frame; join several with `DetectionColumns.concat`.

    Labels are `data["class_name"]` if present, or `names` by `class_id`.  The package itself is not
    needed.  Raises `UsageError` for a class without a name.
    """
    boxes = np.asarray(detections.xyxy, dtype=np.float64).reshape(-1, 4)
    count = len(boxes)
    class_names = (getattr(detections, "data", None) or {}).get("class_name")
    tracks = getattr(detections, "tracker_id", None)
    return DetectionColumns.of(
        np.full(count, frame, dtype=np.int64),
        [str(name) for name in class_names]
        if class_names is not None
        else _supervision_labels(detections, count, names),
        boxes,
        getattr(detections, "confidence", None),
        None if tracks is None else [NO_TRACK if track is None else int(track) for track in tracks],
    )


def _supervision_labels(
    detections: Any, count: int, names: Sequence[str] | Mapping[int, str] | None
) -> list[str]:
    numbers = getattr(detections, "class_id", None)
    if not count:
        return []
    if numbers is None or names is None:
        raise UsageError(
            "the detections have no class names",
            hint='give names=[...], or detections with data["class_name"]',
        )
    try:
        return [names[int(number)] for number in numbers]
    except LookupError as error:
        raise UsageError(f"class {error} has no name") from None
