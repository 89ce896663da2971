"""fio, stress-ng, bonnie++ and dbench, from packages."""

from __future__ import annotations

import json
import re
import shutil

from benchmarks.suites.outcome import NotHereError, Outcome, Place, run

_JOBS: dict[str, tuple[str, ...]] = {
    "random writes": ("--rw=randwrite", "--bs=4k"),
    "mixed sizes": ("--rw=randwrite", "--bsrange=1k-256k", "--bs_unaligned=1"),
    "sequential": ("--rw=write", "--bs=1m"),
    "mixed reads and writes": ("--rw=randrw", "--bs=16k", "--rwmixread=40"),
    "several jobs": ("--rw=randwrite", "--bs=8k", "--numjobs=4"),
    "mapped": ("--rw=randwrite", "--bs=4k", "--ioengine=mmap"),
    "mapped, in sequence": ("--rw=write", "--bs=64k", "--ioengine=mmap"),
    "unbuffered": ("--rw=randwrite", "--bs=4k", "--direct=1"),
    "asynchronous": ("--rw=randwrite", "--bs=4k", "--ioengine=libaio", "--iodepth=8"),
    "vectors": ("--rw=randwrite", "--bs=32k", "--ioengine=pvsync2"),
    "synced": ("--rw=randwrite", "--bs=64k", "--fsync=8", "--size=4m"),
}


def fio(place: Place) -> Outcome:
    """Every block written has a CRC32C and is read back."""
    _need("fio")
    failures, passed, megabytes = [], 0, 0.0
    for number, (name, words) in enumerate(_JOBS.items()):
        place.given.say(name)
        done = run(
            *("fio", f"--name=job{number}", f"--directory={place.at}", "--size=32m"),
            *("--ioengine=psync", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"),
            "--verify_state_save=0",
            *("--fallocate=none", "--end_fsync=1", f"--randseed={number}"),
            *("--output-format=json", *words),
            check=False,
        )
        start = done.stdout.find("{")
        jobs = json.loads(done.stdout[start:])["jobs"] if start >= 0 else []
        if done.returncode or not jobs or any(job["error"] for job in jobs):
            failures.append(f"{name}: {done.stdout[: max(start, 300)].strip()}")
            continue
        passed += 1
        megabytes += sum(job["write"]["io_bytes"] for job in jobs) / (1 << 20)
    note = f"{megabytes:.0f} MiB written and verified"
    return Outcome("jobs", passed, tuple(failures), version=_version("fio"), note=note)


def stress(place: Place) -> Outcome:
    """Every stressor of stress-ng's class filesystem, one after the other, with verification."""
    _need("stress-ng")
    done = run(
        *("stress-ng", "--class", "filesystem", "--sequential", 1, "--verify"),
        *("--metrics-brief", "--timeout", f"{place.given.seconds}s", "--temp-path", place.at),
        check=False,
    )
    lines = done.stdout.splitlines()
    failures = [line.strip() for line in lines if re.search(r"\bfail: +\[", line)]
    skipped = [line.split("] ", 1)[-1] for line in lines if "skipping" in line]
    ran = re.findall(r"metrc: +\[\d+\] ([\w-]+) +(\d+) +\d+\.\d", done.stdout)
    idle = [f"{name}: did nothing that it counts" for name, count in ran if count == "0"]
    # The exit code is 3 if stressors were skipped, unlike for failures.
    if (done.returncode not in (0, 3) and not failures) or not ran:
        failures = lines[-3:]
    passed = len(ran) - len(idle)
    return Outcome("stressors", passed, tuple(failures), (*skipped, *idle), _version("stress-ng"))


def bonnie(place: Place) -> Outcome:
    """Full phases of bonnie++: blocks, seeks, and names created, looked up and deleted in all
    orders."""
    _need("bonnie++")
    words = ("-f", "-s", 64, "-r", 32, "-n", "4:65536:0:8", "-u", "root", "-q")
    text = run("bonnie++", "-d", place.at, *words).stdout
    lines = [line for line in text.splitlines() if line.count(",") > 20]
    if not lines:
        raise AssertionError(text[-2000:])
    return Outcome("runs", len(lines), version=lines[0].split(",")[1])


def dbench(place: Place) -> Outcome:
    """Replay the load of a file server with four client processes."""
    _need("dbench")
    words = ("-t", 2 * place.given.seconds, 4)
    text = run("dbench", "-D", place.at, *words).stdout
    rate = re.search(r"^Throughput (\S+) MB/sec", text, re.MULTILINE)
    if rate is None:
        raise AssertionError(text[-2000:])
    operations = sum(int(n) for n in re.findall(r"^ [A-Z]\w+\s+(\d+)\s", text, re.MULTILINE))
    version = re.search(r"version (\S+)", text)
    note = f"{rate.group(1)} MB/s"
    return Outcome("operations", operations, version=version.group(1) if version else "", note=note)


def _need(program: str) -> None:
    if shutil.which(program) is None:
        raise NotHereError(f"apt install {program}")


def _version(program: str) -> str:
    found = re.search(r"\d+\.[\w.+]+", run(program, "--version", check=False).stdout)
    return found.group(0) if found else ""
