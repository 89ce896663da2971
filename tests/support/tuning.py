"""A process that applies the proposals: ``python -m tests.support.tuning STORE``.

It prints ``tuning`` when it begins, and a line for each decision.
"""

from __future__ import annotations

import sys

from vfsd.api.store import Store
from vfsd.errors import OutdatedError


def main(place: str) -> None:
    with Store.open(place, threads=1) as store:
        tuner = store.tuner()
        print("tuning", flush=True)
        while (proposal := tuner.next()) is not None:
            try:
                print(tuner.make(proposal).id, flush=True)
            except OutdatedError:
                print("outdated", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
