"""``python -m vfsd.compat train.py ...``: runs a program after `vfsd.compat.install`.

``python -m vfsd.compat -m package.module ...`` runs a module.  Processes that the program starts
with the start method "spawn" are not patched; forked ones are.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from vfsd.compat import install

_USAGE = "usage: python -m vfsd.compat [-m MODULE | PROGRAM.py] [ARGUMENT ...]"


def main(arguments: Sequence[str]) -> None:
    """Run the program that `arguments` name.  Raises `SystemExit` with a usage if none is named."""
    runs_module = arguments[:1] == ["-m"]
    rest = list(arguments[1:] if runs_module else arguments)
    if not rest or rest[0].startswith("-"):
        sys.exit(_USAGE)
    install()
    sys.argv = rest
    if runs_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        # As Python does for a program: its own directory is where it imports from first.
        sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
