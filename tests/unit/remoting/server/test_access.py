"""Nobody off this machine gets in without a key that is known and a signature that holds."""

from __future__ import annotations

import pytest

from remoting.protocol.commands import Command
from remoting.protocol.errors import LocalMisuse, Refused
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
