"""Kills, power cuts and failing calls at every call to the files of a store, in every operation.

Each operation is run once to count its calls that change files, and again for each point:
killed before one of these calls, or left with what a disk may hold when the power is cut after it,
or with one or all calls of some kind failing from there on (ENOSPC, EDQUOT, EIO, EMFILE).  Then the
program opens the store, repairs it like the next mount or `fsck --repair`, and checks everything.

losses     completed work is missing or differs; data is neither in its state before a step nor in
its state after it; pixels differ; a finding of `fsck` is not repaired dangling   rows without bytes
or with wrong sums, before any repair orphans    bytes that nothing refers to after `gc` clean
the error is a vfsd error or has the errno, and has a message unchanged  all rows and bytes of the
store are the same, except times and logs again      the store is in order afterwards, and the same
operation succeeds
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import arguments, finish, folder_option, table
from tests.fault import layer

_COLUMNS = (
    *("operation", "calls", "kills", "cuts", "losses", "dangling", "orphans"),
    *("errors", "clean", "unchanged", "again", "seconds"),
)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of each operation, at most")
    parser.add_argument("--cuts", type=int, default=40, help="of the power; of each operation")
    parser.add_argument("--errors", type=int, default=40, help="injected into each operation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", metavar="OPERATION", help="may be repeated")
    parser.add_argument(
        "--part", type=_part, default=(1, 1), metavar="N/M", help="every M-th operation"
    )
    folder_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if not layer.is_there():
            restart(Path(folder))
        from tests.fault import operations

        unknown = set(options.only or ()) - {one.name for one in operations.ALL}
        if unknown:
            known = ", ".join(one.name for one in operations.ALL)
            parser.error(f"no operation is called {', '.join(sorted(unknown))}: {known}")
        run(options, Path(folder))


def _part(text: str) -> tuple[int, int]:
    """Raises `ValueError`, which argparse reports as an invalid option."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def restart(folder: Path) -> None:
    """Run this program again under the layer, and exit with its status."""
    library = layer.build(folder)
    command = [sys.executable, "-m", "benchmarks.faults", *sys.argv[1:]]
    status = os.spawnve(os.P_WAIT, sys.executable, command, layer.environment(library))
    sys.exit(status)


def run(options: argparse.Namespace, folder: Path) -> None:
    from tests.fault import operations
    from tests.fault.campaign import Campaign, Row, in_child

    inputs = folder / "inputs"
    inputs.mkdir()
    in_child(lambda: operations.make_inputs(inputs))
    part, parts = options.part
    chosen = [operations.named(name) for name in options.only or ()] or list(operations.ALL)
    chosen = chosen[part - 1 :: parts]
    warm_up(folder / "warm", inputs)
    rows: list[Row] = []
    for operation in chosen:
        start = time.monotonic()
        campaign = Campaign(operation, folder, inputs, options.seed)
        row = campaign.row
        row.problems += [f"{operation.name}: the layer missed {name}" for name in campaign.unseen]
        rows.append(row)
        for plan in (
            campaign.kill(options.kills),
            campaign.cut(options.cuts),
            campaign.fail(options.errors),
        ):
            for _ in plan:
                tell(row)
        row.seconds = time.monotonic() - start
        tell(row, end="\n")
        for problem in row.problems:
            print(problem, file=sys.stderr, flush=True)
    figures = [asdict(row) for row in rows]
    print(table(_COLUMNS, [[figure[name] for name in _COLUMNS] for figure in figures]))
    total = {name: sum(figure[name] for figure in figures) for name in _COLUMNS[1:]}
    print(f"\nall: {total}")
    passed = not any(row.problems for row in rows)
    finish(options, "faults", {"rows": figures, "total": total}, passed=passed)


def warm_up(folder: Path, inputs: Path) -> None:
    """Run once the work that every child does, so that children need no imports."""
    from tests.fault.aftermath import Expected, examine
    from tests.fault.operations import Place, named
    from tests.fault.state import State

    place, nothing = Place(folder, inputs), State(frozenset(), frozenset(), frozenset())
    operation = named("rm")
    operation.prepare(place)
    expected = Expected([nothing], 0, 0, has_spool=True)
    examine(operation, place, expected, mounts=True, deep=True, again=False)


def tell(row: object, end: str = "") -> None:
    if sys.stderr.isatty() or end:
        figures = asdict(row)  # type: ignore[call-overload]
        text = ", ".join(f"{figures[name]} {name}" for name in _COLUMNS[1:-1])
        print(f"\r{figures['operation']}: {text}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
