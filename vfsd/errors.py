"""Every error that vfsd raises on purpose, in one tree.

Each class has the exit code of the command line and the errno of the mount, so that an error means
the same in Python, in a shell and in a mount.

    VfsdError                       1   EIO        any other failure
    ├── UsageError                  2   EINVAL     the request is malformed
    │   ├── CutOffError             2   EINVAL     the input ends in the middle of a frame
    │   └── IndexKindError          2   EINVAL     an index by time where frames are counted
    ├── NotFoundError               3   ENOENT     no such video, file, frame or object
    ├── ExistsError                 4   EEXIST     the name is taken
    ├── RefusedMediaError           5   EMEDIUMTYPE  the file is not a supported video
    ├── OutOfRangeError             6   EINVAL     a frame, time or region outside the video
    ├── ReadOnlyError               7   EROFS      the store or the mount was opened read-only
    ├── ForbiddenError              8   EPERM      a policy forbids it
    │   ├── HeldError               8   EPERM      a hold forbids it until it is lifted
    │   └── NothingSavedError       8   EPERM      the new file would not be smaller
    ├── StoreError                 10   EIO        the store cannot be used
    │   ├── NoStoreError           10   ENOENT     no store found in this directory
    │   ├── ClosedError            10   EIO        the store was closed
    │   ├── UnreachableError       10   EIO        a server does not answer
    │   ├── StoreVersionError      11   EPROTO     written by a newer vfsd
    │   ├── BusyError              12   EBUSY      in use by another process; try again
    │   │   ├── OutdatedError      12   EBUSY      the data has changed since it was read
    │   │   └── LeaseLostError     12   EBUSY      an upload took too long; try again
    │   ├── IntegrityError         13   EIO        stored bytes and catalog disagree
    │   │   ├── DamagedPackError   13   EIO        stored tiles are damaged
    │   │   ├── DamagedFileError   13   EIO        an original file is damaged
    │   │   ├── DamagedFramesError 13   EIO        frames of a video are damaged
    │   │   └── ChangedSizeError   13   EIO        the picture size changes within a file
    │   └── NoSpaceError           14   ENOSPC     the disk or the quota is full
    │       └── OverBudgetError    15   EDQUOT     tiles or renditions exceed their budget
    └── EnvironmentMissingError    20   ENOSYS     a program or permission is missing
        ├── FuseMissingError       20   ENOSYS     libfuse or /dev/fuse is missing
        ├── ExaminerError          20   EIO        the process that examines files does not start
        ├── MountError             21   EIO        the mount did not start or end
        └── ExtraMissingError      22   ENOSYS     an optional package is not installed

Exit codes come in bands: 2 usage, 3-9 the request, 10-19 the store, 20-29 the machine.  30 means
that a check found a problem (`fsck`, `doctor`), 130 an interrupt (Ctrl-C).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

EXIT_OK = 0
EXIT_FINDINGS = 30
EXIT_INTERRUPTED = 130


class VfsdError(Exception):
    """Base of all.  ``str(error)`` is a message for the user; ``hint`` says what to do next.

    ``command_hint`` is the hint for the command line, which names options instead of arguments.
    """

    exit_code: int = 1
    errno: int = errno.EIO

    def __init__(
        self, message: str, *, hint: str | None = None, command_hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.command_hint = command_hint or hint


class VfsdWarning(UserWarning):
    """Base of all warnings: the answer is right, but may not be what the caller expects."""


class UnknownLabelWarning(VfsdWarning):
    """A query asks for a label that no box in the store has ever had."""


class ShortSpanWarning(VfsdWarning):
    """A span of time ends after the video does, so the result is shorter than the span."""


class SilenceWarning(VfsdWarning):
    """The sound of a video does not cover the whole window; the missing samples are 0."""


class UsageError(VfsdError, ValueError):
    """The request is malformed or impossible."""

    exit_code = 2
    errno = errno.EINVAL


class IndexKindError(UsageError, TypeError):
    """An index that would have to guess whether frames or seconds are meant."""


class CutOffError(UsageError):
    """The input ends in the middle of a frame, or changes its format.

    `Store.write` keeps the frames before as a recording; a note of the error names it.
    """

    exit_code = 2


class NotFoundError(VfsdError, LookupError):
    """No such video, file, frame or object."""

    exit_code = 3
    errno = errno.ENOENT


class ExistsError(VfsdError):
    """The name is taken."""

    exit_code = 4
    errno = errno.EEXIST


class RefusedMediaError(VfsdError):
    """The file is not a supported video; the message says why."""

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
    """A policy forbids it."""

    exit_code = 8
    errno = errno.EPERM


class HeldError(ForbiddenError):
    """A hold forbids changing or removing the video."""

    exit_code = 8


class NothingSavedError(ForbiddenError):
    """The replacement of an original would not be smaller, or not good enough."""

    exit_code = 8


class StoreError(VfsdError):
    """The store cannot be used."""

    exit_code = 10


class NoStoreError(StoreError):
    """No store was found in this directory."""

    exit_code = 10
    errno = errno.ENOENT


class ClosedError(StoreError, RuntimeError):
    """The store was closed, possibly during this call."""

    exit_code = 10

    def __init__(self, message: str = "the store is closed") -> None:
        super().__init__(message, hint="open the store again, and take videos from the new one")


class UnreachableError(StoreError):
    """The server of the catalog or the objects does not answer or refuses access; retry later."""

    exit_code = 10


class StoreVersionError(StoreError):
    """The store was written by a newer vfsd."""

    exit_code = 11
    errno = errno.EPROTO


class BusyError(StoreError):
    """Another process uses it; the same call may succeed later."""

    exit_code = 12
    errno = errno.EBUSY


class OutdatedError(BusyError):
    """The data that a change builds on has changed since it was read."""

    exit_code = 12


class LeaseLostError(BusyError):
    """An upload to the bucket took so long that another home could count it as abandoned."""

    exit_code = 12


class IntegrityError(StoreError):
    """Stored bytes and catalog disagree."""

    exit_code = 13
    errno = errno.EIO


class DamagedPackError(IntegrityError):
    """A pack of tiles does not match its checksum."""

    exit_code = 13

    def __init__(self, message: str, object_key: str) -> None:
        super().__init__(message)
        self.object_key = object_key


class DamagedFileError(IntegrityError):
    """An original does not match its checksums, or cannot be read."""

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
        self.is_proven = is_proven  #: the bytes were read and differ
        #: that need these bytes; None if unknown, because the frame table is damaged, too
        self.frames = None if frames is None else tuple(frames)


class DamagedFramesError(IntegrityError):
    """Frames of a read are damaged in the original file, since before ingest."""

    exit_code = 13


class ChangedSizeError(IntegrityError):
    """A picture differs in size from the others of its video.

    A full decode stops at the same picture, so it need not be tried.
    """

    exit_code = 13


class NoSpaceError(StoreError):
    """The disk, or the quota, is full."""

    exit_code = 14
    errno = errno.ENOSPC


class OverBudgetError(NoSpaceError):
    """New tiles or renditions exceed their budget."""

    exit_code = 15
    errno = errno.EDQUOT


class EnvironmentMissingError(VfsdError):
    """A program, a library or a permission is missing on this machine."""

    exit_code = 20
    errno = errno.ENOSYS


class FuseMissingError(EnvironmentMissingError):
    """libfuse is missing, or /dev/fuse cannot be opened."""

    exit_code = 20


class ExaminerError(EnvironmentMissingError):
    """The process that examines files does not start: its libraries are broken or do not match."""

    exit_code = 20
    errno = errno.EIO


class MountError(EnvironmentMissingError):
    """The mount did not start, or did not end."""

    exit_code = 21
    errno = errno.EIO


class ExtraMissingError(EnvironmentMissingError):
    """An optional package is not installed."""

    exit_code = 22
