"""SyncLiteSubscription: the lite topics that a consumer subscribes to.

A broker keeps subscriptions in memory; clients repeat all of theirs every 30 s, so a proxy keeps none. Every broker
group gets them, since the messages of a lite topic stay where they are when groups are added; those that are the home
of one of them must answer. Pops of lite topics are in `receiving`, notifications about subscriptions that were taken
over in `clients`.
Invariant: the subscriptions of a client are changed only with the rights of its key. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from typing import Any

import msgspec

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.config import GrpcConfig
from grpc_proxy.mapping import lite as mapping
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.statuses import status
from grpc_proxy.mapping.values import topic_of
from grpc_proxy.routes import Routes
from grpc_proxy.stubs import service
from remoting.protocol.frames.codes import RequestCode


class LiteSubscriptionSync:
    """Passes changes of subscriptions on to the broker."""

    def __init__(self, brokers: BrokerGroups, routes: Routes, config: GrpcConfig) -> None:
        self._brokers = brokers
        self._routes = routes
        self._chars_max = config.limits.lite_topic_chars_max

    async def sync(self, caller: GrpcCaller, request: Any) -> Any:
        """Subscribe to lite topics or unsubscribe; all as one change."""
        body = mapping.change(caller.client_id, request, self._chars_max)
        places = await self._routes.places(topic_of(request.topic))
        await self._brokers.everywhere(
            caller, RequestCode.LITE_SUBSCRIPTION_CTL, {}, msgspec.json.encode(body),
            among=places.readable(), needed=places.homes_of(request.lite_topic_set),
        )  # fmt: skip
        return service.SyncLiteSubscriptionResponse(status=status())
