"""Frame tables that are no longer what was stored, and making them again from the bytes.

A table whose rows were lost or damaged, by a flipped bit or another program's hand, says nothing
that the bytes do not say as well.  What is left of it bears witness: where the new table has the
same pages, it takes the old one's place under its number, and all that was made by that stays.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from vfsd.budget.reclaim import clear_away
from vfsd.catalog import Transaction
from vfsd.catalog.videos import Page
from vfsd.codecs.examining.examine import Examination
from vfsd.errors import IntegrityError, NotFoundError, RefusedMediaError
from vfsd.framepages import is_same_page, last_key
from vfsd.making.ingest import Source, describe_original, file_version, pages, put_sound
from vfsd.model import FileState, Node, PhysicalVideo
from vfsd.objects import digest_file
from vfsd.parts import Parts
from vfsd.reading.mending import heal

# ------------------------------------------------------------------------------ what is wrong


def index_fault(seen: Transaction, node: Node) -> str | None:
    """What is wrong with what is known of a video's frames and sound, for people; None: nothing.

    All pages are decoded: 0.2 ms for each 2048 packets.
    """
    try:
        original = seen.videos.of_inode(node.ino).original
    except (NotFoundError, IntegrityError):
        return "has no original"
    return table_fault(seen, node, original) or sound_fault(seen, original)


def table_fault(seen: Transaction, node: Node, original: PhysicalVideo) -> str | None:
    """The same, of its frames."""
    if (original.object_key, original.link_path) != (node.object_key, node.link_path):
        return "has the frame table of another file"
    return frames_fault(seen, original)


def frames_fault(seen: Transaction, original: PhysicalVideo) -> str | None:
    """What is wrong with a stored frame table; None: nothing."""
    try:
        return _frames_fault(seen, original)
    except IntegrityError as error:  # of rows that make no sense
        return f"cannot be read: {error}"


def _frames_fault(seen: Transaction, original: PhysicalVideo) -> str | None:
    packets = frames = 0
    key: int | None = -1
    damage, begins = None, []
    for bounds, data in seen.videos.pages(original.id):
        if (bounds.first_packet, bounds.first_frame) != (packets, frames):
            return "has a gap in its frame table"
        packets += bounds.packets
        frames += bounds.frames
        if bounds.frames:
            begins.append(bounds.first_pts)
        try:
            key = last_key(bounds, data, key)
        except IntegrityError as error:
            damage = damage or str(error)
            key = None
    if (packets, frames) != (original.packets, original.frames):
        return f"has a frame table of {frames} frames, not {original.frames}"
    if damage is None and begins and min(begins) != original.first_pts:
        damage = "the frame table begins at another time"
    return None if damage is None else f"cannot be read: {damage}"


def sound_fault(seen: Transaction, original: PhysicalVideo) -> str | None:
    """The same, of the index of its sound."""
    try:
        return _sound_fault(seen, original)
    except IntegrityError as error:
        return f"cannot be heard: {error}"


def _sound_fault(seen: Transaction, original: PhysicalVideo) -> str | None:
    sound = seen.sounds.of(original.id)
    if sound is None:
        return None
    packets, damage = 0, None
    for bounds, data in seen.sounds.pages(original.id):
        if bounds.first_packet != packets:
            return "has a gap in the index of its sound"
        packets += bounds.packets
        try:
            last_key(bounds, data, None)
        except IntegrityError as error:
            damage = damage or str(error)
    if packets != sound.packets:
        return f"has an index of {packets} packets of sound, not {sound.packets}"
    return None if damage is None else f"cannot be heard: {damage}"


# ------------------------------------------------------------------------------ putting right


def index_again(parts: Parts, node: Node) -> bool | None:
    """Make the frame table of a video, and the index of its sound, from its bytes.

    False where these do not let themselves be read, or are not those that were stored; None where
    the file has become another meanwhile.
    """
    path = Path(node.link_path) if node.link_path else parts.objects.path(node.object_key or "")
    try:
        before = path.stat()
        found = _as_it_was_turned(parts, node, parts.examiner.examine(path))
        with parts.catalog.reading() as seen:
            is_enough = _is_enough(seen, node, found)
        if not is_enough:
            found = _as_it_was_turned(parts, node, parts.examiner.examine(path, full=True))
        key, size, sums = digest_file(path)
        if file_version(path.stat()) != file_version(before):
            return False  # somebody writes it, and may be done the next time
    except (OSError, RefusedMediaError):
        return False
    if node.object_key not in (None, key):
        return False  # it is damaged, and what it holds now was never stored
    now, gone = time.time_ns(), set[str]()
    original = describe_original(
        found, object_key=node.object_key, link_path=node.link_path, size=size, now_ns=now
    )
    with parts.catalog.writing() as change:
        if not is_same_file(change, node):
            return None
        known = _original(change, node)
        if known is not None and is_same_table(change, known, found):
            change.videos.put_pages(known.id, pages(found))
        else:
            gone = change.objects.of_file(node.ino)
            parameters = {} if known is None else known.parameters
            known = change.videos.put(
                node.ino,
                replace(original, parameters=parameters),
                pages(found),
                digest=key,
                now_ns=now,
            ).original
        put_sound(change, known, found)
        mtime_ns = None if node.link_path is None else before.st_mtime_ns
        change.integrity.put_sums(known.place, sums, mtime_ns=mtime_ns)
    clear_away(parts, keys=gone)
    return True


def _as_it_was_turned(parts: Parts, node: Node, found: Examination) -> Examination:
    """Boxes and tiles go by how pictures were turned; `VideoFacts.verify` corrects that."""
    with parts.catalog.reading() as seen:
        known = _original(seen, node)
    if known is None:
        return found
    turned = replace(found.media, rotation=known.media.rotation, mirrored=known.media.mirrored)
    return replace(found, media=turned)


def is_same_file(seen: Transaction, node: Node) -> bool:
    """Whether it is still the video that it was when it was looked at."""
    now = seen.tree.nodes([node.ino]).get(node.ino)
    return (
        now is not None
        and now.state is FileState.VIDEO
        and (now.generation, now.object_key, now.link_path)
        == (node.generation, node.object_key, node.link_path)
    )


def _original(seen: Transaction, node: Node) -> PhysicalVideo | None:
    """The original of a video, where that can be told, and is of the bytes that the file has."""
    try:
        found = seen.videos.of_inode(node.ino).original
    except (NotFoundError, IntegrityError):
        return None
    here = (found.object_key, found.link_path) == (node.object_key, node.link_path)
    return found if here else None


def _is_enough(seen: Transaction, node: Node, found: Examination) -> bool:
    """Whether all frames have the numbers that they had.  Where a full decode gave those, and not
    enough is left of the table to tell, another one has to."""
    known = _original(seen, node)
    if known is None or not known.verified or found.verified:
        return True
    return is_same_table(seen, known, found)


def is_same_table(seen: Transaction, known: PhysicalVideo, found: Examination) -> bool:
    """Whether an examination comes to the table that is stored, by what is left of that.

    What a full decode has confirmed needs another one, or a whole page that agrees.
    """
    described = describe_original(found, object_key=None, link_path=None, size=0, now_ns=0)
    numbers = ("media", "access", "frames", "packets", "first_pts", "end_pts")
    if any(getattr(known, name) != getattr(described, name) for name in numbers):
        return False
    try:
        stored, made = list(seen.videos.pages(known.id)), list(pages(found))
    except IntegrityError:
        return False
    if [bounds for bounds, _ in stored] != [bounds for bounds, _ in made]:
        return False
    same = [_agree(old, new) for old, new in zip(stored, made, strict=True)]
    return False not in same and (True in same or found.verified or not known.verified)


def _agree(old: Page, new: Page) -> bool | None:
    """None where the old page cannot be read."""
    try:
        return is_same_page(old[0], old[1], new[1])
    except IntegrityError:
        return None


def put_back(parts: Parts, source: Source) -> bool:
    """Put right what is stored of a video that `is_there`; whether anything was wrong.

    Its bytes, if they are damaged, for all that is known, or gone; those of a file that is indexed
    in place are its owner's.  Its frame table, if that does not let itself be read.  Raises
    `NoSpaceError`, `OSError`, and `IntegrityError` for a file with other bytes.
    """
    with parts.catalog.reading() as seen:
        node = seen.tree.resolve(source.name)
        fault = index_fault(seen, node)
    key = node.object_key
    was_damaged = key is not None and heal(parts, key, source.path)
    if fault is None:
        return was_damaged
    mended = index_again(parts, node)
    if mended is False and key is not None and not was_damaged:
        heal(parts, key, source.path, is_damaged=True)  # which nobody had noticed
        mended = index_again(parts, node)
    if mended is False:
        raise IntegrityError(
            f"{source.name!r} {fault}, and its bytes do not let themselves be indexed again",
            hint="`vfsd ingest --replace` of another file of that name",
        )
    return True
