"""Records which packets decoders take, to show that each one is decoded once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vfsd.codecs.decoding.frame_decoder import FrameDecoder
from vfsd.core.frame_table import DecodeRun


def record_runs(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The packets of each run that is decoded from now on, without those fed before."""
    seen: list[range] = []
    decode = FrameDecoder.decode

    def recording(self: FrameDecoder, run: DecodeRun, **options: Any) -> Iterator[Any]:
        lead = self.lead(run, threads=options.get("threads", 1))
        seen.append(range(run.first_packet + lead, run.end_packet))
        return decode(self, run, **options)

    monkeypatch.setattr(FrameDecoder, "decode", recording)
    return seen


def repeated_packets(runs: list[range]) -> list[int]:
    """Packets in several runs."""
    packets = [packet for run in runs for packet in run]
    return sorted({packet for packet in packets if packets.count(packet) > 1})
