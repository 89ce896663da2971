"""The examiner has loaded all of PyAV before its sandbox closes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from vfsd.codecs.extensions import extension_files
from vfsd.programs import environment

# Python's own list, and the one of the kernel.
_LOADED = """
import sys
{preparation}
for module in list(sys.modules.values()):
    print("module", getattr(module, "__file__", None))
for line in open("/proc/self/maps"):
    print("mapped", line.split(maxsplit=5)[-1].strip())
"""
_PREPARED = """
from vfsd.processes.examineworker import prepare
sys.stdout = open(sys.argv[1], "w")
prepare()
"""


def _loaded(preparation: str, told: Path) -> dict[str, set[str]]:
    """Files that a process has loaded after it has run `preparation`, by who says so."""
    code = _LOADED.format(preparation=preparation)
    subprocess.run([sys.executable, "-c", code, str(told)], env=environment(), check=True)
    found: dict[str, set[str]] = {"module": set(), "mapped": set()}
    for line in told.read_text().splitlines():
        kind, _, name = line.partition(" ")
        found[kind].add(name)
    return found


def test_examiner_loads_every_extension(tmp_path: Path) -> None:
    files = {str(path) for path in extension_files()}
    assert len(files) > 40
    found = _loaded(_PREPARED, tmp_path / "loaded")
    assert not files - found["module"]
    assert not {str(Path(name).resolve()) for name in files} - found["mapped"]
