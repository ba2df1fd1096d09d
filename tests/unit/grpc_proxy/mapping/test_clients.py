"""What clients report about themselves, what they are told, and which codes refusals have."""

from __future__ import annotations

from collections import Counter

import pytest

from grpc_proxy.mapping.metadata import caller_of, is_loopback, shown_by
from grpc_proxy.mapping.routes import RoutedTopic, TopicPlaces, assignment, check_endpoints, route
from grpc_proxy.mapping.settings import answered, check, consumer_heartbeat, expression_of, producer_heartbeat
from grpc_proxy.mapping.statuses import CODES, CallRejected, overall, reason_name, status, status_of
from grpc_proxy.mapping.values import ms_of
from grpc_proxy.stubs import definition as d
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RESPONSE_NAMES
from remoting.transport.failures import ConnectionLost, RequestTimeout

Code, Type = d.Code, d.MessageType
SIGNED = b"MQv2-HMAC-SHA1 Credential=ann/region, SignedHeaders=x-mq-date-time, Signature=0aB1"


def test_a_caller_is_read_from_the_metadata():
    given = {b"x-mq-client-id": b"c1", b"x-mq-language": b"java", b"x-mq-date-time": b"now", b"authorization": SIGNED}
    found = caller_of(given, "10.0.0.7")
    assert (found.client_id, found.language, found.host, found.loopback) == ("c1", "JAVA", "10.0.0.7", False)
    assert (found.key, found.date_time, found.signature) == ("ann", "now", "0aB1")
    empty = b"MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=5d"
    anonymous = caller_of({b"x-mq-client-id": b"c1", b"authorization": empty}, "::1")
    assert (anonymous.key, anonymous.signature, anonymous.language, anonymous.loopback) == ("", "", "OTHER", True)


def test_all_that_makes_a_caller_tells_it_from_others():
    """Calls with the same `shown_by` are taken for the same caller."""
    given = {b"x-mq-client-id": b"c1", b"x-mq-language": b"java", b"x-mq-date-time": b"now", b"authorization": SIGNED}
    shown = shown_by(given, "10.0.0.7")
    assert shown == shown_by({**given, b"grpc-timeout": b"1S", b"x-mq-request-id": b"7"}, "10.0.0.7")
    assert all(shown != shown_by({**given, name: b"other"}, "10.0.0.7") for name in given)
    assert shown != shown_by(given, "127.0.0.1")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, Code.CLIENT_ID_REQUIRED),
        ({b"x-mq-client-id": b"a\tb"}, Code.CLIENT_ID_REQUIRED),
        ({b"x-mq-client-id": b"a" * 513}, Code.CLIENT_ID_REQUIRED),
        ({b"x-mq-client-id": b"c", b"authorization": b"Basic abc"}, Code.UNAUTHORIZED),
        ({b"x-mq-client-id": b"c", b"authorization": b"MQv2-HMAC-SHA1 Credential=a"}, Code.UNAUTHORIZED),
    ],
)
def test_a_caller_that_cannot_be_read_is_rejected(fields, code):
    with pytest.raises(CallRejected) as caught:
        caller_of(fields, "127.0.0.1")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("::ffff:127.0.0.2", True), ("fe80::1%eth0", False), ("unix", True),
     ("x", False)],
)  # fmt: skip
def test_a_loopback_address_is_known(host, local):
    assert is_loopback(host) is local


def test_settings_are_answered_with_the_servers_part():
    limits = {"body_bytes_max": 9, "batch_max": 5, "long_poll_ms_max": 1_500, "fifo": True, "deliveries_max": 4}
    producer = d.Settings(client_type=d.ClientType.PRODUCER, publishing={"topics": [{"name": "orders"}]})
    found = answered(producer, **limits)
    assert (found.publishing.max_body_size, found.publishing.validate_message_type) == (9, True)
    assert found.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    consumer = d.Settings(client_type=d.ClientType.PUSH_CONSUMER, subscription={"group": {"name": "g"}})
    found = answered(consumer, **limits)
    assert (found.subscription.receive_batch_size, ms_of(found.subscription.long_polling_timeout)) == (5, 1_500)
    assert len(found.backoff_policy.customized_backoff.next) == 18
    assert (found.subscription.group.name, found.subscription.fifo, found.backoff_policy.max_attempts) == ("g", True, 4)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (d.Settings(), Code.UNRECOGNIZED_CLIENT_TYPE),
        (d.Settings(client_type=d.ClientType.LITE_PUSH_CONSUMER), Code.ILLEGAL_CONSUMER_GROUP),
        (d.Settings(client_type=d.ClientType.SIMPLE_CONSUMER), Code.ILLEGAL_CONSUMER_GROUP),
        (
            d.Settings(client_type=d.ClientType.PRODUCER, publishing={"topics": [{"name": "t"}] * 1_001}),
            Code.BAD_REQUEST,
        ),
    ],
)
def test_settings_that_fit_no_client_are_rejected(settings, code):
    with pytest.raises(CallRejected) as caught:
        check(settings)
    assert caught.value.code == code


def test_heartbeats_name_groups_and_subscriptions():
    assert producer_heartbeat("c", ["orders"])["producerDataSet"] == [{"groupName": "orders"}]
    entries = [{"topic": {"name": "orders"}, "expression": {"type": d.FilterType.SQL, "expression": "a > 1"}}]
    consumer = consumer_heartbeat("c", "g", d.Subscription(subscriptions=entries))["consumerDataSet"][0]
    assert (consumer["groupName"], consumer["messageModel"]) == ("g", "CLUSTERING")
    (subscription,) = consumer["subscriptionDataSet"]
    assert (subscription["topic"], subscription["expressionType"], subscription["subString"]) == (
        "orders", "SQL92", "a > 1",
    )  # fmt: skip


def test_filters():
    assert expression_of(d.FilterExpression()) == ("TAG", "*")
    assert expression_of(d.FilterExpression(type=d.FilterType.SQL, expression="a")) == ("SQL92", "a")
    with pytest.raises(CallRejected):
        expression_of(d.FilterExpression(type=7))


TOPIC = d.Resource(name="orders")
ENDPOINTS = d.Endpoints(scheme=d.AddressScheme.DOMAIN_NAME, addresses=[d.Address(host="mq.example", port=8081)])


def test_a_route_has_the_queues_with_their_permissions():
    queues = route(TopicPlaces("orders", (("broker-a", RoutedTopic("orders", 2, 3, 6)),)), TOPIC, ENDPOINTS)
    permission = d.Permission
    assert [queue.permission for queue in queues] == [permission.READ_WRITE, permission.READ_WRITE, permission.WRITE]
    assert {queue.broker.name for queue in queues} == {"broker-a"}
    assert queues[0].broker.endpoints == ENDPOINTS
    assert list(queues[0].accept_message_types) == [Type.NORMAL, Type.FIFO, Type.DELAY, Type.TRANSACTION]
    fifo = RoutedTopic("orders", attributes={"message.type": "FIFO"})
    assert fifo.types == [Type.FIFO]


def test_a_push_consumer_is_assigned_each_broker_group():
    """At once, or queue by queue where order is kept; not where nothing may be read."""
    groups = (
        ("a", RoutedTopic("orders", 2, 2)),
        ("b", RoutedTopic("orders", 1, 1)),
        ("c", RoutedTopic("orders", perm=2)),
    )
    places = TopicPlaces("orders", groups)
    assert assigned(places, fifo=False) == [("a", -1), ("b", -1)]
    assert assigned(places, fifo=True) == [("a", 0), ("a", 1), ("b", 0)]
    assert places.readable() == ["a", "b"]


def assigned(places: TopicPlaces, *, fifo: bool) -> list[tuple[str, int]]:
    return [(queue.broker.name, queue.id) for queue in assignment(places, TOPIC, ENDPOINTS, fifo=fifo)]


def test_a_message_group_has_one_place_among_the_queues_of_all_broker_groups():
    both = ("a", RoutedTopic("orders", 2, 2)), ("b", RoutedTopic("orders", 6, 6))
    places = TopicPlaces("orders", both)
    found = Counter(places.queue_of(f"group {number}", Type.FIFO) for number in range(4_000))
    assert set(found) == {("a", 0), ("a", 1), *(("b", index) for index in range(6))}
    assert min(found.values()) > 400, "evenly"
    assert places.queue_of("g", Type.FIFO) == TopicPlaces("orders", both).queue_of("g", Type.FIFO)
    for unsure in (TopicPlaces("orders", both[:1], unknown=("b",)), TopicPlaces("orders", (), unknown=("b",))):
        with pytest.raises(CallRejected) as caught:
            unsure.queue_of("g", Type.FIFO)
        assert caught.value.code in (Code.HA_NOT_AVAILABLE, Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)


def test_a_lite_topic_has_one_home():
    attributes = {"message.type": "LITE"}
    lite = [(name, RoutedTopic("agents", 2, 2, attributes=attributes)) for name in ("a", "b")]
    places = TopicPlaces("agents", tuple(lite))
    homes = Counter(places.home_of(f"s-{number}") for number in range(1_000))
    assert min(homes["a"], homes["b"]) > 400
    assert places.homes_of(["s-1", "s-2", "s-3", "s-4"]) <= {"a", "b"}
    assert TopicPlaces("orders", (("a", RoutedTopic("orders")),)).homes_of(["s-1"]) == set()


def test_messages_go_where_their_type_is_taken_and_written():
    topics = RoutedTopic("t", 2, 2), RoutedTopic("t", 2, 3, 4), RoutedTopic("t", attributes={"message.type": "FIFO"})
    places = TopicPlaces("t", tuple(zip("abc", topics, strict=True)))
    assert places.writable(Type.NORMAL) == [("a", 2)]
    assert places.writable(Type.FIFO) == [("a", 2), ("c", 1)]
    closed = TopicPlaces("t", (("b", topics[1]),))
    assert closed.writable(Type.NORMAL) == [("b", 1)], "it refuses by itself"
    with pytest.raises(CallRejected) as caught:
        places.writable(Type.LITE)
    assert caught.value.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.mark.parametrize("addresses", [[], [{"host": "", "port": 1}], [{"host": "a", "port": 0}]])
def test_a_client_has_to_say_where_it_reaches_the_proxy(addresses):
    with pytest.raises(CallRejected) as caught:
        check_endpoints(d.Endpoints(addresses=addresses))
    assert caught.value.code == Code.ILLEGAL_ACCESS_POINT


def test_refusals_have_the_codes_of_the_table():
    assert set(CODES) < set(RESPONSE_NAMES)
    assert status_of(Refused(17, "no topic")) == status(Code.TOPIC_NOT_FOUND, "no topic")
    assert status_of(Refused(1, "broken")).code == Code.INTERNAL_SERVER_ERROR
    assert status_of(CallRejected(Code.ILLEGAL_TOPIC, "t")) == status(Code.ILLEGAL_TOPIC, "t")
    assert status_of(RequestTimeout(1, "b", 5)).code == Code.PROXY_TIMEOUT
    assert status_of(ConnectionLost("gone")).code == Code.HA_NOT_AVAILABLE
    assert overall([status(), status()]).code == Code.OK
    assert overall([status(), status(Code.FORBIDDEN)]).code == Code.MULTIPLE_RESULTS
    assert reason_name(Code.INVALID_RECEIPT_HANDLE) == "invalid_receipt_handle"
