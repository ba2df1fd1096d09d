"""Users and rules: what is made, what is here already, and what is left out and why."""

from __future__ import annotations

import json
from typing import Any

from lightmq.migrate.users import mirror_users
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command


class Side:
    """A cluster of one broker with users and rules; notes what is asked of it."""

    def __init__(self, users: list[Any] = [], acls: list[Any] = [], refused: set[int] = set()) -> None:  # noqa: B006
        self._shown = {Code.AUTH_LIST_USER: users, Code.AUTH_LIST_ACL: acls}
        self._refused = refused
        self.brokers = ["b"]
        self.made: list[tuple[int, dict[str, str], Any]] = []

    async def ask(self, _broker: str, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        if code in self._refused:
            raise Refused(3, "not here")
        if code in self._shown:
            return Command(0, body=json.dumps(self._shown[code]).encode())
        self.made.append((code, fields, json.loads(body)))
        return Command(0)


def user(name: str, **more: str) -> dict[str, str]:
    return {"username": name, "password": f"{name}-secret", "userType": "Normal", "userStatus": "enable"} | more


def acl(name: str, *resources: str, kind: str = "Custom") -> dict[str, Any]:
    entries = [{"resource": one, "actions": ["Pub"], "sourceIps": [], "decision": "Allow"} for one in resources]
    return {"subject": f"User:{name}", "policies": [{"policyType": kind, "entries": entries}]}


async def test_users_keep_their_passwords_and_rules_come_with_them() -> None:
    target = Side()
    assert await mirror_users(Side([user("ann")], [acl("ann", "Topic:a", "Group:g")]), target) == {}
    assert target.made == [
        (Code.AUTH_CREATE_USER, {"username": "ann"}, user("ann")),
        (Code.AUTH_UPDATE_ACL, {"subject": "User:ann"}, acl("ann", "Topic:a", "Group:g")),
    ]


async def test_what_is_here_stays_as_it_is() -> None:
    target = Side([user("ann")], [acl("ann", "Topic:a")])
    assert await mirror_users(Side([user("ann", password="other")], [acl("ann", "Topic:a", "Topic:b")]), target) == {}
    assert target.made == [(Code.AUTH_UPDATE_ACL, {"subject": "User:ann"}, acl("ann", "Topic:b"))]
    everything = Side([user("ann")], [acl("ann", "Topic:a", "Topic:b")])
    assert await mirror_users(Side([user("ann")], [acl("ann", "Topic:a")]), everything) == {}
    assert everything.made == []


async def test_what_is_left_out_has_a_reason() -> None:
    source = Side(
        [user("bob", password=""), user("ann")], [acl("bob", "Topic:a"), acl("ann", "Topic:a", kind="Default")]
    )
    target = Side()
    left_out = await mirror_users(source, target)
    assert sorted(left_out) == ["rules of ann", "rules of bob", "user bob"]
    assert [code for code, _fields, _body in target.made] == [Code.AUTH_CREATE_USER]
    assert "does not show" in (await mirror_users(Side(refused={Code.AUTH_LIST_USER}), target))["users"]
    assert await mirror_users(Side([user("ann")]), Side(refused={Code.AUTH_LIST_USER})) == {"users": "not here"}
    refusing = Side(refused={Code.AUTH_CREATE_USER})
    assert (await mirror_users(Side([user("ann")], [acl("ann", "Topic:a")]), refusing))["user ann"] == "not here"
