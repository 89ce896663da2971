"""Freed memory is returned to the system."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading

import pytest

from vfsd.core.process_control import MallocTrimmer
from vfsd.core.subprocess_entry import child_environment

_HOLES = """
import os, time
from vfsd.core.process_control import MallocTrimmer, limit_arenas
from vfsd.core.process_control import resident_bytes

limit_arenas()
trimmer = MallocTrimmer(lambda seconds: None)
blocks = [bytearray(b"x") * (1 << 16) for _ in range(4000)]  # too small for mappings of their own
full = resident_bytes(os.getpid())
del blocks[1::2], blocks[1::2]  # others stay between them
end = time.monotonic() + 60
while resident_bytes(os.getpid()) > full - (150 << 20):
    assert time.monotonic() < end, f"not even 150 of {full >> 20} MiB are given back"
    time.sleep(0.05)
trimmer.close()
assert all(block.count(b"x") == len(block) for block in blocks)
"""

_ANSWERS = """
import resource
from vfsd.core.process_control import limit_arenas

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def answer():
    blocks = [bytearray(1 << 19) for _ in range(8)]
    while blocks:
        blocks.pop()

limit_arenas()
answer()
before = faults()
for _ in range(100):
    answer()
assert faults() - before < 8000, f"{faults() - before} pages for 800 blocks"
"""

_HUGE = """
import numpy as np
from vfsd.core.process_control import disable_huge_pages

def huge():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))

disable_huge_pages()
picture = np.ones(64 << 20, np.uint8)
assert picture.sum() == 64 << 20
assert huge() == 0
"""


@pytest.mark.thorough
def test_free_holes_are_returned() -> None:
    subprocess.run([sys.executable, "-c", _HOLES], env=child_environment(), check=True, timeout=90)


def test_memory_is_not_returned_after_each_answer() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("other C libraries do as they like")
    subprocess.run(
        [sys.executable, "-c", _ANSWERS], env=child_environment(), check=True, timeout=90
    )


def test_arrays_use_no_huge_pages() -> None:
    subprocess.run([sys.executable, "-c", _HUGE], env=child_environment(), check=True, timeout=90)


@pytest.mark.thorough
def test_trim_runs_repeatedly_when_idle() -> None:
    asked = threading.Semaphore(0)
    trimmer = MallocTrimmer(lambda seconds: asked.release())
    for _ in range(2):
        assert asked.acquire(timeout=30)
    trimmer.close()
