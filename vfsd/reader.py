"""Carrying out read plans: decoders that are kept warm, and pixels put where they belong."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.decode import FrameDecoder
from vfsd.codecs.pixels import PixelConverter
from vfsd.frames import Pixels
from vfsd.frametable import DecodeRun, FrameTable
from vfsd.model import PhysicalVideo
from vfsd.parts import Parts
from vfsd.plan import ReadPlan

_LARGE_PICTURE = 500_000
"""Pixels from which on a second thread inside the decoder pays."""


@dataclass
class _Warm:
    """A decoder that waits for its next use, and the descriptor that it reads from."""

    physical_id: int
    fd: int
    decoder: FrameDecoder

    def close(self) -> None:
        self.decoder.close()
        os.close(self.fd)


class DecoderPool:
    """Decoders that were used lately, for whoever next reads the same video.

    Safe to use from several threads; each decoder has one user at a time.  After a fork the child
    starts with an empty pool.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._idle: list[_Warm] = []
        self._guard = threading.Lock()
        self._pid = os.getpid()
        self._workers: ThreadPoolExecutor | None = None

    @contextmanager
    def decoder(
        self,
        physical: PhysicalVideo,
        table: FrameTable,
        run: DecodeRun | None = None,
        *,
        threads: int = 1,
    ) -> Iterator[FrameDecoder]:
        """A decoder for that encoding, this block's own.

        With `run`, the one that has the least left to decode of it: in a long group of pictures,
        decoders that stay where their last reader left them are as good as more key pictures.
        Raises `OSError`.
        """
        warm = self._take(physical.id, run, threads)
        if warm is None:
            fd = os.open(self._parts.bytes_of(physical), os.O_RDONLY | os.O_CLOEXEC)
            try:
                decoder = FrameDecoder(fd, physical.media, physical.access, table)
            except BaseException:
                os.close(fd)
                raise
            warm = _Warm(physical.id, fd, decoder)
        try:
            yield warm.decoder
        except BaseException:
            warm.close()  # nobody knows in what state it is
            raise
        self._give_back(warm)

    def workers(self) -> ThreadPoolExecutor:
        """Threads for runs that do not depend on each other."""
        with self._guard:
            self._forget_parent()
            if self._workers is None:
                self._workers = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="decode")
            return self._workers

    def close(self) -> None:
        with self._guard:
            self._forget_parent()
            idle, self._idle = self._idle, []
            workers, self._workers = self._workers, None
        for warm in idle:
            warm.close()
        if workers is not None:
            workers.shutdown()

    def _take(self, physical_id: int, run: DecodeRun | None, threads: int) -> _Warm | None:
        with self._guard:
            self._forget_parent()
            mine = [at for at, warm in enumerate(self._idle) if warm.physical_id == physical_id]
            if not mine:
                return None
            if run is None:
                return self._idle.pop(mine[-1])
            leads = [self._idle[at].decoder.lead(run, threads=threads) for at in mine]
            best = max(range(len(mine)), key=leads.__getitem__)
            if leads[best]:
                return self._idle.pop(mine[best])
            # None helps.  While there is room they stay where they are; then the oldest moves on.
            room = self._parts.settings.decoder_memory - self._memory()
            if room >= self._idle[mine[0]].decoder.memory:
                return None
            return self._idle.pop(mine[0])

    def _give_back(self, warm: _Warm) -> None:
        surplus = []
        with self._guard:
            self._forget_parent()
            self._idle.append(warm)
            while len(self._idle) > 1 and self._memory() > self._parts.settings.decoder_memory:
                surplus.append(self._idle.pop(0))
        for old in surplus:
            old.close()

    def _memory(self) -> int:
        return sum(warm.decoder.memory for warm in self._idle)

    def _forget_parent(self) -> None:
        if self._pid != os.getpid():
            # Threads and decoder state did not come along through the fork.
            self._pid = os.getpid()
            self._idle = []
            self._workers = None


def execute(
    plan: ReadPlan, table: FrameTable, pool: DecoderPool, *, pixel_format: str = "rgb24"
) -> Pixels:
    """The pictures of `plan`, one after the other along the first axis.

    Raises `IntegrityError` when the file does not yield a frame that its table promises.
    """
    form = _converter(plan, pixel_format)
    out = np.empty((len(plan.frames), *form.shape), form.dtype)
    places: dict[int, list[int]] = {}
    for place, frame in enumerate(plan.frames.tolist()):
        places.setdefault(frame, []).append(place)

    def put(converter: PixelConverter, frame: int, picture: VideoFrame) -> None:
        first, *others = places[frame]
        converter.convert(picture, out[first])
        for other in others:
            out[other] = out[first]

    # Runs on their own have a core each; a single one has them all.
    threads = _threads(plan) if len(plan.runs) == 1 else 1

    def decode_part(runs: list[int]) -> None:
        converter = _converter(plan, pixel_format)
        for number in runs:
            run = plan.runs[number]
            with pool.decoder(plan.physical, table, run, threads=threads) as decoder:
                for frame, picture in decoder.decode(run, threads=threads):
                    put(converter, frame, picture)

    if plan.contiguous is not None:
        converter = _converter(plan, pixel_format)
        with pool.decoder(plan.physical, table) as decoder:
            for frame, picture in decoder.stream(
                plan.contiguous.start, plan.contiguous.stop, threads=_threads(plan)
            ):
                put(converter, frame, picture)
    elif len(plan.runs) <= 1:
        decode_part(list(range(len(plan.runs))))
    else:
        # Runs are independent: deal them out, so that every core has a decoder of its own.
        hands = min(len(plan.runs), os.cpu_count() or 1)
        parts = [list(range(hand, len(plan.runs), hands)) for hand in range(hands)]
        list(pool.workers().map(decode_part, parts))
    return out


def stream(
    plan: ReadPlan, table: FrameTable, pool: DecoderPool, *, pixel_format: str = "rgb24"
) -> Iterator[tuple[int, Pixels]]:
    """(place in the result, picture) one at a time: memory for one picture at a time."""
    converter = _converter(plan, pixel_format)
    places: dict[int, list[int]] = {}
    for place, frame in enumerate(plan.frames.tolist()):
        places.setdefault(frame, []).append(place)
    with pool.decoder(plan.physical, table) as decoder:
        if plan.contiguous is not None:
            span = plan.contiguous
            pictures = decoder.stream(span.start, span.stop, threads=_threads(plan))
        else:
            pictures = (pair for run in plan.runs for pair in decoder.decode(run))
        for frame, picture in pictures:
            data = converter.convert(picture)
            for place in places[frame]:
                yield place, data


def _threads(plan: ReadPlan) -> int:
    media = plan.physical.media
    return 2 if media.width * media.height >= _LARGE_PICTURE and (os.cpu_count() or 1) > 1 else 1


def _converter(plan: ReadPlan, pixel_format: str) -> PixelConverter:
    full = plan.physical.media.frame_rect
    return PixelConverter(
        plan.physical.media,
        pixel_format=pixel_format,
        region=None if plan.region == full else plan.region,
        size=None if plan.size == (plan.region.width, plan.region.height) else plan.size,
    )
