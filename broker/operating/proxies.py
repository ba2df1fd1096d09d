"""The MQTT proxies connected to this broker, and questions to them.

    PROXY_PRESENT (9090)   a proxy shows itself; it is asked until its connection ends
    PROXY_ASKED (9091)     one-way, to a proxy: a question with a number
    PROXY_ANSWERED (9092)  one-way, from it: the answer of that number

Answers come as requests because a peer in this process takes none. Invariant: each question ends exactly once: with
the answer of the proxy it was put to, the end of that connection, or after `ANSWER_TIMEOUT_MS`. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from remoting.protocol.bodies.operating_body import ProxyAnswered, ProxyAsked, ProxyPresent, encode
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.transport.contracts import Peer

ANSWER_TIMEOUT_MS = 3_000
"""How long a proxy may take; one that does not answer is named in what is shown."""
QUESTIONS_MAX = 256
"""Questions without an answer, to all proxies together."""
PROXIES_MAX = 1_000


@dataclass(slots=True, frozen=True)
class Proxy:
    """One connected proxy."""

    peer: Peer
    shown: ProxyPresent


@dataclass(slots=True, frozen=True)
class ProxyAnswer:
    """What one proxy said; `error` when it did not answer."""

    proxy: Proxy
    body: bytes
    error: str = ""


class Proxies:
    """Who is connected, and what has been asked."""

    def __init__(self) -> None:
        self._present: dict[Peer, Proxy] = {}
        self._waiting: dict[int, tuple[Proxy, asyncio.Future[ProxyAnswer]]] = {}
        self._asked = 0

    def __len__(self) -> int:
        return len(self._present)

    def all(self) -> list[Proxy]:
        """The connected proxies by name."""
        return sorted(self._present.values(), key=lambda proxy: proxy.shown.name)

    def at(self, peer: object) -> Proxy | None:
        """The proxy of a connection."""
        return self._present.get(peer)  # type: ignore[call-overload,no-any-return]  # owners of sessions are peers

    def present(self, peer: Peer, shown: ProxyPresent) -> None:
        """A proxy shows itself, for the first time or with other ports. Raises Refused for one too many."""
        if peer not in self._present:
            if len(self._present) >= PROXIES_MAX:
                raise Refused(ResponseCode.SYSTEM_BUSY, f"{PROXIES_MAX} proxies are connected already")
            peer.on_close(lambda _reason: self._left(peer))
        self._present[peer] = Proxy(peer, shown)

    def tell(self, proxies: Sequence[Proxy], question: str, body: bytes) -> None:
        """Say something to several proxies; nobody waits for their answers."""
        for proxy in proxies:
            message = encode(ProxyAsked(0, question, body))
            proxy.peer.send(Command(RequestCode.PROXY_ASKED, flag=FLAG_ONEWAY, body=message))

    async def ask(self, proxies: Sequence[Proxy], question: str, body: bytes) -> list[ProxyAnswer]:
        """Put a question to several proxies at once; one answer for each, in their order. Raises Refused when too many
        questions are open.
        """
        if len(self._waiting) + len(proxies) > QUESTIONS_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{QUESTIONS_MAX} questions to proxies are open: try again later")
        loop = asyncio.get_running_loop()
        asked: list[asyncio.Future[ProxyAnswer]] = []
        numbers: list[int] = []
        for proxy in proxies:
            self._asked += 1
            numbers.append(self._asked)
            future: asyncio.Future[ProxyAnswer] = loop.create_future()
            self._waiting[self._asked] = (proxy, future)
            asked.append(future)
            message = encode(ProxyAsked(self._asked, question, body))
            proxy.peer.send(Command(RequestCode.PROXY_ASKED, flag=FLAG_ONEWAY, body=message))
        try:
            if asked:
                await asyncio.wait(asked, timeout=ANSWER_TIMEOUT_MS / 1_000)
        finally:
            for number in numbers:
                self._waiting.pop(number, None)
        return [
            future.result() if future.done() else ProxyAnswer(proxy, b"", f"no answer within {ANSWER_TIMEOUT_MS} ms")
            for proxy, future in zip(proxies, asked, strict=True)
        ]

    def answered(self, peer: Peer, answer: ProxyAnswered) -> None:
        """A proxy answers; an answer that nobody waits for any more, or to another proxy's question, is dropped."""
        proxy, future = self._waiting.get(answer.number, (None, None))
        if proxy is None or future is None or proxy.peer is not peer or future.done():
            return
        future.set_result(ProxyAnswer(proxy, answer.body, answer.error))

    def _left(self, peer: Peer) -> None:
        self._present.pop(peer, None)
        for proxy, future in self._waiting.values():
            if proxy.peer is peer and not future.done():
                future.set_result(ProxyAnswer(proxy, b"", "the proxy has left"))
