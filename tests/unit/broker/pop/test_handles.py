"""Receipt handles, offset information and batches as RocketMQ's clients write and read them."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.pop.handles import (
    BATCH_ACKS_MAX,
    BatchAck,
    Handle,
    offset_info,
    original_topic,
    parse_batch,
    parse_handle,
    retry_topic,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.names import valid_rocketmq_topic

ACK = {"c": "g", "t": "orders", "r": "0", "so": 10, "q": 3, "rq": 0, "pt": 1_000, "it": 500, "b": "BQ=="}


def test_a_handle_as_the_java_client_makes_it() -> None:
    assert parse_handle("10 1000 60000 0 0 broker-a 3 12") == Handle(1_000, 60_000, "broker-a", 3)
    assert parse_handle("10 1000 60000 0 2 broker-a 0 12 4096") == Handle(1_000, 60_000, "broker-a", 0)


@pytest.mark.parametrize(
    "text", ["", "x", "1 2 3", "10 1000 60000 0 0 broker-a x 12", "10 -1 60000 0 0 b 3 12", f"1 {2**62} 1 0 0 b 3 12"]
)
def test_a_malformed_handle_is_refused(text) -> None:
    with pytest.raises(Refused) as refused:
        parse_handle(text)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


@given(st.text())
def test_any_text_is_a_handle_or_refused(text) -> None:
    with contextlib.suppress(Refused):
        parse_handle(text)


def test_offsets_of_an_answer() -> None:
    given_out = [("orders", 3, [10, 12]), (retry_topic("g", "orders"), 0, [7])]
    assert offset_info(given_out) == ("0 3 10;2 0 7", "0 3 10,12;2 0 7")


def test_the_retry_topic_names_group_and_topic() -> None:
    assert retry_topic("g", "orders") == "%RETRY%g+orders"
    assert original_topic("g", "%RETRY%g+orders") == "orders"
    assert original_topic("g", "%RETRY%other+orders") == "%RETRY%other+orders"
    assert valid_rocketmq_topic("%RETRY%g+orders")
    for wrong in ("a+b", "%RETRY%+orders", "%RETRY%g+", "%RETRY%g+a+b", "%DLQ%g+orders"):
        assert not valid_rocketmq_topic(wrong)


def test_a_batch_in_short_and_long_names() -> None:
    long = {
        "consumerGroup": "g", "topic": "orders", "retry": "2", "startOffset": 0, "queueId": 0, "popTime": 1,
        "invisibleTime": 2, "bitSet": base64.b64encode(b"\x01\x80").decode(),
    }  # fmt: skip
    assert parse_batch({"acks": [ACK, long]}) == [
        BatchAck("g", "orders", 3, (10, 12), (1_000, 500)),
        BatchAck("g", "%RETRY%g+orders", 0, (0, 15), (1, 2)),
    ]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"acks": 3},
        {"acks": [3]},
        {"acks": [{}]},
        {"acks": [ACK | {"so": "x"}]},
        {"acks": [ACK | {"q": -1}]},
        {"acks": [ACK | {"b": "*"}]},
        {"acks": [ACK | {"b": base64.b64encode(bytes(BATCH_ACKS_MAX)).decode()}]},
        {"acks": [ACK | {"b": base64.b64encode(b"\xff" * 300).decode()}] * 2},
    ],
)
def test_a_malformed_batch_is_refused(body) -> None:
    with pytest.raises(Refused) as refused:
        parse_batch(body)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER
