"""Tracked objects in Frigate's database, as boxes of the videos of its cameras."""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from vfsd.api.video import Video
from vfsd.core.capture_time import NS
from vfsd.core.detections import Box, Detection, Source
from vfsd.errors import RefusedMediaError
from vfsd.validation import no_such_file

SOURCE = Source("frigate")
"""The source of the boxes."""

_MOMENTS = """
    SELECT t.camera, t.timestamp, t.source_id, t.class_type, t.data, e.label, e.sub_label, e.data
    FROM timeline t LEFT JOIN event e ON e.id = t.source_id
    WHERE t.source = 'tracked_object'
"""
_EVENTS = """
    SELECT e.camera, e.start_time, e.id, 'event', e.data, e.label, e.sub_label, e.data
    FROM event e WHERE NOT EXISTS (SELECT 1 FROM timeline t WHERE t.source_id = e.id)
"""


@dataclass(frozen=True, slots=True)
class FrigateMoment:
    """A tracked object at one time."""

    camera: str
    ns: int  #: Unix time
    event: str  #: Frigate's name of the object
    kind: str  #: visible, entered_zone, stationary, gone ...; event: only its start is known
    label: str
    sub_label: str | None
    score: float | None
    box: Box  #: x, y, width, height as parts of the frame
    zones: tuple[str, ...]


def frigate_moments(database: Path) -> Iterator[FrigateMoment]:
    """Yield the tracked objects in a database, at the times of their boxes.

    The database is only read, and Frigate may be using it.  Entries without a box (sounds, manual
    events) are left out.  Raises `RefusedMediaError` for another file, `NotFoundError`.
    """
    if not database.is_file():
        raise no_such_file(database)
    try:
        uri = f"{database.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as opened:
            for query in (_MOMENTS, _EVENTS):
                for row in opened.execute(query):
                    found = _moment(*row)
                    if found is not None:
                        yield found
    except sqlite3.DatabaseError as error:
        raise RefusedMediaError(f"{database} is not a database of Frigate: {error}") from error


def add_frigate_objects(
    videos: Iterable[tuple[str, Video]], moments: Iterable[FrigateMoment]
) -> dict[str, int]:
    """Store the moments in the videos that show them; return the number of boxes by video.

    `videos` are pairs of camera and video.  Earlier boxes of the source frigate are replaced, so
    an import can be repeated.
    """
    lines = defaultdict(list)
    for camera, video in videos:
        captured = video.info.captured
        if captured is not None:
            lines[camera].append((captured.ns, video))
    for line in lines.values():
        line.sort(key=lambda one: one[0])
    found: dict[str, list[Detection]] = defaultdict(list)
    known: dict[str, Video] = {}
    for moment in moments:
        line = lines.get(moment.camera, [])
        at = bisect_right(line, moment.ns, key=lambda one: one[0]) - 1
        if at < 0:
            continue
        start, video = line[at]
        passed = moment.ns - start
        if passed < video.duration * NS:
            known[video.name] = video
            found[video.name].append(_detection(video, moment, passed))
    return {
        name: known[name].labels.add(boxes, SOURCE, replace=True) for name, boxes in found.items()
    }


def _detection(video: Video, moment: FrigateMoment, passed_ns: int) -> Detection:
    x, y, width, height = moment.box
    box = (
        x * video.width,
        y * video.height,
        (x + width) * video.width,
        (y + height) * video.height,
    )
    attributes: dict[str, Any] = {"event": moment.event, "moment": moment.kind}
    if moment.sub_label:
        attributes["sub_label"] = moment.sub_label
    if moment.zones:
        attributes["zones"] = ",".join(moment.zones)
    # Frigate names objects by text; a track is a number.
    track = crc32(moment.event.encode())
    frame = video.index_at(passed_ns / NS)
    return Detection(frame, moment.label, box, moment.score, track, None, attributes)


def _moment(
    camera: str,
    timestamp: Any,
    event: str,
    kind: str,
    data: Any,
    label: str | None,
    sub_label: str | None,
    event_data: Any,
) -> FrigateMoment | None:
    """Return a row as a moment; None for one without a usable box."""
    own, whole = _dict(data), _dict(event_data)
    box, name = own.get("box"), own.get("label") or label
    try:
        x, y, width, height = (float(part) for part in box or ())
        ns = round(float(timestamp) * NS)
    except (TypeError, ValueError):
        return None
    # Databases of before 2023 have pixels of the stream for detection, whose size is not known.
    is_relative = 0 <= x < 1 and 0 <= y < 1 and 0 < width <= 1 and 0 < height <= 1
    if not is_relative or not name or not event:
        return None
    score = own.get("score") or whole.get("score") or whole.get("top_score")
    zones = own.get("zones") or ()
    return FrigateMoment(
        camera,
        ns,
        event,
        kind,
        str(name),
        _word(sub_label) or _word(own.get("sub_label")),
        float(score) if isinstance(score, (int, float)) else None,
        (x, y, width, height),
        tuple(str(zone) for zone in zones) if isinstance(zones, (list, tuple)) else (),
    )


def _word(value: Any) -> str | None:
    """Return a sub label; newer databases have it with a score."""
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return str(value) if value else None


def _dict(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, (str, bytes)) else text
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
