"""The output of the commands for an access list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightmq.cli.application import run
from runtime.reasons import in_words

LIST = """\
user ann
topic readwrite plant/#
topic deny plant/secret/#
topic read qos=1 retained=no history=no r/#
topic write retain=no w
group g
topic read g
pattern readwrite dev/%c/#
"""


@pytest.fixture
def acl(tmp_path: Path) -> Path:
    path = tmp_path / "acl"
    path.write_text(LIST)
    return path


def explain(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(["acl", "explain", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_check(acl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A valid list is counted, an invalid one reported line by line."""
    assert run(["acl", "check", str(acl)]) == 0
    assert "6 rules for 1 users, 1 groups" in capsys.readouterr().out
    acl.write_text("topic #\nwhat\ntopic %c\n")
    assert run(["acl", "check", str(acl)]) == 1
    said = capsys.readouterr().err
    assert "line 2: " in said
    assert "line 3: " in said
    assert "line 1: " not in said


def test_check_for_programs(acl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as an object; the exit status is the same."""
    assert run(["acl", "check", str(acl), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "file": str(acl), "problems": [], "rules": 6, "users": 1, "groups": 1,
    }  # fmt: skip
    acl.write_text("what\n")
    assert run(["acl", "check", str(acl), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem.startswith("line 1: ")


def test_the_rule_that_decided(acl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its line, for both verdicts."""
    said = explain(capsys, "--client", "c1", "--topic", "dev/c1/x", "--file", acl)
    assert said.startswith("allowed: publish 'dev/c1/x' by client 'c1' without a proven name\n")
    assert f"{acl}:8: pattern readwrite dev/%c/#" in said
    said = explain(capsys, "--client", "c1", "-u", "ann", "-t", "plant/secret/x", "--action", "deliver", "--file", acl)
    assert said.startswith("refused: ")
    assert f"{in_words('deny_rule')}\n    {acl}:3: topic deny plant/secret/#" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-t", "b"), "no_rule"),
        (("-t", "$SYS/x"), "dollar_topic"),
        (("-u", "ann", "-t", "w", "--retain"), "qos_retain_or_will"),
        (("-u", "ann", "-t", "r/x", "--action", "deliver", "--retain"), "retained"),
        (("-u", "ann", "-t", "r/x", "--action", "history"), "history"),
        (("-t", "$share/g", "--action", "subscribe"), "not_a_filter"),
    ],
)
def test_every_reason_has_a_text(
    acl: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    """As text and as JSON."""
    assert in_words(reason) in explain(capsys, "--client", "c1", "--file", acl, *arguments)
    answer = json.loads(explain(capsys, "--client", "c1", "--file", acl, "--json", *arguments))
    assert (answer["allowed"], answer["reason"]) == (False, reason)


def test_the_grant_of_a_subscription(acl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """QoS and retained messages; groups count."""
    said = explain(capsys, "--client", "c", "-u", "ann", "-t", "r/#", "--action", "subscribe", "--file", acl)
    assert "up to QoS 1, without retained messages" in said
    asked = ("--client", "c", "-u", "bob", "-t", "g", "--action", "subscribe", "--file", acl, "--json")
    assert not json.loads(explain(capsys, *asked))["allowed"]
    answer = json.loads(explain(capsys, *asked, "--group", "g"))
    assert answer["allowed"]
    assert answer["qos"] == 2


def test_the_source_of_the_list(acl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the configuration; without one that is reported."""
    config = tmp_path / "c.toml"
    config.write_text(f'[proxy]\nacl_file = "{acl}"\n')
    assert "refused" in explain(capsys, "--client", "c", "-t", "x", "-c", config)
    assert "there is no access list" in explain(capsys, "--client", "c", "-t", "x")


def test_invalid_queries(acl: Path) -> None:
    """A wildcard is no topic name."""
    assert run(["acl", "explain", "--client", "c", "--topic", "a/#", "--file", str(acl)]) == 2
    assert run(["acl", "explain", "--client", "c", "--topic", "a", "--qos", "3", "--file", str(acl)]) == 2
    assert run(["acl", "explain", "--client", "c", "--topic", "a", "--file", str(acl) + "-not"]) == 1


def test_requests_of_access_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By name or code, for a key and without one."""
    path = tmp_path / "keys"
    path.write_text("user node\nrole broker a\nuser etl\ntopic read plant/#\n")
    file = ("--file", path)
    assert "role broker" in explain(capsys, "--key", "node", "--request", "REGISTER_BROKER", "--on", "a", *file)
    assert explain(capsys, "--key", "node", "--request", "104", "--on", "b", *file).startswith("refused")
    assert explain(capsys, "--key", "etl", "--request", "105", "--on", "plant", *file).startswith("allowed")
    assert explain(capsys, "--request", "105", "--on", "plant", *file).startswith("refused")
    answer = json.loads(explain(capsys, "--key", "etl", "--request", "105", "--on", "x", "--json", *file))
    assert answer == {"allowed": False, "action": "locate", "role": ""}
    assert run(["acl", "explain", "--key", "etl", "--request", "4711", "--file", str(path)]) == 1


@pytest.mark.parametrize(
    ("request_name", "on", "allowed"),
    [
        ("PULL_MESSAGE", "plant", True),
        ("PULL_MESSAGE", "press", False),  # the rule is for one topic, the queues of `press` have all below it
        ("PULL_MESSAGE", "%LMQ%press", True),
        ("PULL_MESSAGE", "%RETRY%etl", True),
        ("SEND_MESSAGE_V2", "%RETRY%etl", True),
        ("SEND_MESSAGE_V2", "plant/secret/k", False),
        ("SEND_MESSAGE_V2", "plant/open/k", True),
    ],
)
def test_topics_are_explained_as_brokers_judge_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request_name: str, on: str, allowed: bool
) -> None:
    path = tmp_path / "keys"
    rules = ("readwrite plant/#", "deny-write plant/secret/#", "read press", "read $group/etl")
    path.write_text("user etl\n" + "".join(f"topic {rule}\n" for rule in rules))
    said = explain(capsys, "--key", "etl", "--request", request_name, "--on", on, "--file", path)
    assert said.startswith("allowed" if allowed else "refused")
    assert run(["acl", "explain", "--key", "etl", "--request", "105"]) == 1
    assert run(["acl", "explain", "--client", "c"]) == 2


def test_pages_of_the_administration_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key for Prometheus may read the metrics but not the status; public pages need no check."""
    path = tmp_path / "keys"
    path.write_text("user prometheus\nrole monitor\n")
    asked = ("--key", "prometheus", "--file", path, "--request")
    assert explain(capsys, *asked, "/metrics").startswith("allowed: /metrics (monitor)")
    assert explain(capsys, *asked, "/status").startswith("refused: /status (admin)")
    assert run(["acl", "explain", "--key", "x", "--file", str(path), "--request", "/livez"]) == 1
    assert run(["acl", "explain", "--key", "x", "--file", str(path), "--request", "/nothing"]) == 1
