"""The command line.

Help, and the refusal of a slip of the pen, cost nothing but click: the modules in here import only
click, the standard library and each other at the top, and the store when a command runs.
"""

from vfsd.cli.app import main

__all__ = ["main"]
