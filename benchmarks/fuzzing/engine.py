"""Runs a target on numbered inputs in child processes, within bounds on time and memory.

Input `number` of a target depends only on the seed and that number.  A child processes a range of
inputs and records the current number, so that an input that kills it is known.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from benchmarks.mutating import mutated

_BATCH = 400
_PLACE = struct.Struct("<q")
_WORDS = 0.5
_LONGEST = 1 << 20
_HANGS = 30
"""Times as much of the clock's time as of the processor's: who waits hangs, unless others have the
processor."""
_SCRATCH = "/dev/shm"
"""Where files are made, if it is there: many are, and none stays."""


class TooSlowError(Exception):
    """An input exceeded its time limit."""


@dataclass(frozen=True)
class Target:
    """A parser or decoder of untrusted bytes."""

    name: str
    what: str  #: one line of description
    check: Callable[[bytes], None]  #: raises if an invariant does not hold
    seeds: Callable[[], list[bytes]]
    words: Sequence[bytes] = ()  #: words of its language
    seconds: float = 10.0  #: limit of CPU seconds per input
    prepare: Callable[[], None] = lambda: None  #: called in each child, before the first input


@dataclass
class Found:
    """An input that broke an invariant."""

    number: int
    error: str
    trace: str
    data: bytes

    @property
    def kind(self) -> str:
        """Equal for failures that are most likely the same fault."""
        lines = [line.strip() for line in self.trace.splitlines() if line.startswith("  File")]
        return f"{self.error.split(':')[0]} {lines[-1] if lines else ''}"


@dataclass
class Tally:
    inputs: int = 0
    cpu_seconds: float = 0.0
    found: dict[str, Found] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)  #: findings by kind


def input_of(target: Target, seeds: Sequence[bytes], seed: int, number: int) -> bytes:
    """The input with that number; the first ones are the unchanged seeds."""
    if number < len(seeds):
        return seeds[number]
    chance = random.Random(f"{target.name} {seed} {number}")
    data = chance.choice(seeds)
    if target.words and chance.random() < _WORDS:
        return _reworded(data, target.words, chance)
    return mutated(data, chance.randrange(1 << 62))[1]


def _reworded(data: bytes, words: Sequence[bytes], chance: random.Random) -> bytes:
    """Insert, remove and move words of the language."""
    for _ in range(chance.choice((1, 2, 4))):
        at, kind = chance.randrange(len(data) + 1), chance.random()
        word = chance.choice(words)
        if kind < 0.5:
            data = data[:at] + word + data[at:]
        elif kind < 0.8:
            data = data[:at] + word + data[at + len(word) :]
        elif kind < 0.9:
            data = data[:at] + data[at + chance.randrange(1, 9) :]
        else:
            data = data[:at] + word * chance.choice((10, 1000)) + data[at:]
    return data[:_LONGEST]


def feed(
    target: Target, seeds: Sequence[bytes], *, seed: int, first: int, seconds: float, memory: int
) -> Tally:
    """Run inputs from number `first` for that many seconds; a child may use `memory` bytes more
    than at its start."""
    tally = Tally()
    end = time.monotonic() + seconds
    number = first
    place = mmap.mmap(-1, _PLACE.size)
    while time.monotonic() < end:
        reading, writing = os.pipe()
        scratch = tempfile.mkdtemp(
            prefix="fuzz-", dir=_SCRATCH if os.path.isdir(_SCRATCH) else None
        )
        child = os.fork()
        if not child:
            os.close(reading)
            tempfile.tempdir = scratch
            numbers = range(number, number + _BATCH)
            _be_the_child(target, seeds, seed, numbers, writing, place, end, memory)
        os.close(writing)
        with open(reading, "rb") as lines:
            told = [json.loads(line) for line in lines]
        _, status, used = os.wait4(child, 0)
        shutil.rmtree(scratch, ignore_errors=True)
        tally.cpu_seconds += used.ru_utime + used.ru_stime
        (at,) = _PLACE.unpack(place[:])
        for one in told:
            data = input_of(target, seeds, seed, one["number"])
            _note(tally, Found(one["number"], one["error"], one["trace"], data))
        if status:
            how = os.waitstatus_to_exitcode(status)
            why = signal.Signals(-how).name if how < 0 else f"exit code {how}"
            data = input_of(target, seeds, seed, at)
            _note(tally, Found(at, f"the process has ended with {why}", "", data))
        tally.inputs += at + 1 - number
        number = at + 1
    return tally


def _note(tally: Tally, found: Found) -> None:
    tally.found.setdefault(found.kind, found)
    tally.times[found.kind] = tally.times.get(found.kind, 0) + 1


def _be_the_child(
    target: Target,
    seeds: Sequence[bytes],
    seed: int,
    numbers: range,
    writing: int,
    place: mmap.mmap,
    end: float,
    memory: int,
) -> NoReturn:
    code = 1
    try:
        place[:] = _PLACE.pack(numbers.start)
        logging.disable()
        target.prepare()
        _limit_memory(memory)
        signal.signal(signal.SIGPROF, _give_up)
        signal.signal(signal.SIGALRM, _give_up)
        for number in numbers:
            place[:] = _PLACE.pack(number)
            data = input_of(target, seeds, seed, number)
            problem = _problem(target, data)
            if problem is not None:
                line = {"number": number, "error": problem[0], "trace": problem[1]}
                os.write(writing, json.dumps(line).encode() + b"\n")
            if time.monotonic() > end:
                break
        code = 0
    finally:
        os._exit(code)


def _problem(target: Target, data: bytes) -> tuple[str, str] | None:
    """(error, where) of an input that breaks an invariant."""
    signal.setitimer(signal.ITIMER_PROF, target.seconds)
    signal.setitimer(signal.ITIMER_REAL, target.seconds * _HANGS)
    try:
        target.check(data)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500], traceback.format_exc()[-4000:]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TooSlowError


def _limit_memory(more: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + more
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
