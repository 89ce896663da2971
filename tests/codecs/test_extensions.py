"""The examiner has loaded all that it needs before its sandbox closes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sample_videos import FOLDER
from tests.sidestreams import CLIPS
from vfsd.codecs.pyav import extension_files
from vfsd.core.subprocess_entry import child_environment

# The first argument is where to write the result, the others are files to examine.  The two lists
# of what is loaded are Python's own and the kernel's.
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
    """What a process has loaded once it is prepared, and what it loads to examine `files`."""
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
