"""Files of moments: CSV, JSON as of ActivityNet, and WebVTT.

Times are exact decimals.  Written ones are rounded down, which leaves the frames between them the
same; `write_moments` checks that.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from reprlib import repr as shown
from typing import Any

from vfsd.core.frames import FrameTimes
from vfsd.core.moments import Moment
from vfsd.core.timebase import seconds
from vfsd.errors import UsageError

MOMENT_FORMATS = {"csv": ".csv", "activitynet": ".json", "webvtt": ".vtt"}
"""Endings of files by format."""

_DIGITS = {"csv": 6, "activitynet": 6, "webvtt": 3}
_COLUMNS = ("path", "start", "end", "label", "confidence", "source")
_MOST_BYTES = 1 << 28
_MOST_DIGITS = 40
_CUE = re.compile(r"(?:(\d{2,}):)?([0-5]\d):([0-5]\d\.\d{3})")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True, slots=True)
class FileMoment:
    """A moment in a file."""

    path: str | None  #: the video; None: the file does not say
    span: tuple[Fraction, Fraction]  #: seconds, the end exclusive
    label: str
    confidence: float | None = None
    source: str | None = None


def format_of_file(name: str, asked: str | None = None) -> str:
    """Return the format of a file name, or `asked`.  Raises `UsageError`."""
    if asked is not None:
        return asked
    ending = "." + name.rpartition(".")[2].lower()
    found = next((form for form, own in MOMENT_FORMATS.items() if own == ending), None)
    if found is None:
        known = ", ".join(MOMENT_FORMATS.values())
        raise UsageError(f"{name!r} must end in one of {known}", hint="or give --format")
    return found


def read_moments(data: bytes, form: str) -> list[FileMoment]:
    """Return the moments in a file of a format of `MOMENT_FORMATS`, in its order.

    Raises `UsageError` with the line or the entry that is malformed.
    """
    if len(data) > _MOST_BYTES:
        raise UsageError(f"a file of moments must have at most {_MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"byte {error.start} of the file is not UTF-8") from None
    read: dict[str, Callable[[str], list[FileMoment]]] = {
        "csv": _from_csv,
        "activitynet": _from_activitynet,
        "webvtt": _from_webvtt,
    }
    return read[form](text)


def write_moments(moments: Sequence[Moment], form: str, times: Callable[[str], FrameTimes]) -> str:
    """Return the text of a file of a format of `MOMENT_FORMATS`.

    WebVTT has no place for names and sources, and holds the moments of one video.  `times` returns
    those of a video by its name.  Raises `UsageError` where times of that precision would mean
    other frames.
    """
    rows = [_written(one, form, times(one.video)) for one in moments]
    if form == "csv":
        return _to_csv(rows)
    if form == "activitynet":
        return _to_activitynet(rows)
    if len({row.path for row in rows}) > 1:
        raise UsageError("a webvtt file holds the moments of one video", hint="write csv")
    return _to_webvtt(rows)


def _written(one: Moment, form: str, times: FrameTimes) -> FileMoment:
    scale = 10 ** _DIGITS[form]
    start, end = (Fraction(edge * scale // 1, scale) for edge in one.span)
    if start >= end or times.between(start, end) != one.frames:
        raise UsageError(
            f"frames {one.frames.start}-{one.frames.stop - 1} of {one.video!r} are too short for "
            f"the times of {form}, which have {_DIGITS[form]} decimals"
        )
    return FileMoment(one.video, (start, end), one.label, one.confidence, one.source.name)


# ------------------------------------------------------------------------------------------- CSV


def _from_csv(text: str) -> list[FileMoment]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, restkey="")
    found = []
    try:
        names = reader.fieldnames or ()
        missing = [name for name in ("start", "end", "label") if name not in names]
        if missing:
            raise UsageError(f"the file must have the columns start, end and label: {missing[0]}")
        for row in reader:
            where = f"line {reader.line_num}"
            if "" in row or None in row.values():
                raise UsageError(f"{where} must have {len(names)} fields")
            found.append(
                FileMoment(
                    row.get("path") or None,
                    _span(row["start"], row["end"], where),
                    _label(row["label"], where),
                    _confidence(row.get("confidence") or None, where),
                    row.get("source") or None,
                )
            )
    except csv.Error as error:
        raise UsageError(f"line {reader.line_num} is not CSV: {error}") from None
    return found


def _to_csv(rows: Iterable[FileMoment]) -> str:
    made = io.StringIO(newline="")
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in rows:
        confidence = "" if row.confidence is None else repr(row.confidence)
        edges = (_decimal(edge, _DIGITS["csv"]) for edge in row.span)
        writer.writerow([row.path, *edges, row.label, confidence, row.source])
    return made.getvalue()


# ----------------------------------------------------------------------------------- ActivityNet


def _from_activitynet(text: str) -> list[FileMoment]:
    try:
        # A float would round times.
        given = json.loads(text, parse_float=_json_number, parse_int=_json_number)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the file is not JSON: {error}") from None
    database = given.get("database", given) if isinstance(given, dict) else None
    if not isinstance(database, dict):
        raise UsageError('the file must have an object "database"')
    found = []
    for path, entry in database.items():
        annotations = entry.get("annotations") if isinstance(entry, dict) else None
        if not isinstance(annotations, list):
            raise UsageError(f'{shown(path)} must have a list "annotations"')
        for number, one in enumerate(annotations):
            where = f"annotation {number} of {shown(path)}"
            segment = one.get("segment") if isinstance(one, dict) else None
            if not isinstance(segment, list) or len(segment) != 2:
                raise UsageError(f'{where} must have a "segment" of two times')
            found.append(
                FileMoment(
                    path,
                    _span(segment[0], segment[1], where),
                    _label(one.get("label"), where),
                    _confidence(one.get("confidence", one.get("score")), where),
                    one["source"] if isinstance(one.get("source"), str) else None,
                )
            )
    return found


def _json_number(text: str) -> Fraction:
    """Raises `ValueError` for one whose digits would fill the memory."""
    if len(text) > _MOST_DIGITS or int(re.split("[eE]", f"{text}e0")[1]) > _MOST_DIGITS:
        raise ValueError(f"the number {shown(text)} is too long")
    return Fraction(text)


def _to_activitynet(rows: Iterable[FileMoment]) -> str:
    database: dict[str, Any] = {}
    for row in rows:
        assert row.path is not None
        annotation: dict[str, Any] = {"segment": [float(e) for e in row.span], "label": row.label}
        if row.confidence is not None:
            annotation["confidence"] = row.confidence
        annotation["source"] = row.source
        database.setdefault(row.path, {"annotations": []})["annotations"].append(annotation)
    return json.dumps({"version": "vfsd", "database": database}, indent=1) + "\n"


# ---------------------------------------------------------------------------------------- WebVTT


def _from_webvtt(text: str) -> list[FileMoment]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not re.match(r"WEBVTT(?:[ \t]|$)", lines[0]):
        raise UsageError("a webvtt file must begin with WEBVTT")
    found = []
    place = 0
    while place < len(lines):
        if "-->" not in lines[place]:
            place += 1
            continue
        where = f"line {place + 1}"
        start, _, rest = lines[place].partition("-->")
        end = (rest.split() or [""])[0]
        span = _span(_cue_time(start.strip(), where), _cue_time(end, where), where)
        place += 1
        body = []
        while place < len(lines) and lines[place].strip() and "-->" not in lines[place]:
            body.append(lines[place])
            place += 1
        label = _TAG.sub("", " ".join(body))
        for character, entity in reversed(_ENTITIES.items()):
            label = label.replace(entity, character)
        found.append(FileMoment(None, span, _label(label.strip(), where)))
    return found


def _cue_time(text: str, where: str) -> str:
    match = _CUE.fullmatch(text)
    if match is None:
        raise UsageError(f"{where}: times must be HH:MM:SS.mmm, got {shown(text)}")
    hours, minutes, rest = match.groups()
    return f"{hours or 0}:{minutes}:{rest}"


def _to_webvtt(rows: Iterable[FileMoment]) -> str:
    blocks = ["WEBVTT\n"]
    for row in rows:
        times = " --> ".join(map(_cue_text, row.span))
        label = "".join(_ENTITIES.get(character, character) for character in row.label)
        blocks.append(f"{times}\n{label}\n")
    return "\n".join(blocks)


def _cue_text(edge: Fraction) -> str:
    millis = int(edge * 1000)
    minutes, rest = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}.{rest % 1000:03}"


# ---------------------------------------------------------------------------------------- values


def _span(start: object, end: object, where: str) -> tuple[Fraction, Fraction]:
    found = []
    for edge in (start, end):
        try:
            if not isinstance(edge, str | Fraction):
                raise UsageError(f"got {shown(edge)}")
            found.append(seconds(edge))
        except UsageError as error:
            raise UsageError(f"{where}: times must be seconds: {error}") from None
    if not 0 <= found[0] < found[1]:
        raise UsageError(f"{where}: the end must be later than the start, got {start} to {end}")
    return found[0], found[1]


def _label(text: object, where: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{where} must have a label, got {shown(text)}")
    return text.strip()


def _confidence(text: object, where: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text)  # type: ignore[arg-type]  # the next lines refuse other types
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{where}: confidence must be a number, got {shown(text)}") from None


def _decimal(value: Fraction, digits: int) -> str:
    whole, part = divmod(int(value * 10**digits), 10**digits)
    return f"{whole}.{part:0{digits}}"
