"""Users and rules of a RocketMQ cluster (ACL 2.0), made here once.

A user that is here already stays as it is, and so do its rules about resources that have one here: what an operator
has set here is not replaced. RocketMQ's brokers give passwords to administrators, which is how users keep theirs.

Invariant: a rule is made here only with its user; whatever is left out has a reason. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command

USER = "User:"
CUSTOM = "custom"


class Administered(Protocol):
    """A cluster whose users can be read and made."""

    @property
    def brokers(self) -> list[str]:
        """The broker groups."""
        ...

    async def ask(self, broker: str, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """A broker's answer. Raises Refused."""
        ...


async def mirror_users(source: Administered, target: Administered) -> dict[str, str]:
    """Make the source's users and rules at every broker of the target; returns what was left out -> why."""
    left_out: dict[str, str] = {}
    users: dict[str, dict[str, Any]] = {}
    rules: dict[str, list[dict[str, Any]]] = {}
    try:
        for broker in source.brokers:
            for user in await _listed(source, broker, RequestCode.AUTH_LIST_USER):
                users.setdefault(str(user["username"]), user)
            for acl in await _listed(source, broker, RequestCode.AUTH_LIST_ACL):
                name = str(acl["subject"]).removeprefix(USER)
                rules.setdefault(name, _custom(acl, f"rules of {name}", left_out))
    except Refused as refused:
        return {"users": f"the source does not show them: {refused.remark}"}
    for broker in target.brokers:
        try:
            await _make(target, broker, users, rules, left_out)
        except Refused as refused:
            left_out["users"] = refused.remark
    return left_out


async def _make(
    target: Administered,
    broker: str,
    users: dict[str, dict[str, Any]],
    rules: dict[str, list[dict[str, Any]]],
    left_out: dict[str, str],
) -> None:
    present = {str(user["username"]) for user in await _listed(target, broker, RequestCode.AUTH_LIST_USER)}
    for name, user in sorted(users.items()):
        if name in present:
            continue
        if not user.get("password"):
            left_out[f"user {name}"] = "its password is not shown there: create it here"
            continue
        try:
            body = {key: user[key] for key in ("username", "password", "userType", "userStatus") if user.get(key)}
            await target.ask(broker, RequestCode.AUTH_CREATE_USER, {"username": name}, msgspec.json.encode(body))
        except Refused as refused:
            left_out[f"user {name}"] = refused.remark
        else:
            present.add(name)
    known = {
        (str(acl["subject"]).removeprefix(USER), str(entry["resource"]))
        for acl in await _listed(target, broker, RequestCode.AUTH_LIST_ACL)
        for entry in _entries(acl.get("policies"))
    }
    for name, entries in sorted(rules.items()):
        new = [entry for entry in entries if (name, str(entry.get("resource"))) not in known]
        if not new:
            continue
        if name not in present:
            left_out[f"rules of {name}"] = "there is no such user here"
            continue
        body = {"subject": USER + name, "policies": [{"policyType": "Custom", "entries": new}]}
        try:
            fields = {"subject": USER + name}
            await target.ask(broker, RequestCode.AUTH_UPDATE_ACL, fields, msgspec.json.encode(body))
        except Refused as refused:
            left_out[f"rules of {name}"] = refused.remark


def _custom(acl: dict[str, Any], what: str, left_out: dict[str, str]) -> list[dict[str, Any]]:
    """The rules of a subject without its default policies, which are not offered here."""
    policies = acl.get("policies") or []
    chosen = [policy for policy in policies if str(policy.get("policyType") or CUSTOM).lower() == CUSTOM]
    if len(chosen) != len(policies):
        left_out[what] = "policies of type Default are not offered here"
    return list(_entries(chosen))


def _entries(policies: Iterable[dict[str, Any]] | None) -> Iterable[dict[str, Any]]:
    return (entry for policy in policies or () for entry in policy.get("entries") or ())


async def _listed(cluster: Administered, broker: str, code: int) -> list[dict[str, Any]]:
    found = fastjson.loads((await cluster.ask(broker, code, {})).body or b"[]")
    if not isinstance(found, list):
        raise RemoteViolation("a list of users or rules is not a list")
    return [one for one in found if isinstance(one, dict)]
