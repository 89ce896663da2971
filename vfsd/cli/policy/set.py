"""``vfsd policy set``: what may become of originals."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.policy.common import POLICY_FIELDS, policy_record
from vfsd.cli.session import Session
from vfsd.errors import ExistsError, NotFoundError, ReadOnlyError


@define(
    "policy set",
    examples=[
        "vfsd -s videos policy set cam1/traffic.mp4 original=replaceable,psnr=42",
        "vfsd -s videos policy set cam1 original=keep,delete-after=365d",
        "vfsd -s videos policy set cam7/ original=replaceable",
        "vfsd -s videos policy set cam8/ delete-above=500G",
        "vfsd -s videos policy set cam1 'original=replaceable,psnr=38,replace-after=30d,"
        "decay-after=90d,keep=car|truck,delete-after=1y'",
        "vfsd -s videos policy set cam1 original=keep,reads=34",
        "vfsd -s videos policy set cam1/traffic.mp4 default",
    ],
    fields=POLICY_FIELDS,
    exits=[NotFoundError, ExistsError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="PATH...", nargs=-1, required=True)
@click.argument("policy", metavar="POLICY")
@click.pass_obj
def command(session: Session, names: tuple[str, ...], policy: str) -> None:
    """Decide what may become of originals.

    A PATH is a video, or a directory with all videos below it of which nothing else is said; with a
    slash at the end the directory is made where it is missing, and has its policy before there is
    a video in it.  A store as a whole has no policy.  The POLICY is original=keep, or
    original=replaceable,psnr=DB: what has at least so many dB against the very first original, in
    each plane of each picture, may take its place (40 if nothing is said; see `vfsd replace`).
    original=keep says that nothing may; delete-after, delete-below and delete-above hold with it,
    too.  default: as where nobody has said anything.

    What `vfsd age` does, and when: replace-after=AGE, decay-after=AGE with keep=LABELS (only what
    was seen with these labels keeps its quality), delete-after=AGE, delete-below=BYTES (the oldest
    go while less are free on the disk), delete-above=BYTES (of a directory: the oldest go while all
    that goes by this policy has more), codec=h264, hevc or av1.  An AGE is 12h, 30d, 2w or 1y.
    Nothing is done by this command alone.

    reads=DB, 0 to 100, is about tiles, renditions and joined pictures: so many dB of luma they need
    so that reads and views which say no psnr may use them, instead of the store's minimum_psnr.
    """
    root, paths = session.places(names)
    chosen = None if policy == "default" else policy
    with session.opened(root, writing=True) as store:
        for given, path in zip(names, paths, strict=True):
            is_directory = bool(path) and given.endswith("/")  # which may not be there yet
            now = store.set_policy(f"{path}/" if is_directory else path, chosen)
            if session.json:
                print_json(policy_record(path, now, chosen is not None))
            else:
                session.remark(f"{shown(path)}: {now}")
