"""CVAT for video 1.1: XML with a track for each object, ``box frame xtl ytl xbr ybr``.

CVAT repeats the last box of a track until a box is marked as outside, so each run of boxes ends
with such a mark.  A box without a track is written as a track of one frame with a negative id.
Confidences are an attribute of that name.  Frames are those of the whole video, from 0.  Examined
frames, skeletons and other shapes are not kept.  `occluded` is an attribute if it is 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring
from xml.sax.saxutils import escape, quoteattr

from vfsd.core.detections import Attributes, Detection, DetectionColumns, Examined
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
    parse_decimal,
    parse_integer,
    scalar_text,
    scalar_value,
)
from vfsd.labels.formats.xml_file import parse_xml, require_picture_size

CONFIDENCE = "confidence"
_OCCLUDED = "occluded"
_EDGES = ("xtl", "ytl", "xbr", "ybr")


def read(
    path: Path, clip: LabeledVideo, options: LabelReadOptions, on_progress: Progress | None = None
) -> LabelFile:
    rows = LabelRows(clip, options, path, on_progress)
    root = parse_xml(rows)
    if root.tag != "annotations":
        raise rows.error(1, f"the root of CVAT must be <annotations>, got <{root.tag[:40]}>")
    if root.find("image") is not None:
        raise rows.error(
            1, "it is about images, not a video", hint="export as 'CVAT for video 1.1'"
        )
    require_picture_size(rows, root.find("meta/task/original_size"))
    tracks = root.findall("track")
    for done, track in enumerate(tracks, 1):
        for number, one in enumerate(track.iterfind("box"), 1):
            if one.get("outside") != "1":
                where = f"track {done}, box {number}"
                with rows.reading(where):
                    _add(rows, where, track, one)
        rows.report(done, len(tracks))
    return rows.file()


def _add(rows: LabelRows, where: str, track: Element, one: Element) -> None:
    if float(one.get("rotation") or 0):
        raise rows.error(where, "rotated boxes are not supported")
    attributes = {
        each.get("name") or "": scalar_value(each.text or "") for each in one.iterfind("attribute")
    }
    if one.get(_OCCLUDED) == "1":
        attributes.setdefault(_OCCLUDED, 1)
    confidence = attributes.pop(CONFIDENCE, None)
    number = parse_integer(track.get("id") or "-1")
    base = rows.options.pixel_base or 0
    x1, y1, x2, y2 = (
        decimal_difference(parse_decimal(one.get(edge) or ""), base) for edge in _EDGES
    )
    rows.add(
        where,
        parse_integer(one.get("frame") or "") - (rows.options.frame_base or 0),
        track.get("label") or rows.options.label or "",
        (x1, y1, x2, y2),
        None if confidence in (None, "") else float(parse_decimal(str(confidence))),
        None if number < 0 else number,
        attributes,
    )


def write(
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: LabeledVideo,
    options: LabelWriteOptions,
) -> Iterator[tuple[str, Iterable[str]]]:
    yield "", _document(columns.sorted_by_frame(), clip, options)


def tracks_of(rows: DetectionColumns) -> dict[tuple[int, str], list[Detection]]:
    """Return the boxes by (track, label); boxes without a track have negative ones."""
    found: dict[tuple[int, str], list[Detection]] = {}
    for at, row in enumerate(rows, 1):
        key = (-at if row.track is None else row.track, row.label)
        found.setdefault(key, []).append(row)
    return found


def _document(
    rows: DetectionColumns, clip: LabeledVideo, options: LabelWriteOptions
) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n  <version>1.1</version>\n'
    yield f"  {tostring(_meta(rows, clip), encoding='unicode')}\n"
    for (number, label), boxes in tracks_of(rows).items():
        yield f'  <track id="{number}" label={quoteattr(label)} source="file">\n'
        for at, one in enumerate(boxes):
            yield _box(one, one.frame, options, is_outside=False)
            follows = at + 1 < len(boxes) and boxes[at + 1].frame <= one.frame + 1
            if not follows and one.frame + 1 < clip.frames:
                yield _box(one, one.frame + 1, options, is_outside=True)
        yield "  </track>\n"
    yield "</annotations>\n"


def _meta(rows: DetectionColumns, clip: LabeledVideo) -> Element:
    """Describe the task: CVAT and others look up labels and attributes here."""
    meta = Element("meta")
    task = SubElement(meta, "task")
    for key, value in (
        ("name", clip.name),
        ("size", clip.frames),
        ("mode", "interpolation"),
        ("start_frame", 0),
        ("stop_frame", clip.frames - 1),
    ):
        SubElement(task, key).text = str(value)
    labels = SubElement(task, "labels")
    for name, keys in _attributes_of_labels(rows).items():
        label = SubElement(labels, "label")
        SubElement(label, "name").text = name
        SubElement(label, "type").text = "rectangle"
        listed = SubElement(label, "attributes")
        for key in keys:
            attribute = SubElement(listed, "attribute")
            for field, text in (
                ("name", key),
                ("mutable", "True"),
                ("input_type", "text"),
                ("default_value", ""),
                ("values", ""),
            ):
                SubElement(attribute, field).text = text
    size = SubElement(task, "original_size")
    SubElement(size, "width").text = str(clip.width)
    SubElement(size, "height").text = str(clip.height)
    SubElement(task, "source").text = clip.name
    return meta


def _attributes_of_labels(rows: DetectionColumns) -> Mapping[str, Sequence[str]]:
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        keys = found.setdefault(row.label, {})
        keys.update(dict.fromkeys(_texts(row)))
    return {name: list(keys) for name, keys in sorted(found.items())}


def _texts(one: Detection) -> Attributes:
    found = {key: scalar_text(v) for key, v in one.attributes.items() if key != CONFIDENCE}
    if one.confidence is not None:
        found[CONFIDENCE] = decimal_text(one.confidence)
    return found


def supports_attributes(attributes: Attributes) -> bool:
    """Return whether the format can hold these attributes."""
    return CONFIDENCE not in attributes and all(
        value is None or isinstance(value, (str, int, float)) for value in attributes.values()
    )


def _box(one: Detection, frame: int, options: LabelWriteOptions, *, is_outside: bool) -> str:
    base = options.pixel_base or 0
    edges = " ".join(
        f'{edge}="{decimal_text(decimal_sum(decimal_from_float(value), base))}"'
        for edge, value in zip(_EDGES, one.box, strict=True)
    )
    occluded = int(one.attributes.get(_OCCLUDED) in (1, True))
    opening = (
        f'    <box frame="{frame + (options.frame_base or 0)}" outside="{int(is_outside)}" '
        f'occluded="{occluded}" keyframe="1" {edges} z_order="0">'
    )
    attributes = "".join(
        f"<attribute name={quoteattr(key)}>{escape(str(text))}</attribute>"
        for key, text in _texts(one).items()
    )
    return f"{opening}{attributes}</box>\n"
