"""Dashboards and alerts name only metrics that exist; the files are those of their table; promtool takes the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.tree import ROOT

MONITORING = ROOT / "deploy" / "monitoring"
BOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
ALERTS = MONITORING / "alerts.yml"
METRIC = re.compile(r"\b(?:rocketmq|lightmq|process|python)_[a-z0-9_]+\b")
ROW = re.compile(r"^\| `(rocketmq_\w+)` \| (counter|gauge|histogram) \| ([^|]*) \|", re.MULTILINE)
SERIES = ("_bucket", "_count", "_sum")
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "lightmq_build_info"}


def documented() -> dict[str, set[str]]:
    """Metric -> labels; the page is compared with the declared registry by a test of its own."""
    rows = ROW.findall((ROOT / "docs" / "howto" / "metrics.md").read_text())
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, _kind, labels in rows}


def declared() -> set[str]:
    """Those of the page, and those that only members of a group and Spark's drivers have."""
    sources = [ROOT / "broker" / "roles" / "member_state.py", ROOT / "spark_connector" / "listener.py"]
    more = {name for path in sources for name in re.findall(r'"(rocketmq_\w+)"', path.read_text())}
    return {*documented(), *PROCESS, *more, *(f"{name}_total" for name in more)}


def rules() -> Iterator[dict[str, Any]]:
    """Every alert."""
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        yield from group["rules"]


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of everything in the folder."""
    for path in BOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("where", "text"), list(expressions()))
def test_every_metric_exists(where: str, text: str) -> None:
    """By its name, or that of a histogram's series."""
    known = declared()
    names = set(METRIC.findall(text))
    assert names or "up{" in text, where
    for name in names:
        plain = next((name.removesuffix(one) for one in SERIES if name.endswith(one) and name not in known), name)
        assert plain in known, f"{where}: {name}"


@pytest.mark.parametrize(("where", "text"), list(expressions()))
def test_every_label_exists(where: str, text: str) -> None:
    """What is summed by is a label of the metrics, or one of Prometheus' own."""
    labels = documented()
    for by, rest in re.findall(r"sum by \(([\w, ]+)\) \((?:rate|increase)?\(?(\w+)", text):
        plain = rest
        for one in SERIES:
            plain = plain.removesuffix(one)
        if plain in labels or rest in labels:
            given = labels.get(rest, labels.get(plain, set())) | {"instance", "job", "le"}
            assert set(re.split(r", *", by)) <= given, f"{where}: {by}"


def test_the_boards_are_those_of_their_table() -> None:
    """One source for all of them."""
    done = subprocess.run(
        [sys.executable, "tools/dashboards.py", "--check"], cwd=ROOT, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in BOARDS} == {"overview", "mqtt", "storage", "ha", "spark", "rocketmq"}


def test_every_alert_says_what_is_wrong_and_how_bad_it_is() -> None:
    """And the documents they name exist."""
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 15
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["annotations"]["summary"]
        for path in re.findall(r"docs/[\w./-]+\.md", str(rule["annotations"])):
            assert (ROOT / path).exists(), path


def test_every_alert_has_a_test_of_when_it_fires_and_when_not() -> None:
    """In alerts.test.yml, which promtool runs."""
    checks = [
        check for test in yaml.safe_load((MONITORING / "alerts.test.yml").read_text())["tests"]
        for check in test["alert_rule_test"]
    ]  # fmt: skip
    names = {rule["alert"] for rule in rules()}
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == names
    assert {check["alertname"] for check in checks} == names


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
@pytest.mark.parametrize("command", [["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]])
def test_promtool_takes_the_rules(command: list[str]) -> None:
    """And the alerts fire when they should, and not before."""
    done = subprocess.run(
        ["promtool", *command], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
def test_promtool_takes_every_expression_of_the_boards(tmp_path: Path) -> None:
    """As recording rules, with the variables filled in."""
    filled = [
        {"record": f"board:{number}", "expr": text.replace("$__rate_interval", "1m").replace("$instance", ".*")}
        for number, (_where, text) in enumerate(expressions())
    ]
    path = tmp_path / "boards.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": filled}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


GRAFANA = "grafana-foundation-sdk==1769699998!10.1.0"
"""Grafana's own types of what its API takes, under the Apache License."""
TAKEN = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

register_default_plugins()
for path in sys.argv[1:]:
    with open(path) as file:
        given = json.load(file)
    taken = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
    pairs = [(path, given, taken)]
    for where, ours, theirs in pairs:
        if isinstance(ours, dict):
            pairs += [(f"{where} {key}", value, theirs.get(key, "nothing")) for key, value in ours.items()]
        elif isinstance(ours, list):
            assert len(ours) == len(theirs), where
            pairs += [(f"{where} {at}", *each) for at, each in enumerate(zip(ours, theirs))]
        else:
            assert ours == theirs, (where, ours, theirs)
    print(len(pairs))
"""


@pytest.mark.slow
def test_grafana_s_own_types_take_every_field_of_the_boards(tmp_path: Path) -> None:
    """What Grafana would not know is lost on the way through them."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    python = tmp_path / "environment" / "bin" / "python"
    for command in (
        ["venv", "--quiet", "--python", sys.executable, python.parent.parent],
        ["pip", "install", "--quiet", "--python", python, GRAFANA],
    ):
        subprocess.run([uv, *command], check=True)
    done = subprocess.run([python, "-c", TAKEN, *BOARDS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [int(line) > 100 for line in done.stdout.splitlines()] == [True] * len(BOARDS)
