"""The ten requests about users and rules (3001 to 3010), and 9073 of proxies, of a master and of a replica alike.

Bodies are RocketMQ's JSON: a user `{"username":..,"password":..,"userType":"Super","userStatus":"enable"}`, rules
`{"subject":"User:ann","policies":[{"policyType":"Custom","entries":[{"resource":"Topic:orders","actions":["Pub"],
"sourceIps":["10.0.0.0/8"],"decision":"Allow"}]}]}`. In answers the password is missing.

The right is `admin`: a key of the configuration with `role admin` makes the first Super user. A name that the
configuration has as a key cannot be created, so a request never replaces what the operator has written.
In a cluster with controllers of its own the controllers hold the users (`agreement`), for all broker groups: mqadmin
sends a change to each broker, and what the first one has done already is answered with success by the others.
Policies of type Default are refused: RocketMQ asks them only where no other rule decides, and here a Deny always wins.

Invariant: nothing is changed without the right, and nothing half: an entry that cannot be understood refuses the whole
request, because it may have been a Deny. Loop thread only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from broker.access.agreement import Agreement, Plan, Users
from broker.requests import json_body, text
from remoting.access.agreement import UserState
from remoting.access.key_policy import NOBODY, KeyPolicy
from remoting.access.rights import ACT_FOR, ADMIN
from remoting.access.users import NORMAL, SUPER, Entry, EntryError, User, UserTable, entry_of
from remoting.protocol.errors import LightMQError, NotOffered, Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.server.authorizer import Authorizer
from remoting.server.router import Access, later, parse_access_keys
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from runtime.metrics import Registry

ENTRIES_MAX = 1_000
"""Rules of one user; more are refused."""
NAME_CHARS_MAX = 256
"""Longest name and longest secret of a user."""
CUSTOM = "Custom"
SUBJECT_PREFIX = "User:"
ENABLED, DISABLED = "enable", "disable"

_encode = msgspec.json.encode


ReplyAt = Callable[[int, Peer, Command], None]
"""Sends an answer when everything below a position of the log is confirmed, or the refusal of a log that failed."""


class UserRequests:
    """What administrators ask about the users of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        authorizer: Authorizer,
        users: Users,
        reply_at: ReplyAt,
        registry: Registry,
        log: Any,
    ) -> None:
        self._config = config
        self._authorizer = authorizer
        self._users = users
        self._reply_at = reply_at
        self._log = log
        self._configured = frozenset(parse_access_keys(config.access_keys))
        self.agreement: Agreement | None = None
        """Where the users are those of a cluster."""
        self._changes = registry.counter(
            "rocketmq_access_changes_total", "Changes of users and rules by requests", ("change",)
        )

    @property
    def policy(self) -> KeyPolicy | None:
        """The policy that users are put in force by; None without an access list."""
        policy = self._authorizer.policy
        return policy if isinstance(policy, KeyPolicy) else None

    def require_policy(self) -> KeyPolicy:
        """The policy. Raises NotOffered without an access list."""
        if self.policy is None:
            remark = "users and rules by request need an access list of the broker: set broker.access_list"
            raise NotOffered(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        return self.policy

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.AUTH_CREATE_USER: self._create_user,
            Code.AUTH_UPDATE_USER: self._update_user,
            Code.AUTH_DELETE_USER: self._delete_user,
            Code.AUTH_GET_USER: self._get_user,
            Code.AUTH_LIST_USER: self._list_users,
            Code.AUTH_CREATE_ACL: self._put_acl,
            Code.AUTH_UPDATE_ACL: self._put_acl,
            Code.AUTH_DELETE_ACL: self._delete_acl,
            Code.AUTH_GET_ACL: self._get_acl,
            Code.AUTH_LIST_ACL: self._list_acls,
            Code.ADMIT_CLIENT: self._admit_client,
        }

    def _admit_client(self, peer: Peer, command: Command) -> Command:
        """9073: whether a proxy may serve a client with the signature of RocketMQ's gRPC clients; empty key: with none.

        Answered with the names of this broker and of its cluster. Refused with NO_PERMISSION.
        """
        fields, config = command.fields, self._config
        self._authorizer.authorize(peer, command, ACT_FOR, "")
        loopback = fields.get("clientLoopback") == "true"
        key, signed, given = (fields.get(name, "") for name in ("clientKey", "clientTime", "clientSignature"))
        access_of(config, self.policy).check_client(key, signed, given, loopback=loopback)
        return command.reply(fields={"brokerName": config.broker_name, "clusterName": config.cluster_name})

    # -- users ---------------------------------------------------------------------------------------------------------

    def _create_user(self, peer: Peer, command: Command) -> None:
        """3001: a new user; Normal and enabled by default."""
        self._require(peer, command)
        name, body = text(command.fields, "username").strip(), json_body(command)
        if not _usable(name) or ":" in name:
            raise _invalid(f"a user's name has 1 to {NAME_CHARS_MAX} printable characters and no colon")
        if name == NOBODY:
            raise _invalid(f"{NOBODY!r} stands for all who show no key: give a user another name")
        secret = body.get("password")
        if not isinstance(secret, str) or not secret:
            raise _invalid("a user needs a password")
        user = _changed(User(secret=""), body)

        def plan(table: UserTable) -> UserState | None:
            if self.agreement is not None and table.users.get(name) == user:
                return None
            if name in table.users or name in self._configured:
                raise _invalid(f"the user {name!r} exists")
            if len(table.users) >= self._config.limits.access_users_max:
                raise Refused(
                    ResponseCode.SYSTEM_BUSY, "limits.access_users_max is reached: no further user can be created"
                )
            return UserState(name=name, user=user)

        self._change(peer, command, "user_created", name, plan)

    def _update_user(self, peer: Peer, command: Command) -> None:
        """3002: another password, type or status; what is missing stays."""
        self._require(peer, command)
        name, body = text(command.fields, "username").strip(), json_body(command)

        def plan(table: UserTable) -> UserState:
            return _state(table, name, user=_changed(_user_of(table, name), body))

        self._change(peer, command, "user_changed", name, plan)

    def _delete_user(self, peer: Peer, command: Command) -> None:
        """3003: remove a user with its rules; one that does not exist is no error, as with RocketMQ."""
        self._require(peer, command)
        name = text(command.fields, "username").strip()
        self._change(peer, command, "user_deleted", name, lambda _table: UserState(name=name))

    def _get_user(self, peer: Peer, command: Command) -> None:
        """3004: a user without its password."""
        self._require(peer, command)
        name = text(command.fields, "username").strip()
        self._show(peer, command, lambda table: _user_body(name, _user_of(table, name)))

    def _list_users(self, peer: Peer, command: Command) -> None:
        """3005: the users whose name contains `filter`."""
        self._require(peer, command)
        wanted = (command.fields.get("filter") or "").strip()

        def listed(table: UserTable) -> list[dict[str, str]]:
            return [_user_body(name, user) for name, user in sorted(table.users.items()) if wanted in name]

        self._show(peer, command, listed)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def _put_acl(self, peer: Peer, command: Command) -> None:
        """3006 and 3007: rules of a user, each in place of the one about the same resource."""
        self._require(peer, command)
        name = _subject(text(command.fields, "subject"))
        new = _entries_of(json_body(command))

        def plan(table: UserTable) -> UserState:
            kept = {entry.resource: entry for entry in table.entries.get(name, ())}
            kept |= {entry.resource: entry for entry in new}
            if len(kept) > ENTRIES_MAX:
                raise Refused(ResponseCode.SYSTEM_BUSY, f"a user has at most {ENTRIES_MAX} rules")
            return _state(table, name, entries=tuple(kept.values()))

        self._change(peer, command, "rules_changed", name, plan)

    def _delete_acl(self, peer: Peer, command: Command) -> None:
        """3008: the rule of a user about `resource`; without one, all of its rules."""
        self._require(peer, command)
        fields = command.fields
        name, resource = _subject(text(fields, "subject")), (fields.get("resource") or "").strip()
        _require_custom(fields.get("policyType"))

        def plan(table: UserTable) -> UserState | None:
            known = table.entries.get(name, ())
            kept = tuple(entry for entry in known if resource and entry.resource != resource)
            state = _state(table, name, entries=kept)
            if len(kept) == len(known):
                if self.agreement is not None:
                    return None
                raise Refused(ResponseCode.POLICY_NOT_EXIST, f"the user {name!r} has no such rule")
            return state

        self._change(peer, command, "rules_deleted", name, plan)

    def _get_acl(self, peer: Peer, command: Command) -> None:
        """3009: the rules of a user."""
        self._require(peer, command)
        name = _subject(text(command.fields, "subject"))

        def shown(table: UserTable) -> dict[str, Any]:
            _user_of(table, name)
            entries = table.entries.get(name)
            if entries is None:
                raise Refused(ResponseCode.POLICY_NOT_EXIST, f"the user {name!r} has no rules")
            return _acl_body(name, entries)

        self._show(peer, command, shown)

    def _list_acls(self, peer: Peer, command: Command) -> None:
        """3010: the rules of users, those whose subject and resource contain the filters."""
        self._require(peer, command)
        fields = command.fields
        subject, resource = (fields.get("subjectFilter") or "").strip(), (fields.get("resourceFilter") or "").strip()

        def listed(table: UserTable) -> list[dict[str, Any]]:
            found = []
            for name, entries in sorted(table.entries.items()):
                chosen = [entry for entry in entries if resource in entry.resource]
                if subject in SUBJECT_PREFIX + name and chosen:
                    found.append(_acl_body(name, chosen))
            return found

        self._show(peer, command, listed)

    # -- inner parts ---------------------------------------------------------------------------------------------------

    def _require(self, peer: Peer, command: Command) -> None:
        self._authorizer.authorize(peer, command, ADMIN, "users")
        self.require_policy()

    def _change(self, peer: Peer, command: Command, change: str, name: str, plan: Plan) -> None:
        """Carry out a change and answer when it is durable, in a cluster at the controllers too."""
        if self.agreement is not None:
            later(peer, command, self._agreed(self.agreement, peer, command, change, name, plan))
            return
        state, users = plan(self._users.table), self._users
        position = users.position if state is None else users.write([state])
        self._note(peer, command, change, name)
        self._reply_at(position, peer, command.reply())

    async def _agreed(
        self, agreement: Agreement, peer: Peer, command: Command, change: str, name: str, plan: Plan
    ) -> None:
        position = await agreement.change(plan)
        self._note(peer, command, change, name)
        self._reply_at(position, peer, command.reply())

    def _note(self, peer: Peer, command: Command, change: str, name: str) -> None:
        self._changes.child(change).value += 1
        self._log.info("access_changed", change=change, user=name, by=self._authorizer.identity(peer, command))

    def _show(self, peer: Peer, command: Command, body: Callable[[UserTable], Any]) -> None:
        """Answer with what `body` makes of the table, once that is durable."""
        if self.agreement is not None:
            later(peer, command, self._show_agreed(self.agreement, peer, command, body))
            return
        answer = command.reply(body=_encode(body(self._users.table)))
        self._reply_at(self._users.position, peer, answer)

    async def _show_agreed(
        self, agreement: Agreement, peer: Peer, command: Command, body: Callable[[UserTable], Any]
    ) -> None:
        with contextlib.suppress(LightMQError):  # what is known is in force, and is shown, without controllers too
            await agreement.refresh()
        answer = command.reply(body=_encode(body(self._users.table)))
        self._reply_at(self._users.position, peer, answer)


def _user_of(table: UserTable, name: str) -> User:
    user = table.users.get(name)
    if user is None:
        raise Refused(ResponseCode.USER_NOT_EXIST, f"the user {name!r} does not exist")
    return user


def _state(
    table: UserTable, name: str, *, user: User | None = None, entries: tuple[Entry, ...] | None = None
) -> UserState:
    """The user of the table with another secret, type or status, or with other rules."""
    known = _user_of(table, name)
    kept = tuple(table.entries.get(name, ())) if entries is None else entries
    return UserState(name=name, user=user or known, entries=kept)


def _subject(subject: str) -> str:
    """The name of the user that a subject names."""
    kind, _, name = subject.strip().partition(":")
    if f"{kind.capitalize()}:" != SUBJECT_PREFIX:
        raise _invalid(f"the subject {subject[:80]!r} is not {SUBJECT_PREFIX}NAME")
    return name


def _changed(user: User, body: dict[str, Any]) -> User:
    """The user with what the body names."""
    secret, kind, status = (str(body.get(name) or "") for name in ("password", "userType", "userStatus"))
    if secret and not _usable(secret):
        raise _invalid(f"a password has at most {NAME_CHARS_MAX} printable characters")
    if kind.lower() not in ("", SUPER.lower(), NORMAL.lower()):
        raise _invalid(f"userType is {SUPER} or {NORMAL}")
    if status.lower() not in ("", ENABLED, DISABLED):
        raise _invalid(f"userStatus is {ENABLED} or {DISABLED}")
    return User(
        secret=secret or user.secret,
        type=kind.capitalize() or user.type,
        enabled=status.lower() == ENABLED if status else user.enabled,
    )


def _entries_of(body: dict[str, Any]) -> list[Entry]:
    """The entries in a body of rules."""
    found: list[Entry] = []
    for policy in _objects(body.get("policies")):
        _require_custom(policy.get("policyType"))
        for entry in _objects(policy.get("entries")):
            try:
                found.append(
                    entry_of(
                        str(entry.get("resource") or "").strip(), _texts(entry.get("actions")),
                        _texts(entry.get("sourceIps") or []), str(entry.get("decision") or ""),
                    )
                )  # fmt: skip
            except EntryError as error:
                raise _invalid(str(error)) from error
    if not found:
        raise _invalid("no rule is named")
    return found


def _objects(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise _invalid("policies and entries are lists of objects")
    return value


def _texts(value: object) -> Sequence[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _invalid("actions and sourceIps are lists of texts")
    return value


def _require_custom(policy_type: object) -> None:
    if policy_type and str(policy_type).lower() != CUSTOM.lower():
        raise NotOffered(ResponseCode.INVALID_PARAMETER, "policies of type Default are not offered: make them Custom")


def _usable(word: str) -> bool:
    return 0 < len(word) <= NAME_CHARS_MAX and word.isprintable()


def _user_body(name: str, user: User) -> dict[str, str]:
    return {"username": name, "userType": user.type, "userStatus": ENABLED if user.enabled else DISABLED}


def _acl_body(name: str, entries: Iterable[Entry]) -> dict[str, Any]:
    shown = [
        {
            "resource": entry.resource,
            "actions": entry.actions,
            "sourceIps": entry.sources,
            "decision": entry.decision,
        }
        for entry in entries
    ]
    return {"subject": SUBJECT_PREFIX + name, "policies": [{"policyType": CUSTOM, "entries": shown}]}


def _invalid(remark: str) -> Refused:
    return Refused(ResponseCode.INVALID_PARAMETER, remark)


def access_of(config: BrokerConfig, policy: KeyPolicy | None) -> Access:
    """Who may send requests at all, as configured, and by requests."""
    return Access(
        parse_access_keys(config.access_keys),
        open_to_all=config.open_to_all,
        keys_count=config.access_list is not None,
        bound_only=config.bound_signatures_only,
        created=None if policy is None else policy.secrets,
    )
