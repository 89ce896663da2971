"""Boxes as objects of supervision and FiftyOne, which read pictures from the mount.

FiftyOne counts frames from 1.  A frame has the path of its picture in the mount, so `to_frames`
extracts nothing.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vfsd.api.video import Video
from vfsd.core.detections import Detection, DetectionColumns, Source
from vfsd.core.label_query import Labels
from vfsd.datasets.selection import mount_place
from vfsd.disk.tempfiles import atomic_directory
from vfsd.errors import ExtraMissingError, UsageError
from vfsd.validation import local_path


def to_supervision(detections: Iterable[Detection], classes: Sequence[str] | None = None) -> Any:
    """Return boxes as `supervision.Detections`, such as those of one frame.

        to_supervision(video.labels.query("car", frames=7))

    The label of each box is in `data["class_name"]`; `vfsd.labels.from_supervision` is the reverse.

    Args:
        detections: The boxes, such as a query.
        classes: Labels in the order of their numbers; default: sorted labels of these boxes.

    Raises:
        UsageError: A label is not among the classes.
        ExtraMissingError: supervision is not installed.
    """
    supervision = _required("supervision")
    rows = DetectionColumns.from_detections(list(detections))
    labels = [str(one) for one in rows.labels]
    names = sorted(set(labels)) if classes is None else list(classes)
    unknown = sorted(set(labels) - set(names))
    if unknown:
        raise UsageError(f"classes must contain {unknown[0]!r}, got {names}")
    numbers = {name: at for at, name in enumerate(names)}
    # supervision has one column for all boxes, or none: a track of -1 would be drawn as a track.
    has_tracks = len(rows) > 0 and bool((rows.tracks >= 0).all())
    has_confidences = not np.isnan(rows.confidences).any()
    return supervision.Detections(
        xyxy=rows.boxes.reshape(-1, 4),
        confidence=rows.confidences if has_confidences else None,
        class_id=np.array([numbers[name] for name in labels], np.int64),
        tracker_id=rows.tracks if has_tracks else None,
        data={"class_name": np.array(labels, dtype=np.str_)},
    )


def to_fiftyone(
    videos: Iterable[Video],
    name: str,
    *,
    labels: Labels | None = None,
    source: Source | str | None = None,
    mount: str | os.PathLike[str] | None = None,
    field: str = "detections",
) -> Any:
    """Return a new `fiftyone.Dataset` with a sample for each video.

    Args:
        videos: The videos.
        name: The name of the data set.
        labels: The boxes, as for `VideoLabels.query`; default: all.
        source: The source of the boxes.
        mount: The directory of the mount; default: where the store is mounted.
        field: The field of each frame with its boxes.

    Raises:
        UsageError: The store is not mounted.
        ExtraMissingError: fiftyone is not installed.
    """
    fo = _required("fiftyone")
    samples = [
        _sample(fo, video, _place(video, mount), _found(video, labels, source), field)
        for video in videos
    ]
    dataset = fo.Dataset(name)
    dataset.add_samples(samples)
    return dataset


def _sample(fo: Any, video: Video, place: Path, rows: DetectionColumns, field: str) -> Any:
    sample = fo.Sample(filepath=str(place), tags=sorted(video.tags))
    sample.metadata = fo.VideoMetadata(
        frame_width=video.width,
        frame_height=video.height,
        frame_rate=float(video.fps),
        total_frame_count=len(video),
        duration=float(video.duration),
    )
    for frame, boxes in _by_frame(rows):
        found = [
            fo.Detection(
                label=one.label,
                bounding_box=_shares(one, video),
                confidence=one.confidence,
                index=one.track,
                **{
                    f"{key}_" if hasattr(fo.Detection, key) else key: value
                    for key, value in one.attributes.items()
                },
            )
            for one in boxes
        ]
        picture = str(place.with_name(f"{place.name}@") / "frames" / f"{frame:06}.jpg")
        sample.frames[frame + 1] = fo.Frame(
            filepath=picture, **{field: fo.Detections(detections=found)}
        )
    return sample


def export_fiftyone(
    videos: Iterable[Video],
    out: str | os.PathLike[str],
    *,
    labels: Labels | None = None,
    source: Source | str | None = None,
    mount: str | os.PathLike[str] | None = None,
) -> int:
    """Write a data set of the type FiftyOneVideoLabelsDataset, and return the number of videos.

        fiftyone.Dataset.from_dir("out", dataset_type=fiftyone.types.FiftyOneVideoLabelsDataset)

    Videos stay in the mount; the new directory `out` has the boxes.  fiftyone is not needed.

    Args:
        videos: The videos.
        out: The directory; it must be missing or empty.
        labels: The boxes, as for `VideoLabels.query`; default: all.
        source: The source of the boxes.
        mount: The directory of the mount; default: where the store is mounted.

    Raises:
        UsageError: The store is not mounted.
        ExistsError: `out` is not empty.
        NoSpaceError: The disk is full.
    """
    index = []
    with atomic_directory(local_path(out, "a directory")) as folder:
        (folder / "labels").mkdir()
        for number, video in enumerate(videos):
            name = f"labels/{number:06}.json"
            frames = {
                str(frame + 1): {
                    "frame_number": frame + 1,
                    "objects": {"objects": [_object(one, video) for one in boxes]},
                }
                for frame, boxes in _by_frame(_found(video, labels, source))
            }
            (folder / name).write_text(json.dumps({"frames": frames}), encoding="utf-8")
            index.append({"data": str(_place(video, mount)), "labels": name})
        manifest = {"type": _INDEX_TYPE, "description": "", "index": index}
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    return len(index)


_INDEX_TYPE = "eta.core.datasets.LabeledVideoDataset"


def _object(one: Detection, video: Video) -> dict[str, Any]:
    x, y, width, height = _shares(one, video)
    found: dict[str, Any] = {
        "label": one.label,
        "bounding_box": {
            "top_left": {"x": x, "y": y},
            "bottom_right": {"x": x + width, "y": y + height},
        },
    }
    if one.confidence is not None:
        found["confidence"] = one.confidence
    if one.track is not None:
        found["index"] = one.track
    return found


def _found(video: Video, labels: Labels | None, source: Source | str | None) -> DetectionColumns:
    return video.labels.query(labels, source=source).columns().clipped(video.width, video.height)


def _by_frame(rows: DetectionColumns) -> Iterator[tuple[int, list[Detection]]]:
    rows = rows.sorted_by_frame()
    for frame in np.unique(rows.frames).tolist():
        first, end = np.searchsorted(rows.frames, [frame, frame + 1]).tolist()
        yield frame, [rows[at] for at in range(first, end)]


def _shares(one: Detection, video: Video) -> list[float]:
    """Return x, y, width and height as shares of the frame."""
    x1, y1, x2, y2 = one.box
    return [
        x1 / video.width,
        y1 / video.height,
        (x2 - x1) / video.width,
        (y2 - y1) / video.height,
    ]


def _place(video: Video, mount: str | os.PathLike[str] | None) -> Path:
    folder = mount_place(video) if mount is None else local_path(mount, "a mount")
    return folder / video.name


def _required(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ExtraMissingError(
            f"{package} is not installed", hint=f"pip install {package}"
        ) from None
