"""Records a live stream as videos of some length, without decoding it."""

from __future__ import annotations

import logging
import math
import posixpath
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from threading import Event

from vfsd.catalog import split_path
from vfsd.codecs.encoding.live_input import (
    SOUND_FORMS,
    LiveFile,
    LiveInput,
    LivePacket,
    hide_password,
)
from vfsd.core.capture_time import NS, CaptureClock, CaptureTime, from_ns
from vfsd.core.model import LogicalVideo
from vfsd.errors import ExistsError, UnreachableError, UsageError, VfsdError
from vfsd.storage.context import StoreContext
from vfsd.validation import not_one_of
from vfsd.write.ingest_file import require_name_free
from vfsd.write.unfinished_files import (
    PartialFile,
    create_partial,
    is_retryable,
    unfinished_recordings,
)
from vfsd.write.write_video import publish_file, recover

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
# Of a stream that goes back in time, or jumps: it was restarted.
_MOST_BACK, _MOST_AHEAD = 1, 10
# Seconds of the stream whose fastest packet counts: later ones were delayed.
_WINDOW = 10
# Seconds between the times of a camera and those of arrival, from which on its clock is wrong.
_MOST_APART = 30
_PUBLISH_ATTEMPTS = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordOptions:
    """How a stream is recorded."""

    segment: float = 60.0  #: seconds; a video ends at the first key picture of the next multiple
    timeout: float = 15.0  #: seconds without a packet, after which the stream is opened again
    sound: str = "copy"
    """"copy": packets as they are, where MP4 or MOV stores them; "aac": encoded; or "no"."""
    options: Mapping[str, str] = field(default_factory=dict)  #: of FFmpeg's demuxer and protocol

    def __post_init__(self) -> None:
        if not 1 <= self.segment <= 86_400:
            raise UsageError(f"segment must be 1 to 86400 seconds, got {self.segment:g}")
        if not 0.1 <= self.timeout <= 3600:
            raise UsageError(f"timeout must be 0.1 to 3600 seconds, got {self.timeout:g}")
        if self.sound not in SOUND_FORMS:
            raise not_one_of("sound", self.sound, SOUND_FORMS)


class ArrivalClock:
    """Turns times of a stream into times of this host's clock.

    Packets arrive early or late by a changing delay, so the fastest of the last ten seconds counts.
    A clock that was set is followed within that time.
    """

    def __init__(self) -> None:
        self._fastest: deque[tuple[int, int]] = deque()  # second of the stream, offset in ns

    def add(self, seconds: Fraction, arrived_ns: int) -> None:
        """Note the arrival of a packet."""
        second, offset = math.floor(seconds), arrived_ns - math.floor(seconds * NS)
        if self._fastest and self._fastest[-1][0] >= second:
            last, known = self._fastest[-1]
            self._fastest[-1] = last, min(known, offset)
        else:
            self._fastest.append((second, offset))
        while self._fastest[0][0] < second - _WINDOW:
            self._fastest.popleft()

    def at(self, seconds: Fraction) -> int:
        """Return the Unix time in nanoseconds of a time of the stream."""
        return math.floor(seconds * NS) + min(offset for _, offset in self._fastest)


class StreamClock:
    """The times of a connection: by the sender's reports, or else by the clock of this host.

    A sender whose clock is more than half a minute off is not believed at first.  One that was
    believed and runs on is believed when the clock of this host is set.
    """

    def __init__(self) -> None:
        self._arrivals = ArrivalClock()
        self._sent_offset: int | None = None
        self.error_ns: int | None = None  #: of a sender's clock that is not believed

    def add(self, seconds: Fraction, arrived_ns: int, sent_ns: int | None) -> None:
        """Note a packet, and the time that its sender gives."""
        self._arrivals.add(seconds, arrived_ns)
        before, self._sent_offset, self.error_ns = self._sent_offset, None, None
        if sent_ns is None:
            return
        offset = sent_ns - math.floor(seconds * NS)
        error = sent_ns - self._arrivals.at(seconds)
        is_same = before is not None and abs(offset - before) <= NS
        if is_same or abs(error) <= _MOST_APART * NS:
            self._sent_offset = offset
        else:
            self.error_ns = error

    def at(self, seconds: Fraction) -> CaptureTime:
        """Return the time of recording of a time of the stream."""
        if self._sent_offset is not None:
            return CaptureTime(math.floor(seconds * NS) + self._sent_offset, CaptureClock.RTCP)
        return CaptureTime(self._arrivals.at(seconds), CaptureClock.ARRIVAL)


class StreamRecorder:
    """Records one stream below a directory of the store: ``DIR/2026-05-01/10-00-00.mp4``, in UTC.

    Videos can be read while they are written (`Store.growing`).  A stream that breaks is opened
    again, after 1 to 60 seconds, and the lost time is a gap between two videos.  A stream that
    changes its parameter sets begins a new video.
    """

    def __init__(
        self,
        parts: StoreContext,
        directory: str,
        url: str,
        form: RecordOptions,
        *,
        on_video: Callable[[LogicalVideo], None] = lambda video: None,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`on_video` is called with each published video, `on_event` with what happened else.

        Both are called by another thread.
        """
        parts.require_writable()
        self._parts = parts
        self._directory = "/".join(split_path(directory))
        if not self._directory:
            raise UsageError("a recording needs a directory, got the top one")
        self._url = url
        self._form = form
        self._on_video, self._on_event = on_video, on_event
        self._clock = StreamClock()
        self._segment: _Segment | None = None
        self._is_answering = False  # whether the present connection has brought a packet
        self._is_left = False  # whether a whole file waits for its publishing
        self.published = 0  #: videos

    def run(self, stop: Event, seconds: float | None = None) -> int:
        """Record until `stop` is set, or for a time; return the number of published videos.

        A stop is seen at the next packet, or after the timeout.  The video that is being written
        is published.  Raises `UnreachableError` if a limited time passes without any video.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        pause, last_error = _FIRST_PAUSE, None
        with ThreadPoolExecutor(1, "vfsd-record") as self._publisher:
            self._recover()
            while not stop.is_set() and time.monotonic() < end:
                try:
                    self._record(stop, end)
                except (OSError, VfsdError) as error:  # a full disk or a busy catalog, too
                    last_error = error
                    if self._is_answering:
                        pause = _FIRST_PAUSE
                    self._on_event(f"{error}; trying again in {pause:g} s")
                    self._finish_segment()
                    stop.wait(min(pause, max(0.0, end - time.monotonic())))
                    pause = min(_LONGEST_PAUSE, 2 * pause)
            self._finish_segment()
        if self._is_left:
            self._recover()
        if not self.published and isinstance(last_error, VfsdError):
            raise last_error
        return self.published

    def _record(self, stop: Event, end: float) -> None:
        """Record from one connection until it ends, breaks or changes."""
        self._is_answering = False
        source = LiveInput(
            self._url, self._form.options, self._form.timeout, sound=self._form.sound
        )
        try:
            if source.dropped_sound is not None:
                self._on_event(
                    f"sound of codec {source.dropped_sound} cannot be stored in mp4 or mov and is "
                    "left out; --sound aac encodes it"
                )
            self._clock = StreamClock()
            sets, last, is_clock_told = b"", None, False
            for one in source.packets():
                self._is_answering = True
                now = time.time_ns()
                if stop.is_set() or time.monotonic() >= end:
                    break
                if one.is_video and one.seconds is not None:
                    if last is not None and not -_MOST_BACK <= one.seconds - last <= _MOST_AHEAD:
                        self._finish_segment()
                        self._clock = StreamClock()
                    last = one.seconds
                    self._clock.add(one.seconds, now, one.sent_ns)
                    if self._clock.error_ns is not None and not is_clock_told:
                        is_clock_told = True
                        self._on_event(
                            f"the clock of the camera is {self._clock.error_ns / NS:+.0f} s off; "
                            "times of arrival are used"
                        )
                if one.is_key and one.sets and sets and one.sets != sets:
                    self._on_event("the stream has other parameters now; it is opened again")
                    break
                sets = one.sets or sets
                self._put(source, one)
            else:
                raise UnreachableError(f"{hide_password(self._url)} ended")
        finally:
            self._finish_segment()
            source.close()

    def _put(self, source: LiveInput, one: LivePacket) -> None:
        if one.is_key and one.seconds is not None:
            begun = self._clock.at(one.seconds)
            length = round(self._form.segment * NS)
            if self._segment is not None and begun.ns // length != self._segment.begun.ns // length:
                self._finish_segment()
            if self._segment is None:
                self._segment = self._begin(source, one.seconds, begun)
        if self._segment is not None:
            self._segment.live.write(one)

    def _begin(self, source: LiveInput, seconds: Fraction, begun: CaptureTime) -> _Segment:
        started = from_ns(begun.ns)
        stem = f"{self._directory}/{started:%Y-%m-%d}/{started:%H-%M-%S}"
        name = self._free_name(stem, source.container)
        file = create_partial(self._parts.objects, name, begun)
        try:
            live = LiveFile(file.path, source, started)
        except BaseException:
            file.remove()
            raise
        return _Segment(file, live, seconds, begun)

    def _free_name(self, stem: str, suffix: str) -> str:
        """Return ``STEM.mp4``, or ``STEM-1.mp4`` and so on if that is taken."""
        for number in range(100):
            name = f"{stem}-{number}.{suffix}" if number else f"{stem}.{suffix}"
            try:
                require_name_free(self._parts, name, replace=False)
            except ExistsError:
                continue
            return name
        raise ExistsError(f"{stem}.{suffix} and 99 others of that name exist")

    def _finish_segment(self) -> None:
        """End the video that is being written, and publish it on another thread."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        try:
            segment.live.close()
        except OSError as error:  # a full disk; the fragments before are whole
            self._on_event(f"{segment.file.name} is incomplete: {error}")
        # Times of arrival become better with more packets; a camera may set its clock in between.
        captured = segment.begun
        if captured.clock is not CaptureClock.RTCP:
            captured = self._clock.at(segment.seconds)
        self._publisher.submit(self._publish, segment.file, captured)

    def _publish(self, file: PartialFile, captured: CaptureTime) -> None:
        try:
            video = self._published(file)
            with self._parts.catalog.writing() as change:
                change.videos.set_captured(video.id, captured)
                video = change.videos.get(video.id)
            self.published += 1
            self._on_video(video)
            if self._is_left:
                self._recover()  # what stood in the way of earlier ones is gone
        except Exception as error:
            self._on_event(f"{file.name} was not published: {error}")
            if is_retryable(error):
                file.keep_for_recovery()
                self._is_left = True
            else:
                file.remove()

    def _published(self, file: PartialFile) -> LogicalVideo:
        for attempt in range(1, _PUBLISH_ATTEMPTS + 1):
            try:
                video = publish_file(self._parts, file, replace=False)
            except Exception as error:
                if attempt == _PUBLISH_ATTEMPTS or not is_retryable(error):
                    raise
                _log.warning("%s was not published yet: %s", file.name, error)
                time.sleep(attempt)
            else:
                file.remove()
                return video
        raise AssertionError

    def _recover(self) -> None:
        """Publish what an earlier recorder of this directory has left, or this one had to leave."""
        self._is_left = False
        for left in unfinished_recordings(self._parts):
            if posixpath.dirname(posixpath.dirname(left.name)) != self._directory:
                continue
            try:
                video = recover(self._parts, left, None)
            except (OSError, VfsdError) as error:
                self._on_event(f"{left.name} was not recovered: {error}")
                self._is_left = self._is_left or is_retryable(error)
            else:
                self.published += 1
                self._on_event(f"recovered {video.name}")
                self._on_video(video)


@dataclass(frozen=True)
class _Segment:
    """A video that is being written."""

    file: PartialFile
    live: LiveFile
    seconds: Fraction  #: of its first picture, on the clock of the stream
    begun: CaptureTime  #: of that picture, as known then
