"""What the compose files give each container: image, command, environment and the configuration file it reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightmq.configuration import Configuration, load_configuration
from lightmq.credentials import variable
from remoting.access.acl_file import load
from runtime.config import Loaded, flatten
from tests.deploy.dockerfile import Stage, stages
from tests.support.tree import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
VARIABLE = re.compile(r"\$\{(\w+)(?:(:?[-?])([^}]*))?\}")
CONFIGURATION = "/etc/lightmq/lightmq.toml"
ACCESS_LIST = DEPLOY / "config" / "access"
KEYS = {name: f"{name}:a-secret-of-{name}" for name in load(ACCESS_LIST).users}
"""What `lightmq keys` makes, by name."""
GIVEN = {
    "LIGHTMQ_ACCESS_KEY": "inside:a-long-secret",
    "LIGHTMQ_ACCESS_KEYS": ",".join(KEYS.values()),
    **{variable(name): line for name, line in KEYS.items()},
    "LIGHTMQ_RAFT_SECRET": "a-secret-of-the-controllers",
    "LIGHTMQ_GRAFANA_PASSWORD": "a-password-of-grafana",
    "LIGHTMQ_INSIDE_TLS_KEY": "the key of the certificate, PEM",
    "LIGHTMQ_MQTT_KEY": "the key of the certificate that devices see, PEM",
    "LIGHTMQ_USERS": "the file of users",
}
"""What an operator sets, or deploy/compose/prepare, before the start."""


SECRETS = Path("/run/secrets")


def secrets_of(value: Configuration, part: str) -> set[str]:
    """The names of the secrets that a part reads: in its section, and for its administration port.

    Only who has the console's key makes connections for it.
    """
    console = value.console
    sections = [getattr(value, part), console.tls]
    if console.access_key_file is not None:
        sections.append(console)
    return {
        found.name
        for section in sections
        for _, found in flatten(section)
        if isinstance(found, Path) and found.parent == SECRETS
    }


class NoDuplicates(yaml.SafeLoader):
    """A loader that refuses a repeated key; YAML's own silently takes the last."""


def _mapping(loader: NoDuplicates, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=deep)
        assert key not in found or key_node.value == "<<", f"{key!r} twice at {key_node.start_mark}"
        found[key] = loader.construct_object(value_node, deep=deep)
    return found


NoDuplicates.add_constructor(
    yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, lambda loader, node: _mapping(loader, node, deep=True)
)


def documents(path: Path) -> list[dict[str, Any]]:
    """Every document of a YAML file."""
    return [each for each in yaml.load_all(path.read_text(), NoDuplicates) if each is not None]


def substituted(text: str, given: Mapping[str, str]) -> str:
    """`${NAME}`, `${NAME:-default}` and `${NAME:?what to do}` as compose reads them."""

    def one(found: re.Match[str]) -> str:
        name, operator, rest = found[1], found[2] or "", found[3] or ""
        value = given.get(name, "")
        if value or not operator:
            return value
        assert "?" not in operator, f"{name} must be given: {rest}"
        return rest

    return VARIABLE.sub(one, text)


def given(text: str) -> str:
    """With what an operator sets."""
    return substituted(text, GIVEN)


@dataclass(frozen=True)
class Container:
    """One service of a compose file."""

    name: str
    settings: dict[str, Any]
    stage: Stage
    stack: dict[str, Any]

    @property
    def command(self) -> list[str]:
        """The command of process 1."""
        entry = self.settings.get("entrypoint") or self.stage.arguments("ENTRYPOINT")
        own = self.settings.get("command")
        return [*entry, *(map(given, own) if own is not None else self.stage.arguments("CMD"))]

    @property
    def health(self) -> list[str]:
        """The command of the health check: the stack's, or else the image's."""
        own = self.settings.get("healthcheck")
        if own is None:
            return self.stage.health_command()
        assert own["test"][0] == "CMD"
        return list(own["test"][1:])

    @property
    def data(self) -> str:
        """The volume at /data; empty for a container that keeps nothing."""
        return next(
            (text[: -len(":/data")] for text in self.settings.get("volumes", []) if text.endswith(":/data")), ""
        )

    @property
    def environment(self) -> dict[str, str]:
        """Its variables, with those an operator gives."""
        found = self.settings.get("environment", {})
        return {name: given(str(value)) for name, value in found.items()}

    @property
    def file(self) -> Path | None:
        """The configuration file behind `--config`: of the image or of the stack; None where none is read."""
        if CONFIGURATION not in self.command:
            return None
        if CONFIGURATION in self.mounted:
            return self.mounted[CONFIGURATION]
        copied = [text.split() for text in self.stage.all("COPY") if text.endswith(CONFIGURATION)]
        assert copied, f"{self.name}: nothing puts {CONFIGURATION} there"
        return ROOT / copied[-1][0]

    @property
    def mounted(self) -> dict[str, Path]:
        """The stack's own files in the container, by their paths there."""
        configs = self.stack.get("configs", {})
        mounts = self.settings.get("configs", [])
        return {each["target"]: (COMPOSE / configs[each["source"]]["file"]).resolve() for each in mounts}

    def configuration(self) -> Loaded[Configuration]:
        """What the process would load. Raises ConfigError for an undeclared key."""
        return load_configuration(self.file, self.environment)


def stack(name: str) -> dict[str, Any]:
    """A compose file with its `extends` followed."""
    (document,) = documents(COMPOSE / name)
    for service, settings in document["services"].items():
        other = settings.pop("extends", None)
        if other is not None:
            theirs = stack(other["file"]) if "file" in other else document
            document["services"][service] = {**theirs["services"][other["service"]], **settings}
    return document


def containers(name: str) -> list[Container]:
    """The services of a compose file that run an image of ours."""
    built, document = stages(), stack(name)
    return [
        Container(service, settings, built[settings["build"]["target"]], document)
        for service, settings in document["services"].items()
        if "build" in settings
    ]
