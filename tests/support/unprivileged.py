"""Commands by somebody whom permissions hold for, as they do not for root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Result

_WITHOUT = "--bounding-set=-dac_override,-dac_read_search"


def run_unprivileged(*args: str | Path) -> Result:
    """``vfsd`` in a process of its own, which may do what modes allow this user, also root.

    Skips the test where root cannot let that go.
    """
    command = [sys.executable, "-m", "vfsd", *map(str, args)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed, without which root may do everything")
        command = ["setpriv", _WITHOUT, *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def errors(result: Result) -> list[str]:
    """The messages on stderr of a command with ``--json``."""
    return [json.loads(line)["message"] for line in result.err.splitlines()]
