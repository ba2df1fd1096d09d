"""Questions to proxies end once: with an answer, the end of the connection, or the time limit."""

from __future__ import annotations

import asyncio

import pytest

from broker.operating import proxies as module
from broker.operating.proxies import Proxies
from remoting.protocol.bodies.operating_body import ProxyAnswered, ProxyAsked, ProxyPresent, decode
from remoting.protocol.errors import Refused


class FakePeer:
    """Keeps what it is sent."""

    address, loopback, writable = "p:1", True, True

    def __init__(self) -> None:
        self.attributes: dict[str, object] = {}
        self.sent: list[ProxyAsked] = []
        self.closed: list = []

    def send(self, command) -> None:
        self.sent.append(decode(ProxyAsked, command.body))

    def close(self, reason: str) -> None:
        for callback in self.closed:
            callback(reason)

    def on_close(self, callback) -> None:
        self.closed.append(callback)


def shown(name: str) -> ProxyPresent:
    return ProxyPresent(name, "1", 0, {"tcp": 1883})


async def test_answers_come_in_the_order_of_the_proxies() -> None:
    proxies, one, two = Proxies(), FakePeer(), FakePeer()
    proxies.present(two, shown("b"))
    proxies.present(one, shown("a"))
    asked = asyncio.ensure_future(proxies.ask(proxies.all(), "clients", b"q"))
    await asyncio.sleep(0)
    assert (one.sent[0].question, one.sent[0].body) == ("clients", b"q")
    proxies.answered(two, ProxyAnswered(two.sent[0].number, b"2"))
    proxies.answered(two, ProxyAnswered(one.sent[0].number, b"not yours"))
    proxies.answered(one, ProxyAnswered(one.sent[0].number, b"1"))
    proxies.answered(one, ProxyAnswered(one.sent[0].number, b"again"))
    assert [(answer.proxy.shown.name, answer.body) for answer in await asked] == [("a", b"1"), ("b", b"2")]


async def test_a_proxy_that_leaves_or_is_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_TIMEOUT_MS", 20)
    proxies, one, two = Proxies(), FakePeer(), FakePeer()
    proxies.present(one, shown("a"))
    proxies.present(two, shown("b"))
    asked = asyncio.ensure_future(proxies.ask(proxies.all(), "clients", b""))
    await asyncio.sleep(0)
    one.close("gone")
    left, silent = await asked
    assert (left.error, silent.error) == ("the proxy has left", "no answer within 20 ms")
    assert [proxy.shown.name for proxy in proxies.all()] == ["b"]
    assert proxies.at(one) is None


async def test_questions_and_proxies_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUESTIONS_MAX", 1)
    monkeypatch.setattr(module, "PROXIES_MAX", 2)
    proxies = Proxies()
    for name in "ab":
        proxies.present(FakePeer(), shown(name))
    with pytest.raises(Refused, match="2 proxies"):
        proxies.present(FakePeer(), shown("c"))
    with pytest.raises(Refused, match="1 questions"):
        await proxies.ask(proxies.all(), "clients", b"")
