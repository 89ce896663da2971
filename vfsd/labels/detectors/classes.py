"""The names of a model's classes."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from vfsd.core.detections import DetectionColumns
from vfsd.errors import UsageError
from vfsd.labels.formats.class_names import read_names

_MOST_LETTERS = 1 << 20
"""Of what a model says of its classes; the largest vocabularies have some ten thousand words."""


def class_names(metadata: Mapping[str, str], file: Path | None) -> dict[int, str]:
    """Classes by number: of `file` (one a line, or a data.yaml), else what the model itself says
    (``names``, as Ultralytics writes it), else none.

    Raises `UsageError` for names that cannot be labels.
    """
    names = _written(metadata.get("names", "")) if file is None else read_names(file)
    DetectionColumns.of([0] * len(names), list(names.values()), [(0, 0, 1, 1)] * len(names))
    return names


def _written(text: str) -> dict[int, str]:
    """From ``{0: 'person', 1: 'car'}`` or ``['person', 'car']``."""
    if not text:
        return {}
    try:
        if len(text) > _MOST_LETTERS:
            raise ValueError(len(text))
        value = ast.literal_eval(text)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {int(number): str(name) for number, name in items}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UsageError(
            "the names of classes in the model cannot be read", hint="give a file with them"
        ) from None
