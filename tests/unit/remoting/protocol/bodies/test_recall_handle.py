"""Handles of waiting messages: what RocketMQ's clients read of them, and whatever else may arrive."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies.recall_handle import HANDLE_BYTES_MAX, RecallHandle, decode_handle, encode_handle
from remoting.protocol.errors import RemoteViolation

WORD = st.text(st.characters(codec="utf-8", exclude_characters=" ", exclude_categories=["Cs"]), min_size=1)


def made(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def test_the_form_is_rocketmqs_with_the_offset_at_its_end() -> None:
    handle = RecallHandle("orders", "broker-a", 1_700_000_000_000, "7F00000100002A", 12)
    assert encode_handle(handle) == made("v1 orders broker-a 1700000000000 7F00000100002A 12")
    assert decode_handle(made("v1 orders broker-a 1700000000000 7F00000100002A")) == RecallHandle(
        "orders", "broker-a", 1_700_000_000_000, "7F00000100002A"
    )


def test_padding_may_be_missing() -> None:
    handle = RecallHandle("orders", "b", 5, "key", 1)
    assert decode_handle(encode_handle(handle).rstrip("=")) == handle


@given(WORD, WORD, st.integers(0, 10**17), WORD, st.integers(0, 10**17))
def test_what_is_encoded_is_decoded(topic: str, broker: str, due_ms: int, key: str, offset: int) -> None:
    handle = RecallHandle(topic, broker, due_ms, key, offset)
    if len(encode_handle(handle)) <= HANDLE_BYTES_MAX:
        assert decode_handle(encode_handle(handle)) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "é",
        "A",
        made("v2 orders broker-a 5 key"),
        made("v1 orders broker-a 5"),
        made("v1 orders broker-a soon key"),
        made("v1 orders broker-a -5 key"),
        made("v1 orders broker-a ٣ key"),
        made("v1 orders broker-a " + "9" * 19 + " key"),
        base64.urlsafe_b64encode(b"v1 \xff b 5 key").decode(),
        made("v1 orders broker-a 5 " + "k" * HANDLE_BYTES_MAX),
    ],
)
def test_anything_else_is_invalid(text: str) -> None:
    with pytest.raises(RemoteViolation, match="recall handle is invalid"):
        decode_handle(text)


@given(st.text())
def test_whatever_arrives_is_a_handle_or_invalid(text: str) -> None:
    with contextlib.suppress(RemoteViolation):
        decode_handle(text)
