"""What all tests share: where the real footage is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def footage_folder() -> Path | None:
    """The folder of real footage, if it is here: VFSD_FOOTAGE, or one beside the repository."""
    told = os.environ.get("VFSD_FOOTAGE")
    folder = Path(told) if told else REPOSITORY.parent / "shared" / "videos"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def footage() -> Path:
    """The folder of real footage.  Without it the test is skipped, or fails where
    VFSD_REQUIRE_FOOTAGE=1 says that it has to be there."""
    folder = footage_folder()
    if folder is not None:
        return folder
    reason = "no footage: set VFSD_FOOTAGE to its folder"
    if os.environ.get("VFSD_REQUIRE_FOOTAGE") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
