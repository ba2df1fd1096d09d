"""The rights that each request to a controller or name server needs, checked before its handler runs.

The action comes from the table of rights, the resource from the request: the topic of a lookup, the broker name that a
broker acts for. A broker that names an address which the routes hold under another name needs the right to that name
too, because its request moves the other's route. An election for another broker needs the
administrator's right.
Invariant: a code without a right is not served. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from controller.name_server.state import TEMPLATE_TOPIC
from remoting.access.rights import ADMIN, CONSUME, INSPECT, LOCATE, PUBLISH, REGISTER, RIGHTS, of_topic, with_rights
from remoting.protocol.bodies.controller_body import NO_BROKER, ElectMasterHeader, from_fields
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.transport.contracts import Handler, Peer

Question = tuple[str, str]
"""(action, resource)"""
Owner = Callable[[str, str], tuple[str, int] | None]
"""(cluster, address) -> the broker name and id that the routes hold it under."""


def guarded(table: Mapping[int, Handler], authorizer: Authorizer, owner: Owner) -> dict[int, Handler]:
    """The handlers, each guarded by its right. Raises LightMQError for a code without one."""
    return {code: _guard(handler, authorizer, owner) for code, handler in with_rights(table).items()}


def _guard(handler: Handler, authorizer: Authorizer, owner: Owner) -> Handler:
    def handle(peer: Peer, command: Command) -> Command | None:
        if not authorizer.open:
            for action, resource in questions(command, owner):
                authorizer.authorize(peer, command, action, resource)
        return handler(peer, command)

    return handle


def judge_unserved(authorizer: Authorizer, peer: Peer, command: Command) -> None:
    """Check a request for brokers that was sent here, as happens after a refused lookup of a route.

    Raises:
        Refused: the peer lacks the right that a broker would require for the topic.
    """
    right, topic = RIGHTS.get(command.code), _topic_of(command)
    if right is not None and topic and right.action in (PUBLISH, CONSUME):
        authorizer.authorize(peer, command, right.action, of_topic(topic) if right.action == CONSUME else topic)


def _topic_of(command: Command) -> str:
    """The topic a request names; RocketMQ's short form of a send calls it `b`."""
    short = command.code in (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)
    return command.fields.get("b" if short else "topic", "")


def questions(command: Command, owner: Owner) -> Iterable[Question]:
    """What must be allowed for this request."""
    action, fields = RIGHTS[command.code].action, command.fields
    if action == REGISTER:
        yield from _as_broker(command, owner)
    elif action == LOCATE:
        topic = fields.get("topic", "") if command.code == Code.GET_ROUTEINFO_BY_TOPIC else ""
        yield LOCATE, "" if topic == TEMPLATE_TOPIC else topic
    elif action == INSPECT:
        yield INSPECT, fields.get("brokerName", "")
    else:
        yield action, f"request {command.code}"


def _as_broker(command: Command, owner: Owner) -> Iterable[Question]:
    fields = command.fields
    name = fields.get("brokerName", "")
    if command.code == Code.CONTROLLER_ELECT_MASTER:
        election = from_fields(fields, ElectMasterHeader)
        if election.designate_elect or election.broker_id == NO_BROKER:
            yield ADMIN, f"request {command.code}"
            return
    yield REGISTER, name
    holder = owner(fields.get("clusterName", ""), fields.get("brokerAddr", ""))
    if holder is not None and holder[0] != name:
        yield REGISTER, holder[0]
