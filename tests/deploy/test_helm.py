"""The Helm chart: values and templates name the same things; what it renders is valid and is what our parts load.

The slow half needs helm and kubeconform, which `python3 tools/chart_tools.py` fetches.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from lightmq.configuration import load_configuration
from tests.support.tree import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import chart_tools

CHART = ROOT / "deploy" / "helm" / "lightmq"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
USE = re.compile(r"\.Values((?:\.\w+)+)")
EVERYTHING = [
    "monitoring.serviceMonitor.enabled=true", "monitoring.rules.enabled=true", "monitoring.dashboards.enabled=true",
    "mqtt.websocket.enabled=true", "mqtt.plain.enabled=true", "image.registry=registry.example/iot",
    "networkPolicy.clientsFrom[0].podSelector.matchLabels.a=b",
    "networkPolicy.metricsFrom[0].podSelector.matchLabels.a=b",
    "mqtt.aclFile=topic read #", "brokers.groups[0].name=a", "brokers.groups[0].replicas=3",
    "brokers.groups[1].name=b", "brokers.groups[1].replicas=3", "brokers.storage.storageClass=fast",
]  # fmt: skip
PORTS = {"mqtts": 8883, "wss": 8884, "mqtt": 1883}


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    """Dotted paths of every value."""
    for key, value in values.items():
        here = f"{path}.{key}"
        if isinstance(value, dict) and value:
            yield from leaves(value, here)
        else:
            yield here


def test_every_value_that_a_template_uses_is_declared() -> None:
    """A misspelt one would silently be empty."""
    for name, text in TEMPLATES.items():
        for path in USE.findall(text):
            at: Any = VALUES
            for key in path.strip(".").split("."):
                assert isinstance(at, dict), f"{name}: {path}"
                assert key in at, f"{name}: .Values{path}"
                at = at[key]


def test_every_declared_value_is_used() -> None:
    """By itself, or as a part of a table that is used as a whole."""
    used = {path for text in TEMPLATES.values() for path in USE.findall(text.replace("$values.", ".Values.image."))}
    for leaf in leaves(VALUES):
        above = {leaf[: found.start()] for found in re.finditer(r"\.", leaf) if found.start()} | {leaf}
        assert above & used, f"nothing uses{leaf}"


def test_the_defaults_are_the_safe_ones() -> None:
    """TLS, passwords, groups of three with two copies, a network policy; monitoring files are the shipped ones."""
    assert VALUES["mqtt"]["tls"]["enabled"]
    assert not VALUES["mqtt"]["plain"]["enabled"]
    assert VALUES["networkPolicy"]["enabled"]
    probes = re.findall(r"httpGet: (.*)", TEMPLATES["_helpers.tpl"])
    assert [yaml.safe_load(each)["scheme"] for each in probes] == ["HTTPS"] * 3
    assert [group["replicas"] for group in VALUES["brokers"]["groups"]] == [3]
    assert (VALUES["brokers"]["inSyncMin"], VALUES["controllers"]["replicas"]) == (2, 3)
    monitoring = ROOT / "deploy" / "monitoring"
    assert (CHART / "files" / "alerts.yml").resolve() == monitoring / "alerts.yml"
    assert (CHART / "files" / "dashboards").resolve() == monitoring / "dashboards"


@pytest.fixture(scope="module")
def tools() -> Path:
    """The folder of helm and kubeconform."""
    try:
        chart_tools.CACHE.mkdir(parents=True, exist_ok=True)
        chart_tools.schemas(chart_tools.CACHE)
        return chart_tools.programs(chart_tools.CACHE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs helm and kubeconform, which Go compiles: {error}")


def helm(tools: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tools / "helm", *arguments], capture_output=True, text=True, timeout=60, check=False)


def rendered(tools: Path, *settings: str) -> str:
    """What would be applied as release `rel` in namespace `iot`."""
    version = ["--kube-version", chart_tools.KUBERNETES]
    chosen = [word for setting in settings for word in ("--set", setting)]
    done = helm(tools, "template", "rel", str(CHART), "--namespace", "iot", *version, *chosen)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(text: str, kind: str) -> dict[str, dict[str, Any]]:
    """Objects of a kind by name."""
    found = [each for each in yaml.safe_load_all(text) if each is not None and each["kind"] == kind]
    return {each["metadata"]["name"]: each for each in found}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_helm_finds_nothing_to_object_to(tools: Path) -> None:
    """Warnings count as errors."""
    done = helm(tools, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("settings", [[], EVERYTHING], ids=["defaults", "everything"])
def test_every_object_fits_its_schema(tools: Path, tmp_path: Path, settings: list[str]) -> None:
    """Strictly: an unknown field is an error. The raw manifests too."""
    path = tmp_path / "rendered.yaml"
    path.write_text(rendered(tools, *settings))
    schemas = chart_tools.schemas(chart_tools.CACHE) / "{{.ResourceKind}}{{.KindSuffix}}.json"
    done = subprocess.run(
        [tools / "kubeconform", "-strict", "-summary", "-skip", "PodMonitor,PrometheusRule", "-schema-location",
         str(schemas), str(path), *map(str, sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml")))],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Invalid: 0, Errors: 0" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("settings", [[], EVERYTHING], ids=["defaults", "everything"])
def test_the_configuration_is_declared_and_the_certificate_has_every_name(
    tools: Path, tmp_path: Path, settings: list[str]
) -> None:
    """An unknown key would stop every part; a name that the certificate lacks would part them."""
    text = rendered(tools, *settings)
    files = objects(text, "ConfigMap")["rel-lightmq"]["data"]
    path = tmp_path / "lightmq.toml"
    path.write_text(files["lightmq.toml"])
    value = load_configuration(path, {"LIGHTMQ_BROKER__BROKER_NAME": "x"}).value
    assert tomllib.loads(path.read_text())["broker"]["replication"]["in_sync_min"] == 2
    names = [address.rpartition(":")[0] for address in value.broker.controllers]
    sets = objects(text, "StatefulSet")
    assert value.proxy.broker_name in sets
    for name, each in sets.items():
        domain = f"{each['spec']['serviceName']}.iot.svc.cluster.local"
        names += [f"{name}-{number}.{domain}" for number in range(each["spec"]["replicas"])]
    secret = objects(text, "Secret")["rel-lightmq-tls"]["data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["tls.crt"]))
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = set(found.get_values_for_type(x509.DNSName))
    assert {f"*.{name.partition('.')[2]}" for name in names} | {"rel-lightmq-mqtt.iot.svc.cluster.local"} <= known
    opened = {port["name"]: port["port"] for port in objects(text, "Service")["rel-lightmq-mqtt"]["spec"]["ports"]}
    assert opened == (PORTS if settings else {"mqtts": 8883})
    assert value.proxy.listen.tls_port == 8883


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("settings", [EVERYTHING, [*EVERYTHING, "console.enabled=false"]], ids=["console", "none"])
def test_administration_ports_speak_tls_and_prometheus_checks_it(
    tools: Path, tmp_path: Path, settings: list[str]
) -> None:
    """Every part has the certificate that the configuration names; the console has its key, where there is one."""
    text = rendered(tools, *settings)
    path = tmp_path / "lightmq.toml"
    path.write_text(objects(text, "ConfigMap")["rel-lightmq"]["data"]["lightmq.toml"])
    value = load_configuration(path, {"LIGHTMQ_BROKER__BROKER_NAME": "x"}).value.console
    wanted = {"lightmq-tls-certificate", "lightmq-tls-key", "lightmq-tls-ca"}
    assert {str(each) for each in (value.tls.certificate, value.tls.key, value.dial_tls.ca)} == {
        f"/run/secrets/{each}" for each in wanted
    }
    for name, each in {**objects(text, "StatefulSet"), **objects(text, "Deployment")}.items():
        pod = each["spec"]["template"]["spec"]
        sources = next(volume["projected"]["sources"] for volume in pod["volumes"] if volume["name"] == "secrets")
        mounted = {item["path"] for source in sources for item in source["secret"]["items"]}
        assert wanted <= mounted, name
        names = {variable["name"] for variable in pod["containers"][0]["env"]}
        has_console = name == "rel-lightmq-controller" and value.enabled
        assert ("LIGHTMQ_CONSOLE__ACCESS_KEY_FILE" in names, "lightmq-console" in mounted) == (has_console,) * 2
    (endpoint,) = objects(text, "PodMonitor")["rel-lightmq"]["spec"]["podMetricsEndpoints"]
    secret = objects(text, "Secret")["rel-lightmq-tls"]["data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    _pod, _, domain = endpoint["tlsConfig"]["serverName"].partition(".")
    assert endpoint["scheme"] == "https"
    assert f"*.{domain}" in names.get_values_for_type(x509.DNSName)
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "rel-lightmq-tls", "key": "ca.crt"}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("controllers.replicas=2", "must be odd"), ("brokers.inSyncMin=4", "would refuse every message"),
        ("mqtt.tls.enabled=false", "MQTT clients need"),
    ],
)  # fmt: skip
def test_what_could_not_work_is_refused(tools: Path, setting: str, reason: str) -> None:
    """Before anything is applied, with the reason."""
    done = helm(tools, "template", "rel", str(CHART), "--kube-version", chart_tools.KUBERNETES, "--set", setting)
    assert done.returncode != 0
    assert reason in done.stderr
