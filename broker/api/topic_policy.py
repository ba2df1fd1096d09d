"""The access list of a broker as its policy: which access key may read, write and manage what.

    publish   topic name, `$sink/name`     a rule that allows writing it
    consume   filter, `$group/name`        a rule that allows reading all of it
    session   a client id or a request     role proxy, or admin for a look at one
    admin     anything                     role admin

A proxy may also publish and consume everything: it has asked its own rules for each of its clients. What `qos=`,
`retain=`, `retained=`, `history=` and `will=` narrow is the matter of MQTT clients and not looked at here.

Invariants: the rules in force come from one whole, valid file; while the first one is no use everything is denied,
later what was in force stays so. Both are errors in the log. Loop rule: on the loop's thread; `look` reads in a thread.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

from broker.api.access import ADMIN, ANONYMOUS, CONSUME, PUBLISH, SESSION
from remoting.access import acl_file
from remoting.access.identity import Identity
from remoting.access.rules import Grants, RuleSet
from remoting.protocol.errors import LightMQError
from runtime.watched_file import WatchedFile

GRANTS_MAX = 1_000
"""Keys whose compiled rules are remembered; the one not asked for the longest is forgotten first."""
ROLES = {PUBLISH: {"proxy"}, CONSUME: {"proxy"}, SESSION: {"proxy", "admin"}, ADMIN: {"admin"}}
"""Action -> roles to which it is allowed whatever the resource."""


class TopicPolicy:
    """Answers for one broker; see `access.Policy`."""

    def __init__(self, path: Path, log: Any) -> None:
        self._log = log
        self._rules = RuleSet()
        self._grants: OrderedDict[str, Grants] = OrderedDict()
        self._file = WatchedFile(path, acl_file.load, applied=self._applied, failed=self._failed)
        try:
            self._applied(self._file.first())
        except LightMQError as error:
            self._log.error("access_list_unusable", problem=str(error), consequence="everything is denied")

    def __call__(self, identity: str, action: str, resource: str) -> bool:
        """Whether the access key, or `anonymous`, may do this."""
        if not ROLES[action].isdisjoint(self._rules.roles.get(identity, ())):
            return True
        if action == PUBLISH:
            return bool(self._grants_of(identity).write_mask(resource.encode("utf-8", "surrogatepass")))
        return action == CONSUME and bool(resource) and self._grants_of(identity).read(resource).allowed

    async def look(self) -> None:
        """Put a changed file in force; call it about once a second."""
        await self._file.look()

    def _grants_of(self, identity: str) -> Grants:
        grants = self._grants.get(identity)
        if grants is None:
            anonymous = identity == ANONYMOUS
            grants = Grants(self._rules, Identity("" if anonymous else identity, anonymous=anonymous))
            self._grants[identity] = grants
            if len(self._grants) > GRANTS_MAX:
                self._grants.popitem(last=False)
        else:
            self._grants.move_to_end(identity)
        return grants

    def _applied(self, rules: RuleSet) -> None:
        self._rules = rules
        self._grants.clear()
        self._log.info("access_list_read", path=str(self._file.path), rules=rules.count)

    def _failed(self, error: LightMQError) -> None:
        self._log.error("access_list_unusable", problem=str(error), consequence="the rules from before stay in force")
