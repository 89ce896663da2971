"""`CameraIndex`: the videos with a time of recording, by camera.

A camera is the directory of its videos, without the directories at its end that are dates or
times: that of ``yard/2026-05-01/10-00-00.mp4`` is ``yard``.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from functools import cached_property

from vfsd.api.store import Store
from vfsd.catalog.video_pages import CapturedVideo
from vfsd.core.capture_time import NS, to_ns
from vfsd.core.recordings import span_parts
from vfsd.errors import NotFoundError

SHORTEST_GAP = 1.0
"""Seconds: recorders lose some milliseconds between two files."""
_CLOCK = re.compile(r"[0-9][0-9_.:T-]*")


@dataclass(frozen=True, slots=True)
class CameraPart:
    """A video of a camera, and the time that it covers: Unix nanoseconds, half-open."""

    video: CapturedVideo
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class CameraDay:
    """A local day of a camera: Unix nanoseconds, half-open."""

    day: date
    start_ns: int
    end_ns: int
    kept_ns: int  #: time with a video
    gaps: int

    @property
    def hours(self) -> float:
        """23 or 25 where the clocks change."""
        return (self.end_ns - self.start_ns) / NS / 3600


class Camera:
    """The videos of one camera in the order of their recording."""

    def __init__(self, name: str, videos: Sequence[CapturedVideo]) -> None:
        self.name = name
        ordered = sorted(videos, key=lambda one: (one.start_ns, one.name))
        self.videos = ordered
        self.parts = [
            CameraPart(ordered[place], start, end)
            for place, start, end in span_parts([(one.start_ns, one.end_ns) for one in ordered])
        ]

    @cached_property
    def _starts(self) -> list[int]:
        return [part.start_ns for part in self.parts]

    @property
    def first_ns(self) -> int:
        return self.parts[0].start_ns

    @property
    def last_ns(self) -> int:
        return self.parts[-1].end_ns

    @cached_property
    def newest(self) -> CapturedVideo:
        """The video that ends last."""
        return max(self.videos, key=lambda one: (one.end_ns, one.name))

    @cached_property
    def seconds(self) -> float:
        """The time with a video."""
        return sum(part.end_ns - part.start_ns for part in self.parts) / NS

    def between(self, start_ns: int, end_ns: int) -> list[CameraPart]:
        """Return the parts that overlap ``start <= t < end``."""
        first = max(0, bisect_right(self._starts, start_ns) - 1)
        found = []
        for part in self.parts[first:]:
            if part.start_ns >= end_ns:
                break
            if part.end_ns > start_ns:
                found.append(part)
        return found

    def gaps(self, start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
        """Yield the times without a video between the first one and the last one."""
        least = int(SHORTEST_GAP * NS)
        at = max(start_ns, self.first_ns)
        for part in self.between(start_ns, end_ns):
            if part.start_ns - at >= least:
                yield at, part.start_ns
            at = max(at, part.end_ns)
        end = min(end_ns, self.last_ns)
        if end - at >= least:
            yield at, end

    def days(self, year: int, month: int, zone: tzinfo) -> Iterator[CameraDay]:
        """Yield every day of a month in a time zone."""
        day = date(year, month, 1)
        while day.month == month:
            start, end = (_midnight(one, zone) for one in (day, day + timedelta(days=1)))
            parts = self.between(start, end)
            kept = sum(min(one.end_ns, end) - max(one.start_ns, start) for one in parts)
            yield CameraDay(day, start, end, kept, sum(1 for _ in self.gaps(start, end)))
            day += timedelta(days=1)


def _midnight(day: date, zone: tzinfo) -> int:
    """Return the Unix time at which a local day begins.

    Where the clocks skip midnight, that is the moment of the change.
    """
    return to_ns(datetime(day.year, day.month, day.day, tzinfo=zone))


class CameraIndex:
    """All cameras of a store, kept until the catalog changes.  Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = threading.Lock()
        self._changes = -1
        self._cameras: dict[str, Camera] = {}

    def all(self) -> list[Camera]:
        """Return the cameras by name."""
        return [camera for _, camera in sorted(self._loaded().items())]

    def get(self, name: str) -> Camera:
        """Return a camera by its name.  Raises `NotFoundError`.

        Another directory is a camera as well, with all videos below it.
        """
        cameras = self._loaded()
        name = name.strip("/")
        if name in cameras:
            return cameras[name]
        below = [
            video
            for one, camera in cameras.items()
            for video in camera.videos
            if f"{one}/".startswith(f"{name}/") or video.name.startswith(f"{name}/")
        ]
        if not below:
            raise NotFoundError(
                f"there is no camera {name!r}",
                hint="a camera is a directory of videos with a time of recording",
            )
        return Camera(name, below)

    def _loaded(self) -> dict[str, Camera]:
        changes = self._store.tools.catalog_changes.count()
        with self._guard:
            if changes != self._changes:
                found: dict[str, list[CapturedVideo]] = {}
                with self._store.catalog.reading() as seen:
                    for video in seen.lists.captured():
                        found.setdefault(camera_of(video.name), []).append(video)
                self._cameras = {name: Camera(name, videos) for name, videos in found.items()}
                self._changes = changes
            return self._cameras


def camera_of(name: str) -> str:
    """Return the camera of a video by its path."""
    directories = name.split("/")[:-1]
    while len(directories) > 1 and _CLOCK.fullmatch(directories[-1]):
        directories.pop()
    return "/".join(directories)
