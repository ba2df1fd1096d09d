from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightmq.cli.admin import doctor as module
from lightmq.cli.admin.doctor import FAILED, OK, CheckResult
from lightmq.cli.application import run


def test_findings_as_json_and_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "examine", lambda *_: [CheckResult("a", OK, "fine"), CheckResult("b", "warning", "so so", "do")]
    )
    assert run(["doctor", "--data", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["healthy"] is True
    assert answer["findings"][1] == {"name": "b", "state": "warning", "text": "so so", "remedy": "do"}
    assert run(["doctor"]) == 0
    assert "→ do" in capsys.readouterr().out


def test_a_failed_check_is_the_exit_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "examine", lambda *_: [CheckResult("a", FAILED, "bad", "do")])
    with pytest.raises(SystemExit) as raised:
        run(["doctor"])
    assert raised.value.code == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "tls", "ca"),
    [
        ([], False, None),
        (["--set", "broker.dial_tls.enabled=true", "--set", "broker.dial_tls.ca=ca.pem"], True, "ca.pem"),
        (["--tls", "--tls-ca", "mine.pem", "--set", "broker.dial_tls.enabled=true"], True, "mine.pem"),
    ],
)
def test_it_connects_through_tls_on_request(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], tls: bool, ca: str | None
) -> None:
    """By options, else by the configuration; so with the key."""
    seen = []
    monkeypatch.setattr(module, "examine", lambda _data, _ports, _host, target: seen.append(target) or [])
    assert run(["doctor", "--server", "h:1", "--set", "broker.access_key_file=k", *arguments]) == 0
    (target,) = seen
    assert (target.server, target.security.tls, target.security.access_key_file) == ("h:1", tls, Path("k"))
    assert target.security.tls_ca == (None if ca is None else Path(ca))


CLIENT = {
    "client": "10.0.0.7@1", "address": "10.0.0.7:5", "language": "JAVA", "version": 513, "producer_groups": ["p"],
    "consumer_groups": [], "seen_ms": 1,
}  # fmt: skip
REFUSAL = {
    "client": "10.0.0.7@1", "language": "JAVA", "version": 513, "code": 310, "name": "SEND_MESSAGE_V2", "answer": 13,
    "count": 3, "remark": "priorities are not offered", "last_ms": 1,
}  # fmt: skip


def clients_of(server: Any, **answer: object) -> list[str]:
    server.clients_body = json.dumps({"clients": [], "more": 0, "refused": [], "forgotten": 0} | answer).encode()
    return ["doctor", "--rocketmq", "--server", server.address]


def test_clients_of_rocketmq_by_what_they_are_and_what_was_refused(
    log_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = REFUSAL | {"client": "10.0.0.8\x1b", "language": "GO", "version": 7}
    clients = [CLIENT, CLIENT | {"client": "b"}, CLIENT | {"client": "c", "language": "CPP", "version": 333}]
    arguments = clients_of(log_server, clients=clients, more=4, refused=[REFUSAL, elsewhere], forgotten=2)
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=2) == ["ok", "broker-a", "clients: 1 CPP 4.6.0, 2 JAVA 5.5.0, and 4 more"]
    assert "10.0.0.7@1 (JAVA 5.5.0, connected) sent SEND_MESSAGE_V2 (310) 3 times" in lines[1]
    assert lines[2].endswith("→ refused with 13: priorities are not offered")
    assert "10.0.0.8\\u001b (GO version 7, not connected now)" in lines[3]
    assert "2 earlier rows" in lines[5]
    clients = [CLIENT | {"client": "c", "language": "NODE_JS", "grpc": "1.0.0"}]
    assert run(clients_of(log_server, clients=clients, refused=[REFUSAL | {"client": "c", "language": "NODE_JS"}])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("clients: 1 NODE_JS 1.0.0 by gRPC")
    assert "c (NODE_JS 1.0.0 by gRPC, connected) sent" in lines[1]
    assert run(clients_of(log_server)) == 0
    assert "none connected" in capsys.readouterr().out


def test_an_answer_about_clients_that_is_none_is_an_error(log_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(clients_of(log_server, clients=7)) == 1
    assert "cannot be read" in capsys.readouterr().err
