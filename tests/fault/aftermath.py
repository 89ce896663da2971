"""Checks of a store after an operation was interrupted: finds losses, leftovers and differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from tests.fault.operations import Operation, Place
from tests.fault.state import State, state_of
from vfsd.api.store import Store
from vfsd.codecs.probing.probe import Examination
from vfsd.codecs.probing.probe import examine as examine_file
from vfsd.core.model import FileState
from vfsd.disk.view_cache_dir import stray_files
from vfsd.errors import NoStoreError, VfsdError
from vfsd.maintenance import fsck
from vfsd.mount.fs import Filesystem
from vfsd.storage.sandbox_pool import Examiner, OnProgress, sniff_open

_EXPECTED = frozenset({"orphans", "pending", "spool", "garbage", "recordings"})
"""The kinds of leftovers that a crash may leave for the next mount or `fsck` to clean up."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The states that are correct after the interruption."""

    states: Sequence[State]  #: after 0, 1, ... steps, in an undisturbed run
    first: int  #: the number of steps that must have happened
    last: int  #: the largest number of steps that may have happened
    has_spool: bool  #: whether a file's private bytes have to be there


@dataclass(slots=True)
class Found:
    """The findings about one store."""

    losses: list[str] = field(default_factory=list)
    dangling: list[str] = field(default_factory=list)  #: rows without bytes, or that do not add up
    orphans: list[str] = field(default_factory=list)  #: bytes without rows, after gc
    is_unchanged: bool = False  #: as before the first step

    @property
    def problems(self) -> list[str]:
        return [*self.losses, *self.dangling, *self.orphans]


class ExaminerHere(Examiner):
    """Examine files in this process, which is a child already.  Starting another process for each
    opened store would take longer than everything else."""

    def examine_open(
        self,
        fd: int,
        called: str,
        *,
        full: bool = False,
        stream: int | None = None,
        in_largest_size: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Examination:
        sniff_open(fd, called)
        return examine_file(
            f"/proc/self/fd/{fd}",
            name=called,
            full=full,
            stream=stream,
            in_largest_size=in_largest_size,
            on_progress=on_progress,
        )


def examine(
    operation: Operation,
    place: Place,
    expected: Expected,
    *,
    mounts: bool,
    deep: bool,
    again: bool,
) -> Found:
    """Open the store, repair it as a mount or `fsck` does, and check everything.

    With `deep`, each object is hashed and pixels are compared; with `again`, the operation is
    repeated where nothing of it is there.
    """
    with mock.patch("vfsd.storage.context.Examiner", ExaminerHere):
        return _examined(operation, place, expected, mounts, deep, again)


def _examined(
    operation: Operation, place: Place, expected: Expected, mounts: bool, deep: bool, again: bool
) -> Found:
    found = Found()
    try:
        if operation.is_init:
            _finish_init(place, place.elsewhere if operation.name == "init-elsewhere" else None)
        with place.reopened() as store:
            _look(store, operation, expected, found, mounts=mounts, deep=deep)
            if deep:
                _compare_pixels(store, found)
        if operation.name == "backup":
            _look_at_backup(place, expected, found)
        if again and found.is_unchanged and operation.again:
            _repeat(operation, place, expected, found)
    except Exception as error:
        found.losses.append(f"the store cannot be used: {type(error).__name__}: {error}")
    return found


def _finish_init(place: Place, catalog_url: str | None) -> None:
    """`vfsd init` says that there is a store, or makes one."""
    try:
        Store.open(place.store).close()
    except NoStoreError:
        Store.create(place.store, catalog_url=catalog_url).close()


def _look(
    store: Store,
    operation: Operation,
    expected: Expected,
    found: Found,
    *,
    mounts: bool,
    deep: bool,
) -> None:
    parts = store.parts
    amiss = fsck.run(parts)
    for finding in amiss:
        excused = finding.check in _EXPECTED and not (
            expected.has_spool and "are missing" in finding.message
        )
        if not excused and not operation.damaged:
            found.dangling.append(f"{finding.check}: {finding.message}")
    if mounts:
        fs = Filesystem(parts)
        fs.recover()
        fs.settle()
        fs.close()
    if amiss or deep:
        for finding in fsck.run(parts, repair=True, deep=deep):
            if not finding.repaired and finding.check != "recordings":
                found.losses.append(f"not repaired: {finding.check}: {finding.message}")
        found.losses += [
            f"still: {each.check}: {each.message}"
            for each in fsck.run(parts)
            if each.check != "recordings"
        ]
    fsck.collect(parts, recording_days=0)
    found.orphans += garbage(store)
    now = state_of(store)
    loose = operation.loose_names(range(expected.first, expected.last))
    between = expected.states[expected.first : expected.last + 1]
    differences = [now.differs(state, but=loose) for state in between]
    if all(differences):
        found.losses.append(f"neither before nor after: {differences[0]} / {differences[-1]}")
    if (
        not operation.gradual
        and not any(
            now.segments == state.segments
            for state, differs in zip(between, differences, strict=True)
            if not differs
        )
        and not all(differences)
    ):
        found.losses.append("segments are neither those before nor those after")
    unknown = now.segments - frozenset().union(*(state.segments for state in expected.states))
    if unknown and not operation.damaged:
        found.losses.append(f"unexpected segments: {sorted(unknown, key=repr)[:2]}")
    found.is_unchanged = now == expected.states[0]


def garbage(store: Store) -> list[str]:
    """Bytes in a store that nothing refers to."""
    parts = store.parts
    with parts.catalog.reading() as seen:
        wanted = seen.objects.referenced()
        nodes = list(seen.tree.all_nodes())
        digests = seen.videos.digests()
    own = {str(n.ino) for n in nodes if n.state in (FileState.SPOOLED, FileState.PLAIN)}
    left = [f"object {key} is garbage" for key in parts.objects.all_keys() if key not in wanted]
    left += [f"private file {p.name}" for p in parts.directory.spool.iterdir() if p.name not in own]
    left += [f"temporary file {path.name}" for path in parts.directory.objects_tmp.iterdir()]
    left += [f"view {path}" for path in stray_files(parts.directory.cache, digests)]
    known = {
        "vfsd-store.json",
        "config.toml",
        "mount.lock",
        "objects",
        "spool",
        "cache",
        "reserve",
        "mount.decoding",
        "mount.rendering",
        "suspects.json",
        "scrub.json",
    }
    left += [
        f"{path.name} next to the catalog"
        for path in store.path.iterdir()
        if path.name not in known and not path.name.startswith(("catalog.sqlite3", "replaced-"))
    ]
    return left


def _compare_pixels(store: Store, found: Found) -> None:
    """Compare the pixels of tiles and renditions with those of the original."""
    for video in store.find():
        middle = len(video) // 2
        region = (0, 0, video.width // 2, video.height // 2)
        shown = video.read(frames=[0, middle], region=region, psnr=20).data
        with_all = video.read(frames=[0, middle], psnr=200).data
        right = with_all[:, : shown.shape[1], : shown.shape[2]]
        error = float(np.mean((shown.astype(float) - right.astype(float)) ** 2))
        if error > _POOREST:
            found.losses.append(f"{video.name} shows something else (squared error {error:.0f})")


_POOREST = 255.0**2 / 10**2.4
"""24 dB, as a mean squared error: coarse tiles of noise are better."""


def _look_at_backup(place: Place, expected: Expected, found: Found) -> None:
    """Check that the backup is missing, or complete and equal to the store when it was made."""
    try:
        copy = Store.open(place.backup)
    except NoStoreError:
        return
    with copy:
        for finding in fsck.run(copy.parts, repair=True, deep=True):
            if finding.check not in _EXPECTED:
                found.losses.append(f"the backup: {finding.check}: {finding.message}")
        now = state_of(copy)
        differences = [now.differs(expected.states[at]) for at in (0, -1)]
        if all(differences):
            found.losses.append(f"the backup is neither: {' / '.join(differences)}")


def _repeat(operation: Operation, place: Place, expected: Expected, found: Found) -> None:
    try:
        for _ in operation.work(place):
            pass
    except (VfsdError, OSError) as error:
        found.losses.append(f"cannot be done again: {type(error).__name__}: {error}")
        return
    with place.reopened() as store:
        different = state_of(store).differs(expected.states[-1])
    if different:
        found.losses.append(f"done again it is not the same: {different}")
