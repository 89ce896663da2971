"""What a file holds: its media description and its frame table, or why it is refused.

Three ways lead to a table.  Where the container gives every picture a time stamp and the packets'
own bytes tell where decoding may start, the time stamps give the order, once the first pictures
have been decoded and found to agree.  Of codecs whose decoders show pictures by a fixed rule, that
rule gives the order, once a trial of some runs of packets agrees.  Everything else is decoded from
end to end, and each key packet is tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Container as Collected
from dataclasses import dataclass, replace
from fractions import Fraction

import av
import numpy as np
from av.error import FFmpegError
from av.video.stream import VideoStream

from vfsd.codecs.bitstreams.packet_flag import Trait
from vfsd.codecs.containers.detect_container import HEAD_BYTES, Container, sniff
from vfsd.codecs.decoding.context import prepare
from vfsd.codecs.decoding.demuxer import (
    MAX_STREAMS,
    Source,
    discard_others,
    open_container,
    runs_out_of_streams,
)
from vfsd.codecs.decoding.packet_reader import PacketReader
from vfsd.codecs.frames.planes import fingerprint
from vfsd.codecs.inventory.marks import picture_marks
from vfsd.codecs.probing.audio_scan import SoundScan, scan_sound, without_sound
from vfsd.codecs.probing.cropping import cropped
from vfsd.codecs.probing.damage import damaged_frames
from vfsd.codecs.probing.full_decode import Decoded, KeyProof, decode_all
from vfsd.codecs.probing.media_info import choose_stream, claimed_rates, describe
from vfsd.codecs.probing.output_order import BY_STAMPS, predictions
from vfsd.codecs.probing.packet_scan import NONE, Scan, scan
from vfsd.codecs.probing.table_builder import (
    h264_leading,
    packet_flags,
    proven_times,
    reorder_delay,
)
from vfsd.codecs.probing.timestamps import Timeline, settle
from vfsd.codecs.probing.trial import Trial
from vfsd.codecs.probing.trust import packet_doubt, stamps_doubt
from vfsd.codecs.pyav import decode
from vfsd.core.detections import runs
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import Ints, PacketColumns, PacketFlag
from vfsd.core.model import Access, MediaInfo
from vfsd.errors import DamagedFileError, IntegrityError, RefusedMediaError

_SAMPLE_PACKETS = 12
"""As many are decoded to see whether the container can be believed."""
_COMPARED = 3
"""Of these as many pictures are compared, sample by sample, with those of the demuxer's packets."""
_MAX_UNSTABLE = 0.02
"""Of all frames: those that may look different each time, for damage, in a file that is served."""


@dataclass(frozen=True)
class Examination:
    """Everything that ingest stores about a video file."""

    media: MediaInfo
    access: Access
    columns: PacketColumns  #: packets in decode order
    order: Ints  #: packets that show a frame, in display order
    end_pts: int  #: when the last frame stops being shown, in ticks
    verified: bool  #: a full decode has confirmed the table
    notes: tuple[str, ...]  #: oddities, for people
    sound: SoundScan | None = None  #: None: there is no audio stream
    damage: tuple[range, ...] | None = None
    """Frames that show damage, ascending; None: only a full decode tells, and there was none."""


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

    `on_progress` is told (bytes done, bytes in all) now and then, from the start again for each
    pass that it takes; it may raise to cancel.  `name` is what messages call the file (default:
    the last part of `path`).  With `full` every frame is decoded even where the container can be
    believed.  `stream` is the number of the video stream, counted among all streams (default: the
    one that FFmpeg takes for the best).  Pictures of several sizes are shown in that of the first,
    or `in_largest_size`.

    Raises `RefusedMediaError` when the bytes are no video that can be served, `OSError`, and
    `DamagedFileError` of an original.
    """
    called = name or os.path.basename(os.fspath(path))
    with Source(path) as source:
        return examine_source(
            source,
            called,
            on_progress=on_progress,
            full=full,
            stream=stream,
            in_largest_size=in_largest_size,
        )


def examine_source(
    source: Source,
    called: str,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    full: bool = False,
    stream: int | None = None,
    left_out: Collected[int] = (),
    in_largest_size: bool = False,
) -> Examination:
    """As `examine`, of what is open already; it stays so.

    Packets of the video at the places `left_out` are passed over, as if they were not there.
    """
    try:
        result = _Examiner(source, on_progress, left_out, stream, in_largest_size).examine(full)
        source.check()
        return result
    except RefusedMediaError as refusal:
        _raise_damage(source)
        raise RefusedMediaError(f"{called}: {refusal}", hint=refusal.hint) from refusal
    except MemoryError:
        raise  # of FFmpeg, too: it tells of the machine, not of the file
    except DamagedFileError:
        raise
    except (FFmpegError, IntegrityError) as error:
        _raise_damage(source)
        raise RefusedMediaError(f"{called}: cannot be read: {error}") from error


def _raise_damage(source: Source) -> None:
    """What FFmpeg made of damage is not what is wrong."""
    if isinstance(source.interrupted_by, DamagedFileError):
        raise source.interrupted_by


class _Examiner:
    def __init__(
        self,
        source: Source,
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
        self._container: Container = sniff(source.read_at(0, HEAD_BYTES))
        self._scanned: Scan | None = None  # what the container says of all packets
        self._claims: tuple[Fraction | None, ...] = ()  # frames per second

    def examine(self, full: bool) -> Examination:
        try:
            result = self._examine(full)
        except av.error.MemoryError:
            if runs_out_of_streams(self._source, self._container.name):
                raise _too_many_streams() from None
            raise
        result = replace(result, media=cropped(self._source, result.media))
        found = scan_sound(self._source, self._container, self._on_progress)
        if found is not None and found.sound.reason is None and self._was_retimed(result):
            reason = "the pictures' time stamps had to be set right"
            found = without_sound(found.sound.codec, found.sound.stream_index, reason)
        media = replace(
            result.media,
            marks=picture_marks(self._source, result.media),
            in_largest_size=self._in_largest_size,
        )
        return replace(result, sound=found, media=media)

    def _was_retimed(self, result: Examination) -> bool:
        """Whether the timeline is no longer the one that the sound goes by."""
        told = self._scanned
        if told is None:
            return True
        if not self._container.timed:
            # Pictures go by the times of decoding, here as in players.
            return bool((told.dts == NONE).any() or (np.diff(told.dts) <= 0).any())
        known = told.pts[result.order] != NONE
        agree = result.columns.pts[result.order] == told.pts[result.order]
        return not known.any() or not agree[known].all()

    def _examine(self, full: bool) -> Examination:
        try:
            opened = open_container(self._source, self._container.name)
        except MemoryError:
            raise
        except FFmpegError as error:
            raise RefusedMediaError(f"damaged or cut off: {_reason(error)}") from error
        with opened:
            if len(opened.streams) > MAX_STREAMS:
                raise _too_many_streams()
            stream = choose_stream(opened, self._wanted)
            discard_others(opened, stream)
            self._claims = claimed_rates(stream)
            scanned = scan(
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
            doubt = packet_doubt(stream, scanned)
            if first and not doubt and not full:
                media, notes = describe(self._container, opened, stream, first[0])
                prints = list(map(fingerprint, first))
                doubt = stamps_doubt(self._container, stream, scanned)
                believed = None
                if not doubt and media.codec in BY_STAMPS:
                    believed = self._believe(scanned, media, prints, list(notes))
                if believed is None:
                    believed = self._predict(scanned, media, prints, notes)
                if believed is not None:
                    return believed
                doubt = doubt or "its first pictures are not those that its packets promise"
            decoded = decode_all(
                self._source,
                self._container,
                stream.index,
                self._on_progress,
                left_out=self._left_out,
                in_largest_size=self._in_largest_size,
            )
            if decoded.first is None:
                raise RefusedMediaError("no picture of it can be decoded")
            media, notes = describe(self._container, opened, stream, decoded.first)
            width, height = decoded.size
            media = replace(media, width=width, height=height)
        if doubt:
            notes.append(f"decoded from end to end: {doubt}")
        return self._prove(scanned, media, decoded, notes)

    def _believe(
        self, scanned: Scan, media: MediaInfo, first_prints: list[int], notes: list[str]
    ) -> Examination | None:
        """The table as container and packets tell it; None where a sample contradicts it."""
        hidden = (scanned.traits & Trait.HIDDEN != 0) | scanned.discard
        shown = np.flatnonzero(~hidden)
        order = shown[np.argsort(scanned.pts[shown], kind="stable")]
        flags = packet_flags(scanned, hidden)
        leading = h264_leading(media, scanned)
        flags[leading[~hidden[leading]]] |= np.uint8(PacketFlag.LEADING)
        delay = reorder_delay(order)
        if delay > media.reorder_delay and media.codec in ("h264", "hevc"):
            return None
        times = self._times(scanned.pts, scanned.dts, scanned.duration, order, media, delay)
        result = self._examination(scanned, media, order, flags, times, delay, notes)
        return result if self._sample_agrees(result, first_prints) else None

    def _predict(
        self, scanned: Scan, media: MediaInfo, first_prints: list[int], notes: list[str]
    ) -> Examination | None:
        """The table as decoders of the codec give it; None where a trial contradicts it."""
        for output in predictions(media.codec, scanned):
            if not len(output.order):
                continue
            told = list(notes)
            hidden = _others(output.order, len(scanned))
            flags = packet_flags(scanned, hidden)
            _note_hidden(hidden, told)
            delay = max(reorder_delay(output.order), media.reorder_delay)
            pts, dts, duration = proven_times(self._container, scanned, output, media, told)
            times = self._times(pts, dts, duration, output.order, media, delay)
            result = self._examination(scanned, media, output.order, flags, times, delay, told)
            with PacketReader(
                self._source.shared, result.media, result.access, _table(result)
            ) as reader:
                trial = Trial(reader, result.columns, scanned, output, self._alive)
                if trial.agrees(first_prints):
                    return result
        return None

    def _alive(self) -> None:
        if self._on_progress:
            self._on_progress(self._source.size, self._source.size)

    def _sample_agrees(self, result: Examination, first_prints: list[int]) -> bool:
        """Whether the first packets show one picture each, in the order of the table, and the
        first of all are those that they should be."""
        hidden = result.columns.flags & PacketFlag.HIDDEN != 0
        packets = min(int(result.order.min()) + _SAMPLE_PACKETS, len(result.columns))
        expected = [int(packet) for packet in result.order if packet < packets]
        order: list[int] = []
        with PacketReader(
            self._source.shared, result.media, result.access, _table(result)
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
                    if shown < len(first_prints) and fingerprint(frame) != first_prints[shown]:
                        return False
                    order.append(-1 if frame.pts is None else frame.pts)
        return order == expected

    def _prove(
        self, scanned: Scan, media: MediaInfo, decoded: Decoded, notes: list[str]
    ) -> Examination:
        """The table as a full decode tells it."""
        order = decoded.order
        hidden = _others(order, len(scanned))
        flags = packet_flags(scanned, hidden)
        if (scanned.traits & Trait.FOREIGN != 0).any():
            bare = scanned.traits & Trait.PARAMETERS == 0
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
        pts, dts, duration = proven_times(self._container, scanned, decoded, media, notes)
        times = self._times(pts, dts, duration, order, media, delay)
        result = self._examination(scanned, media, order, flags, times, delay, notes)
        if is_sized:  # copied packets would show other sizes than the video has
            result = replace(result, access=Access.SEQUENTIAL)
        unstable: set[int] = set()
        for access in (result.access, result.access, Access.SEQUENTIAL):
            proof = KeyProof(
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
                    damage=tuple(runs(numbers)),
                )
            # What is left of a cut-off picture may be whatever was in memory.
            few = len(proof.unstable) <= max(1, len(order) * _MAX_UNSTABLE)
            unstable = proof.unstable if few else set()
        raise RefusedMediaError("it is damaged, and each decode gives other pictures")

    def _times(
        self, pts: Ints, dts: Ints, duration: Ints, order: Ints, media: MediaInfo, delay: int
    ) -> Timeline:
        return settle(
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
        scanned: Scan,
        media: MediaInfo,
        order: Ints,
        flags: np.ndarray[tuple[int], np.dtype[np.uint8]],
        times: Timeline,
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


def _access(container: Container, scanned: Scan) -> Access:
    if scanned.sliced and not scanned.reconfigured:
        return Access.EXTENT
    if container.name in ("mpegts", "mpegps") and not scanned.reconfigured:
        return Access.DEMUX
    return Access.SEQUENTIAL


def _first_frames(stream: VideoStream, scanned: Scan) -> list[av.VideoFrame]:
    """The first pictures, as the decoder that FFmpeg sets up gives them; none: not at once."""
    prepare(stream.codec_context)
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


def _others(order: Ints, packets: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Of each packet, whether it is not in `order`."""
    others = np.ones(packets, np.bool_)
    others[order] = False
    return others


def _note_hidden(hidden: np.ndarray[tuple[int], np.dtype[np.bool_]], notes: list[str]) -> None:
    if hidden.any():
        notes.append(f"packets that show no picture of their own: {int(hidden.sum())}")


def _table(result: Examination) -> FrameTable:
    return FrameTable.in_memory(
        result.columns, result.order, time_base=result.media.time_base, end_pts=result.end_pts
    )


def _too_many_streams() -> RefusedMediaError:
    return RefusedMediaError(f"it has more than {MAX_STREAMS} streams")


def _reason(error: FFmpegError) -> str:
    return error.strerror or type(error).__name__
