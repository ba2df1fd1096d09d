"""The compose files, checked offline against the images and the declared configuration."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from broker.replication.leader import promise
from broker.roles.durability import rule_of
from lightmq.cli.application import run
from remoting.access.acl_file import load
from remoting.server.router import parse_access_keys
from runtime.config import ConfigError
from tests.deploy import stacks
from tests.deploy.stacks import (
    ACCESS_LIST,
    COMPOSE,
    GIVEN,
    KEYS,
    SECRETS,
    Container,
    containers,
    documents,
    secrets_of,
    stack,
    substituted,
)
from tests.deploy.test_images import ports
from tests.support.tree import ROOT

STACKS = sorted(path.name for path in COMPOSE.glob("*.yaml"))
CONTAINERS = [pytest.param(each, id=f"{name}-{each.name}") for name in STACKS for each in containers(name)]
CERTIFICATE, KEY, AUTHORITY = (
    SECRETS / "lightmq-tls-certificate", SECRETS / "lightmq-tls-key", SECRETS / "lightmq-tls-ca",
)  # fmt: skip
SETTINGS = frozenset(
    [
        *("image", "build", "command", "entrypoint", "init", "restart", "read_only", "tmpfs", "stop_grace_period"),
        *("environment", "ports", "volumes", "configs", "secrets", "networks", "network_mode", "depends_on"),
    ]
)


def test_the_files_are_the_documented_ones() -> None:
    """One process, a cluster, and one with Spark."""
    assert set(STACKS) == {"one.yaml", "ha.yaml", "with-spark.yaml"}


def test_the_cluster_is_as_large_as_documented() -> None:
    """Three controllers that know each other, a group of three brokers, two proxies; every name leads to one."""
    found = containers("ha.yaml")
    roles = Counter(each.stage.name for each in found)
    assert roles == {"controller": 3, "broker": 3, "proxy": 2}
    aliases = {alias for each in found for alias in each.settings["networks"]["cluster"].get("aliases", [])}
    values = {each.name: each.configuration().value for each in found}
    nodes = {values[each.name].controller.node_id for each in found if each.stage.name == "controller"}
    assert nodes == {peer.partition("@")[0] for peer in values["controller-0"].controller.peers}
    assert {address.rpartition(":")[0] for address in values["proxy-0"].proxy.controllers} <= aliases
    brokers = [values[each.name].broker for each in found if each.stage.name == "broker"]
    assert Counter(broker.broker_name for broker in brokers) == {"broker-a": 3}
    assert {broker.advertised_host for broker in brokers} <= aliases
    for broker in brokers:
        found = promise(rule_of(broker), len(brokers))
        assert found.text.startswith("acknowledged = on disk at 2 of 3 brokers"), found
        assert "one may die and messages are still accepted" in found.text
        assert found.warning == ""


def test_the_parts_use_tls_with_each_other() -> None:
    """Every remoting port accepts TLS only, and every part uses it and verifies its peer."""
    value = containers("ha.yaml")[0].configuration().value
    for served in (value.controller.tls, value.broker.tls):
        assert (served.mode, served.certificate, served.key) == ("enforcing", CERTIFICATE, KEY)
    for dialled in (value.controller.dial_tls, value.broker.dial_tls, value.proxy.dial_tls):
        assert (dialled.enabled, dialled.verify, dialled.ca) == (True, True, AUTHORITY)


def test_the_certificate_is_for_every_name_that_is_dialled(tmp_path: Path) -> None:
    """The command in the file's head makes it, and compose finds what it made."""
    (command,) = re.findall(r"^#   (lightmq certs .*)$", (COMPOSE / "ha.yaml").read_text(), re.MULTILINE)
    words = shlex.split(command)
    folder = words[2]
    assert run([*words[1:2], str(tmp_path / "tls"), *words[3:]]) == 0
    certificate = x509.load_pem_x509_certificate((tmp_path / "tls" / "tls.crt").read_bytes())
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = set(alternatives.get_values_for_type(x509.DNSName))
    value = containers("ha.yaml")[0].configuration().value
    brokers = [each.configuration().value.broker for each in containers("ha.yaml") if each.stage.name == "broker"]
    dialled = {address.rpartition(":")[0] for address in value.broker.controllers}
    assert names == dialled | {broker.advertised_host for broker in brokers}
    secrets = stack("ha.yaml")["secrets"]
    for name in ("lightmq-tls-certificate", "lightmq-tls-ca"):
        file = COMPOSE / substituted(secrets[name]["file"], {})
        assert file.parent == ROOT / folder
        assert (tmp_path / "tls" / file.name).is_file()


def test_every_part_has_its_role_and_no_other() -> None:
    """The shipped list names the key of each part, with the role it needs and no more."""
    found = {each.stage.name: each for each in containers("ha.yaml")}
    rules = load(ACCESS_LIST)
    keys = parse_access_keys(KEYS.values())
    assert rules.roles == {
        "controllers": {"controller"}, "broker-a": {"broker"}, "proxies": {"proxy"}, "prometheus": {"monitor"},
        "operators": {"admin"},
    }  # fmt: skip
    assert rules.brokers == {"broker-a": {found["broker"].configuration().value.broker.broker_name}}
    assert not rules.anonymous
    assert not rules.everyone
    secrets = {"controller": "controllers", "broker": "broker-a", "proxy": "proxies"}
    for part, key in secrets.items():
        value = getattr(found[part].configuration().value, part)
        (name,) = {name for name in secrets_of(value) if name.removeprefix("lightmq-") in (part, f"{part}s", "proxies")}
        assert value.access_key_file == SECRETS / name
        variable = found[part].stack["secrets"][name]["environment"]
        assert GIVEN[variable] == f"{key}:{keys[key]}"
    for part in ("controller", "broker"):
        value = getattr(found[part].configuration().value, part)
        assert (parse_access_keys(value.access_keys), value.open_to_all) == (keys, False)
        assert found[part].mounted[str(value.access_list)] == ACCESS_LIST
    proxy = found["proxy"].configuration().value.proxy
    assert set(parse_access_keys(proxy.admin_access_keys)) == {"prometheus", "operators"}
    assert found["proxy"].mounted[str(proxy.admin_access_list)] == ACCESS_LIST


def test_the_keys_are_made_as_the_file_says(tmp_path: Path) -> None:
    """The command in its head creates every variable that the stack needs."""
    (command,) = re.findall(r"^#   (lightmq keys .*)$", (COMPOSE / "ha.yaml").read_text(), re.MULTILINE)
    words = shlex.split(command)
    assert run(["keys", str(tmp_path / "keys"), words[3], str(ROOT / words[4])]) == 0
    made = dict(line.split("=", 1) for line in (tmp_path / "keys" / "env").read_text().splitlines())
    assert set(made) == set(GIVEN) - {"LIGHTMQ_ACCESS_KEY", "LIGHTMQ_RAFT_SECRET", "LIGHTMQ_INSIDE_TLS_KEY"}
    assert set(KEYS) == set(parse_access_keys(made["LIGHTMQ_ACCESS_KEYS"].split(",")))


def test_prometheus_scrapes_every_part_with_its_key() -> None:
    """Targets are the containers and their administration ports; the credentials are those of the key file."""
    (document,) = documents(ROOT / "deploy" / "config" / "prometheus.yml")
    (job,) = document["scrape_configs"]
    assert (job["authorization"]["type"], job.get("metrics_path", "/metrics")) == ("Bearer", "/metrics")
    expected = set()
    for each in containers("ha.yaml"):
        _, admin = ports(each.configuration().value, each.stage.name)
        (name,) = each.settings["networks"]["cluster"].get("aliases", [each.name])
        expected.add(f"{name}:{admin}")
    assert {target for group in job["static_configs"] for target in group["targets"]} == expected


def test_secrets_of_the_configuration_are_mounted() -> None:
    """Every file below /run/secrets that a container's section names is one of its secrets and readable by its user."""
    for each in containers("ha.yaml"):
        section = getattr(each.configuration().value, each.stage.name)
        assert secrets_of(section) == {mount["source"] for mount in each.settings["secrets"]}
        for mount in each.settings["secrets"]:
            if "environment" in each.stack["secrets"][mount["source"]]:
                assert (mount["uid"], mount["mode"]) == (each.stage.last("USER").partition(":")[0], 0o400)


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
    assert container.stage.health_url()[0] == admin, "the image's health check uses another port"


@pytest.mark.parametrize("container", CONTAINERS)
def test_administration_is_not_published(container: Container) -> None:
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
    """Variables are read as compose reads them, and a repeated key is refused."""
    assert substituted("a${X}b${Y:-z}", {"X": "1"}) == "a1bz"
    with pytest.raises(AssertionError, match="set it"):
        substituted("${X:?set it}", {})
    file = tmp_path / "twice.yaml"
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(AssertionError, match="twice"):
        documents(file)
