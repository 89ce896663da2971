"""The process that makes tiles for a mount: ``python -m vfsd.core.launch vfsd.mount.tune_worker
JSON``. It reads commands from standard input, writes reports to standard output
(`vfsd.mount.tune_protocol`), and ends with the mount.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.model import LogicalVideo, MediaInfo, TilingDecision, TilingReason
from vfsd.core.process_control import (
    LOWEST_PRIORITY,
    die_with_parent,
    set_autogroup_niceness,
    set_idle_priority,
)
from vfsd.core.timebase import human_bytes
from vfsd.derive.deferred_compression import (
    PendingCompression,
    is_compression_due,
    pending_compressions,
    recompress_segment,
)
from vfsd.derive.proposals import Proposal, by_value, proposals_for
from vfsd.disk.safe_open import DirectoryHandle
from vfsd.disk.store_layout import StoreDirectory
from vfsd.errors import NoSpaceError, NotFoundError, OutdatedError, OverBudgetError, VfsdError
from vfsd.mount import mount_log
from vfsd.mount.tune_protocol import (
    ALL,
    DONE,
    FAILED,
    MADE,
    MAKING,
    NOTE,
    TunerCommands,
    TunerReport,
    TunerStopError,
)
from vfsd.storage.context import StoreContext
from vfsd.tiling.cost import VIEW_PROFILES

MAKER = "background"
"""Who makes the decisions; `StoreSettings.tune_bytes` is about what these have made."""

_LOOKING_SHARE = 0.05
"""Looking for what pays may take this share of the time."""

_REASONS = 3
"""As many are told of each decision."""

Tell = Callable[[TunerReport], None]


class TuneLoop:
    """Makes profitable tiles and renditions, continuing at each command."""

    def __init__(
        self, store: Store, wait_while_paused: Callable[[], None], tell: Tell, avoid: set[int]
    ) -> None:
        """`wait_while_paused` is called between pictures; it may wait, or raise to give up.

        Videos whose ids are in `avoid` are left alone, and so are those that fail.
        """
        self._store = store
        self._obey = wait_while_paused
        self._tell = tell
        self._avoid = avoid
        self._tuner = store.tuner(maker=MAKER, between=wait_while_paused)
        self._looked: int | None = None  # the newest read when proposals were looked for
        self._look_at = 0.0  # not again before then, as long as there are proposals
        self._looking = 0.0  # seconds of CPU

    def do(self) -> None:
        """Make what pays until nothing is left to do.  Raises what `wait_while_paused` does."""
        self._looking = 0.0
        try:
            while self._store.settings.tune and self._make_all(self._proposals()):
                pass
            if self._store.settings.compress:
                self._compress_all()
        except NoSpaceError as error:
            self._tell(TunerReport(FAILED, str(error), ALL))
        self._tell(TunerReport(DONE, seconds=self._looking))

    def _make_all(self, proposals: list[Proposal]) -> bool:
        """Make them in their order; whether it is worth while to look for others."""
        left = self._store.settings.tune_bytes - self._bytes()
        too_large, made = 0, 0
        outdated = False
        for proposal in proposals:
            if self._is_time_to_look():
                return True
            if proposal.video.id in self._avoid:
                continue
            if proposal.bytes > left:
                too_large += 1
                continue
            try:
                left -= self._make(proposal).bytes
                made += 1
            except OutdatedError:
                outdated = True
            except OverBudgetError:
                pass  # what there is, is worth more
            except NoSpaceError:
                raise
            except (VfsdError, OSError) as error:
                self._give_up(proposal.video, error)
        if too_large:
            text = f"{too_large} segments that would pay are not made: tune_bytes is used up"
            self._tell(TunerReport(NOTE, text))
        return outdated and made > 0

    def _make(self, proposal: Proposal) -> TilingDecision:
        frames = proposal.plan.frames
        what = f"{proposal.video.name!r} {frames.start}-{frames.stop}"
        self._tell(TunerReport(MAKING, f"making tiles of {what}", proposal.video.id))
        decision = self._tuner.make(proposal)
        told = explained(decision, proposal.video.original.media)
        self._tell(TunerReport(MADE, f"made tiles of {what}: {told}", proposal.video.id))
        return decision

    def _compress_all(self) -> None:
        parts = self._store.parts
        for one in pending_compressions(parts):
            if one.video_id in self._avoid or not is_compression_due(parts, one):
                continue
            try:
                self._compress(one)
            except NoSpaceError:
                raise
            except NotFoundError:
                pass  # it is gone, or others have changed it
            except (VfsdError, OSError) as error:
                with suppress(NotFoundError):
                    self._give_up(self._info(one.video_id), error)

    def _compress(self, one: PendingCompression) -> None:
        video, segment = self._info(one.video_id), one.segment
        what = f"{video.name!r} {segment.first_frame}-{segment.end_frame}"
        self._tell(TunerReport(MAKING, f"compressing {what}", video.id))
        after = recompress_segment(
            self._store.parts, segment, one.level, on_bytes=lambda _size: self._obey()
        )
        told = f"{human_bytes(segment.size)} became {human_bytes(after.size)}"
        self._tell(TunerReport(MADE, f"compressed {what} at level {one.level}: {told}", video.id))

    def _info(self, video_id: int) -> LogicalVideo:
        with self._store.catalog.reading() as seen:
            return seen.videos.get(video_id)

    def _give_up(self, video: LogicalVideo, error: Exception) -> None:
        self._avoid.add(video.id)
        self._tell(TunerReport(FAILED, f"{video.name!r}: {error}", video.id))

    # -- looking

    def _proposals(self) -> list[Proposal]:
        """What the reads of all videos speak for, the best value first."""
        self._looked = self._newest_read()
        began = time.process_time()
        found = []
        for video in self._videos():
            self._obey()
            try:
                found += self._tuner.fitting(proposals_for(self._store.parts, context_of(video)))
            except NotFoundError:
                pass  # it is gone, or others have changed it
            except (VfsdError, OSError) as error:
                self._give_up(video.info, error)
        spent = time.process_time() - began
        self._looking += spent
        self._look_at = time.monotonic() + spent / _LOOKING_SHARE
        return by_value(found)

    def _videos(self) -> Iterator[Video]:
        """Those that somebody has read, and that nothing is wrong with."""
        with self._store.catalog.reading() as seen:
            numbers = seen.read_log.videos()
        for number in numbers:
            if number in self._avoid:
                continue
            try:
                info = self._info(number)
            except NotFoundError:
                continue  # it was taken away, or is just being written
            yield self._store.open_video(info)

    def _is_time_to_look(self) -> bool:
        """Whether others may be the best by now."""
        return time.monotonic() >= self._look_at and self._newest_read() != self._looked

    def _newest_read(self) -> int | None:
        with self._store.catalog.reading() as seen:
            newest = seen.read_log.newest(None, limit=1)
        return newest[0].id if newest else None

    def _bytes(self) -> int:
        """Of all tiles in the store that were made like this."""
        with self._store.catalog.reading() as seen:
            decisions = seen.tiling_decisions.newest()
        return sum(
            one.bytes for one in decisions if one.maker == MAKER and one.segment_id is not None
        )


def explained(decision: TilingDecision, media: MediaInfo) -> str:
    """What was made of a video, what that took, and what for, in a line."""
    if decision.picture == (media.width, media.height):
        stored = decision.layout.count if decision.tiles is None else len(decision.tiles)
        what = f"{stored} of {decision.layout.count} tiles"
    else:
        what = f"pictures of {decision.layout.width}x{decision.layout.height}"
        if decision.profile in VIEW_PROFILES:
            what += " that were encoded for a view"
    reasons = [_reason(reason) for reason in decision.reasons[:_REASONS]]
    if len(decision.reasons) > _REASONS:
        reasons.append(f"{len(decision.reasons) - _REASONS} more")
    return (
        f"{what}, {human_bytes(decision.bytes)} in {decision.seconds:.2f} s, for "
        f"{', '.join(reasons)}; would have saved {decision.predicted_saved:.2f} s "
        f"of {decision.reads} reads"
    )


def _reason(reason: TilingReason) -> str:
    if reason.size is not None:
        what = f"{reason.size[0]}x{reason.size[1]}"
    else:
        what = str(reason.label if reason.region is None else reason.region)
    return f"{what} ({reason.reads} reads)"


def main(arguments: list[str]) -> None:
    task = json.loads(arguments[0])
    orders, tell = _take_pipes()
    _lower_priority()
    _die_with_thread(int(task["parent"]))
    mount_log.set_up("warning")
    avoid = {int(number) for number in task["avoid"]}
    # Where the pipe is broken, nobody is left to report to.
    with (
        suppress(TunerStopError, BrokenPipeError),
        Store(StoreContext.of(_store_directory(task)), threads=1) as store,
    ):
        work = TuneLoop(store, orders.wait_while_paused, tell, avoid)
        while True:
            orders.wait_for_run()
            work.do()


# -- the process


def _store_directory(task: dict[str, Any]) -> StoreDirectory:
    """Open the store through the descriptor of the mount, if it has one."""
    root = Path(task["store"])
    for fd in task["held"]:
        return StoreDirectory.open_held(root, DirectoryHandle(int(fd)))
    return StoreDirectory.open_watched(root)


def _take_pipes() -> tuple[TunerCommands, Tell]:
    """Keep both pipes from other code that reads or prints."""
    orders, reports = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)

    def tell(report: TunerReport) -> None:
        os.write(reports, report.line())

    return TunerCommands(orders), tell


def _lower_priority() -> None:
    """Run at the lowest CPU and disk priority."""
    with suppress(OSError):
        # The kernel may share the cores among sessions first: see sched(7), autogroup.
        os.setsid()
        set_autogroup_niceness(os.getpid(), LOWEST_PRIORITY)
    set_idle_priority()


def _die_with_thread(parent: int) -> None:
    """Die when the thread that started this process ends, and on signals for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the mount ends this process
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    die_with_parent(parent)
