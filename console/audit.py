"""The administrative acts of all brokers and controllers as one list, the newest first.

Each server records what it carried out. Every one is asked for its newest acts before a mark of its own; the answers
are merged by time, and what a page shows of a server moves that server's mark, so that no act is shown twice or left
out, however the servers' clocks differ. A server says its name: in one process broker and controller are the same one,
asked twice and listed once.
Invariant: a server that does not answer is named in `missing`, and passed over from then on. Loop rule: on the loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from console.cluster import BrokerGroupsView, json_object
from console.viewers import Viewer
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.transport.failures import ConnectionLost

Marks = dict[str, str]
"""Server -> acts before this id come next; empty: there are no more."""


@dataclass(frozen=True, slots=True)
class ActsPage:
    """A page of the merged list."""

    acts: list[dict[str, Any]]
    marks: Marks
    """Where the next page begins; every mark is empty on the last one."""
    missing: dict[str, str]

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return not any(self.marks.values())


async def acts_page(
    cluster: BrokerGroupsView, viewer: Viewer | None, fields: Mapping[str, str], limit: int, marks: Marks
) -> ActsPage:
    """Return the acts behind `marks`, none for the newest. Raises what the first server raised when all fail."""
    servers = [*await cluster.masters(), *await cluster.controllers()]
    asked = [name for name in servers if marks.get(name, "first")]
    found = await asyncio.gather(
        *(_ask(cluster, viewer, name, fields, limit, marks.get(name, "")) for name in asked), return_exceptions=True
    )
    following = dict.fromkeys(servers, "")
    missing: dict[str, str] = {}
    lists: dict[str, list[dict[str, Any]]] = {}
    failures: list[BaseException] = []
    known: set[str] = set()
    for name, answer in zip(asked, found, strict=True):
        if isinstance(answer, LightMQError):
            missing[name] = str(answer)
            failures.append(answer)
        elif isinstance(answer, BaseException):
            raise answer
        elif answer["server"] not in known:
            known.add(answer["server"])
            lists[name] = [{**record, "server": answer["server"]} for record in answer["records"]]
            following[name] = answer["next"]
    if asked and not lists:
        raise failures[0] if failures else ConnectionLost("no server answers")
    merged = heapq.merge(*lists.values(), key=lambda act: -int(act["time_ms"]))
    acts = [act for act, _ in zip(merged, range(limit), strict=False)]
    for name, listed in lists.items():
        shown = sum(each in acts for each in listed)
        if shown < len(listed):
            following[name] = str(int(listed[shown]["id"]) + 1)
    return ActsPage(acts, following, missing)


async def _ask(
    cluster: BrokerGroupsView, viewer: Viewer | None, name: str, fields: Mapping[str, str], limit: int, before: str
) -> dict[str, Any]:
    asked = {**fields, "limit": str(limit)} | ({"before": before} if before else {})
    controllers = await cluster.controllers()
    if name in controllers:
        return json_object(await cluster.ask_at(controllers[name], viewer, Code.AUDIT_LIST, asked))
    return json_object(await cluster.ask(name, viewer, Code.AUDIT_LIST, asked))
