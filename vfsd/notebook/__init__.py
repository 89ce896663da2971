"""A player for notebooks: `Player`, an anywidget that shows frames with their boxes."""

from __future__ import annotations

from vfsd.notebook.player import Player

__all__ = ["Player"]
