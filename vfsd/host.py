"""The machine that this runs on."""

from __future__ import annotations

import platform


def host_name() -> str:
    """How this machine is called among others that share a catalog."""
    return platform.node() or "localhost"
