"""Checks the stored frame table and audio index of a video, and rebuilds them from its bytes.

A rebuilt table that has the same pages replaces the old one under its id, so that derived data
stays valid. Also decides whether a re-examined file describes the same pictures.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from io import FileIO
from typing import NamedTuple

from vfsd.catalog import Transaction
from vfsd.catalog.videos import Page
from vfsd.codecs.frames.planes import without_range_name
from vfsd.codecs.probing.probe import Examination
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import is_same_page, last_key
from vfsd.core.model import FileState, MediaInfo, Node, PhysicalVideo
from vfsd.disk.direct_io import open_stored
from vfsd.disk.external_files import open_linked
from vfsd.disk.object_store import Digest, digest
from vfsd.disk.verify_file import version_of
from vfsd.errors import IntegrityError, NotFoundError, RefusedMediaError
from vfsd.read.damage_fallback import restore_object
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import clear_away
from vfsd.write.ingest_file import SourceFile, describe_original, encoded_pages, put_audio


def with_end_time(found: Examination, original: PhysicalVideo, table: FrameTable) -> Examination:
    """What is in the new file, with the time at which the last frame of the old one ends.

    A container may not tell how long that is shown; the catalog knows.  Raises `RefusedMediaError`
    where any frame would not be shown when it was.
    """
    shown = found.columns.pts[found.order]
    base, old_base = found.media.time_base, original.time_base
    old = table.pts()
    same = len(shown) == len(old) and all(
        int(a) * base == int(b) * old_base for a, b in zip(shown, old, strict=True)
    )
    end = original.end_pts * old_base / base
    if not same or end.denominator != 1:
        raise RefusedMediaError("frames would not be shown when they were")
    return replace(found, end_pts=int(end))


def require_same_picture(old: MediaInfo, new: MediaInfo) -> None:
    """Raises `RefusedMediaError` where a file says other things of its pictures than the other."""
    for name in _PICTURE_FIELDS:
        before, after = (_field_or_default(media, name) for media in (old, new))
        if before != after:
            raise RefusedMediaError(
                f"{name.replace('_', ' ')} would become {after}; it is {before}",
                hint="`vfsd verify` looks again at how they are shown"
                if name in ("rotation", "mirrored", "crop")
                else "another codec may keep it",
            )


def has_same_picture_properties(one: MediaInfo, other: MediaInfo) -> bool:
    """Whether both say the same of pictures, so that what was made of them goes on."""
    return all(
        _field_or_default(one, name) == _field_or_default(other, name) for name in _PICTURE_FIELDS
    )


_PICTURE_FIELDS = (
    "container",
    "width",
    "height",
    "pixel_format",
    "rotation",
    "mirrored",
    "crop",
    "sample_aspect_ratio",
    "color_range",
    "color_space",
    "color_primaries",
    "color_transfer",
    "bit_depth",
    "interlaced",
    "variable_rate",
)


def _field_or_default(media: MediaInfo, name: str) -> object:
    """A field; what is not told means the same as what is usual."""
    found = getattr(media, name)
    if name == "pixel_format":
        return without_range_name(found)  # the range is compared by itself
    if name == "color_range":
        return found or "limited"
    if name == "sample_aspect_ratio":
        return found or 1
    return found


_VIDEO_LABEL = "a video"
"""Nobody is told why it is refused."""

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


def stored_fault(parts: StoreContext, node: Node) -> str | None:
    """The same, where rows may make so little sense that not even this can be asked of them."""
    try:
        with parts.catalog.reading() as seen:
            return index_fault(seen, node)
    except IntegrityError as error:
        return f"cannot be looked at: {error}"


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


def rebuild_frame_index(parts: StoreContext, node: Node) -> bool | None:
    """Make the frame table of a video, and the index of its sound, from its bytes.

    False where these do not let themselves be read, or are not those that were stored; None where
    the file has become another meanwhile, or somebody else has put it right.
    """
    try:
        again = _reexamine(parts, node)
    except (OSError, IntegrityError, RefusedMediaError):
        return False
    if again is None:
        return False
    now, gone = time.time_ns(), set[str]()
    with parts.catalog.writing() as change:
        if not is_same_file(change, node) or index_fault(change, node) is None:
            return None
        if not _has_stored_bytes(change, node, again.bytes.key) or not _keeps_frame_numbers(
            change, node, again.found
        ):
            return False
        known = _known_original(change, node)
        found = _with_stored_orientation(known, again.found)
        if known is not None and is_same_table(change, known, found):
            change.videos.put_pages(known.id, encoded_pages(found))
        else:
            gone = change.objects.of_file(node.ino)
            original = describe_original(
                found,
                object_key=node.object_key,
                link_path=node.link_path,
                size=again.bytes.size,
                now_ns=now,
            )
            parameters = {} if known is None else known.parameters
            known = change.videos.put(
                node.ino,
                replace(original, parameters=parameters),
                encoded_pages(found),
                digest=again.bytes.key,
                now_ns=now,
            ).original
        put_audio(change, known, found)
        mtime_ns = None if node.link_path is None else again.mtime_ns
        change.integrity.put_sums(known.place, again.bytes.sums, mtime_ns=mtime_ns)
    clear_away(parts, keys=gone)
    return True


class _Reexamination(NamedTuple):
    """What the bytes of a video are, and what is in them."""

    bytes: Digest
    mtime_ns: int
    found: Examination


def _reexamine(parts: StoreContext, node: Node) -> _Reexamination | None:
    """None where the bytes are not those that were stored, or somebody writes them.

    What is hashed is what is examined, whatever has its name meanwhile.  Raises `OSError`,
    `IntegrityError`, `RefusedMediaError`.
    """
    with _open_original(parts, node) as file:
        fd = file.fileno()
        before = os.fstat(fd)
        found_bytes = digest(fd)
        with parts.catalog.reading() as seen:
            if not _has_stored_bytes(seen, node, found_bytes.key):
                return None
            known = _known_original(seen, node)
        look = partial(
            parts.examine_stream,
            fd,
            _VIDEO_LABEL,
            None if known is None else known.media.stream_index,
            in_largest_size=known is not None and known.media.in_largest_size,
        )
        found = look()
        with parts.catalog.reading() as seen:
            is_enough = _keeps_frame_numbers(seen, node, found)
        if not is_enough:
            found = look(full=True)
        if version_of(os.fstat(fd)) != version_of(before):
            return None  # it may be done the next time
        return _Reexamination(found_bytes, before.st_mtime_ns, found)


def _open_original(parts: StoreContext, node: Node) -> FileIO:
    if node.link_path is not None:
        return FileIO(open_linked(node.link_path, parts.directory.top))
    return FileIO(open_stored(parts.objects.path(node.object_key or "")))


def _has_stored_bytes(seen: Transaction, node: Node, key: str) -> bool:
    """Whether bytes that hash to `key` are those that were stored: labels are about them.

    Of a file that is indexed in place only the video's row tells; the file may be anybody's.
    """
    known = seen.videos.remains(node.ino)
    told = {node.object_key, None if known is None else known.digest}
    return told - {None} == {key}


def _with_stored_orientation(known: PhysicalVideo | None, found: Examination) -> Examination:
    """Boxes and tiles go by how pictures were turned and cropped; `VideoFacts.verify` corrects
    that."""
    if known is None:
        return found
    before, now = known.media, found.media
    shown = replace(now, rotation=before.rotation, mirrored=before.mirrored)
    size = before.decoded_width, before.decoded_height
    if size == (now.decoded_width, now.decoded_height):
        shown = replace(shown, width=before.width, height=before.height, crop=before.crop)
    return replace(found, media=shown)


def is_same_file(seen: Transaction, node: Node) -> bool:
    """Whether it is still the video that it was when it was looked at."""
    now = seen.tree.nodes([node.ino]).get(node.ino)
    return (
        now is not None
        and now.state is FileState.VIDEO
        and (now.generation, now.object_key, now.link_path)
        == (node.generation, node.object_key, node.link_path)
    )


def _known_original(seen: Transaction, node: Node) -> PhysicalVideo | None:
    """The original of a video, where that can be told, and is of the bytes that the file has."""
    try:
        found = seen.videos.of_inode(node.ino).original
    except (NotFoundError, IntegrityError):
        return None
    here = (found.object_key, found.link_path) == (node.object_key, node.link_path)
    return found if here else None


def _keeps_frame_numbers(seen: Transaction, node: Node, found: Examination) -> bool:
    """Whether all frames have the numbers that they had.  Where a full decode gave those, and not
    enough is left of the table to tell, another one has to."""
    if found.verified:
        return True
    known = _known_original(seen, node)
    if known is not None:
        return not known.verified or is_same_table(
            seen, known, _with_stored_orientation(known, found)
        )
    left = seen.videos.remains(node.ino)
    if left is None or left.was_verified is False:
        return True
    # Most are confirmed soon.  Where nobody was told of any frame's number, any table will do.
    return not seen.detections.is_there(left.id)


def is_same_table(seen: Transaction, known: PhysicalVideo, found: Examination) -> bool:
    """Whether an examination comes to the table that is stored, by what is left of that.

    What a full decode has confirmed needs another one, or a whole page that agrees.
    """
    described = describe_original(found, object_key=None, link_path=None, size=0, now_ns=0)
    numbers = ("media", "access", "frames", "packets", "first_pts", "end_pts")
    if any(getattr(known, name) != getattr(described, name) for name in numbers):
        return False
    try:
        stored, made = list(seen.videos.pages(known.id)), list(encoded_pages(found))
    except IntegrityError:
        return False
    if [bounds for bounds, _ in stored] != [bounds for bounds, _ in made]:
        return False
    same = [_pages_agree(old, new) for old, new in zip(stored, made, strict=True)]
    return False not in same and (True in same or found.verified or not known.verified)


def _pages_agree(old: Page, new: Page) -> bool | None:
    """None where the old page cannot be read."""
    try:
        return is_same_page(old[0], old[1], new[1])
    except IntegrityError:
        return None


def restore_original_file(parts: StoreContext, source: SourceFile) -> bool:
    """Put right what is stored of a video that `is_there`; whether anything was wrong.

    Its bytes, if they are damaged, for all that is known, or gone; those of a file that is indexed
    in place are its owner's.  Its frame table, if that does not let itself be read.  Raises
    `NoSpaceError`, `OSError`, and `IntegrityError` for a file with other bytes.
    """
    with parts.catalog.reading() as seen:
        node = seen.tree.resolve(source.name)
        fault = index_fault(seen, node)
    key = node.object_key
    was_damaged = key is not None and restore_object(parts, key, source.path)
    if fault is None:
        return was_damaged
    mended = rebuild_frame_index(parts, node)
    if mended is False and key is not None and not was_damaged:
        restore_object(parts, key, source.path, is_damaged=True)  # which nobody had noticed
        mended = rebuild_frame_index(parts, node)
    if mended is False:
        raise IntegrityError(
            f"{source.name!r} {fault}, and its bytes do not let themselves be indexed again",
            hint="`vfsd ingest --replace` of another file of that name",
        )
    return True
