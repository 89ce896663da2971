"""What a reader of a rendition will want next is made before he asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial

from vfsd.views.layout import Slots
from vfsd.views.render_queue import Render

# Players read the head and a second or two of pictures, then jump. Rendering too far ahead delays
# the segment that the player wants after its jump.
_AHEAD_SLOTS = 8
"""As many slots after the one being read are made beforehand, at most."""

Ahead = Callable[[int, Callable[[], None]], Render | None]
"""Has a slot made, and calls the other when it is; see `RenderCache.ahead`."""


class Forerunner:
    """Makes the slots that a sequential reader will want next.  Thread-safe.

    At most twice as many as were read in a row before: who opens a file to look at its middle does
    not wait for what he will never read.
    """

    def __init__(self, slots: Slots, ahead: Ahead, *, hands: int, most_bytes: int) -> None:
        """At most `hands` slots are made at a time, and they have places for `most_bytes`."""
        self._slots = slots
        self._make = ahead
        self._hands = hands
        self._most_bytes = most_bytes
        self._guard = threading.Lock()
        self._begin = 0  # the first of the slots that are read in a row
        self._asked = -1  # the last of them that was asked for
        self._position = -1  # the last that was read
        self._next = 0  # the slot to be made next
        self._ahead = 0  # slots to be made after the position
        self._least = 0  # as many however few were read
        self._making: dict[int, Render | None] = {}  # None: just begun
        self._closed = False

    def begin(self, slot: int) -> None:
        """All slots from `slot` on will be read, one after the other.  Before any was."""
        with self._guard:
            self._begin = self._next = slot
            self._position = self._asked = slot - 1
            self._ahead = self._least = _AHEAD_SLOTS
        self._go_on()

    def asked_for(self, first: int, last: int) -> None:
        """The reader wants the slots ``first <= slot <= last``, none of which he has got yet.

        Where he has jumped, nothing more is made in the old place, as he waits for the new one.
        """
        given_up: list[Render | None] = []
        with self._guard:
            if not self._begin <= first <= self._asked + 1:
                self._begin, self._position, self._asked = first, first - 1, last
                self._next, self._ahead, self._least = first + 1, 0, 0
                given_up = self._give_up()
            self._asked = max(self._asked, last)
        _unwant(given_up)

    def follow(self, slot: int) -> None:
        """The reader has got `slot`."""
        with self._guard:
            # What lies elsewhere was asked for before he jumped.
            if not self._position < slot <= self._asked or self._closed:
                return
            self._position = slot
            # The first two segments are what players look at to learn what is in a file.
            ahead = 2 * (slot - self._begin) if slot else 2
            self._ahead = min(_AHEAD_SLOTS, max(self._least, ahead))
            self._next = max(self._next, slot + 1)
        self._go_on()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            given_up = self._give_up()
        _unwant(given_up)

    def _go_on(self) -> None:
        """Have as many slots made at a time as may be."""
        while (slot := self._claim()) is not None:
            render = self._make(slot, partial(self._made, slot))
            with self._guard:
                if slot in self._making:
                    if render is None:
                        del self._making[slot]
                    else:
                        self._making[slot] = render
                        render = None
            _unwant([render])  # it is done, or was given up meanwhile

    def _made(self, slot: int) -> None:
        with self._guard:
            render = self._making.pop(slot, None)
        _unwant([render])
        self._go_on()

    def _give_up(self) -> list[Render | None]:
        """What is to be unwanted; to be called under the guard."""
        making, self._making = self._making, {}
        return list(making.values())

    def _claim(self) -> int | None:
        with self._guard:
            if self._closed or len(self._making) >= self._hands or self._next >= self._limit():
                return None
            self._next += 1
            self._making[self._next - 1] = None
            return self._next - 1

    def _limit(self) -> int:
        """The slot before which to stop."""
        slots, first = self._slots, self._position + 1
        stop = first
        size = 0
        while stop < min(len(slots), first + self._ahead):
            size += slots[stop].size
            if size > self._most_bytes:
                break
            stop += 1
        return stop


def _unwant(renders: Iterable[Render | None]) -> None:
    for render in renders:
        if render is not None:
            render.unwant()
