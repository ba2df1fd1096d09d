"""One real reader process: told what to do over a pipe, gone when the pipe is."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.readers.messages import ReaderSettings, report_of, to_line
from remoting.client.blocking import BlockingConnection
from remoting.protocol.bodies.pull_body import decode_range_pull_reply, encode_range_pull
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer
from tests.sim.stores import StoreBench, message
from tests.support.addresses import own_address


@contextmanager
def reader(
    directory: Path, port: int = 0, *, host: str = "127.0.0.1", access_keys: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "broker.readers"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    told = ReaderSettings(
        directory=str(directory), host=host, port=port, pull_bytes_max=1 << 20, frame_size_bytes_max=1 << 20,
        output_bytes_max=1 << 20, connections_max=10, access_keys=access_keys,
    )  # fmt: skip
    process.stdin.write(to_line(told))
    process.stdin.flush()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[StoreBench, int]]:
    bench = StoreBench(tmp_path / "data")
    queue = bench.store.queues.open(b"q")
    bench.store.append(*[message([queue], b"%d" % n) for n in range(20)])
    bench.settle()
    yield bench, queue
    bench.close()


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_it_serves_ranges_counts_and_ends_with_the_pipe(store: tuple[StoreBench, int], tmp_path: Path) -> None:
    _, queue = store
    port = free_port()
    with reader(tmp_path / "data", port) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert report_of(process.stdout.readline()).requests == 0
        with BlockingConnection("127.0.0.1", port) as connection:
            body = encode_range_pull(queue, 5, 15, 1 << 20)
            reply = connection.request(Command(RequestCode.RANGE_PULL, body=body))
            assert decode_range_pull_reply(reply.body).count == 10
            for code in (RequestCode.APPEND_MANY, RequestCode.QUEUE_BOUNDS, RequestCode.MULTI_PULL):
                assert connection.request(Command(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        report = report_of(process.stdout.readline())
        assert (report.requests, report.records) == (1, 10)
        process.send_signal(signal.SIGINT)
        process.stdin.close()
        assert process.wait(10) == 0


def test_others_need_a_signature(store: tuple[StoreBench, int], tmp_path: Path) -> None:
    """As at the broker: whoever is not on loopback signs, or is refused."""
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    _, queue = store
    port = free_port()
    command = encode_range_pull(queue, 0, 9, 1 << 20)
    with reader(tmp_path / "data", port, host="0.0.0.0", access_keys=("key:secret",)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        refused, wrong, right = ResponseCode.NO_PERMISSION, Signer("key", "wrong"), Signer("key", "secret")
        for signer, code in ((None, refused), (wrong, refused), (right, 0)):
            with BlockingConnection(address, port, signer=signer) as connection:
                assert connection.request(Command(RequestCode.RANGE_PULL, body=command)).code == code
        with BlockingConnection("127.0.0.1", port) as connection:
            assert connection.request(Command(RequestCode.RANGE_PULL, body=command)).code == 0


def test_sigterm_ends_it_cleanly(store: tuple[StoreBench, int], tmp_path: Path) -> None:
    with reader(tmp_path / "data") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_directory_that_nobody_writes(tmp_path: Path) -> None:
    with reader(tmp_path / "nothing") as process:
        assert process.wait(10) == 1
        assert process.stderr is not None
        assert b"range_reader_failed" in process.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_started_by_hand_it_says_who_starts_it() -> None:
    finished = subprocess.run([sys.executable, "-m", "broker.readers"], input=b"", capture_output=True, check=False)
    assert finished.returncode == 2
    assert b"started by its broker" in finished.stderr
