"""Who makes a topic: the user of a client's session, else the identity of the request. What happens without ids."""

from __future__ import annotations

from broker.light_queues.feature import CountedOpening
from broker.store.state.state_tables import QUEUE_IDS
from remoting.protocol.bodies.session_body import FilterRequest, SubscribeRequest, encode
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import encode_image, encode_mqtt_image
from remoting.protocol.records.record import FLAG_MQTT, MQTT_TOPIC_KEY
from tests.unit.broker.light_queues.sessions import feature, open_session


async def test_a_topic_counts_for_the_user_of_the_session_or_for_the_sender(running) -> None:
    await open_session(running, "of ann", "ann")
    images = b"".join([
        encode_mqtt_image(topic, b"x", 1, 1_000, client)
        for topic, client in ((b"plant/1", b"of ann"), (b"plant/2", b"unknown"), (b"plant/3", b"of ann"))
    ])  # fmt: skip
    assert (await running.connect().request(Command(Code.APPEND_MANY, body=images))).code == 0
    makers = feature(running).quota._makers
    assert (makers.count("ann"), makers.count("anonymous")) == (2, 1)
    running.store.queues.delete([running.store.queues.find(b"%LMQ%plant%2F1")])
    assert makers.count("ann") == 1


async def test_what_is_placed_without_a_request_counts_for_no_user(running) -> None:
    dispatcher = running.broker.subscriptions.dispatcher
    assert isinstance(dispatcher.opening, CountedOpening)
    running.broker.publishing.placement.placed(encode_mqtt_image(b"late/1", b"x", 1, 1_000, b"gone"))
    assert feature(running).quota._makers.count("anonymous") == 0
    assert running.store.queues.find(b"%LMQ%late%2F1") is not None


async def test_rows_of_spark_count_for_the_sender(running) -> None:
    """They name an MQTT topic and no client; what stands behind the topic may be anything."""
    await open_session(running, "of ann", "ann")

    def rows(parent: bytes) -> bytes:
        return b"".join(
            encode_image(
                flags=FLAG_MQTT | 1, born_ms=1_000, topic=parent, body=b"x",
                properties=[(MQTT_TOPIC_KEY, parent + topic), *more],
            )
            for topic, more in ((b"/1", []), (b"/2", [(b"unit", b"of ann")]))
        )  # fmt: skip

    fields = {"sink": "jobs", "batch": "0", "partition": "0", "attempt": "0"}
    peer = running.connect()
    assert (await peer.request(Command(Code.STAGE, fields=fields, body=rows(b"staged")))).code == 0
    assert (await peer.request(Command(Code.APPEND_MANY, body=rows(b"sent")))).code == 0
    makers = feature(running).quota._makers
    assert (makers.count("ann"), makers.count("anonymous")) == (0, 4)


async def test_when_all_queue_ids_are_used_up_what_is_new_is_refused_and_the_rest_goes_on(running) -> None:
    async def publish(topic: bytes) -> Command:
        image = encode_mqtt_image(topic, b"x", 1, 1_000, b"device")
        return await running.connect().request(Command(Code.APPEND_MANY, body=image))

    assert (await publish(b"plant/1")).code == 0
    running.store.state.queues.next_id = QUEUE_IDS  # as after four thousand million topics
    for topic in (b"plant/2", b"other/1"):
        refused = await publish(topic)
        assert refused.code == ResponseCode.FLOW_CONTROL
        assert "queue ids, which are never used again" in (refused.remark or "")
    assert (await publish(b"plant/1")).code == 0
    session = await open_session(running, "reader", "reader")
    request = SubscribeRequest(session.client_id, session.epoch, False, [FilterRequest("plant/+", 1)])
    reply = await session.connection.request(Command(Code.SUBSCRIBE, body=encode(request)))
    assert reply.code == ResponseCode.FLOW_CONTROL
    assert running.registry.values()["rocketmq_requests_refused_total{queue_ids}"] == 3
    assert running.registry.values()["rocketmq_queue_ids"] == QUEUE_IDS
