"""Checks of originals: frame tables, numbers of boxes, linked files, audio and recorded damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from vfsd.core.model import ByteLocation, FileState, Node, PhysicalVideo
from vfsd.core.vectors import StoredVectors
from vfsd.disk.external_files import open_linked
from vfsd.errors import IntegrityError, NotFoundError, RefusedMediaError
from vfsd.maintenance.fsck.finding import CheckRun, Finding
from vfsd.read.vector_blocks import opened_block, read_tables
from vfsd.storage.context import StoreContext
from vfsd.write.frame_index import is_same_file, rebuild_frame_index, sound_fault, table_fault
from vfsd.write.ingest_file import put_audio


def rebuild_audio_index(context: StoreContext, original: PhysicalVideo) -> bool | None:
    """Rebuild the audio table of an original; return whether its file could be read.

    Return None if the original was removed or replaced in the meantime.
    """
    try:
        # Messages with this name are dropped below.
        found = context.examine(original, name="a video")
    except (OSError, IntegrityError, RefusedMediaError):
        return False
    with context.catalog.writing() as change:
        try:
            change.videos.require_there(original.id)
        except NotFoundError:
            return None
        put_audio(change, original, found)
    return True


def digests(run: CheckRun) -> Iterator[Finding]:
    """Check that the digest of each video is the key of its object."""
    with run.context.catalog.reading() as seen:
        wrong = seen.integrity.digest_mismatches()
    for one in wrong:
        if run.repair:
            with run.context.catalog.writing() as change:
                change.integrity.correct_digest(one)
        with run.context.catalog.reading() as seen:
            names = seen.tree.paths_of(one.ino) or [f"inode {one.ino}"]
        message = f"{names[0]!r}: digest must be {one.object_key}, got {one.digest!r:.80}"
        yield Finding("digests", message, repaired=run.repair)


def box_counts(run: CheckRun) -> Iterator[Finding]:
    """Check that the kept numbers of boxes are those of the boxes."""
    with run.context.catalog.reading() as seen:
        wrong = seen.box_counts.miscounted()
        names = seen.lists.names_of_videos(wrong)
    if run.repair and wrong:
        with run.context.catalog.writing() as change:
            for number in wrong:
                change.box_counts.recount(number)
    for number in wrong:
        name = repr(names[number]) if number in names else f"video {number}"
        message = f"{name}: the numbers of boxes by label are wrong"
        yield Finding("boxes", message, repaired=run.repair)


def videos(run: CheckRun) -> Iterator[Finding]:
    return _check_each(run, "videos", _check_video)


def linked(run: CheckRun) -> Iterator[Finding]:
    return _check_each(run, "linked", _check_linked_file)


def _check_each(
    run: CheckRun, name: str, check: Callable[[CheckRun, Node], Finding | None]
) -> Iterator[Finding]:
    """Run `check` on each video alone, so that damaged rows of one do not hide the others."""
    with run.context.catalog.reading() as seen:
        inodes = seen.tree.inodes_in_state(FileState.VIDEO)
    for ino in inodes:
        try:
            with run.context.catalog.reading() as seen:
                node = seen.tree.nodes([ino]).get(ino)
            found = None
            if node is not None and node.state is FileState.VIDEO:
                found = check(run, node)
        except IntegrityError as error:
            found = Finding(name, f"inode {ino} cannot be checked: {error}")
        if found is not None:
            yield found


def _check_video(run: CheckRun, node: Node) -> Finding | None:
    """Check the original, the frame table and the audio table of one video."""
    context = run.context
    with context.catalog.reading() as seen:
        if not is_same_file(seen, node):
            return None  # it was changed or removed since
        names = seen.tree.paths_of(node.ino) or [f"inode {node.ino}"]
        try:
            original = seen.videos.by_inode(node.ino).original
        except (NotFoundError, IntegrityError):
            wrong: str | None = "has no original"
        else:
            wrong = table_fault(seen, node, original)
        repair: Callable[[], bool | None] = partial(rebuild_frame_index, context, node)
        if wrong is None:
            wrong = sound_fault(seen, original)
            repair = partial(rebuild_audio_index, context, original)
    if wrong is None:
        return None
    fixed = run.repair and repair()
    if fixed is None:
        return None
    return Finding("videos", f"{names[0]!r} {wrong}", repaired=fixed)


def vectors(run: CheckRun) -> Iterator[Finding]:
    """Check that the objects of vectors have the recorded shape, and their runs exist."""
    context = run.context
    with context.catalog.reading() as seen:
        videos = {block.video_id for block in seen.vectors.all()}
    for number in sorted(videos):
        try:
            with context.catalog.reading() as seen:
                video = seen.videos.get(number)
                blocks = seen.vectors.of_video(number)
        except NotFoundError:
            continue  # it was removed since
        for block in blocks:
            fault = _vectors_fault(context, block, video.original.frames)
            if fault is None:
                continue
            with context.catalog.reading() as seen:
                is_there = block in seen.vectors.of_video(number)
            if is_there:
                yield Finding("vectors", f"vectors of {video.name!r}: {fault}")


def _vectors_fault(context: StoreContext, block: StoredVectors, frames: int) -> str | None:
    """Return what is wrong with a block of vectors, or None; "objects" finds missing objects."""
    try:
        if int(block.frames[:, 1].max()) > frames:
            return f"the video has only {frames} frames"
        if context.objects.exists(block.object_key):
            with opened_block(context.objects, block.object_key) as reader:
                read_tables(reader, block)
    except (IntegrityError, OSError) as error:
        return str(error)
    return None


def _check_linked_file(run: CheckRun, node: Node) -> Finding | None:
    """Check that a file indexed in place is unchanged since it was indexed."""
    if node.link_path is None:
        return None
    path = Path(node.link_path)
    try:
        fd = open_linked(path, run.context.directory.top)
    except (IntegrityError, OSError) as error:
        is_gone = isinstance(error, FileNotFoundError)
        with run.context.catalog.reading() as seen:
            if not is_same_file(seen, node):
                return None
        return Finding("linked", f"{path} is missing" if is_gone else str(error))
    found = os.fstat(fd)
    os.close(fd)
    with (
        run.context.catalog.reading() as seen,
        suppress(IntegrityError),
    ):  # see "sums"
        if not is_same_file(seen, node):
            return None
        known = seen.integrity.checksums(ByteLocation(None, node.link_path))
        mtime_ns = found.st_mtime_ns if known is None else known.mtime_ns
        if (found.st_size, found.st_mtime_ns) != (node.size, mtime_ns):
            return Finding("linked", f"{path} has changed since it was indexed")
    return None
