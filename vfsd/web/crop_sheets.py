"""`CropSheets`: the newest sheets of crops, as JPEG."""

from __future__ import annotations

import threading
from collections import OrderedDict

_KEPT_SHEETS = 64


class CropSheets:
    """The newest sheets of crops in memory.  Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def get(self, key: str) -> bytes | None:
        with self._guard:
            return self._kept.get(key)

    def put(self, key: str, data: bytes) -> None:
        with self._guard:
            self._kept[key] = data
            while len(self._kept) > _KEPT_SHEETS:
                self._kept.popitem(last=False)
