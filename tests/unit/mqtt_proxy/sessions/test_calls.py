"""What is said about sessions: by frames or by calls, in the order in which it was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mqtt_proxy.link.link import LinkDownError
from mqtt_proxy.mqtt.codec import packets
from remoting import inprocess
from remoting.protocol.bodies.session_body import (
    FilterRequest,
    SessionClose,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.transport.contracts import Connection, Peer
from remoting.transport.direct import Said, Stored
from tests.unit.mqtt_proxy.fake_broker import FakeBroker
from tests.unit.mqtt_proxy.rig import publish, running, settle


class Direct(FakeBroker):
    """A fake broker of this process: its sessions can be called."""

    open = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.late: list[Any] | None = None
        """Answers that are held back, once this is a list."""

    async def connect(self) -> Connection:
        connection = inprocess.connect(self.handle, port=self)
        self.connections.append(connection)
        return connection

    def append(self, images: bytes, stored: Stored) -> None:
        self.calls.append("append")
        stored(None)

    def session_open(self, peer: Peer, request: SessionOpen, said: Said[SessionOpened]) -> None:
        self.calls.append("open")
        self._answer(lambda: decode(SessionOpened, self._open(peer, encode(request))), said)

    def subscribe(self, wanted: Sequence[tuple[SubscribeRequest, Said[Subscribed]]]) -> None:
        self.calls.append(f"subscribe {len(wanted)}")
        for request, said in wanted:
            self._answer(lambda request=request: decode(Subscribed, self._subscribe(None, encode(request))), said)

    def session_close(self, request: SessionClose, said: Said[int]) -> None:
        self.calls.append("close")
        self._answer(lambda: len(self._close(None, encode(request))), said)

    def _answer(self, work: Any, said: Any) -> None:
        if self.late is not None:
            self.late.append((work, said))
            return
        try:
            said(work(), None)
        except Refused as refused:
            said(None, refused)


async def test_a_client_has_its_session_within_the_call() -> None:
    """No task and no turn of the loop where everything is at hand."""
    async with running(Direct()) as rig:
        wire = await rig.client("other")
        wire = type(wire)(rig)
        wire.send(packets.Connect("a", True, 0))
        assert wire.received() == [packets.Connack(False, 0)]
        assert not rig.services.tasks


async def test_subscribes_of_a_turn_go_together_behind_what_was_published() -> None:
    broker = Direct()
    async with running(broker) as rig:
        clients = [await rig.client(name) for name in "abc"]
        broker.calls.clear()
        clients[0].send(packets.Subscribe(1, [("t", 1)]))
        clients[1].send(packets.Subscribe(1, [("t", 1)]))
        clients[2].send(publish("t", b"x"), packets.Subscribe(1, [("t", 1)]), publish("t", b"y", packet_id=2))
        assert broker.calls == ["subscribe 2", "append"]
        await settle()
        assert broker.calls == ["subscribe 2", "append", "subscribe 1", "append"]
        assert [type(one) for one in clients[2].received()[1:]] == [packets.Puback, packets.Suback, packets.Puback]


async def test_who_connects_again_in_the_same_turn_finds_what_was_asked_for() -> None:
    """The SUBSCRIBE leaves before the SESSION_CLOSE and the SESSION_OPEN behind it."""
    broker = Direct()
    async with running(broker) as rig:
        first = await rig.client("a", clean=False)
        broker.calls.clear()
        first.send(packets.Subscribe(1, [("t", 1)]))
        again = type(first)(rig)
        again.send(packets.Connect("a", False, 0))
        assert broker.calls == ["subscribe 1", "close", "open"]
        assert again.received() == [packets.Connack(True, 0)]


async def test_a_stop_waits_for_what_is_not_confirmed() -> None:
    broker = Direct()
    async with running(broker) as rig:
        wire = await rig.client("a", clean=False)
        broker.late = []
        wire.lose()
        assert len(rig.services.tasks) == 1
        ((work, said),) = broker.late
        said(work(), None)
        await settle()
        assert not rig.services.tasks


async def test_refusals_are_heard() -> None:
    broker = Direct()
    async with running(broker) as rig:
        wire = await rig.client("a")
        broker.sessions["a"].owner = None
        broker.sessions["a"].epoch += 1
        wire.send(packets.Subscribe(1, [("t", 1)]))
        await settle()
        assert wire.closed is not None
        assert wire.closed.startswith("broker_refused")


@pytest.mark.parametrize("up", [True, False])
async def test_frames_and_what_is_wrong_with_them(up: bool) -> None:
    """A reply nobody can read, and a broker that is away, are said as errors."""
    async with running() as rig:
        heard: list[Exception | None] = []
        rig.broker._answers = rig.broker._answers | {RequestCode.SUBSCRIBE: lambda *_: b"?"}
        if not up:
            await rig.link.stop()
        request = SubscribeRequest("a", 1, False, [FilterRequest("t", 0)])
        rig.services.calls.subscribe(request, lambda: None, lambda _reply, error: heard.append(error))
        await settle()
        (error,) = heard
        assert isinstance(error, LightMQError)
        assert isinstance(error, LinkDownError) is not up
