"""Decodes a whole stream to prove its frame table, and finds damaged frames.

Damage spreads to the frames that depend on a damaged one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from collections.abc import Container as Collected
from dataclasses import dataclass
from functools import partial

import av
import av.logging
import numpy as np
import numpy.typing as npt
from av.error import FFmpegError
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import BitReader, BitstreamError, unescaped
from vfsd.codecs.bitstreams.packet_inspector import INTRA_CODECS
from vfsd.codecs.containers.detect_container import Container
from vfsd.codecs.decoding.demuxer import LogMessage, capture_errors, demux_until_error, open_stream
from vfsd.codecs.decoding.frame_decoder import EXTRA_PACKETS, FrameDecoder
from vfsd.codecs.frames.color import DEFAULT_CODING, frame_coding
from vfsd.codecs.frames.planes import fingerprint, without_range_name
from vfsd.codecs.frames.transforms import FirstSizeScaler
from vfsd.codecs.probing.packet_scan import DecoderOutput, ScanProgress
from vfsd.codecs.pyav import configure_decoder, decode
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.model import Access, MediaInfo
from vfsd.disk.checksums import MediaSource
from vfsd.errors import RefusedMediaError

_HEADER_BYTES = 24
# frame_num after a memory management control operation 5, which is not parsed (H.264 7.4.3).
_RESTARTS = (0, 1)


class FrameNumTracker:
    """Checks frame_num of an H.264 stream, packet by packet in decode order."""

    def __init__(self, extradata: bytes) -> None:
        self._prefix = nal.prefix_size("h264", extradata)
        # Bits of frame_num by SPS ID; None: gaps_in_frame_num_value_allowed_flag is set.
        self._lengths: dict[int, int | None] = {}
        self._sets: dict[int, int] = {}  # SPS ID by PPS ID
        self._planes: set[int] = set()  # IDs of SPS with separate_colour_plane_flag
        self._before: int | None = None  # frame_num of the last reference picture
        try:
            for unit in nal.parameter_sets("h264", extradata):
                self._learn(unit)
        except BitstreamError:
            pass

    def follows(self, packet: bytes) -> bool:
        """Return whether no picture is missing before the one in `packet`, judged by frame_num."""
        try:
            for start, end in nal.nal_units(packet, self._prefix):
                kind = packet[start] & 0x1F
                if kind in (nal.H264_SPS, nal.H264_PPS):
                    self._learn(packet[start:end])
                elif kind in (1, nal.H264_IDR):
                    return self._goes_on(packet[start : min(end, start + _HEADER_BYTES)], kind)
        except BitstreamError:
            self._before = None
        return True

    def _learn(self, unit: bytes) -> None:
        payload = unescaped(unit)
        if unit[0] & 0x1F == nal.H264_PPS:
            reader = BitReader(payload[1:])
            number = reader.golomb()
            self._sets[number] = reader.golomb()
        elif unit[0] & 0x1F == nal.H264_SPS and len(payload) >= 5:
            reader = BitReader(payload[4:])
            number = reader.golomb()
            self._planes.discard(number)
            if nal.read_h264_sample_format(reader, unit[1]).separate_planes:
                self._planes.add(number)
            length = reader.golomb() + 4
            nal.skip_display_order(reader)
            reader.golomb()  # max_num_ref_frames
            self._lengths[number] = None if reader.flag() else length

    def _goes_on(self, head: bytes, kind: int) -> bool:
        reader = BitReader(unescaped(head)[1:])
        reader.golomb()  # first_mb_in_slice
        reader.golomb()  # slice_type
        chosen = self._sets.get(reader.golomb(), -1)
        length = self._lengths.get(chosen)
        if length is None:
            self._before = None
            return True
        if chosen in self._planes:
            reader.bits(2)
        number, before = reader.bits(length), self._before
        if head[0] & 0x60:
            self._before = number
        if kind == nal.H264_IDR or before is None or number in _RESTARTS:
            return True
        return number in (before, (before + 1) % (1 << length))


# Decoders by codec that refuse packets which end too early, as most damage causes. FFmpeg's own
# decoders return such pictures without an error.
_SECOND_DECODERS = {"vp9": "libvpx-vp9"}


class PacketDamageChecker:
    """Checks each packet of a stream in decode order, in addition to the decoder."""

    def __init__(self, stream: VideoStream) -> None:
        context = stream.codec_context
        codec = context.codec.canonical_name
        self._numbers = FrameNumTracker(context.extradata or b"") if codec == "h264" else None
        self._second = _second_decoder(codec, context.extradata)
        self._is_proven = False  # the second decoder has decoded a packet

    def passes(self, packet: Packet[VideoStream]) -> bool:
        """Return whether the next packet is intact and no picture is missing before it.

        A key packet needs no earlier picture.
        """
        follows = self._numbers is None or self._numbers.follows(bytes(packet))
        return self._is_decoded(packet) and (follows or packet.is_keyframe)

    def _is_decoded(self, packet: Packet[VideoStream]) -> bool:
        if self._second is None:
            return True
        try:
            decode(self._second, packet)
        except MemoryError:
            raise
        except FFmpegError:
            if not self._is_proven:
                self._second = None  # it may not support the profile
            return not self._is_proven
        self._is_proven = True
        return True


def _second_decoder(codec: str, extradata: bytes | None) -> VideoCodecContext | None:
    """Return the second decoder of a codec; None if there is none in this build of FFmpeg."""
    name = _SECOND_DECODERS.get(codec)
    if name is None:
        return None
    try:
        context = av.CodecContext.create(name, "r")
    except ValueError:
        return None
    assert isinstance(context, VideoCodecContext)
    context.extradata = extradata
    configure_decoder(context)
    return context


# Units whose errors do not affect pictures.
_HARMLESS_UNITS = ("SEI",)
# Codecs in which B pictures are never references.
_UNREFERENCED_B = frozenset(("mpeg1video", "mpeg2video", "mpeg4", "vc1", "wmv3", "rv30", "rv40"))


class DamageCollector:
    """Collects damaged packets while a stream is decoded packet by packet with one thread."""

    def __init__(self, decoder: str, messages: list[LogMessage]) -> None:
        """`messages` collects FFmpeg's errors; they are removed once they are evaluated."""
        self.packets: set[int] = set()
        self.unreferenced: set[int] = set()  #: packets that no other one refers to
        self._decoder = decoder
        self._messages = messages

    def on_packet(self, packet: int, source: Packet[VideoStream]) -> None:
        """Evaluate errors after `packet`, from the demuxer, was fed to the decoder."""
        if source.is_corrupt or any(map(self._is_of_picture, self._messages)):
            self.packets.add(packet)
        self._messages.clear()

    def on_error(self, packet: int) -> None:
        """Note that the decoder has refused `packet`."""
        self.packets.add(packet)
        self._messages.clear()

    def on_frames(self, pictures: Sequence[av.VideoFrame]) -> None:
        """Evaluate pictures whose pts is the number of their packet."""
        for one in pictures:
            if one.pts is None:
                continue
            if one.is_corrupt:
                self.packets.add(one.pts)
            if self._decoder in _UNREFERENCED_B and one.pict_type == PictureType.B:
                self.unreferenced.add(one.pts)

    def _is_of_picture(self, message: LogMessage) -> bool:
        _, name, text = message
        return name == self._decoder and not any(word in text for word in _HARMLESS_UNITS)


def damaged_frames(codec: str, columns: PacketColumns, order: Ints, notes: DamageCollector) -> Ints:
    """Return the numbers of damaged frames, ascending.

    Damage of a packet that others refer to affects every frame up to the next key packet. It also
    affects frames shown before that key packet but decoded after it, since any of them may be
    predicted from the damaged one.

    Args:
        codec: FFmpeg's name of the codec
        columns: packets with flags by their own bytes; decoding may clear flags because of damage
        order: the packet of each frame
        notes: the damaged packets
    """
    damaged = np.zeros(len(columns), np.bool_)
    damaged[[packet for packet in notes.packets if packet < len(columns)]] = True
    if codec not in INTRA_CODECS and damaged.any():
        _spread_damage(damaged, columns, notes.unreferenced)
    return np.flatnonzero(damaged[order])


def _spread_damage(
    damaged: npt.NDArray[np.bool_], columns: PacketColumns, unreferenced: Collection[int]
) -> None:
    keys = np.flatnonzero(columns.flags & PacketFlag.KEY).tolist()
    needed = columns.flags & PacketFlag.DISPOSABLE == 0
    needed[[packet for packet in unreferenced if packet < len(needed)]] = False
    reached = False  # damage reached the end of the previous GOP
    for start, end in itertools.pairwise([*({0} - set(keys)), *keys, len(columns)]):
        group = slice(start, end)
        leading = columns.pts[group] < columns.pts[start]
        if reached:
            damaged[group] |= leading
        spreading = damaged[group] & needed[group]
        after = np.arange(end - start)
        for part, sources in ((leading, spreading), (~leading, spreading & ~leading)):
            if sources.any():
                damaged[group] |= part & (after >= int(sources.argmax()))
        reached = bool((spreading & ~leading).any())


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
            try:
                pictures = decode(context, packet)
            except MemoryError:
                raise  # it is about the machine, not the file
            except FFmpegError:
                notes.on_error(index)
                continue
            notes.on_packet(index, packet)
            notes.on_frames(pictures)
            frames.add(index, pictures)
        for _ in range(_MAX_DRAIN_ERRORS):
            try:
                pictures = decode(context, None)
                notes.on_frames(pictures)
                frames.add(index + 1, pictures)
            except EOFError:
                break
            except MemoryError:
                raise
            except FFmpegError:
                continue
            break
    opened.close()
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
