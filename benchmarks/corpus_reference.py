"""Reference values for a media file, from the ffmpeg and ffprobe programs.

Nothing here uses vfsd or PyAV, so that their bugs cannot hide themselves.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

_SECONDS = 120.0
"""Time limit of one run of a program."""

_CHANGES_WITH_CODEC = frozenset(
    [
        "encoder",
        "duration",
        "number_of_frames",
        "number_of_bytes",
        "bps",
        "major_brand",
        "minor_version",
        "compatible_brands",
        "_statistics_tags",
        "_statistics_writing_app",
        "_statistics_writing_date_utc",
        "vendor_id",
    ]
)
"""Tags that describe the encoding or the file itself, in lower case without a language suffix."""

_OF_CODEC = frozenset(("CPB properties", "H.26[45] User Data Unregistered SEI message (encoder)"))
"""Side data that belongs to one encoding and says nothing about the picture."""


@dataclass(frozen=True)
class Playback:
    """Frames or packets of one stream, as the ffmpeg program plays them."""

    seconds: tuple[Fraction, ...]
    hashes: tuple[str, ...]  #: MD5 of each frame's planes, or of each packet
    clean: bool  #: the program exited with 0 and printed no error

    def __len__(self) -> int:
        return len(self.hashes)


def ffmpeg_program(given: str | None) -> str:
    """The ffmpeg program to compare with: `given`, else the newest that is installed."""
    if given:
        return given
    try:
        import imageio_ffmpeg
    except ImportError:
        return shutil.which("ffmpeg") or "ffmpeg"
    return str(imageio_ffmpeg.get_ffmpeg_exe())


def play_video(ffmpeg: str, path: Path, most: int) -> Playback:
    """Up to `most` decoded frames of the stream that ffmpeg selects, in their coded size."""
    return _hashes(
        ffmpeg,
        path,
        # ffmpeg before 9 rounds the left edge of a crop to its alignment without "unaligned".
        ("-threads", "1", "-noautorotate", "-copyts", "-flags", "unaligned"),
        (
            "-an",
            "-sn",
            "-dn",
            "-noautoscale",
            "-frames:v",
            str(most),
            "-fps_mode",
            "passthrough",
            "-enc_time_base",
            "demux",
        ),
    )


def count_packets(path: Path) -> int:
    """The number of packets in the first video stream that ffprobe selects; 0 if it fails."""
    shown = _probe(path, "-select_streams", "V:0", "-count_packets", "-show_streams")
    streams = shown.get("streams", [])
    return int(streams[0].get("nb_read_packets", 0)) if streams else 0


def copy_sound(ffmpeg: str, path: Path) -> Playback:
    """Every packet of the audio stream that ffmpeg selects; empty if there is no such stream."""
    return _hashes(ffmpeg, path, ("-copyts",), ("-vn", "-sn", "-dn", "-c", "copy"))


def _hashes(ffmpeg: str, path: Path, before: tuple[str, ...], after: tuple[str, ...]) -> Playback:
    command = [ffmpeg, "-nostdin", "-v", "error", *before, "-i", f"file:{path}", *after]
    form = ["-f", "framehash", "-hash", "md5", "-"]
    try:
        done = subprocess.run([*command, *form], capture_output=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return Playback((), (), clean=False)
    seconds, hashes, base = [], [], Fraction(1)
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith("#tb 0:"):
            base = Fraction(line.partition(":")[2].strip())
        elif line and not line.startswith("#"):
            fields = [field.strip() for field in line.split(",")]
            seconds.append(int(fields[2]) * base)
            hashes.append(fields[5])
    return Playback(tuple(seconds), tuple(hashes), done.returncode == 0 and not done.stderr.strip())


def inventory(path: Path) -> dict[str, str]:
    """The metadata and side data that ffprobe shows for a file, by name.

    Fields that change with any other encoding of the same frames are left out.
    """
    shown = _probe(path, "-show_format", "-show_streams", "-show_chapters", "-show_programs")
    found: dict[str, str] = {}
    _add_tags(found, "file", shown.get("format", {}))
    for number, chapter in enumerate(shown.get("chapters", [])):
        found[f"chapter {number}"] = f"{chapter.get('start_time')}-{chapter.get('end_time')}"
        _add_tags(found, f"chapter {number}", chapter)
    for stream in shown.get("streams", []):
        where = f"stream {stream['index']}"
        _add_tags(found, where, stream)
        found[f"{where}: kind"] = str(stream.get("codec_type"))
        if stream.get("codec_type") != "video":
            found[f"{where}: codec"] = str(stream.get("codec_name"))
        for name in ("sample_aspect_ratio", "color_range", "color_space", "color_transfer"):
            if stream.get(name) not in (None, "unknown", "0:1", "1:1"):
                found[f"{where}: {name}"] = str(stream[name])
        for name, value in stream.get("disposition", {}).items():
            if value:
                found[f"{where}: disposition {name}"] = "1"
        for data in stream.get("side_data_list", []):
            kind = data.get("side_data_type", "unknown")
            if kind not in _OF_CODEC:
                found[f"{where}: {kind}"] = json.dumps(data, sort_keys=True)
    frames = _probe(path, "-select_streams", "v", "-read_intervals", "%+#12", "-show_frames")
    for frame in frames.get("frames", []):
        for data in frame.get("side_data_list", []):
            kind = data.get("side_data_type", "unknown")
            if kind not in _OF_CODEC:
                found[f"frames: {kind}"] = "present"
    packets = _probe(path, "-select_streams", "v", "-read_intervals", "%+#12", "-show_packets")
    for packet in packets.get("packets", []):
        for data in packet.get("side_data_list", []):
            found[f"packets: {data.get('side_data_type', 'unknown')}"] = "present"
    return found


def _probe(path: Path, *options: str) -> dict[str, Any]:
    command = ["ffprobe", "-v", "quiet", "-of", "json", *options, f"file:{path}"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS)
        shown = json.loads(done.stdout.decode("utf-8", "replace") or "{}")
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return {}
    return shown if isinstance(shown, dict) else {}


def _add_tags(found: dict[str, str], where: str, section: dict[str, Any]) -> None:
    for name, value in section.get("tags", {}).items():
        if name.lower().partition("-")[0] not in _CHANGES_WITH_CODEC:
            found[f"{where}: tag {name}"] = str(value)
