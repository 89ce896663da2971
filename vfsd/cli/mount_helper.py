"""``mount.fuse.vfsd``: the helper that mount(8) runs for lines of fstab, such as

    /srv/videos  /mnt/v  fuse.vfsd  allow_other,nofail  0  0

It takes the arguments of all mount helpers, and ends with the exit codes of mount(8).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from vfsd.errors import UsageError, VfsdError

# Exit codes of mount(8).
_USAGE, _FAILED = 1, 32


class _HelperParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(_print_error(message, _USAGE))


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    parser = _HelperParser("mount.fuse.vfsd")
    parser.add_argument("store", help="the store's directory")
    parser.add_argument("place", help="mount point")
    parser.add_argument("-o", dest="options", action="append", default=[], metavar="WORDS")
    parser.add_argument("-f", dest="fake", action="store_true", help="only check the options")
    parser.add_argument("-t", dest="kind", help=argparse.SUPPRESS)
    for word in ("-s", "-n", "-v"):  # sloppy, no mtab, verbose: without effect
        parser.add_argument(word, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    from vfsd.mount import control
    from vfsd.mount.fuse.mount_options import parse_options

    try:
        if given.fake:
            parse_options(given.options)
        else:
            control.mount(given.store, given.place, given.options)
    except UsageError as error:
        sys.exit(_print_error(_error_text(error), _USAGE))
    except (VfsdError, OSError) as error:
        sys.exit(_print_error(_error_text(error), _FAILED))


def _error_text(error: Exception) -> str:
    hint = getattr(error, "hint", None)
    return f"{error}; {hint}" if hint else str(error)


def _print_error(message: str, code: int) -> int:
    print(f"mount.fuse.vfsd: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
