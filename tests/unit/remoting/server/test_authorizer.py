"""The hook: what a policy refuses is refused by name and counted; parts of the same process are not asked."""

from __future__ import annotations

import pytest

from remoting.protocol.errors import Refused
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import IDENTITY_ATTRIBUTE, TRUSTED_ATTRIBUTE, Authorizer


class FakePeer:
    def __init__(self) -> None:
        self.attributes: dict[str, object] = {}


def test_identity_comes_from_the_peer_then_the_access_key() -> None:
    peer = FakePeer()
    assert Authorizer.identity(peer, Command(1)) == "anonymous"
    assert Authorizer.identity(peer, Command(1, fields={"AccessKey": "k"})) == "k"
    peer.attributes = {IDENTITY_ATTRIBUTE: "proxy"}
    assert Authorizer.identity(peer, Command(1, fields={"AccessKey": "k"})) == "proxy"


def test_a_policy_decides_and_refusals_are_counted() -> None:
    authorizer = Authorizer(lambda identity, action, resource: (action, resource) == ("consume", "a"))
    authorizer.authorize(FakePeer(), Command(1), "consume", "a")
    with pytest.raises(Refused, match="may not publish 'a'"):
        authorizer.authorize(FakePeer(), Command(1), "publish", "a")
    assert authorizer.refused == 1


def test_a_question_is_no_refusal() -> None:
    """Who asks beforehand gets an answer, and nothing is counted."""
    peer, command = FakePeer(), Command(1)
    guarded = Authorizer(lambda _identity, _action, resource: resource == "mine")
    assert guarded.allows(peer, command, "consume", "mine")
    assert not guarded.allows(peer, command, "consume", "yours")
    assert Authorizer().allows(peer, command, "consume", "yours")
    assert guarded.refused == 0


def test_a_part_of_this_process_is_trusted() -> None:
    peer = FakePeer()
    peer.attributes[TRUSTED_ATTRIBUTE] = True
    guarded = Authorizer(lambda *_: False)
    guarded.authorize(peer, Command(1), "admin", "")
    assert guarded.allows(peer, Command(1), "admin", "")


def test_an_identity_proved_elsewhere_is_asked_for_and_counted() -> None:
    """Nobody is `anonymous` to the policy."""
    guarded = Authorizer(lambda identity, action, resource: (identity, action, resource) == ("node", "register", "a"))
    assert guarded.permits("node", "register", "a")
    assert not guarded.permits("node", "register", "b")
    assert not guarded.permits("", "register", "a")
    assert guarded.refused == 2
    assert Authorizer().permits("", "register", "a")
