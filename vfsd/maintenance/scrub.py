"""Reads all stored bytes at a limited rate, compares them with their checksums and repairs damage.
`ScrubCheckpoint` lets an interrupted run continue within a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from blake3 import blake3

from vfsd.catalog.integrity import ScrubRun
from vfsd.core.model import ByteLocation, FileState, LogicalVideo
from vfsd.disk.checksums import (
    BlockChecksums,
    VerifyProgress,
    VerifyResult,
    verify_stored_file,
)
from vfsd.disk.external_files import require_linked
from vfsd.disk.object_store import ObjectStore
from vfsd.disk.safe_open import CHUNK, OF_THE_PROCESS, STAYS
from vfsd.disk.tempfiles import write_atomically
from vfsd.errors import (
    BusyError,
    IntegrityError,
    LeaseLostError,
    NoSpaceError,
    NotFoundError,
    ReadOnlyError,
    UsageError,
    VfsdError,
)
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import drop_index, drop_segments, put_back

_MAX_CHECKPOINT_BYTES = 16 << 20
# The most damaged ranges in a note. With more, writing takes too long, and an interrupted scrub
# reads the file again instead.
_MAX_RANGES = 1 << 16

# A run that was interrupted longer ago starts again from the beginning.
_RESUMABLE_NS = 7 * 86400 * 10**9
_CHECKPOINT_SECONDS = 2.0

OnProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); may raise to stop the run."""


@dataclass(frozen=True, slots=True)
class ScrubPosition:
    """The position of an interrupted run within a file."""

    run: int
    place: ByteLocation
    sums: str  #: hash of the checksums that were compared
    progress: VerifyProgress

    def fits(self, sums: BlockChecksums, version: tuple[int, int, int]) -> bool:
        """Return whether the position applies to this version of a file and these checksums."""
        return self.sums == _digest(sums) and self.progress.version == version


class ScrubCheckpoint:
    """Stores the position of an interrupted run in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved = _load_position(path)

    def of(self, run: int, place: ByteLocation) -> ScrubPosition | None:
        """Return the stored position; None if it belongs to another run or file."""
        saved = self._saved
        return saved if saved is not None and (saved.run, saved.place) == (run, place) else None

    def is_of(self, sums: BlockChecksums) -> bool:
        """Return whether the stored position belongs to a file with these checksums."""
        return self._saved is not None and self._saved.sums == _digest(sums)

    def write(
        self, run: int, place: ByteLocation, sums: BlockChecksums, progress: VerifyProgress
    ) -> None:
        """Replace the stored position.

        The last one stays if the file cannot be written or there are too many damaged ranges. An
        interrupted scrub then repeats some work.
        """
        if len(progress.damage) > _MAX_RANGES:
            return
        note = {
            "run": run,
            "object": place.object_key,
            "path": place.link_path,
            "sums": _digest(sums),
            "version": progress.version,
            "at": progress.at,
            "damage": [[one.start, one.stop] for one in progress.damage],
            "second": progress.is_second,
        }
        with suppress(OSError):
            write_atomically(self._path, json.dumps(note) + "\n")

    def forget(self) -> None:
        """Delete the stored position at the end of a run."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _digest(sums: BlockChecksums) -> str:
    return blake3(sums.sums).hexdigest()


def _load_position(path: Path) -> ScrubPosition | None:
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        if path.stat().st_size <= _MAX_CHECKPOINT_BYTES:
            note = json.loads(path.read_text(encoding="utf-8"))
            inode, size, mtime_ns = map(int, note["version"])
            damage = tuple(range(int(first), int(end)) for first, end in note["damage"])
            at = int(note["at"])
            if not 0 <= at <= size or (at % CHUNK and at != size):
                return None
            if any(not 0 <= one.start < one.stop <= size for one in damage):
                return None
            progress = VerifyProgress((inode, size, mtime_ns), at, damage, note["second"] is True)
            place = ByteLocation(note["object"], note["path"])
            return ScrubPosition(int(note["run"]), place, str(note["sums"]), progress)
    return None


@dataclass(frozen=True, slots=True)
class ScrubDamage:
    """An object or linked file that differs from what was stored."""

    place: ByteLocation
    kind: str  #: original, linked, vectors, tiles or index
    names: tuple[str, ...]  #: of the videos that use it
    message: str
    ranges: tuple[range, ...]  #: damaged bytes; empty if the file is missing
    frames: tuple[range, ...] | None  #: frames affected, of originals; None: unknown
    repaired: str | None  #: put back, dropped, recomputed, recorded, or None


@dataclass(frozen=True, slots=True)
class _ScrubItem:
    """An object or linked file to check."""

    place: ByteLocation
    digest: str
    size: int
    is_original: bool
    looked_ns: int
    progress: VerifyProgress | None  #: progress of an interrupted run
    is_known_damaged: bool = False

    @property
    def left(self) -> int:
        """The number of bytes still to be read."""
        return self.size - (0 if self.progress is None else min(self.size, self.progress.at))


class ByteRateLimiter:
    """Limits reads to `rate` bytes a second; None: no limit."""

    def __init__(self, rate: float | None) -> None:
        """Raises `UsageError` unless `rate` is positive."""
        if rate is not None and not rate > 0:
            raise UsageError(
                f"rate must be positive, got {rate} bytes per second", hint="for example 50MiB"
            )
        self._rate = rate
        self._due = time.monotonic()

    def wait(self, count: int) -> None:
        if self._rate is None:
            return
        now = time.monotonic()
        # Idle time must not allow a burst of more than a second.
        self._due = max(self._due, now - 1.0) + count / self._rate
        if self._due > now:
            time.sleep(self._due - now)


# The state of BLAKE3 cannot be stored, so an interrupted scrub resumes by block sums. Before it
# reports damage it reads the file again for the full digest: a sum may be damaged too.
class Scrubber:
    """One run over a store, or over some of its videos.

    Raises `ReadOnlyError`. Other processes and mounts may use the store during the run.
    """

    def __init__(
        self,
        parts: StoreContext,
        videos: Sequence[LogicalVideo] | None = None,
        *,
        older_than: float | None = None,
        rate: float | None = None,
        sources: Sequence[ObjectStore] = (),
        on_progress: OnProgress | None = None,
    ) -> None:
        """Plan a run, or continue an interrupted one.

        Args:
            parts: the store.
            videos: the videos to check; None: all of them.
            older_than: skip objects and files that were checked less than this many seconds ago.
            rate: the most bytes to read per second; None: no limit.
            sources: object stores that may have good copies of damaged objects.
            on_progress: called while bytes are read.

        Raises `UsageError` unless `rate` is positive. Raises `StoreError` if all objects are
        missing, for example because their disk is not mounted.
        """
        if parts.read_only:
            raise ReadOnlyError("the store was opened read-only")
        parts.require_objects_present()
        self._parts = parts
        self._videos = videos
        self._rate_limiter = ByteRateLimiter(rate)
        self._sources = sources
        self._on_progress = on_progress
        self._done = self._total = 0
        self._intact: list[tuple[ByteLocation, int]] = []  # checked but not recorded yet
        self._saved_at = time.monotonic()
        self.unread: list[OSError] = []
        """Errors for files that were not checked: this process may not read them, or they are
        indexed in place and cannot be opened."""
        self.stuck: list[OSError | VfsdError] = []
        """Errors that prevented a repair although there may be a good copy."""
        self._run = self._resume_or_begin()
        self._checkpoint = ScrubCheckpoint(parts.directory.scrub_note)
        self._reading: tuple[ByteLocation, BlockChecksums, Callable[[], VerifyProgress]] | None = (
            None
        )
        self._items, self._skipped = self._plan_items(older_than)

    @property
    def is_resumed(self) -> bool:
        """Whether this run continues an interrupted one."""
        return self._is_resumed

    @property
    def planned(self) -> tuple[int, int]:
        """(number of objects and files, number of bytes) to check."""
        return len(self._items), sum(item.left for item in self._items)

    def run(self) -> Iterator[ScrubDamage]:
        """Yield damage as it is found; `unread` has the errors for files that were not checked.

        Known damage of files that are skipped comes first.

        Raises `OSError` or `NoSpaceError`.
        """
        self._total = self.planned[1]
        try:
            for item, ranges in self._skipped:
                yield self._known_damage(item, ranges)
            done = 0
            for item in self._items:
                yield from self._check_item(item)
                done += item.left
                self._done = done  # even if bytes were read twice or were missing
                self._report_progress()
        finally:
            self._save_progress()
        with self._parts.catalog.writing() as change:
            change.integrity.end_run(self._run.id, now_ns=time.time_ns())
        self._checkpoint.forget()

    # -- planning

    def _resume_or_begin(self) -> ScrubRun:
        names = [] if self._videos is None else sorted(video.name for video in self._videos)
        what, now = "\n".join(names), time.time_ns()
        with self._parts.catalog.writing() as change:
            found = change.integrity.unfinished_run(what, since_ns=now - _RESUMABLE_NS)
            self._is_resumed = found is not None
            return found or change.integrity.begin_run(what, now_ns=now)

    def _plan_items(
        self, older_than: float | None
    ) -> tuple[list[_ScrubItem], list[tuple[_ScrubItem, tuple[range, ...]]]]:
        """Return the items to check, and the skipped items with known damage and its ranges.

        Interrupted items come first, then those with the oldest check.
        """
        with self._parts.catalog.reading() as seen:
            originals = seen.integrity.originals()
            needed = seen.objects.needed()
            inspections = seen.integrity.inspections()
            linked = {one.place: one.size for one in seen.integrity.linked_originals()}
            packs = seen.derived_usage.keys()
            if self._videos is None and not self._parts.objects.is_local:
                originals |= {
                    ByteLocation(node.object_key, None): node.object_key
                    for node in seen.tree.files_in_state(FileState.STORED)
                    if node.object_key is not None
                }
            if self._videos is not None:
                mine = [video.original for video in self._videos]
                places = [one.place for one in mine]
                for video in self._videos:
                    blocks = seen.vectors.of_video(video.id)
                    places += [ByteLocation(block.object_key, None) for block in blocks]
                originals = {place: originals[place] for place in places if place in originals}
                packs = {
                    segment.object_key
                    for original in mine
                    for segment in seen.segments.of_original(original.id)
                }
                indexes = (seen.layer_indexes.get(original.id) for original in mine)
                packs.update(one.object_key for one in indexes if one is not None)
        wanted = {**{ByteLocation(key, None): key for key in packs}, **originals}
        before = self._run.begun_ns if self._is_resumed else time.time_ns()
        if older_than is not None:
            now = time.time_ns()
            # An item that was never checked has the time 0, which must always be before the limit.
            before = min(before, max(1, now - int(min(older_than * 1e9, now))))
        items, skipped = [], []
        for place, digest in wanted.items():
            found = inspections.get(place)
            looked_ns = 0 if found is None or found.looked_ns is None else found.looked_ns
            key = place.object_key
            if key is None:
                size = linked.get(place)
            elif key in needed:
                size = needed[key] or self._parts.objects.size(key) or 0
            else:
                size = None
            if size is None:
                continue
            known_damage = found is not None and bool(found.damage)
            item = _ScrubItem(
                place, digest, size, place in originals, looked_ns, None, known_damage
            )
            if looked_ns < before:
                items.append(replace(item, progress=self._previous_progress(place)))
            elif found is not None and found.damage:
                skipped.append((item, found.damage))
        items.sort(key=lambda item: (item.progress is None, item.looked_ns, str(item.place)))
        return items, skipped

    def _previous_progress(self, place: ByteLocation) -> VerifyProgress | None:
        """Return the progress of this run before its interruption.

        None if there is none, or the file or its checksums have changed.
        """
        saved = self._checkpoint.of(self._run.id, place)
        if saved is None:
            return None
        with suppress(OSError, IntegrityError), self._parts.catalog.reading() as seen:
            known = seen.integrity.checksums(place)
            with closing(self._parts.whole_file(place)) as file:
                version = file.version()
            if known is not None and saved.fits(known.sums, version):
                return saved.progress
        return None

    # -- checking

    def _check_item(self, item: _ScrubItem) -> Iterator[ScrubDamage]:
        parts, known = self._parts, None
        with parts.catalog.reading() as seen, suppress(IntegrityError):
            known = seen.integrity.checksums(item.place)
        try:
            if item.place.link_path is not None:
                path = parts.originals.path_at(item.place)
                if not (yield from self._can_open(item, path)):
                    return
            found = self._verify_item(item, None if known is None else known.sums)
        except (FileNotFoundError, IntegrityError):  # the latter for an invalid object key
            if self._is_there(item) and not self._is_elsewhere(item):
                yield self._missing(item)
            return
        except PermissionError as error:
            self.unread.append(error)
            return
        if not self._is_there(item):
            return  # deleted or replaced in the meantime
        if not found.is_whole:
            if item.place.object_key is None and (
                known is None or known.mtime_ns != found.mtime_ns
            ):
                yield self._changed(item)
            else:
                yield self._damaged(item, found)
            return
        if item.place.object_key is not None and self._recorded(item.place.object_key, found.size):
            text = f"{item.place} was not recorded, but its bytes are intact"
            names = self._names(item)
            yield ScrubDamage(item.place, self._kind(item), names, text, (), (), "recorded")
        is_right = known is not None and known.sums == found.sums
        if item.place.object_key is None and known is not None:
            is_right = is_right and known.mtime_ns == found.mtime_ns
        if item.is_original and not is_right:
            self._put_sums(item.place, found)
            if known is not None and known.sums != found.sums:
                text = f"{item.place} had damaged checksums, but its bytes are intact"
                names = self._names(item)
                yield ScrubDamage(item.place, self._kind(item), names, text, (), (), "recomputed")
        if item.is_known_damaged and (damage := self._damage_in_bucket(item)) is not None:
            yield damage
            return
        self._intact.append((item.place, time.time_ns()))
        self._save_progress_if_due()

    def _verify_item(self, item: _ScrubItem, sums: BlockChecksums | None) -> VerifyResult:
        """Read and verify a file. Raises the errors of `verify_stored_file`."""

        def note(tell: Callable[[], VerifyProgress]) -> None:
            assert sums is not None
            self._reading = item.place, sums, tell

        self._reading = None
        progress = item.progress
        # The checksums may have been computed again since the run was planned.
        if progress is not None and (sums is None or not self._checkpoint.is_of(sums)):
            progress = None
        opening = partial(self._parts.whole_file, item.place)
        found = verify_stored_file(
            opening, item.digest, sums, self._read, begun=progress, on_compared=note
        )
        self._reading = None  # the caller records the result
        return found

    def _can_open(self, item: _ScrubItem, path: Path) -> Generator[ScrubDamage, None, bool]:
        """Return whether a file indexed in place can be opened. Raises `FileNotFoundError`.

        Its disk may be unplugged, or its server may not respond. The run continues with the other
        files then.
        """
        try:
            require_linked(path, self._parts.directory.top)
        except IntegrityError as error:
            yield ScrubDamage(item.place, "linked", self._names(item), str(error), (), (), None)
            return False
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in OF_THE_PROCESS:
                raise
            self.unread.append(error)
            return False
        return True

    def _known_damage(self, item: _ScrubItem, ranges: tuple[range, ...]) -> ScrubDamage:
        """Return damage that was found earlier, without reading the file again."""
        error = self._parts.originals.damage_error(item.place, ranges)
        repaired = self._put_back(item)
        names = self._names(item)
        return ScrubDamage(
            item.place, self._kind(item), names, str(error), ranges, error.frames, repaired
        )

    def _missing(self, item: _ScrubItem) -> ScrubDamage:
        names = self._names(item)
        repaired = self._put_back(item) or self._dropped(item)
        text = f"{item.place} is missing"
        if names:
            text += f", which holds {' and '.join(names)}"
        return ScrubDamage(item.place, self._kind(item), names, text, (), (), repaired)

    def _changed(self, item: _ScrubItem) -> ScrubDamage:
        """Report a linked file that was written to, so that its index is no longer valid."""
        text = f"{item.place} has changed since it was indexed"
        return ScrubDamage(item.place, "linked", self._names(item), text, (), (), None)

    def _damaged(self, item: _ScrubItem, found: VerifyResult) -> ScrubDamage:
        parts = self._parts
        names, kind = self._names(item), self._kind(item)
        if not item.is_original:
            how = "is damaged on disk" if found.is_readable else "cannot be read from the disk"
            text = f"{kind} of {' and '.join(names) or 'a removed video'}: {item.place} {how}"
            repaired = self._put_back(item)
            if repaired is None and found.is_readable:  # else it may come back
                repaired = self._dropped(item)
            return ScrubDamage(item.place, kind, names, text, found.damage, (), repaired)
        error = parts.originals.damage_error(item.place, found.damage, is_proven=found.is_readable)
        repaired = self._put_back(item)
        if repaired is None and found.is_readable:  # else it may come back
            with parts.catalog.writing() as change:
                if change.integrity.is_known(item.place):
                    change.integrity.record_inspection(
                        item.place, found.damage, now_ns=time.time_ns()
                    )
        return ScrubDamage(
            item.place, kind, names, str(error), found.damage, error.frames, repaired
        )

    def _read(self, count: int) -> None:
        self._done += count
        self._save_progress_if_due()
        self._report_progress()
        self._rate_limiter.wait(count)

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(min(self._done, self._total), self._total)

    # -- repairing

    def _put_back(self, item: _ScrubItem) -> str | None:
        """Replace an object with a good copy from `sources`.

        None if there is no copy, or it cannot be stored. In the latter case `stuck` has the error,
        and the damage is still reported.
        """
        key, objects = item.place.object_key, self._parts.objects
        if key is None:
            return None  # the store must not write to a linked file
        if objects.give_up_file(key):
            self._record_intact(item)
            return "put back"
        for source in self._sources:
            with ExitStack() as stack:
                try:
                    if not source.exists(key):
                        continue
                    copy = stack.enter_context(objects.verified_copy_of(source, key))
                except (FileNotFoundError, IntegrityError):
                    continue  # missing or damaged there as well
                except (PermissionError, NoSpaceError) as error:
                    self.stuck.append(error)
                    continue
                try:
                    return "put back" if self._exchanged(item, key, copy) else None
                except (
                    *STAYS,
                    LeaseLostError,
                ) as error:  # only the damaged object cannot be replaced
                    self.stuck.append(error)
                    return None
        return None

    def _damage_in_bucket(self, item: _ScrubItem) -> ScrubDamage | None:
        """Replace the bytes in the bucket of an object whose file here is intact, if they are
        damaged; another home has found that."""
        key, objects = item.place.object_key, self._parts.objects
        if key is None or objects.is_local or not objects.is_here(key):
            return None
        with self._parts.catalog.reading() as seen:
            if seen.objects.place(key) is None:
                return None
        repaired = None
        with objects.verified_copy(objects.path(key), key) as copy:
            if self._exchanged(item, key, copy):
                repaired = "put back"
        names = self._names(item)
        text = f"{item.place} is damaged in the bucket, and intact in this home"
        return ScrubDamage(item.place, self._kind(item), names, text, (), (), repaired)

    def _exchanged(self, item: _ScrubItem, key: str, copy: Path) -> bool:
        """Replace an object with a good copy; return False if it is no longer needed."""
        is_needed = put_back(self._parts, key, copy)
        if is_needed:
            self._record_intact(item)
        return is_needed

    def _record_intact(self, item: _ScrubItem) -> None:
        with self._parts.catalog.writing() as change:
            if change.integrity.is_known(item.place):
                change.integrity.record_inspection(item.place, (), now_ns=time.time_ns())

    def _dropped(self, item: _ScrubItem) -> str | None:
        """Drop damaged tiles, or the index of a layer, so that reads use the original instead."""
        if item.is_original:
            return None
        with self._parts.catalog.reading() as seen:
            mine = seen.segments.of_pack(item.digest)
        drop_segments(self._parts, mine)
        drop_index(self._parts, item.digest)
        return "dropped"

    def _recorded(self, key: str, size: int) -> bool:
        """Record an object again if its row was lost; return whether it was."""
        with self._parts.catalog.reading() as seen:
            if seen.objects.is_recorded(key):
                return False
        with self._parts.catalog.writing() as change:
            return change.objects.record_missing(key, size, now_ns=time.time_ns())

    def _put_sums(self, place: ByteLocation, found: VerifyResult) -> None:
        assert found.sums is not None
        mtime_ns = found.mtime_ns if place.object_key is None else None
        with self._parts.catalog.writing() as change:
            if change.integrity.is_known(place):
                change.integrity.put_checksums(place, found.sums, mtime_ns=mtime_ns)

    def _save_progress_if_due(self) -> None:
        if time.monotonic() - self._saved_at > _CHECKPOINT_SECONDS:
            self._save_progress()

    def _save_progress(self) -> None:
        """Record the items found intact, and the position in the file that is being read."""
        if self._reading is not None:
            place, sums, tell = self._reading
            self._checkpoint.write(self._run.id, place, sums, tell())
        with suppress(BusyError):
            self._parts.catalog.record_inspections(self._intact)
            self._intact = []
        self._saved_at = (
            time.monotonic()
        )  # taken at the end, so that slow writes leave time to read

    # -- where an item is used

    def _is_there(self, item: _ScrubItem) -> bool:
        key = item.place.object_key
        with self._parts.catalog.reading() as seen:
            if key is not None:
                return seen.objects.is_needed(key)  # true even if its own row was lost
            return seen.integrity.is_known(item.place)

    def _is_elsewhere(self, item: _ScrubItem) -> bool:
        """Return whether an object may be a file of another home, which that one checks."""
        key = item.place.object_key
        return key is not None and self._parts.objects.is_elsewhere(key)

    def _kind(self, item: _ScrubItem) -> str:
        if not item.is_original:
            with self._parts.catalog.reading() as seen:
                return "index" if seen.layer_indexes.in_object(item.digest) else "tiles"
        with self._parts.catalog.reading() as seen:
            if seen.integrity.vectors_of(item.place):
                return "vectors"
        return "original" if item.place.object_key is not None else "linked"

    def _names(self, item: _ScrubItem) -> tuple[str, ...]:
        with self._parts.catalog.reading() as seen:
            if item.is_original:
                numbers = seen.integrity.videos_of(item.place)
                numbers += seen.integrity.vectors_of(item.place)
            else:
                made = {one.physical_id for one in seen.segments.of_pack(item.digest)}
                made |= {one.physical_id for one in seen.layer_indexes.in_object(item.digest)}
                numbers = sorted({seen.videos.physical(number).video_id for number in made})
            names = []
            for number in numbers:
                with suppress(NotFoundError, IntegrityError):
                    names.append(seen.videos.get(number).name)
            if item.is_original and item.place.object_key is not None:
                names += seen.tree.paths_of_stored(item.place.object_key)
        return tuple(names)
