"""Sessions of MQTT clients as a proxy opens them, for the tests of this room; what they ask for is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.light_queues.feature import LightQueueFeature
from remoting.client.connection import Connection
from remoting.protocol.bodies.session_body import (
    FilterRequest,
    SessionOpen,
    SessionOpened,
    Subscribed,
    SubscribeRequest,
    SubscribeResult,
    UnsubscribeRequest,
    decode,
    encode,
)
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command

if TYPE_CHECKING:
    from tests.unit.broker.conftest import BrokerBench


@dataclass
class Opened:
    """A session, and the connection that holds it."""

    connection: Connection
    client_id: str
    epoch: int


def feature(running: BrokerBench) -> LightQueueFeature:
    return next(one for one in running.broker.features if isinstance(one, LightQueueFeature))


async def open_session(running: BrokerBench, client_id: str, user: str, expiry_s: int = 0) -> Opened:
    connection = running.connect()
    body = encode(SessionOpen(client_id, False, user, expiry_s))
    reply = await connection.request(Command(Code.SESSION_OPEN, body=body))
    assert reply.code == 0, reply.remark
    return Opened(connection, client_id, decode(SessionOpened, reply.body).epoch)


async def subscribe(running: BrokerBench, session: Opened, topic_filter: str) -> SubscribeResult:
    request = SubscribeRequest(session.client_id, session.epoch, False, [FilterRequest(topic_filter, 1)])
    reply = await session.connection.request(Command(Code.SUBSCRIBE, body=encode(request)))
    assert reply.code == 0, reply.remark
    await running.settle()
    return decode(Subscribed, reply.body).results[0]


async def unsubscribe(session: Opened, topic_filter: str) -> None:
    request = UnsubscribeRequest(session.client_id, session.epoch, False, [topic_filter])
    reply = await session.connection.request(Command(Code.UNSUBSCRIBE, body=encode(request)))
    assert reply.code == 0, reply.remark
