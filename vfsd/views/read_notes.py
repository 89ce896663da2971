"""What was decoded for somebody who has read a view, as it is remembered."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import Read
from vfsd.core.view_request import View
from vfsd.read.plan import plan_frames
from vfsd.read.read_cost import Clauses, Timing, account_of_plan
from vfsd.read.tile_planner import Costs
from vfsd.views.convert import PictureForm
from vfsd.views.source import Footage


@dataclass(frozen=True, slots=True)
class Pictures:
    """Frames that a rendition shows in some of its slots, each decoded for that."""

    footage: Footage
    frames: Ints  #: ascending, repeats allowed; one at least
    form: PictureForm
    labels: Clauses | None = None  #: for the sake of what they are shown

    def account(self, timing: Timing) -> Read:
        """What it came to that somebody has read them."""
        footage, form = self.footage, self.form
        plan = plan_frames(
            self.frames,
            View(region=form.region, size=form.size),
            footage.physical,
            footage.table,
            pixel_format=form.pixel_format,
            tiles=footage.tiles,
        )
        costs = footage.tiles.costs if footage.tiles is not None else Costs()
        return account_of_plan("view", plan, footage.table, costs, timing, self.labels)


class SlotsRead:
    """Which slots of a file its reader has looked at.  Thread-safe; small for who reads on."""

    def __init__(self) -> None:
        self._runs: list[range] = []
        self._guard = threading.Lock()

    def add(self, slot: int) -> None:
        with self._guard:
            last = self._runs[-1] if self._runs else range(-1, -1)
            if slot in last:
                return
            if slot == last.stop:
                self._runs[-1] = range(last.start, slot + 1)
            else:
                self._runs.append(range(slot, slot + 1))

    def is_all_of(self, count: int) -> bool:
        """Whether these are the slots ``0 <= slot < count``."""
        with self._guard:
            if sum(map(len, self._runs)) < count:
                return False
        return len(self.sorted()) == count

    def sorted(self) -> list[int]:
        """Each once."""
        with self._guard:
            return sorted({slot for run in self._runs for slot in run})
