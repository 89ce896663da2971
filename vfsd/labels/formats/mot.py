"""MOT Challenge text: ``frame, id, left, top, width, height[, confidence, class, visibility]``.

Frames and pixels count from 1.  Classes are numbers, named by `names` or by default as in MOT16 and
MOT17.  Files with 10 columns (detections) have no class; their label is `label`.  -1 means unknown.
A written file has a companion with the names of classes 1, 2 ... in its lines.  The companion of
a.txt is a.labels.txt, as files in one directory would otherwise share a labels.txt with different
classes.  Reading falls back to a labels.txt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from vfsd.core.detections import Attributes, DetectionColumns, Examined
from vfsd.errors import UsageError
from vfsd.labels.formats.label_file import (
    LabeledVideo,
    LabelFile,
    LabelReadOptions,
    LabelRows,
    LabelWriteOptions,
    Progress,
    decimal_difference,
    decimal_from_float,
    decimal_sum,
    decimal_text,
    lines_of,
    parse_decimal,
    parse_integer,
    read_names,
)

NAMES_FILE = "labels.txt"

CLASSES: Mapping[int, str] = MappingProxyType(
    {
        1: "pedestrian",
        2: "person on vehicle",
        3: "car",
        4: "bicycle",
        5: "motorbike",
        6: "non motorized vehicle",
        7: "static person",
        8: "distractor",
        9: "occluder",
        10: "occluder on the ground",
        11: "occluder full",
        12: "reflection",
        13: "crowd",
    }
)
_OWN_NAMES_SUFFIX = f".{NAMES_FILE}"
_UNKNOWN = "-1"


def read(
    path: Path, clip: LabeledVideo, options: LabelReadOptions, on_progress: Progress | None = None
) -> LabelFile:
    rows = LabelRows(clip, options, path, on_progress)
    names = _names(path, options)
    with closing(lines_of(path)) as lines:
        for where, line in lines:
            cells = [cell.strip() for cell in line.strip().rstrip(",").split(",")]
            if not 6 <= len(cells) <= 10:
                raise rows.error(where, f"a row must have 6 to 10 columns, got {len(cells)}")
            with rows.reading(where):
                _add(rows, where, cells, names)
            rows.report(where, 0)
    return rows.file()


def _names(path: Path, options: LabelReadOptions) -> Mapping[int, str]:
    if options.names is not None:
        return options.names
    for companion in (_companion_names(path), path.parent / NAMES_FILE):
        if companion.is_file() and companion != path:
            return {number + 1: name for number, name in read_names(companion).items()}
    return CLASSES


def names_file(path: Path) -> Path:
    """Return the path of the class names of an export.

    Raises `UsageError` if `path` itself has such a name: one file would overwrite the other.
    """
    if path.name == NAMES_FILE or path.name.endswith(_OWN_NAMES_SUFFIX):
        raise UsageError(
            f"{path.name} is reserved for class names",
            hint="use another name, for example boxes.txt",
        )
    return _companion_names(path)


def _companion_names(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".txt") + _OWN_NAMES_SUFFIX)


def _add(rows: LabelRows, where: int, cells: list[str], names: Mapping[int, str]) -> None:
    options = rows.options
    frame_base = 1 if options.frame_base is None else options.frame_base
    pixel_base = 1 if options.pixel_base is None else options.pixel_base
    x1, y1 = (decimal_difference(parse_decimal(cell), pixel_base) for cell in cells[2:4])
    width, height = map(parse_decimal, cells[4:6])
    label, attributes = options.label, {}
    if len(cells) in (8, 9) and cells[7] != _UNKNOWN:
        number = parse_integer(cells[7])
        label = names.get(number)
        if label is None:
            raise rows.error(
                where,
                f"class {number} has no name",
                hint="give class names in `names`, from class 1",
                command_hint="give class names with `--names FILE`, from class 1",
            )
    if len(cells) == 9 and cells[8] != _UNKNOWN:
        attributes["visibility"] = float(parse_decimal(cells[8]))
    if label is None:
        raise rows.error(
            where,
            "the box has no class",
            hint="give a label for such boxes in `label`",
            command_hint="give a label for such boxes with `--label NAME`",
        )
    rows.add(
        where,
        parse_integer(cells[0]) - frame_base,
        label,
        (x1, y1, decimal_sum(x1, width), decimal_sum(y1, height)),
        None if len(cells) < 7 or cells[6] == _UNKNOWN else float(parse_decimal(cells[6])),
        None if cells[1] in (_UNKNOWN, "-1.0") else parse_integer(cells[1]),
        attributes,
    )


def supports_attributes(attributes: Attributes) -> bool:
    """Return whether the format can hold all of them."""
    return all(key == "visibility" and _is_number(value) for key, value in attributes.items())


def write(
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: LabeledVideo,
    options: LabelWriteOptions,
) -> Iterator[tuple[str, Iterable[str]]]:
    names = sorted(set(columns.labels))
    yield "", _lines(columns, names, options)
    yield NAMES_FILE, (f"{name}\n" for name in names)


def _lines(
    columns: DetectionColumns, names: list[str], options: LabelWriteOptions
) -> Iterator[str]:
    frame_base = 1 if options.frame_base is None else options.frame_base
    pixel_base = 1 if options.pixel_base is None else options.pixel_base
    classes = {name: number for number, name in enumerate(names, 1)}
    for one in columns:
        x1, y1, x2, y2 = map(decimal_from_float, one.box)
        visibility = one.attributes.get("visibility")
        cells = [
            str(one.frame + frame_base),
            _UNKNOWN if one.track is None else str(one.track),
            *(decimal_text(decimal_sum(corner, pixel_base)) for corner in (x1, y1)),
            *(
                decimal_text(size)
                for size in (decimal_difference(x2, x1), decimal_difference(y2, y1))
            ),
            _known(one.confidence),
            str(classes[one.label]),
            _known(visibility if _is_number(visibility) else None),
        ]
        yield ",".join(cells) + "\n"


def _known(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    text = decimal_text(value)
    return text if text != _UNKNOWN else "-1.0"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
