"""Verifies, corrects and rebuilds the stored frame table and audio index of a video from its
bytes.  A rebuilt table with the same pages keeps its id, so that derived data stays valid.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from io import FileIO
from typing import NamedTuple

import numpy as np

from vfsd.catalog import Transaction
from vfsd.catalog.videos import Page
from vfsd.codecs.frames.planes import without_range_name
from vfsd.codecs.probing.probe import Examination
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints, is_same_page, last_key
from vfsd.core.frames import to_display_rect
from vfsd.core.model import NO_CROP_MARGINS, FileState, MediaInfo, Node, PhysicalVideo
from vfsd.disk.checksums import merged
from vfsd.disk.external_files import open_linked
from vfsd.disk.object_store import Digest, digest
from vfsd.disk.safe_open import version_of
from vfsd.errors import IntegrityError, NotFoundError, RefusedMediaError
from vfsd.read.read_context import VideoContext
from vfsd.storage.context import StoreContext
from vfsd.storage.reclaim import reclaim_or_log, restore_object
from vfsd.tiling import Rect
from vfsd.write.ingest_file import SourceFile, describe_original, encoded_pages, put_audio

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

# Names the file in errors, which are not shown to users.
_VIDEO_LABEL = "a video"


def verify(video: VideoContext, *, on_progress: Callable[[int, int], None] | None = None) -> bool:
    """Decode the whole file, and store a corrected frame table where the present one is wrong.

    Returns whether anything was wrong.  See `vfsd.Video.verify`.
    """
    video.require_finished("a verification")
    parts, original = video.parts, video.original
    found = parts.examine(original, name=video.name, full=True, on_progress=on_progress)
    if parts.read_only:
        table = _readable_table(video)
        if table is not None and _has_same_numbers(found, table):
            # The catalog cannot be written: this object alone knows of the damage.
            damage = _merged_damage(original, found)
            known = dataclasses.replace(original, damage=damage)
            video.adopt_details(dataclasses.replace(video.info, original=known))
        return not _matches_catalog(original, found, table)
    parts.quarantine.lift(original)
    was_right, is_renumbered = _store_examination(video, found), False
    while was_right is None:  # another process has corrected it first: compare with its table
        is_renumbered = video.reload_numbering() or is_renumbered
        was_right = _store_examination(video, found)
    return is_renumbered or not was_right


def require_verified(video: VideoContext) -> None:
    """Verify a video before its frame numbers are used for tiles: they must not change later."""
    if not video.original.verified:
        video.reload_details()  # another object of the video may have done it
    if not video.original.verified:
        verify(video)


def corrects_table(video: VideoContext) -> bool:
    """Verify a video if needed; return whether its frame table was corrected."""
    if video.original.is_growing:
        return False
    if video.reload_numbering():
        return True
    if video.original.verified:
        return False
    return verify(video)


def _store_examination(video: VideoContext, found: Examination) -> bool | None:
    """Store the result of a full decode; return whether the catalog had the same.

    Returns None, without a change, if another process has corrected the table first.
    """
    parts, original = video.parts, video.original
    with parts.catalog.reading() as seen:
        if video.stored(seen).original.id != original.id:
            return None
    old = _readable_table(video)
    is_right = _matches_catalog(original, found, old)
    meant = _labelled_packets(video, old)
    corrected = dataclasses.replace(
        describe_original(
            found,
            object_key=original.object_key,
            link_path=original.link_path,
            size=original.size,
            now_ns=time.time_ns(),
        ),
        parameters=original.parameters,
        error=original.error,
    )
    packs: set[str] = set()
    with parts.catalog.writing() as change:
        now = video.stored(change)
        if now.original.id != original.id:
            return None
        damage = _merged_damage(now.original, found)
        if is_right:
            change.videos.mark_verified(original.id, damage)
        elif old is None and is_same_table(change, now.original, found):
            change.videos.put_pages(original.id, encoded_pages(found))
            change.videos.mark_verified(original.id, damage)
        elif (
            old is not None
            and _has_same_frames(found, old)
            and has_same_picture_properties(original.media, found.media)
        ):
            # Decoders are cached by the original's id, and those use the wrong description.
            change.videos.replace_original(
                now.id, corrected, encoded_pages(found), digest=now.digest
            )
        else:
            made = change.segments.of_original(original.id)
            change.segments.delete(one.id for one in made)
            packs = change.segments.released
            change.videos.replace_table(original.id, corrected, encoded_pages(found))
            if meant is not None:
                new_of = _new_numbers(meant, found.order)
                change.detections.renumber(now.id, new_of)
                change.moments.renumber(now.id, new_of)
                change.vectors.renumber(now.id, new_of)
            across, down = _crop_shift(original.media, found.media)
            if across or down:
                change.detections.move(now.id, across, down)
        info = video.stored(change)
        put_audio(change, info.original, found)
    video.adopt(info)
    if packs:
        reclaim_or_log(parts, keys=packs)
    return is_right


def _matches_catalog(original: PhysicalVideo, found: Examination, table: FrameTable | None) -> bool:
    """Return whether the catalog has what was found; `table` is None if it is damaged."""
    return (
        table is not None
        and (original.media, original.access) == (found.media, found.access)
        and _has_same_frames(found, table)
    )


def _labelled_packets(video: VideoContext, table: FrameTable | None) -> Ints | None:
    """Return the packet of each frame, by the frame numbers that labels use.

    None if labels use the numbers of a full decode.
    """
    if table is not None:
        return table.packets_of(range(len(table)))
    if video.original.verified:
        return None
    # The table is damaged.  Examining the packets alone gives the same numbers as at ingest.
    return video.parts.examine(video.original, name=video.name).order


def _readable_table(video: VideoContext) -> FrameTable | None:
    """Return the stored frame table; None if it is damaged or missing."""
    original = video.original
    with video.parts.catalog.reading() as seen:
        if frames_fault(seen, original) is not None:
            return None
        stored = list(seen.videos.pages(original.id))
    return FrameTable(
        [bounds for bounds, _ in stored],
        lambda ordinal: stored[ordinal][1],
        time_base=original.time_base,
        end_pts=original.end_pts,
    )


def _merged_damage(original: PhysicalVideo, found: Examination) -> tuple[range, ...] | None:
    """Return the damaged frames, including those from before the original was replaced."""
    if original.parameters and original.damage and found.damage is not None:
        return tuple(merged([*original.damage, *found.damage]))
    return found.damage


def _has_same_numbers(found: Examination, table: FrameTable) -> bool:
    """Return whether frames have the same packets, and so the same numbers."""
    return np.array_equal(table.packets_of(range(len(table))), found.order)


def _has_same_frames(found: Examination, table: FrameTable) -> bool:
    columns = table.columns(0, table.packets)
    return (
        np.array_equal(columns.flags, found.columns.flags)
        and np.array_equal(columns.pts, found.columns.pts)
        and np.array_equal(table.packets_of(range(len(table))), found.order)
        and table.end_pts == found.end_pts
    )


def _crop_shift(before: MediaInfo, now: MediaInfo) -> tuple[int, int]:
    """Return how many pixels the displayed part has moved right and down.

    Zeros unless only the crop has changed.
    """
    uncropped = before.decoded_width - now.decoded_width
    if (before.rotation, before.mirrored, before.decoded_height) != (
        now.rotation,
        now.mirrored,
        now.decoded_height,
    ) or uncropped < 0:
        return 0, 0
    if uncropped:  # earlier versions showed columns at the left that the stream crops
        left, top, right, bottom = now.crop
        now = dataclasses.replace(now, crop=(left + uncropped, top, right, bottom))
    one, other = (_displayed_part(media) for media in (before, now))
    return one.x1 - other.x1, one.y1 - other.y1


def _displayed_part(media: MediaInfo) -> Rect:
    """Return the displayed frame, in coordinates of the pictures without cropping."""
    left, top, _, _ = media.crop
    decoded = dataclasses.replace(
        media, width=media.decoded_width, height=media.decoded_height, crop=NO_CROP_MARGINS
    )
    return to_display_rect(Rect(left, top, left + media.width, top + media.height), decoded)


def _new_numbers(meant: Ints, order: Ints) -> Ints:
    """Return the new number of each frame, found by its packet; -1 if no frame has that packet.

    `meant` has the packets by old frame number, `order` by new frame number.
    """
    numbers = np.full(max(int(meant.max(initial=0)), int(order.max(initial=0))) + 1, -1, np.int64)
    numbers[order] = np.arange(len(order))
    return numbers[meant]


def with_end_time(found: Examination, original: PhysicalVideo, table: FrameTable) -> Examination:
    """Return the examination of a new file with the end time of the old one.

    The container may not store the duration of the last frame, but the catalog does.  Raises
    `RefusedMediaError` if any frame would be shown at another time.
    """
    shown = found.columns.pts[found.order]
    base, old_base = found.media.time_base, original.time_base
    old = table.pts()
    same = len(shown) == len(old) and all(
        int(a) * base == int(b) * old_base for a, b in zip(shown, old, strict=True)
    )
    end = original.end_pts * old_base / base
    if not same or end.denominator != 1:
        raise RefusedMediaError("frames would be shown at other times")
    return replace(found, end_pts=int(end))


def require_same_picture(old: MediaInfo, new: MediaInfo) -> None:
    """Raises `RefusedMediaError` if a property of the pictures differs."""
    for name in _PICTURE_FIELDS:
        before, after = (_field_or_default(media, name) for media in (old, new))
        if before != after:
            raise RefusedMediaError(
                f"{name.replace('_', ' ')} would become {after}; it is {before}",
                hint="`vfsd verify` examines rotation and cropping again"
                if name in ("rotation", "mirrored", "crop")
                else "another codec may keep it",
            )


def has_same_picture_properties(one: MediaInfo, other: MediaInfo) -> bool:
    """Return whether all properties of the pictures agree, so that derived data stays valid."""
    return all(
        _field_or_default(one, name) == _field_or_default(other, name) for name in _PICTURE_FIELDS
    )


def _field_or_default(media: MediaInfo, name: str) -> object:
    """Return a field, or the default that a missing value stands for."""
    found = getattr(media, name)
    if name == "pixel_format":
        return without_range_name(found)  # the range is compared separately
    if name == "color_range":
        return found or "limited"
    if name == "sample_aspect_ratio":
        return found or 1
    return found


def index_fault(seen: Transaction, node: Node) -> str | None:
    """Return what is wrong with the frame table or audio index of a video, or None.

    All pages are decoded: 0.2 ms for each 2048 packets.
    """
    try:
        original = seen.videos.by_inode(node.ino).original
    except (NotFoundError, IntegrityError):
        return "has no original"
    return table_fault(seen, node, original) or sound_fault(seen, original)


def stored_fault(parts: StoreContext, node: Node) -> str | None:
    """Like `index_fault`, but also reports rows that cannot be loaded."""
    try:
        with parts.catalog.reading() as seen:
            return index_fault(seen, node)
    except IntegrityError as error:
        return f"cannot be examined: {error}"


def table_fault(seen: Transaction, node: Node, original: PhysicalVideo) -> str | None:
    """Return what is wrong with the frame table of a video, or None."""
    if (original.object_key, original.link_path) != (node.object_key, node.link_path):
        return "has the frame table of another file"
    return frames_fault(seen, original)


def frames_fault(seen: Transaction, original: PhysicalVideo) -> str | None:
    """Return what is wrong with a stored frame table, or None."""
    try:
        return _frames_fault(seen, original)
    except IntegrityError as error:  # of inconsistent rows
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
    """Return what is wrong with the audio index of a video, or None."""
    try:
        return _sound_fault(seen, original)
    except IntegrityError as error:
        return f"has an audio index that cannot be read: {error}"


def _sound_fault(seen: Transaction, original: PhysicalVideo) -> str | None:
    sound = seen.audio_tracks.of(original.id)
    if sound is None:
        return None
    packets, damage = 0, None
    for bounds, data in seen.audio_tracks.pages(original.id):
        if bounds.first_packet != packets:
            return "has a gap in its audio index"
        packets += bounds.packets
        try:
            last_key(bounds, data, None)
        except IntegrityError as error:
            damage = damage or str(error)
    if packets != sound.packets:
        return f"has an audio index of {packets} packets, not {sound.packets}"
    return None if damage is None else f"has an audio index that cannot be read: {damage}"


def rebuild_frame_index(parts: StoreContext, node: Node) -> bool | None:
    """Rebuild the frame table and audio index of a video from its bytes.

    Returns True on success, and False if the bytes cannot be read or are not the stored ones.  None
    means that the file was replaced or repaired in the meantime.
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
        change.integrity.put_checksums(known.place, again.bytes.sums, mtime_ns=mtime_ns)
    reclaim_or_log(parts, keys=gone)
    return True


class _Reexamination(NamedTuple):
    """Digest and examination of the bytes of a video."""

    bytes: Digest
    mtime_ns: int
    found: Examination


def _reexamine(parts: StoreContext, node: Node) -> _Reexamination | None:
    """Return None if the bytes are not those that were stored, or are being written.

    The bytes that are hashed are those that are examined, even if the name changes.  Raises
    `OSError`, `IntegrityError`, `RefusedMediaError`.
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
            return None  # a later attempt may succeed
        return _Reexamination(found_bytes, before.st_mtime_ns, found)


def _open_original(parts: StoreContext, node: Node) -> FileIO:
    if node.link_path is not None:
        return FileIO(open_linked(node.link_path, parts.directory.top))
    with closing(parts.objects.open(node.object_key or "")) as file:
        return FileIO(os.dup(file.descriptor()))


def _has_stored_bytes(seen: Transaction, node: Node, key: str) -> bool:
    """Return whether bytes that hash to `key` are the stored ones, which labels refer to.

    For a file that is indexed in place only the video's row is evidence, because the owner may
    change the file.
    """
    known = seen.videos.broken_video(node.ino)
    stored = {node.object_key, None if known is None else known.digest}
    return stored - {None} == {key}


def _with_stored_orientation(known: PhysicalVideo | None, found: Examination) -> Examination:
    """Keep the stored rotation and cropping, which boxes and tiles refer to; `Video.verify`
    corrects them.
    """
    if known is None:
        return found
    before, now = known.media, found.media
    shown = replace(now, rotation=before.rotation, mirrored=before.mirrored)
    size = before.decoded_width, before.decoded_height
    if size == (now.decoded_width, now.decoded_height):
        shown = replace(shown, width=before.width, height=before.height, crop=before.crop)
    return replace(found, media=shown)


def is_same_file(seen: Transaction, node: Node) -> bool:
    """Return whether the node is still the video that was examined."""
    now = seen.tree.nodes([node.ino]).get(node.ino)
    return (
        now is not None
        and now.state is FileState.VIDEO
        and (now.generation, now.object_key, now.link_path)
        == (node.generation, node.object_key, node.link_path)
    )


def _known_original(seen: Transaction, node: Node) -> PhysicalVideo | None:
    """Return the original of a video if its row can be loaded and belongs to the current file."""
    try:
        found = seen.videos.by_inode(node.ino).original
    except (NotFoundError, IntegrityError):
        return None
    here = (found.object_key, found.link_path) == (node.object_key, node.link_path)
    return found if here else None


def _keeps_frame_numbers(seen: Transaction, node: Node, found: Examination) -> bool:
    """Return whether all frames keep their numbers.

    If a full decode had confirmed the old numbers and too little of the table is left to compare,
    another full decode is needed.
    """
    if found.verified:
        return True
    known = _known_original(seen, node)
    if known is not None:
        return not known.verified or is_same_table(
            seen, known, _with_stored_orientation(known, found)
        )
    left = seen.videos.broken_video(node.ino)
    if left is None or left.was_verified is False:
        return True
    # Most tables are confirmed soon.  Without these, no stored data refers to frame numbers.
    is_labelled = seen.detections.has_any(left.id) or seen.moments.has_any(left.id)
    return not is_labelled and not seen.vectors.of_video(left.id)


def is_same_table(seen: Transaction, known: PhysicalVideo, found: Examination) -> bool:
    """Return whether an examination yields the stored table, as far as it can be read.

    A table that a full decode has confirmed needs another full decode, or one complete page that
    agrees.
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
    """Return None if the old page cannot be read."""
    try:
        return is_same_page(old[0], old[1], new[1])
    except IntegrityError:
        return None


def restore_original_file(parts: StoreContext, source: SourceFile) -> bool:
    """Repair the stored data of an ingested video and return whether anything was wrong.

    Damaged or missing bytes are replaced, except those of a file that is indexed in place.  An
    unreadable frame table is rebuilt.  Raises `NoSpaceError`, `OSError`, and `IntegrityError` for a
    file with other bytes.
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
        restore_object(parts, key, source.path, is_damaged=True)  # the damage was not known before
        mended = rebuild_frame_index(parts, node)
    if mended is False:
        raise IntegrityError(
            f"{source.name!r} {fault}, and its bytes cannot be indexed again",
            hint="`vfsd ingest --replace` stores another file under that name",
        )
    return True
