"""SESSION_OPENs that wait for a handover continue in order, once."""

from __future__ import annotations

import asyncio

import pytest

from broker.sessions import requests
from broker.sessions.client_session import ClientSession
from broker.sessions.requests import Handovers
from remoting.protocol.bodies.session_body import SessionFenced, decode
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command


class Holder:
    def __init__(self) -> None:
        self.told: list[SessionFenced] = []

    def send(self, command: Command) -> None:
        assert command.code == RequestCode.SESSION_FENCED
        self.told.append(decode(SessionFenced, command.body))


def held() -> tuple[Holder, ClientSession]:
    holder = Holder()
    return holder, ClientSession("c", None, durable=True, expiry_s=5, epoch=3, owner=holder)


async def test_the_owner_is_asked_once_and_all_continue_when_it_has_answered() -> None:
    holder, session = held()
    handovers, gone_on = Handovers(), []
    for number in range(3):
        handovers.ask(session, lambda number=number: gone_on.append(number))
    assert holder.told == [SessionFenced("c", 3, hand_over=True)]
    handovers.handed_in("other")
    assert gone_on == []
    handovers.handed_in("c")
    handovers.handed_in("c")
    assert gone_on == [0, 1, 2]


async def test_no_open_waits_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "HANDOVER_MS", 1)
    _holder, session = held()
    handovers, late = Handovers(), asyncio.Event()
    handovers.ask(session, late.set)
    await asyncio.wait_for(late.wait(), 5)


async def test_a_stopping_broker_drops_waiting_opens() -> None:
    _holder, session = held()
    handovers, gone_on = Handovers(), []
    handovers.ask(session, lambda: gone_on.append(1))
    handovers.stop()
    handovers.handed_in("c")
    assert gone_on == []
