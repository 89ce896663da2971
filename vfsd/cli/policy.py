"""``vfsd policy`` and ``vfsd hold``: what may happen to originals."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from vfsd.cli.command import define
from vfsd.cli.output import column_lines, iso_time, local_time, print_json, print_line, printable
from vfsd.cli.session import Session
from vfsd.cli.video_args import matched_paths, select_video_list
from vfsd.errors import ExistsError, NotFoundError, ReadOnlyError

if TYPE_CHECKING:
    from vfsd.core.retention_policy import Hold, RetentionPolicy


POLICY_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "policy": "its policy, in the syntax of `vfsd policy set`",
        "own": "whether it was set for this file or directory itself",
        "original": "keep or replaceable",
        "psnr": "minimum dB of a replacement, per plane of each picture, against the very first "
        "original",
        "codec": "codec for replacements",
        "replace_after": "age in seconds at which `vfsd age` replaces an original, or null",
        "decay_after": "age in seconds from which only regions with the labels of keep stay "
        "sharp, or null",
        "keep": "labels, or null",
        "delete_after": "age in seconds at which `vfsd age` deletes a video, or null",
        "delete_below": "bytes: `vfsd age` deletes the oldest videos while less is free on the "
        "disk; or null",
        "delete_above": "bytes: `vfsd age` deletes the oldest videos of the directory while it "
        "has more; or null",
        "reads": "minimum luma dB of tiles for reads without a minimum of their own; null for "
        "the setting minimum_psnr",
    }
)


def policy_record(name: str, policy: RetentionPolicy, own: bool) -> dict[str, Any]:
    """The values of `POLICY_FIELDS`."""
    return {
        "name": name,
        "policy": str(policy),
        "own": own,
        "original": policy.original.value,
        "psnr": policy.psnr,
        "codec": policy.codec,
        "replace_after": policy.replace_after,
        "decay_after": policy.decay_after,
        "keep": policy.keep,
        "delete_after": policy.delete_after,
        "delete_below": policy.delete_below,
        "delete_above": policy.delete_above,
        "reads": policy.reads,
    }


@define(
    "policy show",
    examples=["vfsd -s videos policy show", "vfsd -s videos policy show cam1/traffic.mp4 --json"],
    fields=POLICY_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[PATH]...", nargs=-1)
@click.pass_obj
def policy_show(session: Session, names: tuple[str, ...]) -> None:
    """Show the policies of originals.

    A PATH is a video, a directory, or a pattern for the names of videos. Its policy is its own, or
    that of the nearest directory above. Without a PATH, all policies that were set are listed.
    """
    root, paths = session.places_or_root(names)
    with session.looked_into(root) as parts, parts.catalog.reading() as seen:
        own_policies = seen.retention.policies()
        if paths:
            chosen = matched_paths(parts.catalog, paths)
            nodes = [(path, seen.tree.resolve(path).ino) for path in chosen]
        else:
            nodes = sorted((path, ino) for ino in own_policies for path in seen.tree.paths_of(ino))
        found = [(path, seen.retention.policy(ino), ino in own_policies) for path, ino in nodes]
    if session.json:
        for path, policy, own in found:
            print_json(policy_record(path, policy, own))
        return
    if not found:
        session.remark("all originals stay as they were written")
    rows = [
        (str(policy), "" if own else "inherited", printable(path)) for path, policy, own in found
    ]
    for line in column_lines(rows, "<<<"):
        print_line(line)


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
def policy_set(session: Session, names: tuple[str, ...], policy: str) -> None:
    """Set the policy of originals.

    A PATH is a video, a pattern for the names of videos, or a directory. The policy of a directory
    holds for all videos below it without a policy of their own. With a slash at the end, a missing
    directory is created. The store as a whole has no policy.

    The POLICY is original=keep, or original=replaceable,psnr=DB: an encoding with at least DB
    against the very first original, per plane of each picture, may replace the original (the
    default is 40; see `vfsd replace`). With original=keep no encoding may replace it; delete-after,
    delete-below and delete-above are allowed. `default` removes the policy.

    Rules for `vfsd age`: replace-after=AGE, decay-after=AGE with keep=LABELS (only regions with
    these labels keep their quality), delete-after=AGE, delete-below=BYTES (delete the oldest while
    less is free on the disk), delete-above=BYTES (for a directory: delete the oldest while the
    videos under this policy have more), codec=h264, hevc or av1. An AGE is 12h, 30d, 2w or 1y. This
    command alone changes no video.

    reads=DB, 0 to 100, is the minimum luma PSNR of tiles, renditions and joined data for reads and
    views without a psnr. It replaces the setting minimum_psnr of the store.
    """
    root, paths = session.places(names)
    chosen = None if policy == "default" else policy
    with session.opened(root, writing=True) as store:
        for given, name in zip(names, paths, strict=True):
            if name and given.endswith("/"):  # a directory that may not exist yet
                targets = [f"{name}/"]
            else:
                targets = matched_paths(store.catalog, [name])
            for target in targets:
                now, path = store.set_policy(target, chosen), target.rstrip("/")
                if session.json:
                    print_json(policy_record(path, now, chosen is not None))
                else:
                    session.remark(f"{printable(path)}: {now}")


HOLD_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "id": "number of the hold",
        "reason": "text of --reason",
        "since": "ISO 8601, UTC",
    }
)


def hold_record(name: str, hold: Hold) -> dict[str, Any]:
    """The values of `HOLD_FIELDS`."""
    return {
        "name": name,
        "id": hold.id,
        "reason": hold.reason,
        "since": iso_time(hold.at_ns),
    }


@define(
    "hold add",
    examples=["vfsd -s videos hold add cam1/traffic.mp4 --reason 'case 17'"],
    fields=HOLD_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option(
    "--reason",
    metavar="TEXT",
    required=True,
    help="Reason, which is part of the error for refused changes.",
)
@click.pass_obj
def hold_add(session: Session, names: tuple[str, ...], reason: str) -> None:
    """Forbid changes to videos, and their removal.

    A VIDEO is a name or a pattern; later videos that match the pattern are not held. A video may
    have several holds, and is free when the last one is lifted.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for video in select_video_list(store, paths):
            made = video.policy.hold(reason)
            if session.json:
                print_json(hold_record(video.name, made))
            else:
                session.remark(f"{printable(video.name)} is held: {reason}")


@define(
    "hold remove",
    examples=["vfsd -s videos hold remove cam1/traffic.mp4 --reason 'case 17 is closed'"],
    fields=HOLD_FIELDS,
    exits=[NotFoundError, ReadOnlyError],
    listing=True,
)
@click.argument("names", metavar="VIDEO...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", required=True, help="Reason, which is stored in the log.")
@click.option("--id", "number", metavar="N", type=int, help="Only the hold with this number.")
@click.pass_obj
def hold_remove(session: Session, names: tuple[str, ...], reason: str, number: int | None) -> None:
    """Lift the holds of videos.

    The log (`vfsd age log`) keeps the video, the time of the hold, and the reason for lifting it.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for video in select_video_list(store, paths):
            for one in video.policy.release(reason, number):
                if session.json:
                    print_json(hold_record(video.name, one))
                else:
                    session.remark(f"{printable(video.name)} is released: {one.reason}")


@define(
    "hold ls",
    examples=["vfsd -s videos hold ls", "vfsd -s videos hold ls cam1/traffic.mp4 --json"],
    fields=HOLD_FIELDS,
    exits=[NotFoundError],
    listing=True,
)
@click.argument("names", metavar="[VIDEO]...", nargs=-1)
@click.pass_obj
def hold_ls(session: Session, names: tuple[str, ...]) -> None:
    """List the holds of videos, and their reasons."""
    root, paths = session.places_or_root(names)
    with session.opened(root) as store:
        videos = select_video_list(store, paths) if paths else list(store.find())
        found = [(video.name, one) for video in videos for one in video.policy.holds()]
    rows = []
    for name, one in found:
        if session.json:
            print_json(hold_record(name, one))
        else:
            rows.append(
                (str(one.id), local_time(one.at_ns), printable(name), printable(one.reason))
            )
    if not found:
        session.remark("there are no holds")
    for line in column_lines(rows, "><<<"):
        print_line(line)
