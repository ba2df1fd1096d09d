"""The HTTP API of a real `lightmq up` against its own description: schemathesis makes requests, fitting and not.

Every answer must have a declared status and form, and none may be a failure of the server. The long run tries every
operation with more requests: `pytest -m slow tests/processes/test_console_api.py`, `LIGHTMQ_EXAMPLES` for each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from console.api.table import OPERATIONS
from tests.processes.rig import Server

schemathesis = pytest.importorskip("schemathesis", reason="the API is tried out by schemathesis: pip install it")

pytestmark = pytest.mark.processes
NOT_CHECKED = ("unsupported_method", "missing_required_header", "positive_data_acceptance", "ignored_auth")
"""Other methods may belong to other operations; data that fits the form may name what is not there; the rights are
those of tests/security."""
RANDOM_MIN = 10
"""Fewer requests than this are the same in every run."""
SHORT = ("get_overview", "list_queues", "list_dead_letters", "publish_message", "reset_group")


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server, as it describes itself."""
    server = Server(tmp_path_factory.mktemp("console") / "data")
    server.start()
    url = f"http://127.0.0.1:{server.ports['admin']}"
    schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")
    schema.config.update(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {server.console_token}"})
    yield schema
    server.kill_if_running()


def try_out(schema: Any, name: str, examples: int) -> None:
    """Make requests to one operation."""
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    excluded: list[Any] = [check for check in CHECKS.get_all() if check.__name__ in NOT_CHECKED]

    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck), derandomize=examples < RANDOM_MIN,
    )  # fmt: skip
    @given(case=schema.find_operation_by_id(name).as_strategy())
    def run(case: Any) -> None:
        case.call_and_validate(excluded_checks=excluded, timeout=30)

    run()


@pytest.mark.parametrize("name", SHORT)
def test_answers_are_as_described(described: Any, name: str) -> None:
    try_out(described, name, 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [one.name for one in OPERATIONS])
def test_every_answer_is_as_described(described: Any, name: str) -> None:
    try_out(described, name, int(os.environ.get("LIGHTMQ_EXAMPLES", "100")))
