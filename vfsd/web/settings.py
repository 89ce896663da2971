"""`ServeOptions` and `RequestLimits`: how a store is served."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from vfsd.core.process_control import available_cores
from vfsd.errors import UsageError

DEFAULT_PORT = 8765
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_REQUEST_LINE = 4096
"""Bytes of a path with its query."""
MAX_HEADER_BYTES = 8192
MAX_JSON_BYTES = 1 << 20
"""Bytes of a JSON body."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds on the cost of one request, of one client, and of all clients."""

    encodes: int = field(default_factory=lambda: max(1, available_cores() // 2))
    """Requests that encode or decode at a time."""
    queue: int = 64  #: requests that may wait for that
    queue_seconds: float = 20.0  #: how long one waits, before 503
    per_client: int = 64  #: requests of one client at a time
    work_per_client: int = 8  #: of these, requests that encode or decode
    max_side: int = 4096  #: pixels of the longer side of an encoded view
    max_rate: int = 240  #: frames per second of an encoded view, unless the video has more
    max_seconds: int = 600  #: length of an encoded view
    piece: int = 256 << 10  #: bytes that are read and sent at a time
    idle_seconds: float = 60.0  #: for a piece to be sent or received
    header_seconds: float = 10.0  #: for the header of a request
    body_seconds: float = 30.0  #: for a JSON body
    keep_alive_seconds: float = 30.0
    stop_seconds: float = 10.0  #: how long running requests may take when the server ends


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of ``vfsd serve``, checked."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    write: bool = False
    certificate: Path | None = None
    key: Path | None = None
    proxies: tuple[str, ...] = ()
    """Addresses of reverse proxies; with any, only these may connect."""
    origins: tuple[str, ...] = ()  #: other origins that may call the API (CORS)
    hosts: tuple[str, ...] = ()  #: more names of this server, for the header Host
    max_connections: int = 256
    metrics_token: str | None = None  #: None: no ``/metrics``
    age: bool = False
    tune: bool = False
    limits: RequestLimits = field(default_factory=RequestLimits)

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--cert and --key belong together")
        for proxy in self.proxies:
            try:
                ip_address(proxy)
            except ValueError:
                raise UsageError(f"--behind-proxy must be IP addresses, got {proxy!r}") from None
        for origin in self.origins:
            scheme, mark, rest = origin.partition("://")
            if scheme not in ("http", "https") or not mark or not rest or "/" in rest:
                raise UsageError(
                    f"--cors must be an origin such as https://tool.example, got {origin!r}"
                )

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the server over HTTPS."""
        return self.certificate is not None or bool(self.proxies)

    def require_safe(self, *, has_credentials: bool) -> None:
        """Raise `UsageError` for an address that others reach without TLS or credentials."""
        if self.is_loopback:
            return
        if not has_credentials:
            raise UsageError(
                f"{self.host} can be reached from other machines and needs credentials",
                hint="give --token-file FILE or --password",
            )
        if not self.is_secure:
            raise UsageError(
                f"{self.host} can be reached from other machines and needs TLS",
                hint="give --cert FILE --key FILE, or --behind-proxy ADDRESS for a proxy with TLS",
            )
