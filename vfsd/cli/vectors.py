"""``vfsd vectors``: vectors that models gave frames; ``vfsd sample``: what to label next."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define, replace_option
from vfsd.cli.labels import source_options
from vfsd.cli.options import time_value
from vfsd.cli.output import print_json, print_table, printable
from vfsd.cli.session import Session, select_records, select_videos
from vfsd.core.timebase import clock_text
from vfsd.errors import (
    ExistsError,
    ExtraMissingError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OutOfRangeError,
    RefusedMediaError,
    UsageError,
)

if TYPE_CHECKING:
    from vfsd.api.store import Store
    from vfsd.api.vector_search import NeighbourList
    from vfsd.core.detections import Source
    from vfsd.core.vectors import VectorSummary

_NAME = {"name": "path from the root of the store"}
_FRAMES = {
    **_NAME,
    "frames": "[first, end) of the frames",
    "view": "name of the view with these frames, without its ending",
}


@define(
    "vectors add",
    examples=[
        "vfsd -s videos vectors add cam1/traffic.mp4 clip.npz --source clip --model ViT-B/32",
        "vfsd -s videos vectors add cam1/traffic.mp4 clip.npy --every 10 --source other --json",
    ],
    fields={**_NAME, "vectors": "number of vectors added"},
    exits=[NotFoundError, OutOfRangeError, ExistsError, RefusedMediaError, ExtraMissingError],
)
@click.argument("name", metavar="VIDEO")
@click.argument("file", metavar="FILE")
@source_options("The model; needed.")
@click.option("--every", metavar="N", type=int, help="Frames of each vector of a .npy, in order.")
@click.option(
    "--as",
    "dtype",
    metavar="float16|float32",
    type=click.Choice(["float16", "float32"]),
    help="Round the numbers to this type first.",
)
@replace_option("Replace the earlier vectors of this source.")
def vectors_add(
    session: Session,
    name: str,
    file: str,
    source: str | Source | None,
    every: int | None,
    dtype: str | None,
    replace: bool,
) -> None:
    """Add the vectors that a model gave frames of a VIDEO.

    FILE is a .npz with the arrays `vectors` (N x dimension) and `frames` (N x 2: first and end, or
    N single frames); a Parquet file with the columns first_frame, end_frame and vector; or a .npy
    with --every. Numbers are float16 or float32, and kept exactly. All vectors are added, or none.
    """
    from vfsd.datasets.vector_files import read_vectors, runs_of

    if source is None:
        raise UsageError("--source is missing", hint="name the model, for example --source clip")
    place = session.place(name)
    matrix, frames = read_vectors(Path(file))
    if (frames is None) != (every is not None):
        raise UsageError(
            "a .npy needs --every" if frames is None else "--every requires a .npy",
            hint="the other files have the frames of each vector",
        )
    if dtype is not None:
        matrix = matrix.astype(dtype)
    with session.opened(place.root, writing=True) as store:
        video = store[place.name]
        runs = runs_of(len(matrix), every, len(video)) if every is not None else frames
        assert runs is not None
        count = video.vectors.add(matrix, runs, source, replace=replace)
        session.report(
            {"name": video.name, "vectors": count},
            f"{count} vectors added to {printable(video.name)}",
        )


@define(
    "vectors ls",
    examples=["vfsd -s videos vectors ls", "vfsd -s videos vectors ls 'cam1/*' --json"],
    fields={
        **_NAME,
        "source": "name of the model",
        "model": "its variant, or empty",
        "version": "its version, or empty",
        "vectors": "number of vectors",
        "dimension": "numbers in each",
        "dtype": "float16 or float32",
        "frames": "[lowest, end) of the frames",
    },
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
def vectors_ls(session: Session, names: tuple[str, ...]) -> None:
    """List the vectors of videos, by source.

    A NAME is a name or a pattern; default: all videos. A line has name, source, number, dimension,
    type and frames.
    """
    from vfsd.api.vectors import summaries

    root, paths = session.places_or_root(names)
    rows = []
    with session.opened(root) as store:
        for path, video in select_records(store, paths or ["**"] if len(store) else []).items():
            with store.catalog.reading() as seen:
                found = summaries(seen, video.id)
            for one in found:
                if session.json:
                    print_json(_summary_record(path, one))
                else:
                    rows.append(_summary_cells(path, one))
    print_table(rows, "<<>><<")
    if not rows:
        session.remark("no vectors found")


def _summary_record(path: str, one: VectorSummary) -> dict[str, Any]:
    return {
        "name": path,
        "source": one.source.name,
        "model": one.source.model,
        "version": one.source.version,
        "vectors": one.vectors,
        "dimension": one.dimension,
        "dtype": one.dtype,
        "frames": [one.first_frame, one.end_frame],
    }


def _summary_cells(path: str, one: VectorSummary) -> tuple[str, ...]:
    return (
        printable(path),
        printable(str(one.source)),
        str(one.vectors),
        str(one.dimension),
        one.dtype,
        f"{one.first_frame}-{one.end_frame - 1}",
    )


@define(
    "vectors nearest",
    examples=[
        "vfsd -s videos vectors nearest cam1/traffic.mp4 --frame 40 --source clip",
        "vfsd -s videos vectors nearest query.npz -k 3 --in 'cam1/*' --json",
        "vfsd -s videos vectors nearest query.npz --measure --explain",
    ],
    fields={**_FRAMES, "score": "cosine of the angle between both vectors"},
    variants={
        "--explain": {
            "vectors": "number of vectors searched",
            "compared": "number of those that were compared exactly",
            "recall": "share of the true nearest ones in the answer, or null",
            "text": "the same as a sentence",
        }
    },
    exits=[NotFoundError, RefusedMediaError, IntegrityError],
    listing=True,
)
@click.argument("query", metavar="VIDEO|FILE")
@click.option("--frame", metavar="N", type=int, help="A frame of VIDEO that has a vector.")
@click.option("-k", "count", metavar="N", type=int, default=10, show_default=True, help="Answers.")
@click.option("--in", "names", metavar="NAME", multiple=True, help="Only videos with this name.")
@source_options("The source of the vectors; default: the only one.")
@click.option("--exact", is_flag=True, help="Compare all vectors.")
@click.option("--measure", is_flag=True, help="Compare all as well, to know the recall.")
@click.option("--explain", is_flag=True, help="Only print what the answer is based on.")
def vectors_nearest(
    session: Session,
    query: str,
    frame: int | None,
    count: int,
    names: tuple[str, ...],
    source: str | Source | None,
    exact: bool,
    measure: bool,
    explain: bool,
) -> None:
    """Find the runs of frames with the vectors nearest to one.

    The vector is that of a frame of a VIDEO, or the first one of a FILE (.npy, .npz or .parquet).
    NAME is a name or a pattern. Fewer than 20,000 vectors are all compared. Of more, one bit for
    each number chooses those to compare: --explain says which it was, and --measure what it missed.

    A line has score, name, time and frames.
    """
    from vfsd.datasets.vector_files import read_vectors

    given: Any
    if frame is not None:
        place = session.place(query)
        root, given = place.root, (place.name, frame)
    else:
        root = session.root()
        given = read_vectors(Path(query))[0]
        if given.ndim == 2 and len(given):
            given = given[0]
    with session.opened(root) as store:
        found = store.nearest(
            given,
            count,
            source=source,
            names=names or "**",
            exact=exact,
            measure=measure,
        )
        if explain:
            record = {
                "vectors": found.vectors,
                "compared": found.compared,
                "recall": found.recall,
                "text": found.explain(),
            }
            session.print_result(record, found.explain())
        else:
            _print_neighbours(session, store, found)


def _print_neighbours(session: Session, store: Store, found: NeighbourList) -> None:
    from vfsd.api.sample import span_of

    rows = []
    for one in found:
        first, end = one.frames.start, one.frames.stop
        if session.json:
            frames = {"name": one.video, "frames": [first, end], "view": one.name}
            print_json({**frames, "score": one.score})
            continue
        start, _ = span_of(store[one.video], one.frames)
        rows.append(
            (f"{one.score:.4f}", printable(one.video), clock_text(start), f"{first}-{end - 1}")
        )
    print_table(rows, "><<<")


@define(
    "vectors export",
    examples=[
        "vfsd -s videos vectors export cam1/traffic.mp4 out.npz --source clip",
        "vfsd -s videos vectors export cam1/traffic.mp4 out.parquet --source clip --replace",
    ],
    fields={
        **_NAME,
        "path": "the file",
        "vectors": "number of vectors",
        "size": "bytes of the file",
    },
    exits=[NotFoundError, ExistsError, IntegrityError, NoSpaceError, ExtraMissingError],
)
@click.argument("name", metavar="VIDEO")
@click.argument("file", metavar="FILE")
@source_options("The source of the vectors; default: the only one.")
@replace_option("Replace the file.")
def vectors_export(
    session: Session, name: str, file: str, source: str | Source | None, replace: bool
) -> None:
    """Write the vectors of a VIDEO to a file, by first frame.

    FILE ends with .npz, .parquet or .npy, as for `vfsd vectors add`. The frames are not in a .npy.
    """
    from vfsd.datasets.vector_files import write_vectors

    place = session.place(name)
    with session.opened(place.root) as store:
        found = store[place.name].vectors.get(source)
        size = write_vectors(Path(file), found, replace)
    session.report(
        {"name": place.name, "path": file, "vectors": len(found), "size": size},
        f"{len(found)} vectors written to {file}",
    )


@define(
    "vectors rm",
    examples=[
        "vfsd -s videos vectors rm cam1/traffic.mp4 --source clip",
        "vfsd -s videos vectors rm 'cam1/*' --all --json",
    ],
    fields={**_NAME, "vectors": "number of vectors removed"},
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@source_options("Only those of this source.")
@click.option("--all", "everything", is_flag=True, help="All vectors of the video.")
def vectors_rm(
    session: Session, names: tuple[str, ...], source: str | Source | None, everything: bool
) -> None:
    """Remove vectors of videos.

    A VIDEO is a name or a pattern.
    """
    if (source is None) != everything:
        raise UsageError("give either --source or --all")
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for path, video in select_videos(store, paths).items():
            gone = video.vectors.remove(source)
            session.report(
                {"name": path, "vectors": gone}, f"{gone} vectors removed from {printable(path)}"
            )


@define(
    "sample",
    examples=[
        "vfsd -s videos sample 3 'cam1/*' --unlabelled anna --seed 1",
        "vfsd -s videos sample 3 --far clip --json",
    ],
    fields={**_FRAMES, "span": "[from, to] in seconds"},
    exits=[NotFoundError, IntegrityError],
    listing=True,
)
@click.argument("count", metavar="N", type=int)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--seconds", metavar="SECONDS", type=time_value, help="Length of a run; default: 1.")
@click.option("--unlabelled", metavar="SOURCE", help="Without frames that this source has seen.")
@click.option("--far", metavar="SOURCE", help="Far from those seen, by the vectors of this source.")
@click.option("--seed", metavar="N", type=int, help="The same number gives the same runs.")
def sample(
    session: Session,
    count: int,
    names: tuple[str, ...],
    seconds: Fraction | None,
    unlabelled: str | None,
    far: str | None,
    seed: int | None,
) -> None:
    """Choose N runs of frames to look at or to label next.

    A NAME is a name or a pattern; default: all videos. Runs with a frame that the source of
    --unlabelled has labelled or examined are left out. Without --far, all runs are as likely. With
    it, the vectors farthest from those of seen frames, and from each other, are chosen; a run is
    that of its vector unless --seconds is given.

    A line has name, time and frames.
    """
    root, paths = session.places_or_root(names)
    rows = []
    with session.opened(root) as store:
        for one in store.sample(
            count,
            seconds=seconds,
            names=paths or "**",
            unlabelled=unlabelled,
            how="random" if far is None else "far",
            source=far,
            seed=seed,
        ):
            first, end = one.span
            frames = [one.frames.start, one.frames.stop]
            if session.json:
                span = [float(first), float(end)]
                print_json({"name": one.video, "frames": frames, "view": one.name, "span": span})
                continue
            times = f"{clock_text(first)}-{clock_text(end)}"
            rows.append((printable(one.video), times, f"{frames[0]}-{frames[1] - 1}"))
    print_table(rows, "<<<")
