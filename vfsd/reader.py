"""Carrying out read plans: every picture decoded once, and put where it belongs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from vfsd.codecs import VideoFrame
from vfsd.codecs.pixels import PixelConverter
from vfsd.decoders import DecoderPool, decoder_threads
from vfsd.frames import Pixels
from vfsd.frametable import FrameTable
from vfsd.plan import ReadPlan


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
    threads = decoder_threads(plan.physical.media) if len(plan.runs) <= 1 else 1

    def decode_part(runs: list[int]) -> None:
        converter = _converter(plan, pixel_format)
        for number in runs:
            run = plan.runs[number]
            for frame, picture in pool.pictures(plan.physical, table, run, threads=threads):
                put(converter, frame, picture)

    if plan.contiguous is not None:
        converter = _converter(plan, pixel_format)
        with pool.decoder(plan.physical, table) as decoder:
            for frame, picture in decoder.stream(
                plan.contiguous.start,
                plan.contiguous.stop,
                threads=decoder_threads(plan.physical.media),
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
            pictures = decoder.stream(
                span.start, span.stop, threads=decoder_threads(plan.physical.media)
            )
        else:
            pictures = (pair for run in plan.runs for pair in decoder.decode(run))
        for frame, picture in pictures:
            data = converter.convert(picture)
            for place in places[frame]:
                yield place, data


def _converter(plan: ReadPlan, pixel_format: str) -> PixelConverter:
    full = plan.physical.media.frame_rect
    return PixelConverter(
        plan.physical.media,
        pixel_format=pixel_format,
        region=None if plan.region == full else plan.region,
        size=None if plan.size == (plan.region.width, plan.region.height) else plan.size,
    )
