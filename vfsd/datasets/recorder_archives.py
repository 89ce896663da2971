"""Archives of other recorders: their files by link or copy, with times, and Frigate's objects.

    frigate     recordings/2026-05-01/10/CAMERA/05.30.mp4, in UTC; the start of the file
    mediamtx    CAMERA/2026-05-01_10-05-30-123456.mp4, and the time in the box mtxi
    viseron     CAMERA/2026-05-01/10:05:30.mp4, in UTC
    unifi       CAMERA/2026-05-01/2026-05-01T10-05-30 motion.mp4 of unifi-protect-backup; the end

The videos are ``CAMERA/2026-05-01/10-05-30.mp4``, in UTC, as those of `vfsd record`.
"""

from __future__ import annotations

import json
import re
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zlib import crc32

from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.inventory.mp4_boxes import mediamtx_start
from vfsd.core.capture_time import NS, CaptureClock, CaptureTime, from_ns, name_pattern
from vfsd.core.detections import Box, Detection, Source
from vfsd.errors import ExistsError, NotFoundError, RefusedMediaError
from vfsd.validation import no_such_file, not_one_of
from vfsd.write.ingest_file import SourceFile, is_ingested


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a recorder names its files."""

    path: re.Pattern[str]  #: of a file below the folder, with the group `camera`
    pattern: str  #: of the time, see `name_pattern`
    is_end: bool = False  #: the time is that of the end


_DAY, _VIDEO = r"\d{4}-\d\d-\d\d", r"\.(?:mp4|ts|mkv|mov)"
_LAYOUTS: Mapping[str, _Layout] = MappingProxyType(
    {
        "frigate": _Layout(
            re.compile(rf"(?:recordings/)?{_DAY}/\d\d/(?P<camera>[^/]+)/\d\d\.\d\d\.mp4"),
            "%Y-%m-%d/%H/*/%M.%S.mp4",
        ),
        "mediamtx": _Layout(
            re.compile(rf"(?P<camera>.+)/{_DAY}_\d\d-\d\d-\d\d-\d{{6}}{_VIDEO}"),
            "%Y-%m-%d_%H-%M-%S-%f",
        ),
        "viseron": _Layout(
            re.compile(rf"(?P<camera>.+)/{_DAY}/\d\d:\d\d:\d\d{_VIDEO}"), "%Y-%m-%d/%H:%M:%S"
        ),
        "unifi": _Layout(
            re.compile(rf"(?P<camera>.+)/{_DAY}/{_DAY}T\d\d-\d\d-\d\d [^/]*{_VIDEO}"),
            "%Y-%m-%dT%H-%M-%S",
            is_end=True,
        ),
    }
)
RECORDERS = tuple(_LAYOUTS)
"""The recorders whose archives can be imported."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of a recorder."""

    path: Path
    camera: str
    captured: CaptureTime  #: of the first frame; with `is_end`, of the end
    is_end: bool


@dataclass(frozen=True, slots=True)
class ArchiveOutcome:
    """The result for one file of an archive."""

    file: ArchivedFile
    video: Video | None  #: None: it was refused
    is_new: bool = False
    reason: str | None = None  #: why it was refused


def archived_files(
    folder: Path, recorder: str, zone: tzinfo = UTC, cameras: frozenset[str] = frozenset()
) -> Iterator[ArchivedFile]:
    """Yield the recordings below a folder by name; other files are left out.

    `zone` is the time zone of names.  With `cameras`, only theirs.  Raises `UsageError`.
    """
    if recorder not in _LAYOUTS:
        raise not_one_of("recorder", recorder, RECORDERS)
    layout = _LAYOUTS[recorder]
    find = name_pattern(layout.pattern, zone)
    for path in sorted(folder.rglob("*.*")):
        inside = path.relative_to(folder).as_posix()
        match = layout.path.fullmatch(inside)
        if match is None or not path.is_file() or path.is_symlink():
            continue
        if cameras and match["camera"] not in cameras:
            continue
        captured = find(inside)
        own = mediamtx_start(path) if recorder == "mediamtx" else None
        if own is not None:
            captured = CaptureTime(own, CaptureClock.CONTAINER)
        if captured is not None:
            yield ArchivedFile(path, match["camera"], captured, layout.is_end)


def import_archive(
    store: Store,
    files: Iterator[ArchivedFile],
    to: str = "",
    *,
    link: bool = True,
    on_file: Callable[[ArchiveOutcome], None] = lambda outcome: None,
) -> list[ArchiveOutcome]:
    """Add recordings to the directory `to` of a store; those that are there already are left alone.

    A file that is not a video, such as one that was cut off, is refused, as is one that began in
    the same second as another; the import continues.
    Raises `NotFoundError` if there is no recording.
    """
    found = []
    for file in files:
        outcome = _imported(store, file, to, link)
        found.append(outcome)
        on_file(outcome)
    if not found:
        raise NotFoundError(
            "the folder has no recordings with such names",
            hint="give the folder above those of the days (frigate) or of the cameras",
        )
    return found


def _imported(store: Store, file: ArchivedFile, to: str, link: bool) -> ArchiveOutcome:
    name = _name(file, to)
    source = SourceFile(file.path, name, file.path.stat().st_size)
    if is_ingested(store.parts, source):
        return ArchiveOutcome(file, store[name])
    try:
        video = store.ingest(file.path, name, link=link)
    except (ExistsError, RefusedMediaError, OSError) as error:
        return ArchiveOutcome(file, None, reason=str(error))
    captured = file.captured
    if file.is_end:
        captured = CaptureTime(captured.ns - round(video.duration * NS), captured.clock)
    with store.catalog.writing() as change:
        change.videos.set_captured(video.info.id, captured)
    return ArchiveOutcome(file, store[name], is_new=True)


def _name(file: ArchivedFile, to: str) -> str:
    started = from_ns(file.captured.ns)
    name = f"{file.camera}/{started:%Y-%m-%d}/{started:%H-%M-%S}{file.path.suffix}"
    return f"{to}/{name}" if to else name


# -- the objects of Frigate

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
