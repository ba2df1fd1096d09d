"""Every way to a topic, through sockets, a real broker and real rules: what is allowed works, the rest leaves no trace.
The classes of attack are known from other brokers: checks that wills, retained messages or repeated deliveries
bypassed, names that became patterns, filters wider than the rule, revoked rules that still applied, damaged files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import argon2
import pytest
import structlog

from lightmq.configuration import Configuration, UpConfig
from lightmq.servers.all_in_one import AllInOne
from mqtt_proxy.config import ProxyConfig
from mqtt_proxy.mqtt.codec import packets
from mqtt_proxy.mqtt.codec import properties as props
from mqtt_proxy.mqtt.codec.reason_codes import ReasonCode
from tests.security.raw_client import RawClient

HASHER = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
SECRET = b"correct horse"
STRANGE = ["#", "+", "a/b", "+/#", ".*", "%u", "%c", "${username}", "$SYS"]
LIST = """\
topic readwrite open/#
user admin
topic readwrite #
topic read $SYS/#
user ann
topic readwrite ann/#
topic deny ann/secret/#
topic read qos=1 retained=no history=no quiet/#
topic write qos=1 retain=no will=no plain/#
pattern readwrite dev/%c/#
pattern readwrite home/%u/#
"""
NO = ReasonCode.NOT_AUTHORIZED


class World:
    """An installation with users, rules, and one user who may read everything."""

    def __init__(self, folder: Path) -> None:
        users = folder / "users"
        names = ["admin", "ann", "bob", *STRANGE]
        users.write_text("".join(f"{name}:{HASHER.hash(SECRET)}\n" for name in names if name != "#"))
        users.chmod(0o600)
        self.acl = folder / "acl"
        self.acl.write_text(LIST)
        up = UpConfig(data_directory=folder / "data", remoting_port=0, admin_port=0)
        proxy = ProxyConfig(host="127.0.0.1", port=0, password_file=users, acl_file=self.acl)
        self.installation = AllInOne(Configuration(up=up, proxy=proxy))
        self.port = 0
        self._clients: list[RawClient] = []
        self.admin: RawClient

    async def start(self) -> None:
        await self.installation.start()
        self.port = self.installation.ports()["mqtt"]
        self.admin = await self.client("admin", "admin")
        assert await self.admin.subscribe("#") == 1

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        await self.installation.stop()

    async def client(self, client_id: str, user: str | None = None, **more: Any) -> RawClient:
        made = await RawClient.connect(self.port, client_id, user, SECRET if user is not None else None, **more)
        self._clients.append(made)
        return made

    async def rules(self, text: str) -> None:
        """Put other rules in force."""
        assert self.installation._proxy is not None
        authority = self.installation._proxy._gate.authority
        before = authority.rules
        self.acl.write_text(text)
        self.installation.reload()
        while authority.rules is before:
            await asyncio.sleep(0.01)

    async def seen(self) -> list[tuple[str, bytes]]:
        """Everything the admin received since the last call, before this call's own message."""
        other = await self.client("marker", "admin")
        assert await other.publish("marker", b"") == 0
        found = []
        while True:
            got = await self.admin.receive()
            assert isinstance(got, packets.Publish)
            if got.qos:
                self.admin.send(packets.Puback(got.packet_id))
            if got.topic == b"marker":
                return found
            found.append((got.topic.decode(), bytes(got.payload)))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    with structlog.testing.capture_logs() as said:
        made = World(tmp_path)
        await made.start()
        yield made
        await made.stop()
    assert SECRET.decode() not in repr(said), "a password was logged"


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_publishing(world: World, level: int, qos: int) -> None:
    """To what is allowed and to what is not, with every QoS; 3.1.1 can only end the connection as a refusal."""
    for topic, allowed in (
        ("ann/x", True),
        ("ann/secret/x", False),
        ("bob/x", False),
        ("quiet/x", False),
        ("$SYS/x", False),
    ):
        ann = await world.client("c", "ann", level=level)
        ann.send(packets.Publish(topic.encode(), b"p", qos, False, False, 1 if qos else 0))
        if qos == 0:
            ann.send(packets.Pingreq())
        answer = await ann.receive()
        if level == 4 and not allowed:
            assert answer is None or await ann.receive() is None, topic
        elif qos == 0:
            assert isinstance(answer, packets.Pingresp)
        elif not allowed:
            assert answer.reason == NO, topic
        elif qos == 2:
            assert isinstance(answer, packets.Pubrec)
            assert isinstance(await ann.ask(packets.Pubrel(1)), packets.Pubcomp)
        assert await world.seen() == ([(topic, b"p")] if allowed else [])


async def test_kinds_of_messages(world: World) -> None:
    """A rule for QoS 1 and live messages allows neither QoS 2 nor retained messages."""
    ann = await world.client("c", "ann")
    assert await ann.publish("plain/x", b"1") == 0
    assert await ann.publish("plain/x", b"2", qos=2) == NO
    assert await ann.publish("plain/x", b"3", retain=True) == NO
    assert await world.seen() == [("plain/x", b"1")]
    fresh = await world.client("fresh", "admin")
    await fresh.subscribe("plain/#")
    assert await fresh.messages() == []


async def test_topic_aliases(world: World) -> None:
    """An alias is judged like the name behind it."""
    ann = await world.client("c", "ann")
    for topic, code in (("ann/x", 0), ("ann/secret", NO)):
        for name in (topic, ""):
            message = packets.Publish(name.encode(), b"a", 1, False, False, 1, None, 1)
            assert (await ann.ask(message)).reason == code, (topic, name)
    assert await world.seen() == [("ann/x", b"a")] * 2


@pytest.mark.parametrize("level", [4, 5])
async def test_wills_at_connect(world: World, level: int) -> None:
    """A will that may not be published is refused with the connection, and is not published either."""
    for topic in ("bob/x", "$SYS/x", "plain/x", "ann/secret"):
        refused = await world.client("c", "ann", level=level, will=packets.Will(topic.encode(), b"w", 0, False))
        assert refused.connack.code == (NO if level == 5 else 5)
        await refused.close()
    allowed = await world.client("c", "ann", level=level, will=packets.Will(b"ann/gone", b"w", 1, False))
    assert allowed.connack.code == 0
    await allowed.close()
    assert (await world.admin.receive()).topic == b"ann/gone"


async def test_wills_whose_right_was_revoked(world: World) -> None:
    """Left under the old rules, due under the new ones; another will shows that it was due."""
    ann = await world.client("c", "ann", will=packets.Will(b"ann/gone", b"w", 1, False))
    bob = await world.client("b", "admin", will=packets.Will(b"bob/gone", b"w", 1, False))
    await world.rules(LIST.replace("topic readwrite ann/#", "topic read ann/#"))
    await ann.close()
    await bob.close()
    assert (await world.admin.receive()).topic == b"bob/gone"
    assert await world.seen() == []


@pytest.mark.parametrize("prefix", ["", "$share/g/"])
async def test_subscribing(world: World, prefix: str) -> None:
    """Some topic of a filter must be readable, shared or not; a wider one delivers no more than may be read."""
    ann = await world.client("c", "ann")
    server_s = ReasonCode.TOPIC_FILTER_INVALID if prefix else NO  # no client's share of them would get anything
    for topic_filter, code in (
        ("ann/x", 1), ("ann/x/#", 1), ("ann/+", 1), ("ann/+/x", 1), ("ann/#", 1), ("ann/secret", NO), ("#", 1),
        ("+/x", 1), ("quiet/#", 1), ("quiet/+/x", 1), ("plain/x", NO), ("$SYS/#", server_s), ("+", 1), ("bob", NO),
        ("dev/c/#", 1), ("dev/+/x", 1), ("home/ann/x", 1), ("home/#", 1), ("ann/secret/#", NO), ("bob/#", NO),
    ):  # fmt: skip
        assert await ann.subscribe(prefix + topic_filter) == code, topic_filter
    old = await world.client("c4", "ann", level=4)
    assert await old.subscribe(prefix + "bob/#") == 0x80
    nobody = await world.client("n")
    assert await nobody.subscribe(prefix + "open/#") == 1
    assert await nobody.subscribe(prefix + "ann/x") == NO


async def test_the_servers_own_topics(world: World) -> None:
    """`$SYS` needs a rule of its own, and `#` does not reach it."""
    assert await (await world.client("s", "admin")).subscribe("$SYS/#") == 1
    assert not [topic for topic, _ in await world.seen() if topic.startswith("$")]


async def test_granted_qos_and_retained_messages(world: World) -> None:
    """No higher than the rule, and without what it does not allow."""
    assert await world.admin.publish("quiet/x", b"kept", retain=True) == 0
    assert await world.admin.publish("ann/x", b"kept", retain=True) == 0
    ann = await world.client("c", "ann")
    assert await ann.subscribe("ann/x", 2) == 2
    assert [bytes(one.payload) for one in await settled(ann)] == [b"kept"]
    assert await ann.subscribe("quiet/x", 2) == 1
    assert await settled(ann) == []
    assert await world.admin.publish("quiet/x", b"live", qos=2) == 0
    assert [(bytes(one.payload), one.qos) for one in await settled(ann, 1)] == [(b"live", 1)]


async def test_history(world: World) -> None:
    """Messages from before the subscription need a rule that allows them, in both forms of the request."""
    for topic in ("ann/x", "quiet/x", "ann/secret/x", "bob/x"):
        assert await world.admin.publish(topic, topic.encode()) == 0
    for topic_filter, found in (
        ("ann/x", ["ann/x"]),
        ("quiet/x", None),
        ("ann/secret/x", None),
        ("ann/#", ["ann/x"]),
        ("bob/x", None),
        ("#", ["ann/x"]),
    ):
        ann = await world.client("c", "ann")
        wish = {props.USER: [(b"last", b"5")]}
        for asked, more in ((f"$history/last=5/{topic_filter}", {}), (topic_filter, {"properties": wish})):
            assert await ann.subscribe(asked, **more) == (NO if found is None else 1), asked
            expected = [topic.encode() for topic in found or []]
            assert [bytes(one.payload) for one in await settled(ann, len(expected))] == expected
        assert await ann.subscribe("quiet/x") == 1  # live messages only are allowed


async def settled(client: RawClient, count: int = 0) -> list[packets.Publish]:
    """At least `count` messages, and what else arrives while the server answers a few times."""
    found: list[packets.Publish] = []
    rounds = 0
    while len(found) < count or rounds < 5:
        found += await client.messages()
        rounds += 1
    return found


@pytest.mark.parametrize("prefix", ["", "$share/g/"])
async def test_a_revoked_subscription(world: World, prefix: str) -> None:
    """It stops at once, is not resumed when the client returns, and does not return with the rule."""
    ann = await world.client("c", "ann", clean=False, properties={props.SESSION_EXPIRY: 3_600})
    assert await ann.subscribe(prefix + "ann/x") == 1
    assert await ann.subscribe(prefix + "quiet/x") == 1
    await world.admin.publish("ann/x", b"before")
    assert [bytes(one.payload) for one in await settled(ann, 1)] == [b"before"]
    await world.rules(LIST.replace("topic readwrite ann/#", "topic write ann/#"))
    await world.admin.publish("ann/x", b"after")
    await world.admin.publish("quiet/x", b"quiet")
    assert [bytes(one.payload) for one in await settled(ann, 1)] == [b"quiet"]
    await world.rules(LIST)
    await ann.close()
    again = await world.client("c", "ann", clean=False)
    assert again.connack.session_present
    await world.admin.publish("ann/x", b"later")
    await world.admin.publish("quiet/x", b"quiet again")
    assert [bytes(one.payload) for one in await settled(again, 1)] == [b"quiet again"]


async def test_a_redelivery_after_the_right_was_revoked(world: World) -> None:
    """It was sent, was not acknowledged, and is not sent again."""
    ann = await world.client("c", "ann", clean=False, properties={props.SESSION_EXPIRY: 3_600})
    assert await ann.subscribe("ann/x") == 1
    assert await ann.subscribe("quiet/x") == 1
    for topic in ("ann/x", "quiet/x"):
        await world.admin.publish(topic, topic.encode())
    unacknowledged = {(await ann.receive()).topic, (await ann.receive()).topic}
    assert unacknowledged == {b"ann/x", b"quiet/x"}
    await ann.close()
    await world.rules(LIST.replace("topic deny ann/secret/#", "topic deny ann/#"))
    again = await world.client("c", "ann", clean=False)
    assert [(one.topic, one.dup) for one in await settled(again, 1)] == [(b"quiet/x", True)]


@pytest.mark.parametrize("name", STRANGE)
async def test_names_that_look_like_patterns(world: World, name: str) -> None:
    """As client id and as user name: they widen nothing."""
    for client in (await world.client(name, "bob"), await world.client("c", name if name != "#" else None)):
        for topic_filter in ("dev/victim/#", "home/ann/#"):
            assert await client.subscribe(topic_filter) == NO, topic_filter
        for topic_filter in ("dev/#", "dev/+/#", "home/#", "home/+/#", "#"):  # its own topics may be in there
            await client.subscribe(topic_filter)
        for topic in ("dev/victim/x", "home/ann/x"):
            await world.admin.publish(topic, b"not for it")
        assert await settled(client, 0) == []
        await world.seen()
        for topic in ("dev/victim/x", "home/ann/x"):
            assert await client.publish(topic) == NO
    assert await world.seen() == []


async def test_another_users_session(world: World) -> None:
    """Neither taken over, nor ended, nor cleaned: not by another user, and not anonymously."""
    ann = await world.client("c", "ann", clean=False, properties={props.SESSION_EXPIRY: 3_600})
    assert await ann.subscribe("ann/x") == 1
    for away in (False, True):
        for user in ("bob", None):
            for clean in (True, False):
                stranger = await world.client("c", user, clean=clean)
                assert stranger.connack.code == NO
        if not away:
            await world.admin.publish("ann/x", b"still mine")
            assert [bytes(one.payload) for one in await settled(ann, 1)] == [b"still mine"]
            await ann.close()
    assert (await world.client("c", "ann", clean=False)).connack.session_present


@pytest.mark.parametrize(
    ("text", "allowed"),
    [(LIST + "topic deney ann/x\n", True), ("\0" * 100, True), ("", False), ("# nothing\n", False)],
)
async def test_files_that_become_unreadable(world: World, text: str, allowed: bool) -> None:
    """A damaged list leaves the rules unchanged; an empty one denies everything."""
    ann = await world.client("c", "ann")
    assert await ann.subscribe("ann/x") == 1
    assert world.installation._proxy is not None
    registry = world.installation._registry

    def counted() -> float:
        found = registry.values().items()
        return sum(value for name, value in found if name.startswith("rocketmq_mqtt_access_reloads_total{acl"))

    before = counted()
    world.acl.write_text(text)
    world.installation.reload()
    while counted() == before:
        await asyncio.sleep(0.01)
    assert await ann.publish("ann/x") == (0 if allowed else NO)
    assert await ann.subscribe("ann/y") == (1 if allowed else NO)
