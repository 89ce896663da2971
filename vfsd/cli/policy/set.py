"""``vfsd policy set``: what may become of originals."""

from __future__ import annotations

import click

from vfsd.cli.command import define
from vfsd.cli.output import print_json, shown
from vfsd.cli.policy.common import POLICY_FIELDS, policy_record
from vfsd.cli.selecting import matched_paths
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

    A PATH is a video, a pattern for the names of videos, or a directory.  The policy of a directory
    holds for all videos below it without a policy of their own.  With a slash at the end, a missing
    directory is created.  A store as a whole has no policy.  The POLICY is original=keep, or
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
        for given, name in zip(names, paths, strict=True):
            if name and given.endswith("/"):  # a directory, which need not exist yet
                targets = [f"{name}/"]
            else:
                targets = matched_paths(store.catalog, [name])
            for target in targets:
                now, path = store.set_policy(target, chosen), target.rstrip("/")
                if session.json:
                    print_json(policy_record(path, now, chosen is not None))
                else:
                    session.remark(f"{shown(path)}: {now}")
