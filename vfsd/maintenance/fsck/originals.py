"""Checks of originals: frame tables, files indexed in place, audio tables and recorded damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from vfsd.core.model import ByteLocation, FileState, Node, PhysicalVideo
from vfsd.disk.external_files import open_linked
from vfsd.errors import IntegrityError, NotFoundError, RefusedMediaError
from vfsd.maintenance.fsck import checksums as stored
from vfsd.maintenance.fsck.finding import CheckRun, Finding
from vfsd.storage.context import StoreContext
from vfsd.write.ingest_file import put_audio
from vfsd.write.rebuild_index import is_same_file, rebuild_frame_index, sound_fault, table_fault


def rebuild_audio_index(parts: StoreContext, original: PhysicalVideo) -> bool | None:
    """False where the file does not let itself be read; None where it is no original any more."""
    try:
        found = parts.examine(original, name="a video")  # nobody is told why it is refused
    except (OSError, IntegrityError, RefusedMediaError):
        return False
    with parts.catalog.writing() as change:
        try:
            change.videos.require_there(original.id)
        except NotFoundError:
            return None
        put_audio(change, original, found)
    return True


def digests(run: CheckRun) -> Iterator[Finding]:
    """Objects are named by their content, and so that is what a video has to go by."""
    with run.parts.catalog.reading() as seen:
        wrong = seen.integrity.digest_mismatches()
    for one in wrong:
        if run.repair:
            with run.parts.catalog.writing() as change:
                change.integrity.correct_digest(one)
        with run.parts.catalog.reading() as seen:
            names = seen.tree.paths_of(one.ino) or [f"inode {one.ino}"]
        told = f"{names[0]!r} is object {one.object_key}, and is called {one.digest!r:.80}"
        yield Finding("digests", told, repaired=run.repair)


def videos(run: CheckRun) -> Iterator[Finding]:
    return _of_each(run, "videos", _wrong_of)


def linked(run: CheckRun) -> Iterator[Finding]:
    return _of_each(run, "linked", _changed)


def _of_each(
    run: CheckRun, check: str, look: Callable[[CheckRun, Node], Finding | None]
) -> Iterator[Finding]:
    """What is found by looking at each video by itself: rows of one may make so little sense that
    not even this can be done."""
    with run.parts.catalog.reading() as seen:
        inodes = seen.tree.inodes_in_state(FileState.VIDEO)
    for ino in inodes:
        try:
            with run.parts.catalog.reading() as seen:
                node = seen.tree.nodes([ino]).get(ino)
            found = None
            if node is not None and node.state is FileState.VIDEO:
                found = look(run, node)
        except IntegrityError as error:
            found = Finding(check, f"inode {ino} cannot be looked at: {error}")
        if found is not None:
            yield found


def _wrong_of(run: CheckRun, node: Node) -> Finding | None:
    """None where nothing is wrong, or it has gone."""
    parts = run.parts
    with parts.catalog.reading() as seen:
        if not is_same_file(seen, node):
            return None  # it was written into, or has gone
        names = seen.tree.paths_of(node.ino) or [f"inode {node.ino}"]
        try:
            original = seen.videos.by_inode(node.ino).original
        except (NotFoundError, IntegrityError):
            wrong: str | None = "has no original"
        else:
            wrong = table_fault(seen, node, original)
        repair: Callable[[], bool | None] = partial(rebuild_frame_index, parts, node)
        if wrong is None:
            wrong = sound_fault(seen, original)
            repair = partial(rebuild_audio_index, parts, original)
    if wrong is None:
        return None
    fixed = run.repair and repair()
    if fixed is None:
        return None
    return Finding("videos", f"{names[0]!r} {wrong}", repaired=fixed)


def _changed(run: CheckRun, node: Node) -> Finding | None:
    """None where it is as it was indexed, or is no linked file."""
    if node.link_path is None:
        return None
    path = Path(node.link_path)
    try:
        fd = open_linked(path, run.parts.directory.top)
    except (IntegrityError, OSError) as error:
        is_gone = isinstance(error, FileNotFoundError)
        with run.parts.catalog.reading() as seen:
            if not is_same_file(seen, node):
                return None
        return Finding("linked", f"{path} is not there any more" if is_gone else str(error))
    found = os.fstat(fd)
    os.close(fd)
    with run.parts.catalog.reading() as seen, suppress(IntegrityError):  # see "sums"
        if not is_same_file(seen, node):
            return None
        known = seen.integrity.checksums(ByteLocation(None, node.link_path))
        mtime_ns = found.st_mtime_ns if known is None else known.mtime_ns
        if (found.st_size, found.st_mtime_ns) != (node.size, mtime_ns):
            return Finding("linked", f"{path} has changed since it was indexed")
    return None


def sums(run: CheckRun) -> Iterator[Finding]:
    for message in stored.stray_sums(run.parts, repair=run.repair):
        yield Finding("sums", message, repaired=run.repair)


def damage(run: CheckRun) -> Iterator[Finding]:
    for message, repaired in stored.known_damage(run.parts, repair=run.repair):
        yield Finding("damage", message, repaired=repaired)
