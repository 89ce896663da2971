"""Sound that is encoded, in step with what it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from fractions import Fraction
from types import MappingProxyType

import av
from av.audio.codeccontext import AudioCodecContext
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.error import FFmpegError
from av.filter import Graph
from av.packet import Packet
from av.stream import Stream

from vfsd.errors import UsageError

_KEPT = {"u8": "s16", "s16": "s16", "s32": "s32", "flt": "flt", "dbl": "flt"}
"""In which format samples are kept that come in another; of `s32` 24 bits are."""
_PCM = {"s16": "pcm_s16le", "s32": "pcm_s24le", "flt": "pcm_f32le"}
_ENCODERS: Mapping[str, tuple[str, Mapping[str, str]]] = MappingProxyType(
    {
        "aac": ("aac", {}),
        "flac": ("flac", {"s16": "s16", "s32": "s32", "flt": "s32"}),
        "opus": ("libopus", {"s16": "s16", "s32": "flt", "flt": "flt"}),
    }
)
"""The encoder, and the format of samples that it is given, by the one that is to be kept."""
_OPUS_RATE = 48_000
_PCM_BLOCK = 1024
"""Samples in a packet of PCM: Matroska tells packets apart by milliseconds."""


class SoundEncoder:
    """A stream of sound in `output`, which has no header yet.  Not thread-safe.

    Samples have the times of the frames that bring them, from the first picture on; where there are
    gaps in what a file brings, there is silence.  Raises `UsageError` for what the codec (aac,
    flac, opus or pcm) does not take.
    """

    def __init__(
        self, output: OutputContainer, codec: str, rate: int, layout: str, kind: str
    ) -> None:
        """`kind` is FFmpeg's format of the samples that are to be kept, as far as `codec` can."""
        self.rate = _OPUS_RATE if codec == "opus" else rate  #: of what is written
        self.taken = 0  #: samples at that rate that have come so far
        kept = _KEPT.get(kind.removesuffix("p"), "s32")
        encoder, formats = (_PCM[kept], {kept: kept}) if codec == "pcm" else _ENCODERS[codec]
        stream = output.add_stream(encoder, rate=self.rate)
        assert isinstance(stream, AudioStream)
        self._stream = stream
        self._block = _PCM_BLOCK if codec == "pcm" else 1
        stream.layout = layout
        self._context = stream.codec_context
        self._context.format = formats.get(kept, self._context.format.name)
        try:
            self._context.open()
        except FFmpegError as error:
            raise UsageError(
                f"sound of {rate} Hz in {layout} cannot be encoded in {codec}: {error.strerror}"
            ) from error
        self._graph: Graph | None = None
        self._fifo = av.AudioFifo()
        self._given = 0  # samples that the encoder has

    def take(self, frame: av.AudioFrame | None) -> None:
        """Samples that come next; None: no more will."""
        if self._graph is None:
            if frame is None:
                return
            self._graph = _graph(frame, self._context, self.rate)
        self._graph.push(frame)
        for ready in _pulled(self._graph):
            self.taken += ready.samples
            ready.pts = None
            self._fifo.write(ready)

    def packets(self, end: int) -> Iterator[Packet[Stream]]:
        """Those of samples before number `end`, as far as they have come."""
        wanted = min(end, self.taken) - self._given
        yield from self._encoded(wanted - wanted % self._block)

    def finish(self, end: int) -> Iterator[Packet[Stream]]:
        """All that are left, without the samples from number `end` on."""
        yield from self._encoded(min(end, self.taken) - self._given)
        yield from self._stream.encode(None)

    def _encoded(self, count: int) -> Iterator[Packet[Stream]]:
        step = count if self._block == 1 else self._block
        while count > 0 and (cut := self._fifo.read(min(step, count))) is not None:
            cut.pts, cut.time_base = self._given, Fraction(1, self.rate)
            self._given += cut.samples
            count -= cut.samples
            yield from self._stream.encode(cut)


def _graph(frame: av.AudioFrame, context: AudioCodecContext, rate: int) -> Graph:
    """From frames like that one to what the encoder takes, with silence where there are gaps."""
    graph = Graph()
    source = graph.add_abuffer(
        format=frame.format.name,
        sample_rate=frame.sample_rate,
        layout=frame.layout.name,
        time_base=frame.time_base,
    )
    resample = graph.add("aresample", f"{rate}:async=1:first_pts=0")
    form = graph.add(
        "aformat",
        f"sample_fmts={context.format.name}:sample_rates={rate}"
        f":channel_layouts={context.layout.name}",
    )
    sink = graph.add("abuffersink")
    source.link_to(resample)
    resample.link_to(form)
    form.link_to(sink)
    graph.configure()
    return graph


def _pulled(graph: Graph) -> Iterator[av.AudioFrame]:
    with suppress(BlockingIOError, EOFError):
        while True:
            frame = graph.pull()
            assert isinstance(frame, av.AudioFrame)
            yield frame
