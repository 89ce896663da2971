"""The machine that this runs on."""

from __future__ import annotations

import os
import platform


def host_name() -> str:
    """How this machine is called among others that share a catalog."""
    return platform.node() or "localhost"


def cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
