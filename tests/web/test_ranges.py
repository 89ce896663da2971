"""Any header Range gives the bytes that RFC 9110 asks for, of originals and of views."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_videos import FOLDER
from tests.support.web_client import RunningServer
from vfsd.web.byte_ranges import UnsatisfiableRangeError, requested_range

_NUMBERS = st.one_of(st.integers(0, 40), st.integers(0, 10**30))
_PARTS = st.one_of(
    st.builds("{}-{}".format, _NUMBERS, _NUMBERS),
    st.builds("{}-".format, _NUMBERS),
    st.builds("-{}".format, _NUMBERS),
    st.text("0123456789-, ", max_size=8),
)
_HEADERS = st.one_of(
    st.builds("bytes={}".format, _PARTS),
    st.builds("bytes={}".format, st.lists(_PARTS, max_size=4).map(",".join)),
    st.builds("{}={}".format, st.sampled_from(["Bytes", "items", "bytes ", ""]), _PARTS),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
)


def expected(header: str, size: int) -> range | str | None:
    """The result of a plain reading of RFC 9110, section 14."""
    match = re.fullmatch(r"bytes=\s*(\d*)-(\d*)\s*", header, re.IGNORECASE | re.ASCII)
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        count = min(int(last), size)
        return range(size - count, size) if count else "unsatisfiable"
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        return "unsatisfiable"
    return range(int(first), min(int(last) + 1 if last else size, size))


@given(_HEADERS, st.integers(0, 50))
def test_header(header: str, size: int) -> None:
    try:
        found: range | str | None = requested_range(header, size)
    except UnsatisfiableRangeError:
        found = "unsatisfiable"
    assert found == expected(header, size)


@pytest.mark.parametrize("digits", [4000, 20])
def test_huge_numbers(digits: int) -> None:
    """Python refuses to parse thousands of digits, and no header may cost quadratic time."""
    assert requested_range(f"bytes=0-{'9' * digits}", 10) == range(10)
    assert requested_range(f"bytes=-{'9' * digits}", 10) == range(10)
    with pytest.raises(UnsatisfiableRangeError):
        requested_range(f"bytes={'9' * digits}-", 10)


@pytest.mark.thorough
@given(st.data())
def test_bytes_of_ranges(served: RunningServer, data: st.DataObject) -> None:
    view = data.draw(st.sampled_from(["", "@/t=0.3-1.1.mp4", "@/size=160x120,t=0-0.4.mp4"]))
    if view:
        with served.store["cam1/traffic.mp4"].views.open(view[2:]) as file:
            whole = file.read()
    else:
        whole = (FOLDER / "traffic.mp4").read_bytes()
    edges = st.one_of(st.integers(0, len(whole) + 10), st.integers(len(whole) - 5, len(whole) + 5))
    header = data.draw(
        st.one_of(
            st.builds("bytes={}-{}".format, edges, edges),
            st.builds("bytes={}-".format, edges),
            st.builds("bytes=-{}".format, edges),
            _HEADERS,
        )
    )
    if header.strip() != header or not header:
        return  # not a header value
    done = served.client().get(f"/v/cam1/traffic.mp4{view}", range=header)
    wanted = expected(header, len(whole))
    if wanted is None:
        assert (done.status, done.body) == (200, whole)
    elif isinstance(wanted, str):
        assert done.status == 416
        assert done.headers["content-range"] == f"bytes */{len(whole)}"
    else:
        assert (done.status, done.body) == (206, whole[wanted.start : wanted.stop])
        place = f"bytes {wanted.start}-{wanted.stop - 1}/{len(whole)}"
        assert done.headers["content-range"] == place
