"""Containers as processes of this machine: the same command, file and variables; paths, names and ports replaced.

`/data`, `/run/secrets` and `/etc/lightmq` become folders of the test, host names of the stack become 127.0.0.1, and
every port a free one, so that containers with the same port can live side by side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.stacks import CONFIGURATION, Container
from tests.processes.rig import Server
from tests.support.ports import free_port

LISTENERS = {
    "up": {
        "proxy.port": "mqtt",
        "proxy.listen.tls_port": "mqtt-tls",
        "up.remoting_port": "remoting",
        "up.admin_port": "admin",
    },
    "controller": {"controller.port": "remoting", "controller.admin_port": "admin"},
    "broker": {"broker.port": "remoting", "broker.replication.port": "replication", "broker.admin_port": "admin"},
    "proxy": {"proxy.port": "mqtt", "proxy.listen.tls_port": "mqtt-tls", "proxy.admin_port": "admin"},
}
"""Keys of the ports of each part."""


@dataclass
class Moved:
    """The paths and addresses of a stack on this machine."""

    directory: Path
    secrets: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    """`host:port` of the stack -> `127.0.0.1:port` here."""

    def address(self, name: str) -> str:
        """The local address for one of the stack; the same at every call."""
        return self.addresses.setdefault(name, f"127.0.0.1:{free_port()}")

    def data(self, container: Container) -> Path:
        """The folder of the volume at /data; containers with the same volume share it."""
        return self.directory / "volumes" / (container.data or container.name)

    def text(self, text: str, container: Container) -> str:
        """Text of a file, a command or a variable with paths and addresses replaced."""
        own = self.directory / container.name
        places = (("/data", self.data(container)), ("/run/secrets", own / "secrets"), ("/etc/lightmq", own / "etc"))
        for place, here in places:
            text = re.sub(rf"(?<![\w/]){place}(?![\w-])", str(here), text)
        for name in sorted(self.addresses, key=len, reverse=True):
            text = text.replace(name, self.addresses[name])
        return text


class Running(Server):
    """A container of a stack as a process."""

    def __init__(self, container: Container, moved: Moved, listening: dict[str, int] | None = None) -> None:
        """``listening``: key of a port -> port here; others get a free one."""
        self.container = container
        own = moved.directory / container.name
        super().__init__(own)
        self._moved = moved
        moved.data(container).mkdir(parents=True, mode=0o700, exist_ok=True)
        (own / "secrets").mkdir(mode=0o700, parents=True)
        (own / "etc").mkdir()
        for target, file in container.mounted.items():
            if target != CONFIGURATION:
                (own / "etc" / Path(target).name).write_bytes(file.read_bytes())
        for name, content in moved.secrets.items():
            secret = own / "secrets" / name
            secret.write_text(content)
            secret.chmod(0o440)
        wanted = {key: (listening or {}).get(key, 0) for key in LISTENERS[container.stage.name]}
        self._more = [word for key, port in wanted.items() for word in ("--set", f"{key}={port or free_port()}")]

    @property
    def environment(self) -> dict[str, str]:
        """Its variables on this machine."""
        return {name: self._moved.text(value, self.container) for name, value in self.container.environment.items()}

    def arguments(self, *command: str) -> list[str]:
        """A command of this container with its paths replaced; by default its own."""
        words = list(command) or self.container.command
        assert words[0] == "lightmq", words
        return [self._configured(word) for word in words[1:]]

    def start(self) -> None:
        """Run process 1 of the container and wait until it prints its ports."""
        self.variables = self.environment
        self.ports = self.launch(*self.arguments(), *self._more)
        self.port = next(iter(self.ports.values()))

    def _configured(self, word: str) -> str:
        if word != CONFIGURATION:
            return self._moved.text(word, self.container)
        assert self.container.file is not None
        file = self.data / "lightmq.toml"
        file.write_text(self._moved.text(self.container.file.read_text(), self.container))
        return str(file)
