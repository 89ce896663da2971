"""`vfsd.codecs.pyav` returns the same with every version of PyAV.

The examiner loads all required modules before its sandbox closes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import pytest
from av.codec import CodecContext
from av.error import FFmpegError
from av.video.codeccontext import VideoCodecContext

from sample_videos import FOLDER
from tests.support.clips import make_clip
from tests.support.side_streams import CLIPS
from vfsd.codecs.decoding.demuxer import open_container
from vfsd.codecs.probing.probe import examine
from vfsd.codecs.pyav import (
    decode,
    exact_fraction,
    extension_files,
    frame_side_data,
    open_output,
    readable_tags,
    tick_seconds,
)
from vfsd.core.subprocess_entry import child_environment
from vfsd.disk.checksums import MediaSource

_LATIN = "Z\udcfcrich"  # b"Z\xfcrich", which is not UTF-8
_KEPT = "Zürich"


def _tagged(path: Path) -> Path:
    """A clip with a title that is not UTF-8."""
    made = make_clip(path.with_suffix(".mov"), "libx264", frames=4)
    with (
        av.open(str(made)) as source,
        open_output(str(path), format="matroska", options={}) as target,
    ):
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        target.metadata["title"] = _LATIN
        target.metadata["artist"] = _KEPT
        for packet in source.demux(old):
            if packet.size:
                packet.stream = new
                target.mux(packet)
    return path


def test_ratios_are_fractions(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mov", "libx264", frames=4, rate=25)
    with av.open(str(path)) as opened:
        stream = opened.streams.video[0]
        frame = next(opened.decode(stream))
        opened.seek(0)
        packet = next(opened.demux(stream))
        found = [
            exact_fraction(stream.average_rate),
            exact_fraction(stream.time_base),
            tick_seconds(packet),
        ]
        assert tick_seconds(frame) == tick_seconds(packet) == found[1]
        assert found[0] == 25
        assert all(type(one) is Fraction for one in found)


@pytest.mark.parametrize("unset", [None, Fraction(0)])
def test_unset_ratios(unset: Fraction | None) -> None:
    assert exact_fraction(unset) is None
    frame = av.VideoFrame(16, 16, "gray")
    with pytest.raises(ValueError, match="no time base"):
        tick_seconds(frame)


def test_examined_numbers_are_fractions(tmp_path: Path) -> None:
    media = examine(make_clip(tmp_path / "a.mkv", "libx264", frames=4)).media
    for number in (media.time_base, media.average_rate, media.sample_aspect_ratio):
        assert number is None or type(number) is Fraction


def test_tags_keep_their_bytes(tmp_path: Path) -> None:
    path = _tagged(tmp_path / "a.mkv")
    assert b"Z\xfcrich" in path.read_bytes()
    with MediaSource(path) as source, open_container(source, "matroska") as opened:
        tags = {key.lower(): value for key, value in opened.metadata.items()}
        assert tags["title"] == _LATIN
        readable = {key.lower(): value for key, value in readable_tags(opened).items()}
    assert (readable["title"], readable["artist"]) == ("Z�rich", _KEPT)
    found = {key.lower(): value for key, value in examine(path).media.tags.items()}
    assert json.loads(json.dumps(found).encode())["title"] == "Z�rich"


def test_decoder_that_does_not_open() -> None:
    context = CodecContext.create("qtrle", "r")
    assert isinstance(context, VideoCodecContext)
    context.width = context.height = 16
    context.bits_per_coded_sample = 7  # there are no such frames
    for _ in range(3):
        with pytest.raises(FFmpegError):
            decode(context, av.Packet(b"\0" * 64))


def test_side_data_of_each_kind(tmp_path: Path) -> None:
    path = make_clip(tmp_path / "a.mkv", "libx264", frames=2)
    with av.open(str(path)) as opened:
        frame = next(opened.decode(video=0))
        found = frame_side_data(frame)
    assert [one.type.name for one in found] == ["SEI_UNREGISTERED"]
    assert b"x264" in bytes(found[0])


# --------------------------------------------------------------------------------------------------
# The examiner loads all required modules before its sandbox closes


# The first argument is where to write the result, the others are files to examine.  The two lists
# of loaded modules are Python's own and the kernel's.
_PROGRAM = """
import json, os, sys
from pathlib import Path

from vfsd.codecs.decoding.demuxer import MediaSource
from vfsd.storage import sandbox_main
from vfsd.storage.sandbox_main import prepare

result, *names = sys.argv[1:]
events, files = [], [os.open(name, os.O_RDONLY) for name in names]

def loaded():
    modules = {str(getattr(one, "__file__", None)) for one in list(sys.modules.values())}
    maps = Path("/proc/self/maps").read_text().splitlines()
    return modules, {line.split(maxsplit=5)[5] for line in maps if "/" in line}

def look(event, arguments):
    if event in ("open", "import"):
        events.append([event, str(arguments[0])])

prepare()
modules, mapped = loaded()
sys.addaudithook(look)
for fd, name in zip(files, names):
    with MediaSource(fd) as source:
        found = sandbox_main.examine_source(source, name)
        sandbox_main.pack_examination(found)
        media = found.media
        listed = sandbox_main.take_inventory(source, media.container, media.stream_index)
        sandbox_main.pack_inventory(listed)
during = list(events)
later_modules, later_mapped = loaded()
told = {
    "modules": sorted(modules),
    "mapped": sorted(mapped),
    "events": during,
    "later": sorted((later_modules - modules) | (later_mapped - mapped)),
}
Path(result).write_text(json.dumps(told))
"""


def _told(folder: Path, files: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Modules that a process loads during preparation, and then while it examines `files`."""
    result = folder / "loaded.json"
    command = [sys.executable, "-c", _PROGRAM, str(result), *map(str, files)]
    subprocess.run(command, env=child_environment(), check=True)
    told: dict[str, list[str]] = json.loads(result.read_text())
    return told


def test_every_extension_is_loaded(tmp_path: Path) -> None:
    files = {str(path) for path in extension_files()}
    assert len(files) > 40
    told = _told(tmp_path)
    assert not files - set(told["modules"])
    assert not {str(Path(name).resolve()) for name in files} - set(told["mapped"])


def test_examining_loads_nothing(tmp_path: Path) -> None:
    """One file of each container and with each kind of stream."""
    clips = {(clip.suffix, clip.found): name for name, clip in CLIPS.items()}
    files = [CLIPS[name].make(tmp_path, name) for name in clips.values()]
    files += [FOLDER / name for name in ("traffic.mp4", "open-gop.mkv", "av1.mp4")]
    told = _told(tmp_path, files)
    assert not told["events"]
    assert not told["later"]
