"""What lies below ``NAME@/`` of a video, to whoever reads it: files, whatever makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Patience = Callable[[], None]
"""Called now and then while somebody waits for a view to be made, by the thread that waits; raises
`OSError` when nobody wants to know any more."""


@dataclass(frozen=True, slots=True)
class ViewStat:
    """What `stat` tells of a view, or of a folder of views."""

    is_dir: bool
    size: int  #: bytes; 0 for a folder
    mtime_ns: int  #: that of the video
    is_writable: bool = False  #: frames may be offered as it


class ViewFile(Protocol):
    """A view, open for reading."""

    @property
    def size(self) -> int: ...

    @property
    def version(self) -> str:
        """Equal for files with the same bytes, and only for these."""

    @property
    def whole(self) -> int | None:
        """A descriptor of a file with just these bytes, if there is one; valid until `close`."""

    @property
    def is_work(self) -> bool:
        """Whether something has to be computed for it, which is given up when nobody wants it."""

    def readinto(self, buffer: memoryview, offset: int, patience: Patience | None = None) -> int:
        """Fill `buffer` with what lies at `offset`; short only at the end.  Thread-safe.

        Raises what `patience` does, which is asked now and then while this takes long.
        """

    def close(self) -> None: ...
