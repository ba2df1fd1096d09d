"""Codes find their handlers; slow answers are sent later and end with their peer."""

from __future__ import annotations

import asyncio

import pytest

from remoting.protocol.bodies.controller_body import TopicRoute, decode_body
from remoting.protocol.errors import LocalMisuse, NotOffered, Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.server.router import (
    PENDING_ATTRIBUTE,
    PROVED_ATTRIBUTE,
    Access,
    Router,
    later,
    parse_access_keys,
    refusal_route,
)
from remoting.transport.signature import Signer, date_signature


class From:
    def __init__(self, loopback):
        self.loopback = loopback
        self.attributes = {}
        self.address = "127.0.0.1:1" if loopback else "10.1.2.3:4"


LOCAL, REMOTE = From(loopback=True), From(loopback=False)


def signed(access_key, secret, body=b"b"):
    command = Command(1, fields={"topic": "t"}, body=body)
    Signer(access_key, secret).sign(command)
    return command


def test_this_machine_needs_nothing():
    Access().check(LOCAL, Command(1))


@pytest.mark.parametrize(
    ("options", "loopback", "key", "secret", "refused"),
    [
        ({}, True, "", "", None),
        ({}, True, "device", "wrong", None),
        ({"keys_count": True}, True, "device", "wrong", "is not valid"),
        ({"keys_count": True}, True, "device", "s", None),
        ({}, False, "", "", "clients of other machines need"),
        ({"open_to_all": True}, False, "", "", None),
        ({}, False, "device", "s", None),
        ({}, False, "device", "wrong", "is not valid"),
        ({}, False, "other", "", "is not valid"),
        ({"bound_only": True}, False, "device", "s", "can be replayed"),
    ],
)
def test_a_client_of_a_proxy_signs_the_time_of_its_request(options, loopback, key, secret, refused):
    access, now = Access({"device": "s"}, **options), "20261124T034500Z"
    given = date_signature(now, secret).upper()
    if refused is None:
        access.check_client(key, now, given, loopback=loopback)
        return
    with pytest.raises(Refused, match=refused):
        access.check_client(key, now, given, loopback=loopback)


def test_others_are_refused_by_default():
    with pytest.raises(Refused, match=r"10\.1\.2\.3:4 need AccessKey") as caught:
        Access().check(REMOTE, Command(1))
    assert caught.value.code == 16
    with pytest.raises(Refused):
        Access().check(REMOTE, signed("device", "s"))


def test_a_valid_signature_opens():
    Access({"device": "s"}).check(REMOTE, signed("device", "s"))


@pytest.mark.parametrize(
    "command", [signed("device", "wrong"), signed("other", "s"), signed("", "s"), signed("other", "")]
)
def test_a_wrong_key_or_secret_does_not(command):
    with pytest.raises(Refused) as caught:
        Access({"device": "s"}).check(REMOTE, command)
    assert caught.value.code == 16


def test_a_changed_body_or_field_does_not():
    for change in ({"body": b"other"}, {"fields": {**signed("device", "s").fields, "topic": "u"}}):
        command = signed("device", "s")
        for name, value in change.items():
            setattr(command, name, value)
        with pytest.raises(Refused, match="not valid"):
            Access({"device": "s"}).check(REMOTE, command)


def test_open_to_all_is_an_explicit_setting():
    Access(open_to_all=True).check(REMOTE, Command(1))


def test_a_key_with_rights_is_proved_on_this_machine_too():
    """Rights belong to the name: no client may claim those of another. Without a key nothing is claimed."""
    access = Access({"device": "s"}, open_to_all=True, keys_count=True)
    access.check(LOCAL, Command(1))
    access.check(LOCAL, signed("device", "s"))
    for peer in (LOCAL, REMOTE):
        with pytest.raises(Refused, match="not valid"):
            access.check(peer, signed("device", "wrong"))


def test_access_keys():
    assert parse_access_keys(("a:b", "c:d:e")) == {"a": "b", "c": "d:e"}
    with pytest.raises(LocalMisuse, match="entry 2") as caught:
        parse_access_keys(("a:b", "verysecret"))
    assert "verysecret" not in str(caught.value)


def test_proved_peers():
    """Those of which no key is required, and those whose signature was valid; claiming a key is not enough."""
    keyed = Access({"device": "s"})
    assert keyed.trusts(LOCAL)
    assert not keyed.trusts(REMOTE)
    assert not Access({"device": "s"}, keys_count=True).trusts(LOCAL)
    assert Access(open_to_all=True).trusts(REMOTE)
    assert keyed.knows(signed("device", "guessed"))
    assert not keyed.knows(signed("other", "s"))
    assert not keyed.knows(Command(1, fields={"AccessKey": "device"}))
    peer = From(loopback=False)
    with pytest.raises(Refused):
        keyed.check(peer, signed("device", "guessed"))
    assert PROVED_ATTRIBUTE not in peer.attributes
    keyed.check(peer, signed("device", "s"))
    assert PROVED_ATTRIBUTE in peer.attributes


def bound(access, peer, secret="s"):
    """A signer for this peer's connection."""
    return Signer("device", secret).bound(access.admit(peer, Command(9070)))


def copy_of(command):
    return Command(command.code, fields=dict(command.fields), body=command.body)


def test_a_bound_request_is_accepted_once_and_on_its_connection_only():
    access, here, there = Access({"device": "s"}), From(loopback=False), From(loopback=False)
    signer = bound(access, here)
    first, second = Command(10, body=b"a"), Command(10, body=b"b")
    signer.sign(first)
    signer.sign(second)
    assert access.admit(here, copy_of(first)) is None
    with pytest.raises(Refused, match="already received"):
        access.admit(here, copy_of(first))
    with pytest.raises(Refused, match="another connection"):
        access.admit(there, copy_of(second))
    bound(access, there)
    with pytest.raises(Refused, match="not valid"):
        access.admit(there, copy_of(second))
    access.admit(here, second)


def test_a_bound_request_cannot_be_altered():
    """Neither to another code, nor to one of the kind that may be repeated."""
    access, here = Access({"device": "s"}), From(loopback=False)
    command = Command(10, fields={"topic": "t"}, body=b"a")
    bound(access, here).sign(command)
    other = copy_of(command)
    other.code = 11
    with pytest.raises(Refused, match="not valid"):
        access.admit(here, other)
    stripped = copy_of(command)
    stripped.fields["Signature"] = stripped.fields["Signature"].removeprefix("2:")
    with pytest.raises(Refused, match="not valid"):
        access.admit(here, stripped)
    for count in ("", "x", "-1", "9" * 19, "٣"):
        broken = copy_of(command)
        broken.fields["SignatureCount"] = count
        with pytest.raises(Refused):
            access.admit(here, broken)
    access.admit(here, command)


def test_a_wrong_secret_uses_no_number_up():
    access, here = Access({"device": "s"}), From(loopback=False)
    wrong, right = Command(10), Command(10)
    bound(access, here, secret="guessed").sign(wrong)
    bound(access, here).sign(right)
    with pytest.raises(Refused, match="not valid"):
        access.admit(here, wrong)
    access.admit(here, right)


def test_signatures_that_could_be_sent_again_may_be_refused():
    access = Access({"device": "s"}, bound_only=True)
    with pytest.raises(Refused, match="bound_signatures_only"):
        access.admit(REMOTE, signed("device", "s"))
    here, command = From(loopback=False), Command(10)
    bound(access, here).sign(command)
    access.admit(here, command)


class Recorder:
    address = "10.0.0.1:5"
    loopback = False

    def __init__(self):
        self.sent = []
        self.attributes = {}
        self.closers = []

    def send(self, command):
        self.sent.append(command)

    def on_close(self, callback):
        self.closers.append(callback)


def test_the_table_decides():
    router = Router({7: lambda peer, command: command.reply(body=b"seven")})
    assert router(Recorder(), Command(7)).body == b"seven"


def test_unknown_codes_are_refused_and_reported():
    noted = []
    router = Router({}, not_offered=lambda peer, command, refused: noted.append((peer, command.code, refused.code)))
    peer = Recorder()
    with pytest.raises(Refused, match=r"request type 8 not supported$") as caught:
        router(peer, Command(8))
    assert caught.value.code == 3
    assert noted == [(peer, 8, 3)]
    with pytest.raises(Refused, match="request type 200056 not supported: LightMQ does not offer moving POP records"):
        Router({})(Recorder(), Command(200_056))


def test_what_a_handler_does_not_offer_is_reported_and_other_refusals_are_not():
    noted = []

    def handle(_peer, command):
        raise (NotOffered if command.fields else Refused)(13, "no")

    router = Router({8: handle}, not_offered=lambda _peer, command, refused: noted.append((command.code, refused.code)))
    for fields in ({}, {"priority": "1"}):
        with pytest.raises(Refused, match="no"):
            router(Recorder(), Command(8, fields=fields))
    assert noted == [(8, 13)]


def test_what_has_no_handler_may_be_refused_for_another_reason():
    """Then it is not an unknown request."""
    noted = []

    def judge(_peer, command):
        if command.code == 8:
            raise Refused(16, "no right")

    router = Router({}, not_offered=lambda _peer, command, _refused: noted.append(command.code), judge_unserved=judge)
    for code, answered in ((8, 16), (9, 3)):
        with pytest.raises(Refused) as caught:
            router(Recorder(), Command(code))
        assert caught.value.code == answered
    assert noted == [9]


def test_a_lookup_without_a_right_is_led_to_the_reason():
    """Other refusals, and those of other requests, are unchanged."""
    lookup, fields = 105, {"topic": "t", "AccessKey": "key", "Signature": "abc="}

    def refuse(_peer, command):
        raise Refused(int(command.fields["code"]), "no")

    router, peer = Router({lookup: refuse, 7: refuse}), Recorder()
    peer.reached_at = ("10.0.0.1", 9876)
    assert b"access-refused" in router(peer, Command(lookup, fields=fields | {"code": "16"})).body
    for code, refusal in ((lookup, "17"), (7, "16")):
        with pytest.raises(Refused):
            router(peer, Command(code, fields=fields | {"code": refusal}))


def test_access_comes_first():
    called = []
    router = Router({7: lambda peer, command: called.append(1)}, access=Access())
    for code in (7, 8):
        with pytest.raises(Refused) as caught:
            router(Recorder(), Command(code))
        assert caught.value.code == 16
    assert called == []


async def finish():
    for _ in range(4):
        await asyncio.sleep(0)


async def test_later_sends_the_result_or_the_failure():
    peer = Recorder()
    loop = asyncio.get_running_loop()
    outcomes = [loop.create_future() for _ in range(4)]
    commands = [Command(1, opaque=n, flag=2 if n == 3 else 0) for n in range(4)]
    for command, outcome in zip(commands, outcomes, strict=True):
        later(peer, command, outcome)
    outcomes[0].set_result(commands[0].reply(body=b"done"))
    outcomes[1].set_exception(Refused(17, "gone"))
    outcomes[2].set_result(None)
    outcomes[3].set_result(commands[3].reply())
    await finish()
    assert [(reply.opaque, reply.code, reply.body) for reply in peer.sent] == [(0, 0, b"done"), (1, 17, b"")]
    assert peer.attributes[PENDING_ATTRIBUTE] == set()
    assert len(peer.closers) == 1


async def test_the_end_of_a_peer_ends_what_it_waits_for():
    peer = Recorder()
    outcome = asyncio.get_running_loop().create_future()
    later(peer, Command(1), outcome)
    await finish()
    peer.closers[0]("gone")
    await finish()
    assert outcome.cancelled()
    assert peer.sent == []


def test_a_lookup_with_a_wrong_key_is_led_to_its_refusal_where_routes_are_served():
    class Came(Recorder):
        reached_at = ("10.0.0.2", 9876)

    def look_up(peer, code=105, **table):
        handlers = {105: lambda peer, command: command.reply(body=b"a real route"), 106: None}
        router = Router(table.get("handlers", handlers), access=Access({"key": "secret"}), advertised_host="mq.example")
        return router(peer, Command(code, fields={"topic": "t", "AccessKey": "key", "Signature": "wrong"}))

    reply = look_up(Came())
    assert b"mq.example:9876" in reply.body
    assert b"a real route" not in reply.body
    for peer, code, handlers in ((Came(), 106, None), (Recorder(), 105, None), (Came(), 105, {})):
        with pytest.raises(Refused, match="signature by access key 'key' is not valid"):
            look_up(peer, code, **({} if handlers is None else {"handlers": handlers}))


LOOKUP = RequestCode.GET_ROUTEINFO_BY_TOPIC
SIGNED = {"topic": "plant", "AccessKey": "key", "Signature": "abc="}


class Came:
    """A peer that connected to some port."""

    def __init__(self, place: tuple[str, int] | None) -> None:
        self.reached_at = place


@pytest.mark.parametrize(
    ("place", "advertised_host", "address"),
    [
        (("10.0.0.1", 9876), "", "10.0.0.1:9876"),
        (("172.17.0.2", 9876), "mq.example", "mq.example:9876"),
        (("::1", 9874), "", "[::1]:9874"),
    ],
)
def test_it_leads_to_the_port_that_was_asked(place: tuple[str, int], advertised_host: str, address: str) -> None:
    reply = refusal_route(Came(place), Command(LOOKUP, fields=dict(SIGNED)), advertised_host)
    assert reply.code == 0
    route = decode_body(reply.body, TopicRoute)
    assert [broker.broker_addrs for broker in route.broker_datas] == [{0: address}]
    assert [(queues.broker_name, queues.perm) for queues in route.queue_datas] == [("access-refused", 6)]


def test_nothing_of_the_request_is_in_the_answer() -> None:
    def body(**fields: str) -> bytes:
        return refusal_route(Came(("10.0.0.1", 9876)), Command(LOOKUP, fields=SIGNED | fields)).body

    assert body() == body(topic="other") == body(topic="") == body(topic="TBW102") == body(AccessKey="nobody")
    assert b"plant" not in body()


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_BROKER_CLUSTER_INFO, SIGNED),
        (LOOKUP, {"topic": "plant"}),
        (LOOKUP, SIGNED | {"AccessKey": ""}),
        (LOOKUP, SIGNED | {"Signature": "2:abc="}),
    ],
    ids=["another-request", "no-key", "empty-key", "our-own-client"],
)
def test_others_hear_the_refusal(code: int, fields: dict[str, str]) -> None:
    assert refusal_route(Came(("10.0.0.1", 9876)), Command(code, fields=fields)) is None


def test_so_does_who_came_without_a_port() -> None:
    assert refusal_route(Came(None), Command(LOOKUP, fields=dict(SIGNED))) is None
    assert refusal_route(object(), Command(LOOKUP, fields=dict(SIGNED))) is None
