"""Label formats by name: detects the format of a file, reads and writes it, and converts
`supervision.Detections`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from vfsd.core.detections import NO_TRACK, DetectionColumns, Examined, Source
from vfsd.errors import UsageError
from vfsd.labels.formats import coco, csv, mot, voc, yolo
from vfsd.labels.formats.label_file import (
    LabeledVideo,
    LabelExport,
    LabelFile,
    LabelReadOptions,
    LabelWriteOptions,
    Progress,
)
from vfsd.validation import no_such_file

_MODULES: Mapping[str, ModuleType] = MappingProxyType(
    {"coco": coco, "mot": mot, "yolo": yolo, "voc": voc, "csv": csv}
)
FORMATS = tuple(_MODULES)

FOLDERS = ("yolo", "voc")
"""Those with a file for each frame."""

_EXPORT_SUFFIXES: Mapping[str, str] = MappingProxyType({"mot": ".txt", "csv": ".csv"})
"""Of the file of one video in an export of several."""

_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {".json": "coco", ".csv": "csv", ".txt": "mot", ".xml": "voc"}
)


def format_of(path: Path) -> str:
    """What a file looks like by its name, a folder by what is in it.  Raises `UsageError`."""
    if path.is_dir():
        suffixes = {child.suffix.lower() for child in path.iterdir()}
        for suffix, name in ((".xml", "voc"), (".txt", "yolo")):
            if suffix in suffixes:
                return name
        if not suffixes:
            return "voc"  # without boxes, which in yolo have their classes.txt all the same
    elif path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    raise UsageError(
        f"{path} does not tell its format by its name",
        hint=f"say which it is: {', '.join(FORMATS)}",
    )


def read_labels(
    path: Path,
    format: str,
    clip: LabeledVideo,
    options: LabelReadOptions | None = None,
    *,
    on_progress: Progress | None = None,
) -> LabelFile:
    """What a file, or a folder of files, says of a video.

    `on_progress` is told (rows or files done, of how many; 0: not known), and may raise to give up.
    Raises `UsageError` that names the file and the place in it, `NotFoundError`.
    """
    if not path.exists():
        raise no_such_file(path)
    if path.is_dir() and format not in FOLDERS:
        raise UsageError(f"{path} is a folder; {format} is a single file")
    found: LabelFile = _MODULES[format].read(path, clip, options or LabelReadOptions(), on_progress)
    return found


def write_labels(
    format: str,
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: LabeledVideo,
    options: LabelWriteOptions | None = None,
) -> Iterator[tuple[str, Iterable[str]]]:
    """(name, pieces of text) of each file to be written.

    An empty name is the file that was asked for; `place_of` says where others belong.
    """
    made: Iterator[tuple[str, Iterable[str]]] = _MODULES[format].write(
        columns, examined, clip, options or LabelWriteOptions()
    )
    return made


def write_dataset(
    format: str, videos: Sequence[LabelExport], options: LabelWriteOptions | None = None
) -> Iterator[tuple[str, Iterable[str]]]:
    """(path below the folder, pieces of text) of each file, for several videos.

    COCO is one file, with an empty path; other formats have a file or folder for each video, called
    after it.
    """
    if format == "coco":
        yield "", coco.write_dataset(videos, options or LabelWriteOptions())
        return
    for one in videos:
        out = Path(one.clip.name if format in FOLDERS else one.clip.name + _EXPORT_SUFFIXES[format])
        for name, pieces in write_labels(format, one.columns, one.examined, one.clip, options):
            yield str(export_path(out, format, name)), pieces


def export_path(out: Path, format: str, name: str) -> Path:
    """Where a file that `write_labels` names belongs in an export to `out`.

    In the folder `out`, or beside the file `out`, called after it: several exports may lie in one
    folder.  Raises `UsageError` where `out` itself is called as such a file is.
    """
    if format in FOLDERS:
        return out / name
    beside = mot.names_file(out) if format == "mot" else out
    return beside if name else out


def unsupported_content(
    format: str, columns: DetectionColumns, examined: Sequence[Examined] = ()
) -> list[str]:
    """What of these rows, and of what their sources have examined, the format has no place for."""
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
    return format == "yolo" and bool(some)


def _loses_examined(format: str, columns: DetectionColumns, examined: Sequence[Examined]) -> bool:
    """A folder tells which frames were examined, but not by whom."""
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
    """What was found on one frame; join several with `DetectionColumns.concat`.

    Labels are `data["class_name"]` where it is there, else `names` by `class_id`.  The package
    itself is not needed.  Raises `UsageError` where there is no name for a class.
    """
    boxes = np.asarray(detections.xyxy, dtype=np.float64).reshape(-1, 4)
    count = len(boxes)
    said = (getattr(detections, "data", None) or {}).get("class_name")
    tracks = getattr(detections, "tracker_id", None)
    return DetectionColumns.of(
        np.full(count, frame, dtype=np.int64),
        [str(name) for name in said]
        if said is not None
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
            "the detections do not tell the names of their classes",
            hint='give names=[...], or detections with data["class_name"]',
        )
    try:
        return [names[int(number)] for number in numbers]
    except LookupError as error:
        raise UsageError(f"class {error} has no name") from None
