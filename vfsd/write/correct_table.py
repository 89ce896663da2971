"""Verifies a stored video by a full decode, and corrects its frame table.

Packets promise frames that a decoder may not give.  Tiles and labels use frame numbers, so these
numbers must be right before anything depends on them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from vfsd.codecs.probing.probe import Examination
from vfsd.core.display_geometry import to_display_rect
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import NO_CROP_MARGINS, MediaInfo, PhysicalVideo
from vfsd.disk.block_checksums import merged
from vfsd.read.video_context import VideoContext
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.tiling import Rect
from vfsd.write.ingest_file import describe_original, encoded_pages, put_audio
from vfsd.write.rebuild_index import frames_fault, has_same_picture_properties, is_same_table


def verify(video: VideoContext, *, on_progress: Callable[[int, int], None] | None = None) -> bool:
    """Decode the whole file, and store a corrected frame table where the present one is wrong.

    Returns whether anything was wrong.  See `vfsd.Video.verify`.
    """
    video.require_finished("a verification")
    parts, original = video.parts, video.original
    found = parts.examine(original, name=video.name, full=True, on_progress=on_progress)
    if parts.read_only:
        table = _readable_table(video)
        if table is not None and _has_numbers_of(found, table):
            # The catalog cannot be written: this object alone knows of the damage.
            damage = _damage_shown(original, found)
            known = dataclasses.replace(original, damage=damage)
            video.adopt_details(dataclasses.replace(video.info, original=known))
        return not _is_right(original, found, table)
    parts.quarantine.lift(original)
    was_right, is_renumbered = _settle(video, found), False
    while was_right is None:  # another process has corrected it first: compare with its table
        is_renumbered = video.reload_numbering() or is_renumbered
        was_right = _settle(video, found)
    return is_renumbered or not was_right


def require_verified(video: VideoContext) -> None:
    """Verify a video before its frame numbers are used for tiles: they must not change later."""
    if not video.original.verified:
        verify(video)


def corrects_table(video: VideoContext) -> bool:
    """Whether the file has other frames than its packets promised; only a full decode shows it."""
    if video.original.is_growing:
        return False
    if video.reload_numbering():
        return True
    if video.original.verified:
        return False
    return verify(video)


def _settle(video: VideoContext, found: Examination) -> bool | None:
    """Store what a full decode has found; whether the catalog had the same.

    None, and nothing has changed, where another process has corrected the table first.
    """
    parts, original = video.parts, video.original
    with parts.catalog.reading() as seen:
        if video.stored(seen).original.id != original.id:
            return None
    old = _readable_table(video)
    is_right = _is_right(original, found, old)
    meant = _packets_meant(video, old)
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
        damage = _damage_shown(now.original, found)
        if is_right:
            change.videos.mark_verified(original.id, damage)
        elif old is None and is_same_table(change, now.original, found):
            change.videos.put_pages(original.id, encoded_pages(found))
            change.videos.mark_verified(original.id, damage)
        elif (
            old is not None
            and _has_frames_of(found, old)
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
                change.detections.renumber(now.id, _new_numbers(meant, found.order))
            across, down = _moved(original.media, found.media)
            if across or down:
                change.detections.move(now.id, across, down)
        info = video.stored(change)
        put_audio(change, info.original, found)
    video.adopt(info)
    if packs:
        reclaim_or_log(parts, keys=packs)
    return is_right


def _is_right(original: PhysicalVideo, found: Examination, table: FrameTable | None) -> bool:
    """Whether the catalog has everything as found; `table` is None where it is damaged."""
    return (
        table is not None
        and (original.media, original.access) == (found.media, found.access)
        and _has_frames_of(found, table)
    )


def _packets_meant(video: VideoContext, table: FrameTable | None) -> Ints | None:
    """The packet of each frame, by the frame numbers of the labels.

    None: labels have the numbers of a full decode.
    """
    if table is not None:
        return table.packets_of(range(len(table)))
    if video.original.verified:
        return None
    # The table is damaged.  Examining the packets alone gives the same numbers as at ingest.
    return video.parts.examine(video.original, name=video.name).order


def _readable_table(video: VideoContext) -> FrameTable | None:
    """The stored frame table; None where it is damaged or missing."""
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


def _damage_shown(original: PhysicalVideo, found: Examination) -> tuple[range, ...] | None:
    """The damaged frames, including those from before the original was replaced."""
    if original.parameters and original.damage and found.damage is not None:
        return tuple(merged([*original.damage, *found.damage]))
    return found.damage


def _has_numbers_of(found: Examination, table: FrameTable) -> bool:
    """Whether frames have the same packets, and so the same numbers."""
    return np.array_equal(table.packets_of(range(len(table))), found.order)


def _has_frames_of(found: Examination, table: FrameTable) -> bool:
    columns = table.columns(0, table.packets)
    return (
        np.array_equal(columns.flags, found.columns.flags)
        and np.array_equal(columns.pts, found.columns.pts)
        and np.array_equal(table.packets_of(range(len(table))), found.order)
        and table.end_pts == found.end_pts
    )


def _moved(before: MediaInfo, now: MediaInfo) -> tuple[int, int]:
    """How many pixels the displayed part has moved right and down.

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
    one, other = (_shown_part(media) for media in (before, now))
    return one.x1 - other.x1, one.y1 - other.y1


def _shown_part(media: MediaInfo) -> Rect:
    """The displayed frame, in coordinates of the pictures without cropping."""
    left, top, _, _ = media.crop
    decoded = dataclasses.replace(
        media, width=media.decoded_width, height=media.decoded_height, crop=NO_CROP_MARGINS
    )
    return to_display_rect(Rect(left, top, left + media.width, top + media.height), decoded)


def _new_numbers(meant: Ints, order: Ints) -> Ints:
    """The new number of each frame, found by its packet; -1 where no frame has that packet.

    `meant` has the packets by old frame number, `order` by new frame number.
    """
    numbers = np.full(max(int(meant.max(initial=0)), int(order.max(initial=0))) + 1, -1, np.int64)
    numbers[order] = np.arange(len(order))
    return numbers[meant]
