"""A camera: an RTSP server that sends a clip again and again, in real time, with sender reports.

The clip runs whether a client is connected or not, as the scene before a camera does.  A client
gets the packets from the newest key picture on.  ``python -m tests.support.rtsp_camera PORT CLIP``
runs a camera as a process of its own; it reads its orders from stdin, see `main`.
"""

from __future__ import annotations

import base64
import io
import socket
import socketserver
import struct
import sys
import threading
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import av

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_NTP_EPOCH = 2_208_988_800  # seconds from 1900 to 1970
_REPORT_SECONDS = 1.0
_PAYLOAD_TYPES = {"h264": 96, "hevc": 97, "pcm_alaw": 8}


@dataclass(frozen=True)
class _ClipPacket:
    stream: int
    seconds: float  #: of the clip, in the order of decoding
    pts: int
    dts: int
    data: bytes
    is_key: bool


class CameraClip:
    """The packets of a file, for endless sending."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packets: list[_ClipPacket] = []
        with av.open(str(path)) as opened:
            streams = [*opened.streams.video, *opened.streams.audio]
            self.bases = [one.time_base or Fraction(1) for one in streams]
            self.codecs = [one.codec_context.codec.canonical_name for one in streams]
            self.extradata = bytes(streams[0].codec_context.extradata or b"")
            video = opened.streams.video[0]
            rate = float(video.average_rate or 25)
            order = {one.index: number for number, one in enumerate(streams)}
            for packet in opened.demux(streams):
                if packet.dts is None or packet.pts is None:
                    continue
                number = order[packet.stream.index]
                seconds = float(packet.dts * self.bases[number])
                is_key = number == 0 and packet.is_keyframe
                self.packets.append(
                    _ClipPacket(number, seconds, packet.pts, packet.dts, bytes(packet), is_key)
                )
        if self.codecs[0] in ("h264", "hevc"):  # cameras repeat them before each key picture
            units = self._avc_sets() if self.codecs[0] == "h264" else self._hevc_sets()
            sets = b"".join(struct.pack(">I", len(one)) + one for one in units)
            self.packets = [
                replace(one, data=sets + one.data) if one.is_key else one for one in self.packets
            ]
        self.seconds = sum(one.stream == 0 for one in self.packets) / rate
        self.packets.sort(key=lambda one: one.seconds)
        self.keys = [at for at, one in enumerate(self.packets) if one.is_key]
        self.starts = [one.seconds for one in self.packets]

    def description(self) -> str:
        """The SDP text."""
        lines = ["v=0", "o=- 1 1 IN IP4 127.0.0.1", "s=camera", "t=0 0", "a=control:*"]
        for number, codec in enumerate(self.codecs):
            kind = "audio" if codec == "pcm_alaw" else "video"
            payload = _PAYLOAD_TYPES[codec]
            lines.append(f"m={kind} 0 RTP/AVP {payload}")
            if codec == "h264":
                sets = ",".join(base64.b64encode(one).decode() for one in self._avc_sets())
                lines.append(f"a=rtpmap:{payload} H264/90000")
                lines.append(f"a=fmtp:{payload} packetization-mode=1;sprop-parameter-sets={sets}")
            elif codec == "hevc":
                lines.append(f"a=rtpmap:{payload} H265/90000")
            lines.append(f"a=control:track{number}")
        return "\r\n".join([*lines, ""])

    def _avc_sets(self) -> list[bytes]:
        found, at = [], 5
        for mask in (0x1F, 0xFF):
            count = self.extradata[at] & mask
            at += 1
            for _ in range(count):
                (size,) = struct.unpack_from(">H", self.extradata, at)
                found.append(self.extradata[at + 2 : at + 2 + size])
                at += 2 + size
        return found

    def _hevc_sets(self) -> list[bytes]:
        found, at = [], 23
        for _ in range(self.extradata[22]):
            (count,) = struct.unpack_from(">H", self.extradata, at + 1)
            at += 3
            for _ in range(count):
                (size,) = struct.unpack_from(">H", self.extradata, at)
                found.append(self.extradata[at + 2 : at + 2 + size])
                at += 2 + size
        return found


class _RtpTrack(io.RawIOBase):
    """Packs the packets of one stream into RTP; each write of FFmpeg is one RTP packet."""

    def __init__(self, clip: CameraClip, number: int, sender: RtspCamera) -> None:
        self._sender, self._number = sender, number
        self.out = bytearray()
        self._timestamp, self._source = 0, b""
        self._next_report = 0.0
        self._count = self._bytes = 0
        options = {"packetsize": "1400", "rtpflags": "skip_rtcp"}
        if clip.codecs[number] in ("h264", "hevc"):
            options["payload_type"] = str(_PAYLOAD_TYPES[clip.codecs[number]])
        with av.open(str(clip.path)) as opened:
            self._mux = av.open(self, "w", format="rtp", options=options)
            streams = [*opened.streams.video, *opened.streams.audio]
            self._stream = self._mux.add_stream_from_template(streams[number])
            self._mux.start_encoding()
        self._base = clip.bases[number]

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        packet = bytes(data)
        _, self._timestamp = struct.unpack_from(">HI", packet, 2)
        self._source = packet[8:12]
        self._count, self._bytes = self._count + 1, self._bytes + len(packet) - 12
        self.out += struct.pack(">BBH", 0x24, 2 * self._number, len(packet)) + packet
        return len(packet)

    def packed(self, one: _ClipPacket, ticks: int, shown: float) -> bytes:
        """One packet, as bytes for the client; `shown` is its time by the camera's clock."""
        packet = av.Packet(one.data)
        packet.pts, packet.dts = one.pts + ticks, one.dts + ticks
        packet.time_base = self._base
        packet.is_keyframe = one.is_key
        packet.stream = self._stream
        self._mux.mux_one(packet)
        sent, self.out = bytes(self.out), bytearray()
        if sent and self._sender.reports and shown >= self._next_report:
            self._next_report = shown + _REPORT_SECONDS
            return self._report(shown) + sent
        return sent

    def _report(self, shown: float) -> bytes:
        seconds, part = divmod(shown + _NTP_EPOCH, 1)
        body = struct.pack(
            ">IIIII",
            int(seconds),
            int(part * 2**32),
            self._timestamp,
            self._count,
            self._bytes & 0xFFFFFFFF,
        )
        report = struct.pack(">BBH", 0x80, 200, 6) + self._source + body
        return struct.pack(">BBH", 0x24, 2 * self._number + 1, len(report)) + report


class RtspCamera:
    """A server on a port of the loopback interface, from its start to `close`.

    `clock_ahead` are seconds of the camera's own clock before that of this host; without `reports`
    no client learns it.  `clip` may be exchanged at any time: clients get the new one from its next
    key picture on.
    """

    def __init__(
        self, port: int, clip: Path, *, reports: bool = True, clock_ahead: float = 0.0
    ) -> None:
        self.clip = CameraClip(clip)
        self.reports, self.clock_ahead = reports, clock_ahead
        self.started = time.time()
        self._began = time.monotonic()
        self._open: set[socket.socket] = set()
        camera = self

        class Client(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                camera._open.add(self.connection)
                try:
                    camera._serve(self)
                except OSError:
                    pass
                finally:
                    camera._open.discard(self.connection)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads = True, True

        self._server = Server(("127.0.0.1", port), Client)
        self.url = f"rtsp://127.0.0.1:{port}/live"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def exchange(self, clip: Path) -> None:
        """Send another clip from now on."""
        self.clip = CameraClip(clip)

    def drop_clients(self) -> None:
        """Break all connections."""
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown()
        self.drop_clients()
        self._server.server_close()
        self._thread.join()

    def _serve(self, client: socketserver.StreamRequestHandler) -> None:
        """Answer requests up to PLAY, then send until the client goes."""
        while True:
            request = client.rfile.readline().decode().split(" ")
            if len(request) < 2:
                return
            headers = {}
            while line := client.rfile.readline().decode().strip():
                key, _, value = line.partition(":")
                headers[key.lower()] = value.strip()
            method, number, body = request[0], headers.get("cseq", "0"), ""
            more = {"CSeq": number, "Session": "1"}
            if method == "OPTIONS":
                more["Public"] = "OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN"
            elif method == "DESCRIBE":
                body = self.clip.description()
                more["Content-Base"] = f"{self.url}/"
                more["Content-Type"] = "application/sdp"
                more["Content-Length"] = str(len(body))
            elif method == "SETUP":
                more["Transport"] = headers["transport"]
            head = "".join(f"{key}: {value}\r\n" for key, value in more.items())
            client.wfile.write(f"RTSP/1.0 200 OK\r\n{head}\r\n{body}".encode())
            if method == "PLAY":
                self._play(client)
            if method in ("PLAY", "TEARDOWN"):
                return

    def _play(self, client: socketserver.StreamRequestHandler) -> None:
        clip = None
        tracks: list[_RtpTrack] = []
        client.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            if clip is not self.clip:
                clip = self.clip
                tracks = [_RtpTrack(clip, number, self) for number in range(len(clip.codecs))]
                passed = time.monotonic() - self._began
                turn, inside = divmod(passed, clip.seconds)
                newest = bisect_right(clip.keys, bisect_right(clip.starts, inside) - 1) - 1
                at, turn = clip.keys[newest], turn - (newest < 0)
            one = clip.packets[at]
            due = turn * clip.seconds + one.seconds
            wait = due - (time.monotonic() - self._began)
            if wait > 0:
                time.sleep(wait)
            ticks = round(turn * clip.seconds / clip.bases[one.stream])
            shown = (
                self.started
                + self.clock_ahead
                + turn * clip.seconds
                + float(one.pts * clip.bases[one.stream])
            )
            client.wfile.write(tracks[one.stream].packed(one, ticks, shown))
            at += 1
            if at == len(clip.packets):
                at, turn = 0, turn + 1


def main(port: str, clip: str, clock_ahead: str = "0") -> None:
    """Run a camera; each line of stdin is the path of the clip to send from then on."""
    camera = RtspCamera(int(port), Path(clip), clock_ahead=float(clock_ahead))
    for line in sys.stdin:
        camera.exchange(Path(line.strip()))
    camera.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
