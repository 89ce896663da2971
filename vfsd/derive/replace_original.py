"""Replaces an original by a smaller encoding if a policy permits it.

The new file is written next to the old one, decoded and compared picture by picture.  One
transaction then makes it the original.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vfsd.catalog import Transaction
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.encoding.remux import pictures_index, require_same_matrix
from vfsd.codecs.inventory.inventory import require_same_streams
from vfsd.codecs.probing.probe import Examination
from vfsd.core.frame_table import FrameTable
from vfsd.core.model import FileState, LogicalVideo, error_from_psnr, psnr_from_error
from vfsd.core.retention_policy import (
    REPLACED_BYTES_KEYWORD,
    Action,
    Fate,
    OriginalLogEntry,
    RetentionPolicy,
)
from vfsd.core.timebase import human_bytes
from vfsd.derive.reencode import (
    Comparison,
    OnProgress,
    ReencodeForecast,
    RoiAreas,
    RoiReencoder,
    VideoReencoder,
    find_roi_areas,
    require_saving,
)
from vfsd.disk.object_store import digest_file
from vfsd.errors import (
    BusyError,
    ForbiddenError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    NothingSavedError,
    OutdatedError,
    ReadOnlyError,
    RefusedMediaError,
)
from vfsd.storage.context import StoreContext
from vfsd.storage.original_guard import require_closed
from vfsd.storage.reclaim import reclaim_or_log
from vfsd.write.frame_index import require_same_picture, with_end_time
from vfsd.write.ingest_file import describe_original, encoded_pages, pending_own_file, put_audio

Require = Callable[[Transaction], object]
"""Raises an objection; called before, and in the transaction that publishes."""

# Bytes that must stay free on the disk.
_DISK_RESERVE = 64 << 20


@dataclass(frozen=True, slots=True)
class Replacement:
    """The result of a replacement."""

    video: LogicalVideo  #: as it is now
    codec: str
    size: int  #: bytes of the old file
    new_size: int  #: bytes of the new file
    measured: float  #: dB of the worst picture against the previous original
    psnr: float  #: minimum dB of the worst picture against the first original


def _ignore_progress(what: str, done: int, total: int) -> None:
    """Ignore progress."""


class OriginalReplacer:
    """Replaces one video's original by the result of `work`.

    Raises `ReadOnlyError`, and `ForbiddenError` for a video that is indexed in place.
    """

    def __init__(
        self,
        parts: StoreContext,
        video: LogicalVideo,
        table: FrameTable,
        work: VideoReencoder,
        psnr: float,
        keep: str | None = None,
        areas: RoiAreas | None = None,
    ) -> None:
        """Prepare the replacement.

        Args:
            psnr: the minimum that policies must permit.
            keep: for a decaying video, the labels that keep their quality.
            areas: for a decaying video, the areas of these labels.
        """
        if parts.read_only:
            raise ReadOnlyError("the store was opened read-only")
        if video.original.link_path is not None:
            raise ForbiddenError(
                f"{video.name} is indexed in place, and the store must not replace its file",
                hint="ingest a copy instead of a link",
            )
        self._parts = parts
        self._video = video
        self._table = table
        self._media = video.original.media
        self._work = work
        self._psnr = psnr
        self._keep = keep
        self._areas = areas
        self._require: Require | None = None
        self._path = parts.originals.file_of(video.original)

    @classmethod
    def whole(
        cls, parts: StoreContext, video: LogicalVideo, table: FrameTable, psnr: float, codec: str
    ) -> OriginalReplacer:
        """Re-encode with at least `psnr` in each plane of every picture against the first original.

        `codec` is h264, hevc or av1.  Raises `UsageError`, `RefusedMediaError` for a video that
        cannot be re-encoded, `NothingSavedError` if the present original is not that good any more.
        """
        left = error_from_psnr(psnr) - video.original.error
        if left <= 0:
            raise NothingSavedError(
                f"{video.name} was replaced before and has {video.original.psnr:.2f} dB: it "
                f"cannot be re-encoded with {psnr:g} dB"
            )
        work = VideoReencoder(parts, video, table, codec, left)
        return cls(parts, video, table, work, psnr)

    @classmethod
    def decaying(
        cls,
        parts: StoreContext,
        video: LogicalVideo,
        table: FrameTable,
        psnr: float,
        codec: str,
        keep: str,
    ) -> OriginalReplacer:
        """Re-encode with at least `psnr` against the present original only around boxes of `keep`.

        Raises as `whole` does, and `ForbiddenError` if the frames were not examined for these
        labels.
        """
        areas = find_roi_areas(parts.catalog, video, table, keep)
        work = RoiReencoder(parts, video, table, codec, error_from_psnr(psnr), areas)
        return cls(parts, video, table, work, psnr, keep, areas)

    def forecast(self, on_progress: OnProgress = _ignore_progress) -> ReencodeForecast:
        """Encode and measure a few runs; nothing is stored.

        A video that cannot be written is reported in `ReencodeForecast.refused` without encoding.
        """
        try:
            found = self._work.forecast(on_progress)
        except RefusedMediaError as error:
            return ReencodeForecast.refusing(self._work.codec.name, self._video, str(error))
        return replace(found, refused=self._refusal())

    def replace(
        self,
        reason: str,
        on_progress: OnProgress = _ignore_progress,
        *,
        require: Require | None = None,
    ) -> Replacement:
        """Encode, check and publish.

        `reason` is stored in the log of originals; `require` may raise further objections.  Raises
        `ForbiddenError` if the policy or a hold forbids it or nothing would be saved, `BusyError`
        if the file is open in a mount, `NoSpaceError`, `IntegrityError`, `OutdatedError` if the
        video was changed in the meantime.  On an error the store is unchanged.
        """
        self._require = require
        self._require_allowed_now()
        self._require_room()
        with self._parts.objects.new_file() as new:
            self._work.write(new.path, on_progress)
            require_saving(self._video, new.path.stat().st_size)
            found, compared = self._checked(new.path, on_progress)
            # Encoding may take hours, in which a hold or another policy may have been set.
            self._require_allowed_now()
            return self._publish(new.path, found, compared, reason)

    def _checked(self, path: Path, on_progress: OnProgress) -> tuple[Examination, Comparison]:
        """Examine the new file and compare it with the old one."""
        total = len(self._table)
        try:
            found = self._parts.examiner.examine(
                path,
                name=self._video.name,
                full=True,
                stream=pictures_index(path, self._media, self._work.codec.name),
                on_progress=lambda done, size: on_progress("checking", done, size),
            )
        except RefusedMediaError as refusal:
            raise IntegrityError(f"the new file cannot be read as a video: {refusal}") from refusal
        found = with_end_time(found, self._video.original, self._table)
        require_same_picture(self._media, found.media)
        require_same_matrix(self._path, self._media, path, found.media)
        require_same_streams(self._path, self._media, path, found.media)
        self._work.require_same(path, found.media)
        table = FrameTable.in_memory(
            found.columns, found.order, time_base=found.media.time_base, end_pts=found.end_pts
        )
        done = 0

        def on_frame() -> None:
            nonlocal done
            done += 1
            on_progress("comparing", done, total)

        with (
            self._work.decoder() as source,
            FrameDecoder(path, found.media, found.access, table) as made,
        ):
            compared = self._work.compare(source, made, on_frame)
        if compared.limited > self._work.limit:
            raise IntegrityError(
                f"the new file has {psnr_from_error(compared.limited):.2f} dB, not "
                f"{psnr_from_error(self._work.limit):.2f} dB"
            )
        return found, compared

    # The replacement is a new inode: open files in this process keep the old bytes. The mtime
    # stays, because it is when the pictures were taken and ages count from it.
    def _publish(
        self, path: Path, found: Examination, compared: Comparison, reason: str
    ) -> Replacement:
        """Store the bytes, replace the original in one transaction, then delete the old bytes."""
        video = self._video
        key, size, sums = digest_file(path)
        now = time.time_ns()
        error, codec = compared.error, self._work.codec.name
        total = video.original.error + error
        described = replace(
            describe_original(found, object_key=key, link_path=None, size=size, now_ns=now),
            parameters=self._parameters(),
            error=total,
        )
        arrival = pending_own_file(self._parts, path, key, size)
        with arrival, arrival.recorded() as change:
            self._require_allowed(change)
            node = change.tree.node(video.ino)
            is_there = change.objects.holders(key) > 0
            change.tree.substitute(
                video.ino,
                object_key=key,
                size=size,
                ctime_ns=now,
                generation=node.generation + 1,
            )
            changed = change.videos.replace_original(
                video.id, described, encoded_pages(found), digest=key
            )
            put_audio(change, changed.original, found)
            change.integrity.put_checksums(changed.original.place, sums)
            packs = self._drop_derived(change, changed)
            # Bytes that another file shares are not freed, and those stored already cost nothing.
            stays = change.objects.holders(video.original.object_key or "") > 0
            saved = (0 if stays else video.size) - (0 if is_there else size)
            change.retention.add(
                OriginalLogEntry(
                    id=0,
                    at_ns=now,
                    action=Action.REPLACED if self._keep is None else Action.DECAYED,
                    video_id=video.id,
                    name=changed.name,
                    reason=reason,
                    digest=video.digest,
                    size=video.size,
                    new_digest=key,
                    new_size=size,
                    psnr=psnr_from_error(total) if total else None,
                    details={
                        "codec": codec,
                        "was": self._media.codec,
                        "measured": psnr_from_error(error) if error else None,
                        **compared.details,
                        **({REPLACED_BYTES_KEYWORD: saved} if stays or is_there else {}),
                    },
                )
            )
        reclaim_or_log(self._parts, keys={video.original.object_key or "", *packs})
        return Replacement(
            changed, codec, video.size, size, psnr_from_error(error), psnr_from_error(total)
        )

    def _parameters(self) -> dict[str, object]:
        made: dict[str, object] = {"codec": self._work.codec.name, "psnr": self._psnr}
        decayed = self._keep or self._video.original.parameters.get("decayed")
        return made if decayed is None else {**made, "decayed": decayed}

    def _drop_derived(self, change: Transaction, video: LogicalVideo) -> list[str]:
        """Delete the tiles and renditions of a decaying video and return their packs."""
        # Without decay they stay, because they show the same frames in better quality.
        if self._keep is None:
            return []
        gone = change.segments.of_original(video.original.id)
        change.segments.delete(one.id for one in gone)
        return [one.object_key for one in gone]

    def _require_allowed_now(self) -> None:
        """Raises as `_require_allowed` does, and `BusyError` if the file is open in a mount."""
        with self._parts.catalog.reading() as seen:
            self._require_allowed(seen)
            names = seen.tree.paths_of(self._video.ino)
        require_closed(self._parts, names)

    def _refusal(self) -> str | None:
        """Return the objection of the policy, a hold or a mount."""
        try:
            self._require_allowed_now()
        except (ForbiddenError, BusyError) as error:
            return str(error)
        return None

    def _require_allowed(self, seen: Transaction) -> None:
        """Raises `OutdatedError`, `HeldError`, `ForbiddenError`."""
        video = self._video
        try:
            now = seen.videos.get(video.id)
            state = seen.tree.node(video.ino).state
        except NotFoundError:
            raise _outdated_error(video) from None
        if now.original.id != video.original.id or state is not FileState.VIDEO:
            raise _outdated_error(video)
        if not now.name:
            raise OutdatedError(f"{video.name} was removed in the meantime")
        seen.retention.require_free(video.ino)
        layer = seen.layers.of_file(video.id)
        if layer is not None:
            raise ForbiddenError(
                f"{video.name} is the layer {layer.name} of {seen.videos.get(layer.video_id).name}",
                hint="its samples must stay exact; `vfsd layer rm` makes it an ordinary video",
            )
        if self._require is not None:
            self._require(seen)
        require_replaceable(video.name, seen.retention.policy(video.ino), self._psnr)
        if self._areas is not None and not self._areas.are_of(
            self._parts.catalog, video, self._keep or ""
        ):
            raise OutdatedError(
                f"the boxes of {self._keep} in {video.name} have changed",
                hint="try again; the new boxes are kept too",
            )

    # Checked before hours of encoding that would end on a full disk.
    def _require_room(self) -> None:
        free = shutil.disk_usage(self._parts.directory.objects).free
        if free < self._video.size + _DISK_RESERVE:
            raise NoSpaceError(
                f"{human_bytes(free)} are free; the new file of up to "
                f"{human_bytes(self._video.size)} needs space before the old one is deleted",
                hint="`vfsd gc` or a lower budget may free space",
            )


def require_replaceable(name: str, policy: RetentionPolicy, psnr: float) -> None:
    """Raises `ForbiddenError` if the policy does not permit such a replacement."""
    if policy.original is not Fate.REPLACEABLE:
        raise ForbiddenError(
            f"the policy of {name} keeps the original",
            hint=f"`vfsd policy set {shlex.quote(name)} original=replaceable,psnr={psnr:g}` "
            "permits it",
        )
    if psnr < policy.psnr:
        raise ForbiddenError(
            f"the policy of {name} requires at least {policy.psnr:g} dB, got {psnr:g}"
        )


def _outdated_error(video: LogicalVideo) -> OutdatedError:
    return OutdatedError(f"{video.name} was changed in the meantime", hint="try again")
