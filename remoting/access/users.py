"""Users and rules made by requests, in the form of RocketMQ's ACL 2.0, and as rules of the access list.

    user      name, secret, type Super or Normal, enabled or not
    entry     resource, actions, source addresses, decision; the entries of a user are its rules

    Topic:orders    Topic:ord*    Topic:*    Group:billing    Cluster:*    *       resource; a trailing * is a prefix
    Pub Sub Create Update Delete Get List All                                      actions
    10.0.0.7   10.0.0.0/8                                                          source address; none: from anywhere
    Allow Deny                                                                     decision

The effect of an entry: `Pub` and `Sub` on a topic are rules for writing and reading everything below that name, also
for MQTT clients; `Sub` on a group allows reading `$group/name`, and with it its retry and dead-letter topics
(`remoting.access.key_policy`). The other actions are rights to
administrate single topics, groups or the cluster (`UserTable.manages`, by the request's code). A Super user may do
everything that needs no role of a server.

Invariants: a Deny wins over every Allow, more specific or not, of requests or of the file; what no entry allows is
denied; a disabled user has no secret and no rule. Secrets are in no text of this module. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from remoting.access.rights import GROUP as GROUP_RESOURCE
from remoting.access.rights import of_group, of_topic
from remoting.access.rules import HASH, PLUS, Levels, Prefix, Rule, RuleSet, split, topic_prefix, within
from remoting.protocol.errors import LightMQError, RemoteViolation
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.records import names

SUPER, NORMAL = "Super", "Normal"
TOPIC, GROUP, CLUSTER = "Topic", "Group", "Cluster"
RESOURCE_TYPES = (TOPIC, GROUP, CLUSTER)
PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST = "Pub", "Sub", "Create", "Update", "Delete", "Get", "List"
ALL = "All"
ACTION_NAMES = (PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST, ALL)
ALLOW, DENY = "Allow", "Deny"
DECISIONS = (ALLOW, DENY)
ANY = "*"

MANAGED: Mapping[int, tuple[str, str]] = {
    Code.UPDATE_AND_CREATE_TOPIC: (TOPIC, CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: (TOPIC, CREATE),
    Code.DELETE_TOPIC_IN_BROKER: (TOPIC, DELETE),
    Code.DELETE_TOPIC_IN_NAMESRV: (TOPIC, DELETE),
    Code.GET_TOPIC_STATS_INFO: (TOPIC, GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: (TOPIC, GET),
    Code.GET_ALL_TOPIC_CONFIG: (TOPIC, LIST),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (GROUP, CREATE),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (GROUP, CREATE),
    Code.DELETE_SUBSCRIPTIONGROUP: (GROUP, DELETE),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: (GROUP, UPDATE),
    Code.GET_CONSUMER_CONNECTION_LIST: (GROUP, GET),
    Code.GET_PRODUCER_CONNECTION_LIST: (GROUP, GET),
    Code.QUERY_TOPICS_BY_CONSUMER: (GROUP, GET),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: (GROUP, GET),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: (GROUP, GET),
    Code.QUERY_CONSUME_TIME_SPAN: (GROUP, GET),
    Code.GET_CONSUMER_RUNNING_INFO: (GROUP, GET),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (GROUP, GET),
    Code.CONSUME_MESSAGE_DIRECTLY: (GROUP, UPDATE),
    Code.CLONE_GROUP_OFFSET: (GROUP, UPDATE),
    Code.RESEND_DEAD_LETTER: (GROUP, UPDATE),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (GROUP, LIST),
    Code.UPDATE_BROKER_CONFIG: (CLUSTER, UPDATE),
    Code.DELETE_EXPIRED_COMMITLOG: (CLUSTER, UPDATE),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: (CLUSTER, UPDATE),
    Code.CLEAN_UNUSED_TOPIC: (CLUSTER, UPDATE),
    Code.PUT_KV_CONFIG: (CLUSTER, UPDATE),
    Code.DELETE_KV_CONFIG: (CLUSTER, UPDATE),
    Code.WIPE_WRITE_PERM_OF_BROKER: (CLUSTER, UPDATE),
    Code.ADD_WRITE_PERM_OF_BROKER: (CLUSTER, UPDATE),
    Code.GET_BROKER_CONFIG: (CLUSTER, GET),
    Code.GET_BROKER_RUNTIME_INFO: (CLUSTER, GET),
    Code.GET_NAMESRV_CONFIG: (CLUSTER, GET),
    Code.VIEW_BROKER_STATS_DATA: (CLUSTER, GET),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: (CLUSTER, GET),
}
"""Request code -> what an entry has to allow, for requests that otherwise need the role admin. Requests about users and
rules, and any not listed, need a Super user or that role."""


class EntryError(LightMQError):
    """A malformed entry."""


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user made by a request."""

    secret: str
    type: str = NORMAL
    enabled: bool = True

    def __repr__(self) -> str:
        """Return everything but the secret: users appear in error texts and logs."""
        return f"User(type={self.type}, enabled={self.enabled})"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One rule of a user; made by `entry_of`."""

    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    decision: str

    def covers(self, kind: str, name: str | None) -> bool:
        """Whether it applies to this topic, group or cluster; None: to all of them."""
        wanted, _, pattern = self.resource.partition(":")
        if self.resource != ANY and wanted != kind:
            return False
        if self.resource == ANY or pattern == ANY:
            return True
        if name is None:
            return self.decision == DENY
        return name.startswith(pattern[:-1]) if pattern.endswith(ANY) else name == pattern

    def has(self, action: str) -> bool:
        """Whether it applies to this action."""
        return action in self.actions or ALL in self.actions


def entry_of(resource: str, actions: Iterable[str], sources: Iterable[str], decision: str) -> Entry:
    """Return the entry of a request's words, which are case-insensitive. Raises EntryError."""
    kind, colon, name = resource.partition(":")
    known = _word(kind, RESOURCE_TYPES)
    if resource != ANY and (known is None or not colon or not name):
        raise EntryError(f"the resource {resource[:80]!r} is not Topic:NAME, Group:NAME, Cluster:NAME or *")
    problem = _problem_of_name(known, name)
    if problem:
        raise EntryError(f"the resource {resource[:80]!r} {problem}")
    found = [_word(action, ACTION_NAMES) for action in actions]
    if not found or None in found:
        raise EntryError(f"the actions are not one or more of {', '.join(ACTION_NAMES)}")
    chosen = _word(decision, DECISIONS)
    if chosen is None:
        raise EntryError("the decision is not Allow or Deny")
    return Entry(
        resource=resource if resource == ANY else f"{known}:{name}",
        actions=tuple(dict.fromkeys(action for action in found if action is not None)),
        sources=tuple(dict.fromkeys(map(_source, sources))),
        decision=chosen,
    )


def _problem_of_name(kind: str | None, name: str) -> str:
    """Return what is wrong with the name of a resource; empty when nothing is."""
    light = names.LMQ_PREFIX.decode()
    beginning = name.removesuffix(ANY)
    if kind in (TOPIC, GROUP) and beginning:
        if name.startswith(light):
            if beginning != name:
                return "is the prefix of light queues' names: give their topic"
            try:
                of_topic(name)
            except RemoteViolation as error:
                return str(error)
            return ""
        valid = names.valid_rocketmq_topic(beginning) if kind == TOPIC else names.valid_group(beginning)
        return "" if valid else "has invalid characters, or more than a * at its end"
    return "has a * before its end" if ANY in beginning else ""


def _word(text: str, words: Iterable[str]) -> str | None:
    return next((word for word in words if word.lower() == text.strip().lower()), None)


def _source(text: str) -> str:
    try:
        ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise EntryError(f"the source address {text[:60]!r} is neither an address nor a network") from None
    return text.strip()


@dataclass(frozen=True, slots=True)
class UserTable:
    """All users made by requests and their entries; immutable, replaced as a whole."""

    users: Mapping[str, User] = field(default_factory=dict)
    entries: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    """User name -> its entries."""

    def without_secrets(self) -> UserTable:
        """Return the table without secrets, for a server that verifies none."""
        return UserTable(
            {name: msgspec.structs.replace(user, secret="") for name, user in self.users.items()}, self.entries
        )

    def sourced(self, name: str) -> bool:
        """Whether this user's rights depend on its address."""
        return any(entry.sources for entry in self.entries.get(name, ()))

    def secrets(self) -> dict[str, str]:
        """Return name -> secret of the enabled users."""
        return {name: user.secret for name, user in self.users.items() if user.enabled}

    def rules(self) -> RuleSet:
        """Return the users' entries as rules of the access list."""
        made = RuleSet()
        for name, user in self.users.items():
            if not user.enabled:
                continue
            if user.type == SUPER:
                made.roles[name] = {"admin"}
                made.role_places[name, "admin"] = f"user {name}"
                made.users[name] = _everything(name)
            else:
                made.users[name] = [rule for entry in self.entries.get(name, ()) for rule in rules_of(name, entry)]
        return made

    def manages(self, name: str, code: int, resource: str, host: str) -> bool:
        """Whether a Normal user may send this administrative request about a topic, group or cluster."""
        user, needed = self.users.get(name), MANAGED.get(code)
        if user is None or not user.enabled or needed is None:
            return False
        kind, action = needed
        about = _unescaped(resource.removeprefix(GROUP_RESOURCE)) if resource.startswith(GROUP_RESOURCE) else resource
        about_all = action == LIST or kind == CLUSTER or resource.startswith("request ")
        found = [
            entry.decision
            for entry in self.entries.get(name, ())
            if entry.has(action) and entry.covers(kind, None if about_all else about) and comes_from(entry, host)
        ]
        return bool(found) and DENY not in found


def _unescaped(group: str) -> str:
    try:
        return names.unescape(group.encode()).decode()
    except (RemoteViolation, UnicodeDecodeError):
        return group


class CreatedUsersReply(msgspec.Struct, kw_only=True):
    """Answer to CREATED_USERS; without `table` if the version is the one in the request."""

    version: str
    table: UserTable | None = None


def comes_from(entry: Entry, host: str) -> bool:
    """Whether the entry applies to peers at this address. An unknown address is in every Deny and in no Allow."""
    return not entry.sources or within(entry.sources, host, unknown=entry.decision == DENY)


def rules_of(name: str, entry: Entry) -> list[Rule]:
    """Return the rules of one entry."""
    kind, _, pattern = entry.resource.partition(":")
    pattern = pattern or ANY
    read, write = entry.has(SUB), entry.has(PUB)
    made: list[Rule] = []
    if (kind == TOPIC or entry.resource == ANY) and (read or write):
        made.append(_rule(name, entry, _topic_levels(pattern), read=read, write=write))
    if (kind == GROUP or entry.resource == ANY) and read:
        made.append(_rule(name, entry, _group_levels(pattern), read=True, write=False))
    return made


def _rule(name: str, entry: Entry, levels: Levels, *, read: bool, write: bool) -> Rule:
    place, allow = f"user {name}", entry.decision == ALLOW
    text = f"{entry.decision} {','.join(entry.actions)} {entry.resource}"
    return Rule(
        place, text, b"/".join(levels), allow=allow, read=read, write=write, levels=levels, sources=entry.sources
    )


def _topic_levels(pattern: str) -> Levels:
    if pattern == ANY:
        return split(b"#")
    if pattern.endswith(ANY):
        return (topic_prefix(pattern[:-1].encode()), HASH)
    return split(of_topic(pattern))


def _group_levels(pattern: str) -> Levels:
    own = b"$group"
    if pattern == ANY:
        return (own, PLUS)
    if pattern.endswith(ANY):
        return (own, Prefix(names.escape(pattern[:-1].encode())))
    return split(of_group(pattern))


def _everything(name: str) -> list[Rule]:
    """Return the rules of a Super user, which allow everything."""
    return [
        Rule(f"user {name}", SUPER, b"/".join(levels), allow=True, read=True, write=True, levels=levels)
        for levels in (split(b"#"), (b"$group", HASH), (b"$sink", HASH))
    ]
