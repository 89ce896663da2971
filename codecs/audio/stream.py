"""Sound that comes piece by piece, beside the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from av.container import OutputContainer
from av.packet import Packet
from av.stream import Stream

from vfsd.codecs.audio.encoder import SoundEncoder
from vfsd.codecs.audio.samples import SampleArray, SampleForm, Samples, SoundFormat
from vfsd.errors import UsageError

# Pictures must not wait for a microphone that stopped, so silence replaces samples that are late.
# Sound before its pictures waits: it may have to end with a last picture not yet known.
MOST_APART = 10
"""Seconds by which sound and pictures may be ahead of each other."""
_MOST_LEFT = 1
"""Seconds of sound after the last picture that are left out without a word."""


class SoundPieces:
    """A stream of sound that is pushed.  Not thread-safe.

    What comes earlier than its pictures waits for them, `MOST_APART` seconds of it; where pictures
    are as far ahead, there is silence in the place of what has not come.
    """

    def __init__(self, output: OutputContainer, codec: str, told: SoundFormat) -> None:
        """Raises `UsageError`."""
        self._form = SampleForm(told)
        self._encoder = SoundEncoder(
            output, codec, self._form.rate, self._form.layout, self._form.kind
        )
        self._end = 0  # the number of the sample that is to come next
        self._missed: int | None = None  # the first for which there is silence, while none came

    @property
    def is_prompt(self) -> bool:
        """There is, if only of silence."""
        return True

    @property
    def rate(self) -> int:
        """Samples in a second."""
        return self._form.rate

    def push(self, given: SampleArray | Samples, first: int | None, shown: Fraction) -> int:
        """Samples that come next, or from number `first` on; how many there are now.

        `shown` is for how many seconds there are pictures.  Raises `UsageError`, and takes nothing
        then, for samples of another form, that come too late, or are too far ahead.
        """
        samples = self._form.checked(given)
        if first is None:
            if self._missed is not None:
                raise UsageError(
                    f"sound from {self._told(self._missed)} on is too late: pictures were "
                    f"{MOST_APART} s ahead of it, and up to {self._told(self._end)} it is silent",
                    hint="say where it goes on, with first",
                )
            first = self._end
        if first < self._end:
            raise UsageError(
                f"sound from {self._told(first)} on is too late: up to {self._told(self._end)} "
                "there is some"
            )
        end = first + len(samples)
        if end > (shown + MOST_APART) * self.rate:
            raise UsageError(
                f"sound up to {self._told(end)} for pictures up to {float(shown):.3f} s is more "
                f"than {MOST_APART} s ahead",
                hint="write pictures first, or repeat the last one",
            )
        for frame in self._form.silence(self._end, first):
            self._encoder.take(frame)
        for frame in self._form.frames(samples, first):
            self._encoder.take(frame)
        self._end, self._missed = end, None
        return end

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        end = int((seconds - MOST_APART) * self.rate)
        if end > self._end and self._missed is None:
            self._missed = self._end
        for frame in self._form.silence(self._end, end):
            self._encoder.take(frame)
            self._end += frame.samples
            yield from self._packets(seconds)
        yield from self._packets(seconds)

    def require_end(self, shown: Fraction) -> None:
        """Raises `UsageError` where much is left after pictures of `shown` seconds."""
        if self._end > (shown + _MOST_LEFT) * self.rate:
            raise UsageError(
                f"there is sound up to {self._told(self._end)}, and pictures up to "
                f"{float(shown):.3f} s",
                hint="write pictures for it, or repeat the last one",
            )

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        self._encoder.take(None)
        yield from self._encoder.finish(round(seconds * self._encoder.rate))

    def close(self) -> None:
        """There is nothing open."""

    def _packets(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        return self._encoder.packets(int(seconds * self._encoder.rate))

    def _told(self, sample: int) -> str:
        return f"{sample / self.rate:.3f} s"
