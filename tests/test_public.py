"""The public surface is what it says it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import vfsd
from vfsd.api.video import Video


def test_every_public_name_can_be_had() -> None:
    for name in vfsd.__all__:
        assert getattr(vfsd, name) is not None


def test_what_the_readme_takes_from_the_package_is_public() -> None:
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bvfsd\.([A-Z]\w+)", readme))
    assert named
    assert named <= set(vfsd.__all__)
    assert not re.findall(r"(?<!vfsd\.)\bWorkloadQuery\(", readme)


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, vfsd; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "sqlalchemy", "av", "cv2", "rich", "click"} & set(loaded)


def test_names_of_a_video_are_few() -> None:
    names = {name for name in dir(Video) if not name.startswith("_")}
    assert len(names) <= 40
    assert {"fps", "num_frames", "shape", "codec", "metadata", "tags"} <= names
    assert Video.__mro__ == (Video, object)
