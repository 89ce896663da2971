"""How a mount is doing: its counters, and what of the machine it takes, as JSON."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vfsd.core.hostinfo import cpu_seconds, resident_bytes
from vfsd.mount.fs.op_stats import Counters, Tally


@dataclass(frozen=True, slots=True)
class Rendering:
    """The process that makes views for a mount."""

    pid: int
    cpu_seconds: float  #: in user and system mode
    memory: int  #: bytes that are resident
    decoder_memory: int  #: bytes of pictures that decoders kept warm hold, roughly

    @classmethod
    def of(cls, pid: int, decoder_memory: int) -> Rendering:
        return cls(pid, cpu_seconds(pid), resident_bytes(pid), decoder_memory)


@dataclass(frozen=True, slots=True)
class Standing:
    """As the attribute ``user.vfsd.stats`` of a mountpoint tells it."""

    pid: int
    since: float  #: Unix time at which the mount began
    seconds: float  #: for which it has been there
    cpu_seconds: float  #: of the process, in user and system mode
    memory: int  #: bytes that are resident
    threads: int
    descriptors: int  #: open files of the process
    operations: Mapping[str, Tally]
    rendering: Rendering | None = None  #: None: nobody has wanted views lately
    passthrough: int | None = None  #: files that the kernel can read by itself; None: it may not

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Standing:
        """Raises `ValueError` for what is none."""
        try:
            found: dict[str, Any] = json.loads(text)
            operations = {
                name: Tally(**{**tally, "buckets": _numbered(tally["buckets"])})
                for name, tally in found.pop("operations").items()
            }
            rendering = found.pop("rendering")
            made_by = None if rendering is None else Rendering(**rendering)
            return cls(**found, operations=operations, rendering=made_by)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"figures of a mount cannot be read: {error}") from error


class Standings:
    """Looks at this process.  Thread-safe."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._since = time.time()
        self._began = time.monotonic()

    def now(self, rendering: Rendering | None) -> Standing:
        used = os.times()
        passed_through = self._counters.passed_through
        return Standing(
            os.getpid(),
            self._since,
            time.monotonic() - self._began,
            used.user + used.system,
            resident_bytes(os.getpid()),
            threading.active_count(),
            len(os.listdir("/proc/self/fd")),
            self._counters.tallies(),
            rendering,
            None if passed_through is None else passed_through(),
        )


def _numbered(buckets: Mapping[str, int]) -> dict[float, int]:
    return {float(limit): count for limit, count in buckets.items()}
