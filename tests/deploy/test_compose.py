"""The compose files, checked offline against the images and the declared configuration."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from broker.replication.promises import promise
from broker.roles.durability import rule_of
from remoting.access.acl_file import load
from remoting.server.router import parse_access_keys
from runtime.config import ConfigError
from tests.deploy import stacks
from tests.deploy.stacks import (
    ACCESS_LIST,
    COMPOSE,
    DEPLOY,
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

sys.path.insert(0, str(ROOT / "tools"))
import chart_tools

STACKS = sorted(path.name for path in COMPOSE.glob("*.yaml"))
CONTAINERS = [pytest.param(each, id=f"{name}-{each.name}") for name in STACKS for each in containers(name)]
CERTIFICATE, KEY, AUTHORITY = (
    SECRETS / "lightmq-tls-certificate", SECRETS / "lightmq-tls-key", SECRETS / "lightmq-tls-ca",
)  # fmt: skip
SETTINGS = frozenset(
    [
        *("image", "build", "command", "entrypoint", "init", "restart", "read_only", "tmpfs", "stop_grace_period"),
        *("environment", "ports", "volumes", "configs", "secrets", "networks", "network_mode", "depends_on"),
        "healthcheck",
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
    assert (value.console.tls.certificate, value.console.tls.key) == (CERTIFICATE, KEY)
    for dialled in (value.controller.dial_tls, value.broker.dial_tls, value.proxy.dial_tls, value.console.dial_tls):
        assert (dialled.enabled, dialled.verify, dialled.ca) == (True, True, AUTHORITY)


def prepared(folder: Path, *names: str) -> dict[str, str]:
    """What deploy/compose/prepare makes in a copy of the folder: the variables of .env, as a shell reads them."""
    shutil.copytree(DEPLOY, folder / "deploy", dirs_exist_ok=True, ignore=shutil.ignore_patterns("secrets", ".env"))
    variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    script = folder / "deploy" / "compose" / "prepare"
    subprocess.run([script, *names], env=variables, check=True, capture_output=True, timeout=120)
    tell = "import json, os; print(json.dumps(dict(os.environ)))"
    show = f"set -a; . {script.with_name('.env')}; {sys.executable} -c '{tell}'"
    done = subprocess.run(["sh", "-c", show], env={}, capture_output=True, text=True, check=True)
    return {name: value for name, value in json.loads(done.stdout).items() if name.startswith("LIGHTMQ_")}


@pytest.mark.processes
def test_one_command_makes_all_that_the_stack_needs(tmp_path: Path) -> None:
    """Every variable and every file; the certificate is for every name that is dialled; what is there stays."""
    made = prepared(tmp_path, "mqtt.example.org", "10.1.2.3")
    assert set(made) == set(GIVEN) - {"LIGHTMQ_ACCESS_KEY"}
    assert set(KEYS) == set(parse_access_keys(made["LIGHTMQ_ACCESS_KEYS"].split(",")))
    assert "PRIVATE KEY" in made["LIGHTMQ_INSIDE_TLS_KEY"]
    assert re.fullmatch(r"sensor:\$argon2id\$.*", made["LIGHTMQ_USERS"])
    folder = tmp_path / "deploy" / "compose"
    secrets = stack("ha.yaml")["secrets"]
    for each in secrets.values():
        if "file" in each:
            file = folder / substituted(each["file"], {})
            assert file.stat().st_mode & 0o777 == 0o644, f"a container of another user cannot read {file}"
        else:
            assert made[each["environment"]]
    certificate = x509.load_pem_x509_certificate((folder / "secrets" / "tls" / "tls.crt").read_bytes())
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = set(alternatives.get_values_for_type(x509.DNSName))
    found = containers("ha.yaml")
    aliases = {alias for each in found for alias in each.settings["networks"]["cluster"].get("aliases", [each.name])}
    assert names == aliases | {"localhost", "mqtt.example.org"}
    assert prepared(tmp_path) == made


def test_every_part_has_its_role_and_no_other() -> None:
    """The shipped list names the key of each part, with the role it needs and no more."""
    found = {each.stage.name: each for each in containers("ha.yaml")}
    rules = load(ACCESS_LIST)
    keys = parse_access_keys(KEYS.values())
    assert rules.roles == {
        "controllers": {"controller"}, "broker-a": {"broker"}, "proxies": {"proxy"}, "prometheus": {"monitor"},
        "operators": {"admin"}, "console": {"admin", "proxy"},
    }  # fmt: skip
    assert rules.brokers == {"broker-a": {found["broker"].configuration().value.broker.broker_name}}
    assert not rules.anonymous
    assert not rules.everyone
    secrets = {"controller": "controllers", "broker": "broker-a", "proxy": "proxies"}
    for part, key in secrets.items():
        whole = found[part].configuration().value
        value = getattr(whole, part)
        named = (part, f"{part}s", "proxies")
        (name,) = {name for name in secrets_of(whole, part) if name.removeprefix("lightmq-") in named}
        assert (whole.console.access_key_file is None) == (part != "controller"), (
            "the console runs at controllers alone"
        )
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


def test_prometheus_scrapes_every_part_with_its_key() -> None:
    """Targets are the containers and their administration ports; the credentials are those of the key file."""
    (document,) = documents(ROOT / "deploy" / "config" / "prometheus.yml")
    (job,) = document["scrape_configs"]
    assert (job["authorization"]["type"], job.get("metrics_path", "/metrics")) == ("Bearer", "/metrics")
    assert (job["scheme"], job["tls_config"]) == ("https", {"ca_file": str(AUTHORITY)})
    files = {job["authorization"]["credentials_file"], job["tls_config"]["ca_file"]}
    service = stack("ha.yaml")["services"]["prometheus"]
    assert files == {f"{SECRETS}/{mount['source']}" for mount in service["secrets"]}
    mounted = {mount["target"] for mount in service["configs"]}
    assert mounted == {"/etc/prometheus/prometheus.yml", *document["rule_files"]}
    expected = set()
    for each in containers("ha.yaml"):
        _, admin = ports(each.configuration().value, each.stage.name)
        (name,) = each.settings["networks"]["cluster"].get("aliases", [each.name])
        expected.add(f"{name}:{admin}")
    assert {target for group in job["static_configs"] for target in group["targets"]} == expected


def test_secrets_of_the_configuration_are_mounted() -> None:
    """Every file below /run/secrets that a container's section names is one of its secrets and readable by its user."""
    for each in containers("ha.yaml"):
        assert secrets_of(each.configuration().value, each.stage.name) == {
            mount["source"] for mount in each.settings["secrets"]
        }
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
            source = volume.split(":")[0]
            assert source in document["volumes"] or (COMPOSE / source).is_dir(), volume
        for kind in ("configs", "secrets"):
            for mount in settings.get(kind, []):
                assert mount["source"] in document[kind], mount
        assert set(settings.get("networks", {})) <= set(document.get("networks", {}))
        assert set(settings.get("depends_on", {})) <= set(services)
        if "build" in settings:
            assert (COMPOSE / settings["build"]["context"] / settings["build"]["dockerfile"]).resolve().is_file()
        else:
            assert re.fullmatch(r"(prom|grafana)/\w+:v?\d+\.\d+\.\d+", settings["image"]), "a version, never latest"
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
    scheme = "http" if loaded.value.console.tls.certificate is None else "https"
    assert f"{scheme}://127.0.0.1:{admin}/livez" in container.health[-1]
    compile(container.health[-1], "healthcheck", "exec")


@pytest.mark.parametrize("container", CONTAINERS)
def test_administration_is_not_published(container: Container) -> None:
    """Only MQTT is open on every interface of the machine."""
    for text in container.settings.get("ports", []):
        assert text.startswith("127.0.0.1:") or text.endswith(":8883"), text


@pytest.mark.parametrize("name", STACKS)
def test_devices_connect_by_tls_and_with_a_password(name: str) -> None:
    """The port for them is the one with TLS; the plain one is not published, and a file of users is set."""
    for each in containers(name):
        published = {str(text).rpartition(":")[2] for text in each.settings.get("ports", [])}
        assert "1883" not in published
        if "8883" in published:
            proxy = each.configuration().value.proxy
            assert (proxy.listen.tls_port, proxy.password_file is not None) == (8883, True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", STACKS)
def test_compose_takes_the_file(name: str) -> None:
    """By the library with which `docker compose` reads it: schema, merges, extends, and what is named is there."""
    try:
        chart_tools.CACHE.mkdir(parents=True, exist_ok=True)
        tools = chart_tools.programs(chart_tools.CACHE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs compose-go, which Go compiles: {error}")
    command = [tools / "compose", "-no-interpolation", name]
    done = subprocess.run(command, cwd=COMPOSE, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(stack(name)["services"])


def test_a_wrong_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a misspelled variable of a container is refused by name."""
    first = containers("one.yaml")[1]
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
