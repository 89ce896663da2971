"""Files of vectors: .npy and .npz of NumPy, and Parquet.

.npy        N x dimension; the frames are not in it
.npz        vectors: N x dimension; frames: N x 2, first and end, or N single frames
.parquet    a row for each vector: first_frame, end_frame, and vector, a list
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vfsd.core.arrow_tables import require_pyarrow
from vfsd.core.detections import Ints
from vfsd.disk.tempfiles import atomic_file
from vfsd.errors import RefusedMediaError, UsageError
from vfsd.validation import no_such_file

if TYPE_CHECKING:
    from vfsd.core.vectors import Vectors

SUFFIXES = (".npy", ".npz", ".parquet")


def read_vectors(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return the vectors of a file, and their frames; None for a .npy.

    Raises `NotFoundError`, `UsageError` for another ending, `RefusedMediaError` for a file that
    does not hold vectors, and `ExtraMissingError`.
    """
    _require_suffix(path)
    if not path.is_file():
        raise no_such_file(path)
    try:
        if path.suffix == ".parquet":
            return _from_parquet(path)
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return found, None
            with found:
                return found["vectors"], found["frames"]
    except KeyError as error:
        reason = str(error.args[0])
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, NotImplementedError) as error:
        reason = str(error)
    raise RefusedMediaError(
        f"{path} does not hold vectors: {reason}",
        hint="a .npz needs the arrays vectors and frames; a Parquet file the columns first_frame, "
        "end_frame and vector",
    )


def write_vectors(path: Path, found: Vectors, replace: bool) -> int:
    """Write vectors to a file, whole or not at all; return its size in bytes.

    Raises `UsageError` for another ending, `ExistsError` without `replace`, `ExtraMissingError`,
    `NoSpaceError` and `OSError`.
    """
    _require_suffix(path)
    if path.suffix == ".parquet":
        require_pyarrow()
    with atomic_file(path, replace) as file:
        if path.suffix == ".npy":
            np.save(file, found.matrix, allow_pickle=False)
        elif path.suffix == ".npz":
            np.savez(file, vectors=found.matrix, frames=found.frames)
        else:
            _to_parquet(file, found)
        return int(file.seek(0, 2))


def runs_of(rows: int, every: int, frames: int) -> Ints:
    """Return the runs of `rows` vectors of `every` frames each; the last one ends with the video.

    Raises `UsageError` if the video of `frames` frames is too short for so many.
    """
    if every < 1:
        raise UsageError(f"every must be at least 1, got {every}")
    first = np.arange(rows) * every
    if rows and first[-1] >= frames:
        raise UsageError(
            f"{rows} vectors of {every} frames each need more than {frames} frames",
            hint="one vector for each frame has every = 1",
        )
    return np.stack([first, np.minimum(first + every, frames)], axis=1)


def _require_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise UsageError(f"the file must end with {', '.join(SUFFIXES)}, got {path.name!r}")


def _from_parquet(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    require_pyarrow()
    import pyarrow.compute
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, columns=["first_frame", "end_frame", "vector"])
        lists = table["vector"].combine_chunks()
        numbers = lists.flatten().to_numpy(zero_copy_only=False)
        frames = [
            table[name].to_numpy().astype(np.int64, casting="safe")
            for name in ("first_frame", "end_frame")
        ]
    except (pyarrow.ArrowException, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from error
    lengths = set(pyarrow.compute.list_value_length(lists).to_pylist())
    if len(lengths) > 1 or None in lengths:
        raise ValueError("its vectors have several lengths, or are null")
    return numbers.reshape(len(lists), -1), np.stack(frames, axis=1)


def _to_parquet(file: Any, found: Vectors) -> None:
    import pyarrow
    import pyarrow.parquet

    numbers = pyarrow.array(found.matrix.ravel())
    columns = {
        "first_frame": found.frames[:, 0],
        "end_frame": found.frames[:, 1],
        "vector": pyarrow.FixedSizeListArray.from_arrays(numbers, found.matrix.shape[1]),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
