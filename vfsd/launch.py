"""``python -m vfsd.launch MODULE ARGUMENT …`` runs ``MODULE.main([ARGUMENT, …])``.

Module and arguments come from `vfsd.programs.command`.
"""

from __future__ import annotations

import sys
from importlib import import_module

from vfsd.programs import importing


def main(words: list[str]) -> None:
    name, *arguments = words
    with importing():
        module = import_module(name)
    module.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
