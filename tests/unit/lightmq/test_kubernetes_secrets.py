"""The job that makes an installation's secrets in Kubernetes, against an API server that keeps them in a table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lightmq import certificates
from lightmq.kubernetes_secrets import KubernetesSecrets, SecretsPlan, TlsPlan, main, make_certificate, why_renew
from remoting.protocol.errors import LocalMisuse
from tests.support.kubernetes_api import Cluster, names_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["*.rel-controller.iot.svc", "10.0.0.7"]
PLAN = {
    "namespace": "iot",
    "labels": {"app": "rel"},
    "keys": {"secret": "rel-keys", "users": ["controllers", "broker-a", "operators"]},
    "tls": {"secret": "rel-tls", "authority": "rel-authority", "names": NAMES, "days": 900},
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_everything_is_made_once(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run changes nothing, and no run prints a secret."""
    assert cluster.run(PLAN) == 0
    assert cluster.writes == ["rel-keys", "rel-authority", "rel-tls"]
    keys = cluster.data("rel-keys")
    assert keys.keys() == {"controllers", "broker-a", "operators", "all", "raft"}
    assert set(keys["all"].split(",")) == {keys[user].strip() for user in PLAN["keys"]["users"]}  # type: ignore[index]
    tls, authority = cluster.data("rel-tls"), cluster.data("rel-authority")
    assert (cluster.secrets["rel-tls"]["type"], tls["ca.crt"]) == ("kubernetes.io/tls", authority["ca.crt"])
    assert "ca.key" not in tls
    assert names_of(tls["tls.crt"]) == set(NAMES)
    assert cluster.secrets["rel-keys"]["metadata"]["labels"] == {"app": "rel"}
    assert cluster.run(PLAN) == 0
    assert len(cluster.writes) == 3
    said = capsys.readouterr().err
    assert "written: rel-keys, rel-tls\n" in said
    assert "nothing, all is there" in said
    assert not any(value in said for value in keys.values())


def test_a_further_group_gets_a_key_and_a_name_and_nothing_else_changes(cluster: Cluster) -> None:
    cluster.run(PLAN)
    before, authority = cluster.data("rel-keys"), cluster.data("rel-authority")
    users, names = [*PLAN["keys"]["users"], "broker-b"], [*NAMES, "*.rel-broker-b.iot.svc"]  # type: ignore[index]
    more = {**PLAN, "keys": {"secret": "rel-keys", "users": users}, "tls": {**PLAN["tls"], "names": names}}  # type: ignore[dict-item]
    assert cluster.run(more) == 0
    after = cluster.data("rel-keys")
    assert {name: after[name] for name in before if name != "all"} == {
        name: value for name, value in before.items() if name != "all"
    }
    assert after["broker-b"].strip() in after["all"].split(",")
    assert cluster.data("rel-authority") == authority
    assert names_of(cluster.data("rel-tls")["tls.crt"]) == set(names)


def test_keys_of_an_earlier_chart_stay(cluster: Cluster) -> None:
    """And what somebody else has put into the secret."""
    cluster.put("rel-keys", controllers="controllers:abc", raft="r" * 48, note="mine")
    assert cluster.run({**PLAN, "tls": None}) == 0
    data = cluster.data("rel-keys")
    assert (data["controllers"].strip(), data["raft"], data["note"]) == ("controllers:abc", "r" * 48, "mine")
    assert "controllers:abc" in data["all"].split(",")
    assert "mine" not in data["all"]


def test_a_certificate_is_renewed_in_time_by_the_same_authority(cluster: Cluster, tmp_path: Path) -> None:
    plan = TlsPlan("rel-tls", "rel-authority", NAMES, 90)
    host, port = cluster.server.server_address[:2]

    def make(days: int) -> bool:
        store = KubernetesSecrets(msgspec.convert(PLAN, SecretsPlan), str(host), int(port), cluster.folder)
        folder = tmp_path / f"tls-{days}"
        folder.mkdir()
        return make_certificate(store, plan, folder, NOW + timedelta(days=days))

    assert [make(0), make(59)] == [True, False]
    first = cluster.data("rel-tls")
    assert make(61)
    second = cluster.data("rel-tls")
    assert (second["ca.crt"], second["tls.crt"] != first["tls.crt"]) == (first["ca.crt"], True)


def test_a_certificate_without_its_authority_stays_as_long_as_it_does(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an earlier chart, which kept no key of the authority."""
    made = tmp_path / "earlier"
    certificates.make(made, NAMES, days=3_650, now=datetime.now(UTC))
    files = {name: (made / name).read_text() for name in ("ca.crt", "tls.crt", "tls.key")}
    cluster.put("rel-tls", **files)
    plan = {**PLAN, "keys": None}
    assert cluster.run(plan) == 0
    assert cluster.writes == []
    assert cluster.run({**plan, "tls": {**PLAN["tls"], "names": [*NAMES, "new.example"]}}) == 1  # type: ignore[dict-item]
    assert "(it lacks new.example)" in capsys.readouterr().err
    assert cluster.data("rel-tls") == files
    with pytest.raises(LocalMisuse, match="cannot be read"):
        why_renew(b"no certificate", NAMES, NOW)


def test_what_another_job_has_written_meanwhile_is_not_overwritten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kubernetes repeats the job, which finds it then."""
    read = KubernetesSecrets.read

    def raced(self: KubernetesSecrets, name: str) -> dict[str, Any] | None:
        found = read(self, name)
        if found is None:
            cluster.put(name, raft="theirs")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(KubernetesSecrets, "read", raced)
        assert cluster.run({**PLAN, "tls": None}) == 1
    assert "did not take the secret rel-keys: 409" in capsys.readouterr().err
    assert cluster.run({**PLAN, "tls": None}) == 0
    assert cluster.data("rel-keys")["raft"] == "theirs"


@pytest.mark.parametrize("arguments", [[], ["missing.json"]])
def test_a_job_without_its_plan_says_why_it_fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments, {}) == 1
    assert "the secrets could not be made" in capsys.readouterr().err
