"""The access list of a broker or controller as its policy: what each access key may do.

    publish   topic name, `$sink/name`     a rule that allows writing it
    consume   filter, `$group/name`        a rule that allows reading all of it
    session   a client id or a request     role proxy, or admin for viewing one
    locate    a topic, or nothing          any role, or a rule that applies to the topic (without a topic: any rule)
    inspect   anything                     any role
    monitor   page of an administration    role monitor or admin
              port
    register  broker name                  role broker with that name
    appoint   broker name                  role controller
    admin     anything                     role admin

The retry and dead-letter topics of a group, those of POP included, are read, written and found by whoever may read
`$group/name`: what a member could not handle goes there and comes back to it. A rule for the topic's name gives the
same right without the group; a deny of the name or of the group takes it away.

Users made by requests (`users`) have the rules of their entries besides those of the file, and a Super user the role
admin and every topic; some of their rules depend on the address of the peer.

A proxy may also publish and consume everything: it has applied its own rules to each of its clients. The options
`qos=`, `retain=`, `retained=`, `history=` and `will=` apply to MQTT clients only and are ignored here. A peer without a
key has the rules of `anonymous` and never a role.

Invariants: the rules in force come from one whole, valid file; everything is denied until there is one, and an unusable
later one leaves the previous in force. Both are errors in the log. Loop rule: on the loop's thread; `refresh` reads in
a thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from remoting.access import acl_file
from remoting.access.rights import (
    ACT_FOR,
    ADMIN,
    APPOINT,
    CONSUME,
    INSPECT,
    LOCATE,
    MONITOR,
    PUBLISH,
    REGISTER,
    SESSION,
    of_group,
    of_topic,
)
from remoting.access.rules import Grants, Identity, RuleSet, Verdict
from remoting.access.users import UserTable
from remoting.protocol.errors import LightMQError
from remoting.protocol.records.names import group_of_derived

BELOW = "/#"
"""What the resource of reading a RocketMQ topic ends with."""
DENIED = "deny_rule"
"""Reason of a verdict that a deny decided."""
GRANTS_MAX = 1_000
"""Keys whose compiled rules are cached; the least recently used is dropped first."""
READABLE_TOPICS_MAX = 16_384
"""Verdicts cached per key and topic; beyond it all are dropped."""
LOOK_INTERVAL_S = 1.0
"""How often `keep_current` checks the file."""
NOBODY = "anonymous"
"""The identity of a peer without a key."""
ROLES = {
    PUBLISH: {"proxy"},
    CONSUME: {"proxy"},
    SESSION: {"proxy", "admin"},
    ACT_FOR: {"proxy"},
    LOCATE: set(acl_file.ROLES),
    INSPECT: set(acl_file.ROLES),
    MONITOR: {"monitor", "admin"},
    REGISTER: set[str](),
    APPOINT: {"controller"},
    ADMIN: {"admin"},
}
"""Action -> roles that may perform it on any resource."""


class FileWatch(Protocol):
    """A file that is checked periodically; see `runtime.files.WatchedFile`."""

    def first(self) -> RuleSet:
        """Read it at the start. Raises LightMQError when it is unusable."""
        ...

    async def refresh(self) -> None:
        """Put it in force when it has changed."""
        ...


class Watch(Protocol):
    """Makes a watched file."""

    def __call__(
        self,
        path: Path,
        load: Callable[[Path], RuleSet],
        *,
        applied: Callable[[RuleSet], None],
        failed: Callable[[LightMQError], None],
    ) -> FileWatch:
        """Watch a file; `load` raises LightMQError when it is unusable."""
        ...


class KeyPolicy:
    """The policy of one broker or controller; see `remoting.server.authorizer.Policy`."""

    def __init__(self, path: Path, log: Any, watch: Watch, *, partly: bool = True) -> None:
        """`partly`: whether a filter may be subscribed to if only some of its topics may be read."""
        self._log = log
        self._partly = partly
        self._readable: dict[tuple[str, str, bytes], Verdict] = {}
        self._path = path
        self._listed: RuleSet | None = None
        """Rules of the file; None until it is usable: then everything is denied, even to users made by requests."""
        self._rules = RuleSet()
        self._grants: OrderedDict[tuple[str, str], Grants] = OrderedDict()
        self._users = UserTable()
        self.secrets: dict[str, str] = {}
        """Secrets of the users made by requests; this object stays, its contents change."""
        self._file = watch(path, acl_file.load, applied=self._applied, failed=self._failed)
        try:
            self._applied(self._file.first())
        except LightMQError as error:
            self._log.error("access_list_unusable", problem=str(error), consequence="everything is denied")

    def __call__(self, identity: str, action: str, resource: str) -> bool:
        """Whether the access key, or `anonymous`, may do this from an unknown address."""
        return self.allows(identity, action, resource)

    def allows(self, identity: str, action: str, resource: str, code: int = 0, host: str = "") -> bool:
        """The same for a request with this code, by a peer at this address."""
        if self.role_for(identity, action, resource):
            return True
        if action in (PUBLISH, CONSUME, LOCATE):
            return self._message_right(self._grants_of(identity, host), action, resource)
        if identity == NOBODY or action != ADMIN or self._listed is None:
            return False  # a user of that name, made by a request, is nobody's
        return self._users.manages(identity, code, resource, host)

    def readable(self, identity: str, topic_filter: str, host: str = "") -> Callable[[bytes], Verdict] | None:
        """Return the judge of a filter's topics, of which the key may read some; None when it may read none."""
        grants = self._grants_of(identity, host)
        if not self._partly or not grants.read(topic_filter, partly=True).allowed:
            return None
        known = self._readable

        def judge(topic: bytes) -> Verdict:
            verdict = known.get((identity, host, topic))
            if verdict is None:
                if len(known) >= READABLE_TOPICS_MAX:
                    known.clear()
                verdict = known[identity, host, topic] = grants.deliver(topic, retained=False)
            return verdict

        return judge

    def lines(self) -> list[tuple[str, str, str]]:
        """Return (for whom, place, text) of every rule in force, for people."""
        if self._listed is None:
            return [("everybody", str(self._path), "the access list cannot be used: everything is denied")]
        return self._rules.lines()

    def use(self, users: UserTable) -> None:
        """Put these users and rules made by requests in force, replacing the previous ones."""
        self._users = users
        self.secrets.clear()
        self.secrets.update(users.secrets())
        self._combine()

    def role_for(self, identity: str, action: str, resource: str) -> str:
        """Return the role that allows this independently of the topic rules; empty when there is none."""
        if identity == NOBODY:
            return ""
        if action == REGISTER:
            return "broker" if resource in self._rules.brokers.get(identity, ()) else ""
        return min(ROLES[action] & self._rules.roles.get(identity, set()), default="")

    async def refresh(self) -> None:
        """Put a changed file in force; call it about once a second."""
        await self._file.refresh()

    async def keep_current(self) -> None:
        """Check the file periodically, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.refresh()

    def _grants_of(self, identity: str, host: str) -> Grants:
        known = (identity, host if self._users.sourced(identity) else "")
        grants = self._grants.get(known)
        if grants is None:
            anonymous = identity == NOBODY
            who = Identity("" if anonymous else identity, anonymous=anonymous, address=known[1])
            grants = self._grants[known] = Grants(self._rules, who)
            if len(self._grants) > GRANTS_MAX:
                self._grants.popitem(last=False)
        else:
            self._grants.move_to_end(known)
        return grants

    @staticmethod
    def _message_right(grants: Grants, action: str, resource: str) -> bool:
        topic = resource.removesuffix(BELOW) if action == CONSUME else resource
        group = group_of_derived(topic)
        if group:
            return _may_use_derived(grants, action, topic, group)
        if action == PUBLISH:
            return bool(grants.write_mask(resource.encode("utf-8", "surrogatepass")))
        if action == CONSUME:
            return bool(resource) and grants.read(resource).allowed
        return grants.touches(of_topic(resource)) if resource else grants.allows_something

    def _combine(self) -> None:
        self._rules = RuleSet() if self._listed is None else self._listed.joined(self._users.rules())
        self._grants.clear()
        self._readable = {}  # an answer being made still uses the old one

    def _applied(self, rules: RuleSet) -> None:
        self._listed = rules
        self._combine()
        self._log.info("access_list_read", path=str(self._path), rules=rules.count)

    def _failed(self, error: LightMQError) -> None:
        self._log.error("access_list_unusable", problem=str(error), consequence="the rules from before stay in force")


def _may_use_derived(grants: Grants, action: str, topic: str, group: str) -> bool:
    """Whether a group's retry or dead-letter topic may be read, written or found: as a member of the group, or by a
    rule for the topic itself. A deny of either comes first."""
    own = grants.read(of_group(group))
    if action == LOCATE:
        return own.allowed or grants.touches(of_topic(topic))
    if action == CONSUME:
        named = grants.read(of_topic(topic))
    else:
        named = grants.write(topic.encode("utf-8", "surrogatepass"), 0, retain=False)
    if DENIED in (own.reason, named.reason):
        return False
    return own.allowed or named.allowed
