"""Data sets of pictures and boxes over many videos: COCO and YOLO.

The folder of a data set has one folder of pictures for each split, and in it one for each video:

    images/train/cam1/a.mp4/000123.jpg      a copy, or a link to cam1/a.mp4@/frames/000123.jpg
    annotations/train.json                  COCO; file names are relative to images/train
    labels/train/cam1/a.mp4/000123.txt      YOLO, with data.yaml
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import yaml

from vfsd.api.video import Video
from vfsd.core.detections import NO_TRACK, DetectionColumns, Ints, Source
from vfsd.core.label_query import Labels
from vfsd.core.pixel_array import Pixels
from vfsd.core.timebase import Seconds
from vfsd.core.view_request import Size, checked_size, resolve_size
from vfsd.datasets.selection import (
    SPLITS,
    Selection,
    Split,
    class_names,
    mount_place,
    split_videos,
)
from vfsd.disk.tempfiles import atomic_directory
from vfsd.errors import UsageError
from vfsd.labels import LabelExport, LabelWriteOptions
from vfsd.labels.formats import coco, yolo
from vfsd.validation import local_path, not_one_of

FORMATS = ("coco", "yolo")
IMAGES = ("copy", "link", "none")
PICTURES = ("jpg", "png")

# Pixels of this many bytes are decoded at a time.
_CHUNK_BYTES = 64 << 20
# The gray of the margins that trainers of YOLO make.
_MARGIN_LEVEL = 114

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ExportedSplit:
    """The content of one split."""

    videos: tuple[str, ...]  #: names in the store
    pictures: int
    boxes: int


@dataclass(frozen=True, slots=True)
class Exported:
    """The content of a data set."""

    classes: tuple[str, ...]  #: in the order of their numbers
    splits: Mapping[str, ExportedSplit]  #: by name, those of `SPLITS`


def export_pictures(
    videos: Iterable[Video],
    out: str | os.PathLike[str],
    format: str,
    *,
    labels: Labels | None = None,
    source: Source | str | None = None,
    min_confidence: float | None = None,
    span: tuple[Seconds, Seconds | None] | None = None,
    frames: str = "examined",
    every: int = 1,
    split: Split = "0.8/0.1/0.1",
    seed: int = 0,
    images: str = "copy",
    picture: str = "jpg",
    size: Size | None = None,
    letterbox: bool = False,
    mount: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> Exported:
    """Write a data set for detection into a new directory, which appears when it is complete.

        export_pictures(store.find("cam1/*"), "cars", "yolo", labels="car|truck", every=5)

    Boxes are clipped at the edge of the frame, and follow its pixels to the size of the pictures.
    YOLO labels have no confidences and no tracks.

    Args:
        videos: The videos.
        out: The directory; it must be missing or empty.
        format: "coco" or "yolo".
        labels: The boxes, as for `VideoLabels.query`; default: all.
        source: The source of the boxes.
        min_confidence: The lowest confidence.
        span: Seconds of each video, start inclusive and end exclusive.
        frames: "examined": frames that a source has examined, or with a box; "boxes": frames with
            a selected box; "all": every frame.
        every: Of these, the frames with a multiple of this number.
        split: Shares of train, val and test; or names of videos by split, where the rest is train.
            A video is never in two splits.
        seed: Selects the videos of each split, for shares.
        images: "copy"; "link": symbolic links into the mount; or "none".
        picture: "jpg" or "png".
        size: Width and height of copied pictures, or their short side, see `Video.read`; default:
            those of the frame.
        letterbox: The frame keeps its shape within `size`, between gray margins; a single length
            is both sides.  Default: the frame is stretched to `size`.
        mount: The directory that links lead to; default: where the store is mounted.
        on_progress: Called with (pictures done, pictures in all); it may raise to stop.

    Raises:
        UsageError: An argument is malformed, or links need a mount.
        ExistsError: `out` is not empty.
        OutOfRangeError: The span starts after the end of a video.
        NoSpaceError: The disk is full.
    """
    for what, value, known in (
        ("format", format, FORMATS),
        ("images", images, IMAGES),
        ("picture", picture, PICTURES),
    ):
        if value not in known:
            raise not_one_of(what, value, known)
    if size is None and letterbox:
        raise UsageError("letterbox needs a size")
    if size is not None and images == "link":
        raise UsageError("pictures of another size cannot be links", hint="use images=copy")
    chosen = list(videos)
    if not chosen:
        raise UsageError("a data set needs at least one video")
    selection = Selection(labels, source, min_confidence, span, frames, every)
    by_split = split_videos(chosen, split, seed)
    exports = {video.name: selection.of(video) for video in chosen}
    link_to = None
    if images == "link":
        link_to = mount_place(chosen[0]) if mount is None else local_path(mount, "a mount")
    fits = {video.name: _fit_of(video, size, letterbox=letterbox) for video in chosen}
    job = _Job(exports, class_names(exports.values()), by_split, picture, fits)
    with atomic_directory(local_path(out, "a directory")) as folder:
        if format == "coco":
            job.write_coco(folder)
        else:
            job.write_yolo(folder)
        if images != "none":
            job.write_pictures(folder, link_to, on_progress)
    return job.summary()


@dataclass(frozen=True, slots=True)
class _Fit:
    """The place of a frame in its picture, in pixels of the picture."""

    width: int  #: of the picture
    height: int
    inner: tuple[int, int]  #: width and height of the scaled frame
    left: int = 0
    top: int = 0

    def fitted(self, one: LabelExport) -> LabelExport:
        """Return the boxes in pixels of the picture; the edges of a frame stay exactly there."""
        frame = np.array((one.clip.width, one.clip.height) * 2, np.float64)
        boxes = one.columns.boxes * (self.inner * 2) / frame
        return replace(
            one,
            columns=replace(one.columns, boxes=boxes + (self.left, self.top) * 2),
            clip=replace(one.clip, width=self.width, height=self.height),
        )

    def framed(self, pixels: Pixels) -> Pixels:
        """Return the picture of a scaled frame, H x W x 3."""
        if self.inner == (self.width, self.height):
            return pixels
        picture = np.full((self.height, self.width, 3), _MARGIN_LEVEL, np.uint8)
        width, height = self.inner
        picture[self.top : self.top + height, self.left : self.left + width] = pixels
        return picture


def _fit_of(video: Video, size: Size | None, *, letterbox: bool) -> _Fit:
    if size is None:
        return _Fit(video.width, video.height, (video.width, video.height))
    if not letterbox:
        width, height = resolve_size(size, video.width, video.height)
        return _Fit(width, height, (width, height))
    checked = checked_size(size)
    width, height = checked if isinstance(checked, tuple) else (checked, checked)
    if not width or not height:
        raise UsageError(f"letterbox needs a width and a height, got {width}x{height}")
    scale = min(Fraction(width, video.width), Fraction(height, video.height))
    inner = max(round(video.width * scale), 1), max(round(video.height * scale), 1)
    return _Fit(width, height, inner, (width - inner[0]) // 2, (height - inner[1]) // 2)


@dataclass(frozen=True, slots=True)
class _Job:
    exports: Mapping[str, LabelExport]  #: by name of the video
    classes: Sequence[str]
    by_split: Mapping[str, Sequence[Video]]
    picture: str
    fits: Mapping[str, _Fit]  #: by name of the video

    def write_coco(self, folder: Path) -> None:
        (folder / "annotations").mkdir()
        options = LabelWriteOptions(classes=self.classes, picture=self.picture)
        every = [self.fits[name].fitted(one) for name, one in self.exports.items()]
        for split, videos in self.by_split.items():
            pieces = coco.write_dataset(every, options, {video.name for video in videos})
            _write(folder / "annotations" / f"{split}.json", pieces)

    def write_yolo(self, folder: Path) -> None:
        numbers = {name: number for number, name in enumerate(self.classes)}
        for split, videos in self.by_split.items():
            (folder / "labels" / split).mkdir(parents=True)
            for video in videos:
                one = self.exports[video.name]
                fit = self.fits[video.name]
                if fit.inner != (fit.width, fit.height):
                    # Shares of a stretched frame stay the same, to the last digit.
                    one = fit.fitted(one)
                place = folder / "labels" / split / _yolo_folder(video.name)
                place.mkdir(parents=True, exist_ok=True)
                shown = LabelExport(_bare(one.columns), (), one.clip, one.frames)
                for name, pieces in yolo.write_frames(shown, numbers, LabelWriteOptions()):
                    _write(place / name, pieces)
        # Without `path`, the folders are relative to this file, so the data set can be moved.
        content = {
            **{split: f"images/{split}" for split in SPLITS},
            "names": dict(enumerate(self.classes)),
        }
        _write(folder / "data.yaml", [yaml.safe_dump(content, sort_keys=False, allow_unicode=True)])

    def write_pictures(
        self, folder: Path, link_to: Path | None, on_progress: Progress | None
    ) -> None:
        is_yolo = (folder / "labels").exists()
        total = sum(len(_frames(one)) for one in self.exports.values())
        done = 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for split, videos in self.by_split.items():
                (folder / "images" / split).mkdir(parents=True)
                for video in videos:
                    name = _yolo_folder(video.name) if is_yolo else video.name
                    place = folder / "images" / split / name
                    place.mkdir(parents=True, exist_ok=True)
                    frames = _frames(self.exports[video.name])
                    if link_to is None:
                        fit = self.fits[video.name]
                        steps = _copied(video, frames, fit, place, self.picture, pool)
                    else:
                        steps = _linked(video, frames, place, self.picture, link_to)
                    for _ in steps:
                        done += 1
                        if on_progress is not None:
                            on_progress(done, total)

    def summary(self) -> Exported:
        splits = {}
        for split, videos in self.by_split.items():
            of_split = [self.exports[video.name] for video in videos]
            splits[split] = ExportedSplit(
                tuple(video.name for video in videos),
                sum(len(_frames(one)) for one in of_split),
                sum(len(one.columns) for one in of_split),
            )
        return Exported(tuple(self.classes), splits)


def _frames(one: LabelExport) -> Ints:
    assert one.frames is not None
    return one.frames


def _bare(rows: DetectionColumns) -> DetectionColumns:
    """Return rows of five values: trainers take a sixth or seventh for a polygon, or refuse it."""
    return DetectionColumns(
        rows.frames,
        rows.codes,
        rows.names,
        rows.boxes,
        np.full(len(rows), math.nan),
        np.full(len(rows), NO_TRACK, np.int64),
    )


def _yolo_folder(name: str) -> str:
    """Return the folder of a video in images/SPLIT and in labels/SPLIT.

    Trainers find labels by replacing the last part `images` of a path, so no other may follow.
    """
    return "/".join(f"{part}_" if part == "images" else part for part in name.split("/"))


def _write(path: Path, pieces: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)


def _copied(
    video: Video, frames: Ints, fit: _Fit, place: Path, picture: str, pool: ThreadPoolExecutor
) -> Iterator[None]:
    """Write pictures, in full size with the bytes of those in a mount, and yield after each."""
    from vfsd.codecs.encoding.encoder import MIN_JPEG_QUANTISER, encode_jpeg, encode_png

    def write(frame: int, pixels: Pixels) -> None:
        pixels = fit.framed(pixels)
        data = (
            encode_jpeg(pixels, quantiser=MIN_JPEG_QUANTISER)
            if picture == "jpg"
            else encode_png(pixels)
        )
        (place / f"{frame:06}.{picture}").write_bytes(data)

    # A read decodes each group of pictures once, so it takes many frames.
    count = max(1, _CHUNK_BYTES // (fit.width * fit.height * 3))
    size = None if fit.inner == (video.width, video.height) else fit.inner
    for first in range(0, len(frames), count):
        part = frames[first : first + count]
        read = video.frames(part, size=size, psnr=math.inf)
        for _ in pool.map(write, part.tolist(), read.data):
            yield


def _linked(video: Video, frames: Ints, place: Path, picture: str, mount: Path) -> Iterator[None]:
    source = mount / f"{video.name}@" / "frames"
    for frame in frames.tolist():
        name = f"{frame:06}.{picture}"
        (place / name).symlink_to(source / name)
        yield
