"""The ground truth of a generated file, kept as JSON next to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from sample_videos.encoding import Encoding
from sample_videos.scene import Box, Scene


@dataclass(frozen=True)
class GroundTruth:
    """The contents that a reader of the file must find.

    The file shows frames ``first_frame <= i < scene.frames`` of its scene; element k of `pts` and
    `boxes` describes the k-th frame shown, which is frame ``first_frame + k`` of the scene.
    """

    scene: Scene
    encoding: Encoding
    first_frame: int  #: above 0 where an edit list hides the frames before
    time_base: Fraction | None  #: seconds per tick of the file; None: the file has no timestamps
    pts: tuple[int, ...] | None  #: ticks at which each frame is shown, ascending
    boxes: tuple[tuple[Box, ...], ...]  #: on the displayed (upright) picture

    @property
    def frames(self) -> int:
        """How many frames the file shows."""
        return self.scene.frames - self.first_frame

    @staticmethod
    def path_of(video: Path) -> Path:
        """Where the ground truth of `video` is kept: ``traffic.mp4.json`` for ``traffic.mp4``."""
        return video.with_name(video.name + ".json")

    def save(self, video: Path) -> None:
        """Writes the JSON next to `video`, one line for each frame's boxes."""
        fields = {
            "scene": _plain(self.scene),
            "encoding": _plain(self.encoding),
            "first_frame": self.first_frame,
            "time_base": None if self.time_base is None else str(self.time_base),
            "pts": self.pts,
        }
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items()]
        rows = [
            json.dumps(
                [[b.track, b.label, b.x1, b.y1, b.x2, b.y2] for b in boxes], separators=(",", ":")
            )
            for boxes in self.boxes
        ]
        lines.append('"boxes": [\n' + ",\n".join(rows) + "\n]")
        self.path_of(video).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, video: Path) -> GroundTruth:
        """Read the file that `save` wrote next to `video`.  Raises `OSError` if it is missing."""
        fields = json.loads(cls.path_of(video).read_text(encoding="utf-8"))
        scene, encoding = fields["scene"], fields["encoding"]
        scene |= {"rate": Fraction(scene["rate"]), "classes": tuple(scene["classes"])}
        encoding |= {"start": Fraction(encoding["start"])}
        return cls(
            scene=Scene(**scene),
            encoding=Encoding(**encoding),
            first_frame=fields["first_frame"],
            time_base=None if fields["time_base"] is None else Fraction(fields["time_base"]),
            pts=None if fields["pts"] is None else tuple(fields["pts"]),
            boxes=tuple(tuple(Box(*box) for box in boxes) for boxes in fields["boxes"]),
        )


def _plain(settings: Scene | Encoding) -> dict[str, Any]:
    """The fields as JSON can hold them: fractions as text."""
    return {
        name: str(value) if isinstance(value, Fraction) else value
        for name, value in asdict(settings).items()
    }
