"""Consumer groups as one feature: its views, what gathers in a turn, its requests and its upkeep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.client_requests import ClientRequests, QueueLocks
from broker.groups.clients import Clients
from broker.groups.groups import Groups
from broker.groups.offset_requests import OffsetRequests
from broker.groups.offsets import GroupOffsets, OffsetGather
from broker.groups.traffic import GroupTraffic
from broker.requests.tools import Feature, RequestTools
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import FLAG_ONEWAY, Command

if TYPE_CHECKING:
    from broker.topics.feature import TopicFeature
    from remoting.transport.contracts import Handler


class ConsumerGroups(Feature):
    """Everything a broker knows of consumer groups."""

    def __init__(self, tools: RequestTools, topics: TopicFeature) -> None:
        self.groups = Groups(tools.store, topics.table)
        self.offsets = GroupOffsets(tools.store)
        self.commits = OffsetGather(self.offsets, tools.store, tools.metrics)
        self.clients = Clients(expiry_ms=tools.config.client_expiry_s * 1_000, on_group_changed=self._changed)
        self.traffic = GroupTraffic()
        self._locks = QueueLocks()
        self._requests = (
            ClientRequests(tools, groups=self.groups, clients=self.clients, locks=self._locks),
            OffsetRequests(
                tools, topics=topics.table, queues=topics.queues, offsets=self.offsets, group_commits=self.commits
            ),
        )

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {code: handler for requests in self._requests for code, handler in requests.handlers().items()}

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Forget clients that are silent, locks and figures nobody renewed; how many clients ended, by reason."""
        self._locks.expire(now_ms)
        self.traffic.expire(now_ms)
        return {"client_silent": self.clients.expire(now_ms)}

    def status(self) -> dict[str, int]:
        """How many clients are known."""
        return {"clients": len(self.clients)}

    def _changed(self, group: str) -> None:
        for client in self.clients.clients_of(group):
            fields = {"consumerGroup": group}
            client.peer.send(Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=FLAG_ONEWAY, fields=fields))
