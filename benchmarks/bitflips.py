"""Flips single bits of stored data, reads all affected frames, and counts wrong ones.

The store holds a few seconds of footage: originals in H.264 and HEVC, tiles, lossless tiles, a
rendition and, if two cameras overlap, a joint.  Each flip changes one bit of one object, in
place, keeping the file's timestamps, and the store is reopened:

- Originals: each frame is read alone.  Frames that need a packet with a byte in the damaged
  block must be refused, and all others must be unchanged.  Frames that also have tiles are read
  again without a minimum quality, and must equal the tiles.  Damage in bytes that no frame needs
  must be refused when the file is read.
- Packs: all frames of the pack are read.  Each must equal either the pack or the original, and
  the pack must be removed afterwards.
- Frame tables and block checksums in the catalog: all frames of all clips are read.  Each must be
  unchanged or refused; a deep check must find the damage and repair it.

Some data is also read through a mount: bytes of the file, and stills.  Then the bit is flipped
back, and the catalog is restored.
"""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from blake3 import blake3

from benchmarks.common import ROOT, arguments, finish, folder_option, footage, table
from benchmarks.mounting import vfsd_mount
from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.frame_table import FrameTable
from vfsd.core.frame_table_pages import PacketFlag
from vfsd.core.model import MeasuredCost, Segment
from vfsd.core.pixel_array import Pixels
from vfsd.core.process_control import host_name
from vfsd.derive.tile_encoder import TileSettings
from vfsd.disk.checksums import MediaSource
from vfsd.disk.store_layout import CATALOG
from vfsd.errors import DamagedFileError, IntegrityError, VfsdError
from vfsd.maintenance import fsck
from vfsd.overlap import join
from vfsd.tiling.cost import DecodeCost

_BLOCK = 1 << 15
_EACH = 4096  # bytes per read of a file in a mount
_STILLS = 4
_WIDTH = 320
_ANY = 1.0  # dB


@dataclass(frozen=True)
class Target:
    """An object to damage, and how its contents are read."""

    kind: str
    key: str
    size: int
    name: str
    segment: Segment | None
    #: in the catalog: `key` is the key of a row, and this is NAME.COLUMN of its table
    column: str | None = None


@dataclass(frozen=True)
class Footage:
    """A clip in the store, and its frames in an undamaged store."""

    name: str
    frames: tuple[str, ...]  #: digests, from the original
    tiled: Mapping[int, str]  #: from tiles, for the frames that have tiles


@dataclass
class Outcome:
    """The result of one flip."""

    detected: bool = False
    wrong: int = 0  #: frames or blocks of bytes that differ from the undamaged ones
    refused: int = 0  #: frames
    not_exact: int = 0  #: frames that were refused although intact, or served although damaged
    healed: bool | None = None  #: of derived data
    elsewhere: int = 0  #: frames lost in the original that were read from tiles


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mounted", type=int, default=25, help="mount every n-th, too; 0: none")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each clip")
    folder_option(parser)
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # each flip would be logged
    try:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="bitflips-") as folder:
            bench = Bench(Path(folder), options.seconds)
            rows, troubles = campaign(bench, options)
    finally:
        logging.disable(logging.NOTSET)
    print(table(("", *COLUMNS), [[kind, *row.values()] for kind, row in rows.items()]))
    for trouble in troubles:
        print(trouble)
    figures = {"flips": options.flips, "seed": options.seed, "kinds": rows, "troubles": troubles}
    finish(options, "bitflips", figures, passed=not troubles)


COLUMNS = (
    "flips",
    "detected",
    "wrong pixels or bytes",
    "frames refused",
    "refused or served wrongly",
    "healed",
    "lost frames from tiles",
    "mounted",
)


def campaign(
    bench: Bench, options: argparse.Namespace
) -> tuple[dict[str, dict[str, int]], list[str]]:
    chance = random.Random(options.seed)
    kinds = sorted({target.kind for target in bench.targets})
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    troubles = []
    flips, every = options.flips, options.mounted
    for number in range(flips):
        kind = kinds[number % len(kinds)]
        mine = [target for target in bench.targets if target.kind == kind]
        target = chance.choices(mine, [one.size for one in mine])[0]
        bit = chance.randrange(8 * target.size)
        is_mounted = bool(every) and number % every == 0
        found = bench.flipped(target, bit, is_mounted)
        count = counts[kind]
        count["flips"] += 1
        count["detected"] += found.detected
        count["wrong pixels or bytes"] += found.wrong
        count["frames refused"] += found.refused
        count["refused or served wrongly"] += found.not_exact
        count["healed"] += bool(found.healed)
        count["lost frames from tiles"] += found.elsewhere
        count["mounted"] += is_mounted
        if not found.detected or found.wrong or found.not_exact or found.healed is False:
            troubles.append(f"flip {number}: bit {bit} of {kind} {target.key}: {found}")
        if sys.stderr.isatty() or number % 50 == 49:
            print(f"\rflip {number + 1} of {flips}", end="", file=sys.stderr, flush=True)
    rows = {kind: {column: count[column] for column in COLUMNS} for kind, count in counts.items()}
    return rows, troubles


class Bench:
    """The store, a copy to restore it from, and its frames before any damage."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self.path = folder / "store"
        self._good = folder / "good"
        clips = make_clips(folder, seconds)
        with Store.create(self.path) as store:
            self.targets = fill(store, clips)
            make_originals_dear(store)
        self.targets += blobs_of(self.path / CATALOG)
        subprocess.run(["cp", "-a", self.path, self._good], check=True)
        with Store.open(self.path, threads=1) as store:
            self._footage = {name: look(store, store[name]) for name in store}
            self._shown = {
                (target.key, target.name): shown_of(store[target.name], target)
                for target in self.targets
                if target.segment is not None
            }
        self._put_back(self.targets[0])

    def flipped(self, target: Target, bit: int, is_mounted: bool) -> Outcome:
        if target.column is not None:
            return self._catalog(target, target.column, bit)
        path = self.path / "objects" / target.key[:2] / target.key[2:]
        flip(path, bit)
        try:
            with Store.open(self.path, threads=1) as store:
                if target.segment is None:
                    found = self._original(store, store[target.name], bit)
                else:
                    found = self._derived(store, target)
            if is_mounted:
                self._restore_catalog()
                found.wrong += self._mounted(target, bit)
            return found
        finally:
            self._put_back(target)

    # -- reading

    def _original(self, store: Store, video: Video, bit: int) -> Outcome:
        footage, outcome = self._footage[video.name], Outcome()
        block = bit // 8 // _BLOCK
        damaged = range(block * _BLOCK, min(video.original.size, (block + 1) * _BLOCK))
        needed = frames_that_need(context_of(video).table, damaged)
        for number, expected in enumerate(footage.frames):
            try:
                shown = digest_of(video.frames([number], psnr=float("inf")).data[0])
            except DamagedFileError as error:
                outcome.refused += 1
                outcome.not_exact += number not in needed
                outcome.detected |= bit // 8 in error.ranges[0] and number in frames_of(error)
            else:
                outcome.wrong += shown != expected
                outcome.not_exact += number in needed
        for number in sorted(needed & footage.tiled.keys()):
            try:
                shown = digest_of(video.frames([number], psnr=_ANY).data[0])
            except VfsdError:
                outcome.not_exact += 1
            else:
                outcome.elsewhere += shown == footage.tiled[number]
                outcome.wrong += shown != footage.tiled[number]
        with MediaSource(store.parts.originals.file_of(video.original)) as source:
            try:
                source.read_at(bit // 8 // _EACH * _EACH, _EACH)
            except DamagedFileError as error:
                outcome.detected |= error.ranges[0] == damaged
        return outcome

    def _derived(self, store: Store, target: Target) -> Outcome:
        outcome = Outcome()
        # both videos of the joint
        for one in (one for one in self.targets if one.key == target.key):
            before = self._shown[one.key, one.name]
            for number, data in read_of(store[one.name], one):
                outcome.wrong += digest_of(data) not in before[number]
        with store.catalog.reading() as seen:
            left = {segment.object_key for segment in seen.segments.all()}
        outcome.detected = outcome.healed = target.key not in left
        return outcome

    def _catalog(self, target: Target, column: str, bit: int) -> Outcome:
        flip_blob(self.path / CATALOG, column, int(target.key), bit)
        try:
            outcome = Outcome()
            with Store.open(self.path, threads=1) as store:
                self._read_all(store, outcome)
                outcome.detected = bool(fsck.run(store.parts, deep=True))
                fsck.run(store.parts, deep=True, repair=True)
            after = Outcome()
            with Store.open(self.path, threads=1) as store:
                self._read_all(store, after)
                outcome.healed = not fsck.run(store.parts, deep=True)
            outcome.wrong += after.wrong
            outcome.not_exact += after.refused
            return outcome
        finally:
            self._restore_catalog()
            self._clear_cache()

    def _read_all(self, store: Store, outcome: Outcome) -> None:
        """Reads all frames, from the originals and from tiles."""
        for name, shown in self._footage.items():
            for number, expected in enumerate(shown.frames):
                for psnr in (float("inf"), _ANY):
                    try:
                        data = store[name].frames([number], psnr=psnr).data[0]
                    except IntegrityError:
                        outcome.refused += 1
                        continue
                    allowed = {expected} if psnr > _ANY else {expected, shown.tiled.get(number)}
                    outcome.wrong += digest_of(data) not in allowed

    def _mounted(self, target: Target, bit: int) -> int:
        """Blocks of the file and stills that differ, and reads that should fail but succeed."""
        wrong = 0
        block = bit // 8 // _BLOCK if target.segment is None else -1
        good = self._good / "objects"
        with vfsd_mount(self.path, self._folder / "mnt") as top:
            with Store.open(self.path, read_only=True) as store:
                video = store[target.name]
                key = video.original.object_key or ""
                needed = set()
                if target.segment is None:
                    end = min(video.original.size, (block + 1) * _BLOCK)
                    needed = frames_that_need(context_of(video).table, range(block * _BLOCK, end))
            whole = (good / key[:2] / key[2:]).read_bytes()
            fd = os.open(top / target.name, os.O_RDONLY)
            try:
                for at in range(0, len(whole), _EACH):
                    is_lost = at // _BLOCK == block
                    data = read_or_none(partial(os.pread, fd, _EACH, at))
                    wrong += data is not None if is_lost else data != whole[at : at + _EACH]
            finally:
                os.close(fd)
            frames = self._footage[target.name].frames
            for number in range(0, len(frames), max(1, len(frames) // _STILLS)):
                still = top / f"{target.name}@" / "frames" / f"{number:06d},psnr=inf.npy"
                still = still if still.exists() else still.with_name(f"{number:06d}.npy")
                data = read_or_none(still.read_bytes)
                if data is None:
                    wrong += number not in needed
                    continue
                allowed = {frames[number], self._footage[target.name].tiled.get(number)}
                wrong += digest_of(from_npy(data)) not in allowed
        return wrong

    # -- putting back

    def _restore_catalog(self) -> None:
        for side in ("-wal", "-shm"):
            Path(f"{self.path / 'catalog.sqlite3'}{side}").unlink(missing_ok=True)
        shutil.copy2(self._good / "catalog.sqlite3", self.path / "catalog.sqlite3")

    def _clear_cache(self) -> None:
        shutil.rmtree(self.path / "cache")
        (self.path / "cache").mkdir()

    def _put_back(self, target: Target) -> None:
        self._restore_catalog()
        self._clear_cache()
        inside = Path("objects") / target.key[:2] / target.key[2:]
        shutil.copy2(self._good / inside, self.path / inside)


# ---------------------------------------------------------------------------------- what is stored


def make_clips(folder: Path, seconds: float) -> dict[str, Path]:
    """Clips of a few seconds in about 320x180, with a key frame every twelve frames."""
    top = footage()
    if top == ROOT / "sample_videos" or not (top / "real").is_dir():
        sources = {"h264": top / "traffic.mp4", "hevc": top / "traffic.mp4"}
    else:
        sources = {
            "h264": top / "real" / "carpov_highway_960x540.mp4",
            "hevc": top / "real" / "suburb_road_a_640x352.mp4",
            "left": top / "pairs" / "derived_futsal_left_1280x720.mp4",
            "right": top / "pairs" / "derived_futsal_right_1280x720.mp4",
        }
    made = {}
    for name, source in sources.items():
        target = folder / f"{name}.mp4"
        codec = ["-c:v", "libx264", "-bf", "3"]
        if name == "hevc":
            codec = ["-c:v", "libx265", "-x265-params", "log-level=error:open-gop=0"]
        command = ["ffmpeg", "-v", "error", "-i", str(source), "-t", str(seconds), "-an"]
        command += ["-vf", f"scale={_WIDTH}:-2", *codec, "-crf", "16", "-g", "12"]
        subprocess.run([*command, "-preset", "veryfast", str(target)], check=True)
        made[name] = target
    return made


def fill(store: Store, clips: Mapping[str, Path]) -> list[Target]:
    """Store every kind of data that a store may hold of the clips."""
    for name, path in clips.items():
        store.ingest(path, f"{name}.mp4").budget.set("none")
    made: list[tuple[str, str, list[Segment]]] = []
    for name in ("h264", "hevc"):
        video = store[f"{name}.mp4"]
        made.append(("renditions", name, video.renditions.make(half_size(video))))
    made.append(("tiles", "h264", store["h264.mp4"].tiles.retile("uniform:2x2")))
    raw = TileSettings("lossless")
    made.append(
        ("lossless tiles", "hevc", store["hevc.mp4"].tiles.retile("uniform:1x2", settings=raw))
    )
    store["hevc.mp4"].tiles.compress()
    if "left" in clips:
        join(store, "left.mp4", "right.mp4", seconds_each=0.5)
        for name in ("left", "right"):
            made.append(("joined", name, store.catalog.joined(store[f"{name}.mp4"].info)))
    targets = []
    for name in clips:
        original = store[f"{name}.mp4"].original
        kind = f"originals in {'HEVC' if name == 'hevc' else 'H.264'}"
        targets.append(Target(kind, original.object_key or "", original.size, f"{name}.mp4", None))
    with store.catalog.reading() as seen:
        now = {segment.id: segment for segment in seen.segments.all()}
    for kind, name, segments in made:
        for segment in (now[one.id] for one in segments):
            size = store.parts.objects.path(segment.object_key).stat().st_size
            targets.append(Target(kind, segment.object_key, size, f"{name}.mp4", segment))
    return targets


def half_size(video: Video) -> tuple[int, int]:
    return video.width // 4 * 2, video.height // 4 * 2


def make_originals_dear(store: Store) -> None:
    """Set high costs for originals, so that plans prefer other data."""
    with store.catalog.writing() as change:
        for codec in ("h264", "hevc"):
            change.costs.put(
                MeasuredCost(host_name(), codec, DecodeCost(1, 1, 0, 0), None, 1, 1, "test", 1)
            )


def look(store: Store, video: Video) -> Footage:
    """Digests of all frames before any damage."""
    exact = [digest_of(frame.data) for frame in video.iterate(psnr=float("inf"))]
    tiled = {}
    for segment in store.catalog.segments(video.info) + store.catalog.joined(video.info):
        for number in segment.frames:
            tiled[number] = digest_of(video.frames([number], psnr=_ANY).data[0])
    return Footage(video.name, tuple(exact), tiled)


def shown_of(video: Video, target: Target) -> dict[int, set[str]]:
    """The acceptable digests of each frame of a segment: from the segment, and from the
    original."""
    found: dict[int, set[str]] = {}
    for psnr in (_ANY, float("inf")):
        for number, data in read_of(video, target, psnr):
            found.setdefault(number, set()).add(digest_of(data))
    return found


def read_of(video: Video, target: Target, psnr: float = _ANY) -> list[tuple[int, Pixels]]:
    """(frame, pixels) of all frames in a pack, read through the API."""
    assert target.segment is not None
    numbers = list(target.segment.frames)
    size = target.segment.picture if target.kind == "renditions" else None
    frames = video.frames(numbers, size=size, psnr=psnr)
    return list(zip(numbers, frames.data, strict=True))


# ----------------------------------------------------------------------------------------- oracles


def frames_that_need(table: FrameTable, damaged: range) -> set[int]:
    """For each frame, whether decoding it needs a packet that contains any of these bytes."""
    needed = set()
    for frame in range(len(table)):
        run = table.decode_run(frame)
        own = next(iter(run.wanted))
        columns = table.columns(run.first_packet, run.end_packet)
        for packet in range(run.first_packet, run.end_packet):
            row = packet - run.first_packet
            is_needless = columns.flags[row] & PacketFlag.DISPOSABLE and packet < own
            first, size = int(columns.position[row]), int(columns.size[row])
            if not is_needless and first < damaged.stop and damaged.start < first + size:
                needed.add(frame)
    return needed


def frames_of(error: DamagedFileError) -> set[int]:
    assert error.frames is not None, "nothing is damaged but these bytes"
    return {frame for part in error.frames for frame in part}


def digest_of(data: Pixels) -> str:
    return blake3(np.ascontiguousarray(data).tobytes()).hexdigest()


def from_npy(data: bytes) -> Pixels:
    found: Pixels = np.load(io.BytesIO(data))
    return found


def read_or_none(read: Callable[[], bytes]) -> bytes | None:
    try:
        return read()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None


def blobs_of(catalog: Path) -> list[Target]:
    """The rows of originals in the catalog that are long enough to be likely targets of a flip."""
    found = []
    with closing(sqlite3.connect(catalog)) as raw:
        for kind, table, column in (
            ("frame tables", "frame_pages", "data"),
            ("sums of blocks", "block_sums", "sums"),
        ):
            rows = raw.execute(f"SELECT rowid, length({column}) FROM {table}").fetchall()
            found += [
                Target(kind, str(row), size, "", None, f"{table}.{column}") for row, size in rows
            ]
    return found


def flip_blob(catalog: Path, column: str, row: int, bit: int) -> None:
    table, _, name = column.partition(".")
    with closing(sqlite3.connect(catalog)) as raw, raw:
        (data,) = raw.execute(f"SELECT {name} FROM {table} WHERE rowid = ?", (row,)).fetchone()
        changed = _flipped(data, bit)
        if table == "frame_pages" and _inflated(changed) == _inflated(data):
            # Bits after the last code mean nothing; those one byte earlier do.
            changed = _flipped(data, bit - 8)
        raw.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (changed, row))


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _inflated(page: bytes) -> bytes | None:
    """The inflated data; None if it cannot be inflated."""
    try:
        return zlib.decompress(page[4:])
    except zlib.error:
        return None


def flip(path: Path, bit: int) -> None:
    found = path.stat()
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        (value,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([value ^ 1 << bit % 8]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


if __name__ == "__main__":
    main()
