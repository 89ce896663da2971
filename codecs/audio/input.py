"""Sound to be written beside pictures: packets of a file as they are, or samples to be encoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Protocol, TypeAlias

import av
from av.container import OutputContainer
from av.packet import Packet
from av.stream import Stream

from vfsd.codecs.audio.encoder import SoundEncoder
from vfsd.codecs.audio.file import CopiedSound, SoundFile
from vfsd.codecs.audio.samples import Samples, SoundFormat, form_of
from vfsd.codecs.audio.stream import SoundPieces
from vfsd.errors import UsageError

Sounding: TypeAlias = str | os.PathLike[str] | Samples | SoundFormat
"""A file of which sound is taken, samples, or what samples are like that will come in pieces."""


@dataclass(frozen=True, slots=True)
class SoundForm:
    """What sound is written."""

    given: Sounding
    codec: str | None  #: one of `SOUND_CODECS`; None: as it is, else aac


SOUND_CODECS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "aac": ("mp4", "mov", "matroska"),
        "flac": ("mp4", "matroska"),
        "opus": ("mp4", "matroska"),
        "pcm": ("mov", "matroska"),
    }
)
"""What sound is encoded in, and the containers that take it; flac and pcm keep every sample."""
_KEPT = {
    "mp4": frozenset({"aac", "mp3", "mp2", "ac3", "opus", "flac", "alac"}),
    "mov": frozenset(
        {"aac", "mp3", "ac3", "alac", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le"}
    ),
    "matroska": frozenset(
        {"aac", "mp3", "mp2", "ac3", "eac3", "opus", "flac", "vorbis", "alac"}
        | {"pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le"}
    ),
}
"""Codecs whose packets are copied into each container."""


class SoundFeed(Protocol):
    """Gives the packets of a stream as the pictures go on."""

    @property
    def is_prompt(self) -> bool:
        """Whether there is a packet among the first seconds, whatever comes."""

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """Those that may be written by then.  Raises `UsageError`."""

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        """All that are left of what begins before the last picture ends."""

    def close(self) -> None:
        """Of what it reads."""


def sound_feed(form: SoundForm, container: str, output: OutputContainer) -> SoundFeed:
    """A stream in `output`, a file of the kind `container` that has no header yet.

    Of a `SoundFormat` that is `SoundPieces`.  Raises `UsageError` for sound that cannot be read or
    written, `OSError`.
    """
    if form.codec is not None and container not in SOUND_CODECS.get(form.codec, ()):
        fitting = [name for name, containers in SOUND_CODECS.items() if container in containers]
        raise UsageError(
            f"sound is not written as {form.codec} in {container}",
            hint=f"one of {', '.join(fitting)}",
        )
    codec = form.codec or "aac"
    if isinstance(form.given, SoundFormat):
        return SoundPieces(output, codec, form.given)
    if isinstance(form.given, tuple):
        told, samples = form_of(form.given)
        encoder = SoundEncoder(output, codec, told.rate, told.layout, told.kind)
        return _EncodedSound(encoder, told.frames(samples, 0))
    file = SoundFile(form.given)
    try:
        if form.codec is None and file.codec in _KEPT[container] and file.is_configured:
            if container == "matroska":
                return CopiedSound(output, file, file.packets(is_cut=True))
            return CopiedSound(output, file, file.near(file.packets(is_cut=False)))
        encoder = SoundEncoder(output, codec, file.rate, file.layout, file.kind)
        return _EncodedSound(encoder, file.frames(), file)
    except BaseException:
        file.close()
        raise


class _EncodedSound:
    """Samples that are there, or can be decoded; cut where the pictures end."""

    def __init__(
        self,
        encoder: SoundEncoder,
        frames: Iterator[av.AudioFrame],
        file: SoundFile | None = None,
    ) -> None:
        self._encoder = encoder
        self._frames: Iterator[av.AudioFrame] | None = frames
        self._file = file
        self._take(1)
        self.is_prompt = encoder.taken > 0

    def until(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        end = int(seconds * self._encoder.rate)
        self._take(end)
        yield from self._encoder.packets(end)

    def finish(self, seconds: Fraction) -> Iterator[Packet[Stream]]:
        end = round(seconds * self._encoder.rate)
        self._take(end)
        yield from self._encoder.finish(end)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _take(self, end: int) -> None:
        while self._encoder.taken < end and self._frames is not None:
            frame = next(self._frames, None)
            self._encoder.take(frame)
            if frame is None:
                self._frames = None
