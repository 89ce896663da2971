"""Files become videos here: in the background, when their last writer has gone."""

from __future__ import annotations

import logging
import os
import threading
import time

from vfsd.errors import NotFoundError
from vfsd.fs.contents import Content, Contents
from vfsd.fs.names import Names
from vfsd.ingest import Indexed, Refused, Verdict, judge, publish
from vfsd.mending import heal
from vfsd.model import FileState, Node
from vfsd.parts import Parts
from vfsd.reclaim import discard_unpublished
from vfsd.storedir import fsync_path

_RELEASE_SECONDS = 1.0
_LONGEST_REST_SECONDS = 0.01

_log = logging.getLogger(__name__)


class Judging:
    """Threads that judge spooled files and publish the verdicts."""

    def __init__(self, parts: Parts, names: Names, contents: Contents) -> None:
        self._parts = parts
        self._names = names
        self._contents = contents
        self._changed = threading.Condition()
        self._waiting: dict[int, None] = {}  # in the order in which they came
        self._running: set[int] = set()
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
        with self._changed:
            self._waiting[ino] = None
            self._changed.notify_all()

    def is_pending(self, ino: int | None) -> bool:
        """Whether the file, or any file at all, waits for its judgement."""
        if ino is None:
            return bool(self._waiting or self._running)
        return ino in self._waiting or ino in self._running

    def wait(self, ino: int | None, timeout: float) -> bool:
        """Wait until the file, or every file, has been judged; whether that is so."""
        with self._changed:
            self._in_a_hurry += 1
            self._changed.notify_all()
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
            self._changed.notify_all()
        if left:
            _log.warning("%d new files are left for the next mount to be looked at", left)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next() is not None)
                ino = self._next()
                if self._closed or ino is None:
                    return
                del self._waiting[ino]
                self._running.add(ino)
            began = time.monotonic()
            try:
                with self._contents.pinned(ino) as content:
                    self._judge(content)
            except Exception:
                name = self._names.told(ino)
                _log.exception("%s could not be judged; the next mount tries again", name)
            finally:
                with self._changed:
                    self._running.discard(ino)
                    self._changed.notify_all()
                    self._rest(time.monotonic() - began)

    def _rest(self, worked: float) -> None:
        """Leave as much time as was taken to those who write the next of many small files."""
        self._changed.wait_for(
            lambda: self._closed or self._in_a_hurry > 0, min(worked, _LONGEST_REST_SECONDS)
        )

    def _next(self) -> int | None:
        """The first that nobody is judging already."""
        return next((ino for ino in self._waiting if ino not in self._running), None)

    def _judge(self, content: Content) -> None:
        node = self._names.node_if_any(content.ino)
        if node is None or not _is_to_be_judged(node) or content.writers:
            return
        try:
            self._judge_node(content, node)
        except FileNotFoundError:
            now = self._names.reread(node.ino)
            if now is not None and _is_to_be_judged(now):
                raise  # it was not deleted meanwhile

    def _judge_node(self, content: Content, node: Node) -> None:
        path = self._parts.directory.spool_file(node.ino)
        self._contents.open(content)  # so that readers need not wait for the lock below
        verdict = judge(self._parts, path, name="this file")
        if isinstance(verdict, Indexed):
            fsync_path(path)  # here it may take its time: nobody waits for a lock
            heal(self._parts, verdict.digest, path)
        with content.lock:
            # Who wants to write has to get the lock first, to say so in the row.
            if content.writers or not self._publish(content, node, verdict):
                return
        if isinstance(verdict, Indexed):
            # The private name may go only when the row that does without it is sure to stay.
            self._parts.catalog.sync()
            with content.lock:
                now = self._names.node_if_any(node.ino)
                if now is None or now.state is FileState.VIDEO:
                    path.unlink(missing_ok=True)

    def _publish(self, content: Content, judged: Node, verdict: Verdict) -> bool:
        """Whether the verdict still holds, and was written down."""
        if isinstance(verdict, Refused):
            return self._write_down(judged, verdict)
        path = self._parts.directory.spool_file(judged.ino)
        content.shown_ctime = os.stat(path).st_ctime_ns  # a second name is no change to be seen
        self._parts.objects.adopt(path, verdict.digest)
        published = False
        try:
            published = self._write_down(judged, verdict, content.shown_ctime)
        finally:
            if not published:
                discard_unpublished(self._parts, verdict.digest)
        content.private = not published
        return published

    def _write_down(self, judged: Node, verdict: Verdict, ctime_ns: int = 0) -> bool:
        path = self._parts.directory.spool_file(judged.ino)
        with self._names.changing() as change:
            change.touch(judged.ino)
            try:
                node = change.tree.node(judged.ino)
            except NotFoundError:
                return False
            if not _is_to_be_judged(node) or node.generation != judged.generation:
                return False
            if isinstance(verdict, Indexed):
                self._parts.objects.adopt(path, verdict.digest)  # unless it was collected, no work
            found = os.stat(path)
            change.tree.alter(
                node.ino,
                size=found.st_size,
                mtime_ns=found.st_mtime_ns,
                ctime_ns=max(node.ctime_ns, ctime_ns),
            )
            publish(change.transaction, node, verdict)
        if _log.isEnabledFor(logging.DEBUG):
            what = "no video: " + verdict.reason if isinstance(verdict, Refused) else "a video"
            _log.debug("%s is %s", self._names.told(judged.ino), what)
        return True


def _is_to_be_judged(node: Node) -> bool:
    return node.state is FileState.SPOOLED and node.nlink > 0
