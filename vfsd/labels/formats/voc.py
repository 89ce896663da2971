"""Pascal VOC XML: a directory with a file for each frame, objects with ``xmin, ymin, xmax, ymax``.

Pixels count from 1 and the edges are inclusive: xmin 1 and xmax 10 are 0 to 10 here.  With a pixel
base of 0, the same box has xmin 0 and xmax 9.  The frame is the last number in the file's name or,
with `frame_from` order, the file's position.  Every file is an examined frame.  `difficult`,
`truncated`, `occluded`, `pose` and the entries of `attributes` are attributes.  Document types, and
with them entities, are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from vfsd.core.detections import Attributes, DetectionColumns, Examined
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
    examined_frames,
    files_by_frame,
    parse_decimal,
    parse_integer,
    scalar_text,
    scalar_value,
)
from vfsd.labels.formats.xml_file import parse_xml, require_picture_size

_FLAGS = ("difficult", "truncated", "occluded", "pose")


def read(
    path: Path, clip: LabeledVideo, options: LabelReadOptions, on_progress: Progress | None = None
) -> LabelFile:
    rows = LabelRows(clip, options, path, on_progress)
    files = files_by_frame(rows, ".xml")
    for done, (frame, file) in enumerate(files):
        inside = rows.for_file(file)
        root = parse_xml(inside)
        _require_voc(inside, root)
        require_picture_size(inside, root.find("size"))
        for number, one in enumerate(root.iterfind("object")):
            where = f"object {number + 1}"
            with inside.reading(where):
                _add(inside, where, frame, one)
        rows.skipped += inside.skipped
        if on_progress is not None:
            on_progress(done + 1, len(files))
    return rows.file(frame for frame, _ in files)


def _require_voc(rows: LabelRows, root: Element) -> None:
    if root.tag != "annotation":
        kind = "CVAT for video" if root.tag == "annotations" else "another format"
        raise rows.error(
            1,
            f"the root of Pascal VOC must be <annotation>, got <{root.tag[:40]}>",
            hint=f"this is {kind}; the format cvat reads CVAT for video",
        )


def _add(rows: LabelRows, where: str, frame: int, one: Element) -> None:
    base = 1 if rows.options.pixel_base is None else rows.options.pixel_base
    edges = [
        parse_decimal(_text(one, f"bndbox/{name}") or "")
        for name in ("xmin", "ymin", "xmax", "ymax")
    ]
    confidence, track = _text(one, "confidence"), _text(one, "track")
    rows.add(
        where,
        frame,
        _text(one, "name") or rows.options.label or "",
        (
            decimal_difference(edges[0], base),
            decimal_difference(edges[1], base),
            decimal_sum(decimal_difference(edges[2], base), 1),
            decimal_sum(decimal_difference(edges[3], base), 1),
        ),
        None if confidence is None else float(parse_decimal(confidence)),
        None if track is None else parse_integer(track),
        _attributes(one),
    )


def _attributes(one: Element) -> Attributes:
    found = {}
    for name in _FLAGS:
        text = _text(one, name)
        if text is not None:
            found[name] = scalar_value(text)
    for each in one.iterfind("attributes/attribute"):
        found[_text(each, "name") or ""] = scalar_value(each.findtext("value") or "")
    return found


def _text(one: Element, path: str) -> str | None:
    text = one.findtext(path)
    return text.strip() or None if text is not None else None


def write(
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: LabeledVideo,
    options: LabelWriteOptions,
) -> Iterator[tuple[str, Iterable[str]]]:
    rows = columns.sorted_by_frame()
    for frame in examined_frames(rows, examined).tolist():
        first, end = np.searchsorted(rows.frames, [frame, frame + 1]).tolist()
        name = f"{frame + (options.frame_base or 0):06}"
        yield f"{name}.xml", [_document(rows, range(first, end), name, clip, options)]


def _document(
    rows: DetectionColumns, which: range, name: str, clip: LabeledVideo, options: LabelWriteOptions
) -> str:
    base = 1 if options.pixel_base is None else options.pixel_base
    root = Element("annotation")
    SubElement(root, "filename").text = f"{name}.png"
    size = SubElement(root, "size")
    for key, value in (("width", clip.width), ("height", clip.height), ("depth", 3)):
        SubElement(size, key).text = str(value)
    for at in which:
        one = rows[at]
        each = SubElement(root, "object")
        SubElement(each, "name").text = one.label
        if one.confidence is not None:
            SubElement(each, "confidence").text = decimal_text(one.confidence)
        if one.track is not None:
            SubElement(each, "track").text = str(one.track)
        box = SubElement(each, "bndbox")
        x1, y1, x2, y2 = map(decimal_from_float, one.box)
        edges = (
            ("xmin", decimal_sum(x1, base)),
            ("ymin", decimal_sum(y1, base)),
            ("xmax", decimal_difference(decimal_sum(x2, base), 1)),
            ("ymax", decimal_difference(decimal_sum(y2, base), 1)),
        )
        for key, edge in edges:
            SubElement(box, key).text = decimal_text(edge)
        if one.attributes:
            listed = SubElement(each, "attributes")
            for key, value in one.attributes.items():
                attribute = SubElement(listed, "attribute")
                SubElement(attribute, "name").text = key
                SubElement(attribute, "value").text = scalar_text(value)
    return tostring(root, encoding="unicode") + "\n"
