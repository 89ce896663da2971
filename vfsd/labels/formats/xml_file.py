"""XML label files, which may come from anywhere: small, shallow and without document types."""

from __future__ import annotations

from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from vfsd.errors import UsageError
from vfsd.labels.formats.label_file import LabelRows, parse_integer, require_size

_MOST_BYTES = 64 << 20
_DEEPEST = 64


def parse_xml(rows: LabelRows) -> Element:
    """Parse a file.  Raises `UsageError`."""
    require_size(rows.path, _MOST_BYTES)
    builder = TreeBuilder()
    parser = expat.ParserCreate()
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise rows.error(parser.CurrentLineNumber, "XML must not be nested so deeply")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def doctype(*_: object) -> None:
        raise rows.error(parser.CurrentLineNumber, "a label file must not declare a document type")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(rows.path.read_bytes(), True)
    except expat.ExpatError as error:
        raise rows.error(error.lineno, f"invalid XML: {expat.ErrorString(error.code)}") from None
    except UsageError:
        raise
    except (LookupError, ValueError):  # an encoding that Python or expat does not support
        raise rows.error(1, "it declares an unknown encoding", hint="save it as UTF-8") from None
    return builder.close()


def require_picture_size(rows: LabelRows, size_of: Element | None) -> None:
    """Raise `UsageError` if an element with width and height has another size than the video."""
    if size_of is None:
        return
    texts = [size_of.findtext(side) for side in ("width", "height")]
    try:
        size = [parse_integer(text) for text in texts if text is not None and text.strip()]
    except ValueError as error:
        raise rows.error("size", str(error)) from None
    if len(size) == 2 and any(size) and size != [rows.clip.width, rows.clip.height]:
        raise rows.error(
            "size",
            f"the image must have the size of the video, {rows.clip.width}x{rows.clip.height}, "
            f"got {size[0]}x{size[1]}",
            hint="scale the boxes to pixels of the video",
        )
