"""When to tile which region: TASM's policies and ours on its workloads W1 to W6, simulated.

The experiment of TASM's figure 12.  Nothing is encoded.  Boxes are those of generated scenes (cars,
persons and lights in front of a fixed camera for W1 to W4; dense scenes of five classes for W5 and
W6) and, with `--filmed`, of looped filmed clips.  Costs of decoding and encoding come from the cost
model.  Under every policy, each SOT of one second is read from tiles or from the original,
whichever is cheaper.

TASM's policies tile the whole frame, because its tiles replace the original.  Ours is shown with
whole frames, and with the wanted tiles only, which suffice if the original stays.  The row "regret
with wanted tiles" shows the gain of that alone.

The report has the cumulative cost of decoding and of making tiles; 1 is the cost of reading without
tiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import arguments, finish, footage, table
from benchmarks.contestants import (
    CONTESTANTS,
    OURS,
    OURS_WHOLE,
    PAPERS,
    RATES,
    UNTILED,
    Case,
    Contestant,
    Worlds,
    ablated,
    bills,
    by_eta,
    misled,
)
from benchmarks.filmed import filmed
from benchmarks.simulated import DENSE, SPARSE, WORKLOADS, dense, sparse
from benchmarks.training import WORST, above_best, training_costs
from vfsd.tiling.policy import LedgerParameters, TilesOnly
from vfsd.views import line_chart

UNHELPFUL_BOUND = 1.02
COLOURS: dict[str, line_chart.Colour] = {
    "none": (120, 120, 120),
    "known": (170, 170, 60),
    "all": (200, 110, 30),
    "more": (150, 70, 170),
    "regret": (30, 110, 200),
    "regret, wanted tiles": (40, 170, 190),
    OURS_WHOLE.name: (90, 190, 120),
    OURS.name: (200, 30, 50),
}
"""RGB; what has none is not drawn."""

Curves = Mapping[str, np.ndarray[Any, Any]]
"""By contestant, (videos, queries): in parts of what all queries take without tiles."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--videos", type=int, default=len(SPARSE), help="of each kind, at most 6")
    parser.add_argument("--seconds", type=int, default=120, help="of sparse and filmed videos")
    parser.add_argument(
        "--dense-seconds",
        type=int,
        nargs="+",
        default=[120],
        help="of dense ones, one length after the other; TASM's last 6 to 45",
    )
    parser.add_argument("--filmed", action="store_true", help="on filmed clips as well, looped")
    parser.add_argument(
        "--encode", type=float, default=1.0, help="multiply the cost of encoding by this"
    )
    parser.add_argument("--tiles-always", action="store_true", help="read as TASM does")
    parser.add_argument("--eta", action="store_true", help="regret with eta 0 to 5")
    parser.add_argument("--wrong", action="store_true", help="policies receive wrong costs")
    parser.add_argument("--ablate", action="store_true", help="ours without each of its terms")
    parser.add_argument("--training", action="store_true", help="W7: random clips, by GOP length")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw workloads.png there")
    options = parser.parse_args()
    worlds = Worlds(TilesOnly() if options.tiles_always else None)
    cases = generated(options)
    found = compared("The policies", worlds, cases, CONTESTANTS)
    figures: dict[str, Any] = {"finals": finals(found), "courses": courses(found)}
    missed = judge(found)
    for wanted, title, who in (
        (options.eta, "Regret by eta", by_eta()),
        (options.ablate, "Ours, wanted tiles, without one of its terms", ablated()),
    ):
        if wanted:
            figures[title] = finals(compared(title, worlds, cases, who))
    if options.wrong:
        who = [one for one in CONTESTANTS if one.name in ("regret", OURS_WHOLE.name, OURS.name)]
        figures["wrong costs"] = finals(compared("Told wrong costs", worlds, cases, who, misled))
    if options.filmed:
        looped = on_film(options)
        if looped:
            shown = compared("Filmed clips, looped", worlds, looped, CONTESTANTS)
            figures["filmed"] = finals(shown)
            missed += [f"filmed {one}" for one in judge(shown)]
        else:
            print("\nno filmed clips with boxes here: set VFSD_FOOTAGE to their folder")
    if options.training:
        figures["W7"], above = training(options.seconds)
        missed += above
    if options.plots:
        options.plots.mkdir(parents=True, exist_ok=True)
        plot(options.plots / "workloads.png", found)
    print("\nmissed: " + "; ".join(missed) if missed else "\nall met")
    finish(options, "workloads", figures, passed=not missed)


def training(seconds: int) -> tuple[dict[str, list[float]], list[str]]:
    """W7 as a table: costs by contestant and number of epochs; and the missed bounds."""
    epochs = (0.25, 1.0, 3.0, 10.0, 30.0)
    found = training_costs(seconds, epochs)
    ratios = above_best(found)
    rows = [(who, *(f"{cost:.1f}" for cost in runs)) for who, runs in found.items()]
    rows.append(("ours / best", *(f"{ratio:.2f}" for ratio in ratios)))
    print("\n### W7: random clips, CPU seconds after so many epochs\n")
    print(table(("", *(f"{one:g}" for one in epochs)), rows), flush=True)
    missed = [
        f"W7: ours {ratio:.2f} <= {WORST:.2f} times the best after {epoch:g} epochs"
        for epoch, ratio in zip(epochs, ratios, strict=True)
        if ratio > WORST
    ]
    return {**found, "ours / best": ratios}, missed


# ----------------------------------------------------------------------------------- cases


def generated(options: argparse.Namespace) -> dict[str, list[Case]]:
    """The workloads on generated scenes; those of dense scenes at each length."""
    numbers = range(options.videos)
    rates = RATES.scaled(decode=1, encode=options.encode)
    few = [sparse(n, SPARSE[n], options.seconds) for n in numbers]
    many = {
        seconds: [dense(n, DENSE[n], seconds) for n in numbers] for seconds in _lengths(options)
    }
    cases: dict[str, list[Case]] = {}
    for workload in WORKLOADS:
        lengths = {"": few} if workload.is_sparse else _suffixed(many)
        for suffix, videos in lengths.items():
            cases[workload.name + suffix] = [
                Case(video, rates, workload.draw(video, n)) for n, video in enumerate(videos)
            ]
    return cases


def _lengths(options: argparse.Namespace) -> list[int]:
    return list(dict.fromkeys(options.dense_seconds))


def _suffixed(many: Mapping[int, Any]) -> dict[str, Any]:
    """The name with its length, which is omitted for the first length."""
    return {f" ({n} s)" if at else "": each for at, (n, each) in enumerate(many.items())}


def on_film(options: argparse.Namespace) -> dict[str, list[Case]]:
    rates = RATES.scaled(decode=1, encode=options.encode)
    clips = filmed(footage(), options.seconds, rates).values()
    return {
        workload.name: [
            Case(video, rates, workload.draw(video, n)) for n, (video, rates) in enumerate(clips)
        ]
        for workload in WORKLOADS
        if clips
    }


# --------------------------------------------------------------------------------- telling


def compared(
    title: str,
    worlds: Worlds,
    cases: Mapping[str, Sequence[Case]],
    who: Sequence[Contestant],
    run: Callable[[Worlds, Sequence[Case], Sequence[Contestant]], Curves] = bills,
) -> dict[str, Curves]:
    """Results by workload, shown as a table."""
    found = {}
    for name, these in cases.items():
        found[name] = run(worlds, these, who)
        print(f"{title}: {name} done", flush=True)
    ends = finals(found)
    rows = [
        (who, *("{1:.2f} ({0:.2f}-{2:.2f})".format(*ends[name][who]) for name in ends))
        for who in next(iter(ends.values()))
    ]
    print(f"\n### {title}\n\nMedian (quartiles) at the end.\n")
    print(table(("", *found), rows), flush=True)
    return found


def finals(found: Mapping[str, Curves]) -> dict[str, dict[str, list[float]]]:
    """Quartiles of the total cost of all queries."""
    return {
        name: {
            who: [round(float(part), 4) for part in np.percentile(runs[:, -1], (25, 50, 75))]
            for who, runs in these.items()
        }
        for name, these in found.items()
    }


def courses(found: Mapping[str, Curves]) -> dict[str, dict[str, Any]]:
    """The course of each median: after how many queries it stays below no tiles (None: never), and
    its largest excess, in untiled queries.

    The result is shown as a table.
    """
    told: dict[str, dict[str, Any]] = {}
    for name, these in found.items():
        told[name] = {}
        for who, runs in these.items():
            above = np.median(runs - these[UNTILED.name], axis=0)
            below = len(above) - int(np.argmax(above[::-1] >= 0)) if (above >= 0).any() else 0
            told[name][who] = {
                "below after": None if below == len(above) else below,
                "most above": round(float(above.max() * len(above)), 2),
            }
    rows = [
        (who, *(f"{_after(told[name][who])}, {told[name][who]['most above']:.1f}" for name in told))
        for who in next(iter(told.values()))
        if who != UNTILED.name
    ]
    print("\n### After which query below no tiles, for good; untiled queries above them at most\n")
    print(table(("", *told), rows), flush=True)
    return told


def _after(course: Mapping[str, Any]) -> str:
    return "never" if course["below after"] is None else str(course["below after"])


def plot(path: Path, found: Mapping[str, Curves]) -> None:
    """All workloads in one picture."""
    panels = []
    for name, these in found.items():
        shown = {who: these[who] for who in COLOURS if who in these}
        highest = max(float(np.percentile(runs, 75, axis=0).max()) for runs in shown.values())
        panels.append(
            line_chart.panel(
                f"{name}: decoding and making tiles, all together",
                "queries",
                shown,
                COLOURS,
                highest=min(max(1.2, 1.05 * highest), 1.8),
                above="1 is what reading all takes without tiles",
            )
        )
    line_chart.write(path, panels, columns=2)


def judge(found: Mapping[str, Curves]) -> list[str]:
    """The missed bounds."""
    missed = []
    for name, these in found.items():
        last = {who: float(np.median(runs[:, -1])) for who, runs in these.items()}
        best = min(last[one.name] for one in PAPERS)
        if last[OURS.name] > best:
            missed.append(f"{name}: ours {last[OURS.name]:.4f} <= TASM's best {best:.4f}")
        most = float((these[OURS.name] / these[UNTILED.name]).max())
        if most > LedgerParameters().bound_untiled:
            missed.append(
                f"{name}: ours never above {LedgerParameters().bound_untiled:g}, was {most:.2f}"
            )
        if name.startswith("W5"):
            missed += [
                f"{name}: {who.name} {last[who.name]:.3f} <= {UNHELPFUL_BOUND}"
                for who in (OURS, OURS_WHOLE)
                if last[who.name] > UNHELPFUL_BOUND
            ]
    return missed


if __name__ == "__main__":
    main()
