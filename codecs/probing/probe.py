"""Examines a file: its media description and frame table, or the reason why it is refused.

Packets are trusted where trial decodes agree; other files are decoded from end to end.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from collections.abc import Container as Collected
from dataclasses import dataclass, replace
from fractions import Fraction

import av
import numpy as np
from av.error import FFmpegError
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams.picture_headers import PacketTrait
from vfsd.codecs.containers.detect_container import HEAD_BYTES, Container, detect_container
from vfsd.codecs.decoding.demuxer import (
    MAX_STREAMS,
    discard_other_streams,
    open_container,
    runs_out_of_streams,
)
from vfsd.codecs.decoding.packet_decoder import PacketReader, look_at_first_packet
from vfsd.codecs.frames.planes import fingerprint
from vfsd.codecs.inventory.side_data import find_side_data
from vfsd.codecs.probing.audio_scan import AudioScan, scan_audio, unusable_audio
from vfsd.codecs.probing.damage import damaged_frames
from vfsd.codecs.probing.frame_table_columns import (
    TableTimestamps,
    complete_timestamps,
    h264_leading,
    initial_packet_flags,
    proven_timestamps,
    reorder_delay,
)
from vfsd.codecs.probing.full_decode import FullDecode, KeyPacketProof, decode_all
from vfsd.codecs.probing.media_info import (
    choose_stream,
    claimed_rates,
    describe_stream,
    with_container_crop,
)
from vfsd.codecs.probing.packet_scan import (
    NO_TIMESTAMP,
    TIMESTAMP_ORDER_CODECS,
    PacketScan,
    TrialDecode,
    packet_scan_problem,
    predict_output,
    scan_packets,
    timestamp_order_problem,
)
from vfsd.codecs.pyav import configure_decoder, decode
from vfsd.core.detections import contiguous_ranges
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.model import Access, MediaInfo
from vfsd.disk.checksums import MediaSource
from vfsd.errors import DamagedFileError, IntegrityError, RefusedMediaError

# Packets to decode for a check of the container.
_SAMPLE_PACKETS = 12
# Pictures of these to compare by fingerprint with those of the demuxer's packets.
_COMPARED = 3
# Largest fraction of damaged frames that may decode differently each time.
_MAX_UNSTABLE = 0.02


@dataclass(frozen=True)
class Examination:
    """The complete description of a video file, as ingest stores it."""

    media: MediaInfo
    access: Access
    columns: PacketColumns  #: packets in decode order
    order: Ints  #: packets that show a frame, in display order
    end_pts: int  #: tick at which the last frame ends
    verified: bool  #: a full decode has confirmed the table
    notes: tuple[str, ...]  #: peculiarities, as text for users
    sound: AudioScan | None = None  #: None: there is no audio stream
    damage: tuple[range, ...] | None = None
    """Ranges of damaged frames, ascending; None: unknown, since there was no full decode."""


def examine(
    path: str | os.PathLike[str],
    *,
    on_progress: Callable[[int, int], None] | None = None,
    name: str | None = None,
    full: bool = False,
    stream: int | None = None,
    in_largest_size: bool = False,
) -> Examination:
    """Probe a file and build its frame table.

    Raises `RefusedMediaError` if the file is not a video that can be served, `OSError`, and
    `DamagedFileError` for a damaged original.

    Args:
        path: the file
        on_progress: called with (bytes done, bytes in total); each pass starts from 0; may raise
        name: name of the file in messages (default: the last part of `path`)
        full: decode every frame, even if the container can be trusted
        stream: index of the video stream among all streams (default: FFmpeg's best one)
        in_largest_size: scale pictures of several sizes to the largest, not to the first
    """
    called = name or os.path.basename(os.fspath(path))
    with MediaSource(path) as source:
        return examine_source(
            source,
            called,
            on_progress=on_progress,
            full=full,
            stream=stream,
            in_largest_size=in_largest_size,
        )


def examine_source(
    source: MediaSource,
    called: str,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    full: bool = False,
    stream: int | None = None,
    left_out: Collected[int] = (),
    in_largest_size: bool = False,
) -> Examination:
    """Examine an open source, as `examine` does; it stays open.

    Video packets at the positions `left_out` are ignored.
    """
    try:
        result = _Examiner(source, on_progress, left_out, stream, in_largest_size).examine(full)
        source.check()
        return result
    except RefusedMediaError as refusal:
        _raise_damage(source)
        raise RefusedMediaError(f"{called}: {refusal}", hint=refusal.hint) from refusal
    except MemoryError:
        raise  # also from FFmpeg: it is about the machine, not the file
    except DamagedFileError:
        raise
    except (FFmpegError, IntegrityError) as error:
        _raise_damage(source)
        raise RefusedMediaError(f"{called}: cannot be read: {error}") from error


def _raise_damage(source: MediaSource) -> None:
    """Raise the damage behind an error of FFmpeg, if there is any."""
    if isinstance(source.interrupted_by, DamagedFileError):
        raise source.interrupted_by


class _Examiner:
    """One examination: scans packets, and trusts them or decodes the whole file."""

    def __init__(
        self,
        source: MediaSource,
        on_progress: Callable[[int, int], None] | None,
        left_out: Collected[int],
        wanted: int | None,
        in_largest_size: bool,
    ) -> None:
        self._wanted = wanted
        self._in_largest_size = in_largest_size
        self._source = source
        self._on_progress = on_progress
        self._left_out = left_out
        self._container: Container = detect_container(source.read_at(0, HEAD_BYTES))
        self._scanned: PacketScan | None = None
        self._claims: tuple[Fraction | None, ...] = ()  # frame rates that the file declares

    def examine(self, full: bool) -> Examination:
        try:
            result = self._examine(full)
        except av.error.MemoryError:
            if runs_out_of_streams(self._source, self._container.name):
                raise _too_many_streams_error() from None
            raise
        result = replace(result, media=with_container_crop(self._source, result.media))
        found = scan_audio(self._source, self._container, self._on_progress)
        if found is not None and found.sound.reason is None and self._was_retimed(result):
            reason = "the timestamps of the pictures had to be corrected"
            found = unusable_audio(found.sound.codec, found.sound.stream_index, reason)
        needs_first = None
        if result.access is Access.EXTENT:
            needs_first = look_at_first_packet(self._source, result.media, result.columns)
        media = replace(
            result.media,
            marks=find_side_data(self._source, result.media),
            in_largest_size=self._in_largest_size,
            needs_first_packet=needs_first,
        )
        return replace(result, sound=found, media=media)

    def _was_retimed(self, result: Examination) -> bool:
        """Return whether video timestamps were changed, so that audio no longer matches them."""
        scan = self._scanned
        if scan is None:
            return True
        if not self._container.timed:
            # Pictures are timed by dts, here as in players.
            return bool((scan.dts == NO_TIMESTAMP).any() or (np.diff(scan.dts) <= 0).any())
        stamped = scan.pts[result.order] != NO_TIMESTAMP
        shown = result.columns.pts[result.order]
        agree = shown == scan.pts[result.order]
        if stamped.all():
            # Some writers stamp packets in decode order. Sorted, these are the times of pictures.
            agree |= shown == np.sort(scan.pts[result.order])
        return not stamped.any() or not agree[stamped].all()

    def _examine(self, full: bool) -> Examination:
        try:
            opened = open_container(self._source, self._container.name)
        except MemoryError:
            raise
        except FFmpegError as error:
            raise RefusedMediaError(f"damaged or cut off: {_error_text(error)}") from error
        with opened:
            if len(opened.streams) > MAX_STREAMS:
                raise _too_many_streams_error()
            stream = choose_stream(opened, self._wanted)
            discard_other_streams(opened, stream)
            self._claims = claimed_rates(stream)
            scanned = scan_packets(
                self._source,
                self._container,
                opened,
                stream,
                self._on_progress,
                left_out=self._left_out,
            )
            self._scanned = scanned
            if not len(scanned):
                raise RefusedMediaError("the file has no pictures: the media data is missing")
            first = _first_frames(stream, scanned)
            doubt = packet_scan_problem(stream, scanned)
            if first and not doubt and not full:
                media, notes = describe_stream(self._container, opened, stream, first[0])
                fingerprints = list(map(fingerprint, first))
                doubt = timestamp_order_problem(self._container, stream, scanned)
                trusted = None
                if not doubt and media.codec in TIMESTAMP_ORDER_CODECS:
                    trusted = self._trust_packets(scanned, media, fingerprints, list(notes))
                if trusted is None:
                    trusted = self._predict_output(scanned, media, fingerprints, notes)
                if trusted is not None:
                    return trusted
                doubt = doubt or "the first pictures do not match their packets"
            decoded = decode_all(
                self._source,
                self._container,
                stream.index,
                self._on_progress,
                left_out=self._left_out,
                in_largest_size=self._in_largest_size,
            )
            if decoded.first is None:
                raise RefusedMediaError("no picture can be decoded")
            media, notes = describe_stream(self._container, opened, stream, decoded.first)
            width, height = decoded.size
            media = replace(media, width=width, height=height)
        if doubt:
            notes.append(f"decoded from end to end: {doubt}")
        return self._prove(scanned, media, decoded, notes)

    def _trust_packets(
        self, scanned: PacketScan, media: MediaInfo, first_fingerprints: list[int], notes: list[str]
    ) -> Examination | None:
        """Return the table by container and packets; None if a sample decode contradicts it."""
        hidden = (scanned.traits & PacketTrait.HIDDEN != 0) | scanned.discard
        shown = np.flatnonzero(~hidden)
        order = shown[np.argsort(scanned.pts[shown], kind="stable")]
        flags = initial_packet_flags(scanned, hidden)
        leading = h264_leading(media, scanned)
        flags[leading[~hidden[leading]]] |= np.uint8(PacketFlag.LEADING)
        delay = reorder_delay(order)
        if delay > media.reorder_delay and media.codec in ("h264", "hevc"):
            return None
        times = self._times(scanned.pts, scanned.dts, scanned.duration, order, media, delay)
        result = self._examination(scanned, media, order, flags, times, delay, notes)
        return result if self._sample_matches(result, first_fingerprints) else None

    def _predict_output(
        self, scanned: PacketScan, media: MediaInfo, first_fingerprints: list[int], notes: list[str]
    ) -> Examination | None:
        """Return the table that decoders of the codec should give; None if a trial
        contradicts it.
        """
        for output in predict_output(media.codec, scanned):
            if not len(output.order):
                continue
            trial_notes = list(notes)
            hidden = _outside_order(output.order, len(scanned))
            flags = initial_packet_flags(scanned, hidden)
            _note_hidden(hidden, trial_notes)
            delay = max(reorder_delay(output.order), media.reorder_delay)
            pts, dts, duration = proven_timestamps(
                self._container, scanned, output, media, trial_notes
            )
            times = self._times(pts, dts, duration, output.order, media, delay)
            result = self._examination(
                scanned, media, output.order, flags, times, delay, trial_notes
            )
            with PacketReader(
                self._source.shared, result.media, result.access, _frame_table(result)
            ) as reader:
                trial = TrialDecode(reader, result.columns, scanned, output, self._keep_alive)
                if trial.matches(first_fingerprints):
                    return result
        return None

    def _keep_alive(self) -> None:
        if self._on_progress:
            self._on_progress(self._source.size, self._source.size)

    def _sample_matches(self, result: Examination, first_fingerprints: list[int]) -> bool:
        """Return whether the first packets decode to one picture each, in table order.

        The first pictures must also match `first_fingerprints`.
        """
        hidden = result.columns.flags & PacketFlag.HIDDEN != 0
        packets = min(int(result.order.min()) + _SAMPLE_PACKETS, len(result.columns))
        expected = [int(packet) for packet in result.order if packet < packets]
        order: list[int] = []
        with PacketReader(
            self._source.shared, result.media, result.access, _frame_table(result)
        ) as reader:
            context = reader.context()
            for packet in [*reader.packets(0, packets), None]:
                try:
                    frames = decode(context, packet)
                except MemoryError:
                    raise
                except FFmpegError:
                    return False
                for frame in frames:
                    if frame.pts is not None and hidden[frame.pts]:
                        continue
                    shown = len(order)
                    if (
                        shown < len(first_fingerprints)
                        and fingerprint(frame) != first_fingerprints[shown]
                    ):
                        return False
                    order.append(-1 if frame.pts is None else frame.pts)
        return order == expected

    def _prove(
        self, scanned: PacketScan, media: MediaInfo, decoded: FullDecode, notes: list[str]
    ) -> Examination:
        """Return the table by a full decode."""
        order = decoded.order
        hidden = _outside_order(order, len(scanned))
        flags = initial_packet_flags(scanned, hidden)
        if (scanned.traits & PacketTrait.FOREIGN != 0).any():
            bare = scanned.traits & PacketTrait.PARAMETERS == 0
            flags[bare] &= ~np.uint8(PacketFlag.KEY)
        if scanned.reconfigured:
            flags[1:] &= ~np.uint8(PacketFlag.KEY)
        _note_hidden(hidden, notes)
        if len(decoded.sizes) > 1:
            sizes = ", ".join(f"{width}x{height}" for width, height in sorted(decoded.sizes))
            shown = "the largest" if self._in_largest_size else "that of the first"
            notes.append(f"pictures of several sizes, shown in {shown}: {sizes}")
        is_sized = len(decoded.sizes) > 1
        delay = max(reorder_delay(order), media.reorder_delay)
        pts, dts, duration = proven_timestamps(self._container, scanned, decoded, media, notes)
        times = self._times(pts, dts, duration, order, media, delay)
        result = self._examination(scanned, media, order, flags, times, delay, notes)
        if is_sized:  # copied packets would show the original sizes
            result = replace(result, access=Access.SEQUENTIAL)
        unstable: set[int] = set()
        for access in (result.access, result.access, Access.SEQUENTIAL):
            proof = KeyPacketProof(
                self._source,
                result.media,
                access,
                result.columns,
                decoded,
                result.end_pts,
                unstable=unstable,
            )
            if proof.run(self._on_progress, self._source.size):
                if unstable:
                    notes = [f"damaged frames that may differ from read to read: {len(unstable)}"]
                    result = replace(result, notes=(*result.notes, *notes))
                columns = replace(result.columns, flags=proof.flags)
                numbers = damaged_frames(media.codec, result.columns, order, decoded.damage)
                return replace(
                    result,
                    access=access,
                    columns=columns,
                    verified=True,
                    damage=tuple(contiguous_ranges(numbers)),
                )
            # The rest of a cut-off picture may be uninitialized memory.
            few = len(proof.unstable) <= max(1, len(order) * _MAX_UNSTABLE)
            unstable = proof.unstable if few else set()
        raise RefusedMediaError("the file is damaged, and each decode gives different pictures")

    def _times(
        self, pts: Ints, dts: Ints, duration: Ints, order: Ints, media: MediaInfo, delay: int
    ) -> TableTimestamps:
        return complete_timestamps(
            pts,
            dts,
            duration,
            order,
            reorder_delay=delay,
            time_base=media.time_base,
            rate=media.average_rate,
            claims=self._claims,
        )

    def _examination(
        self,
        scanned: PacketScan,
        media: MediaInfo,
        order: Ints,
        flags: np.ndarray[tuple[int], np.dtype[np.uint8]],
        times: TableTimestamps,
        delay: int,
        notes: list[str],
    ) -> Examination:
        if scanned.error:
            notes.append(f"cut off: the container ends with: {scanned.error}")
        repeats = len(np.unique(scanned.position)) < len(scanned)
        listed = self._container.demuxer == "mov" and (bool(scanned.discard.any()) or repeats)
        return Examination(
            media=replace(
                media,
                average_rate=times.average_rate,
                variable_rate=times.variable_rate,
                edit_list=listed,
                reorder_delay=max(delay, media.reorder_delay),
            ),
            access=_access(self._container, scanned),
            columns=PacketColumns(times.pts, times.dts, scanned.position, scanned.size, flags),
            order=order,
            end_pts=times.end_pts,
            verified=False,
            notes=tuple(notes),
        )


def _access(container: Container, scanned: PacketScan) -> Access:
    if scanned.sliced and not scanned.reconfigured:
        return Access.EXTENT
    if container.name in ("mpegts", "mpegps") and not scanned.reconfigured:
        return Access.DEMUX
    return Access.SEQUENTIAL


def _first_frames(stream: VideoStream, scanned: PacketScan) -> list[av.VideoFrame]:
    """Return the first pictures from the decoder that FFmpeg sets up; empty if it fails."""
    configure_decoder(stream.codec_context)
    found: list[av.VideoFrame] = []
    for packet in [*scanned.head, None]:
        try:
            frames = decode(stream.codec_context, packet)
        except MemoryError:
            raise
        except FFmpegError:
            break
        found += frames
        if len(found) >= _COMPARED:
            break
    return found[:_COMPARED]


def _outside_order(order: Ints, packets: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of the packets that are not in `order`."""
    others = np.ones(packets, np.bool_)
    others[order] = False
    return others


def _note_hidden(hidden: np.ndarray[tuple[int], np.dtype[np.bool_]], notes: list[str]) -> None:
    if hidden.any():
        notes.append(f"packets that show no picture of their own: {int(hidden.sum())}")


def _frame_table(result: Examination) -> FrameTable:
    return FrameTable.in_memory(
        result.columns, result.order, time_base=result.media.time_base, end_pts=result.end_pts
    )


def _too_many_streams_error() -> RefusedMediaError:
    return RefusedMediaError(f"the file has more than {MAX_STREAMS} streams")


def _error_text(error: FFmpegError) -> str:
    return error.strerror or type(error).__name__


_SAMPLE_FRAMES = 5
_SAMPLE_RATE = Fraction(25)
_SAMPLE_WIDTH, _SAMPLE_HEIGHT = 64, 64
# FFmpeg needs this header to open a subtitle encoder.
_SAMPLE_ASS_HEADER = b"""[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name
Style: Default

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


def sample_video() -> bytes:
    """Return a Matroska file of `_SAMPLE_FRAMES` MPEG-4 frames, 64x64, with one line of SubRip.

    Raises the exceptions of PyAV.
    """
    made = io.BytesIO()
    with av.open(made, "w", format="matroska") as container:
        pictures = container.add_stream("mpeg4", rate=_SAMPLE_RATE)
        pictures.width, pictures.height, pictures.pix_fmt = _SAMPLE_WIDTH, _SAMPLE_HEIGHT, "yuv420p"
        words = container.add_stream("subrip")
        words.codec_context.subtitle_header = _SAMPLE_ASS_HEADER
        for number in range(_SAMPLE_FRAMES):
            frame = av.VideoFrame(_SAMPLE_WIDTH, _SAMPLE_HEIGHT, "yuv420p")
            frame.pts, frame.time_base = number, 1 / _SAMPLE_RATE
            for plane in frame.planes:
                plane.update(bytes(plane.buffer_size))
            container.mux(pictures.encode(frame))
        container.mux(pictures.encode())
        line = av.Packet(b"sample")
        line.stream, line.time_base = words, Fraction(1, 1000)
        line.pts = line.dts = 0
        line.duration = 100
        container.mux(line)
    return made.getvalue()
