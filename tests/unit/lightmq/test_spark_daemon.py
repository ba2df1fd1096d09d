"""The daemon runs as Spark starts it, with a worker of a few lines; this test takes the place of the JVM."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

SECRET = b"secret"
WORKER = """
import os, time

def main(infile, outfile):
    command = infile.readline()
    if command == b"answer\\n":
        outfile.write(b"done")
    elif command == b"fail\\n":
        raise ValueError("the worker broke")
    else:
        outfile.write(b"started")
        outfile.flush()
        infile.read()  # until the other side has closed
        outfile.write(b"rows that nobody reads")
"""


def talk(module: str, folder: Path, command: bytes) -> tuple[bytes, bytes]:
    """Start a daemon and give one worker a command; returns what the worker sent and the daemon's standard error."""
    (folder / "pyspark_stub.py").write_text(WORKER)
    paths = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[3])])
    environment = os.environ | {
        "PYTHONPATH": paths, "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(), "SPARK_REUSE_WORKER": "1",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1", "PYTHON_UNIX_DOMAIN_ENABLED": "false",
    }  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", module, "pyspark_stub"], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            stream = connection.makefile("rwb")
            (worker,) = struct.unpack("!i", stream.read(4))
            ended = os.pidfd_open(worker)
            stream.write(struct.pack("!i", len(SECRET)) + SECRET + command + b"\n")
            stream.flush()
            assert stream.read(6) == b"\0\0\0\2ok"
            said = stream.read({b"answer": 4, b"leave": 7}.get(command, 0))
            stream.close()
        assert select.select([ended], [], [], 20)[0], "the worker continues"
        os.close(ended)
        process.stdin.close()
        errors = process.stderr.read()
    return said, errors


def test_a_worker_without_a_listener_ends_silently(tmp_path: Path) -> None:
    assert talk("lightmq.spark_daemon", tmp_path, b"leave") == (b"started", b"")


def test_it_is_spark_that_prints_it(tmp_path: Path) -> None:
    """When this fails, Spark has fixed it and the module can be removed."""
    said, errors = talk("pyspark.daemon", tmp_path, b"leave")
    assert said == b"started"
    assert b"BrokenPipeError" in errors or b"ConnectionResetError" in errors


ABANDONED = 8


def abandon(module: str, folder: Path) -> bytes:
    """Give up connections before their workers say that they are there; the daemon's standard error."""
    (folder / "pyspark_stub.py").write_text(WORKER)
    paths = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[3])])
    environment = os.environ | {
        "PYTHONPATH": paths, "PYTHON_WORKER_FACTORY_SECRET": SECRET.decode(), "PYTHON_UNIX_DOMAIN_ENABLED": "false"
    }  # fmt: skip
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", module, "pyspark_stub"], stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        (port,) = struct.unpack("!i", process.stdout.read(4))
        for _ in range(ABANDONED):
            connection = socket.create_connection(("127.0.0.1", port), 20)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()  # with a reset: what is written to it fails
        with socket.create_connection(("127.0.0.1", port), 20) as connection:
            assert connection.recv(4)  # of the worker behind all of them
        process.stdin.close()
        # Its end is that of the last worker, too: they share standard error.
        return process.stderr.read()


def test_a_worker_that_comes_too_late_ends_silently(tmp_path: Path) -> None:
    errors = abandon("lightmq.spark_daemon", tmp_path)
    assert b"BrokenPipeError" not in errors
    assert b"ConnectionResetError" not in errors


def test_it_is_spark_that_prints_this_too(tmp_path: Path) -> None:
    """When this fails, Spark has fixed it."""
    errors = abandon("pyspark.daemon", tmp_path)
    assert b"BrokenPipeError" in errors or b"ConnectionResetError" in errors


def test_tasks_are_served_and_other_errors_printed(tmp_path: Path) -> None:
    assert talk("lightmq.spark_daemon", tmp_path, b"answer")[0] == b"done"
    assert b"ValueError: the worker broke" in talk("lightmq.spark_daemon", tmp_path, b"fail")[1]
