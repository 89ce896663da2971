"""Whether somebody has a file open through the mount of a store, if it is mounted."""

from __future__ import annotations

import os
from collections.abc import Iterable

from vfsd.disk.mount_client import own_attribute
from vfsd.errors import BusyError
from vfsd.storage.context import Parts

ATTRIBUTE = "user.vfsd.open"
"""Of a file in a mount, but in no listing: 1 while somebody has it open, else 0."""


def require_closed(parts: Parts, names: Iterable[str]) -> None:
    """Raises `BusyError` where one of these files of the store is open in its mount.

    To the kernel a name is a file, whatever bytes another process puts there: who has it open would
    find it cut off where the new bytes end, and what it writes would be lost.  So it is where the
    mount cannot be asked, or does not answer: it may be for others, or in another container.
    """
    holder = parts.directory.mounted_by()
    place = None if holder is None else holder.get("place")
    if not isinstance(place, str):
        return
    for name in names:
        try:
            own = parts.directory.identity
            is_open = own_attribute(os.path.join(place, name), ATTRIBUTE, own) == b"1"
        except OSError as error:
            raise BusyError(
                f"the mount in {place} cannot be asked whether somebody has {name} open: "
                f"{error.strerror}",
                hint="unmount it, or try where it can be seen, as who has mounted it",
            ) from error
        if is_open:
            raise BusyError(
                f"somebody has {name} open in {place}", hint="try again when it is closed"
            )
