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
        "policy": "what counts for it, as `vfsd policy set` takes it",
        "own": "whether it was said of that very file or directory",
        "original": "keep or replaceable",
        "psnr": "dB that what takes an original's place has at least, in each plane of each "
        "picture, against the very first original",
        "codec": "that originals are encoded in when they age",
        "replace_after": "seconds of age at which `vfsd age` replaces an original, or null",
        "decay_after": "seconds of age at which only what keep finds keeps its quality, or null",
        "keep": "labels, or null",
        "delete_after": "seconds of age at which `vfsd age` deletes a video, or null",
        "delete_below": "bytes: while less are free on the disk, `vfsd age` deletes the oldest; or "
        "null",
        "delete_above": "bytes: while the videos of the directory that it was said of have more, "
        "`vfsd age` deletes the oldest; or null",
        "reads": "dB of luma that tiles need so that reads which ask for none may use them, or "
        "null: as the store has it in minimum_psnr",
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
    """Show what may become of originals.

    A PATH is a video, a directory, or a pattern for the names of videos.  Its policy is its own, or
    that of the nearest directory above.  Without a PATH, all policies that were set are listed.
    """
    root, paths = session.places(names) if names else (session.root(), [])
    with session.looked_into(root) as parts, parts.catalog.reading() as seen:
        told = seen.originals.policies()
        if paths:
            chosen = matched_paths(parts.catalog, paths)
            nodes = [(path, seen.tree.resolve(path).ino) for path in chosen]
        else:
            nodes = sorted((path, ino) for ino in told for path in seen.tree.paths_of(ino))
        found = [(path, seen.originals.policy(ino), ino in told) for path, ino in nodes]
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
                    session.remark(f"{printable(path)}: {now}")


HOLD_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "id": "number of the hold",
        "reason": "as it was given",
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
@click.option("--reason", metavar="TEXT", required=True, help="Why; whoever is refused is told.")
@click.pass_obj
def hold_add(session: Session, names: tuple[str, ...], reason: str) -> None:
    """Forbid everybody to change or remove videos.

    A VIDEO is a name or a pattern; those that fit it later are not meant.  A video may have several
    holds, and is free when the last is lifted.
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for video in select_video_list(store, paths):
            made = video.hold(reason)
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
@click.option("--reason", metavar="TEXT", required=True, help="Why; it is kept in the log.")
@click.option("--id", "number", metavar="N", type=int, help="Only the hold of that number.")
@click.pass_obj
def hold_remove(session: Session, names: tuple[str, ...], reason: str, number: int | None) -> None:
    """Lift the holds of videos.

    What was held, since when, and why the hold was lifted stays in the log (`vfsd age log`).
    """
    root, paths = session.places(names)
    with session.opened(root, writing=True) as store:
        for video in select_video_list(store, paths):
            for one in video.release(reason, number):
                if session.json:
                    print_json(hold_record(video.name, one))
                else:
                    session.remark(f"{printable(video.name)} is held no longer: {one.reason}")


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
    """List which videos nobody may change or remove, and why."""
    root, paths = session.places(names) if names else (session.root(), [])
    with session.opened(root) as store:
        videos = select_video_list(store, paths) if paths else list(store.find())
        found = [(video.name, one) for video in videos for one in video.holds()]
    rows = []
    for name, one in found:
        if session.json:
            print_json(hold_record(name, one))
        else:
            rows.append(
                (str(one.id), local_time(one.at_ns), printable(name), printable(one.reason))
            )
    if not found:
        session.remark("nothing is held")
    for line in column_lines(rows, "><<<"):
        print_line(line)
