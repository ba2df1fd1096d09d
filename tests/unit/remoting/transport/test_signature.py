"""Signatures as RocketMQ's clients make them."""

from __future__ import annotations

import base64
import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.commands import Command
from remoting.transport.signature import Signer, signature


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
