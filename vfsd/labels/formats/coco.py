"""COCO JSON: images, annotations with ``bbox: [x, y, width, height]``, and categories.

The frame of an image is its `frame_index` or `frame_id` (field), or else the last number in its
file_name (name).  `frame_from` selects one of these, the image's id, or its position in the list
(order).  Pixels count from 0 and may be fractional.  All images are examined frames.  The sources
that examined them are stored under our own key ``vfsd.examined``.  Scores, `track_id` and
`attributes` are kept, and `iscrowd` as an attribute if it is 1.  Masks and key points are dropped.
A bare list of results is accepted, too: its image ids are frames, and classes need names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from vfsd.core.detections import Detection, DetectionColumns, Examined, Source
from vfsd.errors import UsageError
from vfsd.labels.formats.label_file import (
    LabeledVideo,
    LabelExport,
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
    frame_of_name,
    parse_decimal,
    read_bytes,
)

# A COCO field, kept as an attribute if it is 1.
_CROWD = "iscrowd"

# Key of our extensions to COCO.
_EXTENSION_KEY = "vfsd"


def read(
    path: Path, clip: LabeledVideo, options: LabelReadOptions, on_progress: Progress | None = None
) -> LabelFile:
    rows = LabelRows(clip, options, path, on_progress)
    whole = _parsed(rows)
    bare = isinstance(whole, list)
    if bare:
        whole = {"annotations": whole}
    whole = _of_one_video(rows, whole)
    names = {**(options.names or {}), **_categories(rows, whole)}
    frames = _frames_of_images(rows, whole)
    annotations = _list_of(rows, whole, "annotations")
    for number, one in enumerate(annotations):
        where = f"annotations[{number}]"
        try:
            _add(rows, where, one, frames, names, bare=bare)
        except (ValueError, TypeError) as error:
            if isinstance(error, UsageError):
                raise
            raise rows.error(where, str(error)) from None
        rows.report(number + 1, len(annotations))
    return rows.file(None if bare else iter(frames.values()), _examined(rows, whole))


def _parsed(rows: LabelRows) -> Any:
    whole = parse_json(rows)
    if not isinstance(whole, (dict, list)):
        raise rows.error(1, "not COCO: the file must contain an object")
    if isinstance(whole, dict) and not {"images", "annotations"} & whole.keys():
        raise rows.error(
            1,
            "not COCO: it has neither images nor annotations",
            hint="export files of other programs as COCO first",
        )
    return whole


def parse_json(rows: LabelRows) -> Any:
    """Parse a file; numbers with a fraction are `Decimal`.  Raises `UsageError`."""
    try:
        return json.loads(
            read_bytes(rows.path), parse_float=parse_decimal, parse_constant=_constant
        )
    except json.JSONDecodeError as error:
        raise rows.error(error.lineno, f"invalid JSON: {error.msg}") from None
    except RecursionError:
        raise rows.error(1, "invalid JSON: it is nested too deeply") from None
    except ValueError as error:  # too many digits, or bytes that are not text
        what, _, _ = str(error).partition("; use sys.")  # advice for programmers
        raise rows.error("content", f"invalid JSON: {what}") from None


def _of_one_video(rows: LabelRows, whole: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a file about this video, if it names several; otherwise all of it."""
    ids = [
        one.get("id")
        for one in _list_of(rows, whole, "videos")
        if one.get("name") == rows.clip.name
    ]
    if len(ids) != 1:
        return whole
    images = [one for one in _list_of(rows, whole, "images") if one.get("video_id") == ids[0]]
    known = {one.get("id") for one in images}
    annotations = _list_of(rows, whole, "annotations")
    kept: dict[str, Any] = {
        "images": images,
        "annotations": [one for one in annotations if one.get("image_id") in known],
    }
    ours = whole.get(_EXTENSION_KEY)
    if isinstance(ours, dict) and isinstance(ours.get("examined"), list):
        examined = [
            one
            for one in ours["examined"]
            if not isinstance(one, dict) or one.get("video_id") in (None, ids[0])
        ]
        kept[_EXTENSION_KEY] = {**ours, "examined": examined}
    return {**whole, **kept}


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _list_of(rows: LabelRows, whole: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = whole.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise rows.error(key, f"{key} must be a list of objects")
    return found


def _key(rows: LabelRows, where: str, one: Mapping[str, Any], key: str) -> int:
    value = one.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise rows.error(where, f"{key} must be a whole number, got {value!r}")
    return value


def _categories(rows: LabelRows, whole: Mapping[str, Any]) -> dict[int, str]:
    """Return names by id.  Repeated categories are accepted: merged files have them."""
    found: dict[int, str] = {}
    for place, category in enumerate(_list_of(rows, whole, "categories")):
        where = f"categories[{place}]"
        number, name = _key(rows, where, category, "id"), category.get("name", "")
        if not isinstance(name, (str, int)) or isinstance(name, bool):
            raise rows.error(where, f"the name of a category must be text, got {name!r}")
        name = str(name)
        if found.setdefault(number, name) != name:
            raise rows.error(
                where,
                f"category {number} is {name!r} here and {found[number]!r} before",
                hint="give each category its own id",
            )
    return found


def _frames_of_images(rows: LabelRows, whole: Mapping[str, Any]) -> dict[int, int]:
    """Return frames by image id."""
    found: dict[int, int] = {}
    taken: set[int] = set()
    base = rows.options.frame_base or 0
    images = _list_of(rows, whole, "images")
    _require_one_video(rows, images)
    for place, image in enumerate(images):
        where = f"images[{place}]"
        number = _key(rows, where, image, "id")
        frame = _frame(rows, where, image, place + base) - base
        rows.require_frame(where, frame)
        if number in found or frame in taken:
            raise rows.error(where, f"another image has the same id or frame ({frame})")
        size = (image.get("width", rows.clip.width), image.get("height", rows.clip.height))
        if size != (rows.clip.width, rows.clip.height):
            raise rows.error(
                where,
                f"the image must have the size of the video, {rows.clip.width}x"
                f"{rows.clip.height}, got {size[0]}x{size[1]}",
                hint="scale the boxes to pixels of the video",
            )
        found[number] = frame
        taken.add(frame)
    return found


def _require_one_video(rows: LabelRows, images: Sequence[Mapping[str, Any]]) -> None:
    """Raises `UsageError` for images of several videos (COCO-VID): their frame numbers coincide."""
    known = None
    for place, image in enumerate(images):
        video = image.get("video_id")
        if known is None:
            known = video
        elif video not in (None, known):
            raise rows.error(
                f"images[{place}]",
                f"it belongs to video {video!r}, but others to {known!r}",
                hint="use one file per video, or a list `videos` with the names in the store",
            )


def _frame(rows: LabelRows, where: str, image: Mapping[str, Any], place: int) -> int:
    rule = rows.options.frame_from
    if rule == "order":
        return place
    if rule == "id":
        return _key(rows, where, image, "id")
    if rule in ("auto", "field"):
        for key in ("frame_index", "frame_id"):
            if key in image:
                return _key(rows, where, image, key)
    number = frame_of_name(str(image.get("file_name", ""))) if rule != "field" else None
    if number is None:
        raise rows.error(
            where,
            "its frame is unknown",
            hint='try frame_from="id" or frame_from="order"',
            command_hint="try `--frame-from id` or `--frame-from order`",
        )
    return number


def _add(
    rows: LabelRows,
    where: str,
    one: Mapping[str, Any],
    frames: Mapping[int, int],
    names: Mapping[int, str],
    *,
    bare: bool,
) -> None:
    image = _key(rows, where, one, "image_id")
    category = _key(rows, where, one, "category_id")
    frame = image - (rows.options.frame_base or 0) if bare else frames.get(image)
    if frame is None:
        raise rows.error(where, f"image {image} is not in the list `images`")
    if category not in names:
        raise rows.error(
            where,
            f"category {category} has no name",
            hint="give class names in `names`",
            command_hint="give class names with `--names FILE`",
        )
    bbox = one.get("bbox")
    if not isinstance(bbox, list) or len(bbox) != 4:
        raise rows.error(where, "bbox must be [x, y, width, height]")
    pixel_base = rows.options.pixel_base or 0
    x, y, width, height = (_number(value) for value in bbox)
    x, y = decimal_difference(x, pixel_base), decimal_difference(y, pixel_base)
    score = one.get("score")
    track = None if one.get("track_id") is None else _key(rows, where, one, "track_id")
    attributes = one.get("attributes") or {}
    if not isinstance(attributes, dict):
        raise rows.error(where, "attributes must be an object")
    if one.get(_CROWD):  # 0 is the usual value and means nothing
        if attributes.get(_CROWD, one[_CROWD]) != one[_CROWD]:
            raise rows.error(where, f"{_CROWD} differs between the field and the attribute")
        attributes = {**attributes, _CROWD: one[_CROWD]}
    rows.add(
        where,
        frame,
        names[category],
        (x, y, decimal_sum(x, width), decimal_sum(y, height)),
        None if score is None else float(_number(score)),
        track,
        {key: float(v) if isinstance(v, Decimal) else v for key, v in attributes.items()},
        _source(rows, where, one.get("source")),
    )


def _number(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        raise ValueError(f"must be a number, got {value!r}")
    return parse_decimal(str(value))


def _source(rows: LabelRows, where: str, value: object) -> Source | None:
    """Return the source of an annotation.  Raises `ValueError`, and `UsageError` with
    the position.
    """
    if not isinstance(value, dict):
        return None
    name, model, version = (str(value.get(key) or "") for key in ("name", "model", "version"))
    parameters = value.get("parameters")
    if not parameters:
        return rows.source(name, model, version)
    try:
        parameters = json.loads(json.dumps(parameters, default=float, allow_nan=False))
    except RecursionError:
        raise ValueError("parameters of a source must not be nested so deeply") from None
    try:
        return rows.source(name, model, version, parameters)
    except UsageError as error:
        raise rows.error(where, str(error), hint=error.hint) from None


def _examined(rows: LabelRows, whole: Mapping[str, Any]) -> tuple[Examined, ...] | None:
    """Return the examined frames of each source, if recorded and if frames are numbered
    likewise.
    """
    ours = whole.get(_EXTENSION_KEY)
    by_number = rows.options.frame_from in ("auto", "field", "name")
    if not isinstance(ours, dict) or not by_number:
        return None
    base = rows.options.frame_base or 0
    found = []
    for place, one in enumerate(_list_of(rows, ours, "examined")):
        where = f"{_EXTENSION_KEY}.examined[{place}]"
        with rows.reading(where):
            source, runs = _source(rows, where, one.get("source")), one.get("frames")
            if source is None or not isinstance(runs, list):
                raise ValueError("an item must have a source and frames")
            for run in runs:
                frames = _run(run, base)
                rows.require_frame(where, frames[0])
                rows.require_frame(where, frames[-1])
                found.append(Examined(source, frames))
    return tuple(found)


def _run(value: object, base: int) -> range:
    """Parse ``[first, end]``.  Raises `ValueError`."""
    if isinstance(value, list) and [type(one) for one in value] == [int, int]:
        first, end = value
        if first < end:
            return range(first - base, end - base)
    raise ValueError(f"frames must be [first, end), got {value!r}")


def _source_to_json(source: Source) -> dict[str, Any]:
    fields = source.record()
    return {**fields, "parameters": dict(source.parameters)} if source.parameters else fields


def write(
    columns: DetectionColumns,
    examined: Sequence[Examined],
    clip: LabeledVideo,
    options: LabelWriteOptions,
) -> Iterator[tuple[str, Iterable[str]]]:
    yield "", _text([_Numbered(None, 1, 1, LabelExport(columns, examined, clip))], options)


def write_dataset(
    videos: Sequence[LabelExport],
    options: LabelWriteOptions,
    chosen: Collection[str] | None = None,
) -> Iterator[str]:
    """Yield pieces of one file with several videos, distinguished by `videos` and `video_id`.

    With `chosen` it has the videos of these names alone.  All ids are then those of a file with
    all videos, so that the parts of a data set can be joined.
    """
    numbered, image, box = [], 1, 1
    for number, one in enumerate(videos, 1):
        if chosen is None or one.clip.name in chosen:
            numbered.append(_Numbered(number, image, box, one))
        image += one.clip.frames
        box += len(one.columns)
    return _text(numbered, options)


class _Numbered(NamedTuple):
    """A video with its ids in the file."""

    id: int | None  #: None: the only video of a file without a list of videos
    image: int  #: the id of frame 0
    box: int  #: the id of the first annotation
    export: LabelExport


def _text(videos: Sequence[_Numbered], options: LabelWriteOptions) -> Iterator[str]:
    names = options.classes
    if names is None:
        names = sorted({label for *_, one in videos for label in one.columns.labels})
    categories = {name: number for number, name in enumerate(names, 1)}
    description = ", ".join(one.clip.name for *_, one in videos)
    yield json.dumps({"info": {"description": description}})[:-1]
    if all(number is not None for number, *_ in videos):
        yield ', "videos": [\n'
        yield from joined(
            json.dumps(
                {
                    "id": number,
                    "name": one.clip.name,
                    "width": one.clip.width,
                    "height": one.clip.height,
                    "length": one.clip.frames,
                }
            )
            for number, _, _, one in videos
        )
        yield "]"
    yield ', "images": [\n'
    yield from joined(
        image for number, first, _, one in videos for image in _images(one, first, options, number)
    )
    yield '], "annotations": [\n'
    pixel_base = options.pixel_base or 0
    yield from joined(
        _annotation(number, row, first + row.frame, categories[row.label], pixel_base)
        for _, first, box, one in videos
        for number, row in enumerate(one.columns, box)
    )
    yield '], "categories": [\n'
    yield from joined(json.dumps({"id": categories[name], "name": name}) for name in names)
    yield f'], "{_EXTENSION_KEY}": {{"examined": [\n'
    base = options.frame_base or 0
    yield from joined(
        run for number, _, _, one in videos for run in _examined_to_json(one.examined, base, number)
    )
    yield "]}}\n"


def _images(
    one: LabelExport, first: int, options: LabelWriteOptions, video: int | None
) -> Iterator[str]:
    base, clip = options.frame_base or 0, one.clip
    folder = "" if video is None else f"{clip.name}/"
    frames = examined_frames(one.columns, one.examined) if one.frames is None else one.frames
    for frame in frames.tolist():
        image = {
            "id": first + frame,
            "file_name": f"{folder}{frame + base:06}.{options.picture}",
            "width": clip.width,
            "height": clip.height,
            "frame_index": frame + base,
        }
        yield json.dumps(image if video is None else {**image, "video_id": video})


def _examined_to_json(examined: Sequence[Examined], base: int, video: int | None) -> Iterator[str]:
    of_each: dict[Source, list[list[int]]] = {}
    for one in examined:
        run = [one.frames.start + base, one.frames.stop + base]
        of_each.setdefault(one.source, []).append(run)
    of_video = {} if video is None else {"video_id": video}
    return (
        json.dumps({"source": _source_to_json(source), "frames": runs, **of_video})
        for source, runs in of_each.items()
    )


def _annotation(number: int, one: Detection, image: int, category: int, pixel_base: int) -> str:
    x1, y1, x2, y2 = map(decimal_from_float, one.box)
    width, height = decimal_difference(x2, x1), decimal_difference(y2, y1)
    box = (decimal_sum(x1, pixel_base), decimal_sum(y1, pixel_base), width, height)
    known: dict[str, Any] = {"id": number, "image_id": image, "category_id": category}
    attributes = dict(one.attributes)
    crowd = _is_crowd(attributes.get(_CROWD))
    if crowd:
        del attributes[_CROWD]
    rest: dict[str, Any] = {"area": float(width) * float(height), _CROWD: int(crowd)}
    if one.confidence is not None:
        rest["score"] = one.confidence
    if one.track is not None:
        rest["track_id"] = one.track
    if attributes:
        rest["attributes"] = attributes
    if one.source is not None:
        rest["source"] = _source_to_json(one.source)
    # Formatted by hand: the json module cannot write Decimal.
    bbox = ", ".join(map(decimal_text, box))
    return f'{json.dumps(known)[:-1]}, "bbox": [{bbox}], {json.dumps(rest)[1:]}'


def _is_crowd(value: object) -> bool:
    """Return whether a value is what `read` stores for a crowd; other values stay attributes."""
    return value == 1 and isinstance(value, int) and not isinstance(value, bool)


def joined(items: Iterable[str]) -> Iterator[str]:
    """Yield the items of a JSON list, a line each."""
    separator = ""
    for item in items:
        yield separator + item
        separator = ",\n"
