"""Files become videos here: in the background, when their last writer has gone."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from vfsd.core.model import FileState, Node
from vfsd.disk.store_layout import fsync_path
from vfsd.errors import NotFoundError, VfsdError
from vfsd.mount.fs.dentry_cache import DentryCache, TreeTransaction
from vfsd.mount.fs.open_inodes import BackingKind, OpenInode, OpenInodes
from vfsd.storage.context import StoreContext
from vfsd.write.ingest_file import (
    AcceptedVideo,
    RejectedFile,
    Verdict,
    classify_file,
    publish_verdict,
    reject_by_header,
)
from vfsd.write.pending_object import pending_own_file

_RELEASE_SECONDS = 1.0
_GATHER_SECONDS = 0.05
"""How long a file waits for others to be judged with it, where nobody waits for the judgement."""
# One transaction each would make the threads that classify compete for the interpreter lock with
# the threads that answer the kernel.
_TOGETHER = 64
_LONGEST_REST_SECONDS = 0.01
_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0
"""A file that could not be judged, for want of room for instance, is tried again after so long, and
then after twice as long each time."""
_NOTE_SECONDS = 1.0
"""How long the reason for that waits for the catalog."""

_log = logging.getLogger(__name__)


class _Classification(NamedTuple):
    """A file, and what its first bytes say of it."""

    content: OpenInode
    node: Node
    verdict: RejectedFile | None  #: None: it may be a video


class _Postponed(NamedTuple):
    """A file that could not be judged."""

    until: float  #: by the monotonic clock
    pause: float  #: seconds


class Classifier:
    """Threads that judge spooled files and publish the verdicts.

    Small files that are no videos come by the thousand.  Which those are their first bytes tell,
    and the verdicts on all that have come in a moment are one transaction.
    """

    def __init__(self, parts: StoreContext, names: DentryCache, contents: OpenInodes) -> None:
        self._parts = parts
        self._names = names
        self._contents = contents
        guard = threading.RLock()
        self._work = threading.Condition(guard)  # something waits, and nobody gathers
        self._hurry = threading.Condition(guard)  # somebody waits for a judgement, or the end
        self._changed = threading.Condition(guard)  # something was judged
        self._waiting: OrderedDict[int, float] = OrderedDict()  # since when, in that order
        self._running: set[int] = set()
        self._put_off: dict[int, _Postponed] = {}
        self._gathering = False
        self._closed = False
        self._in_a_hurry = 0  # how many wait for a judgement
        self._threads = [
            threading.Thread(target=self._run, name=f"vfsd-judge-{number}", daemon=True)
            for number in range(parts.settings.workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ino: int) -> None:
        """Judge the file when its turn comes, unless somebody writes it then."""
        if self._parts.read_only:
            return
        with self._work:
            self._waiting.setdefault(ino, time.monotonic())
            if not self._gathering:
                self._work.notify()

    def is_pending(self, ino: int | None) -> bool:
        """Whether the file, or any file at all, waits for its judgement."""
        if ino is None:
            return bool(self._waiting or self._running)
        return ino in self._waiting or ino in self._running

    def wait(self, ino: int | None, timeout: float) -> bool:
        """Wait until the file, or every file, has been judged; whether that is so."""
        with self._changed:
            self._in_a_hurry += 1
            self._hurry.notify_all()
            try:
                self._changed.wait_for(lambda: self._closed or not self.is_pending(ino), timeout)
            finally:
                self._in_a_hurry -= 1
            return not self.is_pending(ino)

    def settle(self, ino: int, timeout: float) -> Node | None:
        """Wait until it is known whether the file is a video; the node as it is then.

        A file whose writers have flushed all they wrote is taken for one that is being closed,
        since the kernel tells of the closing only afterwards.
        """
        end = time.monotonic() + timeout
        release_end = time.monotonic() + min(timeout, _RELEASE_SECONDS)
        asked = False
        while True:
            self.wait(ino, max(0.0, end - time.monotonic()))
            node = self._names.node_if_any(ino)
            if node is None or not _is_to_be_judged(node) or time.monotonic() > end:
                return node
            content = self._contents.peek(ino)
            if content is None or not content.writers:
                if asked:
                    return node
                asked = True
                self.submit(ino)  # as its last writer is about to do, or did without success
            elif not content.is_about_to_be_released or time.monotonic() > release_end:
                return node
            else:
                time.sleep(0.001)

    def close(self, timeout: float) -> None:
        """Go on for `timeout` seconds at most, then leave the rest to the next mount."""
        end = time.monotonic() + timeout
        self.wait(None, timeout)
        with self._changed:
            left, self._closed = len(self._waiting), True
            self._waiting.clear()
            for condition in (self._work, self._hurry, self._changed):
                condition.notify_all()
        if left:
            _log.warning("%d new files are left for the next mount to be looked at", left)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while self._gather():
            began = time.monotonic()
            taken: list[int] = []
            try:
                self._judge_some(taken)
            finally:
                with self._changed:
                    self._running.difference_update(taken)
                    self._changed.notify_all()
                    if self._waiting or self._put_off:
                        self._work.notify()
                    self._rest(time.monotonic() - began)

    def _gather(self) -> bool:
        """Wait until something is to be judged, and a moment for more; False at the end."""
        with self._work:
            while not self._closed:
                has_come = self._work.wait_for(
                    lambda: self._closed or (not self._gathering and self._next() is not None),
                    self._until_next_try(),
                )
                if not has_come:
                    self._try_again()
                    continue
                self._gathering = True
                try:
                    while not self._is_due():
                        self._hurry.wait(_GATHER_SECONDS)
                finally:
                    self._gathering = False
                if self._next() is not None:
                    self._work.notify()  # another thread may begin as well
                    return not self._closed
            return False

    def _until_next_try(self) -> float | None:
        """Seconds until something that was put off is due; None: nothing is."""
        times = [
            each.until
            for ino, each in self._put_off.items()
            if ino not in self._waiting and ino not in self._running
        ]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _try_again(self) -> None:
        now = time.monotonic()
        for ino, (until, _) in self._put_off.items():
            if until <= now and ino not in self._running:
                self._waiting.setdefault(ino, now)

    def _is_due(self) -> bool:
        """Whether what waits is not to wait any longer for more to come."""
        oldest = next(iter(self._waiting.values()), None)
        return (
            self._closed
            or self._in_a_hurry > 0
            or oldest is None
            or len(self._waiting) >= _TOGETHER
            or time.monotonic() - oldest >= _GATHER_SECONDS
        )

    def _rest(self, worked: float) -> None:
        """Leave as much time as was taken to those who write the next of many small files."""
        self._hurry.wait_for(
            lambda: self._closed or self._in_a_hurry > 0, min(worked, _LONGEST_REST_SECONDS)
        )

    def _next(self) -> int | None:
        """The first that nobody is judging already."""
        return next((ino for ino in self._waiting if ino not in self._running), None)

    def _take(self) -> int | None:
        with self._work:
            ino = self._next()
            if ino is not None:
                del self._waiting[ino]
                self._running.add(ino)
            return ino

    def _take_back(self, ino: int) -> None:
        """It is the next, for whoever comes."""
        with self._work:
            self._running.discard(ino)
            self._waiting[ino] = 0.0
            self._waiting.move_to_end(ino, last=False)

    def _judge_some(self, taken: list[int]) -> None:
        """Judge one that may be a video, or all that wait up to the first of these.

        To `taken` are added those that were taken from what waits, and nobody else judges.
        """
        refused: list[_Classification] = []
        with ExitStack() as pins:
            while len(refused) < _TOGETHER and (ino := self._take()) is not None:
                taken.append(ino)
                content = pins.enter_context(self._contents.pinned(ino))
                with self._complaining(ino):
                    judged = self._first_look(content)
                    if judged is None:
                        self._forget(ino)
                        continue
                    if judged.verdict is not None:
                        refused.append(judged)
                    elif refused:
                        self._take_back(taken.pop())
                        break
                    else:
                        self._judge_node(content, judged.node)
                        self._forget(ino)
                        return
            self._refuse(refused)

    @contextmanager
    def _complaining(self, ino: int) -> Iterator[None]:
        """Where a file cannot be judged it is put off, and the log says why, once."""
        try:
            yield
        except Exception as error:
            now = self._names.reread(ino) if isinstance(error, FileNotFoundError) else None
            if isinstance(error, FileNotFoundError) and (now is None or not _is_to_be_judged(now)):
                return  # it was deleted meanwhile
            is_first = self._put_off_again(ino) <= _PAUSE_SECONDS
            name = self._names.told(ino)
            if is_first:
                _log.exception("%s could not be judged, and is tried again every few minutes", name)
            else:
                _log.debug("%s could not be judged again: %s", name, error)
            self._note_reason(ino, error)

    def _note_reason(self, ino: int, error: Exception) -> None:
        """Let the row say why the file waits, for `vfsd info` and ``user.vfsd.reason``.

        Where the catalog does not take that soon, the log alone says it.
        """
        hint = getattr(error, "hint", None)
        text = f"not examined yet: {error}" + (f"; {hint}" if hint else "")
        with suppress(VfsdError, OSError):
            before = self._names.node(ino)
            if before.reason == text or not _is_to_be_judged(before):
                return
            with self._names.changing(_NOTE_SECONDS) as change:
                node = change.tree.nodes([ino]).get(ino)
                if node is not None and _is_to_be_judged(node):
                    change.touch(ino)
                    change.tree.alter(ino, reason=text)

    def _put_off_again(self, ino: int) -> float:
        """For how many seconds."""
        with self._work:
            before = self._put_off.get(ino)
            pause = min(_LONGEST_PAUSE_SECONDS, before.pause * 2) if before else _PAUSE_SECONDS
            self._put_off[ino] = _Postponed(time.monotonic() + pause, pause)
            return pause

    def _forget(self, ino: int) -> None:
        """It was judged, or whoever writes it sees to that."""
        with self._work:
            self._put_off.pop(ino, None)

    def _first_look(self, content: OpenInode) -> _Classification | None:
        """What its first bytes say of a file; None where it is not to be judged now."""
        node = self._names.node_if_any(content.ino)
        if node is None or not _is_to_be_judged(node) or content.writers:
            return None
        path = self._parts.directory.spool_file(node.ino)
        return _Classification(content, node, reject_by_header(path))

    def _refuse(self, refused: list[_Classification]) -> None:
        """Write down that these are no videos: together, or one by one where that fails."""
        alone: list[_Classification] = []
        try:
            with ExitStack() as locks:
                together: list[_Classification] = []
                for one in refused:
                    # While others are held none is waited for: it may be long in coming.
                    if one.content.lock.acquire(blocking=False):
                        locks.callback(one.content.lock.release)
                        together.append(one)
                    else:
                        alone.append(one)
                self._write_all_down([one for one in together if not one.content.writers])
        except Exception:
            alone = refused
        for one in alone:
            with self._complaining(one.node.ino), one.content.lock:
                if not one.content.writers:
                    self._write_all_down([one])

    def _write_all_down(self, refused: list[_Classification]) -> None:
        if not refused:
            return
        with self._names.changing() as change:
            for one in refused:
                assert one.verdict is not None
                self._write_down(change, one.node, one.verdict)
        for one in refused:
            self._forget(one.node.ino)

    def _judge_node(self, content: OpenInode, node: Node) -> None:
        path = self._parts.directory.spool_file(node.ino)
        self._contents.open(content)  # so that readers need not wait for the lock below
        stamp = content.stamp
        verdict = classify_file(self._parts, path)
        if isinstance(verdict, AcceptedVideo):
            fsync_path(path)  # here it may take its time: nobody waits for a lock
        with content.lock:
            # Who wants to write has to get the lock first, to say so in the row.  Who has written
            # since, and has closed it again, has left other bytes than were hashed: they must not
            # have that name for a moment, for whoever is killed then leaves it to them.
            if content.writers or content.stamp != stamp:
                return
            if not self._publish(content, node, verdict):
                return
        if isinstance(verdict, AcceptedVideo):
            # The private name may go only when the row that does without it is sure to stay.
            self._parts.catalog.sync()
            with content.lock:
                now = self._names.node_if_any(node.ino)
                if now is None or now.state is FileState.VIDEO:
                    path.unlink(missing_ok=True)

    def _publish(self, content: OpenInode, judged: Node, verdict: Verdict) -> bool:
        """Whether the verdict still holds, and was written down."""
        if isinstance(verdict, RejectedFile):
            with self._names.changing() as change:
                return self._write_down(change, judged, verdict)
        path = self._parts.directory.spool_file(judged.ino)
        content.shown_ctime = os.stat(path).st_ctime_ns  # a second name is no change to be seen
        with pending_own_file(self._parts, path, verdict.digest, verdict.size) as arrival:
            arrival.ensure()
            with self._names.changing() as change:
                published = self._write_down(change, judged, verdict, content.shown_ctime)
            if not published:
                arrival.withdraw()
        content.backing = BackingKind.OBJECT if published else BackingKind.PRIVATE
        return published

    def _write_down(
        self, change: TreeTransaction, judged: Node, verdict: Verdict, ctime_ns: int = 0
    ) -> bool:
        """Whether the verdict still holds, and so will be in the row."""
        path = self._parts.directory.spool_file(judged.ino)
        change.touch(judged.ino)
        try:
            node = change.tree.node(judged.ino)
        except NotFoundError:
            return False
        if not _is_to_be_judged(node) or node.generation != judged.generation:
            return False
        if isinstance(verdict, AcceptedVideo):
            self._parts.objects.adopt(path, verdict.digest)  # unless it was collected, no work
        found = os.stat(path)
        change.tree.alter(
            node.ino,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
            ctime_ns=max(node.ctime_ns, ctime_ns),
        )
        publish_verdict(change.transaction, node, verdict)
        if _log.isEnabledFor(logging.DEBUG):
            what = "no video: " + verdict.reason if isinstance(verdict, RejectedFile) else "a video"
            _log.debug("%s is %s", self._names.told(judged.ino), what)
        return True


def _is_to_be_judged(node: Node) -> bool:
    return node.state is FileState.SPOOLED and node.nlink > 0
