"""Room on a full disk: what is deleted in a moment is deleted at once where somebody needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vfsd.disk.enospc import NO_SPACE
from vfsd.errors import NoSpaceError
from vfsd.mount.fs.deferred import Janitor
from vfsd.mount.fs.silly_rename import HiddenNames

T = TypeVar("T")


class Room:
    """What it takes to try again when the disk is full."""

    def __init__(self, hidden_names: HiddenNames, janitor: Janitor) -> None:
        self._hidden_names = hidden_names
        self._janitor = janitor

    @property
    def given(self) -> int:
        """How often there has become more of it: see `is_made`."""
        return self._janitor.cleaned

    def having(self, action: Callable[[], T]) -> T:
        """Do something that changes nothing when it fails, and again if there is room then."""
        given = self.given
        try:
            return action()
        except (OSError, NoSpaceError) as error:
            if not self.is_made(error, given):
                raise
        return action()

    def is_made(self, error: OSError | NoSpaceError, given: int) -> bool:
        """Whether it is worth while to try again what has failed, and began with `given`."""
        if error.errno not in NO_SPACE:
            return False
        if self._hidden_names.end_closed():
            self._janitor.clean_now()
        return self.given != given
