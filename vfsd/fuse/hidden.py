"""What libfuse does to open files that are unlinked, and how it is recognised.

Knowing files by path only, libfuse renames an open file to ``.fuse_hidden`` and two numbers
instead of unlinking it or renaming another over it, and unlinks that when it is closed.  It may
do so just after the file was closed, and then it forgets about it.
"""

from __future__ import annotations

import os
import re

_HIDDEN = re.compile(rb"\.fuse_hidden[0-9a-f]{16}")


def is_hidden(path: bytes) -> bool:
    """Whether libfuse has made up that name."""
    return b"/.fuse_hidden" in path and _HIDDEN.fullmatch(path.rpartition(b"/")[2]) is not None


def hidden_alias(old: bytes, new: bytes) -> str | None:
    """The name under which libfuse hides a file, if that is what a rename is for."""
    if not is_hidden(new):
        return None
    folder, _, name = new.rpartition(b"/")
    return os.fsdecode(name) if old.rpartition(b"/")[0] == folder else None
