"""An answer leaves when what it shows is confirmed, and becomes a refusal when the store has failed before."""

from __future__ import annotations

from broker.requests.answers import ConfirmedAnswers, refusal_of
from broker.requests.tools import RequestTools
from broker.store.errors import StoreError
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command


async def test_what_is_confirmed_is_answered_at_once(running) -> None:
    tools: RequestTools = running.broker.tools
    assert isinstance(tools.answers, ConfirmedAnswers)
    sent: list[Command] = []

    class Asking:
        def send(self, command: Command) -> None:
            sent.append(command)

    reply = Command(0, flag=1, body=b"shown")
    tools.answers.reply_at(0, Asking(), reply)  # type: ignore[arg-type]  # only what is called
    assert sent == [reply]


async def test_a_store_that_failed_is_a_refusal_and_counted(running) -> None:
    metrics = running.broker.tools.metrics
    refused = refusal_of(metrics, StoreError("broken"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert metrics.refused.child("log_failed").value == 1
