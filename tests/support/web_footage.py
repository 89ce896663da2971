"""A store of generated videos for tests of the page: each picture carries its number.

A number is ``clip * 100,000 + frame``, so that it also tells from which file a picture of a
timeline comes.  `numbers_of` gives those of the frames that a video shows.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

from sample_videos import Encoding, Scene, write
from sample_videos.cameras import Cameras, FilmedScene, write_pictures
from sample_videos.stamp import write_frame_number
from sample_videos.textures import Image
from sample_videos.truth import GroundTruth
from tests.support.stores import new_store
from vfsd.api.store import Store
from vfsd.core.detections import Source

CLIP = 100_000  #: what the numbers of two clips differ by

HOSTILE = "<img src=x onerror=document.title='run'>"
"""Text that runs as a script where a page takes it for HTML."""

CAMERAS = ("gate", "yard")
DAY = "2026-05-01"
GAP = ("2026-05-01T10:00:20Z", "2026-05-01T10:01:00Z")
"""In which the camera `gate` recorded nothing."""


@dataclass(frozen=True)
class _NumberedScene(Scene):
    first: int = 0  #: the number of frame 0

    def frame(self, index: int) -> Image:
        picture = super().frame(index)
        write_frame_number(picture, self.first + index)
        return picture


@dataclass(frozen=True, slots=True)
class WebClip:
    """One video of the store."""

    number: int
    scene: Mapping[str, object]
    encoding: Encoding


def _clip(number: int, encoding: Encoding, **scene: object) -> WebClip:
    return WebClip(number, scene, encoding)


CLIPS: Mapping[str, WebClip] = MappingProxyType(
    {
        "clips/constant-25.mp4": _clip(
            1, Encoding(gop=50), frames=250, rate=Fraction(25), density=0.12, seed=1
        ),
        "clips/long-gop.mp4": _clip(2, Encoding(gop=250), frames=300, seed=2),
        "clips/ntsc.mp4": _clip(
            3, Encoding(gop=60, audio=True), frames=150, rate=Fraction(30000, 1001), seed=3
        ),
        "clips/variable.mp4": _clip(
            4, Encoding(gop=40, variable_rate=True), frames=120, rate=Fraction(25), seed=4
        ),
        "clips/edit-list.mp4": _clip(
            5, Encoding(gop=30, start=Fraction(-7, 30)), frames=120, seed=5
        ),
        "clips/rotated.mp4": _clip(
            6, Encoding(gop=30, rotation=90), frames=90, seed=6, width=240, height=320
        ),
        "clips/hevc.mp4": _clip(7, Encoding("hevc", gop=30), frames=60, seed=7),
        # Four files of a day: two follow each other, then there are gaps.
        "gate/2026-05-01/10-00-00.mp4": _clip(
            11, Encoding(gop=50), frames=250, rate=Fraction(25), seed=11
        ),
        "gate/2026-05-01/10-00-10.mp4": _clip(
            12, Encoding(gop=50), frames=250, rate=Fraction(25), seed=11
        ),
        "gate/2026-05-01/10-01-00.mp4": _clip(
            13, Encoding(gop=50), frames=150, rate=Fraction(25), seed=11
        ),
        "gate/2026-05-01/14-00-00.mp4": _clip(
            14, Encoding(gop=50), frames=100, rate=Fraction(25), seed=11
        ),
        # The second camera covers the first gap, at another rate.
        "yard/2026-05-01/10-00-05.mp4": _clip(
            21, Encoding(gop=60), frames=300, width=352, height=288, seed=21
        ),
        "yard/2026-05-01/10-00-40.mp4": _clip(
            22, Encoding(gop=60), frames=150, width=352, height=288, seed=21
        ),
        # The clocks of Zurich skip an hour on 29 March and repeat one on 25 October.
        "gate/2026-03-29/00-30-00.mp4": _clip(
            15, Encoding(gop=25), frames=50, rate=Fraction(25), seed=11
        ),
        "gate/2026-10-25/00-30-00.mp4": _clip(
            16, Encoding(gop=25), frames=50, rate=Fraction(25), seed=11
        ),
    }
)
"""By name in the store."""


def numbers_of(name: str) -> Sequence[int]:
    """The numbers of the frames of a video, in display order."""
    clip = CLIPS[name]
    scene = _scene(clip)
    hidden = round(-clip.encoding.start * scene.rate)
    first = clip.number * CLIP
    return range(first + hidden, first + scene.frames)


def web_store(folder: Path) -> Path:
    """The store below `folder`, made by the first process that asks; not to be changed."""
    folder.mkdir(exist_ok=True)
    path = folder / "store"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(path, ignore_errors=True)
            _make(path, folder)
            (folder / "made").touch()
    return path


def _scene(clip: WebClip) -> Scene:
    return _NumberedScene(**clip.scene, first=clip.number * CLIP)  # type: ignore[arg-type]


def _make(path: Path, folder: Path) -> None:
    with new_store(path) as store:
        for name, clip in CLIPS.items():
            file = folder / f"{clip.number}.mp4"
            truth = write(_scene(clip), clip.encoding, file)
            video = store.ingest(file, name)
            _label(store, video.name, truth)
            file.unlink()
        for camera in CAMERAS:
            store.set_captured(f"{camera}/**", "name:%Y-%m-%d/%H-%M-%S")
        _add_pair(store, folder)
        _add_hostile(store, folder)
        store["clips/constant-25.mp4"].tiles.retile("uniform:2x2", span=(0, 4))
        store.set_policy("gate", "original=keep,delete-after=30d")


def _label(store: Store, name: str, truth: GroundTruth) -> None:
    boxes = [
        (frame, box.label, (box.x1, box.y1, box.x2, box.y2), 0.9, box.track)
        for frame, shown in enumerate(truth.boxes)
        for box in shown
    ]
    # No source has examined the second half.
    half = truth.frames // 2
    store[name].labels.add(
        [box for box in boxes if box[0] < half], Source("truth"), examined=[range(half)]
    )


def _add_pair(store: Store, folder: Path) -> None:
    filmed = FilmedScene.of(Cameras(320, 240, overlap=0.6), frames=60, density=0.12, seed=31)
    for side, picture in (("west", filmed.left), ("east", filmed.right)):
        file = folder / f"{side}.mp4"
        write_pictures(file, (picture(at) for at in range(60)))
        store.ingest(file, f"pair/{side}.mp4")
        file.unlink()


def _add_hostile(store: Store, folder: Path) -> None:
    """A video whose name, tag and label are hostile; `/` cannot be in a name."""
    file = folder / "hostile.mp4"
    write(_NumberedScene(frames=30, seed=41, first=41 * CLIP), Encoding(), file)
    video = store.ingest(file, f"hostile/{HOSTILE}.mp4")
    file.unlink()
    video.labels.add([(3, HOSTILE, (10, 20, 90, 80))], Source(HOSTILE), examined=[range(30)])
    store.catalog.tag(video.info, HOSTILE)
