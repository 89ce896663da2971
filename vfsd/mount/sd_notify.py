"""Telling whoever has started this process how it goes: the protocol of sd_notify(3)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str) -> None:
    """Send it, where somebody wants to know.  Never fails, as nobody who serves files may."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.sendto(state.encode(), address)
