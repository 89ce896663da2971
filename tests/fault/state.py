"""The contents of a store in a form that can be compared: user data, and raw rows."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vfsd.api.store import Store
from vfsd.core.model import Node

Row = tuple[Any, ...]

_OF_VIDEOS = {
    "boxes": "SELECT l.name, d.frame, d.x1, d.y1, d.x2, d.y2 FROM detections d"
    " JOIN labels l ON l.id = d.label_id WHERE d.video_id = ?",
    "examined": "SELECT first_frame, end_frame FROM examined WHERE video_id = ?",
    "tags": "SELECT tag FROM tags WHERE video_id = ?",
    "budget": "SELECT bytes, times FROM budgets WHERE video_id = ?",
    "pins": "SELECT role, first_frame, end_frame, width, height FROM pins WHERE video_id = ?",
    "holds": "SELECT reason FROM holds WHERE video_id = ?",
}
_SEGMENTS = (
    "SELECT s.first_frame, s.end_frame, s.layout, s.profile, s.size, s.retired_ns IS NULL"
    " FROM segments s JOIN physical_videos p ON p.id = s.physical_id WHERE p.video_id = ?"
)
_LOGS = frozenset({"reads", "costs", "original_log", "evictions", "sqlite_sequence"})
_TIMES = frozenset({"used_ns", "used_at_read", "uses", "saved"})
_LEARNED = frozenset({"verified", "cost_factor"})
"""Columns with facts about files, which stay correct even if a later step fails."""


@dataclass(frozen=True)
class State:
    """The names and metadata that users see, and the segments that are kept with them."""

    names: frozenset[Row]  #: (path, type, digest of the bytes or target)
    known: frozenset[Row]  #: (path, what, all rows about it)
    segments: frozenset[Row]  #: (path, a segment of tiles or of a rendition)

    def differs(self, other: State, *, but: frozenset[str] = frozenset()) -> str:
        """The difference of two states except for the names in `but`; empty if there is none."""
        found = []
        for what in ("names", "known"):
            mine = {row for row in getattr(self, what) if row[0] not in but}
            theirs = {row for row in getattr(other, what) if row[0] not in but}
            found += [f"+{_short(row)}" for row in sorted(mine - theirs, key=repr)]
            found += [f"-{_short(row)}" for row in sorted(theirs - mine, key=repr)]
        return "; ".join(found[:4])


def _short(row: Row) -> str:
    return " ".join(str(value)[:60] for value in row)


def state_of(store: Store) -> State:
    """The state of an open store."""
    names: set[Row] = set()
    known: set[Row] = set()
    segments: set[Row] = set()
    url = f"file:{store.catalog.path}?mode=ro"
    with closing(sqlite3.connect(url, uri=True)) as database:
        for path, node in _walk(store, ""):
            names.add((path, node.mode >> 12, _digest(store, node)))
            video = database.execute("SELECT id FROM videos WHERE ino = ?", (node.ino,)).fetchone()
            about = {
                "attributes": _rows(database, _XATTRS, node.ino),
                "policy": _rows(database, _POLICIES, node.ino),
            }
            if video is not None:
                about |= {what: _rows(database, ask, *video) for what, ask in _OF_VIDEOS.items()}
                segments.update((path, *row) for row in _rows(database, _SEGMENTS, *video))
            # Nothing is known yet about an unjudged file or a new video.
            known.update((path, what, rows) for what, rows in about.items() if rows)
    return State(frozenset(names), frozenset(known), frozenset(segments))


_XATTRS = "SELECT name, value FROM xattrs WHERE ino = ?"
_POLICIES = "SELECT original, psnr, keep, replace_after, delete_after FROM policies WHERE ino = ?"


def _catalog(root: Path) -> Path:
    return root / "catalog.sqlite3"


def _rows(database: sqlite3.Connection, query: str, *of: int) -> tuple[Row, ...]:
    return tuple(sorted(map(tuple, database.execute(query, of)), key=repr))


def _walk(store: Store, path: str) -> Iterable[tuple[str, Node]]:
    for name, node in store.entries(path):
        full = f"{path}/{name}".lstrip("/")
        yield full, node
        if node.is_dir:
            yield from _walk(store, full)


def _digest(store: Store, node: Node) -> str:
    if not node.is_file:
        return str(node.target)
    parts = store.parts
    if node.object_key is not None:
        path = parts.objects.path(node.object_key)
    else:
        path = Path(node.link_path) if node.link_path else parts.directory.spool_file(node.ino)
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except FileNotFoundError:
        return "its bytes are missing"


def image_of(root: Path) -> dict[str, str]:
    """Every row of the catalog and every file of a store, except for times, logs, caches, and the
    frames of a recording that could not be published.

    For a store that this process has open by SQLite only.
    """
    found: dict[str, str] = {}
    with closing(sqlite3.connect(_catalog(root))) as database:
        tables = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if name not in _LOGS and not name.startswith("detection_places")
        ]
        for table in tables:
            cursor = database.execute(f'SELECT * FROM "{table}"')
            wanted = [
                number
                for number, (column, *_) in enumerate(cursor.description)
                if not column.endswith("_ns") and column not in _TIMES | _LEARNED
            ]
            for row in cursor:
                found[f"{table} {[row[number] for number in wanted]!r}"] = ""
    kept = {note.stem for note in (root / "objects" / "tmp").glob("*.json")}
    for folder in ("objects", "spool"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.name.partition(".")[0] not in kept:
                digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
                found[os.fspath(path.relative_to(root))] = digest
    return found


def difference(one: dict[str, str], other: dict[str, str]) -> str:
    """The difference of two images; empty if there is none."""
    lines = [f"+{key[:100]}" for key in sorted(set(one) - set(other))]
    lines += [f"-{key[:100]}" for key in sorted(set(other) - set(one))]
    lines += [f"!{key[:100]}" for key in sorted(set(one) & set(other)) if one[key] != other[key]]
    return "; ".join(lines[:4])
