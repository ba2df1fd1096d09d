"""Tasks are kept until they are done, and an unexpected failure in one is logged."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import CapturingLogger

from mqtt_proxy.link import LinkDownError
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.sessions import services
from mqtt_proxy.sessions import services as ownership
from mqtt_proxy.sessions.services import REVISED_PER_TURN_MAX, Owners
from remoting.protocol.bodies.session_body import FilterRequest, SessionFenced, SubscribeRequest, encode
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from tests.unit.mqtt_proxy.rig import publish, running, settle


async def test_tasks_are_kept_until_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that fails or is cancelled."""
    log = CapturingLogger()
    monkeypatch.setattr(services, "LOG", log)
    async with running() as rig:
        go = asyncio.Event()

        async def wait() -> None:
            await go.wait()

        async def fail() -> None:
            raise ValueError

        rig.services.spawn(wait())
        rig.services.spawn(fail())
        rig.services.spawn(wait()).cancel()
        await settle()
        assert len(rig.services.tasks) == 1
        go.set()
        await settle()
        assert rig.services.tasks == set()
        assert [call.kwargs["error"] for call in log.calls] == ["ValueError()"]


class Owner:
    """Records its calls."""

    def __init__(self, user: str | None = None) -> None:
        self.user = user
        self.told: list[object] = []

    def evict(self, reason: str, *, fenced: bool) -> None:
        self.told.append(("evict", fenced))

    def fence(self, epoch: int, *, hand_over: bool = False) -> None:
        self.told.append(epoch)

    def rules_changed(self) -> None:
        self.told.append("rules")

    def revise(self) -> None:
        self.told.append("revise")

    def reopen(self) -> None:
        self.told.append("reopen")


async def test_the_last_connection_owns_the_session() -> None:
    """Taking over evicts; a late release by the old one changes nothing; a fence reaches the owner."""
    async with running() as rig:
        owners, first, second = Owners(rig.link, rig.metrics), Owner(), Owner()
        owners.take("a", first)
        owners.take("a", first)
        owners.take("a", second)
        owners.release("a", first)
        assert (list(owners), first.told) == ([second], [("evict", False)])
        for client_id in ("a", "unknown"):
            owners._fenced(Command(RequestCode.SESSION_FENCED, body=encode(SessionFenced(client_id, 7))))
        assert second.told == [7]
        owners._reopen()
        owners._reopen()
        assert second.told == [7, "reopen"]
        owners.release("a", second)
        assert len(owners) == 0


async def test_only_its_own_user_ends_a_connection() -> None:
    """Another user must not; all connections are notified of new rules."""
    async with running() as rig:
        owners, ann, nobody = Owners(rig.link, rig.metrics), Owner("ann"), Owner()
        owners.take("a", ann)
        owners.take("n", nobody)
        asked = [
            owners.foreign(one, who)
            for one, who in (("a", "ann"), ("a", "bob"), ("a", None), ("n", None), ("n", "ann"))
        ]
        assert asked == [False, True, True, False, True]
        assert not owners.foreign("unknown", "bob")
        owners.rules_changed()
        assert (ann.told, nobody.told) == (["rules", "revise"], ["rules", "revise"])


async def test_a_large_fleet_is_revised_in_slices() -> None:
    """All forget their verdicts at once, subscriptions follow turn by turn; a further change starts over with all."""
    async with running() as rig:
        owners, fleet = Owners(rig.link, rig.metrics), [Owner() for _ in range(REVISED_PER_TURN_MAX + 50)]
        for number, owner in enumerate(fleet):
            owners.take(str(number), owner)
        owners.rules_changed()
        assert all(owner.told[0] == "rules" for owner in fleet)
        assert sum("revise" in owner.told for owner in fleet) == REVISED_PER_TURN_MAX
        owners.rules_changed()
        await settle()
        assert [owner.told.count("revise") for owner in fleet] == [2] * REVISED_PER_TURN_MAX + [1] * 50


async def test_a_bounded_number_of_those_that_left_while_the_broker_was_away_is_kept(monkeypatch) -> None:
    monkeypatch.setattr(ownership, "CLOSED_LATER_MAX", 2)
    async with running() as rig:
        owners, left = Owners(rig.link, rig.metrics), [Owner() for _ in range(3)]
        owners._reopen()
        for owner in left:
            owners.close_later(owner)
        assert rig.count("wills_failed_total{leave_unsaid}") == 1
        owners._reopen()
        owners._reopen()
        assert [owner.told for owner in left] == [[], ["reopen"], ["reopen"]], "each once"


APPEND, OPEN, CLOSE = RequestCode.APPEND_MANY, RequestCode.SESSION_OPEN, RequestCode.SESSION_CLOSE
SUBSCRIBE, UNSUBSCRIBE = RequestCode.SUBSCRIBE, RequestCode.UNSUBSCRIBE


async def test_a_client_has_its_session_in_the_turn_of_its_connect() -> None:
    """No task and one turn of the loop where everything is known."""
    async with running() as rig:
        wire = await rig.client("other")
        wire = type(wire)(rig)
        wire.send(packets.Connect("a", True, 0))
        assert not rig.services.tasks
        await asyncio.sleep(0)
        assert wire.received() == [packets.Connack(False, 0)]


async def test_a_subscribe_is_sent_behind_earlier_publishes() -> None:
    async with running() as rig:
        clients = [await rig.client(name) for name in "ab"]
        rig.broker.codes.clear()
        clients[0].send(packets.Subscribe(1, [("t", 1)]))
        clients[1].send(publish("t", b"x"), packets.Subscribe(1, [("t", 1)]), publish("t", b"y", packet_id=2))
        await settle()
        wanted = [code for code in rig.broker.codes if code in (APPEND, SUBSCRIBE)]
        assert wanted == [SUBSCRIBE, APPEND, SUBSCRIBE, APPEND]
        kinds = [packets.Puback, packets.Suback, packets.Puback, packets.Publish]
        received = clients[1].received()[1:]
        assert [type(one) for one in received] == kinds
        assert received[-1].payload == b"y"


async def test_a_client_that_reconnects_in_the_same_turn_has_its_subscription() -> None:
    """The SUBSCRIBE leaves before the SESSION_CLOSE and the SESSION_OPEN behind it."""
    async with running() as rig:
        first = await rig.client("a", clean=False)
        rig.broker.codes.clear()
        first.send(packets.Subscribe(1, [("t", 1)]))
        again = type(first)(rig)
        again.send(packets.Connect("a", False, 0))
        await settle()
        assert rig.broker.codes[:3] == [SUBSCRIBE, CLOSE, OPEN]
        assert again.received() == [packets.Connack(True, 0)]


async def test_a_filter_given_up_and_subscribed_again_is_subscribed() -> None:
    """What comes after an UNSUBSCRIBE does not overtake it."""
    async with running() as rig:
        wire = await rig.subscriber("a", ("t", 1))
        rig.broker.codes.clear()
        wire.send(packets.Unsubscribe(2, ["t"]), packets.Subscribe(3, [("t", 1)]), publish("t", b"x"))
        await settle()
        wanted = [code for code in rig.broker.codes if code in (APPEND, SUBSCRIBE, UNSUBSCRIBE)]
        assert wanted == [UNSUBSCRIBE, SUBSCRIBE, APPEND]
        assert list(rig.broker.sessions["a"].subscriptions) == ["t"]


async def test_a_stop_waits_for_confirmations() -> None:
    async with running() as rig:
        wire = await rig.client("a", clean=False)
        wire.lose()
        assert len(rig.services.tasks) == 1
        await settle()
        assert not rig.services.tasks


async def test_a_subscribe_that_comes_too_late_ends_as_the_take_over_does() -> None:
    async with running() as rig:
        wire = await rig.client("a")
        rig.broker.sessions["a"].owner = None
        rig.broker.sessions["a"].epoch += 1
        wire.send(packets.Subscribe(1, [("t", 1)]))
        await settle()
        assert wire.closed is not None
        assert wire.closed.startswith("taken_over")


@pytest.mark.parametrize("up", [True, False])
async def test_an_invalid_answer_is_an_error(up: bool) -> None:
    """A reply that cannot be decoded, and a broker that is away; never inside the request."""
    async with running() as rig:
        heard: list[Exception | None] = []
        rig.broker._answers = rig.broker._answers | {SUBSCRIBE: lambda *_: b"?"}
        if not up:
            await rig.link.stop()
        request = SubscribeRequest("a", 1, False, [FilterRequest("t", 0)])
        rig.services.calls.subscribe(request, lambda _reply, error: heard.append(error))
        assert not heard
        await settle()
        (error,) = heard
        assert isinstance(error, LightMQError)
        assert isinstance(error, LinkDownError) is not up
