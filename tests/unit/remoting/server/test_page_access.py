"""Keys by HTTP: the same rules as for requests."""

from __future__ import annotations

import base64

import pytest

from remoting.access.rights import page_actions
from remoting.server.access import Access
from remoting.server.authorizer import ANONYMOUS, Authorizer
from remoting.server.page_access import ALLOWED, FORBIDDEN, UNPROVEN, PageAccess, credentials

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


def test_without_keys_nobody_of_another_machine_sees_more_than_a_probe() -> None:
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


def test_what_is_asked_for_a_probe_is_no_refusal() -> None:
    authorizer = Authorizer(rules)
    guard = PageAccess(Access(KEYS, keys_count=True), authorizer, page_actions())
    assert guard.judge("/readyz parts", HERE, "", counted=False) == UNPROVEN
    assert authorizer.refused == 0
    assert guard.judge("/readyz parts", HERE, "") == UNPROVEN
    assert authorizer.refused == 1


def test_a_closed_network_is_open() -> None:
    guard = PageAccess(Access(open_to_all=True), Authorizer(), page_actions())
    assert guard.judge("/status", ELSEWHERE, "") == ALLOWED
