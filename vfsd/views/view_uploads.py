"""Views that are open for writing.

`ViewUpload` spools the data.  On close, frames in the size of the view become a rendition of the
video.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from io import BufferedReader, FileIO

from vfsd.codecs import VideoFrame
from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.codecs.frames.pixel_layouts import PIXEL_FORMATS, pixel_layout
from vfsd.core import view_path
from vfsd.core.frame_table import FrameTable
from vfsd.core.frames import Pixels
from vfsd.core.model import LogicalVideo
from vfsd.core.view_path import ViewSpec
from vfsd.derive.import_rendition import (
    arrays_to_stored_format,
    frames_to_stored_format,
    require_importable,
    take_pictures,
)
from vfsd.disk.enospc import NO_SPACE
from vfsd.errors import NoSpaceError, NotFoundError, RefusedMediaError, UsageError, VfsdError
from vfsd.read.read_plan import select_frames
from vfsd.read.video_context import VideoContext
from vfsd.storage.context import StoreContext
from vfsd.write.frame_input import iter_raw_frames
from vfsd.write.y4m import MAGIC, read_y4m_frames, read_y4m_header

_BUFFER_BYTES = 1 << 20

_log = logging.getLogger(__name__)


@lru_cache(maxsize=1024)
def upload_request(path: str) -> ViewSpec | None:
    """Return the parsed path if frames can be uploaded to it: the whole picture in some size."""
    try:
        request = view_path.parse_view_path(path)
    except (NotFoundError, UsageError):
        return None
    view = request.view
    is_partial = (view.region or request.crop or view.fps) is not None
    step = 1 if view.frames is None else view.frames[2]
    return None if is_partial or step != 1 else request


OpenFrameSink = Callable[[LogicalVideo], VideoContext]
"""Opens a video for frames that are written to one of its views."""


class ViewUpload:
    """A view that is being written.  Thread-safe.

    Raises `UsageError` for a size in which the video accepts no frames.
    """

    def __init__(self, parts: StoreContext, video: VideoContext, path: str) -> None:
        request = upload_request(path)
        if request is None:
            raise UsageError(f"{path!r} must be the whole picture in another size to be written")
        info = video.info
        media = info.original.media
        view = request.resolve(media.display_width, media.display_height)
        self._size = view.size or (media.display_width, media.display_height)
        require_importable(media, *self._size)
        self._form = request.form
        if self._form.container == "raw" and self._form.layout not in PIXEL_FORMATS:
            raise UsageError(f"frames in {self._form.layout} cannot be written")
        self._name = f"{info.name}@/{path}"
        self._examiner = parts.examiner
        self._video = video
        chosen = select_frames(view, info.original, self._video.table)
        self._frames = range(int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else range(0)
        self._guard = threading.Lock()
        self._is_new = False  # whether data was written since the last commit
        self._is_expected = False  # whether the file was truncated for writing
        self._file = parts.objects.nameless_file()

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self._file.fileno()).st_size

    def readinto(self, buffer: memoryview, offset: int) -> int:
        return os.preadv(self._file.fileno(), (buffer,), offset)

    def expect(self) -> None:
        """Note that the file was opened with O_TRUNC, so that an empty upload is an error."""
        with self._guard:
            self._is_expected = True

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        """Write `data` and return the number of bytes.  Raises `OSError`."""
        with self._guard:
            self._is_new = True
            return os.pwrite(self._file.fileno(), data, offset)

    def truncate(self, length: int) -> None:
        with self._guard:
            self._is_new = True
            os.ftruncate(self._file.fileno(), length)

    def commit(self) -> None:
        """Store the frames if data was written or expected since the last call.

        Raises `UsageError` while the data is shorter than the view, `RefusedMediaError` for other
        pictures, `NoSpaceError`, `OverBudgetError`.
        """
        with self._guard:
            if not self._is_expected and not (self._is_new and self.size):
                return
            try:
                self._take()
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                raise NoSpaceError(f"no room for {self._name}: {error.strerror}") from error
            except VfsdError as error:
                # Shells close a redirected descriptor before anything is written.
                level = logging.WARNING if self.size else logging.INFO
                hint = f"; {error.hint}" if error.hint else ""
                _log.log(level, "%s was refused: %s%s", self._name, error, hint)
                raise
            self._is_new = self._is_expected = False
            _log.info("%s: %d frames were stored", self._name, len(self._frames))

    def close(self) -> None:
        """Discard the data that was not committed."""
        self._file.close()

    def _take(self) -> None:
        self._file.seek(0)
        if self._form.container == "raw":
            offered = self._of_samples()
        elif self._form.container == "y4m":
            offered = self._of_y4m()
        else:
            offered = self._of_packets()
        given_as = self._form.layout if self._form.container == "raw" else None
        take_pictures(self._video, offered, self._size, self._frames, given_as=given_as)

    def _of_samples(self) -> Iterator[VideoFrame]:
        layout = pixel_layout(self._form.layout)
        each = layout.bytes(*self._size)
        if self.size != len(self._frames) * each:
            raise UsageError(
                f"{len(self._frames)} frames of {each} bytes are needed, got {self.size} bytes"
            )
        arrays = iter_raw_frames(self._file, self._form.layout, self._size)
        return self._stored(arrays, self._form.layout)

    def _of_y4m(self) -> Iterator[VideoFrame]:
        file = BufferedReader(FileIO(self._file.fileno(), closefd=False), _BUFFER_BYTES)
        if file.read(len(MAGIC)) != MAGIC:
            raise RefusedMediaError("a Y4M file must begin with YUV4MPEG2")
        file.seek(0)
        header = read_y4m_header(file)
        self._require_size(header.width, header.height)
        return self._stored(read_y4m_frames(file, header), header.pixel_format)

    def _of_packets(self) -> Iterator[VideoFrame]:
        media = self._video.original.media
        # A full examination: this process decodes all of it next, and it is not trusted yet.
        found = self._examiner.examine_open(self._file.fileno(), "the upload", full=True)
        self._require_size(found.media.display_width, found.media.display_height)
        if len(found.order) != len(self._frames) or found.media.is_turned:
            raise RefusedMediaError(
                f"{len(self._frames)} frames are needed, got {len(found.order)}"
            )
        table = FrameTable.in_memory(
            found.columns, found.order, time_base=found.media.time_base, end_pts=found.end_pts
        )
        decoder = FrameDecoder(self._file.fileno(), found.media, found.access, table)
        return frames_to_stored_format((picture for _, picture in decoder.stream()), media)

    def _stored(self, arrays: Iterator[Pixels], pixel_format: str) -> Iterator[VideoFrame]:
        return arrays_to_stored_format(arrays, pixel_format, self._size, self._video.original.media)

    def _require_size(self, width: int, height: int) -> None:
        if (width, height) != self._size:
            raise RefusedMediaError(
                f"pictures must have {self._size[0]}x{self._size[1]} pixels, got {width}x{height}"
            )
