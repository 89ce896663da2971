"""Starts `vfsd.storage.sandbox_main`, and reports to the parent whether it can work.

``python -m vfsd.core.subprocess_entry vfsd.storage.sandbox_start FD`` imports the libraries that
examine files and tries them on a small video. The first message on the socket FD is `READY`, or an
`ErrorReport`. Before that, only this package and the standard library are imported, so that a
library that does not load is reported as well.
"""

from __future__ import annotations

import logging
import socket
import sys
import traceback

from vfsd.core.subprocess_entry import gc_paused
from vfsd.storage.sandbox_protocol import MAX_ERROR_BYTES, READY, ErrorReport

_MAX_TEXT = MAX_ERROR_BYTES // 16


def main(arguments: list[str]) -> None:
    """Import, test, report, and serve requests. `arguments` is [FD]."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    control = socket.socket(fileno=int(arguments[0]))
    try:
        with gc_paused():
            from vfsd.storage import sandbox_main
        sandbox_main.prepare()
    except Exception as error:
        control.send(ErrorReport(_described(error)).message())
        sys.exit(1)
    control.send(READY)
    sandbox_main.work(control)


def _described(error: Exception) -> str:
    """Return the message of an exception and where it was raised."""
    text = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
