"""``python -m vfsd`` is the command ``vfsd``."""

from vfsd.cli import main

if __name__ == "__main__":
    main()
