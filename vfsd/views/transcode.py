"""Views that are decoded and encoded again: a region, another size or rate, another codec.

The file is a header and one segment for each second of the view, each a closed run of pictures
that is encoded on its own when its bytes are first read.  Its place was measured out beforehand
(`vfsd.views.size_model`); what does not fit is encoded again, more coarsely, and what is left over
is padding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from blake3 import blake3

from vfsd.codecs.containers.mux import muxer_for
from vfsd.codecs.containers.packet_format import Framing, framing_of_encoder
from vfsd.codecs.containers.segment_muxer import LEAST_PADDING, Muxer, SegmentIndex, Track, overhead
from vfsd.codecs.encoding.encoder import EncoderSettings, parameter_sets
from vfsd.core.frame_table_pages import Ints
from vfsd.core.model import MediaInfo
from vfsd.core.view_path import Form
from vfsd.core.view_request import View
from vfsd.views.audio import SegmentedSound, ViewSound
from vfsd.views.context import Workshop
from vfsd.views.convert import PictureForm, view_picture_form
from vfsd.views.encoded_run import EncodedRun
from vfsd.views.layout import ListedSlots, Slots
from vfsd.views.plan_steps import ViewPart
from vfsd.views.rate_control import QUALITY, is_lossless
from vfsd.views.read_notes import Pictures
from vfsd.views.side_data import marks_of_encoding
from vfsd.views.source import Footage
from vfsd.views.timeline import Showing

DEFAULT_CODEC = "h264"
# The kernel reads whole pages. If slots shared a page, a seek to one segment would also render the
# segment before it. Rounding adds 2 kB a segment.
_PAGE = 4096
CONFIGURATION_BYTES = 512
"""Kept free in the header for the parameter sets, which only the encoder knows: about 100."""


class EncodedRendition:
    """A file of encoded segments.  Slot 0 is the container's header."""

    made = "encoded"

    def __init__(
        self,
        keys: tuple[str, str],
        footage: Footage,
        view: View,
        form: Form,
        showing: Showing,
        sound: ViewSound | None = None,
        *,
        why: str = "",
    ) -> None:
        """`keys` stand for what is shown, and for that made from the original alone; `why` nothing
        of it can be copied.  Raises `UsageError` for sizes that the codec does not take."""
        key, original_key = keys
        self.why = why
        self.memory = showing.memory + (sound.memory if sound else 0)
        self._sound_track = sound.track if sound else None
        self._showing = showing
        self._container = form.container
        media = footage.physical.media
        pictures = view_picture_form(media, view, form)
        codec = form.codec or DEFAULT_CODEC
        settings = encoder_settings(media, codec, pictures, showing)
        steady = view.fps is None and (view.frames is None or view.frames[2] == 1)
        self.marks = marks_of_encoding(media, form.container, pictures, steady=steady)
        self._run = run = EncodedRun(key, footage, pictures, settings, showing)
        self._known_framing: Framing | None = None
        muxer = self._muxer(bytes(1))
        self._sound = SegmentedSound(sound, muxer, showing.starts, run.starts, showing.time_base)
        # What pictures may take does not depend on what is heard, nor on where pages end.
        self._rooms = run.sizes + muxer.overheads(showing.starts, run.keys, run.starts)
        sizes = _whole_pages(self._rooms + self._sound.sizes)
        self._index = SegmentIndex(
            sizes=sizes,
            starts=showing.starts[run.starts],
            starts_with_key=np.ones(len(sizes), np.int64),
            end=showing.end,
        )
        header = len(muxer.header(spare=CONFIGURATION_BYTES)) + muxer.index_size(len(sizes))
        self.slots: Slots = ListedSlots(int(_whole_pages(np.array([header]))[0]), sizes)
        # What is stored as a part of a rendition need not be stored twice.
        self.storable = frozenset(
            slot for slot in range(1, len(self.slots)) if slot - 1 not in run.stored
        )
        self.is_work = bool(self.storable)
        # A segment tells its size, so that one made for another allotment must not be taken for it.
        self.key = blake3(key.encode() + sizes.tobytes()).hexdigest()
        self.digest = footage.digest
        self._original_key = blake3(original_key.encode() + sizes.tobytes()).hexdigest()

    @property
    def pixel_format(self) -> str:
        """Of what is encoded."""
        return self._run.settings.pixel_format

    @property
    def is_lossless(self) -> bool:
        return is_lossless(self._run.settings.codec)

    def key_of_slot(self, slot: int) -> str:
        """What comes from the original in any case stays the same when tiles come and go."""
        is_changing = slot > 0 and self._run.has_tiles(slot - 1)
        return f"{self.key if is_changing else self._original_key}.{slot}"

    def make(self, slot: int, workshop: Workshop) -> bytes:
        framing = self._framing()
        muxer = self._muxer(framing.configuration)
        size = self.slots[slot].size
        if not slot:
            return muxer.header(self._index, spare=size - len(muxer.header(self._index)))
        number = slot - 1
        times = self._run.times(number)
        room = int(self._rooms[number]) - overhead(muxer, times) - LEAST_PADDING
        segment = self._run.encoded(number, framing, room, workshop)
        sound = self._sound.packets(number, workshop)
        data = muxer.segment(number, times, segment.payloads, size, sound)
        if segment.luma is not None and workshop.candidates is not None:
            self._run.note(
                number, segment, framing, workshop.candidates, self.key_of_slot(slot), data
            )
        return data

    def trimmed(self, slot: int, data: bytes) -> bytes:
        """What `make` gave for a slot that is not the header, without its padding."""
        return self._muxer(self._framing().configuration).trimmed(data)

    def header_of(self, sizes: Ints) -> bytes:
        """As large as that of the file, for segments of these sizes."""
        muxer = self._muxer(self._framing().configuration)
        index = dataclasses.replace(self._index, sizes=sizes)
        return muxer.header(index, spare=self.slots[0].size - len(muxer.header(index)))

    def pictures(self, slots: Sequence[int]) -> Pictures | None:
        run = self._run
        parts = [run.frames(slot - 1) for slot in slots if slot]
        return Pictures(run.footage, np.concatenate(parts), run.pictures) if parts else None

    @property
    def parts(self) -> Sequence[ViewPart]:
        return self._run.parts

    def _framing(self) -> Framing:
        settings = self._run.settings
        if self._known_framing is None:  # it may be made twice, by two threads: it is the same
            stream = self._container in ("h264", "hevc")
            self._known_framing = framing_of_encoder(
                settings.codec, parameter_sets(settings), stream=stream, bits=settings.bits
            )
        return self._known_framing

    def _muxer(self, configuration: bytes) -> Muxer:
        settings, showing = self._run.settings, self._showing
        lengths = np.diff(np.append(showing.starts[self._run.starts], showing.end))
        track = Track(
            codec=settings.codec,
            width=settings.width,
            height=settings.height,
            configuration=configuration,
            time_base=showing.time_base,
            duration=showing.end,
            longest=int(lengths.max()),
            rate=showing.rate,
            sample_aspect_ratio=settings.sample_aspect_ratio,
            colors=settings.color_codes if is_lossless(settings.codec) else None,
            marks=self.marks,
        )
        return muxer_for(self._container, track, self._sound_track)


def _whole_pages(sizes: Ints) -> Ints:
    """No page of the kernel's has bytes of two slots: who reads the first byte of one would wait
    for the one before, too."""
    return -(-sizes // _PAGE) * _PAGE


def encoder_settings(
    media: MediaInfo, codec: str, pictures: PictureForm, showing: Showing
) -> EncoderSettings:
    """How to encode such pictures of `media`."""
    ratio = pictures.sample_aspect_ratio
    settings = EncoderSettings(
        codec=codec,
        width=pictures.size[0],
        height=pictures.size[1],
        quality=QUALITY[codec],
        rate=showing.mean_rate,
        sample_aspect_ratio=ratio if ratio != Fraction(1) else None,
        pixel_format=pictures.pixel_format,
    )
    return settings.with_colors_of(media)
