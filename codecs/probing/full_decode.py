"""Decodes a whole stream, and proves its frame table with the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Container as Collected
from dataclasses import dataclass
from functools import partial

import av
import numpy as np
from av.error import FFmpegError

from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.decoding.demuxer import capture_errors, demux_until_error, open_stream
from vfsd.codecs.decoding.frame_decoder import EXTRA_PACKETS, FrameDecoder
from vfsd.codecs.frames.color import DEFAULT_CODING, frame_coding
from vfsd.codecs.frames.planes import fingerprint, without_range_name
from vfsd.codecs.frames.transforms import FirstSizeScaler
from vfsd.codecs.probing.damage import DamageCollector, OverreadChecker, PacketDamageChecker
from vfsd.codecs.probing.packet_scan import DecoderOutput, ScanProgress
from vfsd.codecs.pyav import configure_decoder, decode
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketColumns, PacketFlag
from vfsd.core.model import Access, MediaInfo
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError

_WITHOUT_KEY = ~np.uint8(PacketFlag.KEY)
_NEEDED = ~np.uint8(PacketFlag.DISPOSABLE)
_PROGRESS_PACKETS = 16
_MAX_DRAIN_ERRORS = 64
# Failed key packets after which no key packet of the file is trusted.
_MAX_MERGED = 8


# Runs of at least this many packets also test the next key packet, as does one in this many
# shorter runs.
_CONTINUED_FRAMES = 8


@dataclass(frozen=True)
class FullDecode(DecoderOutput):
    """The output of decoding a whole stream in order, as the ffmpeg command does."""

    prints: dict[int, int]  #: fingerprint of the frame by packet
    first: av.VideoFrame | None  #: the first picture in its coded size
    size: tuple[int, int]  #: (width, height) after scaling
    sizes: frozenset[tuple[int, int]]  #: all coded (width, height)
    damage: DamageCollector


def decode_all(
    source: MediaSource,
    container: Container,
    stream_index: int,
    on_progress: ScanProgress | None,
    *,
    left_out: Collected[int] = (),
    in_largest_size: bool = False,
) -> FullDecode:
    """Decode every packet in order with one thread, by the decoder that FFmpeg sets up.

    Packets at the offsets `left_out` are ignored. Pictures of another size are scaled to the size
    of the first, or to the largest one. The latter takes a second decode if the first picture is
    smaller. Raises `RefusedMediaError` if the format changes within the stream, or if a packet
    holds several pictures.
    """
    once = partial(_decode_once, source, container, stream_index, on_progress, left_out)
    found = once(None)
    if not in_largest_size or len(found.sizes) < 2 or found.first is None:
        return found
    largest = max(found.sizes, key=lambda size: size[0] * size[1])
    return found if largest == (found.first.width, found.first.height) else once(largest)


def _decode_once(
    source: MediaSource,
    container: Container,
    stream_index: int,
    on_progress: ScanProgress | None,
    left_out: Collected[int],
    size: tuple[int, int] | None,
) -> FullDecode:
    """Decode as `decode_all` does, to one size; None: that of the first picture."""
    opened, stream = open_stream(source, container.name, stream_index)
    context = stream.codec_context
    configure_decoder(context)
    if context.codec.name == "hevc":
        # Report pictures that do not match the hashes in the stream. Their output is the same.
        context.options["err_detect"] = "crccheck"
    total = source.size
    frames = _DecodedFrames(size)
    index = -1
    packets = demux_until_error(opened, stream)
    checks = PacketDamageChecker(stream)
    overread = OverreadChecker(stream)
    with capture_errors() as messages:
        notes = DamageCollector(context.codec.name, messages)
        for index, packet in enumerate(one for one in packets if one.pos not in left_out):
            if not packet.size:
                continue
            if on_progress and index % _PROGRESS_PACKETS == 0:
                on_progress(min(total, max(0, packet.pos or 0)), total)
            packet.pts = packet.dts = index
            if not checks.passes(packet):
                notes.packets.add(index)
            overread.feed(packet)
            try:
                pictures = decode(context, packet)
            except MemoryError:
                raise  # it is about the machine, not the file
            except FFmpegError:
                notes.on_error(index)
                continue
            notes.on_packet(index, packet)
            notes.on_frames(pictures)
            overread.compare(pictures)
            frames.add(index, pictures)
        for _ in range(_MAX_DRAIN_ERRORS):
            try:
                pictures = decode(context, None)
                notes.on_frames(pictures)
                overread.compare(pictures)
                frames.add(index + 1, pictures)
            except EOFError:
                break
            except MemoryError:
                raise
            except FFmpegError:
                continue
            break
    opened.close()
    notes.packets |= overread.finish()
    return FullDecode(
        order=np.array(frames.order, np.int64),
        fed=np.array(frames.fed, np.int64),
        prints=frames.prints,
        first=frames.first,
        size=frames.size,
        sizes=frozenset(frames.sizes),
        damage=notes,
    )


class _DecodedFrames:
    """Collects the pictures of a full decode."""

    def __init__(self, size: tuple[int, int] | None) -> None:
        self.size = size or (0, 0)
        self.order: list[int] = []
        self.fed: list[int] = []
        self.prints: dict[int, int] = {}
        self.first: av.VideoFrame | None = None
        self.sizes: set[tuple[int, int]] = set()
        self._form: tuple[int, int, str] | None = None
        self._first_size: FirstSizeScaler | None = None

    def add(self, fed: int, frames: Iterable[av.VideoFrame]) -> None:
        for picture in frames:
            self.sizes.add((picture.width, picture.height))
            if self._first_size is None:
                if not any(self.size):
                    self.size = picture.width, picture.height
                self._first_size, self.first = (
                    FirstSizeScaler(*self.size, picture.format.name),
                    picture,
                )
            frame = self._first_size.convert(picture)
            # The range may change within a stream; full range changes the name of some formats.
            form = (frame.width, frame.height, without_range_name(frame.format.name))
            if self._form is None:
                self._form = form
            if form != self._form:
                raise RefusedMediaError(
                    f"the picture format changes within the stream, "
                    f"from {_form_text(self._form)} to {_form_text(form)}"
                )
            if frame.pts is None or frame.pts in self.prints:
                raise RefusedMediaError("a packet holds several pictures")
            self.order.append(frame.pts)
            self.fed.append(fed)
            self.prints[frame.pts] = _frame_fingerprint(frame)


def _form_text(form: tuple[int, int, str]) -> str:
    return f"{form[0]}x{form[1]} {form[2]}"


def _frame_fingerprint(frame: av.VideoFrame) -> int:
    """Return a hash of samples and color coding; decoders may keep the colors of earlier
    packets.
    """
    return hash((fingerprint(frame), frame_coding(frame, DEFAULT_CODING)))


class KeyPacketProof:
    """Tests every key packet of a table by decoding from it, as reads do.

    `columns.flags` has the candidates for KEY and DISPOSABLE. The result is `flags`: KEY where
    decoding may start, LEADING where it must start one key packet earlier, DISPOSABLE where
    dropping the packet changes nothing else. Packets in `unstable` are not compared. If the proof
    fails, packets that a decode from the first packet reproduces differently are added to it.
    """

    def __init__(
        self,
        source: MediaSource,
        media: MediaInfo,
        access: Access,
        columns: PacketColumns,
        decoded: FullDecode,
        end_pts: int,
        *,
        unstable: Collection[int] = (),
    ) -> None:
        self.flags = columns.flags.copy()
        self.unstable = set(unstable)
        self._decoded = decoded
        self._columns = columns
        self._rank = {int(packet): rank for rank, packet in enumerate(decoded.order)}
        table = FrameTable.in_memory(
            columns, decoded.order, time_base=media.time_base, end_pts=end_pts
        )
        self._decoder = FrameDecoder(source.shared, media, access, table)
        self._is_demuxed = access is not Access.EXTENT
        self._alive: Callable[[], None] = lambda: None

    def run(self, on_progress: ScanProgress | None, total: int) -> bool:
        """Run the proof. Return False if even a decode from the first packet differs.

        `on_progress` is also called between pictures, with its last values.
        """
        keys = [int(k) for k in np.flatnonzero(self.flags & PacketFlag.KEY)]
        starts = sorted({0, *keys})
        trusted: list[int] = []
        refused = 0
        with self._decoder:
            for start, end in zip(starts, [*starts[1:], len(self.flags)], strict=True):
                if on_progress:
                    done = min(total, max(0, int(self._columns.position[start])))
                    self._alive = partial(on_progress, done, total)
                self._alive()
                if self._accept(start, end, trusted):
                    trusted.append(start)
                else:
                    refused += 1
                    self.flags[start] &= _WITHOUT_KEY
                    if refused > _MAX_MERGED or not trusted:
                        return self._only_first()
                    if self._wrong(trusted[-1], end, self._shown(start, end)):
                        return self._only_first()
                self._try_disposing(trusted[-1], start, end)
        return True

    def _accept(self, start: int, end: int, trusted: list[int]) -> bool:
        """Return whether decoding from `start` gives all frames up to `end`, except leading
        ones.
        """
        past = self._past(start, end)
        wrong = self._wrong(start, past, self._shown(start, past))
        beyond = {packet for packet in wrong if packet >= end}
        if beyond and not self._wrong(end, past, beyond):
            return False
        wrong -= beyond  # damaged wherever decoding starts
        if not wrong:
            return True
        if not trusted or start not in self._rank:
            return False
        leading = {p for p in wrong if self._rank[p] < self._rank[start]}
        if leading != wrong or self._wrong(trusted[-1], end, leading):
            return False
        self.flags[sorted(leading)] |= np.uint8(PacketFlag.LEADING)
        return True

    def _past(self, start: int, end: int) -> int:
        """Return the end of a decode from `start` that also tests the key packet `end`.

        Reads continue over key packets with a decoder that has seen other pictures. One more packet
        shows what it makes of packets that are not the demuxer's own.
        """
        is_tried = end - start >= _CONTINUED_FRAMES or start % _CONTINUED_FRAMES == 0
        return min(end + (is_tried and not self._is_demuxed), len(self.flags))

    def _try_disposing(self, key: int, start: int, end: int) -> None:
        """Drop all packets flagged as disposable, and check that the other frames do not change.

        If `start` was joined to the run of `key`, it needs a part of that run. The remaining frames
        of `start` show which part. If none remain, all of the run may be needed.
        """
        flags = self.flags[key:end]
        unneeded = set((np.flatnonzero(flags & PacketFlag.DISPOSABLE) + key).tolist())
        if not unneeded:
            return
        rest = self._shown(key, end) - unneeded
        rest = {p for p in rest if not self.flags[p] & PacketFlag.LEADING}
        is_shown = start == key or any(packet >= start for packet in rest)
        if not is_shown or self._wrong(key, end, rest, skip=unneeded):
            flags &= _NEEDED

    def _only_first(self) -> bool:
        self.flags[1:] &= _WITHOUT_KEY
        self.flags &= ~np.uint8(PacketFlag.LEADING | PacketFlag.DISPOSABLE)
        packets = len(self.flags)
        differing = self._wrong(0, packets, self._shown(0, packets))
        self.unstable |= differing
        return not differing

    def _shown(self, start: int, end: int) -> set[int]:
        return {p for p in range(start, end) if p in self._rank and p not in self.unstable}

    def _wrong(
        self, start: int, end: int, wanted: set[int], skip: Collection[int] = ()
    ) -> set[int]:
        """Return the packets in `wanted` whose frames differ or fail when decoding from `start`."""
        got = dict(self._surveyed(start, end, skip))
        if not got.keys() >= wanted:
            late = min(len(self.flags), end + EXTRA_PACKETS)
            for packet, found in self._surveyed(start, late, skip):
                got.setdefault(packet, found)
        return {packet for packet in wanted if got.get(packet) != self._decoded.prints[packet]}

    def _surveyed(self, start: int, end: int, skip: Collection[int]) -> Iterator[tuple[int, int]]:
        """Yield (packet, fingerprint of its frame)."""
        for number, (packet, frame) in enumerate(self._decoder.survey(start, end, skip=skip)):
            if number % _PROGRESS_PACKETS == 0:
                self._alive()
            yield packet, _frame_fingerprint(frame)
