"""Ctrl-C at safe points.

Python raises KeyboardInterrupt wherever the main thread happens to be; inside a callback of FFmpeg
it would be lost, and what FFmpeg makes of the failed call with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

_SAID = b"\nvfsd: stopping; Ctrl-C again stops at once\n"


class Interruption:
    """Within the block, Ctrl-C waits until `heed` is called, or the block ends.

    A second one does not wait.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
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
        """Stop here, if that was asked for.  Raises `KeyboardInterrupt`."""
        if self._asked and threading.current_thread() is threading.main_thread():
            self._asked = False
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt
        self._asked = True
        if sys.stderr.isatty():
            os.write(2, _SAID)  # sys.stderr may be in the middle of something
