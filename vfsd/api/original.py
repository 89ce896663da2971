"""What may become of a video's original: the part of `vfsd.Video` that lets it go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vfsd.api.video_info import VideoFacts
from vfsd.core.retention_policy import CODEC, Hold, OriginalLogEntry, RetentionPolicy
from vfsd.derive.reencode import OnProgress, ReencodeForecast
from vfsd.derive.replace_original import OriginalReplacer, Replacement, Require
from vfsd.errors import NotFoundError, OutdatedError, UsageError
from vfsd.storage import original_guard
from vfsd.validation import decibels


class VideoOriginal(VideoFacts):
    """Policy, holds and replacement of one video's original."""

    @property
    def policy(self) -> RetentionPolicy:
        """What may become of the original: what was said of the video, or of a directory above.

        Where nothing was said it is kept.
        """
        return original_guard.policy_of(self._parts, self.info)

    def set_policy(self, policy: RetentionPolicy | str | None) -> None:
        """Allow the original to be replaced, or not; None: as where nothing was said.

            video.set_policy("original=replaceable,psnr=42")

        Raises `UsageError`, `ReadOnlyError`.
        """
        original_guard.set_policy(self._parts, self.name, policy)

    def holds(self) -> list[Hold]:
        """Why the video may neither change nor go; empty where nothing forbids it."""
        return original_guard.holds(self._parts, self.info)

    def hold(self, reason: str) -> Hold:
        """Forbid everybody to change or remove the video, until that is lifted."""
        return original_guard.hold(self._parts, self.info, reason)

    def release(self, reason: str, hold: int | None = None) -> list[Hold]:
        """Lift the hold of that number, or all that there are; `reason` is kept in the log.

        Gives those that were lifted.  Raises `NotFoundError` where there is none.
        """
        return original_guard.release(self._parts, self.info, reason, hold)

    def original_log(self) -> list[OriginalLogEntry]:
        """What became of its originals, the newest first."""
        with self._parts.catalog.reading() as seen:
            return seen.originals.log(self.info.id)

    def replace_original(
        self,
        *,
        psnr: float | None = None,
        codec: str = CODEC,
        reason: str = "asked for",
        require: Require | None = None,
        on_progress: OnProgress | None = None,
    ) -> Replacement:
        """Put a smaller encoding in the place of the original, where the policy allows it.

        Every picture of it has at least `psnr` dB (default: what the policy asks for) in each
        plane against the very first original.  That is measured: what was written is decoded and
        compared with the present original, whose own loss is added (see `vfsd.core.psnr`).
        Frames, their times and all other streams stay, and so do detections, tiles and renditions.
        `require` is called in the transaction that publishes it, and may raise to forbid it.

        Any other `Video` that is open of it has to be opened again.  Raises
        `ForbiddenError` (also where nothing would be saved), `HeldError`, `UsageError`,
        `RefusedMediaError`, `BusyError` (somebody has it open in a mount), `NoSpaceError`,
        `IntegrityError`, `OutdatedError`; nothing has changed then.
        """
        with self._unless_outdated():
            replacer = self._replacer(psnr, codec)
            told = () if on_progress is None else (on_progress,)
            done = replacer.replace(reason, *told, require=require)
        with self._guard:
            self.info, self._table = done.video, None
        return done

    def forecast_replacement(
        self,
        *,
        psnr: float | None = None,
        codec: str = CODEC,
        on_progress: OnProgress | None = None,
    ) -> ReencodeForecast:
        """What `replace_original` would come to: a few seconds are encoded and measured.

        Nothing is stored.  What the policy says to it is told (`ReencodeForecast.refused`).
        Raises as `replace_original` does.
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
        """Put an encoding in the place of the original that keeps its quality only where objects
        with the labels `keep` were seen; the policy has to allow that it is replaced.

        Within their boxes, grown by 16 pixels and half a second, every picture has at least `psnr`
        dB in each plane against the present original.  All else is low-passed, and stands still
        for two seconds at a time.  Tiles and renditions go.  The PSNR that is told of the video
        afterwards is that of whole pictures.  Raises as `replace_original` does, `ForbiddenError`
        where more than half a second in a row was examined by no source of such labels, and
        `OutdatedError` where boxes of them have come or gone meanwhile.
        """
        with self._unless_outdated():
            decayer = self._decayer(keep, psnr, codec)
            told = () if on_progress is None else (on_progress,)
            done = decayer.replace(reason, *told, require=require)
        with self._guard:
            self.info, self._table = done.video, None
        return done

    def forecast_decay(
        self,
        keep: str,
        *,
        psnr: float | None = None,
        codec: str = CODEC,
        on_progress: OnProgress | None = None,
    ) -> ReencodeForecast:
        """What `decay` would come to; the PSNR is that of what keeps its quality."""
        decayer = self._decayer(keep, psnr, codec)
        return decayer.forecast(*(() if on_progress is None else (on_progress,)))

    @contextmanager
    def _unless_outdated(self) -> Iterator[None]:
        """Have a file that is gone be an `OutdatedError`, where somebody has changed the video."""
        try:
            yield
        except FileNotFoundError as error:
            with suppress(NotFoundError), self._parts.catalog.reading() as seen:
                if seen.videos.get(self.info.id).original.id == self.original.id:
                    raise
            raise OutdatedError(
                f"{self.name} has changed meanwhile", hint="look at it again"
            ) from error

    def _replacer(self, psnr: float | None, codec: str) -> OriginalReplacer:
        self._require_verified()
        return OriginalReplacer.whole(self._parts, self.info, self.table, self._wanted(psnr), codec)

    def _decayer(self, keep: str, psnr: float | None, codec: str) -> OriginalReplacer:
        self._require_verified()
        return OriginalReplacer.decaying(
            self._parts, self.info, self.table, self._wanted(psnr), codec, keep
        )

    def _wanted(self, psnr: float | None) -> float:
        wanted = self.policy.psnr if psnr is None else decibels(psnr)
        if math.isinf(wanted):
            raise UsageError(
                "whatever takes an original's place has lost something",
                hint="ask for a finite PSNR, as in 45 dB",
            )
        return wanted
