"""Every error that vfsd raises on purpose, in one tree.

Each class carries the exit code that the command line ends with and the errno that the mount
answers with, so that an error means the same thing whoever caught it.

    VfsdError                       1   EIO        something went wrong that we have no word for
    ├── UsageError                  2   EINVAL     the request itself is malformed
    │   ├── CutOffError             2   EINVAL     pixels end in the middle of a frame
    │   └── IndexKindError          2   EINVAL     an index by time where frames are counted
    ├── NotFoundError               3   ENOENT     no such video, file, frame or object
    ├── ExistsError                 4   EEXIST     the name is taken
    ├── RefusedMediaError           5   EMEDIUMTYPE  the bytes are no video that we can serve
    ├── OutOfRangeError             6   EINVAL     a frame, time or region outside the video
    ├── ReadOnlyError               7   EROFS      the store or the mount was opened read-only
    ├── ForbiddenError              8   EPERM      a policy does not allow it
    │   ├── HeldError               8   EPERM      a hold forbids it until somebody lifts that
    │   └── NothingSavedError       8   EPERM      what would take its place is no smaller
    ├── StoreError                 10   EIO        the store as a whole cannot be used
    │   ├── NoStoreError           10   ENOENT     there is no store at this place
    │   ├── ClosedError            10   EIO        the store was closed
    │   ├── UnreachableError       10   EIO        the server that has its catalog does not answer
    │   ├── StoreVersionError      11   EPROTO     written by a newer vfsd
    │   ├── BusyError              12   EBUSY      somebody else holds it; try again
    │   │   └── OutdatedError      12   EBUSY      what it builds on has changed; look again
    │   ├── IntegrityError         13   EIO        bytes and catalog disagree
    │   │   ├── DamagedPackError   13   EIO        bytes of tiles are not those that were stored
    │   │   ├── DamagedFileError   13   EIO        bytes of an original are not those stored
    │   │   ├── DamagedFramesError 13   EIO        frames of a file show damage
    │   │   └── ChangedSizeError   13   EIO        pictures change their size in the midst of a file
    │   └── NoSpaceError           14   ENOSPC     the disk or the quota is full
    │       └── OverBudgetError    15   EDQUOT     tiles or renditions do not fit their budget
    └── EnvironmentMissingError    20   ENOSYS     something has to be installed or allowed first
        ├── FuseMissingError       20   ENOSYS     no libfuse, or /dev/fuse cannot be opened
        ├── ExaminerError          20   EIO        the process that examines files does not start
        ├── MountError             21   EIO        the mount did not come up
        └── ExtraMissingError      22   ENOSYS     an optional package is not installed

Exit codes come in bands: 2 usage, 3-9 the request, 10-19 the store, 20-29 the machine.  30 says
that a check found something (`fsck`, `doctor`), 130 that the user interrupted.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

EXIT_OK = 0
EXIT_FINDINGS = 30
EXIT_INTERRUPTED = 130


class VfsdError(Exception):
    """Base of all.  ``str(error)`` is a sentence for the user; ``hint`` is what to do next."""

    exit_code: int = 1
    errno: int = errno.EIO

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class VfsdWarning(UserWarning):
    """Base of all warnings: the answer is right, but may not be what the caller expects."""


class UnknownLabelWarning(VfsdWarning):
    """A query asks for a label that no box in the store has ever had."""


class ShortSpanWarning(VfsdWarning):
    """A span of time ends after the video does, so the result is shorter than the span."""


class UsageError(VfsdError, ValueError):
    """The request itself is malformed, or asks for something impossible."""

    exit_code = 2
    errno = errno.EINVAL


class IndexKindError(UsageError, TypeError):
    """An index that would have to guess whether frames or seconds are meant."""


class CutOffError(UsageError):
    """Pixels end in the middle of a frame, or go on as something else.

    Those before it are whole: `Store.write` keeps them as a recording, which a note tells.
    """

    exit_code = 2


class NotFoundError(VfsdError, LookupError):
    """There is no such video, file, frame or object."""

    exit_code = 3
    errno = errno.ENOENT


class ExistsError(VfsdError):
    """The name is taken."""

    exit_code = 4
    errno = errno.EEXIST


class RefusedMediaError(VfsdError):
    """The bytes are no video that we can serve; the message says why."""

    exit_code = 5
    errno = errno.EMEDIUMTYPE


class OutOfRangeError(VfsdError, IndexError):
    """A frame, time or region lies outside the video."""

    exit_code = 6
    errno = errno.EINVAL


class ReadOnlyError(VfsdError):
    """The store or the mount was opened read-only, or cannot be written."""

    exit_code = 7
    errno = errno.EROFS


class ForbiddenError(VfsdError):
    """A policy does not allow it."""

    exit_code = 8
    errno = errno.EPERM


class HeldError(ForbiddenError):
    """A hold on a video forbids to change or remove it."""

    exit_code = 8


class NothingSavedError(ForbiddenError):
    """What could take the place of an original is no smaller, or not good enough."""

    exit_code = 8


class StoreError(VfsdError):
    """The store as a whole cannot be used."""

    exit_code = 10


class NoStoreError(StoreError):
    """There is no store at this place."""

    exit_code = 10
    errno = errno.ENOENT


class ClosedError(StoreError, RuntimeError):
    """The store was closed, maybe while this was under way."""

    exit_code = 10

    def __init__(self, message: str = "the store is closed") -> None:
        super().__init__(message, hint="open it again, and take its videos from that")


class UnreachableError(StoreError):
    """The server that has the catalog does not answer, or lets nobody in; it may come again."""

    exit_code = 10


class StoreVersionError(StoreError):
    """The store was written by a newer vfsd."""

    exit_code = 11
    errno = errno.EPROTO


class BusyError(StoreError):
    """Somebody else has it in use; the same may succeed later."""

    exit_code = 12
    errno = errno.EBUSY


class OutdatedError(BusyError):
    """What somebody wants to build on has changed since it was looked at."""

    exit_code = 12


class IntegrityError(StoreError):
    """The stored bytes and what the catalog says of them disagree."""

    exit_code = 13
    errno = errno.EIO


class DamagedPackError(IntegrityError):
    """The bytes of a pack of tiles are not those that were once written."""

    exit_code = 13

    def __init__(self, message: str, object_key: str) -> None:
        super().__init__(message)
        self.object_key = object_key


class DamagedFileError(IntegrityError):
    """Bytes of an original are not those that were stored, or cannot be read."""

    exit_code = 13

    def __init__(
        self,
        message: str,
        ranges: Sequence[range],
        *,
        is_proven: bool,
        frames: Sequence[range] | None = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.ranges = tuple(ranges)  #: bytes of the file, ascending
        self.is_proven = is_proven  #: they were read, and are others
        #: of the video, which need them; None where nobody can tell, as its table is damaged, too
        self.frames = None if frames is None else tuple(frames)


class DamagedFramesError(IntegrityError):
    """Frames that a read asks for show damage of the file, which came with it."""

    exit_code = 13


class ChangedSizeError(IntegrityError):
    """A picture has another size than the others of its video.

    A full decode ends there, too: it corrects nothing, and need not be tried.
    """

    exit_code = 13


class NoSpaceError(StoreError):
    """The disk, or the quota, is full."""

    exit_code = 14
    errno = errno.ENOSPC


class OverBudgetError(NoSpaceError):
    """What is to be stored does not fit the budget of derived data."""

    exit_code = 15
    errno = errno.EDQUOT


class EnvironmentMissingError(VfsdError):
    """Something has to be installed or allowed first."""

    exit_code = 20
    errno = errno.ENOSYS


class FuseMissingError(EnvironmentMissingError):
    """There is no libfuse, or /dev/fuse cannot be opened."""

    exit_code = 20


class ExaminerError(EnvironmentMissingError):
    """The process that examines files does not start: its libraries are broken or do not match."""

    exit_code = 20
    errno = errno.EIO


class MountError(EnvironmentMissingError):
    """The mount did not come up, or did not end."""

    exit_code = 21
    errno = errno.EIO


class ExtraMissingError(EnvironmentMissingError):
    """An optional package is not installed."""

    exit_code = 22
