"""Memory and CPU per idle MQTT connection with one subscription: plain, TLS, WebSocket.

    python -m benchmarks connections [N] [--tls N] [--ws N]      10,000 plain, 1,500 TLS and 1,500 WebSocket ones

A server process of its own for each kind; memory is the growth of its anonymous memory, CPU its own, from connect to
SUBACK. Then all are idle for some seconds, and disconnect.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Request

BATCH = 200
IDLE_S = 5.0
TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """`lightmq up` and its resource use."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "lightmq", "up", "--json", "--data", str(folder / "data"), *options]
        command += ["--mqtt-port", "0", "--remoting-port", "0", "--admin-port", "0"]
        command += ["--set", "proxy.connections_max=100000", "--log-level", "error"]
        environment = os.environ | {"LIGHTMQ_BROKER__STORE__SEGMENT_SIZE_BYTES": str(64 << 20)}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.ports: dict[str, int] = json.loads(self._process.stdout.readline())

    def anonymous_bytes(self) -> int:
        """What the process allocated, without mapped files."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    def cpu_s(self) -> float:
        """CPU time of the process."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def stop(self) -> None:
        """End it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


def connect_packet(number: int) -> bytes:
    """CONNECT with a keep-alive of ten minutes."""
    client_id = b"device-%06d" % number
    return (
        b"\x10"
        + bytes([12 + len(client_id)])
        + b"\x00\x04MQTT\x04\x02\x02\x58\x00"
        + bytes([len(client_id)])
        + client_id
    )


def subscribe_packet(number: int) -> bytes:
    """One filter of its own."""
    topic = b"fleet/%06d/command" % number
    return b"\x82" + bytes([5 + len(topic)]) + b"\x00\x01\x00" + bytes([len(topic)]) + topic + b"\x01"


class Plain:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", port))

    def send(self, data: bytes) -> None:
        """Send one packet."""
        self.sock.sendall(data)

    def take(self, size: int) -> None:
        """Wait for an answer of this size."""
        got = 0
        while got < size:
            got += len(self.sock.recv(size - got)) or sys.exit("the server closed a connection")


class Tls(Plain):
    """One TLS connection."""

    context: ssl.SSLContext

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.sock = self.context.wrap_socket(self.sock, server_hostname="localhost")


class WebSocket(Plain):
    """One WebSocket."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        client = WSConnection(ConnectionType.CLIENT)
        self.sock.sendall(client.send(Request(host="localhost", target="/mqtt", subprotocols=["mqtt"])))
        client.receive_data(self.sock.recv(4_096))
        assert isinstance(next(client.events()), AcceptConnection)
        self._client = client

    def send(self, data: bytes) -> None:
        """Send one frame."""
        self.sock.sendall(self._client.send(BytesMessage(data=data)))

    def take(self, size: int) -> None:
        """Wait for a frame with an answer of this size."""
        super().take(size + 2)


def measure(name: str, kind: type[Plain], server: Server, port: int, count: int) -> None:
    """Open `count` connections in batches and print what one costs."""
    kept = [kind(port) for _ in range(BATCH)]  # warms up what is allocated once
    for number, each in enumerate(kept):
        each.send(connect_packet(number))
        each.take(4)
    time.sleep(1)
    bytes_before, cpu_before, begin = server.anonymous_bytes(), server.cpu_s(), time.monotonic()
    for first in range(BATCH, BATCH + count, BATCH):
        batch = [kind(port) for _ in range(min(BATCH, BATCH + count - first))]
        for number, each in enumerate(batch, first):
            each.send(connect_packet(number))
        for each in batch:
            each.take(4)
        for number, each in enumerate(batch, first):
            each.send(subscribe_packet(number))
        for each in batch:
            each.take(5)
        kept += batch
    took_s, cpu_s = time.monotonic() - begin, server.cpu_s() - cpu_before
    time.sleep(1)
    grown = server.anonymous_bytes() - bytes_before
    cpu_before = server.cpu_s()
    time.sleep(IDLE_S)
    idle = (server.cpu_s() - cpu_before) / IDLE_S
    print(
        f"{name:10} {count:6} connections  {grown / count:8.0f} bytes each  {cpu_s / count * 1e6:6.0f} µs CPU each  "
        f"{count / took_s:6.0f} connects/s  idle {idle * 100:.1f} % CPU",
        flush=True,
    )
    for each in kept:
        each.sock.close()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost, made with openssl."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
    ]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


def main() -> None:
    """Measure each kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plain", nargs="?", type=int, default=10_000)
    parser.add_argument("--tls", type=int, default=1_500)
    parser.add_argument("--ws", type=int, default=1_500)
    wanted = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificate, key = make_certificate(folder)
        Tls.context = ssl.create_default_context(cafile=str(certificate))
        options = ("--tls-port", "0", "--tls-certificate", str(certificate), "--tls-key", str(key), "--ws-port", "0")
        rows = (
            ("plain", Plain, "mqtt", wanted.plain),
            ("TLS", Tls, "mqtt-tls", wanted.tls),
            ("WebSocket", WebSocket, "mqtt-ws", wanted.ws),
        )
        for title, kind, port, count in rows:
            if count:
                server = Server(folder / title, *options)
                try:
                    measure(title, kind, server, server.ports[port], count)
                finally:
                    server.stop()


if __name__ == "__main__":
    main()
