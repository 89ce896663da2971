"""`GopSampler`: an order of clips in which those of one GOP come together, so that it is decoded
once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from reprlib import repr as shown
from typing import Any, Protocol

import numpy as np

from vfsd.core.frame_table_pages import Ints
from vfsd.errors import UsageError
from vfsd.torch.clip_reads import (
    ClipIndex,
    DecodeSpans,
    Purpose,
    batch_sizes,
    divide_by_rank,
    gop_groups,
    pack_batches,
    random_units,
)
from vfsd.validation import boolean, non_negative, whole_number

_STATE_VERSION = 1


class ClipSource(Protocol):
    """The part of a data set that a sampler uses."""

    def __len__(self) -> int:
        """Number of clips."""

    @property
    def fingerprint(self) -> str:
        """Text that differs for data sets with other clips."""

    def decode_spans(self, epoch: int) -> DecodeSpans:
        """The frames that the clips of an epoch need decoded."""


class GopSampler:
    """The batches of an epoch, as `batch_sampler` of a ``DataLoader``.

        sampler = GopSampler(clips, batch_size=8, locality=0.8)
        loader = DataLoader(clips, batch_sampler=sampler, num_workers=8)
        for epoch in range(100):
            sampler.set_epoch(epoch)
            for batch in loader: ...

    Each clip comes exactly once in an epoch, over all ranks.  Clips that share a GOP are in one
    group; a batch gets whole groups where they fit, and so one worker decodes a GOP for all of
    them.  Each rank has groups of its own.  All ranks have the same number of batches, if each has
    a clip for every batch.

    The order depends on the seed and the epoch alone.  An iteration after a finished one is the
    next epoch, unless `set_epoch` was called.  Elements are `ClipIndex`, which tells persistent
    workers the epoch.
    """

    def __init__(
        self,
        clips: ClipSource,
        batch_size: int,
        *,
        locality: float = 1.0,
        window: int = 64,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int = 0,
    ) -> None:
        """Raises `UsageError` for malformed arguments.

        Args:
            clips: The data set.
            batch_size: Clips of a batch on one rank.
            locality: The probability that a clip stays in its group, from 0 to 1.  With 0, the
                order is a random permutation; with 1, whole groups are shuffled.
            window: The number of groups that a batch chooses from, to find those that fit.
            shuffle: False: groups come in the order of videos and time, and stay whole.
            drop_last: Leave out clips that do not fill a batch on every rank; others each epoch.
            rank: The number of this process, from 0; default: that of ``torch.distributed``.
            world_size: The number of processes; default: that of ``torch.distributed``.
            seed: Selects the orders.
        """
        self._clips = clips
        self.batch_size = _at_least_one(batch_size, "batch_size")
        self.locality = _share(locality)
        self.window = _at_least_one(window, "window")
        self.shuffle = boolean(shuffle, "shuffle")
        self.drop_last = boolean(drop_last, "drop_last")
        self.seed = whole_number(seed, "seed")
        here = _distributed()
        self.world_size = _at_least_one(here[1] if world_size is None else world_size, "world_size")
        self.rank = non_negative(here[0] if rank is None else rank, "rank")
        if self.rank >= self.world_size:
            raise UsageError(f"rank must be less than {self.world_size}, got {self.rank}")
        self.epoch = 0  #: of the iteration that runs, or of the next one
        self._yielded = 0  # batches of that epoch
        self._resume = 0  # batches that the next iteration leaves out

    def __len__(self) -> int:
        """Number of batches of an epoch on this rank."""
        return len(self._sizes(self.rank))

    def __iter__(self) -> Iterator[list[ClipIndex]]:
        count = len(self)
        if self._yielded and self._yielded >= count and not self._resume:
            self.epoch += 1
        first, self._resume = self._resume, 0
        epoch, self._yielded = self.epoch, first
        for clips in self.batches(epoch)[first:]:
            # Counted before the yield: the caller has the batch when it asks for the state.
            self._yielded += 1
            yield [ClipIndex(epoch, clip) for clip in clips.tolist()]

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, which begins with the first batch.

        After `load_state_dict`, the epoch of the state continues where the state was taken.
        """
        epoch = non_negative(epoch, "epoch")
        if epoch == self.epoch and self._resume:
            return
        self.epoch, self._yielded, self._resume = epoch, 0, 0

    def batches(self, epoch: int, rank: int | None = None) -> list[Ints]:
        """Return the numbers of the clips of each batch; default: those of this rank."""
        rank = self.rank if rank is None else rank
        groups = gop_groups(self._clips.decode_spans(epoch), self.batch_size)
        pieces = self._shuffled(groups, epoch) if self.shuffle else groups
        mine = divide_by_rank(pieces, self._targets())[rank]
        found = pack_batches(mine, self._sizes(rank), self.window if self.shuffle else 1)
        if not self.shuffle:
            return found
        return [
            batch[np.argsort(random_units(self.seed, epoch, Purpose.BATCH, batch), kind="stable")]
            for batch in found
        ]

    # -- resuming

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the state to resume from, a dict of numbers and text.

        `batches` is the number of batches of this epoch that training has finished.  The default
        is the number that was yielded, which is ahead of it in a loader with workers.
        """
        done = self._yielded if batches is None else non_negative(batches, "batches")
        return {**self._identity(), "epoch": self.epoch, "batches": done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state: the next iteration yields the remaining batches of its epoch.

        Raises `UsageError` for the state of another order: other clips, arguments or ranks.
        """
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise UsageError(
                    f"{key} of the state must be {shown(value)}, got {shown(state.get(key))}",
                    hint="resume with the same data set and arguments, or start a new epoch",
                )
        self.epoch = non_negative(state["epoch"], "epoch")
        done = non_negative(state["batches"], "batches")
        if done >= len(self):  # the epoch was complete
            self.epoch, done = self.epoch + 1, 0
        self._resume = self._yielded = done

    def _identity(self) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "clips": self._clips.fingerprint,
            "batch_size": self.batch_size,
            "locality": self.locality,
            "window": self.window,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "world_size": self.world_size,
            "seed": self.seed,
        }

    # -- the order

    def _shuffled(self, groups: list[Ints], epoch: int) -> list[Ints]:
        """Separate the clips that leave their groups, and shuffle what results."""
        pieces: list[Ints] = []
        for group in groups:
            stays = random_units(self.seed, epoch, Purpose.STAY, group) < self.locality
            if stays.any():
                pieces.append(group[stays])
            pieces += np.split(group[~stays], np.count_nonzero(~stays)) if not stays.all() else []
        # By a hash of the first clip: the order of the groups has no influence.
        firsts = np.array([piece[0] for piece in pieces], np.int64)
        units = random_units(self.seed, epoch, Purpose.PIECE, firsts)
        return [pieces[at] for at in np.argsort(units, kind="stable").tolist()]

    def _targets(self) -> list[int]:
        """The number of clips of each rank."""
        share, more = divmod(len(self._clips), self.world_size)
        if self.drop_last:
            return [share // self.batch_size * self.batch_size] * self.world_size
        return [share + (rank < more) for rank in range(self.world_size)]

    def _sizes(self, rank: int) -> list[int]:
        targets = self._targets()
        batches = -(-targets[0] // self.batch_size)  # the first rank has the most clips
        return batch_sizes(targets[rank], self.batch_size, batches)


def _at_least_one(value: int, what: str) -> int:
    number = whole_number(value, what)
    if number < 1:
        raise UsageError(f"{what} must be at least 1, got {number}")
    return number


def _share(value: float) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not 0 <= found <= 1:
        raise UsageError(f"locality must be from 0 to 1, got {shown(value)}")
    return found


def _distributed() -> tuple[int, int]:
    """Return the rank and the number of processes of ``torch.distributed``, if it is in use."""
    module: Any = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return 0, 1
    return int(module.get_rank()), int(module.get_world_size())
