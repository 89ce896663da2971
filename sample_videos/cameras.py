"""Two cameras with overlapping views of one scene, and the homography between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.stream import VideoStream

from sample_videos.scene import Scene
from sample_videos.textures import Image

_MARGIN = 0.1
"""Extra scene on each side, as a fraction of a picture; the right camera sees into it."""


@dataclass(frozen=True, slots=True)
class Cameras:
    """A left and a right camera that look at a wider field.

    The right camera sees `overlap` of the left one's width, from another angle (`tilt`) and with
    another exposure.  Each camera has its own noise.  Raises `ValueError` for invalid values.
    """

    width: int = 320  #: pixels of either
    height: int = 240
    overlap: float = 0.5  #: of the width, if there were no tilt
    tilt: float = 1.0  #: 0: side by side; 1: corners are a few hundredths of the width elsewhere
    gain: float = 1.05  #: of the right one's levels
    bias: float = -4.0
    noise: float = 2.0  #: sigma, in levels of 256
    seed: int = 0  #: of the noise

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"an overlap of {self.overlap} is not within 0 .. 1")

    @property
    def field(self) -> tuple[int, int]:
        """(width, height) in pixels of what they look at, even."""
        x, y = self._margin
        across = round((2 - self.overlap) * self.width) + 2 * x
        return across + across % 2, self.height + 2 * y + self.height % 2

    @property
    def homography(self) -> npt.NDArray[np.float64]:
        """3 x 3, from pixels of the right camera to those of the left one."""
        tilted = np.array(
            [
                [1 + 0.03 * self.tilt, -0.004 * self.tilt, 0],
                [0.008 * self.tilt, 1 + 0.02 * self.tilt, -0.012 * self.tilt * self.height],
                [0.03 * self.tilt / self.width, 0, 1],
            ]
        )
        shift = np.array([[1, 0, (1 - self.overlap) * self.width], [0, 1, 0], [0, 0, 1]])
        return np.asarray(shift @ tilted, dtype=np.float64)

    def left(self, seen: Image, index: int) -> Image:
        """The left camera's picture (height x width x 3 RGB) of a field, at `index`."""
        x, y = self._margin
        return self._noisy(seen[y : y + self.height, x : x + self.width], 0, index)

    def right(self, seen: Image, index: int) -> Image:
        """The right camera's picture (height x width x 3 RGB) of a field, at `index`."""
        x, y = self._margin
        place = np.array([[1, 0, x], [0, 1, y], [0, 0, 1]]) @ self.homography
        picture = cv2.warpPerspective(
            seen,
            place,
            (self.width, self.height),
            flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        levels = np.clip(np.rint(np.arange(256) * self.gain + self.bias), 0, 255)
        return self._noisy(np.asarray(cv2.LUT(picture, levels.astype(np.uint8))), 1, index)

    @property
    def _margin(self) -> tuple[int, int]:
        return round(_MARGIN * self.width), round(_MARGIN * self.height)

    def _noisy(self, picture: Image, side: int, index: int) -> Image:
        rng = np.random.default_rng((self.seed, 6, side, index))
        noise = rng.standard_normal(picture.shape, dtype=np.float32) * self.noise
        return np.clip(np.rint(picture + noise), 0, 255).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class FilmedScene:
    """Two cameras before a generated scene."""

    cameras: Cameras
    scene: Scene  #: as large as the cameras' field

    @classmethod
    def of(
        cls, cameras: Cameras, *, frames: int = 60, density: float = 0.1, seed: int = 0
    ) -> FilmedScene:
        width, height = cameras.field
        return cls(
            cameras,
            Scene(
                width=width,
                height=height,
                frames=frames,
                density=density,
                noise=0,
                seed=seed,
                numbered=False,
            ),
        )

    def left(self, index: int) -> Image:
        return self.cameras.left(self.scene.frame(index), index)

    def right(self, index: int) -> Image:
        return self.cameras.right(self.scene.frame(index), index)


def write_pictures(
    path: Path,
    pictures: Iterable[Image],
    rate: Fraction = Fraction(30),
    *,
    crf: int = 20,
    rotation: int = 0,
) -> None:
    """Code pictures (height x width x 3 RGB, even sizes) in H.264 into a file.

    `rotation`: clockwise degrees that a player has to turn the coded picture.
    """
    with av.open(str(path), "w") as output:
        stream: VideoStream | None = None
        for at, shown in enumerate(pictures):
            picture = np.rot90(shown, rotation // 90)
            if stream is None:
                options = {"crf": str(crf), "preset": "veryfast", "threads": "1"}
                stream = output.add_stream("libx264", rate=rate, options=options)
                stream.height, stream.width = picture.shape[:2]
                stream.pix_fmt, stream.gop_size = "yuv420p", 30
                if rotation:
                    stream.set_display_rotation(-rotation)  # PyAV counts the other way round
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = at, 1 / rate
            output.mux(stream.encode(frame))
        if stream is not None:
            output.mux(stream.encode(None))
