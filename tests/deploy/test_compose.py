"""The compose files, checked offline against the images and the declared configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.config import ConfigError
from tests.deploy import stacks
from tests.deploy.stacks import COMPOSE, Container, containers, documents, stack, substituted
from tests.deploy.test_images import ports

STACKS = sorted(path.name for path in COMPOSE.glob("*.yaml"))
CONTAINERS = [pytest.param(each, id=f"{name}-{each.name}") for name in STACKS for each in containers(name)]
SETTINGS = frozenset(
    [
        *("image", "build", "command", "entrypoint", "init", "restart", "read_only", "tmpfs", "stop_grace_period"),
        *("environment", "ports", "volumes", "configs", "secrets", "networks", "network_mode", "depends_on"),
    ]
)


def test_the_files_are_those_that_are_promised() -> None:
    """One process, a cluster, and one with Spark."""
    assert {"one.yaml", "with-spark.yaml"} <= set(STACKS)


@pytest.mark.parametrize("name", STACKS)
def test_everything_named_is_declared(name: str) -> None:
    """What a service mounts, joins or waits for is in the file, and the files behind it exist."""
    document = stack(name)
    services: dict[str, dict[str, Any]] = document["services"]
    for service, settings in services.items():
        assert set(settings) <= SETTINGS, f"{service}: {set(settings) - SETTINGS}"
        for volume in settings.get("volumes", []):
            assert volume.split(":")[0] in document["volumes"], volume
        for kind in ("configs", "secrets"):
            for mount in settings.get(kind, []):
                assert mount["source"] in document[kind], mount
        assert set(settings.get("networks", {})) <= set(document.get("networks", {}))
        assert set(settings.get("depends_on", {})) <= set(services)
        assert (COMPOSE / settings["build"]["context"] / settings["build"]["dockerfile"]).resolve().is_file()
    for config in document.get("configs", {}).values():
        assert (COMPOSE / config["file"]).resolve().is_file()


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_key_is_declared(container: Container) -> None:
    """File and environment load into the tables; a published port is one that is listened on."""
    if container.file is None:
        assert not [name for name in container.environment if "__" in name]
        return
    loaded = container.configuration()
    listened, admin = ports(loaded.value, container.stage.name)
    published = {int(str(text).rsplit(":", 1)[-1]) for text in container.settings.get("ports", [])}
    assert published <= listened
    assert container.stage.health_url()[0] == admin, "the image's health check asks another port"


@pytest.mark.parametrize("container", CONTAINERS)
def test_administration_is_not_published_to_everybody(container: Container) -> None:
    """Only MQTT is open on every interface of the machine."""
    for text in container.settings.get("ports", []):
        assert text.startswith("127.0.0.1:") or text.endswith(":1883"), text


def test_a_wrong_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a misspelled variable of a container is refused by name."""
    first = containers("one.yaml")[0]
    wrong = {**first.settings, "environment": {"LIGHTMQ_BROKER__ACES_KEYS": "a:b"}}
    with pytest.raises(ConfigError, match="ACCESS_KEYS"):
        Container("x", wrong, first.stage, first.stack).configuration()
    monkeypatch.setattr(stacks, "GIVEN", {})
    assert first.environment["LIGHTMQ_BROKER__ACCESS_KEYS"] == ""


def test_substitution_and_doubled_keys(tmp_path: Path) -> None:
    """Variables are read as compose reads them, and a key that is there twice is refused."""
    assert substituted("a${X}b${Y:-z}", {"X": "1"}) == "a1bz"
    with pytest.raises(AssertionError, match="set it"):
        substituted("${X:?set it}", {})
    file = tmp_path / "twice.yaml"
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(AssertionError, match="twice"):
        documents(file)
