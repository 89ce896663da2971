"""Videos that are still being written, for commands that read frames."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vfsd.core.model import FileState
from vfsd.errors import BusyError, NotFoundError, OutOfRangeError, RefusedMediaError

if TYPE_CHECKING:
    from vfsd.api.growing_video import GrowingVideo
    from vfsd.api.store import Store
    from vfsd.api.video import Video

    Readable = Video | GrowingVideo


_PATIENCE_SECONDS = 2.0
"""In which a mount has judged what was closed, as a rule; what it has not is being written."""
_PAUSE_SECONDS = 0.05


@contextmanager
def readable(store: Store, name: str) -> Iterator[Readable]:
    """The video of that name, or what is there of it while it is written.

    Raises as `Store` does where there is neither, `BusyError` where it is written and nothing can
    be read of it now, and, in the block, `OutOfRangeError` for frames that may come.
    """
    growing = _growing(store, name) if _is_unfinished(store, name) else None
    if growing is None:
        yield store[name]
        return
    with growing:
        try:
            yield growing
        except OutOfRangeError as beyond:
            raise OutOfRangeError(
                str(beyond),
                hint=f"it is still being written: so far it has {len(growing)} frames, "
                f"{float(growing.duration):.3f} s",
            ) from beyond


def _is_unfinished(store: Store, name: str) -> bool:
    """Whether nothing of that name is there, or it is not judged although it had the time."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            if store.node(name).state is not FileState.SPOOLED:
                return False
        except NotFoundError:
            return True
        if time.monotonic() > end:
            return True
        time.sleep(_PAUSE_SECONDS)


def _growing(store: Store, name: str) -> GrowingVideo | None:
    """None where nobody writes it, or the file of that name tells better what is wrong with it.

    Raises `BusyError` where the video is not ready yet, as while its writer finishes it.
    """
    try:
        return store.growing(name)
    except NotFoundError:
        return None
    except (BusyError, RefusedMediaError):
        if _is_there(store, name):
            return None
        raise


def _is_there(store: Store, name: str) -> bool:
    """Whether there is anything of that name."""
    try:
        store.node(name)
    except NotFoundError:
        return False
    return True


def whole(video: Readable, what: str) -> Video:
    """`video`, of which `what` is wanted; raises `BusyError` where it is still being written."""
    from vfsd.api.video import Video

    if not isinstance(video, Video):
        raise BusyError(
            f"{video.name!r} is still being written, and cannot be had as {what} yet",
            hint="pictures, arrays and bare pixels can, as far as it is complete",
        )
    return video
