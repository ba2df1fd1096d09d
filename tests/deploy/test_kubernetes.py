"""The Kubernetes manifests, checked offline: they match each other, the images and the declared configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from lightmq.certificates import AUTHORITY, CERTIFICATE, KEY
from lightmq.configuration import load_configuration
from runtime.config import ConfigError
from tests.deploy.dockerfile import stages
from tests.deploy.stacks import ACCESS_LIST, CONFIGURATION, DEPLOY, KEYS, SECRETS, documents, secrets_of
from tests.deploy.test_images import CLUSTER, ports

KUSTOMIZATION = DEPLOY / "kustomization.yaml"
VERSIONS = {
    "Service": "v1", "StatefulSet": "apps/v1", "Deployment": "apps/v1", "PodDisruptionBudget": "policy/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2", "NetworkPolicy": "networking.k8s.io/v1",
}  # fmt: skip
POD_VALUES = {"metadata.name": "{name}-1", "metadata.labels['apps.kubernetes.io/pod-index']": "1"}
SECRET_KEYS = {"all": ",".join(KEYS.values()), "raft": "a-secret-of-the-controllers", "users": "", **KEYS}
EXPANSION = re.compile(r"\$\((\w+)\)")


def kustomization() -> dict[str, Any]:
    """What `kubectl apply -k` reads."""
    (found,) = documents(KUSTOMIZATION)
    return found


def manifests() -> list[dict[str, Any]]:
    """Every object."""
    return [each for name in kustomization()["resources"] for each in documents(DEPLOY / name)]


def of(kind: str) -> dict[str, dict[str, Any]]:
    """Objects of a kind by name."""
    return {each["metadata"]["name"]: each for each in manifests() if each["kind"] == kind}


def workloads() -> Iterator[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Name, specification, pod and container of every workload."""
    for each in [*of("StatefulSet").values(), *of("Deployment").values()]:
        pod = each["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield each["metadata"]["name"], each["spec"], pod, container


WORKLOADS = [pytest.param(*each, id=each[0]) for each in workloads()]
each_workload = pytest.mark.parametrize(("name", "spec", "pod", "container"), WORKLOADS)


def environment(name: str, container: dict[str, Any]) -> dict[str, str]:
    """The variables of a pod as Kubernetes sets them."""
    filled: dict[str, str] = {}
    for entry in container.get("env", []):
        if "value" in entry:
            filled[entry["name"]] = EXPANSION.sub(lambda found: filled[found[1]], entry["value"])
        elif "fieldRef" in entry["valueFrom"]:
            filled[entry["name"]] = POD_VALUES[entry["valueFrom"]["fieldRef"]["fieldPath"]].format(name=name)
        else:
            reference = entry["valueFrom"]["secretKeyRef"]
            assert reference["name"] == "lightmq"
            filled[entry["name"]] = SECRET_KEYS[reference["key"]]
    return filled


def test_every_file_is_applied_and_every_object_has_its_version() -> None:
    """No file in the folder is forgotten; no object is there twice."""
    listed = {DEPLOY / name for name in kustomization()["resources"]}
    assert listed == set((DEPLOY / "kubernetes").glob("*.yaml"))
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests()]
    assert len(names) == len(set(names))
    assert all(VERSIONS[each["kind"]] == each["apiVersion"] for each in manifests())


def test_the_configuration_is_the_one_file() -> None:
    """The ConfigMap is made from the file that the compose stack mounts, under the name that the commands read."""
    (generated,) = kustomization()["configMapGenerator"]
    files = {
        f"/etc/lightmq/{name}": DEPLOY / source
        for name, _, source in (each.partition("=") for each in generated["files"])
    }
    assert (generated["name"], files) == ("lightmq", {CONFIGURATION: CLUSTER, "/etc/lightmq/access": ACCESS_LIST})


@each_workload
def test_command_ports_and_keys(
    name: str, spec: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """Image and arguments are an image and its command; ports are listened on; every key is declared."""
    image = container["image"].removeprefix("lightmq/").partition(":")[0]
    stage = stages()[image]
    assert container["args"] == stage.arguments("CMD")
    value = load_configuration(CLUSTER, environment(name, container)).value
    listened, admin = ports(value, image)
    opened = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert opened["admin"] == admin
    assert set(opened.values()) <= stage.ports()
    assert listened <= set(opened.values())


@each_workload
def test_probes(name: str, spec: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]) -> None:
    """Each probe requests the page meant for it, and a start may take as long as a recovery."""
    pages = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {kind: page["path"] for kind, page in pages.items()} == {
        "startupProbe": "/startupz", "livenessProbe": "/livez", "readinessProbe": "/readyz",
    }  # fmt: skip
    assert {(page["port"], page["scheme"]) for page in pages.values()} == {("admin", "HTTPS")}
    startup = container["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= (600 if name.startswith("broker") else 60)


@each_workload
def test_no_pod_has_more_rights_than_needed(
    name: str, spec: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """Not root, no privilege escalation, nothing writable but the data; memory is bounded."""
    stage = stages()[container["name"]]
    user, _, group = stage.last("USER").partition(":")
    security = pod["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"], security["fsGroup"]) == (True, int(user), int(group))
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    mine = container["securityContext"]
    assert (mine["allowPrivilegeEscalation"], mine["readOnlyRootFilesystem"]) == (False, True)
    assert mine["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


@each_workload
def test_volumes_match(name: str, spec: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]) -> None:
    """Every mount has its volume; files the configuration names are secrets; stateful parts have a claim."""
    claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == claims | set(volumes)
    assert ("data" in claims) == bool(stages()[container["name"]].last("VOLUME"))
    projected = volumes["secrets"]["projected"]
    parts = {source["secret"]["name"]: source["secret"]["items"] for source in projected["sources"]}
    assert {item["key"] for item in parts.get("lightmq-mqtt-tls", [])} <= {CERTIFICATE, KEY}
    assert {item["key"] for item in parts["lightmq"]} <= set(SECRET_KEYS)
    assert {item["key"] for item in parts["lightmq-tls"]} <= {AUTHORITY, CERTIFICATE, KEY}
    given = {item["path"] for items in parts.values() for item in items}
    own = {item["path"].removeprefix("lightmq-"): item["key"] for item in parts["lightmq"]}
    assert own.items() & {("controllers", "controllers"), ("broker", "broker-a"), ("proxies", "proxies")}
    assert mounts["secrets"] == str(SECRETS)
    value = load_configuration(CLUSTER, environment(name, container)).value
    assert secrets_of(value, container["name"]) == given
    assert not projected["defaultMode"] & 0o007, "keys that everybody may read are refused"


@each_workload
def test_labels_select_their_own_pods(
    name: str, spec: dict[str, Any], pod: dict[str, Any], container: dict[str, Any]
) -> None:
    """Workload, service, budget and spreading select the same pods."""
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert of("PodDisruptionBudget")[name]["spec"]["selector"]["matchLabels"] == labels
    (spread,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert spread["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
    services = [each for each in of("Service").values() if each["spec"]["selector"] == labels]
    assert len(services) == 1
    opened = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert all(opened[port["name"]] == port["port"] for port in services[0]["spec"]["ports"])


def test_names_of_pods_are_those_in_the_configuration() -> None:
    """Controllers and brokers are reached by the names their headless services give them."""
    value = load_configuration(CLUSTER, {}).value
    services, sets = of("Service"), of("StatefulSet")
    for name, each in sets.items():
        headless = services[each["spec"]["serviceName"]]
        assert headless["spec"]["clusterIP"] == "None"
        assert headless["spec"]["publishNotReadyAddresses"] is True, (
            f"{name}: pods find each other before they are ready"
        )
    controllers = sets["controller"]["spec"]["replicas"]
    wanted = [f"controller-{number}.controller:{value.controller.port}" for number in range(controllers)]
    assert list(value.broker.controllers) == list(value.proxy.controllers) == wanted
    assert [peer.split("@")[1] for peer in value.controller.peers] == wanted
    name = value.proxy.broker_name
    container = sets[name]["spec"]["template"]["spec"]["containers"][0]
    told = load_configuration(CLUSTER, environment(name, container)).value.broker
    assert (told.broker_name, told.advertised_host) == (name, f"{name}-1.{name}")
    assert (sets[name]["spec"]["replicas"], told.replication.in_sync_min) == (3, 2)


def test_devices_reach_the_port_with_tls_alone() -> None:
    """The service has no other, and the network policy admits none but it and the one of administration."""
    (port,) = of("Service")["mqtt"]["spec"]["ports"]
    assert (port["name"], port["port"]) == ("mqtts", load_configuration(CLUSTER, {}).value.proxy.listen.tls_port)
    policy = of("NetworkPolicy")["proxy"]["spec"]
    (rule,) = policy["ingress"]
    assert {each["port"] for each in rule["ports"]} == {"mqtts", "admin"}
    labels = of("Deployment")["proxy"]["spec"]["selector"]["matchLabels"]
    assert policy["podSelector"]["matchLabels"] == labels


def test_budgets_and_the_autoscaler() -> None:
    """One of a set at a time; the autoscaler scales the proxies, of which one always stays, and sets their number."""
    for name, each in of("PodDisruptionBudget").items():
        assert each["spec"].get("maxUnavailable", each["spec"].get("minAvailable")) == 1, name
    (scaler,) = of("HorizontalPodAutoscaler").values()
    target = scaler["spec"]["scaleTargetRef"]
    assert of(target["kind"])[target["name"]]["spec"].get("replicas") is None
    assert 1 < scaler["spec"]["minReplicas"] <= scaler["spec"]["maxReplicas"]


def test_a_wrong_key_is_found() -> None:
    """The check can fail: a misspelled variable is refused by name."""
    container = {"env": [{"name": "LIGHTMQ_BROKER__BROKER_NAM", "value": "x"}]}
    with pytest.raises(ConfigError, match="BROKER_NAME"):
        load_configuration(CLUSTER, environment("x", container))
