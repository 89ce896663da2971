"""Generated camera footage whose every frame, time and object is known.

Not part of the installed package: a tool of the tests, the benchmarks and the documentation.
"""

from sample_videos.clips import CLIPS, FOLDER
from sample_videos.encoding import Encoding
from sample_videos.scene import Box, Scene
from sample_videos.stamp import read_frame_number
from sample_videos.truth import GroundTruth
from sample_videos.verifying import problems
from sample_videos.writing import upright, write

__all__ = [
    "CLIPS",
    "FOLDER",
    "Box",
    "Encoding",
    "GroundTruth",
    "Scene",
    "problems",
    "read_frame_number",
    "upright",
    "write",
]
