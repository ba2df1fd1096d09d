"""Nobody off this machine gets in without a key that is known and a signature that holds."""

from __future__ import annotations

import pytest

from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.commands import Command
from remoting.server.access import PROVED_ATTRIBUTE, Access, parse_access_keys
from remoting.transport.signature import Signer


class From:
    def __init__(self, loopback):
        self.loopback = loopback
        self.attributes = {}
        self.address = "127.0.0.1:1" if loopback else "10.1.2.3:4"


LOCAL, REMOTE = From(loopback=True), From(loopback=False)


def signed(access_key, secret, body=b"b"):
    command = Command(1, fields={"topic": "t"}, body=body)
    Signer(access_key, secret).sign(command)
    return command


def test_this_machine_needs_nothing():
    Access().check(LOCAL, Command(1))


def test_others_are_refused_by_default():
    with pytest.raises(Refused, match=r"10\.1\.2\.3:4 need AccessKey") as caught:
        Access().check(REMOTE, Command(1))
    assert caught.value.code == 16
    with pytest.raises(Refused):
        Access().check(REMOTE, signed("device", "s"))


def test_a_valid_signature_opens():
    Access({"device": "s"}).check(REMOTE, signed("device", "s"))


@pytest.mark.parametrize(
    "command", [signed("device", "wrong"), signed("other", "s"), signed("", "s"), signed("other", "")]
)
def test_a_wrong_key_or_secret_does_not(command):
    with pytest.raises(Refused) as caught:
        Access({"device": "s"}).check(REMOTE, command)
    assert caught.value.code == 16


def test_a_changed_body_or_field_does_not():
    for change in ({"body": b"other"}, {"fields": {**signed("device", "s").fields, "topic": "u"}}):
        command = signed("device", "s")
        for name, value in change.items():
            setattr(command, name, value)
        with pytest.raises(Refused, match="not valid"):
            Access({"device": "s"}).check(REMOTE, command)


def test_open_to_all_is_said_explicitly():
    Access(open_to_all=True).check(REMOTE, Command(1))


def test_a_key_that_counts_is_proved_on_this_machine_too():
    """Rights hang on the name: nobody may have those of another by claiming it. Without a key nothing is claimed."""
    access = Access({"device": "s"}, open_to_all=True, keys_count=True)
    access.check(LOCAL, Command(1))
    access.check(LOCAL, signed("device", "s"))
    for peer in (LOCAL, REMOTE):
        with pytest.raises(Refused, match="not valid"):
            access.check(peer, signed("device", "wrong"))


def test_access_keys():
    assert parse_access_keys(("a:b", "c:d:e")) == {"a": "b", "c": "d:e"}
    with pytest.raises(LocalMisuse, match="entry 2") as caught:
        parse_access_keys(("a:b", "verysecret"))
    assert "verysecret" not in str(caught.value)


def test_who_is_proved():
    """Whom no key is asked from, and whose signature was valid; claiming a key is not enough."""
    keyed = Access({"device": "s"})
    assert keyed.trusts(LOCAL)
    assert not keyed.trusts(REMOTE)
    assert not Access({"device": "s"}, keys_count=True).trusts(LOCAL)
    assert Access(open_to_all=True).trusts(REMOTE)
    assert keyed.knows(signed("device", "guessed"))
    assert not keyed.knows(signed("other", "s"))
    assert not keyed.knows(Command(1, fields={"AccessKey": "device"}))
    peer = From(loopback=False)
    with pytest.raises(Refused):
        keyed.check(peer, signed("device", "guessed"))
    assert PROVED_ATTRIBUTE not in peer.attributes
    keyed.check(peer, signed("device", "s"))
    assert PROVED_ATTRIBUTE in peer.attributes


def bound(access, peer, secret="s"):
    """A signer for this peer's connection."""
    return Signer("device", secret).bound(access.admit(peer, Command(9070)))


def copy_of(command):
    return Command(command.code, fields=dict(command.fields), body=command.body)


def test_a_bound_request_is_taken_once_and_on_its_connection_only():
    access, here, there = Access({"device": "s"}), From(loopback=False), From(loopback=False)
    signer = bound(access, here)
    first, second = Command(10, body=b"a"), Command(10, body=b"b")
    signer.sign(first)
    signer.sign(second)
    assert access.admit(here, copy_of(first)) is None
    with pytest.raises(Refused, match="came here before"):
        access.admit(here, copy_of(first))
    with pytest.raises(Refused, match="another connection"):
        access.admit(there, copy_of(second))
    bound(access, there)
    with pytest.raises(Refused, match="not valid"):
        access.admit(there, copy_of(second))
    access.admit(here, second)


def test_a_bound_request_becomes_no_other():
    """Not another code, and none of the kind that may be repeated."""
    access, here = Access({"device": "s"}), From(loopback=False)
    command = Command(10, fields={"topic": "t"}, body=b"a")
    bound(access, here).sign(command)
    other = copy_of(command)
    other.code = 11
    with pytest.raises(Refused, match="not valid"):
        access.admit(here, other)
    stripped = copy_of(command)
    stripped.fields["Signature"] = stripped.fields["Signature"].removeprefix("2:")
    with pytest.raises(Refused, match="not valid"):
        access.admit(here, stripped)
    for count in ("", "x", "-1", "9" * 19, "٣"):
        broken = copy_of(command)
        broken.fields["SignatureCount"] = count
        with pytest.raises(Refused):
            access.admit(here, broken)
    access.admit(here, command)


def test_a_wrong_secret_uses_no_number_up():
    access, here = Access({"device": "s"}), From(loopback=False)
    wrong, right = Command(10), Command(10)
    bound(access, here, secret="guessed").sign(wrong)
    bound(access, here).sign(right)
    with pytest.raises(Refused, match="not valid"):
        access.admit(here, wrong)
    access.admit(here, right)


def test_signatures_that_could_be_sent_again_may_be_refused():
    access = Access({"device": "s"}, bound_only=True)
    with pytest.raises(Refused, match="bound_signatures_only"):
        access.admit(REMOTE, signed("device", "s"))
    here, command = From(loopback=False), Command(10)
    bound(access, here).sign(command)
    access.admit(here, command)
