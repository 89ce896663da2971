"""`VideoPolicy`, whether the original of one video may be replaced or removed, and `VideoBudget`,
the limit for its tiles and renditions; `video.policy` and `video.budget`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vfsd.api.reading import sides_in
from vfsd.core.budgets import ChargedSegment, Pin
from vfsd.core.model import Role
from vfsd.core.retention_policy import CODEC, Hold, OriginalLogEntry, RetentionPolicy
from vfsd.core.timebase import Span
from vfsd.core.view_request import Size
from vfsd.derive import derived_data
from vfsd.derive.derived_data import DerivedBudget
from vfsd.derive.reencode import OnProgress, ReencodeForecast
from vfsd.derive.replace_original import OriginalReplacer, Replacement, Require
from vfsd.errors import NotFoundError, OutdatedError, OutOfRangeError, UsageError
from vfsd.read.read_context import VideoContext
from vfsd.storage import original_guard
from vfsd.validation import boolean, decibels
from vfsd.write.frame_index import require_verified


class VideoPolicy:
    """Policy, holds and replacement of one video's original.

    video.policy.set("original=replaceable,psnr=42")
    video.policy.replace_original()
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("a policy")
        self._video = video

    def get(self) -> RetentionPolicy:
        """The policy of the video, or of the closest directory above that has one.

        Without any, originals are kept.
        """
        return original_guard.policy_of(self._video.parts, self._video.info)

    def set(self, policy: RetentionPolicy | str | None) -> None:
        """Allow or forbid that the original is replaced; None removes the video's own policy.

        Raises `UsageError` and `ReadOnlyError`.
        """
        original_guard.set_policy(self._video.parts, self._video.name, policy)

    def holds(self) -> list[Hold]:
        """The holds that forbid to change or remove the video."""
        return original_guard.holds(self._video.parts, self._video.info)

    def hold(self, reason: str) -> Hold:
        """Forbid all changes of the video, and its removal, until `release`."""
        return original_guard.hold(self._video.parts, self._video.info, reason)

    def release(self, reason: str, hold: int | None = None) -> list[Hold]:
        """Lift the hold with that id, by default all; the log keeps `reason`.

        Returns the lifted holds.  Raises `NotFoundError` without such a hold.
        """
        return original_guard.release(self._video.parts, self._video.info, reason, hold)

    def log(self) -> list[OriginalLogEntry]:
        """All changes of the original, the newest first."""
        with self._video.parts.catalog.reading() as seen:
            return seen.retention.log(self._video.info.id)

    def replace_original(
        self,
        *,
        psnr: float | None = None,
        codec: str = CODEC,
        reason: str = "asked for",
        require: Require | None = None,
        on_progress: OnProgress | None = None,
    ) -> Replacement:
        """Replace the original by a smaller encoding, where the policy allows it.

        The quality is measured: the new file is decoded and compared with the present original, and
        the loss of that one is added (see `vfsd.core.model`).  Frames, their times and all other
        streams stay, and so do detections, tiles and renditions.  Other `Video` objects of the
        same video must be opened again.

        Args:
            psnr: The least PSNR in dB of each plane of every picture, against the very first
                original; default: that of the policy.
            codec: The codec of the new file.
            reason: Kept in the log.
            require: Called in the transaction that publishes the file; it may raise to forbid it.
            on_progress: Called with (step, pictures done, pictures in all).

        Raises:
            ForbiddenError: The policy forbids it, or the new file would not be smaller.
            HeldError: A hold forbids it.
            UsageError: An argument is malformed.
            RefusedMediaError: The video cannot be encoded so.
            BusyError: The video is open in a mount.
            NoSpaceError, IntegrityError, OutdatedError: Nothing has changed.
        """
        with self._unless_outdated():
            replacer = self._replacer(psnr, codec)
            told = () if on_progress is None else (on_progress,)
            done = replacer.replace(reason, *told, require=require)
        self._video.adopt(done.video)
        return done

    def forecast_replacement(
        self,
        *,
        psnr: float | None = None,
        codec: str = CODEC,
        on_progress: OnProgress | None = None,
    ) -> ReencodeForecast:
        """Estimate `replace_original` by encoding and measuring a few seconds.

        Nothing is stored.  `ReencodeForecast.refused` says what the policy forbids.  Raises as
        `replace_original`.
        """
        replacer = self._replacer(psnr, codec)
        return replacer.forecast(*(() if on_progress is None else (on_progress,)))

    def decay(
        self,
        keep: str,
        *,
        psnr: float | None = None,
        codec: str = CODEC,
        reason: str = "asked for",
        require: Require | None = None,
        on_progress: OnProgress | None = None,
    ) -> Replacement:
        """Replace the original by an encoding that keeps its quality around labelled objects alone,
        where the policy allows it.

        Within the boxes of the labels `keep`, grown by 16 pixels and half a second, each plane of
        every picture has at least `psnr` dB against the present original.  The rest is low-pass
        filtered, and changes every two seconds only.  Tiles and renditions are removed.  The PSNR
        of the video is that of whole pictures afterwards.

        Args:
            keep: An expression of labels, as for `VideoLabels.query`.
            psnr: In dB; default: that of the policy.
            codec: The codec of the new file.
            reason: Kept in the log.
            require: Called in the transaction that publishes the file; it may raise to forbid it.
            on_progress: Called with (step, pictures done, pictures in all).

        Raises:
            ForbiddenError: As for `replace_original`, and where no source of these labels has
                examined a part of more than half a second.
            OutdatedError: Boxes of these labels have changed during the encoding.
            VfsdError: Others as for `replace_original`.
        """
        with self._unless_outdated():
            decayer = self._decayer(keep, psnr, codec)
            told = () if on_progress is None else (on_progress,)
            done = decayer.replace(reason, *told, require=require)
        self._video.adopt(done.video)
        return done

    def forecast_decay(
        self,
        keep: str,
        *,
        psnr: float | None = None,
        codec: str = CODEC,
        on_progress: OnProgress | None = None,
    ) -> ReencodeForecast:
        """Estimate `decay`; the PSNR is that of the parts that keep their quality."""
        decayer = self._decayer(keep, psnr, codec)
        return decayer.forecast(*(() if on_progress is None else (on_progress,)))

    @contextmanager
    def _unless_outdated(self) -> Iterator[None]:
        """Turn a missing file into `OutdatedError` where another process changed the video."""
        video = self._video
        try:
            yield
        except FileNotFoundError as error:
            with suppress(NotFoundError), video.parts.catalog.reading() as seen:
                if seen.videos.get(video.info.id).original.id == video.original.id:
                    raise
            raise OutdatedError(
                f"{video.name} has changed in the meantime", hint="open it again"
            ) from error

    def _replacer(self, psnr: float | None, codec: str) -> OriginalReplacer:
        video = self._video
        require_verified(video)
        return OriginalReplacer.whole(
            video.parts, video.info, video.table, self._wanted(psnr), codec
        )

    def _decayer(self, keep: str, psnr: float | None, codec: str) -> OriginalReplacer:
        video = self._video
        require_verified(video)
        wanted = self._wanted(psnr)
        return OriginalReplacer.decaying(video.parts, video.info, video.table, wanted, codec, keep)

    def _wanted(self, psnr: float | None) -> float:
        wanted = self.get().psnr if psnr is None else decibels(psnr)
        if math.isinf(wanted):
            raise UsageError(
                "psnr must be finite for a replacement of the original, got inf",
                hint="for example 45 dB",
            )
        return wanted


class VideoBudget(DerivedBudget):
    """The budget of one video, and its pins: tiles and renditions that are never evicted.

    video.budget.set("20M")
    video.budget.pin(span=(0, 60), tiles=True)
    """

    def __init__(self, video: VideoContext) -> None:
        video.require_finished("a budget")
        super().__init__(video.parts, video.tools, video.info)
        self._context = video

    def pins(self) -> list[Pin]:
        """All pins of the video, by first frame."""
        return derived_data.pins(self._context.parts, self._context.info)

    def pin(
        self,
        *,
        span: Span | None = None,
        tiles: bool = False,
        size: Size | None = None,
    ) -> Pin:
        """Keep tiles and renditions, present and future ones, whatever budgets say.

        With `tiles`, tiles alone; with `size` of the displayed frame, as for `Video.read`, that
        rendition alone.  `span` is in seconds, end exclusive: segments with a frame in it are
        pinned.  Pinned data is not charged, and can still be removed explicitly.  Raises
        `OutOfRangeError` and `UsageError`.
        """
        video = self._context
        sides = sides_in(size, None, video.original.media)
        role = _role(tiles, sides)
        return derived_data.pin(video.parts, video.info, self._some(span), role, sides)

    def unpin(
        self,
        *,
        span: Span | None = None,
        tiles: bool = False,
        size: Size | None = None,
    ) -> list[ChargedSegment]:
        """Remove the pins that `pin` made with the same arguments; without any, all pins.

        Returns the data that was evicted.  Raises `NotFoundError` without such a pin.
        """
        video = self._context
        sides = sides_in(size, None, video.original.media)
        frames = None if span is None else self._some(span)
        role = _role(tiles, sides)
        return derived_data.unpin(video.parts, video.info, frames, role, sides)

    def _some(self, span: Span | None) -> range:
        frames = self._context.frames_in(span)
        if not frames:
            raise OutOfRangeError("no frame appears in that span")
        return frames


def _role(tiles: bool, size: tuple[int, int] | None) -> Role | None:
    if boolean(tiles, "tiles") and size is not None:
        raise UsageError("give either tiles or the size of a rendition, not both")
    if size is not None:
        return Role.RENDITION
    return Role.TILED if tiles else None
