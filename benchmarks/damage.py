"""Damages packets of every codec in several ways, and checks which wrong frames are marked.

A clip of each codec is encoded, and copied with some packets changed: flipped bits, a zeroed
range, a truncated packet, dropped packets; for MPEG-TS also whole cells of 188 bytes.  FFmpeg
decodes the intact and the damaged file with one thread, and frames of the same time are compared
sample by sample.  vfsd examines the damaged file by a full decode.  For each codec and kind of
damage the report has, over all seeds: the number of differing frames, the marked share of these,
and the marked share of equal frames.  A damaged packet, or one that depends on it, may decode to
the same frame.  The program fails if a frame of an intact file is marked.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from benchmarks.common import arguments, finish, table
from vfsd.codecs.probing.probe import examine
from vfsd.codecs.pyav import decode
from vfsd.errors import RefusedMediaError

FRAMES, WIDTH, HEIGHT = 60, 320, 192
_TS_CELL = 188


@dataclass(frozen=True)
class Clip:
    """How a clip is encoded."""

    suffix: str
    encoder: str
    options: Mapping[str, str]
    layout: str = "yuv420p"


_X265 = "keyint=20:min-keyint=20:bframes=2:log-level=none:frame-threads=1:pools=none"
CLIPS = {
    "h264 CABAC": Clip(".mp4", "libx264", {"g": "20", "bf": "2", "preset": "veryfast"}),
    "h264 CAVLC": Clip(".mkv", "libx264", {"g": "20", "bf": "0", "preset": "ultrafast"}),
    "h264 in TS": Clip(".ts", "libx264", {"g": "20", "bf": "2", "preset": "veryfast"}),
    "hevc": Clip(".mp4", "libx265", {"x265-params": _X265, "preset": "veryfast"}),
    "hevc with hashes": Clip(
        ".mkv", "libx265", {"x265-params": f"{_X265}:hash=1", "preset": "veryfast"}
    ),
    "vp8": Clip(".webm", "libvpx", {"g": "20", "deadline": "realtime", "cpu-used": "8"}),
    "vp9": Clip(".webm", "libvpx-vp9", {"g": "20", "deadline": "realtime", "cpu-used": "8"}),
    "av1": Clip(
        ".mp4", "libsvtav1", {"g": "20", "preset": "12", "svtav1-params": "lp=1:keyint=20"}
    ),
    "mpeg1": Clip(".mkv", "mpeg1video", {"g": "12", "bf": "2", "b": "1M"}),
    "mpeg2": Clip(".mkv", "mpeg2video", {"g": "12", "bf": "2", "b": "1M"}),
    "mpeg2 in TS": Clip(".ts", "mpeg2video", {"g": "12", "bf": "2", "b": "1M"}),
    "mpeg4": Clip(".mkv", "mpeg4", {"g": "12", "bf": "2", "b": "1M"}),
    "mjpeg": Clip(".mkv", "mjpeg", {"q:v": "4"}, "yuvj420p"),
    "ffv1": Clip(".mkv", "ffv1", {"slicecrc": "1", "level": "3", "g": "12"}),
    "prores": Clip(".mov", "prores_ks", {"profile": "1"}, "yuv422p10le"),
    "png": Clip(".mov", "png", {}, "rgb24"),
}


# ------------------------------------------------------------------------------------ clips


def encode(path: Path, clip: Clip) -> None:
    """Encode a drifting texture with resting parts and little noise."""
    chance = np.random.default_rng(1)
    texture = chance.integers(0, 256, (HEIGHT // 8 + 9, WIDTH // 8 + 9, 3), dtype=np.uint8)
    texture = np.kron(texture, np.ones((8, 8, 1), np.uint8))
    with av.open(str(path), "w") as output:
        stream = output.add_stream(clip.encoder, rate=25, options=dict(clip.options))
        assert isinstance(stream, VideoStream)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, clip.layout
        stream.codec_context.thread_count = 1
        for at in range(FRAMES):
            picture = texture[at // 2 : at // 2 + HEIGHT, at : at + WIDTH].copy()
            picture[HEIGHT // 2 :, : WIDTH // 2] = texture[HEIGHT // 2 : HEIGHT, : WIDTH // 2]
            picture[::7] ^= chance.integers(0, 4, (len(picture[::7]), WIDTH, 1), dtype=np.uint8)
            frame = VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = at
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def pictures(path: Path) -> dict[int, bytes]:
    """Digests of the frames that FFmpeg decodes with one thread, by pts in ticks."""
    found = {}
    with av.open(str(path)) as opened:
        stream = opened.streams.video[0]
        stream.codec_context.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        for packet in opened.demux(stream):
            try:
                came = decode(stream.codec_context, packet)
            except (FFmpegError, EOFError):
                continue
            for one in came:
                if one.pts is not None:
                    found[one.pts] = blake2b(one.to_ndarray().tobytes()).digest()
    return found


# ----------------------------------------------------------------------------------- damage

Change = Callable[[bytearray, random.Random], bytes | None]
"""Changes a packet's payload; returns None to drop the packet."""


def _flipped(data: bytearray, chance: random.Random) -> bytes:
    for _ in range(3):
        at = min(len(data) - 1, chance.randrange(10, max(11, len(data))))
        data[at] ^= 1 << chance.randrange(8)
    return bytes(data)


def _one_flipped(data: bytearray, chance: random.Random) -> bytes:
    at = min(len(data) - 1, chance.randrange(10, max(11, len(data))))
    data[at] ^= 1 << chance.randrange(8)
    return bytes(data)


def _zeroed(data: bytearray, chance: random.Random) -> bytes:
    at = min(len(data) - 1, chance.randrange(10, max(11, len(data))))
    end = min(len(data), at + 64)
    data[at:end] = bytes(end - at)
    return bytes(data)


def _cut(data: bytearray, chance: random.Random) -> bytes:
    return bytes(
        data[: max(1, chance.randrange(len(data) // 4, max(len(data) // 4 + 1, len(data))))]
    )


def _left_out(data: bytearray, chance: random.Random) -> None:
    return None


PACKET_KINDS: dict[str, Change] = {
    "one bit": _one_flipped,
    "three bits": _flipped,
    "64 zeros": _zeroed,
    "cut off": _cut,
    "left out": _left_out,
}
FILE_KINDS = ("TS cells lost", "TS cells zeroed")


def change_packets(clean: Path, path: Path, change: Change, chance: random.Random) -> None:
    """Copy a clip with two changed packets after the first one."""
    hit = sorted(chance.sample(range(1, FRAMES), 2))
    with av.open(str(clean)) as source, av.open(str(path), "w") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old, opaque=True)
        number = -1
        for packet in source.demux(old):
            if not packet.size:
                continue
            number += 1
            payload: bytes | None = bytes(packet)
            if number in hit:
                payload = change(bytearray(payload or b""), chance)
            if payload is None:
                continue
            fresh = cast("Packet[VideoStream]", Packet(len(payload)))
            fresh.update(payload)
            fresh.pts, fresh.dts, fresh.duration = packet.pts, packet.dts, packet.duration
            fresh.time_base, fresh.stream = packet.time_base, new
            fresh.is_keyframe = packet.is_keyframe
            target.mux(fresh)


def change_cells(clean: Path, path: Path, kind: str, chance: random.Random) -> None:
    """Copy an MPEG-TS file with two cells lost or zeroed after the first ten."""
    data = clean.read_bytes()
    cells = [data[at : at + _TS_CELL] for at in range(0, len(data), _TS_CELL)]
    for number in sorted(chance.sample(range(10, len(cells)), 2), reverse=True):
        if kind == FILE_KINDS[0]:
            del cells[number]
        else:
            cells[number] = cells[number][:8] + bytes(len(cells[number]) - 8)
    path.write_bytes(b"".join(cells))


# ------------------------------------------------------------------------------------- runs


def marked(path: Path) -> set[int] | None:
    """The times, in ticks, of the frames that vfsd marks; None if it refuses the file."""
    try:
        found = examine(path, full=True)
    except RefusedMediaError:
        return None
    frames = [frame for part in found.damage or () for frame in part]
    return set(found.columns.pts[found.order[frames]].tolist())


def run(name: str, folder: Path, seeds: Sequence[int]) -> tuple[str, dict[str, Counter[str]]]:
    """Outcomes for each kind of damage to one codec."""
    clip = CLIPS[name]
    made = folder / f"made{clip.suffix}"
    encode(made, clip)
    clean = folder / f"clean{clip.suffix}"
    change_packets(made, clean, lambda data, _: bytes(data), random.Random(0))
    before = pictures(clean)
    found: dict[str, Counter[str]] = {}
    false = marked(clean)
    found["intact"] = Counter(pictures=len(before), equal=len(before), false=len(false or ()))
    kinds = [*PACKET_KINDS, *(FILE_KINDS if clip.suffix == ".ts" else ())]
    for kind in kinds:
        counts = found[kind] = Counter()
        for seed in seeds:
            path = folder / f"damaged{clip.suffix}"
            chance = random.Random(f"{name} {kind} {seed}")
            if kind in PACKET_KINDS:
                change_packets(clean, path, PACKET_KINDS[kind], chance)
            else:
                change_cells(clean, path, kind, chance)
            marks = marked(path)
            if marks is None:
                counts["refused"] += 1
                continue
            after = pictures(path)
            for at, picture in after.items():
                is_equal = before.get(at) == picture
                counts["equal" if is_equal else "different"] += 1
                if at in marks:
                    counts["false" if is_equal else "found"] += 1
    return name, found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="damaged files of each kind")
    parser.add_argument("--only", action="append", choices=list(CLIPS), help="of these codecs")
    parser.add_argument("--jobs", type=int, default=1, help="codecs at a time")
    options = parser.parse_args()
    names = options.only or list(CLIPS)
    began = time.perf_counter()
    results: dict[str, dict[str, Counter[str]]] = {}
    with tempfile.TemporaryDirectory() as top, ProcessPoolExecutor(options.jobs) as pool:
        folders = [Path(top) / str(number) for number in range(len(names))]
        for folder in folders:
            folder.mkdir()
        for name, found in pool.map(partial(run, seeds=range(options.seeds)), names, folders):
            results[name] = found
    rows = [
        _row(name, kind, counts)
        for name, kinds in results.items()
        for kind, counts in kinds.items()
    ]
    print(table(_HEADINGS, rows))
    print(f"{time.perf_counter() - began:.0f} s")
    is_clean = not any(kinds["intact"]["false"] for kinds in results.values())
    finish(options, "damage", results, passed=is_clean)


_HEADINGS = ("codec", "damage", "different", "marked", "equal", "marked though equal", "refused")


def _row(name: str, kind: str, counts: Counter[str]) -> tuple[object, ...]:
    different, equal = counts["different"], counts["equal"]
    shares = _share(counts["found"], different), _share(counts["false"], equal)
    return name, kind, different, shares[0], equal, shares[1], counts["refused"]


def _share(some: int, of: int) -> str:
    return f"{some / of:.1%}" if of else ""


if __name__ == "__main__":
    main()
