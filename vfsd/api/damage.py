"""Damaged frames: the part of `vfsd.Video` that knows which frames show damage of the file.

Only a full decode of the original in order tells that, so every read gives the same answer however
it reaches a frame.  `VideoFacts.verify` makes that decode; a mount does so in the background.
"""

from __future__ import annotations

import logging
from reprlib import repr as shown

import numpy as np
import numpy.typing as npt

from vfsd.api.video_info import Counted, VideoFacts
from vfsd.core.frame_selection import in_ranges
from vfsd.core.frame_table_pages import Ints
from vfsd.disk.block_checksums import text
from vfsd.errors import DamagedFramesError, UsageError, VfsdError

_log = logging.getLogger(__name__)

SHOW, RAISE, SKIP = "show", "raise", "skip"


def damage_choice(damaged: str) -> str:
    """What a read does with damaged frames.  Raises `UsageError`."""
    if damaged not in (SHOW, RAISE, SKIP):
        raise UsageError(f"damaged must be show, raise or skip, got {shown(damaged)}")
    return damaged


class VideoDamage(VideoFacts):
    """Which frames of a video are damaged."""

    def damaged_frames(self) -> Ints:
        """The numbers of the frames that show damage, ascending.

        These are the frames of which FFmpeg's decoder reports an error, or which it conceals, and
        those that are predicted from them up to the next whole key frame.  Packets that yield no
        frame at all are not counted, but frames that depend on them are.

        Where no full decode has examined the video, this makes one, as `verify` does: it takes as
        long, and raises the same.
        """
        if self._known_damage() is None:
            self.verify()
        damage = self.original.damage or ()
        parts = [np.arange(part.start, part.stop, dtype=np.int64) for part in damage]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def kept_frames(self, numbers: Ints, damaged: str) -> Ints:
        """Those of the frames with `numbers` that `VideoFrames.read` gives with that `damaged`.

        Raises `DamagedFramesError` for "raise", `UsageError`, and what `damaged_frames` raises.
        """
        if damage_choice(damaged) == SHOW:
            return numbers
        self.damaged_frames()
        counted = self._counted()
        if damaged == RAISE:
            self._require_undamaged(counted, numbers)
            return numbers
        return numbers[~in_ranges(numbers, counted.original.damage or ())]

    def _known_damage(self) -> tuple[range, ...] | None:
        """None: no full decode has examined it yet, here or elsewhere."""
        if self.original.damage is None and not self.original.is_growing:
            self._look_again()
        return self.original.damage

    def _examines_damage(self, counted: Counted) -> bool:
        """Examine a video of which a read has just met with damage, unless that was done.

        Whether it was done now; what is known of the video may be something else then.
        """
        original = counted.original
        concealed = self._tools.pool.concealed
        if original.damage is not None or original.id not in concealed or original.is_growing:
            return False
        concealed.discard(original.id)  # once: what fails now would fail each time
        if self._known_damage() is None:
            try:
                self.verify()
            except (VfsdError, OSError) as error:
                _log.warning("%s: its damaged frames are not known: %s", self.name, error)
        return True

    def _damage_of(self, counted: Counted, numbers: Ints) -> npt.NDArray[np.bool_]:
        """Of each frame whether it shows damage, as far as that is known; warns of the first."""
        found = in_ranges(numbers, counted.original.damage or ())
        if found.any() and self._tools.pool.warned(counted.original.id):
            _log.warning("%s", _told(counted))
        return found

    def _require_undamaged(self, counted: Counted, numbers: Ints) -> None:
        damaged = numbers[in_ranges(numbers, counted.original.damage or ())]
        if len(damaged):
            raise DamagedFramesError(
                f"frame {damaged[0]} is damaged; {_told(counted)}",
                hint='read with damaged="skip" to leave such frames out, or "show" to have them',
            )


def _told(counted: Counted) -> str:
    original = counted.original
    damage = original.damage or ()
    return (
        f"{counted.info.name}: {original.damaged_frames} of {original.frames} frames are damaged "
        f"in the file: {text(damage)}"
    )
