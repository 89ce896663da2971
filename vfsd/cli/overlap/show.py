"""``vfsd overlap show``: two videos of the same place put together."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import facts, print_json, print_line, shown
from vfsd.cli.overlap.records import FIELDS, record
from vfsd.cli.selecting import single_path
from vfsd.cli.session import Session
from vfsd.cli.values import a_time
from vfsd.core.timebase import human_bytes
from vfsd.errors import ExistsError, NotFoundError, OutOfRangeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vfsd.api.store import Store
    from vfsd.overlap.search import VideoPair

_JOINABLE = ("copy", "join", "partly")
_ENDINGS = (".png", ".jpg", ".jpeg")


@define(
    "overlap show",
    examples=[
        "vfsd -s videos overlap show cam1/traffic.mp4 cam1/traffic.mp4",
        "vfsd -s videos overlap show cam1/traffic.mp4 cam1/traffic.mp4 -o both.png --at 1",
    ],
    fields=FIELDS,
    exits=[NotFoundError, ExistsError, OutOfRangeError],
)
@click.argument("one", metavar="VIDEO")
@click.argument("other", metavar="VIDEO")
@click.option(
    "-o", "--out", metavar="FILE", help="Draw both put together: a .png or .jpg to write."
)
@click.option(
    "--at", "moment", metavar="TIME", type=a_time, help="Their frames at this time are drawn."
)
@click.option(
    "-f",
    "--overwrite",
    "--replace",
    "replace",
    is_flag=True,
    help="Write over a FILE that is there.",
)
@click.pass_obj
def command(
    session: Session,
    one: str,
    other: str,
    out: str | None,
    moment: Fraction | None,
    replace: bool,
) -> None:
    """Show how two videos of one place lie to each other.

    Pairs that `overlap find` refuses are shown as well.  The picture has the left frame in its
    place and the right one projected to it, with the left one's exposure; where both are it has the
    mean of the two.  Lines are drawn around what each sees, at the seam (where the left frame would
    be cut) and at the edge (where the right one would).
    """
    if out is not None and Path(out).suffix.lower() not in _ENDINGS:
        raise UsageError(
            f"the picture must be a .png or .jpg file, got {out!r}", hint="name a .png or .jpg"
        )
    from vfsd.overlap.cameras import overlap

    root, names = session.places([one, other])
    with session.opened(root) as store:
        names = [single_path(store.catalog, name, "overlap show") for name in names]
        pair = overlap(store, *names)
        if pair is None:
            raise NotFoundError(
                f"{names[0]!r} and {names[1]!r} do not show the same place",
                hint="see `vfsd overlap find` for pairs that do",
            )
        if out is not None:
            _draw(session, store, pair, moment, Path(out), replace)
        if session.json:
            print_json(record(pair))
            return
        for line in facts(_facts(pair)):
            print_line(line)


def _facts(pair: VideoPair) -> Iterator[tuple[str, str]]:
    found = pair.overlap
    seen = found.agreement
    verdict = f"{found.verdict}: {found.why}" if found.why else str(found.verdict)
    yield "left", shown(pair.left.name)
    yield "right", shown(pair.right.name)
    yield "verdict", verdict
    yield "cameras", "fixed to each other" if found.fixed else "moving against each other"
    yield "both see", f"{found.shares[0]:.0%} of the left, {found.shares[1]:.0%} of the right"
    yield "agree", f"{seen.psnr_left:.1f} dB on the left, {seen.psnr_right:.1f} dB on the right"
    if seen.movement is not None:
        yield "movement", f"{seen.movement:.2f} (1: the same on both, 0: other times)"
    if found.cut is not None:
        yield "cut", f"left at column {found.cut.seam}, right at column {found.cut.edge}"
    if found.common:
        yield "in common", f"about {human_bytes(found.common)}, {pair.common:.0%} of both"
    if found.verdict in _JOINABLE:
        yield "saves", "nothing while both originals stay: what is joined is stored besides"


def _draw(
    session: Session,
    store: Store,
    pair: VideoPair,
    moment: Fraction | None,
    out: Path,
    replace: bool,
) -> None:
    from vfsd.codecs.encoding.stills import BEST_JPEG, jpeg, png
    from vfsd.disk.atomic_write import whole_file
    from vfsd.overlap.overlap_image import draw_pair

    time = pair.overlap.times[0] if moment is None else moment
    picture = draw_pair(store.tools, pair, time)
    data = png(picture) if out.suffix.lower() == ".png" else jpeg(picture, quantiser=BEST_JPEG)
    with whole_file(out, replace) as file:
        file.write(data)
    session.remark(f"both at {float(time):g} s, to {shown(str(out))}")
