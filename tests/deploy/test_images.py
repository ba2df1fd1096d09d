"""The images, read without building them: the user, the command, and the health check."""

from __future__ import annotations

import contextlib
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from broker.roles.serving import vip_port_of
from lightmq.cli.application import NAMES
from lightmq.configuration import Configuration, load_configuration
from tests.deploy.dockerfile import DOCKERFILE, Stage, defaults, stages
from tests.deploy.stacks import DEPLOY
from tests.support.tree import PACKAGES, ROOT

SERVERS = ("controller", "broker", "proxy", "up")
FILES = {"up": DEPLOY / "config" / "up.toml"}
CLUSTER = DEPLOY / "config" / "cluster.toml"


def built(name: str) -> Stage:
    """One image."""
    return stages()[name]


def ports(value: Configuration, name: str) -> tuple[set[int], int]:
    """The ports that a part listens on with this configuration, and the administration port among them."""
    match name:
        case "controller":
            own, raft = value.controller, {int(peer.rpartition("@")[2]) for peer in value.controller.peers}
            return {own.port, own.admin_port, *raft}, own.admin_port
        case "broker":
            broker, replication = value.broker, value.broker.replication
            ha = {replication.port} if replication.enabled else set()
            return {broker.port, vip_port_of(broker), broker.admin_port, *ha}, broker.admin_port
        case "proxy":
            return {*mqtt_ports(value), value.proxy.admin_port}, value.proxy.admin_port
        case _:
            up = value.up
            vip_port = vip_port_of(replace(value.broker, port=up.remoting_port, admin_port=up.admin_port))
            return {*mqtt_ports(value), up.remoting_port, vip_port, up.admin_port}, up.admin_port


def mqtt_ports(value: Configuration) -> set[int]:
    """Without TLS and with it, each if it is opened."""
    return {port for port in (value.proxy.plain_port, value.proxy.listen.tls_port) if port is not None}


@pytest.mark.parametrize("name", [*SERVERS, "spark"])
def test_no_image_runs_as_root(name: str) -> None:
    """The last USER is a number above 0, as Kubernetes' runAsNonRoot requires, and owns /data."""
    stage = built(name)
    user, _, group = stage.last("USER").partition(":")
    assert int(user) > 0
    assert any(f"install -d -o {user} -g {group}" in text and "/data" in text for text in stage.all("RUN"))


@pytest.mark.parametrize("name", SERVERS)
def test_the_command_exists(name: str) -> None:
    """Entry point and command are a command of the command line, with an existing file."""
    stage = built(name)
    assert stage.arguments("ENTRYPOINT") == ["lightmq"]
    assert stage.arguments("CMD") == [name, "--config", "/etc/lightmq/lightmq.toml"]
    assert name in NAMES
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert 'lightmq = "lightmq.__main__:main"' in pyproject


@pytest.mark.parametrize("name", SERVERS)
def test_ports_are_those_of_the_configuration(name: str) -> None:
    """EXPOSE and the health check name the ports that the shipped configuration opens."""
    stage, value = built(name), load_configuration(FILES.get(name, CLUSTER), {}).value
    wanted, admin = ports(value, name)
    assert wanted <= stage.ports()
    assert stage.health_url() == (admin, "/livez")
    compile(stage.health_command()[2], "HEALTHCHECK", "exec")


@pytest.mark.parametrize("name", ["controller", "broker", "spark", "up"])
def test_what_is_durable_has_a_volume(name: str) -> None:
    """/data is a volume of every image that keeps something; a proxy keeps nothing."""
    assert built(name).arguments("VOLUME") == ["/data"]
    assert not built("proxy").last("VOLUME")


@pytest.mark.parametrize("name", [*SERVERS, "spark"])
def test_the_compiler_is_not_in_the_image(name: str) -> None:
    """The images start from the slim image and copy only the installed environment from the build stage."""
    found = stages()
    stage = found[name]
    assert found[stage.base].base == "${BASE}"
    assert defaults()["BASE"] == "python:3.12-slim"
    assert not any("apt-get" in text for text in stage.all("RUN"))
    sources = [text for text in stage.all("COPY") if "--from=" in text]
    assert all(text.split()[1:] == ["/opt/lightmq", "/opt/lightmq"] for text in sources)


def test_labels_say_what_the_image_is() -> None:
    """By the names that the Open Container Initiative gives them; version and licence are the package's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert defaults()["VERSION"] == project["version"]
    text = built("broker").last("LABEL")
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', text))
    assert labels["licenses"] == project["license"]
    assert labels["base.name"] == defaults()["BASE"]
    assert (labels["version"], labels["revision"]) == ("${VERSION}", "${REVISION}")


def test_everything_that_is_installed_is_locked() -> None:
    """pip checks a hash of every package of others, and takes nothing from an index but what a lock file names."""
    for stage in (built("build"), built("build-spark")):
        for text in stage.all("RUN"):
            for command in re.findall(r"pip (?:install|wheel) [^&]*", text):
                own = "/source" in command or "--no-index" in command
                assert own or ("--require-hashes " in command and "-r /locks/" in command), command
                assert "--no-deps" in command or "/locks/build.txt" in command, command
        assert "ENV PIP" not in str(stage.instructions)


def test_everything_copied_exists_and_is_not_ignored() -> None:
    """Sources of COPY exist, and the ignore file admits every package and what the build needs."""
    ignore = Path(f"{DOCKERFILE}.dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignore if line.startswith("!")}
    assert "*" in ignore
    assert set(PACKAGES) <= let_in
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "THIRD_PARTY_NOTICES.md"} <= let_in
    for name in let_in:
        assert (ROOT / name).exists(), name
    for stage in stages().values():
        for text in stage.all("COPY"):
            words = shlex.split(text)
            if words[0].startswith("--from="):
                assert words[0].removeprefix("--from=") in stages()
            elif words[0] != ".":
                assert (ROOT / words[0]).exists(), text
                assert any(words[0].startswith(entry) for entry in let_in), text


@pytest.mark.parametrize("text", ["FROM x", "RUNN y", "RUN before"])
def test_a_mistake_in_a_dockerfile_is_found(tmp_path: Path, text: str) -> None:
    """The reader can fail: unknown instructions, stages without a name, instructions before the first stage."""
    file = tmp_path / "Dockerfile"
    file.write_text(text + "\n")
    with pytest.raises(AssertionError), contextlib.nullcontext():
        stages(file)
