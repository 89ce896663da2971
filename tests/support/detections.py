"""Detections for every format, within the limits of the format."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from hypothesis import strategies as st

from vfsd.core.detections import Detection, DetectionColumns, Examined, Source
from vfsd.labels import (
    LabeledVideo,
    LabelFile,
    LabelReadOptions,
    LabelWriteOptions,
    export_path,
    read_labels,
    write_labels,
)

CLIP = LabeledVideo("cam1/a.mp4", 957, 539, 40, lambda time: min(39, int(time * 25)))

_words = st.text(
    st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=12
).filter(lambda text: text.isprintable() and text == text.strip())
_coordinate = st.one_of(
    st.floats(-3000, 5000, allow_nan=False),
    st.integers(-100, 2000).map(float),
    st.decimals(-100, 2000, places=1).map(float),
)
_letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
"""Characters that every database can store."""
_values = st.one_of(
    st.none(),
    st.just("null"),
    st.text(_letters, max_size=8),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
)
FORMATS_THAT_HOLD = {
    "attributes": ("coco", "csv", "voc", "cvat"),
    "source": ("coco", "csv"),
    "parameters": ("coco",),
}


def sources(format: str) -> st.SearchStrategy[Source]:
    settings = st.dictionaries(st.text(_letters, max_size=4), _values, max_size=2)
    none: st.SearchStrategy[dict[str, object]] = st.just({})
    holds = format in FORMATS_THAT_HOLD["parameters"]
    return st.builds(Source, _words, st.just("m"), st.just(""), settings if holds else none)


@st.composite
def detections(draw: st.DrawFn, format: str) -> Detection:
    x1, x2 = sorted(draw(st.lists(_coordinate, min_size=2, max_size=2, unique=True)))
    y1, y2 = sorted(draw(st.lists(_coordinate, min_size=2, max_size=2, unique=True)))
    attributes = {}
    if format in FORMATS_THAT_HOLD["attributes"]:
        attributes = draw(st.dictionaries(_words, _values, max_size=3))
    if format == "mot" and draw(st.booleans()):
        attributes = {"visibility": draw(st.floats(0, 1))}
    return Detection(
        draw(st.integers(0, CLIP.frames - 1)),
        draw(_words.filter(lambda word: "\u2028" not in word)),
        (x1, y1, x2, y2),
        draw(st.none() | st.floats(-5, 5)),
        draw(st.none() | st.integers(0, 10**9)),
        draw(sources(format)) if format in FORMATS_THAT_HOLD["source"] else None,
        attributes,
    )


def files(format: str) -> st.SearchStrategy[tuple[list[Detection], list[Examined]]]:
    """Rows by frame, and frames that were examined."""
    rows = st.lists(detections(format), max_size=8)
    runs = st.integers(0, CLIP.frames - 1).map(lambda at: range(at, min(at + 3, CLIP.frames)))
    return st.tuples(
        rows.map(lambda found: sorted(found, key=lambda one: one.frame)),
        st.lists(st.builds(Examined, sources(format), runs), max_size=4),
    )


def write(
    place: Path,
    format: str,
    rows: Iterable[Detection],
    examined: list[Examined],
    options: LabelWriteOptions | None = None,
) -> Path:
    """Write an export; return the requested file or folder."""
    path = place / "labels"
    folder = format in ("yolo", "voc")
    if folder:
        path.mkdir()
    columns = DetectionColumns.from_detections(rows)
    for name, pieces in write_labels(format, columns, examined, CLIP, options):
        target = export_path(path, format, name)
        target.write_text("".join(pieces), encoding="utf-8", newline="")
    return path


def read(path: Path, format: str, **options: object) -> LabelFile:
    return read_labels(path, format, CLIP, LabelReadOptions(**options))  # type: ignore[arg-type]


def seconds(value: float) -> Fraction:
    return Fraction(str(value))
