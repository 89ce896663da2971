"""The directory for files of this user that belong to no store's data: logs, tokens."""

from __future__ import annotations

import os
from pathlib import Path


def state_directory() -> Path:
    """Return the directory; it need not exist."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # required by the XDG specification
        state = os.path.expanduser("~/.local/state")
    return Path(state) / "vfsd"
