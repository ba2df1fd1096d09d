"""Requests and answers between MQTT 5 clients and RocketMQ clients, over the sockets of a real server process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from remoting.client.connection import Connection, dial
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.properties import encode_properties
from remoting.protocol.records.stored_message import StoredMessage, iter_stored
from tests.processes.rig import DEADLINE_S, Process, Server

pytestmark = pytest.mark.processes

SEND = {"a": "services", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "j": "0"}
CLIENT_ID = "10.0.0.1@7#service"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A started server that is killed afterwards."""
    started = Server(tmp_path_factory.mktemp("requests") / "data")
    started.start()
    yield started
    started.kill_if_running()


@pytest.fixture(scope="module")
def other(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A second proxy of the same broker."""
    broker = f"proxy.broker=127.0.0.1:{server.ports['remoting']}"
    started = Process(tmp_path_factory.mktemp("other") / "proxy", ["proxy", "--set", broker], "mqtt")
    started.start()
    yield started
    started.kill_if_running()


class Client5:
    """A paho client of MQTT 5 whose callbacks arrive on the test's loop."""

    def __init__(self, server: Server, client_id: str) -> None:
        loop = asyncio.get_running_loop()
        self.messages: asyncio.Queue[mqtt.MQTTMessage] = asyncio.Queue()
        self.subscribed: asyncio.Queue[Any] = asyncio.Queue()
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5)
        self.client.on_message = lambda _c, _d, message: loop.call_soon_threadsafe(self.messages.put_nowait, message)
        self.client.on_subscribe = lambda _c, _d, _mid, codes, _p: loop.call_soon_threadsafe(
            self.subscribed.put_nowait, codes
        )
        self.client.connect("127.0.0.1", server.port, 60)
        self.client.loop_start()

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe with QoS 1 and wait for the SUBACK."""
        self.client.subscribe(topic_filter, 1)
        await asyncio.wait_for(self.subscribed.get(), DEADLINE_S)

    async def publish(self, topic: str, payload: bytes, **values: Any) -> None:
        """Publish with QoS 1 and properties, by paho's names, and wait for the PUBACK."""
        properties = Properties(PacketTypes.PUBLISH)
        for name, value in values.items():
            setattr(properties, name, value)
        sent = self.client.publish(topic, payload, 1, properties=properties)
        await asyncio.to_thread(sent.wait_for_publish, DEADLINE_S)

    async def message(self) -> mqtt.MQTTMessage:
        """The next message."""
        return await asyncio.wait_for(self.messages.get(), DEADLINE_S)

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


async def connected(server: Server) -> Connection:
    """A RocketMQ client with a heartbeat."""
    connection = await dial(f"127.0.0.1:{server.ports['remoting']}")
    body = {"clientID": CLIENT_ID, "producerDataSet": [{"groupName": "services"}]}
    reply = await connection.request(Command(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))
    assert reply.code == ResponseCode.SUCCESS
    return connection


async def pulled(connection: Connection, queue: int) -> StoredMessage:
    """The first message of a queue of `plant`; waits for it."""
    fields = {
        "consumerGroup": "services", "topic": "plant", "queueId": str(queue), "queueOffset": "0", "maxMsgNums": "1",
        "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "10000", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    reply = await connection.request(Command(RequestCode.PULL_MESSAGE, fields=fields), timeout_ms=20_000)
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return next(iter_stored(reply.body))


def text(properties: dict[bytes, bytes]) -> str:
    return encode_properties(properties.items()).decode()


async def test_a_rocketmq_service_answers_an_mqtt_request(server: Server) -> None:
    service = await connected(server)
    await service.request(Command(RequestCode.SEND_MESSAGE_V2, fields=SEND | {"b": "other"}, body=b"x"))
    asker = Client5(server, "asker")
    try:
        await asker.subscribe("answers/asker")
        await asker.publish("plant/7/ask", b"how warm?", ResponseTopic="answers/asker", CorrelationData=b"\x00\x07")
        topics = [asyncio.ensure_future(pulled(service, queue)) for queue in range(4)]
        done, waiting = await asyncio.wait(topics, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        request = done.pop().result()
        shown = dict(request.properties)
        answer = {key: shown[key] for key in (b"REPLY_TO_CLIENT", b"CORRELATION_ID", b"TTL")} | {b"MSG_TYPE": b"reply"}
        fields = SEND | {"b": "DefaultCluster_REPLY_TOPIC", "i": text(answer)}
        reply = await service.request(Command(RequestCode.SEND_REPLY_MESSAGE_V2, fields=fields, body=b"21.5"))
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        message = await asker.message()
        assert (message.topic, message.payload) == ("answers/asker", b"21.5")
        assert message.properties.CorrelationData == b"\x00\x07"
    finally:
        asker.close()
        await service.close()


async def test_an_mqtt_service_answers_a_rocketmq_request(server: Server) -> None:
    asker, service = await connected(server), Client5(server, "service")
    pushed: asyncio.Queue[Command] = asyncio.Queue()
    asker.on_push(pushed.put_nowait)
    try:
        await service.subscribe("rooms/+/ask")
        request = {
            b"originMqttTopic": b"rooms/7/ask", b"REPLY_TO_CLIENT": CLIENT_ID.encode(), b"CORRELATION_ID": b"c-7",
            b"TTL": b"3000", b"MSG_TYPE": b"request",
        }  # fmt: skip
        sent = await asker.request(
            Command(RequestCode.SEND_MESSAGE_V2, fields=SEND | {"b": "rooms", "i": text(request)}, body=b"how warm?")
        )
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        message = await service.message()
        assert (message.topic, message.payload) == ("rooms/7/ask", b"how warm?")
        found = message.properties
        await service.publish(found.ResponseTopic, b"21.5", CorrelationData=found.CorrelationData)
        push = await asyncio.wait_for(pushed.get(), DEADLINE_S)
        assert (push.code, push.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"21.5")
        assert "CORRELATION_ID\x01c-7" in push.fields["properties"]
    finally:
        service.close()
        await asker.close()


async def test_askers_and_services_are_clients_of_different_proxies(server: Server, other: Process) -> None:
    """Two MQTT clients ask one service elsewhere, and a RocketMQ client asks it too; each gets its own answer."""
    rocketmq, service = await connected(server), Client5(other, "service-elsewhere")
    pushed: asyncio.Queue[Command] = asyncio.Queue()
    rocketmq.on_push(pushed.put_nowait)
    askers = [Client5(server, "asker-1"), Client5(server, "asker-2")]
    try:
        await service.subscribe("shops/+/ask")
        for number, asker in enumerate(askers):
            await asker.subscribe(f"answers/{number}")
            await asker.publish("shops/7/ask", b"%d" % number, ResponseTopic=f"answers/{number}", CorrelationData=b"c")
        request = {b"originMqttTopic": b"shops/7/ask", b"REPLY_TO_CLIENT": CLIENT_ID.encode(), b"CORRELATION_ID": b"c"}
        fields = SEND | {"b": "shops", "i": text(request)}
        sent = await rocketmq.request(Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"2"))
        assert sent.code == ResponseCode.SUCCESS, sent.remark
        for _ in range(3):
            asked = await service.message()
            found = asked.properties
            await service.publish(found.ResponseTopic, b"re:" + asked.payload, CorrelationData=found.CorrelationData)
        assert [(await asker.message()).payload for asker in askers] == [b"re:0", b"re:1"]
        assert (await asyncio.wait_for(pushed.get(), DEADLINE_S)).body == b"re:2"
        assert all(each.messages.empty() for each in askers)
        assert pushed.empty()
    finally:
        for client in (service, *askers):
            client.close()
        await rocketmq.close()


async def test_an_answer_above_the_limit_is_refused_and_the_largest_is_delivered(server: Server) -> None:
    service, asker = await connected(server), Client5(server, "asker-of-much")
    limit = 4 * 1024 * 1024
    try:
        await asker.subscribe("answers/much")
        answer = {b"REPLY_TO_CLIENT": b"mqtt:answers/much", b"CORRELATION_ID": b"-", b"MSG_TYPE": b"reply"}
        fields = SEND | {"b": "DefaultCluster_REPLY_TOPIC", "i": text(answer)}
        for size, code in ((limit + 1, ResponseCode.MESSAGE_ILLEGAL), (limit, ResponseCode.SUCCESS)):
            command = Command(RequestCode.SEND_REPLY_MESSAGE_V2, fields=fields, body=bytes(size))
            reply = await service.request(command, timeout_ms=20_000)
            assert reply.code == code, reply.remark
        assert len((await asker.message()).payload) == limit
        assert asker.messages.empty()
    finally:
        asker.close()
        await service.close()
