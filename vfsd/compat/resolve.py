"""The parts that the readers share: the video that a source leads to, and the position in it.

`video_of` finds the video of a store that a path, a URL or a name leads to.

A path in a mount is recognised as on the command line: by the identity that the mount reports for
it.  The video is then read from the store's directory, so that no byte passes through FUSE.  Each
store is opened once in a process and stays open.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from vfsd.core.process_control import leak, reset_after_fork
from vfsd.errors import BusyError, MountError, NoStoreError, OutOfRangeError, StoreError, UsageError
from vfsd.mount.mounted_path import resolve
from vfsd.read.shared_store import OpenOnce
from vfsd.tiling import Rect
from vfsd.validation import decibels

if TYPE_CHECKING:
    from collections.abc import Generator

    from vfsd.api.store import Store
    from vfsd.api.video import Video
    from vfsd.core.frame_table_pages import Ints
    from vfsd.core.frames import Frame, Frames
    from vfsd.tiling import Region

_log = logging.getLogger(__name__)

SCHEME = "vfsd://"
VARIABLE = "VFSD_STORE"

_stores: OpenOnce[tuple[str, int, int], Store] = OpenOnce()
"""By path, device and inode of the store's directory."""


def video_of(source: object) -> Video | None:
    """Return the video that `source` leads to, or None if it is not in a store.

    `source` is one of

    - a path in a mount,
    - ``vfsd:///srv/videos//cam1/a.mp4``: the path of a store, ``//``, and a name in it,
    - ``vfsd://cam1/a.mp4`` or, where no such file exists, ``cam1/a.mp4``: a name in the store of
      $VFSD_STORE.

    Everything else leads to None: other files, views and plain files in a mount, URLs of other
    schemes, and objects that are not paths.

    Raises `UsageError` and `NotFoundError` for a malformed ``vfsd://`` URL and one without a video,
    `BusyError` if a mount does not answer, and the errors of `Store.open`.
    """
    if not isinstance(source, str | os.PathLike):
        return None
    path = os.fspath(source)
    if not isinstance(path, str) or not path:
        return None
    if path.startswith(SCHEME):
        return _video_of_url(path)
    if "://" in path:
        return None
    try:
        (found,) = resolve([path], _known())
    except BusyError:
        raise
    except (StoreError, MountError) as error:
        # The store is not visible here, but its files are: the peer reads them through the mount.
        _log.warning("%s is read through its mount: %s", path, error)
        return None
    if found is not None:
        return shared_store(found.root).get(found.name) if found.name else None
    named = os.environ.get(VARIABLE)
    if not named or os.path.isabs(path) or os.path.lexists(path):
        return None
    try:
        return shared_store(named).get(path)
    except UsageError:  # not a name that a video could have
        return None


def shared_store(root: str | os.PathLike[str]) -> Store:
    """Return this process's open store in the directory `root`.

    It is opened for reading alone where the directory cannot be written.  Raises as `Store.open`.
    """
    from vfsd.api.store import Store

    def opened() -> Store:
        read_only = os.path.isdir(root) and not os.access(root, os.W_OK)
        return Store.open(root, read_only=read_only)

    return _stores.get(_identity(root), opened)


def close_stores() -> None:
    """Close the stores that this process has open here; their videos cannot be read any more."""
    _stores.close()


def _video_of_url(url: str) -> Video:
    root, separator, name = url.removeprefix(SCHEME).partition("//")
    if not separator:
        name, root = root, os.environ.get(VARIABLE, "")
    if not root or not name:
        raise UsageError(
            f"{url} must be {SCHEME}STORE//NAME",
            hint=f"for example {SCHEME}/srv/videos//cam1/a.mp4; without STORE// the name is one "
            f"in the store of ${VARIABLE}",
        )
    return shared_store(root)[name]


def _known() -> list[Path]:
    """Directories to try for a mount whose store has another path here."""
    named = os.environ.get(VARIABLE)
    return [Path(named)] if named else []


def _identity(root: str | os.PathLike[str]) -> tuple[str, int, int]:
    """Return a key that another store at the same path does not have."""
    path = os.path.realpath(root)
    try:
        status = os.stat(path)
    except OSError as error:
        raise NoStoreError(f"{path} cannot be opened: {error.strerror}") from error
    return path, status.st_dev, status.st_ino


@dataclass(frozen=True, slots=True)
class _Choice:
    psnr: float
    region: Rect | None


_WHOLE_AND_EXACT = _Choice(math.inf, None)
_choice: ContextVar[_Choice] = ContextVar("choice", default=_WHOLE_AND_EXACT)


@contextmanager
def quality(psnr: float = math.inf, *, region: Region | None = None) -> Iterator[None]:
    """Let readers that are opened in this block use tiles and renditions of at least `psnr` dB.

    By default readers decode the original alone, so their pixels are exact.  With `region`, their
    frames are that part of the displayed frame, and have its width and height.  The block holds in
    the thread that enters it, and for videos of a store only.  Raises `UsageError` for a malformed
    `psnr` or `region`.  A reader of a smaller video cannot be opened.

        with quality(psnr=40, region="320x240+100+60"):
            capture = VideoCapture("/mnt/videos/cam1/a.mp4")
    """
    area = None if region is None else Rect.from_value(region)
    token = _choice.set(_Choice(decibels(psnr), area))
    try:
        yield
    finally:
        _choice.reset(token)


def allowed_psnr() -> float:
    """Return the least quality of readers that are opened here; infinite outside `quality`."""
    return _choice.get().psnr


def chosen_region(video: Video) -> Rect | None:
    """Return the part of each frame that readers opened here show; None: the whole frame.

    Raises `OutOfRangeError` if it reaches outside the frames of `video`.
    """
    region = _choice.get().region
    if region is not None and not Rect.of_size(video.width, video.height).contains(region):
        raise OutOfRangeError(
            f"the region {region} reaches outside the frame of "
            f"{video.width}x{video.height} of {video.name}"
        )
    return region


class FrameCursor:
    """Reads frames of one video in one pixel format and size.  Not thread-safe, as its callers.

    Raises the errors of `Video.read`.
    """

    def __init__(
        self,
        video: Video,
        pixel_format: str,
        size: tuple[int, int] | None = None,
        region: Rect | None = None,
    ) -> None:
        """Frames are cut to `region` and scaled to `size`, (width, height), by default neither."""
        self._video = video
        self._format = pixel_format
        self._size = size
        self._region = region
        self._psnr = allowed_psnr()
        self._stream: Generator[Frame, None, None] | None = None
        self._next = 0  # the frame that the stream yields next, or would if there were one
        reset_after_fork(self)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_stream": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        reset_after_fork(self)

    def after_fork(self) -> None:
        """See `vfsd.core.process_control`."""
        # Its decoder may have threads, which the child lacks.
        if self._stream is not None:
            leak(self._stream)
        self._stream = None

    def frame(self, number: int) -> Frame:
        """Return one frame; `number` is within the video."""
        if number != self._next:
            self.close()
            found = self.frames([number])[0]
        else:
            # The first call of a new cursor is a stream as well: most readers go on.
            if self._stream is None:
                self._stream = cast(
                    "Generator[Frame, None, None]",
                    self._video.iterate(
                        frames=range(number, len(self._video)),
                        region=self._region,
                        size=self._size,
                        format=self._format,
                        psnr=self._psnr,
                    ),
                )
            try:
                found = next(self._stream)
            except BaseException:
                self.close()
                raise
        self._next = number + 1
        return found

    def frames(self, numbers: Sequence[int] | Ints) -> Frames:
        """Return several frames in the order of `numbers`, which may repeat."""
        return self._video.frames(
            numbers,
            region=self._region,
            size=self._size,
            format=self._format,
            psnr=self._psnr,
        )

    def close(self) -> None:
        """Give the decoder back to the store.  The cursor can be used again."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
