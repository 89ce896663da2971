"""LeRobot data sets, version 3.0: import by link, and export without encoding.

    meta/info.json, meta/stats.json, meta/tasks.parquet
    meta/episodes/chunk-000/file-000.parquet    a row for each episode, with its frames
    data/chunk-000/file-000.parquet             a row for each frame
    videos/CAMERA/chunk-000/file-000.mp4        many episodes, one after the other

An imported set has the same paths in the store, so programs read it from a mount unchanged.  Each
video knows its episodes: `episodes_of`, and a box over the whole frame for each frame, with the
task as label and the episode as track.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vfsd.api.store import Store
from vfsd.api.video import Video, context_of
from vfsd.core.detections import MAX_TEXT_LENGTH, DetectionColumns, Source
from vfsd.disk.tempfiles import atomic_directory
from vfsd.errors import ExtraMissingError, UsageError
from vfsd.validation import local_path, no_such_file
from vfsd.write.tree_edits import put_file

VERSION = "v3.0"
SOURCE = "lerobot"
"""Key of the metadata, and name of the source of the boxes."""

_CHUNK = "chunk-{chunk_index:03d}/file-{file_index:03d}"
_FILES_PER_CHUNK = 1000
# LeRobot's own tolerance of time stamps.
_TOLERANCE_SECONDS = 1e-4
# Statistics of pictures come from this many frames of each video, at this length of a side.
_SAMPLES = 8
_SAMPLE_SIDE = 64

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Episode:
    """A part of a video."""

    number: int  #: in the data set
    frames: range
    tasks: tuple[str, ...]


def episodes_of(video: Video) -> list[Episode]:
    """Return the episodes of an imported video, in their order; none for another one."""
    found = video.metadata.get(SOURCE, {})
    return [
        Episode(int(one["episode"]), range(*one["frames"]), tuple(one["tasks"]))
        for one in found.get("episodes", [])
    ]


def import_lerobot(
    store: Store,
    root: str | os.PathLike[str],
    to: str,
    *,
    link: bool = True,
    on_progress: Progress | None = None,
) -> list[Video]:
    """Add a LeRobot data set to a store as the directory `to`, and return its videos.

    Args:
        store: The store.
        root: The directory of the data set.
        to: The new directory in the store.
        link: Leave the videos where they are.  Other files are copied.
        on_progress: Called with (files done, files in all); it may raise to stop.

    Raises:
        UsageError: It is not a data set of version 3.
        ExistsError: A name is taken.
        NotFoundError: A file is missing.
        ExtraMissingError: pyarrow is not installed.
        RefusedMediaError: A video cannot be read.
    """
    folder = local_path(root, "a data set")
    info = _info(folder)
    by_file = _episodes_by_file(folder, info)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    missing = [name for name in by_file if not (folder / name).is_file()]
    if missing:
        raise no_such_file(folder / missing[0])
    videos = []
    for done, path in enumerate(files, 1):
        name = path.relative_to(folder).as_posix()
        if name in by_file:
            video = store.ingest(path, f"{to}/{name}", link=link)
            videos.append(_described(store, video, info, name, by_file[name]))
        else:
            _copy(store, path, f"{to}/{name}")
        if on_progress is not None:
            on_progress(done, len(files))
    return videos


def _info(folder: Path) -> dict[str, Any]:
    path = folder / "meta" / "info.json"
    if not path.is_file():
        raise no_such_file(path)
    info = json.loads(path.read_text(encoding="utf-8"))
    version = str(info.get("codebase_version", ""))
    if version.split(".")[0] != VERSION.split(".")[0]:
        raise UsageError(
            f"codebase_version must be {VERSION}, got {version!r}",
            hint="convert the data set with the script of LeRobot",
        )
    found: dict[str, Any] = info
    return found


def _episodes_by_file(folder: Path, info: Mapping[str, Any]) -> dict[str, list[Episode]]:
    """Return the episodes of each video file, by its path below the data set."""
    cameras = [key for key, one in info["features"].items() if one["dtype"] == "video"]
    found: dict[str, list[Episode]] = {}
    for path in sorted((folder / "meta" / "episodes").glob("*/*.parquet")):
        for row in _parquet().read_table(path).to_pylist():
            for camera in cameras:
                name = info["video_path"].format(
                    video_key=camera,
                    chunk_index=row[f"videos/{camera}/chunk_index"],
                    file_index=row[f"videos/{camera}/file_index"],
                )
                first = round(row[f"videos/{camera}/from_timestamp"] * info["fps"])
                frames = range(first, first + row["length"])
                one = Episode(row["episode_index"], frames, tuple(row["tasks"]))
                found.setdefault(name, []).append(one)
    return found


def _described(
    store: Store, video: Video, info: Mapping[str, Any], name: str, episodes: Sequence[Episode]
) -> Video:
    inside = [
        Episode(one.number, range(one.frames.start, min(one.frames.stop, len(video))), one.tasks)
        for one in sorted(episodes, key=lambda one: one.frames.start)
    ]
    described = {
        "camera": name.split("/")[1],
        "fps": info["fps"],
        "robot_type": info.get("robot_type"),
        "episodes": [
            {
                "episode": one.number,
                "frames": [one.frames.start, one.frames.stop],
                "tasks": one.tasks,
            }
            for one in inside
        ],
    }
    store.catalog.set_metadata(video.info, **{SOURCE: json.loads(json.dumps(described))})
    frames = np.concatenate([np.asarray(one.frames, np.int64) for one in inside])
    labels = [(one.tasks or ("episode",))[0][:MAX_TEXT_LENGTH].strip() for one in inside]
    box = [(0, 0, video.width, video.height)]
    rows = DetectionColumns.of(
        frames,
        [label for label, one in zip(labels, inside, strict=True) for _ in one.frames],
        np.array(box * len(frames), np.float64).reshape(-1, 4),
        tracks=[one.number for one in inside for _ in one.frames],
    )
    video.labels.add(rows, Source(SOURCE), examined=[range(len(video))])
    return store[video.name]


def _copy(store: Store, path: Path, name: str) -> None:
    new = store.parts.objects.new_file()
    try:
        with path.open("rb") as source:
            shutil.copyfileobj(source, new.file)
        put_file(store.parts, new, name)
    finally:
        new.remove()


def export_lerobot(
    out: str | os.PathLike[str],
    cameras: Mapping[str, Sequence[Video]],
    *,
    task: str = "",
    columns: Mapping[str, npt.NDArray[Any]] | None = None,
    robot_type: str | None = None,
    on_progress: Progress | None = None,
) -> int:
    """Write a LeRobot data set into a new directory, and return the number of episodes.

        export_lerobot("set", {"observation.images.top": [video]}, task="Pick the cube")

    Packets are copied, so the codec must be one that MP4 takes.  An imported video has its
    episodes; any other is one episode.

    Args:
        out: The directory; it must be missing or empty.
        cameras: Videos by feature.  The n-th videos of all cameras show the same time, with
            the same number of frames.
        task: The task of episodes without one.
        columns: Further features, such as "action": one row for each frame, in order.
        robot_type: Noted in info.json.
        on_progress: Called with (videos done, videos in all); it may raise to stop.

    Raises:
        UsageError: The videos do not fit together, have a variable rate, or need encoding.
        ExistsError: `out` is not empty.
        ExtraMissingError: pyarrow is not installed.
        NoSpaceError: The disk is full.
    """
    _parquet()
    groups = list(zip(*cameras.values(), strict=False))
    if not groups or any(len(videos) != len(groups) for videos in cameras.values()):
        raise UsageError("cameras must have equal numbers of videos, at least one")
    rate = groups[0][0].fps
    for camera, videos in cameras.items():
        for video, first in zip(videos, next(iter(cameras.values())), strict=True):
            _require_fit(camera, video, videos[0], rate, len(first))
    job = _Export.of(groups, list(cameras), float(rate), task, dict(columns or {}))
    with atomic_directory(local_path(out, "a directory")) as folder:
        job.write_videos(folder, on_progress)
        job.write_meta(folder, robot_type)
    return len(job.episodes)


def _require_fit(camera: str, video: Video, like: Video, rate: Any, frames: int) -> None:
    if len(video) != frames:
        raise UsageError(f"{video.name!r} must have {frames} frames as the other cameras")
    if video.shape[1:] != like.shape[1:]:
        raise UsageError(f"{video.name!r} must have the size of the other videos of {camera}")
    table = context_of(video).snapshot().table
    ticks = np.asarray(table.pts(), np.float64)
    seconds = (ticks - ticks[0]) * float(video.original.media.time_base)
    wrong = np.abs(seconds - np.arange(frames) / float(rate)) > _TOLERANCE_SECONDS
    if video.fps != rate or wrong.any():
        raise UsageError(
            f"{video.name!r} must have a constant rate of {float(rate):g}",
            hint="save it with fps= first, and ingest the result",
        )
    made = video.views.explain("full.mp4").made
    if made != "copied":
        raise UsageError(
            f"the packets of {video.name!r} cannot be copied to MP4: they would be {made}"
        )


@dataclass(frozen=True, slots=True)
class _Export:
    groups: Sequence[tuple[Video, ...]]
    cameras: Sequence[str]
    fps: float
    tasks: Sequence[str]
    episodes: Sequence[tuple[int, Episode]]  #: with the number of its group
    columns: Mapping[str, npt.NDArray[Any]]

    @classmethod
    def of(
        cls,
        groups: Sequence[tuple[Video, ...]],
        cameras: Sequence[str],
        fps: float,
        task: str,
        columns: Mapping[str, npt.NDArray[Any]],
    ) -> _Export:
        episodes = []
        for number, (video, *_) in enumerate(groups):
            found = episodes_of(video) or [Episode(0, range(len(video)), ())]
            episodes += [
                (number, Episode(0, one.frames, one.tasks or (task or "episode",))) for one in found
            ]
        total = sum(len(one.frames) for _, one in episodes)
        for name, values in columns.items():
            if len(values) != total or values.ndim not in (1, 2):
                raise UsageError(
                    f"{name} must have a row for each of {total} frames, got {values.shape}"
                )
        tasks = list(dict.fromkeys(name for _, one in episodes for name in one.tasks))
        return cls(groups, cameras, fps, tasks, episodes, columns)

    def write_videos(self, folder: Path, on_progress: Progress | None) -> None:
        done, total = 0, len(self.groups) * len(self.cameras)
        for number, group in enumerate(self.groups):
            for camera, video in zip(self.cameras, group, strict=True):
                path = folder / "videos" / camera / f"{_place(number)}.mp4"
                path.parent.mkdir(parents=True, exist_ok=True)
                video.save(path, sound="no")
                done += 1
                if on_progress is not None:
                    on_progress(done, total)

    def write_meta(self, folder: Path, robot_type: str | None) -> None:
        total = sum(len(one.frames) for _, one in self.episodes)
        frame = np.concatenate([np.arange(len(one.frames)) for _, one in self.episodes])
        data: dict[str, npt.NDArray[Any]] = {
            **self.columns,
            "timestamp": (frame / self.fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": self._each([*range(len(self.episodes))]),
            "index": np.arange(total),
            "task_index": self._each([self.tasks.index(one.tasks[0]) for _, one in self.episodes]),
        }
        _write_table(folder / "data" / f"{_place(0)}.parquet", data)
        _write_table(folder / "meta/episodes" / f"{_place(0)}.parquet", self._episode_rows())
        tasks = {"task_index": np.arange(len(self.tasks)), "task": list(self.tasks)}
        _write_table(folder / "meta/tasks.parquet", tasks, index="task")
        features = {
            **{name: self._video_feature(at) for at, name in enumerate(self.cameras)},
            **{
                name: {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1]}
                | {"names": None}
                for name, values in data.items()
            },
        }
        info = {
            "codebase_version": VERSION,
            "robot_type": robot_type,
            "total_episodes": len(self.episodes),
            "total_frames": total,
            "total_tasks": len(self.tasks),
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": 100,
            "video_files_size_in_mb": 200,
            "fps": int(self.fps) if self.fps == int(self.fps) else self.fps,
            "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": f"data/{_CHUNK}.parquet",
            "video_path": f"videos/{{video_key}}/{_CHUNK}.mp4",
            "features": features,
        }
        stats = {name: _statistics(values) for name, values in data.items()}
        stats |= {name: self._picture_statistics(at) for at, name in enumerate(self.cameras)}
        for path, content in (("meta/info.json", info), ("meta/stats.json", stats)):
            (folder / path).write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")

    def _each(self, values: Sequence[int]) -> npt.NDArray[Any]:
        return np.repeat(values, [len(one.frames) for _, one in self.episodes])

    def _episode_rows(self) -> dict[str, Any]:
        lengths = np.array([len(one.frames) for _, one in self.episodes])
        ends = np.cumsum(lengths)
        groups = np.array([number for number, _ in self.episodes])
        zeros = np.zeros(len(lengths), np.int64)
        rows: dict[str, Any] = {
            "episode_index": np.arange(len(lengths)),
            "tasks": [list(one.tasks) for _, one in self.episodes],
            "length": lengths,
            "data/chunk_index": zeros,
            "data/file_index": zeros,
            "dataset_from_index": ends - lengths,
            "dataset_to_index": ends,
            "meta/episodes/chunk_index": zeros,
            "meta/episodes/file_index": zeros,
        }
        for camera in self.cameras:
            rows |= {
                f"videos/{camera}/chunk_index": groups // _FILES_PER_CHUNK,
                f"videos/{camera}/file_index": groups % _FILES_PER_CHUNK,
                f"videos/{camera}/from_timestamp": np.array(
                    [one.frames.start / self.fps for _, one in self.episodes]
                ),
                f"videos/{camera}/to_timestamp": np.array(
                    [one.frames.stop / self.fps for _, one in self.episodes]
                ),
            }
        return rows

    def _video_feature(self, camera: int) -> dict[str, Any]:
        video = self.groups[0][camera]
        return {
            "dtype": "video",
            "shape": [video.height, video.width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": video.height,
                "video.width": video.width,
                "video.codec": video.codec,
                "video.pix_fmt": video.original.media.pixel_format,
                "video.is_depth_map": False,
                "video.fps": self.fps,
                "video.channels": 3,
                "has_audio": False,
            },
        }

    def _picture_statistics(self, camera: int) -> dict[str, Any]:
        """Statistics of each channel, as shares of full brightness, of a sample of frames."""
        parts = []
        for group in self.groups:
            video = group[camera]
            frames = np.unique(np.linspace(0, len(video) - 1, _SAMPLES).astype(np.int64))
            parts.append(video.read(frames=frames, size=_SAMPLE_SIDE).data.reshape(-1, 3))
        found = _statistics(np.concatenate(parts) / 255)
        return {
            name: value if name == "count" else [[[one]] for one in value]
            for name, value in found.items()
        }


def _place(number: int) -> str:
    return _CHUNK.format(
        chunk_index=number // _FILES_PER_CHUNK, file_index=number % _FILES_PER_CHUNK
    )


def _statistics(values: npt.NDArray[Any]) -> dict[str, Any]:
    rows = np.asarray(values, np.float64).reshape(len(values), -1)
    return {
        "min": rows.min(axis=0).tolist(),
        "max": rows.max(axis=0).tolist(),
        "mean": rows.mean(axis=0).tolist(),
        "std": rows.std(axis=0).tolist(),
        "count": [len(rows)],
    }


def _write_table(path: Path, columns: Mapping[str, Any], index: str | None = None) -> None:
    import pyarrow as pa

    arrays = {}
    for name, values in columns.items():
        if getattr(values, "ndim", 1) == 2:
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            arrays[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        else:
            arrays[name] = pa.array(values)
    table = pa.table(arrays)
    if index is not None:
        table = table.replace_schema_metadata({"pandas": json.dumps(_pandas(table, index))})
    path.parent.mkdir(parents=True, exist_ok=True)
    _parquet().write_table(table, path)


def _pandas(table: Any, index: str) -> dict[str, Any]:
    """Return the note that lets pandas restore an index, where LeRobot looks for tasks."""

    def described(name: str) -> dict[str, Any]:
        is_text = name == index
        return {
            "name": name,
            "field_name": name,
            "pandas_type": "unicode" if is_text else "int64",
            "numpy_type": "object" if is_text else "int64",
            "metadata": None,
        }

    return {
        "index_columns": [index],
        "column_indexes": [],
        "columns": [described(name) for name in table.column_names],
        "pandas_version": "2.0.0",
    }


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ExtraMissingError("pyarrow is not installed", hint="install vfsd[arrow]") from None
    return pyarrow.parquet
