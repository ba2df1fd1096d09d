"""Every scenario that the session core can decide alone."""

from __future__ import annotations

import pytest

from tests.conformance.mqtt3.runner import Run
from tests.conformance.mqtt3.script import Scenario, load_scenarios
from tests.conformance.mqtt3.targets import CoreTarget

SCENARIOS = [scenario for scenario in load_scenarios() if not scenario.needs_server]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario) -> None:
    """The script passes against the core."""
    Run(CoreTarget(), "u1").play(scenario)
