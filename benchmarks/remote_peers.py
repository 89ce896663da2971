"""Other readers of a video in a bucket, for `benchmarks.remote_reads`, in a process of their own.

It runs in an environment with PyAV, obstore, s3fs, torchcodec and decord, or some of them, and
imports nothing of vfsd. Lines of JSON on its input say what to do: a reader, and a frame, or null
to open the video again. Each answer has the seconds and CPU seconds; the pixels are in a file.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import av
import numpy as np

_BUFFER = 1 << 20


class _Bytes:
    """A file object for PyAV, which takes nothing but `bytes`."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.seek, self.tell = reader.seek, reader.tell

    def read(self, size: int) -> bytes:
        return bytes(self._reader.read(size))


class _PyAV:
    """Seeks to the key frame and decodes up to the time, as a careful program does."""

    def __init__(self, file: Any) -> None:
        self._container = av.open(file)

    def __getitem__(self, index: int) -> Any:
        stream = self._container.streams.video[0]
        assert stream.average_rate is not None
        assert stream.time_base is not None
        wanted = round(index / stream.average_rate / stream.time_base) + (stream.start_time or 0)
        self._container.seek(wanted, stream=stream)
        for frame in self._container.decode(stream):
            if frame.pts is not None and frame.pts >= wanted:
                return frame.to_ndarray(format="rgb24")
        return None


class _Peers:
    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._kept: dict[str, Any] = {}

    def _client(self, make: Callable[[], Any]) -> Any:
        """Return a client that is made once, as opening one is not what is measured."""
        name = make.__name__
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def _bucket(self) -> Any:
        return importlib.import_module("obstore.store").from_url(
            self._settings["url"],
            endpoint=self._settings["endpoint"],
            region=self._settings["region"],
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def _file_system(self) -> Any:
        return importlib.import_module("s3fs").S3FileSystem(
            endpoint_url=self._settings["endpoint"],
            client_kwargs={"region_name": self._settings["region"]},
            config_kwargs={"s3": {"addressing_style": "path"}},
        )

    def _s3fs(self, **options: Any) -> Any:
        files = self._client(self._file_system)
        files.invalidate_cache()
        url = self._settings["url"].removeprefix("s3://")
        return files.open(f"{url}/{self._settings['place']}", "rb", **options)

    def download(self) -> Any:
        """The whole object into a file, then PyAV."""
        obstore = importlib.import_module("obstore")
        data = obstore.get(self._client(self._bucket), self._settings["place"]).bytes()
        with tempfile.NamedTemporaryFile(delete=False, dir=self._settings["folder"]) as file:
            file.write(data)
        found = _PyAV(file.name)
        os.unlink(file.name)
        return found

    def pyav_obstore(self) -> Any:
        obstore = importlib.import_module("obstore")
        bucket, place = self._client(self._bucket), self._settings["place"]
        return _PyAV(_Bytes(obstore.open_reader(bucket, place, buffer_size=_BUFFER)))

    def pyav_s3fs(self) -> Any:
        return _PyAV(self._s3fs())

    def pyav_s3fs_no_cache(self) -> Any:
        return _PyAV(self._s3fs(cache_type="none"))

    def pyav_file(self) -> Any:
        return _PyAV(self._settings["file"])

    def torchcodec(self, mode: str = "approximate") -> Any:
        decoders = importlib.import_module("torchcodec.decoders")
        return decoders.VideoDecoder(self._s3fs(), dimension_order="NHWC", seek_mode=mode)

    def torchcodec_exact(self) -> Any:
        return self.torchcodec("exact")

    def decord(self) -> Any:
        return importlib.import_module("decord").VideoReader(self._s3fs(), num_threads=1)


def main() -> None:
    settings = json.loads(sys.argv[1])
    peers = _Peers(settings)
    opened: Any = None
    # Libraries must not write into the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        reader, frame = json.loads(line)
        cpu, start = time.process_time(), time.perf_counter()
        answer: dict[str, Any] = {}
        try:
            if frame is None:
                opened = None
                opened = getattr(peers, reader)()
            else:
                found = opened[frame]
                found = found.asnumpy() if hasattr(found, "asnumpy") else np.asarray(found)
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"[:200]
        answer["seconds"] = time.perf_counter() - start
        answer["cpu"] = time.process_time() - cpu
        if frame is not None and "error" not in answer:
            np.save(settings["pixels"], found)
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
