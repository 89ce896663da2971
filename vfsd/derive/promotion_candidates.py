"""View segments in the render cache that may become renditions.

A candidate is a note next to the cached file: which frames it has, in which size and quality, and
where each packet lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vfsd.codecs.bitstreams.nal import DamagedError
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.containers.muxers import PacketFormat
from vfsd.disk import view_cache_dir
from vfsd.storage.context import StoreContext
from vfsd.storage.file_cache import Bytes, FileCache
from vfsd.tiling.cost import VIEW_PROFILES

CODECS = ("h264", "hevc", "av1")
"""In which candidates may be: those that cells are decoded from, the cheapest one first."""
_MAX_CANDIDATES = 4096
"""Notes that are looked at together: those that become renditions make way for others."""


@dataclass(frozen=True, slots=True)
class CachedRun:
    """A run of frames, all of the picture in another size, each a packet of one closed run."""

    frames: range
    size: tuple[int, int]  #: of the pictures
    codec: str  #: FFmpeg's name
    quality: int  #: that the encoder was given
    luma: float  #: dB against the original in that size, measured
    extradata: bytes  #: parameter sets, with start codes


@dataclass(frozen=True, slots=True)
class PromotionCandidate:
    """Such a run, and where in the cache its packets are."""

    made: CachedRun
    name: str  #: of the note
    file: str  #: that has the packets; names are relative to the cache
    prefix: int  #: bytes of the length before each NAL unit; 0: start codes, or no such codec
    places: tuple[tuple[int, int], ...]  #: (position, size) of each packet in the file

    @property
    def bytes(self) -> int:
        """Of its packets."""
        return sum(size for _, size in self.places)


class CandidateIndex:
    """Those of a store.  Thread-safe, and process-safe; nothing here ever fails for the disk."""

    def __init__(self, files: FileCache) -> None:
        self._files = files

    @classmethod
    def of_store(cls, parts: StoreContext) -> CandidateIndex:
        return cls(FileCache.of_store(parts))

    def note(
        self,
        digest: str,
        made: CachedRun,
        framing: PacketFormat,
        payloads: Sequence[bytes],
        file: str,
        data: Bytes,
    ) -> None:
        """Remember that `data`, which `file` will have, holds `payloads`, in this order.

        `digest` is that of the video's original, `framing` what made payloads of packets.
        """
        whole, at = bytes(data), 0
        places = []
        for number, payload in enumerate(payloads):
            at = whole.index(payload, at)
            is_led = not number and payload.startswith(framing.repeated)
            sets = len(framing.repeated) if is_led else 0
            places.append((at + sets, len(payload) - sets))
            at += len(payload)
        told = {
            "file": file,
            "quality": made.quality,
            "luma": made.luma,
            "extradata": made.extradata.hex(),
            "prefix": framing.wanted,
            "places": places,
        }
        self._files.put(_name(digest, made), json.dumps(told).encode())

    def of(self, digest: str) -> list[PromotionCandidate]:
        """Those of a video, by first frame; where they overlap, the one that is cheapest to decode.

        `digest` is that of its original.
        """
        found = [
            candidate
            for name in self._files.notes(digest)[:_MAX_CANDIDATES]
            if (candidate := self._read(name)) is not None and self._files.has(candidate.file)
        ]
        found.sort(key=_order)
        return list(_without_overlaps(found))

    def stream(self, candidate: PromotionCandidate) -> CellStream | None:
        """Its packets; None where they are there no longer."""
        data = self._files.get(candidate.file)
        if data is None or any(at + size > len(data) for at, size in candidate.places):
            return None
        made = candidate.made
        framing = PacketFormat(made.codec, b"", candidate.prefix, 0)
        try:
            packets = [
                framing.convert(data[at : at + size], is_key=False) for at, size in candidate.places
            ]
        except DamagedError:
            return None
        return CellStream(made.codec, *made.size, made.extradata, packets)

    def drop(self, candidate: PromotionCandidate) -> None:
        """Neither the note nor the file is needed any more."""
        self._files.drop(candidate.name)
        self._files.drop(candidate.file)

    def _read(self, name: str) -> PromotionCandidate | None:
        data = self._files.peek(name)
        if data is None:
            return None
        try:
            size, span, codec = name.rpartition("/")[2].split("_")
            width, height = map(int, size.split("x"))
            frames = range(*map(int, span.split("-")))
            told = json.loads(data)
            places = tuple((int(at), int(length)) for at, length in told["places"])
            made = CachedRun(
                frames=frames,
                size=(width, height),
                codec=codec,
                quality=int(told["quality"]),
                luma=float(told["luma"]),
                extradata=bytes.fromhex(told["extradata"]),
            )
            found = PromotionCandidate(made, name, str(told["file"]), int(told["prefix"]), places)
        except (ValueError, KeyError, TypeError):
            return None  # that of another version
        digest = name.partition("/")[0]
        is_right = (
            name == _name(digest, made)
            and 0 < len(frames) == len(places)
            and codec in VIEW_PROFILES
            # Notes lead nowhere else.
            and view_cache_dir.is_slot(found.file)
            and found.file.startswith(f"{digest}/")
        )
        return found if is_right else None


def _name(digest: str, made: CachedRun) -> str:
    width, height = made.size
    frames = f"{made.frames.start}-{made.frames.stop}"
    return f"{digest}/{width}x{height}_{frames}_{made.codec}"


def _order(one: PromotionCandidate) -> tuple[tuple[int, int], int, int]:
    return one.made.size, one.made.frames.start, VIEW_PROFILES.index(one.made.codec)


def _without_overlaps(found: Iterable[PromotionCandidate]) -> Iterator[PromotionCandidate]:
    """Those that do not overlap with one before them in the same size."""
    last: CachedRun | None = None
    for one in found:
        made = one.made
        if last is None or last.size != made.size or made.frames.start >= last.frames.stop:
            yield one
            last = made
