"""Inventories and their comparison.

An inventory lists each place in a file with a digest of the data there; the comparison finds what a
rewritten file lost.
"""

from __future__ import annotations

import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from heapq import heappop, heappush
from typing import Annotated, Protocol

import msgspec
import numpy as np
from av.stream import Stream
from blake3 import blake3
from msgspec import Meta

from vfsd.codecs.decoding.demuxer import open_all_tracks
from vfsd.codecs.pyav import tick_seconds
from vfsd.core.model import MediaInfo
from vfsd.disk.checksums import MediaFile, MediaSource
from vfsd.errors import IntegrityError, RefusedMediaError

MAX_ITEMS = 20_000
"""Distinct places in one file.  A file with more is refused rather than compared in part."""
MAX_INVENTORY_BYTES = 1 << 26
_MAX_PATH = 1000
_MAX_TEXT = 80
_DIGEST_DIGITS = 32

_Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
_Rows = Annotated[
    list[
        tuple[
            Annotated[str, Meta(max_length=_MAX_PATH)],
            _Count,
            _Count,
            Annotated[str, Meta(max_length=_DIGEST_DIGITS)],
            Annotated[str, Meta(max_length=_MAX_TEXT + len("..."))],
        ]
    ],
    Meta(max_length=MAX_ITEMS),
]
"""The wire format: path, and the fields of an `InventoryItem`."""


@dataclass(frozen=True, slots=True)
class InventoryItem:
    """The data at one place of a file.

    Data that repeats, such as a message in every packet, is one item.
    """

    count: int  #: how many pieces there are
    size: int  #: bytes of all pieces
    digest: str  #: digest of the pieces and their lengths, in file order
    text: str = ""  #: the common value of all pieces, for messages; empty if they differ

    def __str__(self) -> str:
        if self.text:
            return self.text
        pieces = f"{self.count} times, " if self.count > 1 else ""
        return f"{pieces}{self.size} bytes"


Inventory = Mapping[str, InventoryItem]
"""Items by path.  A path names containers from the outside in: ``moov/udta/©xyz``."""


class _Digest(Protocol):
    def update(self, data: bytes, /) -> object: ...
    def hexdigest(self) -> str: ...


class ItemAdder(Protocol):
    """Accepts data by path."""

    def add(self, path: str, data: bytes, text: str = "") -> None:
        """Add one piece of data."""

    def add_text(self, path: str, text: str) -> None:
        """Add a value that is shown as it is."""

    def add_lasting(self, path: str, data: bytes) -> None:
        """Add data that holds until other data comes, and may be repeated."""


class ItemCollector:
    """Collects the items of one file."""

    def __init__(self) -> None:
        self._digests: dict[str, _Digest] = {}
        self._counts: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._texts: dict[str, str] = {}

    def add(self, path: str, data: bytes, text: str = "") -> None:
        """Add one piece of data.  Raises `RefusedMediaError` above `MAX_ITEMS` paths."""
        self.add_pieces(path, (data,), len(data), text)

    def add_text(self, path: str, text: str) -> None:
        """Add a value that is shown as it is."""
        self.add(path, text.encode("utf-8", "surrogateescape"), text)

    def add_lasting(self, path: str, data: bytes) -> None:
        """Add data as `add` does."""
        self.add(path, data)

    def add_pieces(self, path: str, pieces: Iterable[bytes], size: int, text: str = "") -> None:
        """Add one piece of data of `size` bytes that is read in parts."""
        path = path[:_MAX_PATH].encode("utf-8", "backslashreplace").decode()[:_MAX_PATH]
        digest = self._digests.get(path)
        if digest is None:
            if len(self._digests) >= MAX_ITEMS:
                raise RefusedMediaError(f"the file holds more than {MAX_ITEMS} kinds of data")
            digest = self._digests[path] = blake3()
        digest.update(size.to_bytes(8, "little"))
        for piece in pieces:
            digest.update(piece)
        self._counts[path] = self._counts.get(path, 0) + 1
        self._sizes[path] = self._sizes.get(path, 0) + size
        if self._texts.setdefault(path, text[:_MAX_PATH]) != text[:_MAX_PATH]:
            self._texts[path] = ""

    def discard(self, path: str) -> None:
        """Remove the data that was added at `path`."""
        self._digests.pop(path, None)

    def items(self) -> dict[str, InventoryItem]:
        """Return all items by path."""
        return {
            path: InventoryItem(
                self._counts[path],
                self._sizes[path],
                digest.hexdigest()[:_DIGEST_DIGITS],
                _shortened(self._texts[path]),
            )
            for path, digest in self._digests.items()
        }


def _shortened(text: str) -> str:
    printable = "".join(c if c.isprintable() else " " for c in text[: _MAX_TEXT + 1]).strip()
    return printable if len(printable) <= _MAX_TEXT else printable[:_MAX_TEXT] + "..."


def pack_inventory(found: Inventory) -> bytes:
    """Return an inventory in the wire format; see `unpack_inventory`."""
    rows = [[path, one.count, one.size, one.digest, one.text] for path, one in found.items()]
    return json.dumps(rows).encode("ascii")


def unpack_inventory(data: bytes) -> dict[str, InventoryItem]:
    """Return an inventory from an untrusted process.

    Raises `IntegrityError` for data that `pack_inventory` does not write.
    """
    try:
        rows = msgspec.convert(json.loads(data), _Rows)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise IntegrityError(f"not an inventory of a file: {error}") from error
    return {row[0]: InventoryItem(*row[1:]) for row in rows}


class PictureAdder:
    """Adds data of packets in display order of their pictures.

    Each piece is added with the number of its picture. Two encodings of the same pictures with
    another packet order then give equal items.
    """

    def __init__(self, into: ItemCollector) -> None:
        self._into = into
        self._received = 0
        self._shown = 0
        self._lasting: dict[str, bytes] = {}  # the last data by path
        # Data of the current packet; None: data of the configuration is added at once.
        self._now: list[tuple[str, bytes, str]] | None = None
        self._waiting: list[tuple[int, int, list[tuple[str, bytes, str]]]] = []

    def begin(self, pts: int) -> None:
        """Start the data of the next packet, whose picture is shown at `pts`."""
        self._now = []
        heappush(self._waiting, (pts, self._received, self._now))
        self._received += 1
        if len(self._waiting) > _MAX_REORDERED:
            self._take()

    def finish(self) -> None:
        """Add the data of the remaining packets."""
        while self._waiting:
            self._take()

    def add(self, path: str, data: bytes, text: str = "") -> None:
        """Add data of the current packet, or of the configuration before the first one."""
        if self._now is None:
            self._put(path, data, text, 0)
        else:
            self._now.append((path, data, text))

    def add_text(self, path: str, text: str) -> None:
        """Add a value that is shown as it is."""
        self.add(path, text.encode("utf-8", "surrogateescape"), text)

    def add_lasting(self, path: str, data: bytes) -> None:
        """Add data unless it repeats the last data at `path`."""
        self._lasting.setdefault(path, b"")
        self.add(path, data)

    def _take(self) -> None:
        for path, data, text in heappop(self._waiting)[2]:
            self._put(path, data, text, self._shown)
        self._shown += 1

    def _put(self, path: str, data: bytes, text: str, picture: int) -> None:
        if path in self._lasting:
            if self._lasting[path] == data:
                return
            self._lasting[path] = data
        self._into.add_pieces(path, (picture.to_bytes(8, "little"), data), len(data), text)


# Most packets that are held back to sort them; decoders delay fewer pictures.
_MAX_REORDERED = 64


_TRACK = "moov/*"
_TABLES = f"{_TRACK}/mdia/minf/stbl"
_ENTRY = f"{_TABLES}/stsd"
_ELEMENT = "Segment/Tracks/*"
_PACKETS = "pictures/packets"

EXPECTED_DIFFERENCES = (
    # Headers that a new file of the same streams writes in its own way.
    ("ftyp|styp|moov/iods", "brands and profiles name the codecs, which change"),
    ("**/free|**/skip|**/wide", "unused space"),
    ("sidx|ssix|mfra/tfra|mfra/mfro|moof/mfhd|moov/mvex/mehd|moov/mvex/trex", "fragments"),
    ("moof/*/tfhd|moof/*/tfdt|moof/*/trun", "where samples lie, in fragments"),
    (f"{_TABLES}/stts|{_TABLES}/ctts|{_TABLES}/cslg|{_TABLES}/stss|{_TABLES}/stps", "times"),
    (f"{_TABLES}/stsz|{_TABLES}/stz2|{_TABLES}/stsc|{_TABLES}/stco|{_TABLES}/co64", "places"),
    (f"{_TABLES}/sdtp|{_TABLES}/stdp|{_TABLES}/padb", "which pictures depend on which"),
    (f"{_TABLES}/sgpd roll|{_TABLES}/sgpd prol|{_TABLES}/sgpd rap ", "where decoding may begin"),
    (f"{_TABLES}/sbgp roll|{_TABLES}/sbgp prol|{_TABLES}/sbgp rap ", "where decoding may begin"),
    (f"{_TABLES}/sgpd sync|{_TABLES}/sgpd tele|{_TABLES}/sgpd tscl", "where decoding may begin"),
    (f"{_TABLES}/sbgp sync|{_TABLES}/sbgp tele|{_TABLES}/sbgp tscl", "where decoding may begin"),
    (f"{_TRACK}/edts/elst", "times of packets are compared"),
    (f"{_TRACK}/mdia/minf/dinf/dref", "samples lie in the file"),
    (f"{_ENTRY}/avcC|{_ENTRY}/hvcC|{_ENTRY}/av1C|{_ENTRY}/vpcC|{_ENTRY}/glbl", "codec setup"),
    (f"{_ENTRY}/esds|{_ENTRY}/dOps|{_ENTRY}/dfLa|{_ENTRY}/dac3|{_ENTRY}/dec3", "codec setup"),
    (f"{_ENTRY}/alac|{_ENTRY}/wave|{_ENTRY}/pcmC|{_ENTRY}/chan|{_ENTRY}/chnl", "codec setup"),
    (f"{_ENTRY}/btrt", "bit rates"),
    (f"{_ENTRY}/pasp", "the shape of pixels is compared as decoded"),
    (f"{_ENTRY}/colr nclx|{_ENTRY}/colr nclc", "colours are compared as decoded"),
    ("moov/udta/chpl", "chapters are compared"),
    ("**/©too|**/©enc|**/©swr|**/encoder", "the program that wrote the file"),
    ("**/major_brand|**/minor_version|**/compatible_brands", "brands of the file"),
    ("Segment/Info/TimestampScale|Segment/Info/Duration", "times of packets are compared"),
    ("Segment/Info/MuxingApp|Segment/Info/WritingApp", "the program that wrote the file"),
    ("Segment/Info/SegmentUUID", "a number for these very bytes"),
    (f"{_ELEMENT}/TrackUID|{_ELEMENT}/TrackNumber|{_ELEMENT}/FlagLacing", "numbers of tracks"),
    (f"{_ELEMENT}/DefaultDuration|{_ELEMENT}/MinCache|{_ELEMENT}/MaxCache", "times are compared"),
    (f"{_ELEMENT}/CodecID|{_ELEMENT}/CodecPrivate|{_ELEMENT}/CodecName", "codec setup is compared"),
    (f"{_ELEMENT}/ContentEncodings/ContentEncoding/ContentEncodingOrder", "packets are compared"),
    (f"{_ELEMENT}/ContentEncodings/ContentEncoding/ContentEncodingScope", "packets are compared"),
    (f"{_ELEMENT}/ContentEncodings/ContentEncoding/ContentCompression", "packets are compared"),
    (f"{_ELEMENT}/Video/PixelWidth|{_ELEMENT}/Video/PixelHeight", "sizes are compared as decoded"),
    (f"{_ELEMENT}/Video/DisplayWidth|{_ELEMENT}/Video/DisplayHeight", "aspects are compared"),
    (f"{_ELEMENT}/Video/DisplayUnit|{_ELEMENT}/Video/AspectRatioType", "aspects are compared"),
    (f"{_ELEMENT}/Video/FrameRate|{_ELEMENT}/Video/UncompressedFourCC", "times and codec setup"),
    (f"{_ELEMENT}/Video/Colour/MatrixCoefficients|{_ELEMENT}/Video/Colour/Range", "as decoded"),
    (f"{_ELEMENT}/Video/Colour/TransferCharacteristics", "colours are compared as decoded"),
    (f"{_ELEMENT}/Video/Colour/Primaries", "colours are compared as decoded"),
    (f"{_ELEMENT}/Video/Colour/ChromaSubsamplingHorz", "samples are compared as decoded"),
    (f"{_ELEMENT}/Video/Colour/ChromaSubsamplingVert", "samples are compared as decoded"),
    (f"{_ELEMENT}/Video/Colour/CbSubsamplingHorz", "samples are compared as decoded"),
    (f"{_ELEMENT}/Video/Colour/CbSubsamplingVert", "samples are compared as decoded"),
    (f"{_ELEMENT}/Video/Colour/ChromaSitingHorz", "samples are compared as decoded"),
    (f"{_ELEMENT}/Video/Colour/ChromaSitingVert", "samples are compared as decoded"),
    (f"{_ELEMENT}/Video/Colour/BitsPerChannel", "samples are compared as decoded"),
    (f"{_ELEMENT}/Audio/SamplingFrequency|{_ELEMENT}/Audio/Channels", "compared as sound"),
    (f"{_ELEMENT}/Audio/OutputSamplingFrequency|{_ELEMENT}/Audio/BitDepth", "compared as sound"),
    ("Segment/Chapters/*/EditionUID|Segment/Chapters/*/*/ChapterUID", "numbers of chapters"),
    ("Segment/Chapters/*/EditionFlagDefault", "the muxer marks the only edition"),
    ("Segment/Attachments/*/FileUID", "numbers of attachments"),
    ("Segment/Tags/*/ENCODER|Segment/Tags/*/VENDOR_ID", "the program that wrote the file"),
    ("Segment/Tags/*/DURATION|Segment/Tags/*/BPS*|Segment/Tags/*/NUMBER_OF_*", "statistics"),
    ("Segment/Tags/*/_STATISTICS_*", "statistics"),
    # Data that every encoding of the pictures writes in its own way.
    (f"{_PACKETS}/SEI 0 (buffering period)|{_PACKETS}/SEI 3 (filler)", "rate control"),
    (f"{_PACKETS}/SEI 1 (picture timing)", "delays; time codes are listed apart"),
    (f"{_PACKETS}/SEI 6 (recovery point)", "where decoding may begin"),
    (f"{_PACKETS}/SEI 128 (*|{_PACKETS}/SEI 129 (*|{_PACKETS}/SEI 130 (*", "codec setup"),
    (f"{_PACKETS}/SEI 132 (picture hash)", "checksums of the encoded pictures"),
    (f"{_PACKETS}/SEI 5 (user data) dc45e9bde6d948b7962cd820d923eeef", "x264's name"),
    (f"{_PACKETS}/SEI 5 (user data) 2ca2de09b51747dbbb55a4fe7fc2fc4e", "x265's name"),
    (f"{_PACKETS}/APP0 JFIF|{_PACKETS}/APP0 AVI1|{_PACKETS}/APP14 Adobe", "codec setup"),
    ("*/packet side data/cpb_properties|*/packet side data/quality_stats", "rate control"),
    ("pictures/packet side data/palette|*/packet side data/new_extradata", "codec setup"),
    ("pictures/packet side data/skip_samples", "times of pictures are compared"),
    ("pictures/packet side data/matroska_block_additional", "listed as BlockAdditional"),
)
"""Patterns of paths, and why they may differ.

``*`` stands for any part of one name, ``**/`` for any number of names.
"""

# Names of encoders in MPEG user data and JPEG comments.
_WRITERS = re.compile(r"(Lav[cf]|x264|x265|XviD|DivX|FFmpeg|Compressed by|CS=ITU601|Intel\(R\)).*")
_WRITER_PLACES = (f"{_PACKETS}/user data", f"{_PACKETS}/comment")

# Plain names of data by the start of a part of their path.
_NAMES = {
    "clap": "crop",
    "PixelCropTop": "crop",
    "PixelCropBottom": "crop",
    "PixelCropLeft": "crop",
    "PixelCropRight": "crop",
    "dvcC": "Dolby Vision configuration",
    "dvvC": "Dolby Vision configuration",
    "dvwC": "Dolby Vision configuration",
    "st3d": "stereo 3D mode",
    "sv3d": "spherical projection",
    "ProjectionPoseRoll": "display matrix",
    "Projection": "spherical projection",
    "StereoMode": "stereo 3D mode",
    "uuid ffcc8263f8554a938814587a02521fdd": "spherical projection",
    "uuid be7acfcb97a942e89c71999491e3afac": "XMP",
    "XMP_": "XMP",
    "AlphaMode": "alpha channel",
    "BlockAdditional 1": "alpha channel",
    "SEI 4 (ITU-T T.35 data) b5003147": "closed captions",
    "SEI 4 (ITU-T T.35 data) b5003c00": "HDR10+",
    "SEI 4 (ITU-T T.35 data) b5003b00": "Dolby Vision",
    "NAL unit 14": "layer of scalable or stereo video",
    "NAL unit 15": "layer of scalable or stereo video",
    "NAL unit 20": "layer of scalable or stereo video",
    "NAL unit 21": "depth of 3D video",
    "SEI 24": "scalability",
    "SEI 37": "stereo views",
    "time code of SEI 1": "time code",
    "beam": "mark of a messenger",
    "loop": "looping playback",
    "LOOP": "looping playback",
    "NAL unit 62": "Dolby Vision",
    "captions": "closed captions",
    "NAL unit 19": "alpha channel",
    "mdcv": "mastering display",
    "SmDm": "mastering display",
    "MasteringMetadata": "mastering display",
    "clli": "content light level",
    "CoLL": "content light level",
    "MaxCLL": "content light level",
    "MaxFALL": "content light level",
    "amve": "ambient viewing environment",
    "fiel": "field order",
    "FlagInterlaced": "field order",
    "FieldOrder": "field order",
    "lhvC": "stereo layers",
    "vexu": "stereo 3D layout",
    "colr prof": "ICC profile",
    "colr rICC": "ICC profile",
    "tapt": "aperture",
    "©xyz": "location",
    "loci": "location",
    "tmcd": "timecode track",
}


@dataclass(frozen=True, slots=True)
class InventoryDifference:
    """Data of one file that another file lacks or changes."""

    path: str
    before: InventoryItem | None  #: None: it was not there
    after: InventoryItem | None  #: None: it would be lost

    def __str__(self) -> str:
        name = place_name(self.path)
        called = self.path if name is None else f"{name} ({self.path})"
        if self.after is None:
            shown = f": {self.before.text}" if self.before and self.before.text else ""
            return f"{called}{shown} would be lost"
        if self.before is None:
            return f"{called} would be added: {self.after}"
        if self.before.text != self.after.text:
            return f"{called} would become {self.after}; it is {self.before}"
        return f"{called} would change"


def place_name(path: str) -> str | None:
    """Return a readable name for the data at `path`; None if the path is readable enough."""
    for part in reversed(path.split("/")):
        for start, name in _NAMES.items():
            if part == start or (part.startswith(start) and not part[len(start)].isalpha()):
                return name
    return None


def differences(before: Inventory, after: Inventory) -> list[InventoryDifference]:
    """Return all differences that `EXPECTED_DIFFERENCES` does not explain, sorted by path."""
    return [
        InventoryDifference(path, before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
        and not all(is_expected(path, one[path]) for one in (before, after) if path in one)
    ]


def is_expected(path: str, item: InventoryItem) -> bool:
    """Return whether `item` at `path` may be lost, added or replaced."""
    if _EXPECTED_PATTERNS.fullmatch(path):
        return True
    if path in _WRITER_PLACES:
        return _WRITERS.match(item.text) is not None
    return item.text in _DEFAULTS.get(path.rsplit("/", 1)[-1], ())


# Values that mean the same as their absence.
_DEFAULTS = {
    "FlagInterlaced": ("2",),
    "graphics mode": ("0x0", "0x40"),
    "hdlr": ("mdir",),
    "disposition": ("0",),
}


def _compiled_patterns() -> re.Pattern[str]:
    return re.compile("|".join(_alternatives()))


def _alternatives() -> Iterator[str]:
    for patterns, _ in EXPECTED_DIFFERENCES:
        for pattern in patterns.split("|"):
            one_name = re.escape(pattern.removeprefix("**/")).replace(r"\*", "[^/]*")
            any_depth = "(?:[^/]*/)*" if pattern.startswith("**/") else ""
            yield any_depth + one_name


_EXPECTED_PATTERNS = _compiled_patterns()


def early_differences(
    before: Inventory, begun: Inventory, is_carried: Callable[[str], bool]
) -> list[InventoryDifference]:
    """Return the differences that a file with the first picture already shows.

    `begun` has the headers of the new file, and few packets of other streams. `is_carried` says
    whether the data at a path comes with later pictures.
    """
    found = differences(before, begun)
    return [one for one in found if _is_early(one) and not is_carried(one.path)]


def _is_early(one: InventoryDifference) -> bool:
    if _LATE_PATHS.search(one.path):
        return False
    return one.after is None or not _REPEATED_PATHS.match(one.path)


# Other streams and references to them, without packets yet, and chapters, which may begin later.
_LATE_PATHS = re.compile(r"(^|/)(stream \d+|streams|tref|chapters|Chapters|chapter \d+)(/|$)")
# Data that comes with pictures, so that a file with one picture has less of it.
_REPEATED_PATHS = re.compile(r"pictures/packet|Segment/Cluster/|moof/")


def require_no_differences(found: list[InventoryDifference]) -> None:
    """Raise `RefusedMediaError` with the differences, if there are any."""
    if found:
        named = [str(one) for one in found[:_MAX_NAMED]]
        if len(found) > _MAX_NAMED:
            named.append(f"{len(found) - _MAX_NAMED} more")
        raise RefusedMediaError(
            f"the new file would differ: {'; '.join(named)}",
            hint="the original stays; make a copy without that data, and re-encode that",
        )


_MAX_NAMED = 6


# Kinds of streams whose packets have a meaningful duration.
_TIMED_KINDS = ("subtitle", "data")
# Marks a missing timestamp.
_NO_TIMESTAMP = -(1 << 63)
# Factor on the tolerance of a tick, for rounding of floats.
_ROUNDING = 1.001


@dataclass(slots=True)
class _StreamContent:
    """The packets of one stream."""

    name: str
    checksum: int = 0
    tick: Fraction = Fraction(0)  #: seconds
    times: array[int] = field(default_factory=lambda: array("q"))  #: ticks, one a packet
    durations: array[int] = field(default_factory=lambda: array("q"))  #: ticks, of some kinds


def require_same_streams(
    source: MediaFile,
    media: MediaInfo,
    made: MediaFile,
    made_media: MediaInfo,
) -> None:
    """Compare all other streams byte for byte; timestamps may differ by a tick.

    Raises `RefusedMediaError`.
    """
    if [replace(one, index=0) for one in media.side_streams] != [
        replace(one, index=0) for one in made_media.side_streams
    ]:
        raise RefusedMediaError("not every other stream could be kept")
    old, new = _stream_contents(source, media), _stream_contents(made, made_media)
    for one, other in zip(old, new, strict=True):
        changed = _changed_part(one, other)
        if changed is not None:
            raise RefusedMediaError(f"{one.name} would change: {changed} would differ")


def _changed_part(one: _StreamContent, other: _StreamContent) -> str | None:
    """Return the part of a stream that differs between two files; None if there is none."""
    if (len(one.times), one.checksum) != (len(other.times), other.checksum):
        return "its packets"
    tick = float(max(one.tick, other.tick)) * _ROUNDING
    for name, before, after in (
        ("their times", one.times, other.times),
        ("their durations", one.durations, other.durations),
    ):
        ticks, others = np.frombuffer(before, np.int64), np.frombuffer(after, np.int64)
        is_timed = ticks != _NO_TIMESTAMP
        apart = np.abs(ticks * float(one.tick) - others * float(other.tick))
        if (is_timed != (others != _NO_TIMESTAMP)).any() or (apart[is_timed] > tick).any():
            return name
    return None


def _stream_contents(path: MediaFile, media: MediaInfo) -> list[_StreamContent]:
    """Return the contents of all other streams, by index."""
    if not media.side_streams:
        return []
    with MediaSource(path) as source, open_all_tracks(source, media.container) as opened:
        others = [stream for stream in opened.streams if stream.index != media.stream_index]
        found = {stream.index: _StreamContent(_stream_name(stream)) for stream in others}
        for packet in opened.demux(others):
            if not packet.size and packet.pts is None and packet.dts is None:
                continue
            content = found[packet.stream_index]
            content.checksum = zlib.crc32(bytes(packet), content.checksum)
            content.tick = tick_seconds(packet)
            content.times.append(_NO_TIMESTAMP if packet.pts is None else packet.pts)
            if packet.stream.type in _TIMED_KINDS:
                content.durations.append(packet.duration or 0)
        source.check()
        return [content for _, content in sorted(found.items())]


def _stream_name(stream: Stream) -> str:
    context = stream.codec_context
    codec = "of an unknown codec" if context is None else context.codec.canonical_name
    return f"stream {stream.index} ({stream.type}, {codec})"
