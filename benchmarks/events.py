"""Events over many scenes, and over an hour of one camera, against DuckDB and sqlite3.

The scenes are like those of CLEVRER: 3 to 6 objects in 128 frames, with exact tracks.  Each query
is timed in CPU seconds of this process, from the call to the list of events, so that vfsd's time
includes reading the boxes from the catalog.  DuckDB has one thread and the boxes in memory; sqlite3
has the boxes of the first scenes only.  All answers are compared: scenes, objects
and the frames at which they were first found.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import arguments, finish, table
from benchmarks.million_frames import put
from vfsd.api.store import Store
from vfsd.core.detections import DetectionColumns, Floats, Source

WIDTH, HEIGHT = 480, 320
FRAMES = 128
COLORS = ("red", "gray", "blue", "green", "brown", "cyan", "purple", "yellow")
SHAPES = ("cube", "sphere", "cylinder")
LABELS = tuple(f"{color} {shape}" for color in COLORS for shape in SHAPES)
SQLITE_SCENES = 300
BOUND_SCENES, BOUND_HOUR, BOUND_RATIO = 15.0, 6.0, 2.0
HOUR, SPAN = 90_000, 300
_RIGHT, _TOP = "4000x4000+240+0", "4000x160+0+0"


class EventQuery(NamedTuple):
    """An event in the language of vfsd, and the words in the labels of its variables."""

    text: str
    words: Mapping[str, str]  #: "": any label

    def variables(self) -> dict[str, list[str]]:
        return {
            name: [label for label in LABELS if word in label] for name, word in self.words.items()
        }


QUERIES = {
    "SQ1": EventQuery(
        f"far(a, b, 3) & inside(b, {_RIGHT}) for 15f; below(a, b) & near(a, b, 1);"
        f" far(a, b, 3) & inside(b, {_RIGHT}) for 5f",
        {"a": "", "b": ""},
    ),
    "far, then near": EventQuery("far(a, b, 3); near(a, b, 1)", {"a": "red", "b": "cylinder"}),
    "far for 25f, then near and a third": EventQuery(
        f"far(a, b, 3) for 25f; near(a, b, 1) & inside(c, {_RIGHT}) & inside(c, {_TOP})",
        {"a": "red", "b": "cylinder", "c": ""},
    ),
    "three steps, three objects": EventQuery(
        f"above(a, b) & inside(c, {_RIGHT}); below(a, b) & left_of(a, b);"
        f" near(a, c, 1) & inside(a, {_TOP}) for 10f",
        {"a": "cube", "b": "", "c": "sphere"},
    ),
}

Answer = dict[tuple[int, ...], int]
"""The end of the first event of each scene and its objects, by variable."""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--scenes", type=int, default=10_000)
    parser.add_argument("--tracks", type=int, default=2_700, help="of the hour")
    options = parser.parse_args()
    figures = {
        "scenes": measure(scenes(options.scenes), options.scenes, FRAMES),
        "hour": measure(hour(options.tracks), 1, HOUR),
    }
    heading = ("query", "events", "vfsd s", "duckdb s", "sqlite3 s", "vfsd s, these scenes")
    for what, measured in figures.items():
        print(f"{what}: {measured['boxes']} boxes")
        print(table(heading, [(name, *one.values()) for name, one in measured["queries"].items()]))
    bounds = {"scenes": BOUND_SCENES, "hour": BOUND_HOUR}
    passed = all(
        one["vfsd"] <= bounds[what] and one["vfsd"] <= BOUND_RATIO * one["duckdb"]
        for what, measured in figures.items()
        for one in measured["queries"].values()
    )
    finish(options, "events", figures, passed=passed)


def scenes(count: int) -> Floats:
    """Rows of scene, frame, object, label, x1, y1, x2, y2, in that order."""
    rng = np.random.default_rng(0)
    made = []
    for scene in range(count):
        objects = int(rng.integers(3, 7))
        homes = rng.uniform([60, 60], [WIDTH - 60, HEIGHT - 60], (objects, 2))
        kinds = rng.choice(len(LABELS), objects, replace=False)
        for number in range(objects):
            first = 0 if rng.random() < 0.5 else int(rng.integers(0, FRAMES // 3))
            end = FRAMES if rng.random() < 0.5 else int(rng.integers(FRAMES // 2, FRAMES + 1))
            goal = homes[number]
            if rng.random() < 0.6:
                goal = homes[rng.integers(objects)] + rng.normal(0, 15, 2)
            made.append(_track(scene, first, end, number, kinds[number], homes[number], goal, rng))
    return _sorted(np.concatenate(made))


def hour(tracks: int) -> Floats:
    """The rows of an hour of one camera, as those of one scene."""
    rng = np.random.default_rng(1)
    made = []
    for number in range(tracks):
        first = int(rng.integers(0, HOUR - SPAN))
        end = first + int(rng.integers(SPAN // 2, SPAN + 1))
        start, goal = rng.uniform([60, 60], [WIDTH - 60, HEIGHT - 60], (2, 2))
        kind = int(rng.integers(len(LABELS)))
        made.append(_track(0, first, end, number, kind, start, goal, rng))
    return _sorted(np.concatenate(made))


def _track(
    scene: int,
    first: int,
    end: int,
    number: int,
    kind: int,
    start: Any,
    goal: Any,
    rng: np.random.Generator,
) -> Floats:
    """Return the rows of an object that moves from one place to another, and perhaps back."""
    along = np.linspace(0, 1, end - first)[:, None]
    if rng.random() < 0.3:
        along = 1 - abs(2 * along - 1)
    centers = start + (goal - start) * along * along * (3 - 2 * along)
    half = (rng.uniform(28, 60) * (0.7 + 0.6 * centers[:, 1] / HEIGHT) / 2)[:, None]
    same = np.ones(end - first)
    rows: Floats = np.column_stack(
        [
            *(scene * same, np.arange(first, end), number * same, kind * same),
            *((centers - half).round(3), (centers + half).round(3)),
        ]
    )
    return rows


def _sorted(rows: Floats) -> Floats:
    return rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]


def measure(rows: Floats, videos: int, frames: int) -> dict[str, Any]:
    import duckdb

    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "store") as store:
        fill(store, rows, videos, frames)
        server = duckdb.connect()
        server.execute("SET threads = 1")
        server.register("rows", {f"c{at}": rows[:, at] for at in range(8)})
        names = ["vid", "fid", "oid", "kind", "x1", "y1", "x2", "y2"]
        columns = ", ".join(
            f"c{at}::{'INT' if at < 4 else 'DOUBLE'} {name}" for at, name in enumerate(names)
        )
        server.execute(f"CREATE TABLE obj AS SELECT {columns} FROM rows")
        some = rows[rows[:, 0] < SQLITE_SCENES]
        lite = sqlite3.connect(":memory:")
        lite.execute(f"CREATE TABLE obj ({', '.join(names)})")
        lite.executemany("INSERT INTO obj VALUES (?, ?, ?, ?, ?, ?, ?, ?)", some.tolist())
        lite.execute("CREATE INDEX ix ON obj (vid, fid)")
        lite.execute("ANALYZE")
        measured = {name: compare(store, query, server, lite) for name, query in QUERIES.items()}
    return {"videos": videos, "boxes": len(rows), "queries": measured}


def fill(store: Store, rows: Floats, videos: int, frames: int) -> None:
    catalog = store.catalog
    for number in range(videos):
        put(catalog, frames, name=f"{number:05}.mp4")
    ids = {int(one.name[:5]): one.id for one in catalog.find()}
    bounds = np.searchsorted(rows[:, 0], np.arange(videos + 1)).tolist()
    names = np.array(LABELS)
    with catalog.writing() as change:
        for number, (first, end) in enumerate(itertools.pairwise(bounds)):
            part = rows[first:end]
            columns = DetectionColumns.of(
                part[:, 1].astype(np.int64),
                names[part[:, 3].astype(np.int64)],
                part[:, 4:],
                None,
                part[:, 2].astype(np.int64),
            )
            change.detections.add(ids[number], columns, Source("scene"))
            change.detections.mark_examined(ids[number], [range(frames)], Source("scene"))


def compare(
    store: Store, query: EventQuery, server: Any, lite: sqlite3.Connection
) -> dict[str, float]:
    """The CPU seconds of each contestant, whose answers are equal."""
    text = sql(query)
    start = time.process_time()
    mine = found(store, query, "**")
    mid = time.process_time()
    theirs = first_ends(server.execute(text).fetchall())
    end = time.process_time()
    assert mine == theirs, (query, len(mine), len(theirs))
    figures = {"events": float(len(mine)), "vfsd": mid - start, "duckdb": end - mid}
    start = time.process_time()
    small = first_ends(lite.execute(text).fetchall())
    mid = time.process_time()
    part = found(store, query, "00[012]??.mp4")
    figures |= {"sqlite3": mid - start, "vfsd_some": time.process_time() - mid}
    assert small == part == {key: at for key, at in mine.items() if key[0] < SQLITE_SCENES}
    return figures


def found(store: Store, query: EventQuery, names: str) -> Answer:
    variables: dict[str, Any] = query.variables()
    events = store.events(query.text, names, **variables)
    return first_ends(
        (
            int(one.video[:5]),
            *(one.tracks[name] or 0 for name in sorted(variables)),
            one.frames.stop,
        )
        for one in events
    )


def first_ends(rows: Iterable[Any]) -> Answer:
    """Rows are of a scene, the object of each variable, and the end."""
    ends: Answer = {}
    for *key, end in rows:
        ends[tuple(key)] = min(end, ends.get(tuple(key), end))
    return ends


# -- the same in SQL, as Zhang et al. do it: frames, runs by a window function, earliest ends


def sql(query: EventQuery) -> str:
    made: list[str] = []
    known: list[str] = []
    kinds = {
        name: ", ".join(str(LABELS.index(label)) for label in labels)
        for name, labels in query.variables().items()
    }
    for at, step in enumerate(query.text.split(";")):
        length = re.search(r" for (\d+)f", step)
        frames = int(length[1]) if length else 1
        terms = re.findall(r"(\w+)\(([^()]*)\)", step)
        mine = sorted({part for _, inner in terms for part in inner.split(", ") if part in kinds})
        wanted = [f"{name}.kind IN ({kinds[name]})" for name in mine]
        for one, other in itertools.combinations(mine, 2):
            wanted += [f"{one}.vid = {other}.vid", f"{one}.fid = {other}.fid"]
            wanted.append(f"{one}.oid <> {other}.oid")
        wanted += [_condition(name, inner.split(", ")) for name, inner in terms]
        first = mine[0]
        objects = ", ".join(f"{name}.oid AS {name}" for name in mine)
        made.append(
            f"g{at} AS MATERIALIZED (SELECT {first}.vid, {first}.fid, {objects} FROM "
            f"{', '.join(f'obj {name}' for name in mine)} WHERE {' AND '.join(wanted)})"
        )
        rows = f"g{at}"
        if known:
            new = [name for name in mine if name not in known]
            joined = ["p.vid = q.vid", "p.t < q.fid"]
            joined += [f"p.{name} = q.{name}" for name in mine if name in known]
            joined += [f"p.{old} <> q.{name}" for name in new for old in known]
            chosen = [*(f"p.{name}" for name in known), *(f"q.{name}" for name in new)]
            made.append(
                f"f{at} AS MATERIALIZED (SELECT p.vid, q.fid, {', '.join(chosen)} "
                f"FROM c{at - 1} p, g{at} q WHERE {' AND '.join(joined)})"
            )
            rows, known = f"f{at}", known + new
        else:
            known = mine
        keys = ", ".join(["vid", *known])
        made.append(
            f"w{at} AS (SELECT {keys}, fid, lead(fid, {frames - 1}) OVER "
            f"(PARTITION BY {keys} ORDER BY fid) AS e FROM {rows})"
        )
        made.append(
            f"c{at} AS MATERIALIZED (SELECT {keys}, min(e) AS t FROM w{at} "
            f"WHERE e = fid + {frames - 1} GROUP BY {keys})"
        )
    last = len(query.text.split(";")) - 1
    return f"WITH {', '.join(made)} SELECT vid, {', '.join(sorted(known))}, t + 1 FROM c{last}"


def _condition(name: str, words: list[str]) -> str:
    a, b = words[0], words[1]
    x, y = (f"({{0}}.{low} + {{0}}.{high}) / 2" for low, high in (("x1", "x2"), ("y1", "y2")))
    if name == "inside":
        sizes = re.fullmatch(r"(\d+)x(\d+)\+(\d+)\+(\d+)", b)
        assert sizes is not None
        width, height, left, top = map(int, sizes.groups())
        return (
            f"{x.format(a)} >= {left} AND {x.format(a)} < {left + width} AND "
            f"{y.format(a)} >= {top} AND {y.format(a)} < {top + height}"
        )
    if name in ("near", "far"):
        apart = " + ".join(f"power({one.format(a)} - {one.format(b)}, 2)" for one in (x, y))
        unit = f"({a}.x2 - {a}.x1 + {b}.x2 - {b}.x1) / 2"
        return f"sqrt({apart}) / ({unit}) {'<' if name == 'near' else '>'} {words[2]}"
    one, sign = {"left_of": (x, "<"), "above": (y, "<"), "below": (y, ">")}[name]
    return f"{one.format(a)} {sign} {one.format(b)}"


if __name__ == "__main__":
    main()
