"""Expected data for readers under load: the bytes of files, and frames decoded by FFmpeg."""

from __future__ import annotations

import hashlib
import json
import mmap
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MOST_FRAMES = 48
"""The number of frames per video with known samples."""


@dataclass(frozen=True, slots=True)
class Truth:
    """One video: a file outside the store, and its first frames."""

    name: str  #: in the store
    file: str  #: a file with the same bytes on the local disk
    digest: str  #: blake2b of them
    width: int
    height: int
    frames: int  #: the number of frames with known samples
    pictures: str  #: file of these samples, yuv420p, frame by frame

    @property
    def picture_bytes(self) -> int:
        return self.width * self.height * 3 // 2

    def picture(self, known: mmap.mmap, frame: int) -> bytes:
        return known[frame * self.picture_bytes : (frame + 1) * self.picture_bytes]

    def region(self, known: mmap.mmap, frame: int, x: int, y: int, size: tuple[int, int]) -> bytes:
        """The planes of an even region at an even position, one after the other."""
        base, parts = frame * self.picture_bytes, []
        for number in range(3):
            shared = 2 if number else 1
            stride = self.width // shared
            for row in range(y // shared, (y + size[1]) // shared):
                at = base + row * stride + x // shared
                parts.append(known[at : at + size[0] // shared])
            base += stride * (self.height // shared)
        return b"".join(parts)


def digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def opened(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def truth_of(clip: Path, name: str, folder: Path) -> Truth | None:
    """None for clips that these readers cannot compare: odd sizes, rotated, or not 8-bit 4:2:0."""
    asked = [
        "-show_entries",
        "stream=width,height,pix_fmt:stream_side_data=rotation",
        "-of",
        "json",
    ]
    told = subprocess.run(
        ["ffprobe", "-v", "error", "-select_streams", "v:0", *asked, str(clip)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    stream: dict[str, Any] = json.loads(told)["streams"][0]
    width, height = stream["width"], stream["height"]
    if stream["pix_fmt"] != "yuv420p" or width % 2 or height % 2 or stream.get("side_data_list"):
        return None
    pictures = folder / f"{name}.yuv"
    subprocess.run(
        [
            *("ffmpeg", "-v", "error", "-y", "-i", str(clip), "-map", "0:v:0"),
            *("-fps_mode", "passthrough", "-frames:v", str(MOST_FRAMES)),
            *("-f", "rawvideo", "-pix_fmt", "yuv420p", str(pictures)),
        ],
        check=True,
    )
    frames = pictures.stat().st_size // (width * height * 3 // 2)
    return Truth(name, str(clip), digest_of(clip), width, height, frames, str(pictures))


def save(truths: list[Truth], path: Path) -> None:
    path.write_text(json.dumps([asdict(one) for one in truths]), encoding="utf-8")


def load(path: Path) -> list[Truth]:
    return [Truth(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
