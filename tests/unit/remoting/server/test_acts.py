"""An act is reported once, whenever and however it ends."""

from __future__ import annotations

from typing import Any

import pytest

from remoting.protocol.errors import NotOffered, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command
from remoting.server.acts import ROAD_FIELD, described, target_of, witnessed
from remoting.server.authorizer import ON_BEHALF_FIELD, ON_BEHALF_HOST_FIELD, TRUSTED_ATTRIBUTE, Authorizer
from remoting.transport.calls import answer


class FakePeer:
    """Keeps what it is sent."""

    address, loopback, writable = "10.0.0.7:4711", False, True

    def __init__(self) -> None:
        self.attributes: dict[str, object] = {}
        self.sent: list[Command] = []
        self.closed: list[str] = []
        self.refusals = 0

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def on_close(self, callback) -> None:
        callback("later")

    def refused(self) -> None:
        self.refusals += 1


class Reports:
    """A reporter that answers as told."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []

    def __call__(self, peer: Any, command: Command, reply: Command | None, outcome: str) -> None:
        self.outcomes.append(outcome)
        if reply is not None:
            peer.send(reply)


def carried_out(handler, command: Command | None = None) -> tuple[list[str], FakePeer]:
    reports, peer = Reports(), FakePeer()
    answer(witnessed(handler, reports), peer, command or Command(RequestCode.MQTT_KICK, opaque=5))
    return reports.outcomes, peer


def test_an_answer_at_once_and_one_later() -> None:
    outcomes, peer = carried_out(lambda _peer, command: command.reply())
    assert (outcomes, [one.opaque for one in peer.sent]) == (["done"], [5])
    outcomes, peer = carried_out(lambda peer, command: peer.send(command.reply(1, "no room")))
    assert (outcomes, peer.sent[0].remark) == (["refused: 1 no room"], "no room")


def test_a_second_answer_and_pushes_are_only_sent() -> None:
    def handler(peer: Any, command: Command) -> None:
        peer.send(Command(RequestCode.NOTIFY, opaque=5))
        peer.send(command.reply())
        peer.send(command.reply())
        peer.on_close(lambda reason: peer.close(reason))

    outcomes, peer = carried_out(handler)
    assert (outcomes, len(peer.sent), peer.closed) == (["done"], 3, ["later"])


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (Refused(16, "no right"), "refused: 16 no right", 16),
        (RemoteViolation("malformed"), "failed: malformed", 29),
        (ValueError("internal"), "failed: ValueError", 1),
        (NotOffered(3, "not here"), "refused: 3 not here", 3),
    ],
)
def test_failures_are_reported_and_answered_once(error: Exception, outcome: str, code: int) -> None:
    def handler(_peer: Any, _command: Command) -> None:
        raise error

    outcomes, peer = carried_out(handler)
    assert (outcomes, len(peer.sent), peer.refusals) == ([outcome], 1, int(code == 16))
    assert peer.sent[0].code == code


def test_one_way_acts_are_reported_without_an_answer() -> None:
    for handler in (lambda _peer, _command: None, lambda _peer, command: command.reply()):
        outcomes, peer = carried_out(handler, Command(RequestCode.MQTT_KICK, flag=FLAG_ONEWAY))
        assert (outcomes, peer.sent) == (["done"], [])


class Roles:
    """A policy that knows one administrator."""

    def __call__(self, identity: str, action: str, resource: str) -> bool:
        return True

    def role_for(self, identity: str, action: str, resource: str) -> str:
        return "admin" if identity == "anna" and action == "admin" else ""


def test_who_it_was_also_for_somebody_else() -> None:
    fields = {"AccessKey": "proxy-key", "client": "c", ROAD_FIELD: "console"}
    command, peer = Command(RequestCode.MQTT_KICK, fields=fields), FakePeer()
    record = described(Authorizer(Roles()), peer, command, "done", 9)
    assert (record.who, record.role, record.address, record.road) == ("proxy-key", "", "10.0.0.7", "console")
    assert (record.act, record.target, record.time_ms) == ("MQTT_KICK", "client=c", 9)
    peer.attributes[TRUSTED_ATTRIBUTE] = True
    command.fields |= {ON_BEHALF_FIELD: "anna", ON_BEHALF_HOST_FIELD: "192.0.2.1"}
    record = described(Authorizer(Roles()), peer, command, "done", 9)
    assert (record.who, record.role, record.address) == ("anna", "admin", "192.0.2.1")
    assert described(Authorizer(), peer, command, "done", 9).role == ""


def test_targets_are_short_and_without_values_of_settings() -> None:
    body = b"a=1\nb = hidden\nno line\n"
    assert target_of(Command(RequestCode.UPDATE_BROKER_CONFIG, body=body)) == "names=a,b"
    long = target_of(Command(RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": "x" * 999, "value": "hidden"}))
    assert long == "topic=" + "x" * 200
    odd = Command(RequestCode.MQTT_KICK, fields={ROAD_FIELD: "Not a road!"}, language="JAVA")
    assert described(Authorizer(), FakePeer(), odd, "done", 0).road == "remoting-java"
