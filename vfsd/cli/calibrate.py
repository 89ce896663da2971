"""``vfsd calibrate``: measure what decoding costs on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, print_line
from vfsd.cli.progress import Progress
from vfsd.cli.session import Session
from vfsd.errors import NoStoreError

if TYPE_CHECKING:
    from vfsd.core.model import MeasuredCost

_HEAD = "codec        start   picture     Mpixel       MB    encode Mpixel      R2"


@define(
    "calibrate",
    examples=["vfsd -s videos calibrate fast", "vfsd -s videos calibrate --show --json"],
    fields={
        "name": "a codec as FFmpeg calls it, or a tile codec",
        "start": "CPU seconds to start at a key picture",
        "picture": "CPU seconds for each picture",
        "pixel": "CPU seconds for each pixel",
        "byte": "CPU seconds for each byte",
        "encode_pixel": "CPU seconds to encode a pixel; null for codecs that tiles are not made in",
        "r2": "share of the variance of decoding times that these explain",
        "samples": "decodes that were timed",
    },
    exits=[NoStoreError],
    listing=True,
)
@click.argument("codecs", nargs=-1, metavar="[CODEC]...")
@click.option("--show", is_flag=True, help="Only tell what was measured before.")
@click.pass_obj
def command(session: Session, codecs: tuple[str, ...], show: bool) -> None:
    """Measure what decoding costs on this host.

    Reads are served from tiles where that costs less than the original, and this tells what it
    costs.  Takes about a minute, in which the machine should have nothing else to do, or a part of
    that for some CODECs only.  What is measured is kept in the catalog, by name of the host, and
    used by all who open the store there.
    """
    from vfsd.core.hostinfo import host_name
    from vfsd.derive.calibrate import calibrate

    with session.opened(session.root(), writing=not show) as store:
        if show:
            known = store.catalog.costs(host_name())
            costs = [cost for cost in known if not codecs or cost.name in codecs]
        else:
            with Progress("calibrating", None, shown=session.shows_progress) as progress:
                costs = calibrate(store.parts, codecs, on_progress=progress.reach)
    if not session.json and costs:
        print_line(_HEAD)
    for cost in costs:
        _print(session, cost)


def _print(session: Session, cost: MeasuredCost) -> None:
    decode = cost.decode
    if session.json:
        print_json(
            {
                "name": cost.name,
                "start": decode.start,
                "picture": decode.picture,
                "pixel": decode.pixel,
                "byte": decode.byte,
                "encode_pixel": cost.encode_pixel,
                "r2": cost.r2,
                "samples": cost.samples,
            }
        )
        return
    encode = "" if cost.encode_pixel is None else f"{cost.encode_pixel * 1e9:.2f} ms"
    print_line(
        f"{cost.name:8} {decode.start * 1e6:6.0f} us {decode.picture * 1e6:6.1f} us"
        f" {decode.pixel * 1e9:7.3f} ms {decode.byte * 1e9:5.0f} ms  {encode:>13} {cost.r2:7.3f}"
    )
