"""Files with streams besides video and sound are videos in a mount."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.mount.conftest import Mounted
from tests.sidestreams import CLIPS

pytestmark = pytest.mark.mount


def test_files_become_videos(mounted: Mounted, tmp_path: Path) -> None:
    folder = mounted.mount()
    made = [clip.make(tmp_path, name) for name, clip in CLIPS.items()]
    for path in made:
        shutil.copyfile(path, folder / path.name)
    for path in made:
        told = json.loads((folder / f"{path.name}@/info.json").read_text())
        assert told["frames"] == 12, path.name
        assert (folder / path.name).read_bytes() == path.read_bytes()
