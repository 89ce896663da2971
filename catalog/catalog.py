"""`Catalog`: what is stored, and where each byte of it lies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real
from reprlib import repr as shown
from typing import Any, TypedDict

from vfsd.catalog.derived_usage import DerivedUsage, SegmentGain
from vfsd.catalog.detection_api import DetectionCatalog, require_encoding, require_video
from vfsd.catalog.integrity import IntegrityLog
from vfsd.catalog.read_history import LoggedReads
from vfsd.catalog.statements import require_json_keys
from vfsd.catalog.video_query import Interval, VideoFilter, VideoQuery
from vfsd.core.damaged_frames import damaged_frames_of
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import (
    ByteLocation,
    ByteRange,
    Gop,
    LoggedRead,
    LogicalVideo,
    MeasuredCost,
    PhysicalVideo,
    ReadArea,
    Role,
    Segment,
    Sound,
    TilingDecision,
)
from vfsd.core.retention_policy import RetentionPolicy
from vfsd.errors import IntegrityError, UsageError
from vfsd.validation import how_many, require_storable_text, whole_number, within_64_bits

_READS_AT_ONCE = 1000


class FindOptions(TypedDict, total=False):
    """The arguments of `Catalog.find` besides the name."""

    tags: set[str] | frozenset[str]
    metadata: Mapping[str, Any] | None
    codec: str | None
    container: str | None
    bytes: Interval | None
    seconds: Interval | None
    width: Interval | None
    height: Interval | None
    modified_ns: Interval | None


class Catalog(DetectionCatalog):
    """What is stored, and where each byte of it lies.

    Every answer is a frozen value of `vfsd.core.model`.  Safe to use from several threads, and
    after a fork.  Several processes may have the same catalog open; writers take turns.

        with Catalog.open("sqlite:////srv/videos/catalog.sqlite3") as catalog:
            for video in catalog.find(name="cam1/**", codec="h264", tags={"night"}):
                print(video.name, video.original.frames)
    """

    def find(
        self,
        name: str | None = None,
        *,
        tags: set[str] | frozenset[str] = frozenset(),
        metadata: Mapping[str, Any] | None = None,
        codec: str | None = None,
        container: str | None = None,
        bytes: Interval | None = None,
        seconds: Interval | None = None,
        width: Interval | None = None,
        height: Interval | None = None,
        modified_ns: Interval | None = None,
    ) -> VideoQuery:
        """The videos for which everything that is given holds (see `VideoFilter`).

        `bytes`, `seconds`, `width`, `height` and `modified_ns` are (lowest, highest), None: open.
        Raises `UsageError` for what is none of that.
        """
        if name is not None and not isinstance(name, str):
            raise UsageError(f"name must be a pattern, got {name!r}", hint='as in "cam1/*.mp4"')
        if isinstance(tags, str):
            raise UsageError(f"tags must be a set, got {tags!r}", hint=f"give {{{tags!r}}}")
        if not isinstance(tags, Iterable):
            raise UsageError(f"tags must be a set, got {shown(tags)}", hint='as in {"night"}')
        words = frozenset(tags)
        for word in words:
            if not isinstance(word, str):
                raise UsageError(f"a tag must be text, got {shown(word)}", hint='as in "night"')
            require_storable_text(word, "a tag")
        for one, key in ((codec, "codec"), (container, "container")):
            if one is None:
                continue
            if not isinstance(one, str):
                raise UsageError(
                    f"{key} must be a name, got {shown(one)}", hint="give one, by its name"
                )
            require_storable_text(one, f"a {key}")
        what = VideoFilter(
            name,
            words,
            require_json_keys(metadata),
            codec,
            container,
            _interval(bytes, "bytes"),
            _interval(seconds, "seconds"),
            _interval(width, "width"),
            _interval(height, "height"),
            _interval(modified_ns, "modified_ns"),
        )
        return VideoQuery(self._database.reading, what)

    def video(self, name: str) -> LogicalVideo:
        """The video with that name.  Raises `NotFoundError`, also for a file that is no video."""
        with self.reading() as seen:
            return seen.videos.of_node(seen.tree.resolve(name), name)

    def unverified(self, limit: int = 100, *, before_id: int | None = None) -> list[LogicalVideo]:
        """Videos whose frame table no full decode has confirmed yet, or examined for damage, the
        newest first.

        `before_id` is the number of an original: only those that are older.
        """
        most = how_many(limit, "limit")
        if before_id is not None:
            before_id = how_many(before_id, "before_id")
        with self.reading() as seen:
            return seen.videos.unverified(most, before_id)

    def names(self, video: LogicalVideo) -> list[str]:
        """Every name of a video; more than one where it has hard links."""
        require_video(video)
        with self.reading() as seen:
            return seen.tree.paths_of(video.ino)

    def physicals(self, video: LogicalVideo) -> list[PhysicalVideo]:
        """All stored encodings, the original first."""
        require_video(video)
        with self.reading() as seen:
            return seen.videos.physicals(video.id)

    def provenance(self, physical: PhysicalVideo) -> list[PhysicalVideo]:
        """The chain from `physical` back to the original that it was made from, itself first."""
        require_encoding(physical)
        chain = [physical]
        with self.reading() as seen:
            while chain[-1].parent_id is not None:
                chain.append(seen.videos.physical(chain[-1].parent_id))
        return chain

    def segments(self, video: LogicalVideo) -> list[Segment]:
        """The tiled runs of frames that reads may use, with their cells, by their first frame."""
        require_video(video)
        with self.reading() as seen:
            return seen.segments.active(video.original.id)

    def renditions(self, video: LogicalVideo) -> list[Segment]:
        """The runs of frames that are stored in other sizes, by their first frame."""
        require_video(video)
        with self.reading() as seen:
            return seen.segments.renditions(video.original.id)

    def joined(self, video: LogicalVideo) -> list[Segment]:
        """The runs of frames that are kept together with another camera's, by their first frame."""
        require_video(video)
        with self.reading() as seen:
            return seen.segments.joined(video.original.id)

    def unreadable_frames(self, video: LogicalVideo) -> list[range]:
        """The frames of the original that are known to be lost, as their bytes are damaged."""
        require_video(video)
        damage = self.damaged_bytes(video.original)
        if not damage:
            return []
        return damaged_frames_of(self.frame_table(video.original), video.original.access, damage)

    def damaged_bytes(self, original: PhysicalVideo) -> tuple[range, ...]:
        """The bytes of an original that are known to be damaged, ascending."""
        require_encoding(original)
        with self.reading() as seen:
            found = seen.integrity.inspection(original.place)
        return () if found is None else found.damage

    def cost_factor(self, video: LogicalVideo) -> float | None:
        """How many times as much as its codec's rule says decoding the original takes; None where
        that was not measured."""
        require_video(video)
        with self.reading() as seen:
            return seen.videos.cost_factor(video.original.id)

    def policy(self, video: LogicalVideo) -> RetentionPolicy:
        """What counts for a video: what was said of it, or of a directory above."""
        require_video(video)
        with self.reading() as seen:
            return seen.originals.policy(video.ino)

    def costs(self, host: str) -> list[MeasuredCost]:
        """What decoding was measured to cost on that host (see `vfsd calibrate`)."""
        with self.reading() as seen:
            return seen.costs.of_host(host)

    def encode_costs(self, host: str) -> dict[str, float]:
        """CPU seconds for each pixel of an encoded view on that host, by codec, as measured."""
        with self.reading() as seen:
            return seen.costs.of_encoding(host)

    # -- what was read

    def reads(
        self, video: LogicalVideo | None = None, *, since: int | None = None
    ) -> Iterator[LoggedRead]:
        """The reads of a video, or of all, that are remembered; the newest first.

        `since` is Unix time in nanoseconds: only those that began then or later.  What is read
        meanwhile is not among them.
        """
        _require_info_or_none(video)
        if since is not None:
            hint = "give a Unix time in nanoseconds"
            since = within_64_bits(whole_number(since, "since"), "since: ", hint=hint)
        before: int | None = None
        while True:
            with self.reading() as seen:
                some = seen.reads.newest(
                    None if video is None else video.id,
                    since_ns=since,
                    before_id=before,
                    limit=_READS_AT_ONCE,
                )
            yield from some
            if len(some) < _READS_AT_ONCE:
                return
            before = some[-1].id

    def read_areas(self, video: LogicalVideo, frames: range) -> list[ReadArea]:
        """Where the reads looked that have touched some of `frames`, the most often first."""
        require_video(video)
        with self.reading() as seen:
            return seen.reads.areas(video.id, frames)

    def decisions(self, video: LogicalVideo | None = None) -> list[TilingDecision]:
        """Which tiles of a video, or of all, were made because of reads, and why; the newest
        first."""
        _require_info_or_none(video)
        with self.reading() as seen:
            return seen.decisions.newest(None if video is None else video.id)

    def note_reads(self, done: Sequence[tuple[str, LoggedRead]], *, keep: int) -> None:
        """Remember reads, each with the digest of the bytes that were read, and forget old ones.

        What they used of segments is counted there.  The newest `keep` are kept.  No `watch`
        tells of it.  Raises `BusyError` after a second in which others write, `NoSpaceError`.
        """
        with self._database.record_decoding() as connection:
            reads = LoggedReads(connection)
            if reads.add(done):
                holdings = DerivedUsage(connection)
                holdings.note_used(_segment_gains(done, holdings.newest_read()))
                reads.keep(keep)

    def note_looks(self, places: Sequence[tuple[ByteLocation, int]]) -> None:
        """Places whose bytes were looked at, each with when, and found to be right.

        No `watch` tells of it, unless something was known to be damaged.  Raises `BusyError`.
        """
        with self.reading() as seen:
            damaged = {found.place for found in seen.integrity.damaged()}
        healed = [one for one in places if one[0] in damaged]
        with self._database.record_decoding() as connection:
            _note_inspections(
                IntegrityLog(connection), [one for one in places if one[0] not in damaged]
            )
        if healed:
            with self.writing() as change:
                _note_inspections(change.integrity, healed)

    def forget_reads(self, video: LogicalVideo | None = None) -> int:
        """Forget the reads of a video, or of all; how many."""
        _require_info_or_none(video)
        with self.writing() as change:
            return change.reads.remove(None if video is None else video.id)

    # -- frames and bytes

    def frame_table(self, physical: PhysicalVideo) -> FrameTable:
        """Every frame's time and packet.  Costs one small query; pages are read as needed.

        Raises `UsageError` for an encoding other than the original, which has no table of its own,
        and `NotFoundError` where the encoding has gone, as its video was removed or replaced; so
        does what reads a page later.  `IntegrityError` where a page is missing.
        """
        require_encoding(physical)
        if physical.role is not Role.ORIGINAL:
            raise UsageError(
                f"a {physical.role.value} encoding has no frame table of its own",
                hint="ask for that of the original; `Catalog.segments` and `renditions` tell which "
                "of its frames are stored in other ways",
            )
        with self.reading() as seen:
            bounds = seen.videos.page_bounds(physical.id)
            if not bounds:
                seen.videos.require_there(physical.id)

        def fetch(ordinal: int) -> bytes:
            with self.reading() as later:
                return later.videos.page(physical.id, ordinal)

        table = FrameTable(
            bounds, fetch, time_base=physical.media.time_base, end_pts=physical.end_pts
        )
        if (table.packets, len(table)) != (physical.packets, physical.frames):
            raise IntegrityError(
                f"the frame table has {len(table)} frames, not {physical.frames}",
                hint="run `vfsd fsck --repair`",
            )
        return table

    def sound(self, physical: PhysicalVideo) -> tuple[Sound, FrameTable] | None:
        """The sound of an original, and its packets as the frames of a table.

        None where it has no audio stream, or where nobody has looked for it yet: see
        `MediaInfo.side_streams`.  Pages are read as needed.
        """
        require_encoding(physical)
        with self.reading() as seen:
            sound = seen.sounds.of(physical.id)
            bounds = seen.sounds.page_bounds(physical.id)
        if sound is None:
            return None

        def fetch(ordinal: int) -> bytes:
            with self.reading() as later:
                return later.sounds.page(physical.id, ordinal)

        table = FrameTable(bounds, fetch, time_base=sound.time_base, end_pts=sound.end_pts)
        return sound, table

    def gops(self, physical: PhysicalVideo) -> Iterator[Gop]:
        """Runs of packets that start at a key frame, in decode order."""
        require_encoding(physical)
        return self.frame_table(physical).gops()

    def locate(self, physical: PhysicalVideo, frames: range) -> list[ByteRange]:
        """Where the packets of `frames` (contiguous, half-open) lie, as few ranges as touch.

        For containers that cut packets up (MPEG-TS) a range starts where its packet starts, and
        its size is that of the packet's content.  Raises `OutOfRangeError`.
        """
        require_encoding(physical)
        positions, sizes = self.frame_table(physical).extents(frames)
        ranges: list[tuple[int, int]] = []
        for start, size in zip(positions.tolist(), sizes.tolist(), strict=True):
            if ranges and ranges[-1][0] + ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
            else:
                ranges.append((start, size))
        return [
            ByteRange(physical.object_key, physical.link_path, start, size)
            for start, size in ranges
        ]

    # -- what users attach

    def tag(self, video: LogicalVideo, *words: str) -> LogicalVideo:
        """Add tags; the video as it is afterwards.

        Raises `UsageError` for what are no words, or have more than 255 characters, or any that a
        database cannot store: NUL, and half of one.
        """
        require_video(video)
        with self.writing() as change:
            change.videos.require(video)
            change.videos.add_tags(video.id, words)
            return change.videos.get(video.id)

    def untag(self, video: LogicalVideo, *words: str) -> LogicalVideo:
        """Remove tags, those that it does not have included."""
        require_video(video)
        with self.writing() as change:
            change.videos.require(video)
            change.videos.remove_tags(video.id, words)
            return change.videos.get(video.id)

    def set_metadata(self, video: LogicalVideo, /, **values: Any) -> LogicalVideo:
        """Set top-level keys of the video's metadata; a value of None removes the key.

        Raises `UsageError` for what JSON cannot hold, for text that a database cannot (with NUL,
        or half of a character), and for whole numbers beyond 64 bits.
        """
        require_video(video)
        with self.writing() as change:
            change.videos.require(video)
            merged = dict(change.videos.get(video.id).metadata) | require_json_keys(values)
            kept = {key: value for key, value in merged.items() if value is not None}
            change.videos.set_metadata(video.id, kept)
            return change.videos.get(video.id)


def _require_info_or_none(video: object) -> None:
    """None stands for all videos."""
    if video is not None:
        require_video(video)


def _interval(given: Interval | None, what: str) -> Interval | None:
    """Raises `UsageError` for what is no pair of numbers or None."""
    if given is None:
        return None
    both = tuple(given) if isinstance(given, (tuple, list)) else ()
    if len(both) != 2 or not all(end is None or _is_bound(end) for end in both):
        raise UsageError(
            f"{what} must be (lowest, highest), got {shown(given)}", hint="None leaves an end open"
        )
    low, high = (None if end is None else _bound(end, what) for end in both)
    return low, high


def _is_bound(end: object) -> bool:
    if isinstance(end, (Integral, Fraction)):
        return True  # of any size: as a float it may be too large
    return isinstance(end, (Real, Decimal)) and not math.isnan(end)


def _bound(end: float, what: str) -> float:
    """As SQLite knows it, to which a number of numpy is some bytes, and larger than all numbers.

    Raises `UsageError` for whole numbers beyond 64 bits.
    """
    if isinstance(end, Integral):
        hint = "give a smaller number, or leave that bound out"
        return within_64_bits(int(end), f"{what}: ", hint=hint)
    try:
        return float(end)
    except OverflowError:  # a fraction
        return math.inf if end > 0 else -math.inf


def _segment_gains(done: Iterable[tuple[str, LoggedRead]], newest: int) -> dict[int, SegmentGain]:
    """By segment; they count as done when the `newest` read was."""
    found: dict[int, SegmentGain] = {}
    for _, read in done:
        for one in read.uses:
            before = found.get(one.segment_id, SegmentGain(newest, 0, 0, 0.0))
            found[one.segment_id] = SegmentGain(
                newest,
                max(before.at_ns, read.at_ns),
                before.uses + 1,
                before.saved + one.saved,
            )
    return found


def _note_inspections(integrity: IntegrityLog, places: Sequence[tuple[ByteLocation, int]]) -> None:
    for place, at_ns in places:
        if integrity.is_there(place):
            integrity.note_look(place, (), now_ns=at_ns)
