"""The Helm chart: values and templates name the same things; what it renders is valid and is what our parts load.

The slow half needs helm and kubeconform, which `python3 tools/chart_tools.py` fetches.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from lightmq.configuration import load_configuration
from tests.support.kubernetes_api import Cluster
from tests.support.tree import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import chart_tools

CHART = ROOT / "deploy" / "helm" / "lightmq"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = {path.name: path.read_text() for path in sorted((CHART / "templates").iterdir())}
USE = re.compile(r"\.Values((?:\.\w+)+)")
EVERYTHING = [
    "monitoring.serviceMonitor.enabled=true", "monitoring.rules.enabled=true", "monitoring.dashboards.enabled=true",
    "mqtt.websocket.enabled=true", "mqtt.plain.enabled=true", "image.registry=registry.example/iot",
    "networkPolicy.clientsFrom[0].podSelector.matchLabels.a=b",
    "networkPolicy.metricsFrom[0].podSelector.matchLabels.a=b",
    "mqtt.aclFile=topic read #", "brokers.groups[0].name=a", "brokers.groups[0].replicas=3",
    "brokers.groups[1].name=b", "brokers.groups[1].replicas=3", "brokers.storage.storageClass=fast",
    "mqtt.service.type=LoadBalancer", "mqtt.service.loadBalancerClass=example.org/own",
    "mqtt.service.loadBalancerSourceRanges[0]=10.0.0.0/8", "mqtt.service.externalTrafficPolicy=Local",
    "imagePullSecrets[0].name=pull", "mqtt.tls.names[0]=mqtt.example.org",
    *(f"{part}.{setting}" for part in ("controllers", "brokers", "mqtt") for setting in (
        "service.annotations.a=b", "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null")),
    *(f"{part}.{setting}" for part in ("controllers", "brokers", "mqtt", "secretsJob") for setting in (
        "podAnnotations.note=of-mine", "podLabels.team=plant", "priorityClassName=high", "nodeSelector.disk=fast",
        "tolerations[0].key=dedicated", "tolerations[0].operator=Exists")),
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


MADE_ANEW = re.compile(r"\b(lookup|now|date|uuidv4|rand\w+|gen\w+|derivePassword|htpasswd|bcrypt|encryptAES)\b")


def test_nothing_changes_between_two_renders() -> None:
    """GitOps tools render again and again, and without the cluster: keys that a template makes would be others."""
    for name, text in TEMPLATES.items():
        actions = "".join(re.findall(r"\{\{-?(?! */\*)(.*?)\}\}", text, re.DOTALL))
        assert not (found := MADE_ANEW.search(actions)), f"{name}: {found}"


def declared(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Dotted paths of the values that a schema describes; a reference is a form that several have."""
    for key, part in schema["properties"].items():
        if "properties" in part:
            assert part["additionalProperties"] is False, f"{path}.{key}"
            yield from declared(part, f"{path}.{key}")
        else:
            yield f"{path}.{key}"


def test_the_schema_has_every_value_and_no_other() -> None:
    """Of maps and lists that users fill it says what may be in them; `global` belongs to charts above this one."""
    known = set(declared(SCHEMA))
    found = {next((path for path in known if f"{leaf}.".startswith(f"{path}.")), leaf) for leaf in leaves(VALUES)}
    parts = {f".image.digest.{part}" for part in ("controller", "broker", "proxy")}
    assert known - found == {".global", *parts}
    assert found - known == {".image.digest"}


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"controllers": {"replcas": 3}}, "replcas"),
        ({"controllers": {"storage": {"size": 100}}}, "100"),
        ({"brokers": {"groups": []}}, "[]"),
        ({"brokers": {"groups": [{"name": "A", "replicas": 3}]}}, "A"),
        ({"brokers": {"podLabels": {"app.kubernetes.io/component": "x"}}}, "app.kubernetes.io/component"),
        ({"brokers": {"topologySpreadConstraints": [{"maxSkew": 1}]}}, "topologyKey"),
        ({"mqtt": {"service": {"type": "ExternalName"}}}, "ExternalName"),
        ({"mqtt": {"service": {"annotations": {"a": 1}}}}, "1"),
        ({"image": {"digest": {"broker": "latest"}}}, "latest"),
        ({"tls": {"validityDays": 0}}, "0"),
        ({"networkPolicy": {"enabled": "no"}}, "no"),
    ],
)
def test_the_schema_refuses_what_would_be_ignored_or_fail_later(given: dict[str, Any], part: str) -> None:
    """And takes what the chart's own values, and charts above it, give."""
    check = jsonschema_rs.validator_for(SCHEMA)
    check.validate({**VALUES, "global": {"registry": "x"}})
    with pytest.raises(jsonschema_rs.ValidationError) as refused:
        check.validate(given)
    assert part in str(refused.value)


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


def plan_of(text: str) -> dict[str, Any]:
    """What the job makes."""
    plan: dict[str, Any] = json.loads(objects(text, "ConfigMap")["rel-lightmq-secrets"]["data"]["plan.json"])
    return plan


def pods(text: str) -> dict[str, dict[str, Any]]:
    """Template of the pods by the name of what makes them."""
    kinds = ("StatefulSet", "Deployment", "Job")
    return {name: each["spec"]["template"] for kind in kinds for name, each in objects(text, kind).items()}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("settings", [[], EVERYTHING], ids=["defaults", "everything"])
def test_two_renders_are_the_same_and_hold_no_secret(tools: Path, settings: list[str]) -> None:
    first = rendered(tools, *settings)
    assert first == rendered(tools, *settings)
    assert objects(first, "Secret") == {}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("settings", [[], EVERYTHING], ids=["defaults", "everything"])
def test_the_job_makes_every_item_that_a_pod_mounts(tools: Path, tmp_path: Path, settings: list[str]) -> None:
    """Its plan, run against an API server; it may do with these secrets what it needs, and nothing with others."""
    text = rendered(tools, *settings)
    cluster = Cluster(tmp_path)
    assert cluster.run(plan_of(text)) == 0
    cluster.close()
    for name, pod in pods(text).items():
        wanted = [
            (source["secret"]["name"], item["key"])
            for volume in pod["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
            for item in source["secret"]["items"]
        ]
        wanted += [
            (one["valueFrom"]["secretKeyRef"]["name"], one["valueFrom"]["secretKeyRef"]["key"])
            for one in pod["spec"]["containers"][0].get("env", [])
            if "secretKeyRef" in one.get("valueFrom", {})
        ]
        missing = {
            (secret, key) for secret, key in wanted if key not in cluster.secrets.get(secret, {}).get("data", {})
        }
        assert {secret for secret, _ in missing} <= {"rel-lightmq-users"}, name
    rules = objects(text, "Role")["rel-lightmq-secrets"]["rules"]
    assert set(rules[1]["resourceNames"]) == set(cluster.secrets)
    for kind in ("ServiceAccount", "Role", "RoleBinding", "Job"):
        hooked = objects(text, kind)["rel-lightmq-secrets"]["metadata"]["annotations"]
        assert hooked["helm.sh/hook"] == "pre-install,pre-upgrade"


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_who_has_secrets_of_his_own_needs_no_job(tools: Path) -> None:
    text = rendered(tools, "keys.existingSecret=mine", "tls.existingSecret=yours")
    assert [objects(text, kind) for kind in ("Job", "Role", "ServiceAccount")] == [{}, {}, {}]
    only_tls = plan_of(rendered(tools, "keys.existingSecret=mine"))
    assert (only_tls.get("keys"), only_tls["tls"]["secret"]) == (None, "rel-lightmq-tls")


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_pods_are_placed_and_named_as_the_values_say(tools: Path) -> None:
    """A constraint is for the pods of one part, a group of brokers each; without one of yours pods avoid each other."""
    for name, pod in pods(rendered(tools, *EVERYTHING)).items():
        labels, place = pod["metadata"]["labels"], pod["spec"]
        assert (labels["team"], pod["metadata"]["annotations"]["note"]) == ("plant", "of-mine"), name
        assert (place["priorityClassName"], place["nodeSelector"]) == ("high", {"disk": "fast"})
        assert place["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    two = [f"brokers.groups[{at}].{one}" for at, group in enumerate("ab") for one in (f"name={group}", "replicas=3")]
    for name, pod in pods(rendered(tools, *two)).items():
        if name == "rel-lightmq-secrets":
            continue
        (zones,) = pod["spec"]["topologySpreadConstraints"]
        (avoided,) = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        selector = zones["labelSelector"]
        assert (zones["topologyKey"], zones["whenUnsatisfiable"]) == ("topology.kubernetes.io/zone", "ScheduleAnyway")
        assert avoided["podAffinityTerm"]["labelSelector"] == selector
        assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert selector["matchLabels"]["app.kubernetes.io/component"] == name.removeprefix("rel-lightmq-")
    own = ["brokers.topologySpreadConstraints[0].labelSelector.matchLabels.x=y"]
    own += [f"brokers.topologySpreadConstraints[0].{one}" for one in ("maxSkew=2", "topologyKey=rack")]
    text = rendered(tools, *own, "brokers.topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule")
    (given,) = pods(text)["rel-lightmq-broker-a"]["spec"]["topologySpreadConstraints"]
    assert (given["maxSkew"], given["labelSelector"]) == (2, {"matchLabels": {"x": "y"}})
    services = objects(rendered(tools, *EVERYTHING), "Service")
    assert all(one["metadata"]["annotations"] == {"a": "b"} for one in services.values())
    assert services["rel-lightmq-mqtt"]["spec"]["externalTrafficPolicy"] == "Local"


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
    known = set(plan_of(text)["tls"]["names"])
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
    _pod, _, domain = endpoint["tlsConfig"]["serverName"].partition(".")
    assert endpoint["scheme"] == "https"
    assert f"*.{domain}" in plan_of(text)["tls"]["names"]
    assert endpoint["tlsConfig"]["ca"]["secret"] == {"name": "rel-lightmq-tls", "key": "ca.crt"}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("controllers.replicas=2", "must be odd"), ("brokers.inSyncMin=4", "would refuse every message"),
        ("mqtt.tls.enabled=false", "MQTT clients need"), ("nonsense=1", "nonsense is not allowed"),
    ],
)  # fmt: skip
def test_what_could_not_work_is_refused(tools: Path, setting: str, reason: str) -> None:
    """Before anything is applied, with the reason."""
    done = helm(tools, "template", "rel", str(CHART), "--kube-version", chart_tools.KUBERNETES, "--set", setting)
    assert done.returncode != 0
    assert reason in done.stderr
