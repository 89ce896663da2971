"""A process that makes tiles or a rendition: ``python -m tests.support.tile_maker``.

The arguments are a store, the name of a video, and tiles, rendition or import.
It prints ``begun`` once it has compared its plan with the catalog, then the number of segments.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from vfsd.api.store import Store
from vfsd.core.frames import Frame
from vfsd.derive.tile_encoder import TileSettings

SCALED = (160, 120)
SETTINGS = TileSettings(psnr=36)


def main(place: str, name: str, kind: str) -> None:
    begun: list[int] = []

    def on_progress(done: int, total: int) -> None:
        if done and not begun:
            begun.append(done)
            print("begun", flush=True)

    with Store.open(place, threads=1) as store:
        video = store[name]
        if kind == "tiles":
            made = video.tiles.retile(
                "uniform:1x2", settings=SETTINGS, jobs=1, on_progress=on_progress
            )
        elif kind == "rendition":
            made = video.renditions.make(SCALED, settings=SETTINGS, jobs=1, on_progress=on_progress)
        else:

            def pictures() -> Iterator[Frame]:
                for number, picture in enumerate(video.read(size=SCALED)):
                    on_progress(number, len(video))
                    yield picture

            made = video.renditions.write(pictures(), size=SCALED)
        print(len(made), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
