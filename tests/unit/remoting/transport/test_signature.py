"""Signatures as RocketMQ's clients make them."""

from __future__ import annotations

import base64
import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.frames.commands import Command
from remoting.transport.signature import Signer, bound_signature, signature


def test_content_is_the_values_in_order_of_names_then_the_body():
    fields = {"topic": "T", "AccessKey": "ak", "queueId": "3"}
    expected = base64.b64encode(hmac.new(b"secret", b"ak3Tbody", hashlib.sha1).digest()).decode()
    assert signature(fields, b"body", "secret") == expected
    assert signature({**fields, "Signature": "anything"}, b"body", "secret") == expected


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5)), st.binary(max_size=20), st.text(min_size=1))
def test_a_signed_command_verifies_and_a_changed_body_does_not(fields, body, secret):
    command = Command(1, fields=fields, body=body)
    Signer("ak", secret).sign(command)
    assert command.fields["AccessKey"] == "ak"
    assert command.fields["Signature"] == signature(command.fields, body, secret)
    assert command.fields["Signature"] != signature(command.fields, body + b"!", secret)


def test_signing_again_gives_the_same():
    command = Command(1, fields={"a": "1"})
    signer = Signer("ak", "s")
    signer.sign(command)
    first = command.fields["Signature"]
    signer.sign(command)
    assert command.fields["Signature"] == first


def answered(challenge: bytes, code: int = 0) -> Command:
    return Command(code, fields={"challenge": challenge.hex()})


def test_a_bound_signature_covers_code_fields_body_and_connection():
    """Also what the values' order alone would leave open: which field a character belongs to."""
    signer = Signer("ak", "s").bound(answered(bytes(16)))
    command = Command(10, fields={"topic": "ab", "x": "c", "empty": ""}, body=b"body")
    signer.sign(command)
    given = command.fields["Signature"]
    assert command.fields["SignatureCount"] == "1"

    def expected(code=10, body=b"body", challenge=bytes(16), count=1, **fields):
        changed = Command(code, fields={**command.fields, **fields}, body=body)
        return bound_signature(changed, challenge, count, "s")

    assert given == expected() == expected(empty="")
    for other in (
        expected(code=11), expected(body=b"bod"), expected(challenge=b"x" * 16), expected(count=2),
        expected(topic="a", x="bc"), expected(other="y"),
    ):  # fmt: skip
        assert other != given


def test_each_request_has_the_next_number():
    signer = Signer("ak", "s").bound(answered(bytes(16)))
    command = Command(1)
    signer.sign(command)
    first = command.fields["Signature"]
    signer.sign(command)
    assert command.fields["SignatureCount"] == "2"
    assert command.fields["Signature"] != first
    Signer("ak", "s").sign(command)
    assert "SignatureCount" not in command.fields


def test_a_server_without_challenges_gets_the_signatures_of_rocketmq():
    signer = Signer("ak", "s")
    for answer in (
        Command(3), answered(bytes(16), code=16), answered(bytes(8)), answered(bytes(100)),
        Command(0, fields={"challenge": "no hexadecimal digits, but long enough"}),
    ):  # fmt: skip
        assert signer.bound(answer) is None
