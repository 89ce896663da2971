"""Encodes stitchable tiles: kvazaar with motion vectors that stay within their tile.

kvazaar runs in an FFmpeg process.
"""

from __future__ import annotations

import functools
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO

import numpy as np
import numpy.typing as npt

from vfsd.codecs.bitstreams import nal
from vfsd.codecs.bitstreams.nal import BitstreamError
from vfsd.codecs.encoding.encoder import EncoderSettings, PictureInput
from vfsd.codecs.frames.planes import plane_bytes
from vfsd.codecs.stitching.hevc_parameter_sets import ConformanceWindow
from vfsd.codecs.stitching.hevc_tiles import (
    STITCHABLE,
    ParameterSets,
    TileStream,
    begins_picture,
    extract_tiles,
    holds_slice,
    refuse_damaged_streams,
)
from vfsd.errors import ExtraMissingError, UsageError, VfsdError

TREE_BLOCK = 64
"""Inner edges of tiles are multiples of kvazaar's coding tree block."""

# Sides that kvazaar encodes are multiples of this; padding is cropped.
_SIZE_MULTIPLE = 8

MAX_TILE_COLUMNS, MAX_TILE_ROWS = 20, 22
"""Most tile columns and rows of any HEVC level (H.265 table A.8)."""

_MAX_SIDE = 8192
_WORST_QUALITY = 51
_HINT = "pip install 'vfsd[stitch]'"

# A warning of FFmpeg that must be an error here.
_IGNORED = b"Invalid option"

_PARAMETERS = (
    # The fastest preset that searches fractions of pixels, which moving cameras need.
    "preset=faster",
    # Low-delay groups of four: decode order is display order.
    "gop=lp-g4d3t1",
    "period=0",
    "open-gop=0",
    # libde265 handles chroma slices wrongly in this filter. Without it, 0.2 dB are lost.
    "sao=off",
    # Required by stitching: see `vfsd.codecs.stitching.hevc_parameter_sets`.
    "mv-constraint=frametilemargin",
    "tmvp=0",
    "wpp=0",
    # SEI messages would describe the picture before stitching.
    "hash=none",
    "info=0",
    # With several pictures in flight, the output would depend on their number.
    "owf=0",
)


def kvazaar_available() -> bool:
    """Return whether tiles can be encoded here."""
    try:
        require_kvazaar()
    except ExtraMissingError:
        return False
    return True


def require_kvazaar() -> None:
    """Raise `ExtraMissingError` unless tiles can be encoded here."""
    _program()


@functools.cache
def _program() -> str:
    """Return the path of an FFmpeg with kvazaar. Raises `ExtraMissingError`."""
    try:
        import imageio_ffmpeg
    except ImportError:
        raise ExtraMissingError("imageio-ffmpeg is not installed", hint=_HINT) from None
    try:
        path = str(imageio_ffmpeg.get_ffmpeg_exe())
        result = subprocess.run(
            [path, "-hide_banner", "-h", "encoder=libkvazaar"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        ).stdout
    except (OSError, RuntimeError) as error:
        raise ExtraMissingError(
            f"the FFmpeg of imageio-ffmpeg does not run: {error}", hint=_HINT
        ) from error
    if "Encoder libkvazaar" not in result:
        raise ExtraMissingError(
            f"{path} does not include kvazaar", hint=f"{_HINT}, and unset IMAGEIO_FFMPEG_EXE"
        )
    return path


def encode_tile(
    settings: EncoderSettings,
    pictures: Iterable[PictureInput],
    *,
    x: int = 0,
    y: int = 0,
    threads: int = 1,
) -> TileStream:
    """Encode one tile of one segment with its upper left corner at `x`, `y` of the picture.

    `settings` have the size of the tile; see `encode_tiled`.
    """
    (tile,) = encode_tiled(settings, [settings.width], [settings.height], pictures, threads=threads)
    return TileStream(tile.rect.moved(x, y), tile.parameter_sets, tile.pictures)


# One run for all tiles gives the same bytes as a run for each tile, which takes 15 % longer for 4x4
# tiles of 30 pictures.
def encode_tiled(
    settings: EncoderSettings,
    widths: Sequence[int],
    heights: Sequence[int],
    pictures: Iterable[PictureInput],
    *,
    threads: int = 1,
) -> list[TileStream]:
    """Return the tiles of one segment, row by row.

    Each picture gives one packet; the first is an IDR picture. `widths` of columns and `heights` of
    rows fill the picture, and all but the last are multiples of `TREE_BLOCK`. The quality of
    `settings` is the quantizer of the first picture. The same pictures give the same bytes with any
    number of threads.

    Raises `ExtraMissingError` without kvazaar, `UsageError` for an unsupported layout or size,
    `VfsdError` if kvazaar fails.
    """
    _require_tiling(settings, widths, heights)
    command = _command(settings, widths, heights, threads)
    stream, count = _run_encoder(command, _raw_pictures(settings, pictures))
    try:
        with refuse_damaged_streams():
            sets, packets = _split_stream(stream)
            if len(packets) != count:
                raise BitstreamError(f"{count} pictures gave {len(packets)} packets")
            sets = _cropped_parameter_sets(sets, settings)
        return extract_tiles(sets, packets, profile=STITCHABLE)
    except VfsdError as error:
        raise VfsdError(f"unexpected output of kvazaar: {error}") from error


def _require_tiling(
    settings: EncoderSettings, widths: Sequence[int], heights: Sequence[int]
) -> None:
    width, height = settings.width, settings.height
    if settings.codec != "hevc" or not 0 <= settings.quality <= _WORST_QUALITY:
        raise UsageError(
            f"kvazaar needs codec hevc and quality 0 to {_WORST_QUALITY}, "
            f"got {settings.codec} and {settings.quality}"
        )
    if width % 2 or height % 2 or not (2 <= min(width, height) <= max(width, height)):
        raise UsageError(f"size must be even, got {width}x{height}")
    if max(width, height) > _MAX_SIDE:
        raise UsageError(f"width and height must be at most {_MAX_SIDE}, got {width}x{height}")
    for name, sizes, whole, limit in (
        ("columns", widths, width, MAX_TILE_COLUMNS),
        ("rows", heights, height, MAX_TILE_ROWS),
    ):
        if not sizes or min(sizes) < 2 or sum(sizes) != whole:
            raise UsageError(f"{name} must fill {whole} pixels, got {list(sizes)}")
        if len(sizes) > limit:
            raise UsageError(f"HEVC allows at most {limit} {name} of tiles, got {len(sizes)}")
        if any(size % TREE_BLOCK for size in sizes[:-1]):
            raise UsageError(
                f"{name} except the last must be multiples of {TREE_BLOCK} pixels, "
                f"got {list(sizes)}"
            )


def _command(
    settings: EncoderSettings, widths: Sequence[int], heights: Sequence[int], threads: int
) -> list[str]:
    parameters = [*_PARAMETERS, f"qp={settings.quality}"]
    parameters.append(f"threads={threads if threads > 1 else 0}")  # 0: no extra threads
    if len(widths) * len(heights) > 1:
        parameters.append("slices=tiles")
    for name, sizes in (("tiles-width-split", widths), ("tiles-height-split", heights)):
        if len(sizes) > 1:
            edges = ",".join(str(edge) for edge in np.cumsum(sizes)[:-1])
            parameters.append(f"{name}='{edges}'")
    width, height = _padded_side(settings.width), _padded_side(settings.height)
    rate = f"{settings.rate.numerator}/{settings.rate.denominator}"
    return [
        *(_program(), "-nostdin", "-hide_banner", "-v", "warning", "-threads", "1"),
        *("-f", "rawvideo", "-pixel_format", "yuv420p", "-video_size", f"{width}x{height}"),
        *("-framerate", rate, "-i", "pipe:0", "-vf", _color_filter(settings)),
        *("-fps_mode", "passthrough", "-c:v", "libkvazaar"),
        *("-kvazaar-params", ",".join(parameters), "-f", "hevc", "pipe:1"),
    ]


def _color_filter(settings: EncoderSettings) -> str:
    """Return a filter that passes the color metadata to the encoder without changing samples."""
    options = {
        "range": settings.color_range,
        "colorspace": settings.color_space,
        "color_primaries": settings.color_primaries,
        "color_trc": settings.color_transfer,
    }
    fields = ":".join(f"{key}={name}" for key, name in options.items() if name)
    ratio = settings.sample_aspect_ratio
    aspect = "" if ratio is None else f",setsar={ratio.numerator}/{ratio.denominator}"
    return (f"setparams={fields}" if fields else "null") + aspect


def _padded_side(side: int) -> int:
    return -(-side // _SIZE_MULTIPLE) * _SIZE_MULTIPLE


def _raw_pictures(settings: EncoderSettings, pictures: Iterable[PictureInput]) -> Iterator[bytes]:
    """Yield the samples of each picture; the last column and row are repeated up to the
    coded size.
    """
    width, height = settings.width, settings.height
    right, bottom = _padded_side(width) - width, _padded_side(height) - height
    for picture in pictures:
        planes = _planes(picture, width, height)
        sizes = [(height, width), (height // 2, width // 2), (height // 2, width // 2)]
        if [plane.shape for plane in planes] != sizes:
            raise UsageError(f"pictures must be {width}x{height} in yuv420p")
        if right or bottom:
            planes = [
                np.pad(plane, ((0, bottom // part), (0, right // part)), "edge")
                for plane, part in zip(planes, (1, 2, 2), strict=True)
            ]
        yield b"".join(plane.tobytes() for plane in planes)


def _planes(picture: PictureInput, width: int, height: int) -> list[npt.NDArray[np.uint8]]:
    if not isinstance(picture, np.ndarray):
        if picture.format.name not in ("yuv420p", "yuvj420p"):
            raise UsageError(f"pictures must be in yuv420p, got {picture.format.name}")
        return plane_bytes(picture)
    samples = np.ascontiguousarray(picture).ravel()
    luma, chroma = width * height, width * height // 4
    if picture.dtype != np.uint8 or samples.size != luma + 2 * chroma:
        raise UsageError(f"pictures must be {width}x{height} in yuv420p")
    return [
        samples[:luma].reshape(height, width),
        samples[luma : luma + chroma].reshape(height // 2, width // 2),
        samples[luma + chroma :].reshape(height // 2, width // 2),
    ]


def _run_encoder(command: Sequence[str], chunks: Iterable[bytes]) -> tuple[bytes, int]:
    """Run the program with `chunks` as input; return its output and the number of chunks.

    The program is killed on any error here.
    """
    count = 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        output, errors = _PipeReader(process.stdout), _PipeReader(process.stderr)
        try:
            with suppress(BrokenPipeError):  # the program has ended; the reason is reported below
                for chunk in chunks:
                    process.stdin.write(chunk)
                    count += 1
                process.stdin.close()
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            with suppress(BrokenPipeError):  # unwritten data remains in the buffer
                process.stdin.close()
            stream, said = output.finished(), errors.finished()
    if process.returncode or not stream:
        lines = said.decode(errors="replace").strip().splitlines()
        reason = next((line for line in lines if "libkvazaar @" in line), "; ".join(lines[-3:]))
        raise VfsdError(f"kvazaar failed ({process.returncode}): {reason or 'no output'}")
    if _IGNORED in said:  # a stream without its constraints would drift
        raise VfsdError("this version of kvazaar lacks a parameter that stitching needs")
    return stream, count


class _PipeReader:
    """Reads a pipe to its end in a thread, so that the program never blocks on a full pipe."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._data = b""
        self._thread = threading.Thread(target=self._read, name="kvazaar", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._data = self._pipe.read()

    def finished(self) -> bytes:
        self._thread.join()
        return self._data


def _split_stream(stream: bytes) -> tuple[tuple[bytes, ...], list[bytes]]:
    """Return the parameter sets at the beginning, and the slices of each picture."""
    sets: list[bytes] = []
    pictures: list[list[bytes]] = []
    for start, end in nal.nal_units(stream, 0):
        unit = stream[start:end]
        if nal.is_parameter_set("hevc", nal.unit_type("hevc", unit)):
            if pictures:
                raise BitstreamError("parameter sets between pictures")
            sets.append(unit)
        elif holds_slice(unit):
            if begins_picture(unit):
                pictures.append([])
            elif not pictures:
                raise BitstreamError("a picture has no first slice")
            pictures[-1] += (nal.START_CODE, unit)
    return tuple(sets), [b"".join(parts) for parts in pictures]


def _cropped_parameter_sets(
    units: tuple[bytes, ...], settings: EncoderSettings
) -> tuple[bytes, ...]:
    """Return the parameter sets with a conformance window that hides the padding."""
    sets = ParameterSets.parse(units)
    sequence = sets.sequence
    if (sequence.width, sequence.height) != (
        _padded_side(settings.width),
        _padded_side(settings.height),
    ):
        raise BitstreamError("the coded size differs from the settings")
    window = ConformanceWindow(sequence.width - settings.width, sequence.height - settings.height)
    resized = sequence.resized(sequence.width, sequence.height, window, sequence.level_idc)
    return units[0], resized.write(), units[2]
