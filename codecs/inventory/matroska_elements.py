"""Lists the elements of a Matroska or WebM file (RFC 9559, RFC 8794)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from vfsd.codecs.inventory.inventory import ItemCollector
from vfsd.codecs.inventory.mp4_boxes import PICTURES_PATH, FileWindow

_MAX_DEPTH = 16
_MAX_LEAF = 1 << 20
_UNKNOWN_SIZE = -1

_SEGMENT, _CLUSTER, _TRACKS = 0x18538067, 0x1F43B675, 0x1654AE6B
_TRACK, _TAG, _TARGETS, _SIMPLE_TAG = 0xAE, 0x7373, 0x63C0, 0x67C8
_BLOCK_GROUP, _BLOCK, _SIMPLE_BLOCK = 0xA0, 0xA1, 0xA3
_ADDITIONS, _MORE, _ADDITION, _ADDITION_ID = 0x75A1, 0xA6, 0xA5, 0xEE
_CHAPTERS, _EDITION, _ATOM = 0x1043A770, 0x45B9, 0xB6
_ATTACHMENTS, _ATTACHED = 0x1941A469, 0x61A7

# Master elements (RFC 9559, 5.1), except some with a method of their own.
_MASTERS = {
    _SEGMENT: "Segment",
    0x1549A966: "Info",
    _TRACKS: "Tracks",
    0xE0: "Video",
    0xE1: "Audio",
    0x55B0: "Colour",
    0x55D0: "MasteringMetadata",
    0x7670: "Projection",
    0x6D80: "ContentEncodings",
    0x6240: "ContentEncoding",
    0x41E4: "BlockAdditionMapping",
    _CHAPTERS: "Chapters",
    0x80: "ChapterDisplay",
    0x8F: "ChapterTrack",
}

# Offsets of data, and timestamps, which are compared as those of packets.
_SKIPPED = frozenset(
    (
        0x1A45DFA3,  # EBML head
        0x114D9B74,  # SeekHead
        0x1C53BB6B,  # Cues
        0xEC,  # Void
        0xBF,  # CRC-32
        0xA7,  # Position
        0xAB,  # PrevSize
        0xE7,  # Timestamp of a cluster
        0x9B,  # BlockDuration
        0xFB,  # ReferenceBlock
        0xFA,  # ReferencePriority
        0x8E,  # Slices
        0x75A2,  # DiscardPadding, compared as side data of packets
    )
)

_UINT, _INT, _FLOAT, _TEXT, _DATA = "u", "i", "f", "s", "b"
_NUMBERS = (_UINT, _INT, _FLOAT)
# Bytes; a longer number is listed as data.
_MAX_NUMBER_BYTES = 8

# (name, type, default value) by element ID (RFC 9559, 5.1).
_LEAVES: dict[int, tuple[str, str, int | float | str | None]] = {
    # Info
    0x73A4: ("SegmentUUID", _DATA, None),
    0x7384: ("SegmentFilename", _TEXT, None),
    0x3CB923: ("PrevUUID", _DATA, None),
    0x3C83AB: ("PrevFilename", _TEXT, None),
    0x3EB923: ("NextUUID", _DATA, None),
    0x3E83BB: ("NextFilename", _TEXT, None),
    0x4444: ("SegmentFamily", _DATA, None),
    0x2AD7B1: ("TimestampScale", _UINT, None),
    0x4489: ("Duration", _FLOAT, None),
    0x4461: ("DateUTC", _INT, None),
    0x7BA9: ("Title", _TEXT, ""),
    0x4D80: ("MuxingApp", _TEXT, None),
    0x5741: ("WritingApp", _TEXT, None),
    # Tracks
    0xD7: ("TrackNumber", _UINT, None),
    0x73C5: ("TrackUID", _UINT, None),
    0x83: ("TrackType", _UINT, None),
    0xB9: ("FlagEnabled", _UINT, 1),
    0x88: ("FlagDefault", _UINT, 1),
    0x55AA: ("FlagForced", _UINT, 0),
    0x55AB: ("FlagHearingImpaired", _UINT, 0),
    0x55AC: ("FlagVisualImpaired", _UINT, 0),
    0x55AD: ("FlagTextDescriptions", _UINT, 0),
    0x55AE: ("FlagOriginal", _UINT, 0),
    0x55AF: ("FlagCommentary", _UINT, 0),
    0x9C: ("FlagLacing", _UINT, None),
    0x6DE7: ("MinCache", _UINT, 0),
    0x6DF8: ("MaxCache", _UINT, None),
    0x23E383: ("DefaultDuration", _UINT, None),
    0x234E7A: ("DefaultDecodedFieldDuration", _UINT, None),
    0x23314F: ("TrackTimestampScale", _FLOAT, 1.0),
    0x55EE: ("MaxBlockAdditionID", _UINT, 0),
    0x41F0: ("BlockAddIDValue", _UINT, None),
    0x41A4: ("BlockAddIDName", _TEXT, None),
    0x41E7: ("BlockAddIDType", _UINT, 0),
    0x41ED: ("BlockAddIDExtraData", _DATA, None),
    0x536E: ("Name", _TEXT, ""),
    0x22B59C: ("Language", _TEXT, "eng"),
    0x22B59D: ("LanguageBCP47", _TEXT, None),
    0x86: ("CodecID", _TEXT, None),
    0x63A2: ("CodecPrivate", _DATA, None),
    0x258688: ("CodecName", _TEXT, None),
    0x7446: ("AttachmentLink", _UINT, None),
    0x6FAB: ("TrackOverlay", _UINT, None),
    0x56AA: ("CodecDelay", _UINT, 0),
    0x56BB: ("SeekPreRoll", _UINT, 0),
    # Video
    0x9A: ("FlagInterlaced", _UINT, 0),
    0x9D: ("FieldOrder", _UINT, 2),
    0x53B8: ("StereoMode", _UINT, 0),
    0x53C0: ("AlphaMode", _UINT, 0),
    0xB0: ("PixelWidth", _UINT, None),
    0xBA: ("PixelHeight", _UINT, None),
    0x54AA: ("PixelCropBottom", _UINT, 0),
    0x54BB: ("PixelCropTop", _UINT, 0),
    0x54CC: ("PixelCropLeft", _UINT, 0),
    0x54DD: ("PixelCropRight", _UINT, 0),
    0x54B0: ("DisplayWidth", _UINT, None),
    0x54BA: ("DisplayHeight", _UINT, None),
    0x54B2: ("DisplayUnit", _UINT, 0),
    0x54B3: ("AspectRatioType", _UINT, 0),
    0x2EB524: ("UncompressedFourCC", _DATA, None),
    0x2FB523: ("GammaValue", _FLOAT, None),
    0x2383E3: ("FrameRate", _FLOAT, None),
    # Colour
    0x55B1: ("MatrixCoefficients", _UINT, 2),
    0x55B2: ("BitsPerChannel", _UINT, 0),
    0x55B3: ("ChromaSubsamplingHorz", _UINT, None),
    0x55B4: ("ChromaSubsamplingVert", _UINT, None),
    0x55B5: ("CbSubsamplingHorz", _UINT, None),
    0x55B6: ("CbSubsamplingVert", _UINT, None),
    0x55B7: ("ChromaSitingHorz", _UINT, 0),
    0x55B8: ("ChromaSitingVert", _UINT, 0),
    0x55B9: ("Range", _UINT, 0),
    0x55BA: ("TransferCharacteristics", _UINT, 2),
    0x55BB: ("Primaries", _UINT, 2),
    0x55BC: ("MaxCLL", _UINT, None),
    0x55BD: ("MaxFALL", _UINT, None),
    0x55D1: ("PrimaryRChromaticityX", _FLOAT, None),
    0x55D2: ("PrimaryRChromaticityY", _FLOAT, None),
    0x55D3: ("PrimaryGChromaticityX", _FLOAT, None),
    0x55D4: ("PrimaryGChromaticityY", _FLOAT, None),
    0x55D5: ("PrimaryBChromaticityX", _FLOAT, None),
    0x55D6: ("PrimaryBChromaticityY", _FLOAT, None),
    0x55D7: ("WhitePointChromaticityX", _FLOAT, None),
    0x55D8: ("WhitePointChromaticityY", _FLOAT, None),
    0x55D9: ("LuminanceMax", _FLOAT, None),
    0x55DA: ("LuminanceMin", _FLOAT, None),
    # Projection
    0x7671: ("ProjectionType", _UINT, 0),
    0x7672: ("ProjectionPrivate", _DATA, None),
    0x7673: ("ProjectionPoseYaw", _FLOAT, 0.0),
    0x7674: ("ProjectionPosePitch", _FLOAT, 0.0),
    0x7675: ("ProjectionPoseRoll", _FLOAT, 0.0),
    # Audio
    0xB5: ("SamplingFrequency", _FLOAT, None),
    0x78B5: ("OutputSamplingFrequency", _FLOAT, None),
    0x9F: ("Channels", _UINT, None),
    0x6264: ("BitDepth", _UINT, None),
    0x52F1: ("Emphasis", _UINT, 0),
    # ContentEncoding
    0x5031: ("ContentEncodingOrder", _UINT, 0),
    0x5032: ("ContentEncodingScope", _UINT, 1),
    0x5033: ("ContentEncodingType", _UINT, 0),
    0x5034: ("ContentCompression", _DATA, None),
    0x5035: ("ContentEncryption", _DATA, None),
    # Chapters
    0x45BC: ("EditionUID", _UINT, None),
    0x45BD: ("EditionFlagHidden", _UINT, 0),
    0x45DB: ("EditionFlagDefault", _UINT, None),
    0x45DD: ("EditionFlagOrdered", _UINT, 0),
    0x73C4: ("ChapterUID", _UINT, None),
    0x5654: ("ChapterStringUID", _TEXT, None),
    0x91: ("ChapterTimeStart", _UINT, None),
    0x92: ("ChapterTimeEnd", _UINT, None),
    0x98: ("ChapterFlagHidden", _UINT, 0),
    0x4598: ("ChapterFlagEnabled", _UINT, 1),
    0x85: ("ChapString", _TEXT, None),
    0x437C: ("ChapLanguage", _TEXT, "eng"),
    0x437D: ("ChapLanguageBCP47", _TEXT, None),
    0x437E: ("ChapCountry", _TEXT, None),
    # Attachments
    0x467E: ("FileDescription", _TEXT, None),
    0x466E: ("FileName", _TEXT, None),
    0x4660: ("FileMediaType", _TEXT, None),
    0x465C: ("FileData", _DATA, None),
    0x46AE: ("FileUID", _UINT, None),
    # BlockMore
    _ADDITION_ID: ("BlockAddID", _UINT, 1),
    # Tags
    0x68CA: ("TargetTypeValue", _UINT, 50),
    0x63CA: ("TargetType", _TEXT, None),
    0x45A3: ("TagName", _TEXT, None),
    0x447A: ("TagLanguage", _TEXT, "und"),
    0x447B: ("TagLanguageBCP47", _TEXT, None),
    0x4484: ("TagDefault", _UINT, 1),
    0x4487: ("TagString", _TEXT, None),
    0x4485: ("TagBinary", _DATA, None),
}

_LANGUAGE, _LANGUAGE_TAG = 0x22B59C, 0x22B59D
# Languages of BCP 47 and the codes of ISO 639-2 that mean the same.
_TAGS = {
    "ar": "ara", "cs": "cze", "da": "dan", "de": "ger", "el": "gre", "en": "eng", "es": "spa",
    "fi": "fin", "fr": "fre", "he": "heb", "hi": "hin", "hu": "hun", "it": "ita", "ja": "jpn",
    "ko": "kor", "nl": "dut", "no": "nor", "pl": "pol", "pt": "por", "ro": "rum", "ru": "rus",
    "sv": "swe", "th": "tha", "tr": "tur", "uk": "ukr", "vi": "vie", "zh": "chi", "und": "und",
}  # fmt: skip

_TARGET_UIDS = {0x63C5: "track", 0x63C9: "edition", 0x63C4: "chapter", 0x63C6: "attachment"}
_TOP_LEVEL = frozenset(
    (_CLUSTER, _TRACKS, _CHAPTERS, _ATTACHMENTS, 0x1549A966, 0x114D9B74, 0x1C53BB6B, 0x1254C367)
)
_INVISIBLE = 0x08


@dataclass(frozen=True, slots=True)
class MatroskaElement:
    """The position of an element in a file."""

    identifier: int
    start: int
    content: int
    end: int
    is_open: bool = False  #: its size is unknown, so it ends with its parent


def iter_elements(window: FileWindow, start: int, end: int) -> Iterator[MatroskaElement]:
    """Yield the elements in ``start <= offset < end``, up to the first that does not fit."""
    at = start
    while at < end:
        head = window.read(at, 12)
        found = _element_head(head)
        if found is None:
            return
        identifier, size, length = found
        content = at + length
        is_open = size == _UNKNOWN_SIZE
        stop = end if is_open else content + size
        if stop > end:
            return
        yield MatroskaElement(identifier, at, content, stop, is_open)
        at = stop


def _element_head(head: bytes) -> tuple[int, int, int] | None:
    """Return (identifier, size, bytes of both); None if there is no element."""
    if not head or not head[0]:
        return None
    length = 9 - head[0].bit_length()
    if length > 4 or len(head) <= length or not head[length]:
        return None
    identifier = int.from_bytes(head[:length], "big")
    wide = 9 - head[length].bit_length()
    if length + wide > len(head):
        return None
    value = int.from_bytes(head[length : length + wide], "big") & (1 << 7 * wide) - 1
    size = _UNKNOWN_SIZE if value == (1 << 7 * wide) - 1 else value
    return identifier, size, length + wide


def element_name(identifier: int) -> str:
    """Return the name of an element, or its hexadecimal identifier."""
    entry = _LEAVES.get(identifier)
    return entry[0] if entry else _MASTERS.get(identifier, f"element 0x{identifier:X}")


def add_elements(window: FileWindow, stream_index: int, into: ItemCollector) -> None:
    """Add all elements of a file; track number `stream_index`, from 0, has the pictures."""
    _ElementWalker(window, stream_index, into).file()


class _ElementWalker:
    """Walks the elements of a file and adds their data."""

    def __init__(self, window: FileWindow, stream_index: int, into: ItemCollector) -> None:
        self._window = window
        self._stream_index = stream_index
        self._into = into
        self._numbers: dict[int, str] = {}  # names of tracks by TrackNumber
        self._uids: dict[tuple[str, int], str] = {}
        self._editions = self._chapters = self._attachments = 0

    def file(self) -> None:
        at = 0
        for element in iter_elements(self._window, 0, self._window.size):
            self._one(element, "", 0)
            at = element.end
        self._rest(at, self._window.size, "")

    def _children(self, parent: MatroskaElement, path: str, depth: int) -> None:
        at = parent.content
        for element in iter_elements(self._window, parent.content, parent.end):
            if element.is_open and element.identifier == _CLUSTER:
                at = self._open_clusters(element, path, depth)
                break
            self._one(element, path, depth)
            at = element.end
        self._rest(at, parent.end, path)

    def _open_clusters(self, element: MatroskaElement, path: str, depth: int) -> int:
        """Add clusters of unknown size and elements between them; return their end."""
        at = element.content
        for inner in iter_elements(self._window, element.content, element.end):
            if inner.is_open and inner.identifier == _CLUSTER:
                return self._open_clusters_from(inner, path, depth)
            if inner.identifier in _TOP_LEVEL:
                self._one(inner, path, depth)
            else:
                self._in_cluster(inner, f"{path}/Cluster", depth)
            at = inner.end
        return at

    def _open_clusters_from(self, element: MatroskaElement, path: str, depth: int) -> int:
        """Add further clusters of unknown size in a loop, to avoid deep recursion."""
        at, end = element.content, element.end
        while at < end:
            found = next(iter_elements(self._window, at, end), None)
            if found is None:
                break
            if found.is_open and found.identifier == _CLUSTER:
                at = found.content
                continue
            if found.identifier in _TOP_LEVEL:
                self._one(found, path, depth)
            else:
                self._in_cluster(found, f"{path}/Cluster", depth)
            at = found.end
        return at

    def _rest(self, start: int, end: int, path: str) -> None:
        size = end - start
        if size > _MAX_LEAF or self._window.read(start, size).strip(b"\0"):
            name = f"{path}/bytes behind the last element".lstrip("/")
            self._into.add_pieces(name, self._window.chunks(start, end), size)

    def _one(self, element: MatroskaElement, path: str, depth: int) -> None:
        identifier = element.identifier
        if identifier in _SKIPPED:
            return
        inner = f"{path}/{element_name(identifier)}".lstrip("/")
        if depth >= _MAX_DEPTH:
            self._leaf(element, path)
        elif identifier == _CLUSTER:
            for one in iter_elements(self._window, element.content, element.end):
                self._in_cluster(one, f"{path}/Cluster", depth)
        elif identifier == _TRACK:
            self._track(element, path, depth)
        elif identifier == 0x1254C367:
            for one in iter_elements(self._window, element.content, element.end):
                self._tag(one, f"{path}/Tags", depth)
        elif identifier in (_EDITION, _ATOM):
            self._numbered(element, path, depth)
        elif identifier == _ATTACHMENTS:
            self._attached(element, f"{path}/Attachments", depth)
        elif identifier in _MASTERS:
            self._children(element, inner, depth + 1)
        else:
            self._leaf(element, path)

    def _leaf(self, element: MatroskaElement, path: str) -> None:
        entry = _LEAVES.get(element.identifier)
        where = f"{path}/{element_name(element.identifier)}".lstrip("/")
        limit = _MAX_NUMBER_BYTES if entry is not None and entry[1] in _NUMBERS else _MAX_LEAF
        if entry is None or entry[1] == _DATA or element.end - element.content > limit:
            pieces = self._window.chunks(element.content, element.end)
            self._into.add_pieces(where, pieces, element.end - element.content)
            return
        value = self._value(element)
        if value != entry[2]:
            self._into.add_text(where, str(value))

    def _value(self, element: MatroskaElement) -> int | float | str:
        data = self._window.read(element.content, min(element.end - element.content, _MAX_LEAF))
        kind = _LEAVES[element.identifier][1]
        if kind == _UINT:
            return int.from_bytes(data, "big")
        if kind == _INT:
            return int.from_bytes(data, "big", signed=True)
        if kind == _FLOAT:
            forms = {4: ">f", 8: ">d"}
            return float(struct.unpack(forms[len(data)], data)[0]) if len(data) in forms else 0.0
        return data.rstrip(b"\0").decode("utf-8", "surrogateescape")

    def _number(self, parent: MatroskaElement, identifier: int) -> int:
        for one in iter_elements(self._window, parent.content, parent.end):
            if one.identifier == identifier:
                return int(self._value(one))
        return 0

    def _track(self, element: MatroskaElement, path: str, depth: int) -> None:
        number = len(self._numbers)
        name = PICTURES_PATH if number == self._stream_index else f"stream {number}"
        self._numbers[self._number(element, 0xD7)] = name
        self._uids["track", self._number(element, 0x73C5)] = name
        self._children(element, f"{path}/{name}", depth + 1)
        if self._says_no_more(element):
            self._into.discard(f"{path}/{name}/LanguageBCP47")

    def _says_no_more(self, track: MatroskaElement) -> bool:
        """Return whether LanguageBCP47 repeats Language."""
        values = {
            one.identifier: str(self._value(one))
            for one in iter_elements(self._window, track.content, track.end)
            if one.identifier in (_LANGUAGE, _LANGUAGE_TAG)
        }
        tag = values.get(_LANGUAGE_TAG, "")
        return tag == "und" or _TAGS.get(tag) == values.get(_LANGUAGE, "eng")

    def _numbered(self, element: MatroskaElement, path: str, depth: int) -> None:
        """Add an edition or a chapter, named by its order."""
        if element.identifier == _EDITION:
            self._editions += 1
            name = f"edition {self._editions}"
            self._uids["edition", self._number(element, 0x45BC)] = name
        else:
            self._chapters += 1
            name = f"chapter {self._chapters}"
            self._uids["chapter", self._number(element, 0x73C4)] = name
        self._children(element, f"{path}/{name}", depth + 1)

    def _attached(self, element: MatroskaElement, path: str, depth: int) -> None:
        for one in iter_elements(self._window, element.content, element.end):
            if one.identifier != _ATTACHED:
                self._one(one, path, depth)
                continue
            self._attachments += 1
            name = f"attachment {self._attachments}"
            self._uids["attachment", self._number(one, 0x46AE)] = name
            self._children(one, f"{path}/{name}", depth + 1)

    def _tag(self, element: MatroskaElement, path: str, depth: int) -> None:
        if element.identifier != _TAG:
            self._one(element, path, depth)
            return
        target = "file"
        found = list(iter_elements(self._window, element.content, element.end))
        for one in found:
            if one.identifier == _TARGETS:
                target = self._target(one)
        for one in found:
            if one.identifier == _SIMPLE_TAG:
                self._simple_tag(one, f"{path}/{target}", depth)
            elif one.identifier != _TARGETS:
                self._one(one, f"{path}/{target}", depth)

    def _target(self, element: MatroskaElement) -> str:
        parts = []
        for one in iter_elements(self._window, element.content, element.end):
            kind = _TARGET_UIDS.get(one.identifier)
            if kind is not None:
                uid = int.from_bytes(
                    self._window.read(one.content, min(one.end - one.content, 8)), "big"
                )
                if uid:
                    parts.append(self._uids.get((kind, uid), f"{kind} {uid}"))
            elif one.identifier in _LEAVES:
                value = self._value(one)
                if value != _LEAVES[one.identifier][2]:
                    parts.append(f"level {value}")
            elif one.identifier not in _SKIPPED:
                parts.append(element_name(one.identifier))
        return " ".join(parts) or "file"

    def _simple_tag(self, element: MatroskaElement, path: str, depth: int) -> None:
        found = list(iter_elements(self._window, element.content, element.end))
        name = ""
        for one in found:
            if one.identifier == 0x45A3:
                name = str(self._value(one)).upper()
        where = f"{path}/{name}"
        for one in found:
            if one.identifier == 0x4487:
                text = str(self._value(one))
                self._into.add_text(where, text)
            elif one.identifier == _SIMPLE_TAG and depth < _MAX_DEPTH:
                self._simple_tag(one, where, depth + 1)
            elif one.identifier != 0x45A3:
                self._one(one, where, depth)

    def _in_cluster(self, element: MatroskaElement, path: str, depth: int) -> None:
        if element.identifier == _SIMPLE_BLOCK:
            self._block_flags(element, path)
        elif element.identifier == _BLOCK_GROUP:
            self._block_group(element, path, depth)
        else:
            self._one(element, path, depth)

    def _block_flags(self, element: MatroskaElement, path: str) -> str:
        """Return the name of the block's track; add flags that packets do not show."""
        head = self._window.read(element.content, 12)
        wide = 9 - head[0].bit_length() if head and head[0] else 1
        number = int.from_bytes(head[:wide], "big") & (1 << 7 * wide) - 1
        name = self._numbers.get(number, f"track {number}")
        flags = head[wide + 2] if len(head) > wide + 2 else 0
        if flags & _INVISIBLE:
            self._into.add(f"{path}/{name}/invisible block", b"")
        return name

    def _block_group(self, element: MatroskaElement, path: str, depth: int) -> None:
        found = list(iter_elements(self._window, element.content, element.end))
        name = "a track"
        for one in found:
            if one.identifier == _BLOCK:
                name = self._block_flags(one, path)
        where = f"{path}/{name}"
        for one in found:
            if one.identifier == _ADDITIONS:
                for more in iter_elements(self._window, one.content, one.end):
                    self._addition(more, where, depth)
            elif one.identifier != _BLOCK:
                self._one(one, where, depth)

    def _addition(self, element: MatroskaElement, path: str, depth: int) -> None:
        if element.identifier != _MORE:
            self._one(element, path, depth)
            return
        found = list(iter_elements(self._window, element.content, element.end))
        number = self._number(element, _ADDITION_ID) or 1
        for one in found:
            if one.identifier == _ADDITION:
                pieces = self._window.chunks(one.content, one.end)
                where = f"{path}/BlockAdditional {number}"
                self._into.add_pieces(where, pieces, one.end - one.content)
            elif one.identifier != _ADDITION_ID:
                self._one(one, path, depth)
