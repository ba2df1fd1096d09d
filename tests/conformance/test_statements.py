"""Every numbered statement has one row and what shows it, or a reason; nothing is claimed that does not exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.conformance.mqtt3.script import STEP_NAMES, Scenario
from tools.mqtt_conformance import PAGE, PREFIX, ROOT, STANDARDS, Standard, Statement, mosquitto, render

COUNTS = {"mqtt5": 251, "mqtt311": 141}
"""Statements in Appendix B of each standard."""
REASONS = ("client: ", "does not arise: ", "not sent: ")
PACKETS = {
    "3.1": "connect",
    "3.2": "connack",
    "3.3": "publish",
    "3.4": "puback",
    "3.5": "pubrec",
    "3.6": "pubrel",
    "3.7": "pubcomp",
    "3.8": "subscribe",
    "3.9": "suback",
    "3.10": "unsubscribe",
    "3.11": "unsuback",
    "3.12": "pingreq",
    "3.13": "pingresp",
    "3.14": "disconnect",
    "3.15": "auth",
}
"""Section of the standard -> the packet that it describes."""
TYPES = dict(enumerate(PACKETS.values(), start=1))
"""Packet type -> packet."""
STEPS = {"connect": {"connect", "connack"}, "ack": {"puback"}, "quiet": {"pingreq", "pingresp"}, "closed": {"closed"}}
"""Steps that stand for packets they do not name."""

ABSENT = {"3.1.0-1", "3.14.0-1"}
"""Statements about a packet that is missing."""

each_standard = pytest.mark.parametrize("standard", STANDARDS, ids=lambda standard: standard.file)


@cache
def docstrings(path: str) -> dict[str, str]:
    """The functions of a file with their docstrings; none when there is no file."""
    if not (ROOT / path).is_file():
        return {}
    nodes = ast.parse((ROOT / path).read_text()).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in functions}


def packets_of(scenario: Scenario) -> set[str]:
    """The packets that a script sends or expects."""
    found: set[str] = set()
    for _, words in scenario.steps:
        found |= STEPS.get(words[0], set())
        if words[0] in {"send", "dribble", "expect"}:
            found.add(TYPES.get(int(words[3], 16) >> 4, "") if words[2] == "hex" else words[2])
    return found


def claims(statement: Statement) -> list[str]:
    """Tests that a row names and that do not exist, or do not name the statement themselves."""
    found = [(test, docstrings(test.partition("::")[0]).get(test.partition("::")[2], "")) for test in statement.tests]
    return [test for test, text in found if f"[{PREFIX}{statement.number}]" not in text]


@each_standard
def test_every_number_has_one_row(standard: Standard) -> None:
    """In the order of the standard; a row twice is not even TOML."""
    numbers = standard.numbers()
    assert len(set(numbers)) == len(numbers) == COUNTS[standard.file]
    assert [row.number for row in standard.statements()] == numbers


@each_standard
def test_every_statement_is_shown_or_has_a_reason(standard: Standard) -> None:
    """A scenario, a test, or why there is none; only a client's statement may have a reason beside a scenario."""
    shown = standard.shown()
    rows = standard.statements()
    assert set(shown) <= {row.number for row in rows}
    assert [row.number for row in rows if not (row.number in shown or row.tests or row.reason)] == []
    assert [row.number for row in rows if row.reason and not row.reason.startswith(REASONS)] == []
    both = [row for row in rows if row.reason and (row.number in shown or row.tests)]
    assert [row.number for row in both if not row.reason.startswith("client: ")] == []
    assert all(row.subject and not row.subject.endswith(".") for row in rows)


@each_standard
def test_every_test_that_is_named_exists_and_names_the_statement(standard: Standard) -> None:
    """Both ways: the row names the test, and the test's docstring the number."""
    assert {row.number: claims(row) for row in standard.statements() if claims(row)} == {}


@each_standard
def test_a_scenario_has_the_packet_its_statement_is_about(standard: Standard) -> None:
    """A script for a statement of 3.8 has a SUBSCRIBE in it."""
    claimed = [(number, scenario) for number, found in standard.shown().items() for scenario in found]
    wrong = [
        (number, scenario.title)
        for number, scenario in claimed
        if number not in ABSENT
        and (packet := PACKETS.get(Statement(number, "").section))
        and packet not in packets_of(scenario)
    ]
    assert wrong == []


@each_standard
def test_scripts_are_well_formed(standard: Standard) -> None:
    """Each has a unique name and steps, all of them known."""
    scenarios = standard.scenarios()
    names = [scenario.name for scenario in scenarios]
    assert len(set(names)) == len(names)
    for scenario in scenarios:
        assert scenario.steps, scenario.name
        assert {words[0] for _, words in scenario.steps} <= STEP_NAMES, scenario.name


def test_every_vector_that_is_answered_otherwise_is_judged() -> None:
    """The kinds add up; each is shown by scripts or tests that exist, and statements that are named exist."""
    peer = mosquitto()
    assert peer.alike + sum(row.vectors for row in peer.kinds) == peer.vectors
    titles = {scenario.title for standard in STANDARDS for scenario in standard.scenarios()}
    numbers = {f"{PREFIX}{number}" for standard in STANDARDS for number in standard.numbers()}
    for row in peer.kinds:
        assert row.scenarios or row.tests, row.kind
        assert set(row.scenarios) <= titles, row.kind
        assert all(name in docstrings(path) for path, _, name in (test.partition("::") for test in row.tests)), row.kind
        assert set(re.findall(r"\[(MQTT-[\d.-]+)\]", row.decides + row.why)) <= numbers, row.kind


def test_the_page_is_made_of_these() -> None:
    """As the tool writes it."""
    assert PAGE.read_text() == render(), "regenerate it: python -m tools.mqtt_conformance"


def test_a_claim_that_is_none_is_seen() -> None:
    """The lookups are real ones: of a test, of its docstring, of a script's packets."""
    here = "tests/conformance/test_statements.py::test_a_claim_that_is_none_is_seen"
    assert claims(Statement("3.1.0-1", "", tests=(here, here + "_not"))) == [here, here + "_not"]
    script = Scenario(["MQTT-3.8.1-1"], "", False, "", [(1, ["connect", "a"]), (2, ["send", "a", "hex", "80", "07"])])
    assert packets_of(script) == {"connect", "connack", "subscribe"}
