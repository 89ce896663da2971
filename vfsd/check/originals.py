"""Originals: their tables, those that are indexed in place, and what is known of their bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from vfsd.check import bytes as stored
from vfsd.check import sound
from vfsd.check.finding import Finding, Run
from vfsd.errors import IntegrityError, NotFoundError
from vfsd.integrity.blocksums import Place
from vfsd.integrity.linkedfile import open_linked
from vfsd.making.reindexing import index_again, is_same_file, sound_fault, table_fault
from vfsd.model import FileState


def digests(run: Run) -> Iterator[Finding]:
    """Objects are named by their content, and so that is what a video has to go by."""
    with run.parts.catalog.reading() as seen:
        wrong = seen.integrity.strange_digests()
    for one in wrong:
        if run.repair:
            with run.parts.catalog.writing() as change:
                change.integrity.put_digest(one)
        with run.parts.catalog.reading() as seen:
            names = seen.tree.paths_of(one.ino) or [f"inode {one.ino}"]
        told = f"{names[0]!r} is object {one.object_key}, and is called {one.digest!r:.80}"
        yield Finding("digests", told, repaired=run.repair)


def videos(run: Run) -> Iterator[Finding]:
    parts = run.parts
    with parts.catalog.reading() as seen:
        files = seen.tree.files_in_state(FileState.VIDEO)
    for node in files:
        with parts.catalog.reading() as seen:
            if not is_same_file(seen, node):
                continue  # it was written into, or has gone
            names = seen.tree.paths_of(node.ino) or [f"inode {node.ino}"]
            try:
                original = seen.videos.of_inode(node.ino).original
            except (NotFoundError, IntegrityError):
                wrong: str | None = "has no original"
            else:
                wrong = table_fault(seen, node, original)
            repair: Callable[[], bool | None] = partial(index_again, parts, node)
            if wrong is None:
                wrong = sound_fault(seen, original)
                repair = partial(sound.index_again, parts, original)
        if wrong is None:
            continue
        fixed = run.repair and repair()
        if fixed is None:
            continue
        yield Finding("videos", f"{names[0]!r} {wrong}", repaired=fixed)


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
                if is_same_file(seen, node):
                    message = f"{path} is not there any more" if is_gone else str(error)
                    yield Finding("linked", message)
            continue
        found = os.fstat(fd)
        os.close(fd)
        with run.parts.catalog.reading() as seen, suppress(IntegrityError):
            if not is_same_file(seen, node):
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
