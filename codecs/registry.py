"""Encoders and decoders of video by their names; encoders are opened without letting them talk, or
push in front of all else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from av.codec.context import CodecContext
from av.video.codeccontext import VideoCodecContext

DECODERS = {"av1": "libdav1d"}
"""By codec, where it is not FFmpeg's own; that of AV1 needs hardware."""

SVT_AV1_LOW_DELAY = "pred-struct=2:hierarchical-levels=2:lp=1"
"""Packets not long after their pictures.

SVT-AV1 4.1 waits for itself for ever, now and then, where it does not take the time to look ahead:
with its own low delay (pred-struct=1), and with small groups of pictures unless each of its steps
has a single thread (lp=1).  See docs/adr/encoder-settings.md.
"""


def new_encoder(name: str) -> VideoCodecContext:
    """An encoder of video that FFmpeg is known to have, by the name of the encoder (``libx264``);
    not open yet."""
    context = CodecContext.create(name, "w")
    assert isinstance(context, VideoCodecContext)
    return context


def new_decoder(codec: str) -> VideoCodecContext:
    """A decoder for a codec of video that FFmpeg is known to have, about which all is to be said
    yet."""
    context = CodecContext.create(DECODERS.get(codec, codec), "r")
    assert isinstance(context, VideoCodecContext)
    return context


def open_encoder(context: CodecContext) -> None:
    """As ``context.open()``, but what it starts runs as the calling thread does.

    Where root runs it, SVT-AV1 gives the thread that opens it and all threads of its own
    SCHED_FIFO's highest priority, and never takes it back: nothing else on the machine would have a
    core until it is done, and whatever that thread or its children do later would go first as well.
    """
    os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 tells of errors only, not of itself
    with _preserved_priorities():
        context.open()


@contextmanager
def _preserved_priorities() -> Iterator[None]:
    """What the block does to priorities of this thread is undone, for threads it starts as well.

    Those that other threads start meanwhile are left alone unless the same was done to them.
    """
    before, threads = _scheduling_of(0), _thread_ids()
    try:
        yield
    finally:
        raised = _scheduling_of(0)
        if raised != before:
            policy, priority = before
            for thread in {threading.get_native_id()} | (_thread_ids() - threads):
                with suppress(ProcessLookupError):  # it has ended
                    if _scheduling_of(thread) == raised:
                        os.sched_setscheduler(thread, policy, os.sched_param(priority))


def _scheduling_of(thread: int) -> tuple[int, int]:
    """Policy and priority of a thread, 0 for this one; see sched(7)."""
    return os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority


def _thread_ids() -> set[int]:
    """All of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")}
