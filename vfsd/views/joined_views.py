"""One mp4 file of views of several videos, one after the other; their packets stay as they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from typing import Protocol, runtime_checkable

import numpy as np
from blake3 import blake3

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.containers.muxers import NAL_CODECS, Fmp4Muxer
from vfsd.codecs.containers.tracks import AudioTrack, SegmentIndex, VideoTrack
from vfsd.errors import UsageError
from vfsd.storage.file_cache import Bytes
from vfsd.views.render_context import RenderContext
from vfsd.views.rendered_view import PlannedView
from vfsd.views.view_slots import DecodedFrames, Slots, VariableSizeSlots, ViewPart


@runtime_checkable
class JoinableView(PlannedView, Protocol):
    """An mp4 view that says what its header describes."""

    @property
    def track(self) -> VideoTrack: ...

    @property
    def sound_track(self) -> AudioTrack | None: ...

    @property
    def segment_index(self) -> SegmentIndex: ...


@dataclass(frozen=True, slots=True)
class PlacedView:
    """A view in a joined file."""

    view: JoinableView
    start: Fraction  #: seconds from the start of the file


class JoinedView:
    """The file.  Slot 0 is the header; the segments are those of the views, with other times."""

    def __init__(self, placed: Sequence[PlacedView]) -> None:
        """Join views, in order of their starts.

        A view that would start before the end of the last one starts then.  Raises `UsageError` if
        one header cannot describe all of them.
        """
        views = [one.view for one in placed]
        tracks = [view.track for view in views]
        track = joined_track(tracks)
        self._sound = _joined_sound([view.sound_track for view in views])
        starts, end = [], 0
        for one, own in zip(placed, tracks, strict=True):
            starts.append(max(end, round(one.start / own.time_base)))
            end = starts[-1] + own.duration
        self._starts = starts  #: ticks of each view
        track = replace(track, duration=end)
        self._muxer = Fmp4Muxer(track, self._sound)
        if any(Fmp4Muxer(own).timescale != self._muxer.timescale for own in tracks):
            raise UsageError("the videos have times that one file cannot hold")
        self._time_base = track.time_base
        self._views = views
        counts = [len(view.slots) - 1 for view in views]
        self._before = list(accumulate(counts, initial=0))  #: segments before each view
        sizes = np.concatenate(
            [[view.slots[slot].size for slot in range(1, len(view.slots))] for view in views]
        ).astype(np.int64)
        self.segment_index = SegmentIndex(
            sizes=sizes,
            starts=np.concatenate(
                [view.segment_index.starts + at for view, at in zip(views, starts, strict=True)]
            ),
            starts_with_key=np.concatenate([view.segment_index.starts_with_key for view in views]),
            end=end,
        )
        header = len(self._muxer.header()) + self._muxer.index_size(len(sizes))
        self.slots: Slots = VariableSizeSlots(header, sizes)
        self.storable = frozenset(
            first + slot
            for first, view in zip(self._before, views, strict=False)
            for slot in view.storable
            if slot
        )
        self.is_work = any(view.is_work for view in views)
        self.memory = sum(view.memory for view in views)
        self.marks = views[0].marks
        self.digest = views[0].digest
        text = "\n".join(f"{view.key} {at}" for view, at in zip(views, starts, strict=True))
        self.key = blake3(f"joined\n{text}".encode() + sizes.tobytes()).hexdigest()

    @property
    def method(self) -> str:
        """As `PlannedView.method`; of several methods, the one that takes most work."""
        found = {view.method for view in self._views}
        return next(one for one in ("encoded", "spliced", "copied") if one in found)

    @property
    def parts(self) -> Sequence[ViewPart]:
        return [part for view in self._views for part in view.parts]

    def make(self, slot: int, context: RenderContext) -> Bytes:
        if not slot:
            return self._muxer.header(self.segment_index)
        place, own = self._at(slot)
        data = bytes(self._views[place].make(own, context))
        ticks = self._starts[place]
        rate = 0 if self._sound is None else self._sound.sample_rate
        return self._muxer.moved(data, slot - 1, ticks, round(ticks * self._time_base * rate))

    def pictures(self, slots: Sequence[int]) -> DecodedFrames | None:
        """Return None: the frames belong to several videos."""
        return None

    def _at(self, slot: int) -> tuple[int, int]:
        """Return the place of the view with a segment, and its slot there."""
        place = bisect_right(self._before, slot - 1) - 1
        return place, slot - self._before[place]


def joined_track(tracks: Sequence[VideoTrack]) -> VideoTrack:
    """Return a track that describes all of `tracks`.  Raises `UsageError` if there is none."""
    first = tracks[0]
    for other in tracks[1:]:
        for what, one, two in (
            ("codecs", first.codec, other.codec),
            ("sizes", (first.width, first.height), (other.width, other.height)),
            ("time bases", first.time_base, other.time_base),
            ("rotations", (first.rotation, first.mirrored), (other.rotation, other.mirrored)),
            ("crops", first.crop, other.crop),
            ("delays of reordered pictures", first.reorder, other.reorder),
            ("pixel aspects", first.sample_aspect_ratio, other.sample_aspect_ratio),
        ):
            if one != two:
                raise _different_error(what)
    # One with encoded ends has their parameter sets, too.
    configuration = max(
        (track.configuration for track in tracks),
        key=lambda record: len(_parameter_sets(first.codec, record)),
    )
    if any(not _describes(first.codec, configuration, one.configuration) for one in tracks):
        raise _different_error("parameter sets")
    longest = max(track.longest for track in tracks)
    return replace(first, configuration=configuration, longest=longest)


def _different_error(what: str) -> UsageError:
    return UsageError(
        f"the videos have different {what}, and one file has one of them",
        hint="save the videos one by one",
    )


def _describes(codec: str, configuration: bytes, other: bytes) -> bool:
    if configuration == other:
        return True
    if codec not in NAL_CODECS or nal.prefix_size(codec, configuration) != nal.prefix_size(
        codec, other
    ):
        return False
    return _parameter_sets(codec, configuration).issuperset(_parameter_sets(codec, other))


def _parameter_sets(codec: str, configuration: bytes) -> set[bytes]:
    return set(nal.parameter_sets(codec, configuration)) if codec in NAL_CODECS else set()


def _joined_sound(tracks: Sequence[AudioTrack | None]) -> AudioTrack | None:
    found = [track for track in tracks if track is not None]
    if any(track != found[0] for track in found):
        raise _different_error("sound")
    return found[0] if found else None
