"""The formats by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType

from vfsd.core.detections import DetectionColumns, Examined, Source
from vfsd.errors import UsageError
from vfsd.labels.formats import coco, csv, mot, voc, yolo
from vfsd.labels.formats.base import Clip, LabelFile, Labelled, Progress, ReadOptions, WriteOptions
from vfsd.validation import no_such_file

_MODULES: Mapping[str, ModuleType] = MappingProxyType(
    {"coco": coco, "mot": mot, "yolo": yolo, "voc": voc, "csv": csv}
)
FORMATS = tuple(_MODULES)

FOLDERS = ("yolo", "voc")
"""Those with a file for each frame."""

_ENDINGS: Mapping[str, str] = MappingProxyType({"mot": ".txt", "csv": ".csv"})
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
    clip: Clip,
    options: ReadOptions | None = None,
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
    found: LabelFile = _MODULES[format].read(path, clip, options or ReadOptions(), on_progress)
    return found


def write_labels(
    format: str,
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: Clip,
    options: WriteOptions | None = None,
) -> Iterator[tuple[str, Iterable[str]]]:
    """(name, pieces of text) of each file to be written.

    An empty name is the file that was asked for; `place_of` says where others belong.
    """
    made: Iterator[tuple[str, Iterable[str]]] = _MODULES[format].write(
        columns, examined, clip, options or WriteOptions()
    )
    return made


def write_dataset(
    format: str, videos: Sequence[Labelled], options: WriteOptions | None = None
) -> Iterator[tuple[str, Iterable[str]]]:
    """(path below the folder, pieces of text) of each file, for several videos.

    COCO is one file, with an empty path; other formats have a file or folder for each video, called
    after it.
    """
    if format == "coco":
        yield "", coco.write_dataset(videos, options or WriteOptions())
        return
    for one in videos:
        out = Path(one.clip.name if format in FOLDERS else one.clip.name + _ENDINGS[format])
        for name, pieces in write_labels(format, one.columns, one.examined, one.clip, options):
            yield str(place_of(out, format, name)), pieces


def place_of(out: Path, format: str, name: str) -> Path:
    """Where a file that `write_labels` names belongs in an export to `out`.

    In the folder `out`, or beside the file `out`, called after it: several exports may lie in one
    folder.  Raises `UsageError` where `out` itself is called as such a file is.
    """
    if format in FOLDERS:
        return out / name
    beside = mot.names_file(out) if format == "mot" else out
    return beside if name else out


def lost_in(format: str, columns: DetectionColumns, examined: Sequence[Examined] = ()) -> list[str]:
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
        return not all(map(mot.has_place_for, some))
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
