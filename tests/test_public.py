"""The public surface is what it says it is."""

from __future__ import annotations

import subprocess
import sys

import vfsd


def test_every_public_name_can_be_had() -> None:
    for name in vfsd.__all__:
        assert getattr(vfsd, name) is not None


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, vfsd; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "sqlalchemy", "av", "cv2", "rich", "click"} & set(loaded)
