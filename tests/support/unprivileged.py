"""Commands without the capabilities that let root ignore permissions."""

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
    """Run ``vfsd`` in a process that is bound by file modes, even as root.

    Skips the test if root cannot drop these capabilities.
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
