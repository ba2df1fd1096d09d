"""An answer leaves when what it shows is confirmed, and becomes a refusal when the store has failed before."""

from __future__ import annotations

from broker.requests.answers import ConfirmedAnswers, refusal_of
from broker.requests.tools import RequestTools
from broker.store.errors import StoreError
from remoting.protocol.frames.codes import ResponseCode


async def test_what_is_confirmed_is_answered_at_once(running) -> None:
    tools: RequestTools = running.broker.tools
    assert isinstance(tools.answers, ConfirmedAnswers)
    answered: list[tuple[object, object]] = []
    tools.answers.call_at(0, "shown", lambda answer, error: answered.append((answer, error)))
    await running.settle()
    assert answered == [("shown", None)]


async def test_a_store_that_failed_is_a_refusal_and_counted(running) -> None:
    metrics = running.broker.tools.metrics
    refused = refusal_of(metrics, StoreError("broken"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert metrics.refused.child("log_failed").value == 1
