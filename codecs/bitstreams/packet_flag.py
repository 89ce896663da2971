"""What the bytes of a packet tell of its place among the others."""

from __future__ import annotations


class Trait:
    """Bits of a whole number; not an `IntFlag`, which costs more than reading the packet."""

    STARTS = 1  #: decoding that starts here is exact, for all that is shown after it
    RESETS = 2  #: and nothing that follows is shown before it
    LEADING = 4  #: shown before the key picture it follows, and needs what lies before that
    UNREFERENCED = 8  #: no other picture needs it
    HIDDEN = 16  #: shows no picture
    PARAMETERS = 32  #: holds every kind of parameter set that decoding needs
    FOREIGN = 64  #: holds a parameter set that the codec configuration does not
    ODD = 128  #: something that only a decode can judge
    DAMAGED = 256  #: does not parse
    UNPACKED = 512  #: shows a picture that the packet before holds; the decoder needs both
    SUBLAYER = 0x7000  #: HEVC: a number, that of the temporal sub-layer
