"""The process that makes tiles for a mount.

Started as ``python -m vfsd.core.subprocess_entry vfsd.mount.tune_worker JSON``. It reads commands
from standard input, writes reports to standard output (`vfsd.mount.tune_scheduler`), and ends with
the mount.
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
from vfsd.maintenance.browser_policy import make_browser_rendition
from vfsd.mount import mount_log
from vfsd.mount.tune_scheduler import (
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
"""Recorded as the maker of each decision. `StoreSettings.tune_bytes` limits its tiles."""

# The search for proposals may take this share of the time.
_SEARCH_SHARE = 0.05

# Number of reasons in the log line of a decision.
_REASONS = 3

SendReport = Callable[[TunerReport], None]


class TuneLoop:
    """Makes profitable tiles and renditions, carries out the rule `browser` of policies, and
    compresses lossless segments.
    """

    def __init__(
        self,
        store: Store,
        wait_while_paused: Callable[[], None],
        report: SendReport,
        avoid: set[int],
    ) -> None:
        """Create it for one store.

        `wait_while_paused` is called between pictures; it may wait, or raise to stop the work.
        `report` sends a report. Videos with ids in `avoid` are skipped; those that fail are added.
        """
        self._store = store
        self._wait_while_paused = wait_while_paused
        self._report = report
        self._avoid = avoid
        self._tuner = store.tuner(maker=MAKER, between=wait_while_paused)
        self._searched: int | None = None  # the newest read at the last search
        self._search_at = 0.0  # earliest time of a new search while proposals are left
        self._search_seconds = 0.0  # CPU seconds spent on the search

    def do(self) -> None:
        """Work until nothing is left to do. Raises the exceptions of `wait_while_paused`."""
        self._search_seconds = 0.0
        try:
            while self._store.settings.tune:
                while self._make_all(self._proposals()):
                    pass
                if not self._make_browser_renditions():
                    break
            if self._store.settings.compress:
                self._compress_all()
        except NoSpaceError as error:
            self._report(TunerReport(FAILED, str(error), ALL))
        self._report(TunerReport(DONE, seconds=self._search_seconds))

    def _make_all(self, proposals: list[Proposal]) -> bool:
        """Make proposals in their order; return whether a new search is worthwhile."""
        left = self._store.settings.tune_bytes - self._stored_bytes()
        too_large, made = 0, 0
        outdated = False
        for proposal in proposals:
            if self._is_search_due():
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
                pass  # the existing data is worth more
            except NoSpaceError:
                raise
            except (VfsdError, OSError) as error:
                self._give_up(proposal.video, error)
        if too_large:
            text = f"{too_large} useful segments are not made: tune_bytes is used up"
            self._report(TunerReport(NOTE, text))
        return outdated and made > 0

    def _make(self, proposal: Proposal) -> TilingDecision:
        frames = proposal.plan.frames
        what = f"{proposal.video.name!r} {frames.start}-{frames.stop}"
        self._report(TunerReport(MAKING, f"making tiles of {what}", proposal.video.id))
        decision = self._tuner.make(proposal)
        result = explained(decision, proposal.video.original.media)
        self._report(TunerReport(MADE, f"made tiles of {what}: {result}", proposal.video.id))
        return decision

    def _make_browser_renditions(self) -> bool:
        """Carry out the rule `browser` of policies; return whether new reads interrupted it."""
        with self._store.catalog.reading() as seen:
            lacking = seen.retention.lacking_browser()
        for number, width in lacking.items():
            if self._is_search_due():
                return True
            if number in self._avoid:
                continue
            try:
                self._make_browser_rendition(self._info(number), width)
            except (NotFoundError, OutdatedError):
                pass  # it was removed or changed in the meantime
            except OverBudgetError as error:
                self._report(TunerReport(NOTE, str(error)))
            except NoSpaceError:
                raise
            except (VfsdError, OSError) as error:
                with suppress(NotFoundError):
                    self._give_up(self._info(number), error)
        return False

    def _make_browser_rendition(self, info: LogicalVideo, width: int) -> None:
        what = f"a rendition of {info.name!r} for browsers"
        self._report(TunerReport(MAKING, f"making {what}", info.id))
        result = make_browser_rendition(
            self._store.open_video(info), width, jobs=1, between=self._wait_while_paused
        )
        if result.refused is not None:
            self._report(TunerReport(NOTE, f"{info.name!r}: {result.refused}"))
        elif result.made:
            size = human_bytes(sum(one.size for one in result.made))
            self._report(TunerReport(MADE, f"made {what}: {size}", info.id))

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
                pass  # it was removed or changed in the meantime
            except (VfsdError, OSError) as error:
                with suppress(NotFoundError):
                    self._give_up(self._info(one.video_id), error)

    def _compress(self, one: PendingCompression) -> None:
        video, segment = self._info(one.video_id), one.segment
        what = f"{video.name!r} {segment.first_frame}-{segment.end_frame}"
        self._report(TunerReport(MAKING, f"compressing {what}", video.id))
        after = recompress_segment(
            self._store.parts, segment, one.level, on_bytes=lambda _size: self._wait_while_paused()
        )
        result = f"{human_bytes(segment.size)} became {human_bytes(after.size)}"
        self._report(
            TunerReport(MADE, f"compressed {what} at level {one.level}: {result}", video.id)
        )

    def _info(self, video_id: int) -> LogicalVideo:
        with self._store.catalog.reading() as seen:
            return seen.videos.get(video_id)

    def _give_up(self, video: LogicalVideo, error: Exception) -> None:
        self._avoid.add(video.id)
        self._report(TunerReport(FAILED, f"{video.name!r}: {error}", video.id))

    # -- search

    def _proposals(self) -> list[Proposal]:
        """Return proposals for all videos that were read, the best value first."""
        self._searched = self._newest_read()
        began = time.process_time()
        found = []
        for video in self._videos():
            self._wait_while_paused()
            try:
                found += self._tuner.fitting(proposals_for(self._store.parts, context_of(video)))
            except NotFoundError:
                pass  # it was removed or changed in the meantime
            except (VfsdError, OSError) as error:
                self._give_up(video.info, error)
        spent = time.process_time() - began
        self._search_seconds += spent
        self._search_at = time.monotonic() + spent / _SEARCH_SHARE
        return by_value(found)

    def _videos(self) -> Iterator[Video]:
        """Yield the videos in the read log, without those to avoid."""
        self._store.catalog.fold_reads()
        with self._store.catalog.reading() as seen:
            numbers = seen.read_log.videos()
        for number in numbers:
            if number in self._avoid:
                continue
            try:
                info = self._info(number)
            except NotFoundError:
                continue  # it was removed, or is being written
            yield self._store.open_video(info)

    def _is_search_due(self) -> bool:
        """Return whether a new search may find better proposals."""
        return time.monotonic() >= self._search_at and self._newest_read() != self._searched

    def _newest_read(self) -> int | None:
        with self._store.catalog.reading() as seen:
            newest = seen.read_log.newest(None, limit=1)
        return newest[0].id if newest else None

    def _stored_bytes(self) -> int:
        """Return the bytes of all tiles in the store that background tuning has made."""
        with self._store.catalog.reading() as seen:
            decisions = seen.tiling_decisions.newest()
        return sum(
            one.bytes for one in decisions if one.maker == MAKER and one.segment_id is not None
        )


def explained(decision: TilingDecision, media: MediaInfo) -> str:
    """Return one line about a decision: the result, its cost, and the reasons."""
    if decision.picture == (media.width, media.height):
        stored = decision.layout.count if decision.tiles is None else len(decision.tiles)
        what = f"{stored} of {decision.layout.count} tiles"
    else:
        what = f"pictures of {decision.layout.width}x{decision.layout.height}"
        if decision.profile in VIEW_PROFILES:
            what += " from a view"
    reasons = [_reason(reason) for reason in decision.reasons[:_REASONS]]
    if len(decision.reasons) > _REASONS:
        reasons.append(f"{len(decision.reasons) - _REASONS} more")
    return (
        f"{what}, {human_bytes(decision.bytes)} in {decision.seconds:.2f} s, for "
        f"{', '.join(reasons)}; would have saved {decision.predicted_saved:.2f} s "
        f"in {decision.reads} reads"
    )


def _reason(reason: TilingReason) -> str:
    if reason.size is not None:
        what = f"{reason.size[0]}x{reason.size[1]}"
    else:
        what = str(reason.label if reason.region is None else reason.region)
    return f"{what} ({reason.reads} reads)"


def main(arguments: list[str]) -> None:
    task = json.loads(arguments[0])
    commands, send_report = _take_pipes()
    _lower_priority()
    _die_with_thread(int(task["parent"]))
    mount_log.set_up("warning")
    avoid = {int(number) for number in task["avoid"]}
    # A broken pipe means that the mount is gone.
    with (
        suppress(TunerStopError, BrokenPipeError),
        Store(StoreContext.of(_store_directory(task)), threads=1) as store,
    ):
        work = TuneLoop(store, commands.wait_while_paused, send_report, avoid)
        while True:
            commands.wait_for_run()
            work.do()


# -- the process


def _store_directory(task: dict[str, Any]) -> StoreDirectory:
    """Open the store through the descriptor of the mount, if it has one."""
    root = Path(task["store"])
    for fd in task["held"]:
        return StoreDirectory.open_held(root, DirectoryHandle(int(fd)))
    return StoreDirectory.open_watched(root)


def _take_pipes() -> tuple[TunerCommands, SendReport]:
    """Keep both pipes from other code that reads or prints."""
    commands, reports = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)

    def send_report(report: TunerReport) -> None:
        os.write(reports, report.line())

    return TunerCommands(commands), send_report


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
