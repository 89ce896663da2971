"""The S3 server of the tests, and the proxy in front of it."""

from __future__ import annotations

import time

import pytest

from tests.support.http_proxy import HttpProxy
from tests.support.seaweedfs import ACCESS_KEY, REGION, SECRET_KEY, SeaweedServer

obstore = pytest.importorskip("obstore")


def _bucket(server: SeaweedServer, port: int, secret: str = SECRET_KEY) -> object:
    return obstore.store.S3Store(
        server.bucket,
        endpoint=f"http://127.0.0.1:{port}",
        region=REGION,
        access_key_id=ACCESS_KEY,
        secret_access_key=secret,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "2s"},
        retry_config={"max_retries": 0},
    )


def test_proxy_counts_and_damages(seaweedfs: SeaweedServer, s3_proxy: HttpProxy) -> None:
    data = bytes(range(256)) * 400
    bucket = _bucket(seaweedfs, s3_proxy.port)
    obstore.put(bucket, "server/one", data)
    assert bytes(obstore.get_range(bucket, "server/one", start=10, end=70_010)) == data[10:70_010]
    assert s3_proxy.counts.requests == {"PUT": 1, "GET": 1}
    assert s3_proxy.counts.ranges == ["bytes=10-70009"]
    assert s3_proxy.counts.body_bytes == 70_000
    for fault, value in (("busy_answers", 1), ("cut", 1.0)):
        s3_proxy.reset()
        setattr(s3_proxy.faults, fault, value)
        with pytest.raises(obstore.exceptions.GenericError):
            obstore.get_range(bucket, "server/one", start=0, end=70_000)
    s3_proxy.reset()
    s3_proxy.faults.short = 1
    # The client does not compare the length with the one it asked for.
    assert len(obstore.get_range(bucket, "server/one", start=0, end=70_000)) == 69_999
    s3_proxy.reset()
    s3_proxy.faults.lag = 0.2
    began = time.monotonic()
    assert len(obstore.get_range(bucket, "server/one", start=0, end=100)) == 100
    assert time.monotonic() - began > 0.2


def test_server_checks_signatures(seaweedfs: SeaweedServer) -> None:
    with pytest.raises(obstore.exceptions.PermissionDeniedError):
        obstore.put(_bucket(seaweedfs, seaweedfs.port, "wrong"), "server/two", b"data")
