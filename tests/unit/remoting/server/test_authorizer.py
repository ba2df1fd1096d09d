"""The hook: refusals of a policy are reported by name and counted; parts of the same process are not checked."""

from __future__ import annotations

import base64

import pytest

from remoting.access.rights import page_actions
from remoting.protocol.errors import Refused
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import ANONYMOUS, IDENTITY_ATTRIBUTE, TRUSTED_ATTRIBUTE, Authorizer
from remoting.server.router import Access
from remoting.server.server import ALLOWED, FORBIDDEN, UNPROVEN, PageAccess, credentials


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


def test_a_check_in_advance_is_no_refusal() -> None:
    """The caller gets an answer, and nothing is counted."""
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


def test_an_identity_proved_elsewhere_is_checked_and_counted() -> None:
    """A missing name is `anonymous` to the policy."""
    guarded = Authorizer(lambda identity, action, resource: (identity, action, resource) == ("node", "register", "a"))
    assert guarded.permits("node", "register", "a")
    assert not guarded.permits("node", "register", "b")
    assert not guarded.permits("", "register", "a")
    assert guarded.refused == 2
    assert Authorizer().permits("", "register", "a")


def test_a_request_of_a_proxy_is_judged_by_the_rights_of_its_client() -> None:
    """Only a part of this process and a key that may act for others can name another identity."""

    def policy(identity: str, action: str, resource: str) -> bool:
        return (identity, action, resource) in {("grpc", "act_for", ""), ("ann", "publish", "orders")}

    inside, outside = FakePeer(), FakePeer()
    inside.attributes[TRUSTED_ATTRIBUTE], outside.address = True, "10.0.0.7:4"
    guarded = Authorizer(policy)
    for peer, key in ((inside, ""), (outside, "grpc")):
        for client, allowed in (("ann", True), ("bob", False), ("", False)):
            fields = {"AccessKey": key, "onBehalfOf": client, "onBehalfHost": "10.0.0.9"}
            assert guarded.allows(peer, Command(310, fields=fields), "publish", "orders") is allowed
    with pytest.raises(Refused, match="bob may not publish"):
        guarded.authorize(inside, Command(310, fields={"onBehalfOf": "bob"}), "publish", "orders")
    fields = {"AccessKey": "bob", "onBehalfOf": "ann"}
    with pytest.raises(Refused, match="bob may not publish"):
        guarded.authorize(outside, Command(310, fields=fields), "publish", "orders")


KEYS = {"prometheus": "one", "boss": "t:wo"}
HERE, ELSEWHERE = "127.0.0.1:1", "[fd00::9]:4"


def basic(key: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode()


def rules(identity: str, action: str, _page: str) -> bool:
    """A list in which a key may see the metrics, and another one everything."""
    assert identity in (*KEYS, ANONYMOUS)
    return identity == "boss" or (identity, action) == ("prometheus", "monitor")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (basic("a", "b:c"), ("a", "b:c")), ("bearer  a:b", ("a", "b")), ("Basic %%%", ("", "")),
        ("Basic gA==", ("", "")), ("Bearer token", ("token", "")), ("Digest a:b", ("", "")),
        ("", ("", "")), ("Basic", ("", "")),
    ],
)  # fmt: skip
def test_headers(header: str, found: tuple[str, str]) -> None:
    assert credentials(header) == found


def test_without_a_list_this_machine_sees_everything_and_others_show_any_key() -> None:
    guard = PageAccess(Access(KEYS), Authorizer(), page_actions())
    for page in page_actions():
        assert guard.judge(page, HERE, "Bearer whoever:guessed") == ALLOWED
        assert guard.judge(page, ELSEWHERE, basic("boss", "t:wo")) == ALLOWED
    for header in ("", basic("boss", "two"), basic("nobody", "one"), basic("nobody", ""), basic("", "")):
        assert guard.judge("/metrics", ELSEWHERE, header) == UNPROVEN


def test_without_keys_other_machines_see_no_more_than_a_probe() -> None:
    guard = PageAccess(Access(), Authorizer(), page_actions())
    seen = {page for page in page_actions() if not guard.judge(page, ELSEWHERE, basic("", ""))}
    assert seen == {"/livez", "/startupz", "/readyz"}


@pytest.mark.parametrize("address", [HERE, ELSEWHERE])
def test_with_a_list_the_rights_decide_on_this_machine_too(address: str) -> None:
    authorizer = Authorizer(rules)
    guard = PageAccess(Access(KEYS, keys_count=True), authorizer, page_actions())
    assert guard.judge("/metrics", address, "") == UNPROVEN
    assert guard.judge("/metrics", address, basic("prometheus", "two")) == UNPROVEN
    assert guard.judge("/metrics", address, basic("prometheus", "one")) == ALLOWED
    assert guard.judge("/status", address, basic("prometheus", "one")) == FORBIDDEN
    assert guard.judge("/status", address, basic("boss", "t:wo")) == ALLOWED
    assert guard.judge("/livez", address, "") == ALLOWED


def test_the_check_for_a_probe_is_no_refusal() -> None:
    authorizer = Authorizer(rules)
    guard = PageAccess(Access(KEYS, keys_count=True), authorizer, page_actions())
    assert guard.judge("/readyz parts", HERE, "", counted=False) == UNPROVEN
    assert authorizer.refused == 0
    assert guard.judge("/readyz parts", HERE, "") == UNPROVEN
    assert authorizer.refused == 1


def test_a_closed_network_is_open() -> None:
    guard = PageAccess(Access(open_to_all=True), Authorizer(), page_actions())
    assert guard.judge("/status", ELSEWHERE, "") == ALLOWED
