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
            "record": Entry("record", "Record a camera's stream as videos, without encoding."),
            "cameras import": Entry("cameras", "Add the archive of another recorder."),
            "recover": Entry("write", "Make videos of unfinished recordings."),
            "ls": Entry("listing", "List a directory, by name."),
            "find": Entry("listing", "Find videos by name and contents."),
            "sql": Entry("sql", "Query the tables of the store with SQL, by DuckDB."),
            "info": Entry("info", "Show everything known about files or directories."),
            "tag": Entry("files", "Show or change the tags and metadata of videos."),
            "captured": Entry("timeline", "Show or set when videos were recorded."),
            "timeline": Entry("timeline", "List the videos of a camera and the gaps between them."),
            "timeline save": Entry("timeline", "Save a span of time as one file, across videos."),
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
            "tune": Entry("tune", "List tiles that pay for the logged reads, and make them."),
            "tune history": Entry("tune", "List the decisions of the tuner, newest first."),
            "tune undo": Entry("tune", "Undo a decision: reads use the data from before."),
            "layout show": Entry("layout", "Show the tiles of videos that reads may use."),
            "layout diff": Entry(
                "layout_changes", "Compare the present tiles of videos with the earlier ones."
            ),
            "layout history": Entry("layout", "List the present and past tiles of videos."),
            "layout rollback": Entry(
                "layout_changes", "Go back to the layouts before the present ones."
            ),
            "layout drop": Entry("layout_changes", "Delete tiles."),
            "compress": Entry("layout_changes", "Compress lossless tiles and renditions."),
            "explain": Entry("explain", "Explain the work of a read or a view."),
            "advise": Entry("advise", "Simulate tiling strategies on a workload."),
        },
        "Renditions": {
            "render": Entry("rendition", "Store whole frames in a smaller size as well."),
            "rendition ls": Entry(
                "rendition", "List renditions: the frames of videos in other sizes."
            ),
            "rendition drop": Entry("rendition", "Delete renditions of videos."),
        },
        "Budget": {
            "budget show": Entry(
                "budget", "Show the size of tiles and renditions, and their budgets."
            ),
            "budget set": Entry("budget", "Set how much tiles and renditions may take."),
            "budget what-if": Entry("budget", "Show the cost of another budget."),
            "budget log": Entry("budget", "List segments deleted for lack of space, newest first."),
            "pin": Entry("budget", "Keep tiles and renditions even over budget."),
            "unpin": Entry("budget", "Remove pins of `vfsd pin`."),
        },
        "Originals": {
            "policy show": Entry("originals", "Show the policies of originals."),
            "policy set": Entry("originals", "Set the policy of originals."),
            "replace": Entry("originals", "Replace originals by smaller encodings."),
            "hold add": Entry("originals", "Forbid changes to videos, and their removal."),
            "hold remove": Entry("originals", "Lift the holds of videos."),
            "hold ls": Entry("originals", "List the holds of videos, and their reasons."),
            "age": Entry("age", "Replace and delete old videos according to their policies."),
            "age log": Entry("age", "List changes of originals and their reasons, newest first."),
        },
        "Labels": {
            "detect": Entry("labels", "Find objects in VIDEOs, and store their boxes."),
            "track": Entry("track", "Link the boxes of a detector into tracks of objects."),
            "labels import": Entry("labels_files", "Import the boxes of a label file for a VIDEO."),
            "labels export": Entry("labels_files", "Export the boxes of videos to label files."),
            "labels query": Entry("labels", "Find boxes of videos, by frame."),
            "labels ls": Entry("labels", "List the labels of videos, and frames examined."),
            "labels rm": Entry("labels", "Remove boxes of videos."),
            "events": Entry("events", "Find relations between tracked objects over time."),
            "moments add": Entry(
                "moments", "Label the frames that appear in seconds A to B of a video."
            ),
            "moments import": Entry(
                "moments", "Import moments from a CSV, ActivityNet or WebVTT file."
            ),
            "moments export": Entry(
                "moments", "Export moments as a CSV, ActivityNet or WebVTT file."
            ),
            "moments query": Entry("moments", "Find moments of videos, by time."),
            "moments ls": Entry("moments", "List the labels of moments of videos, with counts."),
            "moments rm": Entry("moments", "Remove moments of videos."),
            "moments gaps": Entry("moments", "List windows of videos without a moment or a box."),
            "vectors add": Entry("vectors", "Add the vectors that a model gave frames of a VIDEO."),
            "vectors ls": Entry("vectors", "List the vectors of videos, by source."),
            "vectors nearest": Entry(
                "vectors", "Find the runs of frames with the vectors nearest to one."
            ),
            "vectors export": Entry(
                "vectors", "Write the vectors of a VIDEO to a file, by first frame."
            ),
            "vectors rm": Entry("vectors", "Remove vectors of videos."),
            "sample": Entry("vectors", "Choose N runs of frames to look at or to label next."),
            "searches ls": Entry("searches", "List the saved searches."),
            "searches run": Entry("searches", "Run a saved SEARCH."),
            "searches rm": Entry("searches", "Remove saved searches; boxes and events stay."),
            "layer add": Entry("layer", "Add masks, depth or other maps of frames to a VIDEO."),
            "layer ls": Entry("layer", "List the layers of videos."),
            "layer rm": Entry("layer", "Remove a layer and its index; its file stays."),
            "layer count": Entry("layer", "Count the pixels with certain values on each map."),
            "layer where": Entry("layer", "Find the frames with many pixels of certain values."),
            "layer top": Entry("layer", "Find the frames or boxes with the most such pixels."),
            "layer index": Entry("layer", "Make the indexes of layers again."),
            "dataset export": Entry(
                "dataset", "Export pictures and boxes of videos as a data set."
            ),
            "dataset manifest": Entry("dataset", "Write the manifest of a VIDEO for CVAT."),
            "lerobot import": Entry("dataset", "Add the LeRobot data set in DIR to the store."),
            "lerobot export": Entry(
                "dataset", "Export videos as a LeRobot data set, without encoding."
            ),
        },
        "Cameras": {
            "overlap find": Entry("overlap", "Find pairs of videos that show the same place."),
            "overlap show": Entry("overlap", "Show how the frames of two videos overlap."),
            "overlap join": Entry(
                "overlap", "Join two videos that show the same place at the same time."
            ),
            "overlap ls": Entry("overlap", "List joined videos, or the partners of one video."),
            "overlap split": Entry("overlap", "Delete the joined data of two videos."),
        },
        "Mount": {
            "mount": Entry("mount", "Show a store as a directory, until `vfsd umount`."),
            "umount": Entry("mount", "End a mount, once all writes are safe."),
            "serve": Entry("serve", "Serve a store over HTTP: a page, an API and videos."),
            "stats": Entry("stats", "Show the contents of a store, and statistics of its mount."),
            "top": Entry("stats", "Show the activity of a mount, again and again."),
            "metrics": Entry("stats", "Export the statistics of `vfsd stats` for Prometheus."),
        },
        "Store": {
            "init": Entry("store", "Create a store."),
            "join": Entry("store", "Use a store from another host or directory."),
            "homes": Entry("store", "List the directories that share the catalog of a store."),
            "homes forget": Entry("store", "Remove a home that is gone for good."),
            "homes claim": Entry("store", "Use a directory that was moved here from another host."),
            "push": Entry("store", "Copy the objects of a store into a bucket."),
            "config": Entry("store", "Show or change the settings of a store."),
            "fsck": Entry("checks", "Check a store for problems."),
            "scrub": Entry("checks", "Read all stored data, and compare it with its checksums."),
            "gc": Entry("checks", "Delete data without references."),
            "backup": Entry("backup", "Copy a store to DIR or to a bucket."),
            "backups ls": Entry("backup", "List the backups in a bucket, oldest first."),
            "backups check": Entry("backup", "Compare a backup in a bucket with its checksums."),
            "restore": Entry("backup", "Restore the store in DIR from BACKUP, or create it there."),
            "verify": Entry("checks", "Decode videos from end to end, to check their frames."),
            "calibrate": Entry("store", "Measure the cost of decoding on this host."),
            "doctor": Entry("doctor", "Check the machine and a store for problems."),
        },
        "Work": {
            "work ls": Entry("work", "List orders, newest first."),
            "work show": Entry("work", "Show an order: its arguments, progress and failures."),
            "work run": Entry("work", "Perform the units of an order that have no result yet."),
            "work cancel": Entry("work", "Cancel an order: units end within about a second."),
            "work retry": Entry("work", "Let failed or cancelled units run again."),
            "work rm": Entry("work", "Remove an order and its log."),
        },
        "Help": {
            "help": Entry("app", "Explain a command, or the topics `exit-codes` and `views`."),
        },
    }
)
"""The sections of ``vfsd --help``, with their commands."""

ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {name: entry for entries in SECTIONS.values() for name, entry in entries.items()}
)

TOPICS: Mapping[str, str] = MappingProxyType(
    {
        "searches": "Saved searches of boxes and events.",
        "timeline": "Videos of a camera by time.",
        "moments": "Labelled runs of frames.",
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
        "vectors": "Vectors that models gave runs of frames: add, search, export and remove them.",
        "layer": "Masks, depth and other maps of the frames of a video, and queries on them.",
        "dataset": "Data sets of other programs, made of videos and their boxes.",
        "cameras": "Archives of other recorders.",
        "lerobot": "LeRobot data sets: import by link, and export without encoding.",
        "homes": "The directories that share one catalog on a server, one or more for each host.",
        "backups": "The backups of a store in a bucket.",
        "work": "Orders of work in units, which processes of any host perform.\n\n"
        "Commands with `--on ENGINE` make them.",
        "overlap": "Find videos that show the same place, and store the common part once.\n\n"
        "Originals stay as they are.",
    }
)
"""Help of the first words that several commands share."""
