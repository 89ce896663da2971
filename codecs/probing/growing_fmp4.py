"""The readable part of a fragmented MP4 or MOV file that is still being written."""

from __future__ import annotations

import errno
import io
import os
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from vfsd.codecs.probing.probe import Examination, examine_source
from vfsd.core.frame_table_pages import PacketFlag, page_cuts
from vfsd.core.model import Access
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BUFFER = 1 << 18
_BEFORE_THE_MOVIE = (b"ftyp", b"free", b"skip", b"wide", b"uuid")
# Most bytes up to the end of the moov box.
_MAX_BEGINNING = 1 << 24
# Most top-level boxes of an ordinary file.
_MAX_BOXES = 100
# Bytes that identify a fragment: size, kind, and its sequence number in the mfhd box.
_HEAD = 24
# (offset, first bytes) of fragments.
_FragmentMarks = tuple[tuple[int, bytes], ...]


@dataclass(frozen=True)
class _ScanStart:
    """Where the next scan of the demuxer starts."""

    place: int  #: offset of a fragment
    left_out: frozenset[int] = frozenset()  #: offsets of later packets to ignore
    packets: int = 0  #: other packets from there on that were returned already
    frames: int = 0  #: frames of these packets


class GrowingFmp4:
    """The packets of a fragmented file, as they arrive. Not thread-safe.

    Frames that were returned are final: the finished video has the same. The caller owns `fd`.
    """

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._beginning = b""  # the file up to the end of the moov box
        self._end = 0  # end of the scanned fragments
        self._fragments: list[int] = []  # offsets of fragments, from the next start of a scan on
        self._marks: _FragmentMarks = ()
        self._packets = self._frames = 0  # numbers of those returned so far
        self._last: tuple[int, ...] = ()  # row of the last returned packet
        self._form: tuple[object, ...] = ()
        self._keeps_back = False
        self._reserved = 0  # size of the preallocated file
        self._passed = 0  # end of boxes after the last fragment that belong to none
        self._start = _ScanStart(0)

    @property
    def size(self) -> int:
        """Bytes of the file up to the end of the scanned fragments."""
        return self._end

    @property
    def is_finished(self) -> bool:
        """Whether the file has become an ordinary one with a complete index."""
        at, kinds = 0, set()
        for _ in range(_MAX_BOXES):
            box = self._box(at)
            if box is None:
                break
            kind, at = box
            kinds.add(kind)
        is_whole = at == os.fstat(self._fd).st_size
        return is_whole and {b"mdat", b"moov"} <= kinds and b"moof" not in kinds

    @property
    def is_in_place(self) -> bool:
        """Whether the fragments have not moved. Safe to call while another thread scans."""
        return _marks_match(self._fd, self._marks)

    def file(self) -> io.BufferedReader:
        """Return the scanned part as a file that is valid on its own and does not change.

        It is empty until there are fragments, and has a descriptor of its own. Reading raises
        `OSError` if the fragments have been moved.
        """
        opened = _PrefixFile(self._fd, self._beginning, self._end, self._marks)
        return io.BufferedReader(opened, _BUFFER)

    def advance(self) -> Examination | None:
        """Return the packets since the last call; None: no new ones.

        Positions are those in the file. Frames are held back while a later packet may be shown
        before them. Raises `RefusedMediaError` if the file cannot be served, continues
        inconsistently, or was moved.
        """
        self._require_in_place()
        end = self._end_of_fragments()
        return self._look(end, _certain_part) if end > self._end else None

    def finish(self) -> Examination | None:
        """Return the last packets; no more will come, so nothing is held back."""
        self._require_in_place()
        end = self._end_of_fragments(is_all=True)
        return self._look(end, _whole) if end > self._end or self._keeps_back else None

    def _require_in_place(self) -> None:
        if not self.is_in_place:
            raise RefusedMediaError(
                f"{self._name!r} was moved or overwritten while it was written",
                hint="the file can be read when it is finished",
            )

    def _look(self, end: int, certain: Callable[[Examination], int]) -> Examination | None:
        found, start = self._examined(end)
        upto = max(start.packets, certain(found))
        fresh = _examination_part(found, start.packets, upto)
        self._end = end
        self._keeps_back = upto < len(found.columns)
        if not len(fresh.order):
            return None
        self._form = _media_form(found)
        self._last = _packet_row(found, upto - 1)
        self._packets += len(fresh.columns)
        self._frames += len(fresh.order)
        self._start = self._next_start(found, start, upto)
        return fresh

    def _examined(self, end: int) -> tuple[Examination, _ScanStart]:
        """Examine the file up to `end`; return the result and where the scan started."""
        whole = _ScanStart(len(self._beginning), packets=self._packets, frames=self._frames)
        if not self._packets:
            return self._examined_from(whole, end), whole
        # The demuxer may need state of earlier fragments, above all their timestamps.
        if self._start != whole:
            with suppress(RefusedMediaError):  # a part may be refused where the whole is not
                found = self._examined_from(self._start, end)
                if self._is_continued(found, self._start):
                    return found, self._start
        found = self._examined_from(whole, end)
        if self._is_continued(found, whole):
            return found, whole
        raise RefusedMediaError(
            f"{self._name!r} does not continue as it began",
            hint="the file can be read when it is finished",
        )

    def _examined_from(self, start: _ScanStart, end: int) -> Examination:
        kept = len(self._beginning)
        if any(self._is_listed(place) for place in start.left_out):
            kept = self._marks[0][0]
        with _PartialSource(self._fd, self._beginning, kept, start.place, end) as part:
            return examine_source(part, self._name, left_out=start.left_out)

    def _is_listed(self, place: int) -> bool:
        """Return whether the packet at `place` is listed by the moov box, before all fragments."""
        return place < self._marks[0][0]

    def _is_continued(self, found: Examination, start: _ScanStart) -> bool:
        """Return whether `found` begins with everything that was returned before."""
        if len(found.columns) < start.packets or _media_form(found) != self._form:
            return False
        shown_before, is_clean = page_cuts(found.columns, found.order)
        return (
            bool(is_clean[start.packets])
            and shown_before[start.packets] == start.frames
            and _packet_row(found, start.packets - 1) == self._last
        )

    def _next_start(self, found: Examination, start: _ScanStart, upto: int) -> _ScanStart:
        """Return where the next scan starts, once all packets before `upto` were returned.

        That is the last key packet, without its leading pictures: later packets need nothing
        earlier.
        """
        columns = found.columns
        shown = columns.flags & PacketFlag.HIDDEN == 0
        keys = np.flatnonzero(shown[:upto] & (columns.flags[:upto] & PacketFlag.KEY != 0))
        if not len(keys) or found.access is not Access.EXTENT:
            return _ScanStart(start.place, start.left_out, upto, int(shown[:upto].sum()))
        key = int(keys[-1])
        fragment = bisect_right(self._fragments, int(columns.position[key])) - 1
        del self._fragments[: max(0, fragment)]
        is_before = np.arange(len(columns)) < key
        leads = ~is_before & (columns.pts < columns.pts[key])
        left_out = {*columns.position[is_before | leads].tolist(), *start.left_out}
        stays = ~(is_before | leads)[:upto]
        place = self._fragments[0]
        return _ScanStart(
            place,
            frozenset(one for one in left_out if one >= place or self._is_listed(one)),
            int(stays.sum()),
            int((stays & shown[:upto]).sum()),
        )

    def _found_beginning(self) -> bytes:
        """Return the file up to the end of the moov box; empty while that is incomplete."""
        at, kind = 0, b""
        while kind != b"moov":
            box = self._box(at)
            if box is None or box[0] not in (*_BEFORE_THE_MOVIE, b"moov"):
                return b""
            kind, at = box
        return os.pread(self._fd, at, 0) if at <= _MAX_BEGINNING else b""

    def _end_of_fragments(self, *, is_all: bool = False) -> int:
        """Return the end of the last fragment, or part of one, with complete media data.

        Other boxes between fragments are skipped, as the demuxer does: indexes, repeated headers,
        unknown boxes.
        """
        if not self._beginning:
            self._beginning = self._found_beginning()
            self._end = len(self._beginning)
        if not self._beginning:
            return 0
        end = self._end
        at = max(end, self._passed)
        fragment = None  # offset of the moof box whose mdat box follows
        while (box := self._box(at, is_all=is_all)) is not None:
            start, (kind, at) = at, box
            if kind == b"moof":
                fragment = start
            elif kind == b"mdat" and (fragment is not None or end > len(self._beginning)):
                if not (is_all or self._has_come(end, at)):
                    break
                if fragment is not None:  # otherwise more data of the same fragment
                    self._note(end, fragment)
                end, fragment = at, None
            elif fragment is None and end == self._end:
                self._passed = at
        return end

    def _note(self, place: int, fragment: int) -> None:
        """Remember a fragment: its box is at `fragment`, and its data begins at `place`.

        A writer that inserts an index moves the fragments, the first ones first. The head of the
        very first fragment may stay until the index overwrites it.
        """
        if place not in self._fragments[-1:]:
            self._fragments.append(place)
            head = os.pread(self._fd, _HEAD, fragment)
            self._marks = (*self._marks[:2], (fragment, head))

    def _has_come(self, start: int, end: int) -> bool:
        """Return whether these bytes were written, in a file whose size may be preallocated.

        A writer that preallocates fills a hole, and the hole shows its progress by whole blocks. So
        the next block must have been written too.
        """
        about = os.fstat(self._fd)  # before lseek, since the file may grow in between
        try:
            hole = os.lseek(self._fd, start, os.SEEK_HOLE)
        except OSError:
            return True  # the file system does not report holes
        if hole < about.st_size:
            self._reserved = about.st_size
        return about.st_size > self._reserved or hole >= end + about.st_blksize

    def _box(self, at: int, *, is_all: bool = False) -> tuple[bytes, int] | None:
        """Return kind and end of a box; None if it is incomplete.

        A box that extends to the end of the file counts only if `is_all`.
        """
        head = os.pread(self._fd, 16, at)
        if len(head) < 8:
            return None
        size = int.from_bytes(head[:4])
        if size == 1:
            size = int.from_bytes(head[8:16])
        file_size = os.fstat(self._fd).st_size
        if size == 0 and is_all:
            size = file_size - at
        end = at + size
        return (head[4:8], end) if size >= 8 and end <= file_size else None


def _certain_part(found: Examination) -> int:
    """Return the number of packets whose frames precede those of any later packet."""
    columns = found.columns
    shown_before, is_certain = page_cuts(columns, found.order)
    # dts ascend, and no packet is decoded after it is shown.
    times = columns.pts[found.order]
    is_certain &= shown_before <= np.searchsorted(times, columns.dts[-1], side="right")
    # A packet without a picture may be the second half of the one before.
    is_certain[:-1] &= columns.flags & PacketFlag.HIDDEN == 0
    is_certain[-1] &= not found.verified
    return int(np.flatnonzero(is_certain[1:])[-1]) + 1 if is_certain[1:].any() else 0


def _whole(found: Examination) -> int:
    return len(found.columns)


def _examination_part(found: Examination, first: int, upto: int) -> Examination:
    """Return packets ``first <= p < upto`` and the frames that they show."""
    columns = found.columns
    shown_before, _ = page_cuts(columns, found.order)
    frames = found.order[shown_before[first] : shown_before[upto]]
    later = columns.pts[found.order[shown_before[upto] :]]
    end_pts = found.end_pts
    if len(frames) and len(later):
        # The next frame may come later, but it is not shown before it is decoded.
        last = found.end_pts - int(later[-1])
        end_pts = max(int(columns.pts[frames[-1]]) + 1, int(columns.dts[-1]) + last)
        end_pts = min(end_pts, int(later[0]))
    part = columns[first:upto]
    # Later packets may refer to any of them.
    part = replace(part, flags=part.flags & ~np.uint8(PacketFlag.DISPOSABLE))
    return replace(found, columns=part, order=frames - first, end_pts=end_pts)


def _media_form(found: Examination) -> tuple[object, ...]:
    media = found.media
    return found.access, media.width, media.height, media.extradata


def _packet_row(found: Examination, packet: int) -> tuple[int, ...]:
    columns = found.columns
    values = (columns.pts, columns.dts, columns.position, columns.size)
    return tuple(int(column[packet]) for column in values)


def _marks_match(fd: int, marks: _FragmentMarks) -> bool:
    """Return whether the fragments have not been moved."""
    return all(head.startswith(os.pread(fd, _HEAD, place)) for place, head in marks)


class _PrefixFile(io.RawIOBase):
    """The first bytes of a file, with the header that it has while it grows."""

    def __init__(self, fd: int, beginning: bytes, size: int, marks: _FragmentMarks) -> None:
        self._fd = os.dup(fd)
        self._marks = marks
        self._beginning = beginning
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self._beginning[self._at : self._at + len(view)]
        if not data:
            data = os.pread(self._fd, max(0, min(len(view), self._size - self._at)), self._at)
            if not _marks_match(self._fd, self._marks):
                raise OSError(errno.ESTALE, "the fragments of the video have been moved")
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        at = offset + {os.SEEK_CUR: self._at, os.SEEK_END: self._size}.get(whence, 0)
        if at < 0:
            raise OSError(errno.EINVAL, "seek before the start of the file")
        self._at = at
        return at

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


class _PartialSource(MediaSource):
    """A source of a file with a gap between `kept` and `start`, which ends at `end`.

    `kept` is the end of the header or of a later part.
    """

    def __init__(self, fd: int, beginning: bytes, kept: int, start: int, end: int) -> None:
        super().__init__(fd)
        self._fd = fd
        gap = max(0, start - kept)
        self._pieces = (
            (0, beginning),
            (kept, b"\0\0\0\1free" + gap.to_bytes(8) if gap else b""),
        )
        self._end = end

    @property
    def size(self) -> int:
        return self._end

    def read_some(self, position: int, size: int) -> bytes:
        upto = self._end
        for place, piece in self._pieces:
            if position < place:
                upto = min(upto, place)
            elif position < place + len(piece):
                return piece[position - place :][:size]
        return os.pread(self._fd, min(size, max(0, upto - position)), position)
