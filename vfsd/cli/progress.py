"""Progress bars on stderr, and Ctrl-C at safe points.

Python raises KeyboardInterrupt wherever the main thread is. Inside a callback of FFmpeg the
exception would be lost.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import rich.progress


_STOPPING = b"\nvfsd: stopping; Ctrl-C again stops at once\n"


class DeferredInterrupt:
    """Within the block, Ctrl-C waits for the next call of `heed`, or for the end of the block.

    A second Ctrl-C interrupts at once.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if error is None:
            self.heed()

    def heed(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed."""
        if self._asked and threading.current_thread() is threading.main_thread():
            self._asked = False
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt
        self._asked = True
        if sys.stderr.isatty():
            os.write(2, _STOPPING)  # sys.stderr may be inside a write


DELAY_SECONDS = 1.0


class Progress:
    """A progress bar that appears after a second; used as a context manager.

    `total` counts bytes (`in_bytes`) or items; with None the bar has no end. After Ctrl-C the next
    update raises `KeyboardInterrupt`.
    """

    def __init__(
        self,
        label: str,
        total: int | None,
        *,
        shown: bool,
        in_bytes: bool = False,
        delay_seconds: float = DELAY_SECONDS,
    ) -> None:
        self._label = label
        self._total = total
        self._in_bytes = in_bytes
        self._done = 0
        self._guard = threading.Lock()
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        self._timer = threading.Timer(delay_seconds, self._show) if shown else None
        self._interruption = DeferredInterrupt()

    def __enter__(self) -> Progress:
        self._interruption.__enter__()
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._bar is not None:
            self._bar.stop()
        self._interruption.__exit__(kind, error, trace)

    def advance(self, count: int = 1) -> None:
        with self._guard:
            self._done += count
            self._update()

    def reach(self, done: int, total: int) -> None:
        """Set the progress to `done` of `total`."""
        with self._guard:
            self._done, self._total = done, total
            self._update()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the bar while other lines are printed."""
        with self._guard:
            if self._bar is not None:
                self._bar.stop()
            try:
                yield
            finally:
                if self._bar is not None:
                    self._bar.start()

    def label(self, text: str) -> None:
        """Set the text next to the bar."""
        with self._guard:
            self._label = text
            self._update()

    def _update(self) -> None:
        self._interruption.heed()
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, completed=self._done, total=self._total, description=self._label
            )

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        figures: ProgressColumn = MofNCompleteColumn()
        if self._in_bytes:
            figures = DownloadColumn(binary_units=True)
        bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            figures,
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with self._guard:
            self._task = bar.add_task(self._label, total=self._total, completed=self._done)
            self._bar = bar
            bar.start()
