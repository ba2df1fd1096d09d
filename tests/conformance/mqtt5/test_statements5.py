"""Every numbered statement has a scenario or a reason for having none; no scenario names one that does not exist."""

from __future__ import annotations

from tests.conformance.mqtt3.script import STEP_NAMES, load_scenarios
from tests.conformance.mqtt5.script5 import HERE


def test_statements_and_scenarios_agree() -> None:
    """The list is the standard's, the scripts cover it."""
    lines = [line.split(maxsplit=1) for line in (HERE / "statements.txt").read_text().splitlines()]
    listed = {words[0]: words[1] if len(words) > 1 else "" for words in lines if words and words[0] != "#"}
    shown = {statement for scenario in load_scenarios(HERE) for statement in scenario.statements}
    assert shown <= set(listed), shown - set(listed)
    silent = {statement for statement, reason in listed.items() if not reason}
    assert silent <= shown, sorted(silent - shown)
    assert not shown & (set(listed) - silent), "a statement with a scenario needs no reason"


def test_scripts_are_well_formed() -> None:
    """Each has a unique name and steps, all of them known."""
    scenarios = load_scenarios(HERE)
    names = [scenario.name for scenario in scenarios]
    assert len(set(names)) == len(names)
    for scenario in scenarios:
        assert scenario.steps, scenario.name
        assert {words[0] for _, words in scenario.steps} <= STEP_NAMES, scenario.name
