"""`AuditLog`: a file with a line of JSON for each change and each download."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

from vfsd.disk.safe_open import open_own
from vfsd.web.users import User


class AuditLog:
    """Appends lines to a file that only this user can read.  Thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """Write to `path`; with None, nowhere.  Raises `OSError`, `StoreError`."""
        self._guard = threading.Lock()
        self._fd = -1
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, user: User, client: str, action: str, name: str | None, **more: object) -> None:
        """Add a line: time, user, address, action, name of the file, and `more`."""
        record = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "user": user.name,
            "client": client,
            "action": action,
            "name": name,
            **more,
        }
        line = json.dumps(record).encode() + b"\n"
        with self._guard:
            if self._fd >= 0:
                os.write(self._fd, line)

    def close(self) -> None:
        with self._guard:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
