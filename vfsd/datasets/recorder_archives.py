"""Archives of other recorders: their files by link or copy, with times, and Frigate's objects.

    frigate     recordings/2026-05-01/10/CAMERA/05.30.mp4, in UTC; the start of the file
    mediamtx    CAMERA/2026-05-01_10-05-30-123456.mp4, and the time in the box mtxi
    viseron     CAMERA/2026-05-01/10:05:30.mp4, in UTC
    unifi       CAMERA/2026-05-01/2026-05-01T10-05-30 motion.mp4 of unifi-protect-backup; the end

The videos are ``CAMERA/2026-05-01/10-05-30.mp4``, in UTC, as those of `vfsd record`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from types import MappingProxyType

from vfsd.api.store import Store
from vfsd.api.video import Video
from vfsd.codecs.inventory.mp4_boxes import mediamtx_start
from vfsd.core.capture_time import NS, CaptureClock, CaptureTime, from_ns, name_pattern
from vfsd.errors import ExistsError, NotFoundError, RefusedMediaError
from vfsd.validation import not_one_of
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
