"""A program that joins two videos and is killed at a certain step of the second segment."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from vfsd.api.store import Store
from vfsd.catalog.segments import Segments
from vfsd.disk.object_store import ObjectStore
from vfsd.overlap import join, split


def dying(function: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """The same function, killed when the call of that number is done."""
    left = [calls]

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return call


def main(place: str, one: str, other: str, step: str) -> None:
    if step == "stored":  # after the bytes, before the transaction
        ObjectStore.put_bytes = dying(ObjectStore.put_bytes, 2)  # type: ignore[method-assign]
    if step == "half":  # the left side is published, but not the right one
        Segments.publish = dying(Segments.publish, 3)  # type: ignore[method-assign]
    if step == "both":  # still in the transaction
        Segments.publish = dying(Segments.publish, 4)  # type: ignore[method-assign]
    if step == "split":  # the rows are gone if the transaction was committed
        Segments.delete = dying(Segments.delete, 1)  # type: ignore[method-assign]
    with Store.open(place) as store:
        if step == "split":
            split(store, one)
        else:
            join(store, one, other, jobs=1, seconds_each=0.3)


if __name__ == "__main__":
    main(*sys.argv[1:5])
