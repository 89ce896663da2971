"""Originals: their tables, those that are indexed in place, and what is known of their bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from vfsd.budget.reclaim import clear_away
from vfsd.catalog import Transaction
from vfsd.check import bytes as stored
from vfsd.check import sound
from vfsd.check.finding import Finding, Run
from vfsd.errors import IntegrityError, NotFoundError, RefusedMediaError
from vfsd.integrity.blocksums import Place
from vfsd.integrity.linkedfile import open_linked
from vfsd.making.ingest import describe_original, file_version, pages, put_sound
from vfsd.model import FileState, Node, PhysicalVideo
from vfsd.objects import digest_file
from vfsd.parts import Parts


def videos(run: Run) -> Iterator[Finding]:
    parts = run.parts
    with parts.catalog.reading() as seen:
        files = seen.tree.files_in_state(FileState.VIDEO)
    for node in files:
        with parts.catalog.reading() as seen:
            if not _is_same(seen, node):
                continue  # it was written into, or has gone
            names = seen.tree.paths_of(node.ino) or [f"inode {node.ino}"]
            try:
                video = seen.videos.of_inode(node.ino)
            except (NotFoundError, IntegrityError):
                video = None
            wrong = "has no original"
            repair: Callable[[], bool | None] = partial(_index_again, parts, node)
            if video is not None:
                wrong = _table_fault(seen, video.original) or ""
            if video is not None and not wrong:
                wrong = sound.fault(seen, video.original) or ""
                repair = partial(sound.index_again, parts, video.original)
        if not wrong:
            continue
        fixed = run.repair and repair()
        if fixed is None:
            continue
        yield Finding("videos", f"{names[0]!r} {wrong}", repaired=fixed)


def _is_same(seen: Transaction, node: Node) -> bool:
    """Whether it is still the video that it was when it was looked at."""
    now = seen.tree.nodes([node.ino]).get(node.ino)
    return (
        now is not None
        and now.state is FileState.VIDEO
        and (now.generation, now.object_key, now.link_path)
        == (node.generation, node.object_key, node.link_path)
    )


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


def _index_again(parts: Parts, node: Node) -> bool | None:
    """False where the file does not let itself be read; None where it has become another."""
    path = Path(node.link_path) if node.link_path else parts.objects.path(node.object_key or "")
    try:
        before = path.stat()
        found = parts.examiner.examine(path)
        key, size, sums = digest_file(path)
        if file_version(path.stat()) != file_version(before):
            return False  # somebody writes it, and may be done the next time
    except (OSError, RefusedMediaError):
        return False
    if node.object_key not in (None, key):
        return False  # it is damaged, and what it holds now was never stored
    now = time.time_ns()
    original = describe_original(
        found, object_key=node.object_key, link_path=node.link_path, size=size, now_ns=now
    )
    with parts.catalog.writing() as change:
        if not _is_same(change, node):
            return None
        gone = change.objects.of_file(node.ino)
        video = change.videos.put(node.ino, original, pages(found), digest=key, now_ns=now)
        put_sound(change, video.original, found)
        change.integrity.put_sums(
            video.original.place,
            sums,
            mtime_ns=None if node.link_path is None else before.st_mtime_ns,
        )
    clear_away(parts, keys=gone)
    return True


def linked(run: Run) -> Iterator[Finding]:
    with run.parts.catalog.reading() as seen:
        files = seen.tree.files_in_state(FileState.VIDEO)
    for node in files:
        if node.link_path is None:
            continue
        path = Path(node.link_path)
        try:
            fd = open_linked(path, run.parts.directory.root)
        except (IntegrityError, OSError) as error:
            is_gone = isinstance(error, FileNotFoundError)
            with run.parts.catalog.reading() as seen:
                if _is_same(seen, node):
                    message = f"{path} is not there any more" if is_gone else str(error)
                    yield Finding("linked", message)
            continue
        found = os.fstat(fd)
        os.close(fd)
        with run.parts.catalog.reading() as seen, suppress(IntegrityError):
            if not _is_same(seen, node):
                continue
            known = seen.integrity.sums(Place(None, node.link_path))
            mtime_ns = found.st_mtime_ns if known is None else known.mtime_ns
            if (found.st_size, found.st_mtime_ns) != (node.size, mtime_ns):
                yield Finding("linked", f"{path} has changed since it was indexed")


def sums(run: Run) -> Iterator[Finding]:
    for message in stored.stray_sums(run.parts, repair=run.repair):
        yield Finding("sums", message, repaired=run.repair)


def damage(run: Run) -> Iterator[Finding]:
    for message, repaired in stored.known_damage(run.parts, repair=run.repair):
        yield Finding("damage", message, repaired=repaired)
