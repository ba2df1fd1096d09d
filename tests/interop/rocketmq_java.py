"""RocketMQ's own Java client, tools and brokers as processes; Maven fetches their jars into the user's cache.

Needs Java 17, `mvn` and, the first time, the network; a test is skipped with a message that names what is missing.
Without Maven, LIGHTMQ_ROCKETMQ_JARS names a folder with the jars.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

SOURCES = Path(__file__).with_name("java")
VERSION = "5.5.0"
FETCH_TIMEOUT_S = 900
OPENED = (
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""The internals of Java 17 that RocketMQ's brokers access."""


def jars() -> Path:
    """The folder of the jars, filled at first use; skips the test if that is impossible."""
    named = os.environ.get("LIGHTMQ_ROCKETMQ_JARS")
    return Path(named) if named else fetched(SOURCES, f"rocketmq-{VERSION}", VERSION)


@functools.cache
def fetched(sources: Path, name: str, version: str) -> Path:
    """The folder of this name in the user's cache, filled at first use with the jars that `sources/pom.xml` lists."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "lightmq" / name
    whole = folder / "complete"
    if not whole.exists():
        command = ["mvn", "-B", "-q", "-f", str(sources / "pom.xml"), f"-Drocketmq.version={version}"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        if result.returncode != 0:
            pytest.skip(f"the jars of {name} cannot be fetched: {result.stdout[-300:]}")
        whole.touch()
    return folder


def compiled(folder: Path) -> Path:
    """The classes compiled from this folder's Java sources."""
    command = ["javac", "-nowarn", "-cp", f"{jars()}/*", "-d", str(folder), *map(str, sorted(SOURCES.glob("*.java")))]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def java_command(classes: Path, home: Path, main: str, *arguments: str) -> list[str]:
    """The command that runs a class; RocketMQ's logs are written below `home`."""
    return [
        "java", "-Xms256m", "-Xmx512m", *OPENED, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}",
        "-cp", f"{classes}:{jars()}/*", main, *arguments,
    ]  # fmt: skip


class ClientProcess:
    """A running program: its output line by line, and its standard input."""

    def __init__(self, command: Sequence[str], home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.lines: list[str] = []
        self._came = threading.Condition()
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=home,  # some tools write files where they run
        )
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._came:
                self.lines.append(line.rstrip("\n"))
                self._came.notify_all()
        with self._came:
            self._came.notify_all()

    def wait_for(self, text: str, timeout_s: float, *, count: int = 1) -> str:
        """Wait for `count` lines that contain `text`; the last of them."""

        def found() -> list[str]:
            return [line for line in self.lines if text in line]

        with self._came:
            came = self._came.wait_for(lambda: len(found()) >= count or not self._reader.is_alive(), timeout_s)
        assert came, f"no {text!r} in {timeout_s} s"
        assert len(found()) >= count, f"no {text!r} among:\n" + "\n".join(self.lines[-40:])
        return found()[count - 1]

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self, timeout_s: float) -> list[str]:
        """Wait until it ends; all its lines."""
        self.process.wait(timeout_s)
        self._reader.join(10)
        return self.lines

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(30)


class JavaProcess(ClientProcess):
    """A running class of RocketMQ or of `java`."""

    def __init__(self, classes: Path, home: Path, main: str, *arguments: str) -> None:
        super().__init__(java_command(classes, home, main, *arguments), home)
