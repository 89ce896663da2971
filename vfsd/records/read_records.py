"""Records of reads: those of the log, and the work of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vfsd.core.timebase import iso_time

if TYPE_CHECKING:
    from vfsd.api.video import Video
    from vfsd.core.model import LoggedRead
    from vfsd.read.explain_read import ReadExplanation
    from vfsd.tiling.cost import Fetch


READ_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "at": "start of the read, ISO 8601, UTC",
        "kind": "api (Python, vfsd read), scan (of detections), view (below NAME@/, or a video "
        "written by vfsd read) or detect (a detector)",
        "frames": "[first, end] of all frames read",
        "count": "number of frames in the result",
        "region": "WxH+X+Y of the displayed frame; of a scan, around all of its regions",
        "size": "[width, height] of a frame of the result, null if the sizes differ",
        "labels": "labels of a scan or of crops below NAME@/objects/: list of lists, an AND of "
        "ORs; else null",
        "source": "original, tiles or both",
        "segments": "number of segments of tiles used",
        "tiles": "number of tiles decoded, in all segments",
        "pixels": "number of pixels to decode, according to the plan",
        "untiled_pixels": "the same from the original alone",
        "predicted": "CPU seconds of decoding, according to the plan",
        "untiled_predicted": "the same from the original alone",
        "seconds": "measured duration of the read",
    }
)


def read_record(name: str, read: LoggedRead) -> dict[str, Any]:
    return {
        "name": name,
        "at": iso_time(read.at_ns),
        "kind": read.kind,
        "frames": [read.first_frame, read.end_frame],
        "count": read.frames,
        "region": str(read.region),
        "size": None if read.size is None else list(read.size),
        "labels": None if read.labels is None else [list(clause) for clause in read.labels],
        "source": read.source,
        "segments": read.segments,
        "tiles": read.tiles,
        "pixels": read.pixels,
        "untiled_pixels": read.untiled_pixels,
        "predicted": read.predicted,
        "untiled_predicted": read.untiled_predicted,
        "seconds": read.seconds,
    }


EXPLAIN_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "name": "path from the root of the store",
        "view": "name of the view; null for a read of pixels, which also has null in the next "
        "five keys",
        "made": "copied, stitched (from tiles), spliced (copied, with encoded ends), encoded, or "
        "decoded (raw pixels and pictures)",
        "why": "reason why packets are encoded instead of copied, else null",
        "lost": "losses against the source: samples of a lossless one, interlacing, side data of "
        "frames, streams and tags; else null",
        "sound": "codec of the sound of the view, null without sound",
        "sound_made": "copied or transcoded, null without sound",
        "sound_from": "codec of the stored sound, null without sound in the view",
        "silence": "reason why the view has no sound, or the silent parts of wav, else null",
        "damaged": "number of frames of the result with damage of the file, null before the "
        "first full decode of the video",
        "cached": "number of cached parts of the view, which need no decoding or encoding; null: "
        "unknown, or a read of pixels",
        "cacheable": "maximum number of cached parts",
        "steps": "list of objects, by time: does (copy, decode or encode), frames ([first, "
        "end]), count, from (original, tiles or joined; null for encode), codec, bytes (for "
        "encode the maximum) and seconds (predicted CPU time, 0 for copy)",
        "frames": "number of frames of the result",
        "width": "pixels of a frame of the result",
        "height": "pixels of a frame of the result",
        "psnr": "minimum dB of the result, per plane or channel; 0: not measured; null: all from "
        "the original as first written",
        "sources": "list of objects, decoded data by time: source (original, tiles or joined), "
        "frames ([first, end]), count (of requested frames), layout, codec and tiles (numbers; "
        "null for the original), gop (frames from one key picture to the next), from_view (whether "
        "it was encoded for a view), starts, pictures, pixels, bytes, seconds",
        "decoded": "object: starts (decoders that start at a key frame), pictures (packets), "
        "pixels, bytes, and seconds (predicted CPU time)",
        "untiled": "object: the same from the original alone",
        "pixel_gain": "reduction of the decoded pixels by tiles, as a factor",
        "time_gain": "reduction of the predicted time by tiles, as a factor",
        "passed_over": "list of objects, unused tiles of these frames by time: source (tiles or "
        "joined), frames ([first, end]), count (frames read from elsewhere), layout, codec, "
        "gop, from_view, tiles, why (size: wrong size of pictures; missing: some are not stored; "
        "quality: possibly below the requested quality; others: other tiles are cheaper; cost: "
        "not clearly cheaper than the original; time: cheaper, but the original is as early, "
        "since several cores decode it or frames before need it), psnr (minimum dB of the "
        "result, 0 if not measured), seconds (predicted CPU time; null with psnr for size and "
        "missing), original_seconds (the same for the original)",
        "fetch": "for a video whose objects are in a bucket, object: requests and bytes that the "
        "cache lacks, rounds (requests that wait for each other), cached (bytes that it has), and "
        "seconds (predicted); else null",
        "measured": "with --run, object: seconds and cpu_seconds, untiled_seconds and "
        "untiled_cpu_seconds, gain (of seconds), and psnr between the results (null: equal); "
        "else null",
    }
)


def explanation_record(
    video: Video,
    found: ReadExplanation,
    fetch: tuple[Fetch, float] | None,
    measured: Mapping[str, object] | None,
) -> dict[str, object]:
    from vfsd.read.explain_read import explanation_json

    return {
        "name": video.name,
        **view_keys_of_read(video, found),
        **explanation_json(found),
        "fetch": None if fetch is None else {**asdict(fetch[0]), "seconds": fetch[1]},
        "measured": measured,
    }


def view_keys_of_read(video: Video, found: ReadExplanation) -> dict[str, Any]:
    """The keys of a view for a read of raw pixels."""
    from vfsd.core.frames import count_in_ranges
    from vfsd.views.view_explanation import decode_step

    steps = [decode_step(video.original, source).record for source in found.sources]
    view_keys = ("view", "made", "why", "lost", "sound", "sound_made", "sound_from", "silence")
    damaged = count_in_ranges(found.plan.frames, video.original.damage)
    return {
        **dict.fromkeys(view_keys),
        "damaged": damaged,
        "cached": None,
        "cacheable": 0,
        "steps": steps,
    }
