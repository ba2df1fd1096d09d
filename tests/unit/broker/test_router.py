"""The table is complete, and what the store refuses becomes an answer."""

from __future__ import annotations

import errno

from broker.router import handlers
from remoting.protocol.bodies.session_body import SessionOpen, encode
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command


async def test_every_private_code_a_broker_answers_has_a_handler(running) -> None:
    table = handlers(running.broker)
    others_own = {RequestCode.NOTIFY, RequestCode.SESSION_FENCED, RequestCode.SHARED_GIVEN, RequestCode.WILL_DUE}
    others_own |= {RequestCode.FORGET_GROUP, RequestCode.MQTT_GROUP, RequestCode.MOVE_MQTT}  # answered by controllers
    others_own |= {RequestCode.SUBSCRIBE_ROUTES, RequestCode.ROUTES_CHANGED}  # between clients and controllers
    others_own |= {RequestCode.AGREED_USERS, RequestCode.CHANGE_USERS}  # controllers answer brokers
    others_own |= {RequestCode.LIST_CONTROLLERS, RequestCode.CHANGE_CONTROLLERS}
    others_own |= {RequestCode.SIGN_CHALLENGE}  # answered by the server itself, before the broker
    others_own |= {RequestCode.PROXY_ASKED}
    others_own |= {RequestCode.ELECTION, RequestCode.AGREE_LOCKS}  # answered by members of a group, whatever their role
    private = {value for value in vars(RequestCode).values() if isinstance(value, int) and 9_000 < value < 9_200}
    assert private - others_own <= set(table)
    answered = [code for feature in (*running.broker.features, running.broker.status) for code in feature.handlers()]
    assert sorted(answered) == sorted(table)


async def test_a_full_disk_is_an_answer_in_every_handler(running) -> None:
    running.faults.arm("log.write", OSError(errno.ENOSPC, "full"), times=None)
    connection = running.connect()
    opening = Command(RequestCode.SESSION_OPEN, body=encode(SessionOpen("c", False, None, 5)))
    topic = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields={"topic": "t"})
    for request in (opening, topic):
        assert (await connection.request(request)).code == ResponseCode.SERVICE_NOT_AVAILABLE
