"""A program that stores renditions, each evicting others, until it is killed."""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress

from vfsd.api.store import Store
from vfsd.derive.tile_encoder import TileSettings
from vfsd.errors import OverBudgetError


def main(place: str, name: str, first: int) -> None:
    with Store.open(place) as store:
        video = store[name]
        print("busy", flush=True)
        for number in itertools.count(first):
            settings = TileSettings(quality=20 + number % 20)
            with suppress(OverBudgetError):  # high quality makes large frames
                video.renditions.make((160 - 16 * (number % 3), 120), settings=settings)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
