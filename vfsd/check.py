"""Checks that find, and repair, one broken promise each; and the collection of garbage.

catalog        the database file is whole
orphans        no file without a name is left when nobody can have it open
pending        no file waits for judgement when no mount is there to judge it
links          every file counts as many names as it has, and can be reached
spool          every file that is no video has its private bytes, and nothing else lies there
tiles          every segment of tiles has its pack, with the cells that it says; joined ones come
               in pairs
decisions      every decision to tile means the segment that it has made
objects        every recorded object is there, in its full size
garbage        nothing lies among the objects that the catalog does not know
budgets        what derived data takes keeps within its budgets, and pins are of frames there are
videos         every video has an original and a frame table that adds up
linked         every file indexed in place is where it was, what it was, and one that may be shown
sums           the sums of blocks are of files that there are, and as many as these have blocks
damage         no original is known to be damaged
content        (deep) every object's bytes hash to its name
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from vfsd import bytescheck, soundcheck
from vfsd.blocksums import Place
from vfsd.budgetcheck import faults as budget_faults
from vfsd.catalog import ROOT, Transaction
from vfsd.codecs.pack import open_pack
from vfsd.errors import IntegrityError, NotFoundError, RefusedMediaError
from vfsd.ingest import describe_original, pages, put_sound
from vfsd.joinedpictures import side_of
from vfsd.linkedfile import open_linked
from vfsd.mending import drop_segments
from vfsd.model import FileState, Node, PhysicalVideo, Segment
from vfsd.objects import digest, is_alive, is_key
from vfsd.parts import Parts
from vfsd.reclaim import discard_unpublished, reclaim
from vfsd.settle import recover_orphans, settle_file
from vfsd.tiling.cost import JOINED_SIDES

LOST_AND_FOUND = "lost+found"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise."""

    check: str
    message: str
    repaired: bool


@dataclass(frozen=True, slots=True)
class Collected:
    """Garbage that was, or would be, taken away."""

    objects: list[str] = field(default_factory=list)  #: keys
    files: list[Path] = field(default_factory=list)  #: private and temporary files
    bytes: int = 0


OnProgress = Callable[[str, int, int], None]
"""Called with (name of the check, checks done, checks in all)."""


@dataclass(frozen=True, slots=True)
class _Run:
    parts: Parts
    repair: bool
    mounted: bool

    def report(self, check: str, message: str, *, repaired: bool = False) -> Finding:
        return Finding(check, message, repaired)


def run(
    parts: Parts,
    *,
    repair: bool = False,
    deep: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Finding]:
    """Run every check; what they found, and whether it was repaired.

    Checks that only make sense on a store at rest are left out while it is mounted.
    """
    state = _Run(parts, repair, parts.directory.mounted_by() is not None)
    checks = [
        ("catalog", _catalog),
        ("orphans", _orphans),
        ("pending", _pending),
        ("links", _links),
        ("spool", _spool),
        ("tiles", _tiles),
        ("decisions", _decisions),
        ("objects", _objects),
        ("garbage", _garbage),
        ("budgets", _budgets),
        ("videos", _videos),
        ("linked", _linked),
        ("sums", _sums),
        ("damage", _damage),
    ]
    if deep:
        checks.append(("content", _content))
    findings: list[Finding] = []
    for done, (name, check) in enumerate(checks):
        if on_progress is not None:
            on_progress(name, done, len(checks))
        findings += check(state)
    return findings


def collect(parts: Parts, *, dry_run: bool = False) -> Collected:
    """Take away what nothing refers to: objects, private files, what died on its way."""
    with parts.catalog.reading() as seen:
        recorded = seen.objects.sizes()
        referenced = seen.objects.referenced()
    stray = [key for key in parts.objects.all_keys() if key not in recorded]
    unused = [key for key in recorded if key not in referenced]
    files = [*parts.objects.leftovers(), *parts.objects.misnamed(), *_dead_copies(parts)]
    spooled = [path for _, path in _stray_spool(parts)]
    size = sum(_size(path) for path in files + spooled)
    size += sum(_size(parts.objects.path(key)) for key in stray + unused if is_key(key))
    if not dry_run:
        reclaim(parts, keys=unused)
        for key in stray:
            discard_unpublished(parts, key)
        for path in files:
            path.unlink(missing_ok=True)
        _remove_stray_spool(parts)
    return Collected(unused + stray, files + spooled, size)


# ----------------------------------------------------------------------------------- the checks


def _catalog(state: _Run) -> Iterator[Finding]:
    for message in state.parts.catalog.damage():
        yield state.report("catalog", message)


def _orphans(state: _Run) -> Iterator[Finding]:
    if state.mounted:
        return
    with state.parts.catalog.reading() as seen:
        count = len(seen.tree.orphans())
    if count:
        if state.repair:
            recover_orphans(state.parts)
        yield state.report(
            "orphans", f"{count} files without a name are left over", repaired=state.repair
        )


def _pending(state: _Run) -> Iterator[Finding]:
    if state.mounted:
        return
    with state.parts.catalog.reading() as seen:
        waiting = seen.tree.files_in_state(FileState.SPOOLED)
        names = {node.ino: seen.tree.paths_of(node.ino) for node in waiting}
    for node in waiting:
        if not state.parts.directory.spool_file(node.ino).exists():
            continue  # "spool" has to see to that first
        done = state.repair and settle_file(state.parts, node) is not None
        name = (names[node.ino] or [f"inode {node.ino}"])[0]
        yield state.report("pending", f"{name!r} waits to be judged", repaired=done)


def _links(state: _Run) -> Iterator[Finding]:
    with state.parts.catalog.reading() as seen:
        counted = {node.ino: 0 for node in seen.tree.all_nodes()}
        nodes = {node.ino: node for node in seen.tree.all_nodes()}
        nameless = {ino for ino, _ in seen.tree.orphans()}
        subdirectories: dict[int, int] = dict.fromkeys(counted, 0)
        reached = {ROOT}
        _count_names(seen, ROOT, counted, subdirectories, reached)
    for ino, node in nodes.items():
        if ino == ROOT or ino in nameless:
            continue
        if ino not in reached:
            if state.repair:
                _to_lost_and_found(state.parts, node)
            yield state.report(
                "links", f"inode {ino} cannot be reached by any name", repaired=state.repair
            )
    for ino, node in nodes.items():
        if ino not in reached or ino in nameless:
            continue
        right = 2 + subdirectories[ino] if node.is_dir else counted[ino]
        if node.nlink != right:
            if state.repair:
                with state.parts.catalog.writing() as change:
                    change.tree.update(ino, nlink=right)
            yield state.report(
                "links",
                f"inode {ino} counts {node.nlink} names and has {right}",
                repaired=state.repair,
            )


def _count_names(
    seen: Transaction,
    directory: int,
    counted: dict[int, int],
    subdirectories: dict[int, int],
    reached: set[int],
) -> None:
    stack = [directory]
    while stack:
        at = stack.pop()
        for _, child in seen.tree.children(at):
            counted[child.ino] += 1
            if child.is_dir:
                subdirectories[at] += 1
                if child.ino not in reached:
                    stack.append(child.ino)
            reached.add(child.ino)


def _to_lost_and_found(parts: Parts, node: Node) -> None:
    now = time.time_ns()
    with parts.catalog.writing() as change:
        place = change.tree.lookup(ROOT, LOST_AND_FOUND)
        if place is None:
            place = change.tree.create(
                ROOT, LOST_AND_FOUND, stat.S_IFDIR | 0o700, uid=0, gid=0, now_ns=now
            )
        change.tree.update(node.ino, nlink=1 if node.is_dir else 0)
        change.tree.link(node.ino, place.ino, f"#{node.ino}", now_ns=now)


def _spool(state: _Run) -> Iterator[Finding]:
    parts = state.parts
    with parts.catalog.reading() as seen:
        own = [
            node
            for wanted in (FileState.SPOOLED, FileState.PLAIN)
            for node in seen.tree.files_in_state(wanted)
        ]
    for node in own:
        path = parts.directory.spool_file(node.ino)
        if not path.exists():
            if state.repair:
                path.touch(mode=0o600)
                with parts.catalog.writing() as change:
                    change.tree.update(
                        node.ino, state=FileState.PLAIN, reason="its bytes were lost in a crash"
                    )
            yield state.report(
                "spool", f"the bytes of inode {node.ino} are missing", repaired=state.repair
            )
    stray = list(_stray_spool(parts))
    if state.repair:
        _remove_stray_spool(parts)
    for ino, _ in stray:
        yield state.report(
            "spool", f"private bytes of inode {ino} that nobody needs", repaired=state.repair
        )


def _stray_spool(parts: Parts) -> Iterator[tuple[int, Path]]:
    listed = sorted(parts.directory.spooled())
    with parts.catalog.reading() as seen:
        for ino, path in listed:
            if not _needs_spool(seen, ino):
                yield ino, path


def _dead_copies(parts: Parts) -> Iterator[Path]:
    """What mounts that were killed were just copying to be written (``INODE.PID.copy``)."""
    for path in sorted(parts.directory.spool.glob("*.*.copy")):
        if not is_alive(path.name.split(".")[1] + "-"):
            yield path


def _remove_stray_spool(parts: Parts) -> None:
    """Inside a write transaction: a mount makes a private file and its row in one, too."""
    suspects = list(_stray_spool(parts))
    if not suspects:
        return
    parts.catalog.sync()
    with parts.catalog.writing() as change:
        for ino, path in suspects:
            if not _needs_spool(change, ino):
                path.unlink(missing_ok=True)


def _needs_spool(seen: Transaction, ino: int) -> bool:
    try:
        return seen.tree.node(ino).state in (FileState.SPOOLED, FileState.PLAIN)
    except NotFoundError:
        return False


def _tiles(state: _Run) -> Iterator[Finding]:
    parts = state.parts
    with parts.catalog.reading() as seen:
        segments = seen.segments.all()
    joined: dict[str, list[Segment]] = {}
    for segment in segments:
        if segment.is_joined:
            joined.setdefault(segment.object_key, []).append(segment)
    for segment in segments:
        fault, size = None, segment.size
        if segment.is_joined:
            both = joined[segment.object_key]
            size = sum(one.size for one in both)
            if sorted(one.profile for one in both) != sorted(JOINED_SIDES):
                fault = "the other camera's that they are joined with are gone"
        fault = fault or _pack_fault(parts, segment, size)
        if fault is None:
            continue
        if state.repair:
            drop_segments(parts, [segment])
        yield state.report(
            "tiles",
            f"tiles of frames {segment.first_frame} to {segment.end_frame - 1}: {fault}",
            repaired=state.repair,
        )


def _pack_fault(parts: Parts, segment: Segment, expected: int) -> str | None:
    """What is wrong with a pack that should have so many bytes."""
    try:
        fd, table = open_pack(parts.objects.path(segment.object_key))
    except FileNotFoundError:
        return f"their pack {segment.object_key} is missing"
    except IntegrityError as error:
        return str(error)
    size = os.fstat(fd).st_size
    os.close(fd)
    if size != expected:
        return f"their pack has {size} bytes, not {expected}"
    try:
        there = table.cells
        if segment.is_joined:
            there = [side_of(table.joint, table.cells, segment.profile).extent(table.cells)]
    except IntegrityError as error:
        return str(error)
    if [(cell.position, cell.size) for cell in there] != [
        (cell.position, cell.size) for cell in segment.cells
    ]:
        return "their pack has other cells"
    return None


def _decisions(state: _Run) -> Iterator[Finding]:
    parts = state.parts
    with parts.catalog.reading() as seen:
        decisions = seen.decisions.newest()
        segments = {segment.id: segment for segment in seen.segments.all()}
    for one in decisions:
        if one.segment_id is None:
            continue  # what it made has gone since
        segment = segments.get(one.segment_id)
        if segment is None or (segment.frames, segment.layout) != (one.frames, one.layout):
            if state.repair:
                with parts.catalog.writing() as change:
                    change.decisions.forget_segment(one.id)
            yield state.report(
                "decisions",
                f"decision {one.id} calls other tiles its own",
                repaired=state.repair,
            )
        elif one.undone_ns is not None and one.in_use:
            if state.repair:
                with parts.catalog.writing() as change:
                    change.decisions.note_redone([segment.id])
            yield state.report(
                "decisions",
                f"decision {one.id} was taken back, and its tiles are in use",
                repaired=state.repair,
            )


def _objects(state: _Run) -> Iterator[Finding]:
    with state.parts.catalog.reading() as seen:
        recorded = seen.objects.sizes()
        packs = {segment.object_key for segment in seen.segments.all()}  # see "tiles"
    for key, size in sorted(recorded.items()):
        if key in packs:
            continue
        if not is_key(key):
            yield state.report("objects", f"{key[:80]!r} is no name of an object")
            continue
        path = state.parts.objects.path(key)
        if not path.exists():
            yield state.report("objects", f"object {key} is missing ({size} bytes)")
        elif path.stat().st_size != size:
            yield state.report(
                "objects", f"object {key} has {path.stat().st_size} bytes, not {size}"
            )


def _garbage(state: _Run) -> Iterator[Finding]:
    parts = state.parts
    if state.mounted:
        return  # it may be on its way into the catalog
    with parts.catalog.reading() as seen:
        recorded = seen.objects.sizes()
    for key in parts.objects.all_keys():
        if key not in recorded:
            if state.repair:
                discard_unpublished(parts, key)
            yield state.report(
                "garbage", f"object {key} is not in the catalog", repaired=state.repair
            )
    left = [*parts.objects.leftovers(), *parts.objects.misnamed(), *_dead_copies(parts)]
    for path in left:
        if state.repair:
            path.unlink(missing_ok=True)
        yield state.report("garbage", f"{path.name} was left on its way", repaired=state.repair)


def _budgets(state: _Run) -> Iterator[Finding]:
    for message in budget_faults(state.parts, repair=state.repair):
        yield state.report("budgets", message, repaired=state.repair)


def _videos(state: _Run) -> Iterator[Finding]:
    parts = state.parts
    with parts.catalog.reading() as seen:
        files = seen.tree.files_in_state(FileState.VIDEO)
    for node in files:
        with parts.catalog.reading() as seen:
            names = seen.tree.paths_of(node.ino) or [f"inode {node.ino}"]
            try:
                video = seen.videos.of_inode(node.ino)
            except (NotFoundError, IntegrityError):
                video = None
            wrong, repair = "has no original", partial(_index_again, parts, node)
            if video is not None:
                wrong = _table_fault(seen, video.original) or ""
            if video is not None and not wrong:
                wrong = soundcheck.fault(seen, video.original) or ""
                repair = partial(soundcheck.index_again, parts, video.original)
        if not wrong:
            continue
        fixed = state.repair and repair()
        yield state.report("videos", f"{names[0]!r} {wrong}", repaired=fixed)


def _table_fault(seen: Transaction, physical: PhysicalVideo) -> str | None:
    bounds = seen.videos.page_bounds(physical.id)
    packets = frames = 0
    for page in bounds:
        if (page.first_packet, page.first_frame) != (packets, frames):
            return "has a gap in its frame table"
        packets += page.packets
        frames += page.frames
    if (packets, frames) != (physical.packets, physical.frames):
        return f"has a frame table of {frames} frames, not {physical.frames}"
    return None


def _index_again(parts: Parts, node: Node) -> bool:
    path = Path(node.link_path) if node.link_path else parts.objects.path(node.object_key or "")
    try:
        found = parts.examiner.examine(path)
        with open(path, "rb") as file:
            mtime_ns = os.fstat(file.fileno()).st_mtime_ns
            key, size, sums = digest(file.fileno())
    except (OSError, RefusedMediaError):
        return False
    if node.object_key not in (None, key):
        return False  # it is damaged, and what it holds now was never stored
    now = time.time_ns()
    original = describe_original(
        found, object_key=node.object_key, link_path=node.link_path, size=size, now_ns=now
    )
    with parts.catalog.writing() as change:
        video = change.videos.put(node.ino, original, pages(found), digest=key, now_ns=now)
        put_sound(change, video.original, found)
        change.integrity.put_sums(
            video.original.place, sums, mtime_ns=None if node.link_path is None else mtime_ns
        )
    return True


def _linked(state: _Run) -> Iterator[Finding]:
    with state.parts.catalog.reading() as seen:
        files = seen.tree.files_in_state(FileState.VIDEO)
    for node in files:
        if node.link_path is None:
            continue
        path = Path(node.link_path)
        try:
            fd = open_linked(path, state.parts.directory.root)
        except FileNotFoundError:
            yield state.report("linked", f"{path} is not there any more")
            continue
        except (IntegrityError, OSError) as error:
            yield state.report("linked", str(error))
            continue
        found = os.fstat(fd)
        os.close(fd)
        with state.parts.catalog.reading() as seen, suppress(IntegrityError):
            known = seen.integrity.sums(Place(None, node.link_path))
            mtime_ns = found.st_mtime_ns if known is None else known.mtime_ns
            if (found.st_size, found.st_mtime_ns) != (node.size, mtime_ns):
                yield state.report("linked", f"{path} has changed since it was indexed")


def _sums(state: _Run) -> Iterator[Finding]:
    for message in bytescheck.stray_sums(state.parts, repair=state.repair):
        yield state.report("sums", message, repaired=state.repair)


def _damage(state: _Run) -> Iterator[Finding]:
    for message, repaired in bytescheck.known_damage(state.parts, repair=state.repair):
        yield state.report("damage", message, repaired=repaired)


def _content(state: _Run) -> Iterator[Finding]:
    with state.parts.catalog.reading() as seen:
        segments = seen.segments.all()
    for key in list(state.parts.objects.all_keys()):
        message = bytescheck.damage_of_object(state.parts, key)
        if message is None:
            continue
        tiles = [segment for segment in segments if segment.object_key == key]
        if tiles and state.repair:
            drop_segments(state.parts, tiles)
        yield state.report(
            "content",
            f"{'pack' if tiles else 'object'} {key} is damaged: {message}",
            repaired=bool(tiles) and state.repair,
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
