"""Creates video encoders and decoders by name.

`open_encoder` opens an encoder without its log output and without raising the priority of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from av.codec.context import CodecContext
from av.video.codeccontext import VideoCodecContext

DECODERS = {"av1": "libdav1d"}
"""Decoders by codec, where FFmpeg's own is not used. Its AV1 decoder needs hardware."""

SVT_AV1_LOW_DELAY = "pred-struct=2:hierarchical-levels=2:lp=1"
"""Settings of SVT-AV1 with a short delay between pictures and packets.

SVT-AV1 4.1 sometimes deadlocks without lookahead: with its own low delay (pred-struct=1), and with
small mini-GOPs unless each stage has one thread (lp=1). See docs/adr/encoder-settings.md.
"""


def new_encoder(name: str) -> VideoCodecContext:
    """Return an unopened video encoder by FFmpeg's name, such as ``libx264``.

    FFmpeg must be known to have it.
    """
    context = CodecContext.create(name, "w")
    assert isinstance(context, VideoCodecContext)
    return context


def new_decoder(codec: str) -> VideoCodecContext:
    """Return an unopened decoder for a video codec, without any configuration.

    FFmpeg must be known to have it.
    """
    context = CodecContext.create(DECODERS.get(codec, codec), "r")
    assert isinstance(context, VideoCodecContext)
    return context


def open_encoder(context: CodecContext) -> None:
    """Open an encoder by ``context.open()`` and keep the priorities of threads.

    As root, SVT-AV1 gives the thread that opens it and its own threads the highest priority of
    SCHED_FIFO, and does not reset it. It would block all other work on the machine, and children of
    the thread would inherit the priority.
    """
    os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 logs errors only
    with _preserved_priorities():
        context.open()


@contextmanager
def _preserved_priorities() -> Iterator[None]:
    """Restore the priority of this thread, and of threads started in the block, at its end.

    Threads that other threads start in the meantime are changed only if their priority was raised
    in the same way.
    """
    before, threads = _scheduling_of(0), _thread_ids()
    try:
        yield
    finally:
        raised = _scheduling_of(0)
        if raised != before:
            policy, priority = before
            for thread in {threading.get_native_id()} | (_thread_ids() - threads):
                with suppress(ProcessLookupError):  # the thread has ended
                    if _scheduling_of(thread) == raised:
                        os.sched_setscheduler(thread, policy, os.sched_param(priority))


def _scheduling_of(thread: int) -> tuple[int, int]:
    """Return policy and priority of a thread (0: this one); see sched(7)."""
    return os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority


def _thread_ids() -> set[int]:
    """Return the IDs of all threads of this process."""
    return {int(name) for name in os.listdir("/proc/self/task")}
