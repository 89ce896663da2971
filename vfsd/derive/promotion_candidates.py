"""View segments in the render cache that may become renditions.

A candidate is a note next to the cached file: its frames, size and quality, and the position of
each packet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vfsd.codecs.bitstreams.nal import BitstreamError
from vfsd.codecs.cells.pack import CellStream
from vfsd.codecs.containers.muxers import PacketFormat
from vfsd.disk import view_cache_dir
from vfsd.storage.context import StoreContext
from vfsd.storage.file_cache import Bytes, FileCache
from vfsd.tiling.cost import VIEW_PROFILES

CODECS = ("h264", "hevc", "av1")
"""Codecs of candidates, cheapest to decode first."""
# Notes that are read at a time; promoted ones make way for others.
_MAX_CANDIDATES = 4096


@dataclass(frozen=True, slots=True)
class CachedRun:
    """Consecutive frames of the whole picture in another size, one packet each, independently
    decodable.
    """

    frames: range
    size: tuple[int, int]  #: of the pictures
    codec: str  #: FFmpeg's name
    quality: int  #: the encoder's quality setting
    luma: float  #: measured dB against the original in that size
    extradata: bytes  #: parameter sets, with start codes


@dataclass(frozen=True, slots=True)
class PromotionCandidate:
    """A cached run and the position of its packets."""

    run: CachedRun
    name: str  #: of the note
    file: str  #: of the file with the packets; names are relative to the cache
    prefix: int  #: size of the length field of each NAL unit; 0 for start codes or other codecs
    places: tuple[tuple[int, int], ...]  #: (position, size) of each packet in the file

    @property
    def bytes(self) -> int:
        """Total size of its packets."""
        return sum(size for _, size in self.places)


class CandidateIndex:
    """The candidates of a store.  Thread-safe and process-safe; disk errors are ignored."""

    def __init__(self, files: FileCache) -> None:
        self._files = files

    @classmethod
    def of_store(cls, parts: StoreContext) -> CandidateIndex:
        return cls(FileCache.of_store(parts))

    def note(
        self,
        digest: str,
        run: CachedRun,
        framing: PacketFormat,
        payloads: Sequence[bytes],
        file: str,
        data: Bytes,
    ) -> None:
        """Record that `data`, the future contents of `file`, contains `payloads` in this order.

        `digest` is that of the video's original; `framing` has converted packets to payloads.
        """
        whole, at = bytes(data), 0
        places = []
        for number, payload in enumerate(payloads):
            at = whole.index(payload, at)
            # The first packet may start with the parameter sets, which `extradata` has, too.
            is_led = not number and payload.startswith(framing.repeated)
            sets = len(framing.repeated) if is_led else 0
            places.append((at + sets, len(payload) - sets))
            at += len(payload)
        note = {
            "file": file,
            "quality": run.quality,
            "luma": run.luma,
            "extradata": run.extradata.hex(),
            "prefix": framing.wanted,
            "places": places,
        }
        self._files.put(_name(digest, run), json.dumps(note).encode())

    def of(self, digest: str) -> list[PromotionCandidate]:
        """Return the candidates of a video by first frame; of overlapping ones the cheapest to
        decode.

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
        """Return the packets of a candidate; None if they are not in the cache any more."""
        data = self._files.get(candidate.file)
        if data is None or any(at + size > len(data) for at, size in candidate.places):
            return None
        run = candidate.run
        framing = PacketFormat(run.codec, b"", candidate.prefix, 0)
        try:
            packets = [
                framing.convert(data[at : at + size], is_key=False) for at, size in candidate.places
            ]
        except BitstreamError:
            return None
        return CellStream(run.codec, *run.size, run.extradata, packets)

    def drop(self, candidate: PromotionCandidate) -> None:
        """Delete the note and the file."""
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
            note = json.loads(data)
            places = tuple((int(at), int(length)) for at, length in note["places"])
            run = CachedRun(
                frames=frames,
                size=(width, height),
                codec=codec,
                quality=int(note["quality"]),
                luma=float(note["luma"]),
                extradata=bytes.fromhex(note["extradata"]),
            )
            found = PromotionCandidate(run, name, str(note["file"]), int(note["prefix"]), places)
        except (ValueError, KeyError, TypeError):
            return None  # from another version
        digest = name.partition("/")[0]
        is_right = (
            name == _name(digest, run)
            and 0 < len(frames) == len(places)
            and codec in VIEW_PROFILES
            # Notes are not trusted: they must not refer to files outside the folder of the video.
            and view_cache_dir.is_slot(found.file)
            and found.file.startswith(f"{digest}/")
        )
        return found if is_right else None


def _name(digest: str, run: CachedRun) -> str:
    width, height = run.size
    frames = f"{run.frames.start}-{run.frames.stop}"
    return f"{digest}/{width}x{height}_{frames}_{run.codec}"


def _order(one: PromotionCandidate) -> tuple[tuple[int, int], int, int]:
    return one.run.size, one.run.frames.start, VIEW_PROFILES.index(one.run.codec)


def _without_overlaps(found: Iterable[PromotionCandidate]) -> Iterator[PromotionCandidate]:
    """Yield the candidates that do not overlap an earlier one in the same size."""
    last: CachedRun | None = None
    for one in found:
        run = one.run
        if last is None or last.size != run.size or run.frames.start >= last.frames.stop:
            yield one
            last = run
