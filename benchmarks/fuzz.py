"""Fuzzes all parsers and decoders with damaged and crafted input: ``benchmarks.fuzz TARGET``.

A target may raise only VfsdError, in bounded time and memory; each target also checks invariants
of accepted input.  Inputs depend on ``--seed`` and a number alone, counted from ``--first``.  They
are mutations of the target's own seeds and of the files in ``--seeds``.  The first input of each
kind of failure is written to ``--findings``.  ``--atheris`` guides the mutations by coverage (pip
install 'vfsd[fuzz]'), and stops at the first finding.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

from benchmarks.common import arguments, directory, finish, table
from benchmarks.fuzzing import media, stores, texts
from benchmarks.fuzzing.engine import Tally, Target, feed

TARGETS = {target.name: target for target in (*media.TARGETS, *texts.TARGETS, *stores.TARGETS)}


def main() -> None:
    options = _parser().parse_args()
    figures: dict[str, dict[str, Any]] = {}
    passed = True
    for name in options.target or list(TARGETS):
        target = TARGETS[name]
        seeds = target.seeds()
        if options.seeds is not None:
            seeds += [path.read_bytes() for path in sorted(options.seeds.iterdir())]
        if options.atheris:
            _with_atheris(target, seeds, options.seconds)
        tally = feed(
            target,
            seeds,
            seed=options.seed,
            first=options.first,
            seconds=options.seconds,
            memory=options.memory << 20,
        )
        _keep(tally, name, options.findings)
        figures[name] = {
            "inputs": tally.inputs,
            "cpu_seconds": round(tally.cpu_seconds, 1),
            "findings": {kind: tally.times[kind] for kind in tally.found},
        }
        passed = passed and not tally.found
    rows = [
        (name, TARGETS[name].what, told["inputs"], told["cpu_seconds"], len(told["findings"]))
        for name, told in figures.items()
    ]
    print(table(("target", "what", "inputs", "CPU seconds", "findings"), rows))
    finish(options, "fuzz", figures, passed=passed)


def _parser() -> argparse.ArgumentParser:
    parser = arguments(__doc__)
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS], help="default: all of them")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seeds", type=directory, help="a folder of more files to begin with")
    parser.add_argument("--memory", type=int, default=4096, help="MiB that inputs may take")
    parser.add_argument("--findings", type=Path, help="a folder for what breaks something")
    parser.add_argument("--atheris", action="store_true", help="let coverage lead the way")
    return parser


def _keep(tally: Tally, name: str, folder: Path | None) -> None:
    for kind, found in tally.found.items():
        print(f"{name} {found.number}: {found.error} ({tally.times[kind]} times)", file=sys.stderr)
        print(found.trace, file=sys.stderr)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}-{found.number}").write_bytes(found.data)
            (folder / f"{name}-{found.number}.txt").write_text(f"{found.error}\n{found.trace}")


def _with_atheris(target: Target, seeds: list[bytes], seconds: float) -> None:
    """Fuzz with atheris; never returns."""
    import tempfile

    import atheris

    corpus = Path(tempfile.mkdtemp(prefix="fuzz-corpus-"))
    for number, seed in enumerate(seeds):
        (corpus / str(number)).write_bytes(seed)
    target.prepare()
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and (one.__module__ or "").startswith("vfsd."):
            atheris.instrument_func(one)
    words = [sys.argv[0], str(corpus), f"-max_total_time={int(seconds)}", "-rss_limit_mb=4096"]
    atheris.Setup(words, target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
