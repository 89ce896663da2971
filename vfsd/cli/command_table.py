"""The table of all commands: ``vfsd --help`` prints it without importing any of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Entry(NamedTuple):
    """A command: its module in `vfsd.cli`, and its summary, which a test compares with the help.

    The function in the module is called like the command, with underscores: `labels_import`.
    """

    module: str
    summary: str


SECTIONS: Mapping[str, Mapping[str, Entry]] = MappingProxyType(
    {
        "Videos": {
            "ingest": Entry("ingest", "Add videos to the store."),
            "write": Entry("write", "Make a video from pixels, pictures or a stream."),
            "recover": Entry("write", "Make videos of unfinished recordings."),
            "ls": Entry("listing", "List a directory, by name."),
            "find": Entry("listing", "Find videos by name and contents."),
            "info": Entry("info", "Show everything known about files or directories."),
            "tag": Entry("files", "Show or change the tags and metadata of videos."),
            "mv": Entry("files", "Rename or move a file or directory."),
            "rm": Entry("files", "Remove files and directories from the store."),
        },
        "Frames": {
            "frames": Entry("frames", "List the frames of videos: times, key frames, bytes."),
            "read": Entry("read", "Read frames of a video, exactly, and write them to OUT."),
            "reads": Entry("reads", "List the reads of videos, newest first."),
        },
        "Tiles": {
            "retile": Entry("retile", "Store pixels in tiles, for cheap reads of regions."),
            "tune": Entry("tune", "Say which tiles pay, going by what was read, and make them."),
            "tune history": Entry("tune", "List what was made because of reads, the newest first."),
            "tune undo": Entry("tune", "Take a decision back: reads use what was there before."),
            "layout show": Entry("layout", "Show the tiles of videos that reads may use."),
            "layout diff": Entry(
                "layout_changes", "Compare the tiles of videos with those of the step before."
            ),
            "layout history": Entry("layout", "List the present and past tiles of videos."),
            "layout rollback": Entry(
                "layout_changes", "Go back to the layouts before the present ones."
            ),
            "layout drop": Entry("layout_changes", "Delete tiles."),
            "compress": Entry("compress", "Compress lossless tiles and renditions."),
            "explain": Entry(
                "explain", "Say what a read decodes, and what a view copies and encodes."
            ),
            "advise": Entry(
                "advise", "Say what to tile for a workload, and what that would come to."
            ),
        },
        "Renditions": {
            "render": Entry("rendition", "Store whole frames in a smaller size as well."),
            "rendition ls": Entry(
                "rendition", "List the renditions of videos: their frames in other sizes."
            ),
            "rendition drop": Entry("rendition", "Delete renditions of videos."),
        },
        "Budget": {
            "budget show": Entry("budget", "Show what tiles and renditions take, and may take."),
            "budget set": Entry("budget", "Set how much tiles and renditions may take."),
            "budget what-if": Entry("budget", "Tell what another budget would cost."),
            "budget log": Entry("budget", "List what went to make room, the newest first."),
            "pin": Entry("pin", "Keep tiles and renditions even over budget."),
            "unpin": Entry("pin", "Remove pins of `vfsd pin`."),
        },
        "Originals": {
            "policy show": Entry("policy", "Show what may become of originals."),
            "policy set": Entry("policy", "Decide what may become of originals."),
            "replace": Entry("replace", "Put smaller encodings in the place of originals."),
            "hold add": Entry("policy", "Forbid everybody to change or remove videos."),
            "hold remove": Entry("policy", "Lift the holds of videos."),
            "hold ls": Entry("policy", "List which videos nobody may change or remove, and why."),
            "age": Entry("age", "Replace, and delete, what is old enough, as policies have it."),
            "age log": Entry("age", "List what became of originals and why, the newest first."),
        },
        "Labels": {
            "detect": Entry("labels", "Find objects in VIDEOs, and keep their boxes."),
            "labels import": Entry(
                "labels_files", "Put the boxes of a label file into the index of a VIDEO."
            ),
            "labels export": Entry("labels_files", "Write the boxes of videos as label files."),
            "labels query": Entry("labels", "Find boxes of videos, by frame."),
            "labels ls": Entry("labels", "List the labels of videos, and frames examined."),
            "labels rm": Entry("labels", "Remove boxes of videos."),
        },
        "Cameras": {
            "overlap find": Entry("overlap", "Find pairs of videos that show the same place."),
            "overlap show": Entry("overlap", "Show how two videos of one place lie to each other."),
            "overlap join": Entry(
                "overlap", "Join two videos that show the same place at the same time."
            ),
            "overlap ls": Entry(
                "overlap", "List videos that are joined, or who one is joined with."
            ),
            "overlap split": Entry("overlap", "Take away what is kept together of two videos."),
        },
        "Mount": {
            "mount": Entry("mount", "Show a store as a directory, until `vfsd umount`."),
            "umount": Entry("mount", "End a mount, once what was written to it is safe."),
            "stats": Entry("stats", "Show what a store holds, and what its mount has done."),
            "top": Entry("stats", "Show what a mount does, again and again."),
            "metrics": Entry("stats", "Give the figures of `vfsd stats` to Prometheus."),
        },
        "Store": {
            "init": Entry("store", "Make a store."),
            "config": Entry("store", "Show or change the settings of a store."),
            "fsck": Entry("checks", "Check the store."),
            "scrub": Entry("checks", "Read all that is stored, and compare it with its checksums."),
            "gc": Entry("checks", "Take away what nothing refers to."),
            "backup": Entry("backup", "Copy the store to DIR, or bring the copy there up to date."),
            "restore": Entry("backup", "Make the store in DIR what BACKUP has, or make it there."),
            "verify": Entry("checks", "Decode videos from end to end, to check their frames."),
            "calibrate": Entry("store", "Measure what decoding costs on this host."),
            "doctor": Entry(
                "doctor", "See what is missing on this machine, and what ails a store."
            ),
        },
        "Help": {
            "help": Entry("help", "Explain a command, or the topics `exit-codes` and `views`."),
        },
    }
)
"""The sections of ``vfsd --help``, with their commands."""

ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {name: entry for entries in SECTIONS.values() for name, entry in entries.items()}
)

TOPICS: Mapping[str, str] = MappingProxyType(
    {
        "tune": "Make tiles for what is read, and take them back.",
        "layout": "Show, compare and delete the tiles of a video.\n\n`vfsd retile` makes tiles.",
        "rendition": "List and delete the renditions of a video: its frames in other sizes.\n\n"
        "`vfsd render` makes them.",
        "budget": "Show and set how many bytes tiles and renditions may take.\n\n"
        "Originals do not count, and are never removed.  Without room, a new tile or rendition "
        "replaces those that save least for their bytes.",
        "policy": "Show and decide what may happen to originals.\n\n"
        "Without a policy, originals stay as they were written.",
        "hold": "Forbid changes to videos, and their removal.\n\n"
        "A video with a hold is not replaced, removed or written in any way until the hold is "
        "lifted.  It may be renamed.",
        "age": "Apply policies to videos as they grow old, and list what was done.",
        "labels": "Labelled boxes of a video: import, export, query, list and remove them.",
        "overlap": "Find videos that show the same place, and store the common part once.\n\n"
        "Originals stay as they are.",
    }
)
"""Help of the first words that several commands share."""
