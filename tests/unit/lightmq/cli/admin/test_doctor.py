from __future__ import annotations

import json
from pathlib import Path

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
