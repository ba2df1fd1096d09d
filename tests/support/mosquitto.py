"""A real Mosquitto: the installed one, or Debian's package in a scratch folder; without either a test is skipped.

Nothing is installed and no rights are needed: packages are only downloaded and unpacked.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port

DOWNLOAD_S = 120
READY_S = 20.0


@functools.cache
def program() -> tuple[str, str]:
    """(path of mosquitto, folder of its libraries); skips the test where there is none."""
    found = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found:
        return found, ""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        pytest.skip("mosquitto is not installed, and there is no apt-get to fetch it with")
    folder = Path(tempfile.gettempdir()) / f"lightmq-mosquitto-{os.getuid()}"
    unpacked = folder / "usr" / "sbin" / "mosquitto"
    if not unpacked.exists():
        _unpack(folder)
    if not unpacked.exists():
        pytest.skip("mosquitto is not installed, and apt-get cannot download it")
    return str(unpacked), ":".join(str(each) for each in sorted((folder / "usr" / "lib").glob("*-linux-*")))


def _unpack(folder: Path) -> None:
    """Download mosquitto and those of its libraries that this machine lacks, and unpack them."""
    with tempfile.TemporaryDirectory() as scratch:
        lists = Path(scratch) / "lists" / "partial"
        lists.mkdir(parents=True)
        options = ["-o", f"Dir::State::Lists={lists.parent}", "-o", f"Dir::Cache={scratch}/cache"]
        options += ["-o", "APT::Sandbox::User=", "-o", "Debug::NoLocking=1"]
        _run(["apt-get", *options, "-qq", "update"], scratch)
        wanted = _run(
            ["apt-get", *options, "install", "--print-uris", "-qq", "-y", "--no-install-recommends", "mosquitto"],
            scratch,
        )
        names = [line.split()[1].partition("_")[0] for line in wanted.splitlines() if line.startswith("'")]
        if names and _run(["apt-get", *options, "-qq", "download", *names], scratch) is not None:
            for package in Path(scratch).glob("*.deb"):
                _run(["dpkg-deb", "-x", str(package), str(folder)], scratch)


def _run(command: list[str], folder: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=DOWNLOAD_S)
    return done.stdout


class Mosquitto:
    """A broker on a port of its own, the same at every start, with the lines of its configuration file."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self._command, self._libraries = program()
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.log = folder / "mosquitto.log"
        self._file = folder / "mosquitto.conf"
        self._lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", *lines]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self._file.write_text("\n".join(self._lines) + "\n")
        with self.log.open("ab") as stream:
            self._process = subprocess.Popen(
                [self._command, "-v", "-c", str(self._file)],
                stdout=stream,
                stderr=stream,
                env={**os.environ, "LD_LIBRARY_PATH": self._libraries},
            )
        deadline = time.monotonic() + READY_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                assert self._process.poll() is None, self.log.read_text()[-2_000:]
                assert time.monotonic() < deadline, self.log.read_text()[-2_000:]
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def running(folder: Path, *lines: str) -> Iterator[Mosquitto]:
    """A Mosquitto that is ended when the block is left."""
    made = Mosquitto(folder, *lines)
    try:
        made.start()
        yield made
    finally:
        made.kill()
