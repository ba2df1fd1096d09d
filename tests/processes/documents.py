"""Code blocks of the documents and how a test runs them as a reader would.

A ```console block holds commands (`$ `), one per line, and below each the lines it prints (`…` stands for anything).
Commands that stay (servers, `sub`, `tail --follow`) run beside the others, as in a terminal of their own, until the
document ends; a server of the same kind is stopped before it is started again, as the reader would do with Ctrl-C.

    <!-- not run: reason -->    before a block: the block is only for reading, and the reason says why

What is changed for the test, and nothing else: default ports become free ones (servers get them by environment, clients
by `-p` or `--server`, URLs by the number), and passwords come from LIGHTMQ_PASSWORD instead of a prompt.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT, *(ROOT / name for name in ("benchmarks", "docs", "docs/tutorial", "docs/howto")))
DOCUMENTS = sorted(document for folder in FOLDERS for document in folder.glob("*.md"))
BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^>]+) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
SERVERS = ("up", "controller", "broker", "proxy", "bridge")
PORT_KEYS = {
    1883: ("PROXY__PORT",),
    9876: ("UP__REMOTING_PORT", "CONTROLLER__PORT"),
    8080: ("UP__ADMIN_PORT", "CONTROLLER__ADMIN_PORT"),
    10911: ("BROKER__PORT",),
    8081: ("BROKER__ADMIN_PORT",),
    8082: ("PROXY__ADMIN_PORT",),
    8083: ("BRIDGE__ADMIN_PORT",),
}
READY_S = 30.0
PRINT_S = 10.0
COMMAND_S = 60.0


@dataclass
class Block:
    """One fenced block: language, text, and why it is not run (empty: it is)."""

    document: Path
    language: str
    text: str
    reason: str


@dataclass
class Command:
    """One `$ ` line and the output that the document shows for it."""

    text: str
    printed: list[str] = field(default_factory=list)


def blocks(document: Path, language: str) -> list[Block]:
    """The fenced blocks of one language, in order."""
    found = [Block(document, m["language"], m["text"], m["reason"] or "") for m in BLOCK.finditer(document.read_text())]
    return [block for block in found if block.language == language]


def commands(text: str) -> list[Command]:
    """Commands of a console block; a backslash at the end of a line continues it on the next."""
    found: list[Command] = []
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:]))
        elif line.strip():
            found[-1].printed.append(line)
    return found


def free_ports() -> dict[int, int]:
    """Default port -> a free one."""
    return {default: free_port() for default in PORT_KEYS}


ASKING = (
    "tail", "topics", "sessions", "lag", "timers", "doctor", "clients", "retained", "groups", "trace", "audit",
    "health", "spark", "top", "dead-letters",
)  # fmt: skip
"""Commands that take the address of a name server."""


WITH_PLACE = re.compile(
    r"lightmq ((?:topics|sessions|clients|retained|groups|acl) "
    r"(?:create|update|end|kick|clear|skip|reset|test|rules)|[\w-]+)"
)


def asks_servers(words: list[str]) -> bool:
    """Whether a command of `lightmq` needs the port of this test's server."""
    return words[1] in ASKING or words[1:3] in (["acl", "test"], ["acl", "rules"])


def rewrite(text: str, ports: dict[int, int]) -> str:
    """The command with free ports in place of the default ones."""
    text = re.sub(r"\b(1883|9876|8080|10911|8081|8082)\b", lambda m: str(ports[int(m[1])]), text)
    words = shlex.split(text, comments=True)
    if words[:1] != ["lightmq"]:
        return text
    if words[1:3] == ["bench", "mqtt"]:
        return text.replace("bench mqtt", f"bench mqtt -p {ports[1883]}", 1)
    if words[1] in ("pub", "sub") and not {"-p", "--port"} & set(words):
        return re.sub(r"lightmq (\w+)", rf"lightmq \1 -p {ports[1883]}", text, count=1)
    if asks_servers(words) and "--server" not in words:
        return WITH_PLACE.sub(rf"lightmq \1 --server 127.0.0.1:{ports[9876]}", text, count=1)
    return text


def stays(words: list[str]) -> bool:
    """Whether a command runs until it is stopped, or waits for messages of a later one."""
    return words[:1] == ["lightmq"] and (words[1] in (*SERVERS, "sub") or (words[1] == "tail" and "--follow" in words))


class Terminal:
    """A command that keeps running, with everything it prints."""

    def __init__(self, command: Command, words: list[str], process: subprocess.Popen[str]) -> None:
        self.command = command
        self.kind = words[1]
        self.ends = "--count" in words
        self.process = process
        self.output = ""
        self._spoke = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, word: str) -> None:
        """Return once it has printed the word."""
        with self._spoke:
            self._spoke.wait_for(lambda: word in self.output or not self._reader.is_alive(), READY_S)
            assert word in self.output, f"{self.command.text}:\n{self.output}"

    def finish(self) -> None:
        """Stop it, or wait for it if it ends by itself, and check what it printed."""
        if not self.ends:
            with self._spoke:
                self._spoke.wait_for(lambda: has_printed(self.command, self.output), PRINT_S)
            self.process.send_signal(signal.SIGINT)
        status = self.process.wait(READY_S)
        self._reader.join(READY_S)
        assert status in ((0,) if self.ends or self.kind in SERVERS else (0, 130)), f"{self.command.text}: {status}"
        check_printed(self.command, self.output)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._spoke:
                self.output += line
                self._spoke.notify_all()
        with self._spoke:
            self._spoke.notify_all()


class Reader:
    """Types a document's commands, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports()
        self.terminals: list[Terminal] = []
        tools = folder / ".tools"
        tools.mkdir(parents=True)
        scripts = {"lightmq": '-m lightmq "$@"', "python": '"$@"', "python3": '"$@"'}
        if shutil.which("curl") is None:
            fetch = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[-1]).read().decode())"
            scripts["curl"] = f"-c '{fetch}' \"$@\""
        for name, arguments in scripts.items():
            (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}\n')
            (tools / name).chmod(0o755)
        settings = {
            f"LIGHTMQ_{key}": str(self.ports[default]) for default, keys in PORT_KEYS.items() for key in keys
        } | {"LIGHTMQ_PROXY__CONTROLLERS": self._controller, "LIGHTMQ_BROKER__CONTROLLERS": self._controller}
        self.environment = (
            os.environ
            | settings
            | {
                "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "LIGHTMQ_PASSWORD": "correct horse",
                "LIGHTMQ_PROFILES": str(folder / ".profiles.toml"),
            }
        )

    @property
    def _controller(self) -> str:
        return f"127.0.0.1:{self.ports[9876]}"

    def type(self, command: Command) -> None:
        """Run one command; the AssertionError of a failed one has what it printed."""
        text = rewrite(command.text, self.ports)
        words = shlex.split(text, comments=True)
        if stays(words):
            self._open(command, text, words)
            return
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{command.text}: status {done.returncode}\n{done.stdout}"
        check_printed(command, done.stdout)

    def _open(self, command: Command, text: str, words: list[str]) -> None:
        for terminal in list(self.terminals):
            again = terminal.kind == words[1]
            if again and (terminal.kind in SERVERS or terminal.ends):
                terminal.finish()
                self.terminals.remove(terminal)
        process = subprocess.Popen(
            ["bash", "-c", f"exec {text}"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.terminals.append(Terminal(command, words, process))
        if words[1] != "tail":
            self.terminals[-1].wait_for("is ready" if words[1] in SERVERS else "subscribed to")

    def leave(self) -> None:
        """Close every terminal, last first."""
        while self.terminals:
            self.terminals.pop().finish()

    def kill(self) -> None:
        """Leave nothing running, whatever happened."""
        for terminal in self.terminals:
            terminal.process.kill()
            terminal.process.wait()


def has_printed(command: Command, output: str) -> bool:
    """Whether every line the document shows is in the output, in order."""
    lines = (".*".join(map(re.escape, line.strip().split("…"))) for line in command.printed)
    return re.search(r"[^\n]*\n(?s:.*?)".join(lines), output) is not None


def check_printed(command: Command, output: str) -> None:
    """Raise an AssertionError that shows both when the output differs from the document's."""
    assert has_printed(command, output), f"{command.text} printed\n{output}\ninstead of\n" + "\n".join(command.printed)
