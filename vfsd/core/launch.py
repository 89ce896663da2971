"""``python -m vfsd.core.launch MODULE ARGUMENT ...`` runs ``MODULE.main([ARGUMENT, ...])``.

`vfsd.core.subprocess_entry.module_command` builds such command lines.
"""

from __future__ import annotations

import sys
from importlib import import_module

from vfsd.core.subprocess_entry import gc_paused


def main(words: list[str]) -> None:
    name, *arguments = words
    with gc_paused():
        module = import_module(name)
    module.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
