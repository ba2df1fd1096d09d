"""SyncLiteSubscription: the lite topics that a consumer subscribes to.

The broker keeps subscriptions in memory; clients repeat all of theirs every 30 s, so a proxy keeps none. Pops of lite
topics are in `receiving`, notifications about subscriptions that were taken over in `clients`.
Invariant: the subscriptions of a client are changed only with the rights of its key. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from typing import Any

import msgspec

from grpc_proxy.config import GrpcConfig
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping import lite as mapping
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.statuses import status
from grpc_proxy.stubs import service
from remoting.protocol.frames.codes import RequestCode


class LiteSubscriptionSync:
    """Passes changes of subscriptions on to the broker."""

    def __init__(self, link: BrokerLink, config: GrpcConfig) -> None:
        self._link = link
        self._chars_max = config.limits.lite_topic_chars_max

    async def sync(self, caller: GrpcCaller, request: Any) -> Any:
        """Subscribe to lite topics or unsubscribe; all as one change."""
        body = mapping.change(caller.client_id, request, self._chars_max)
        await self._link.request(caller, RequestCode.LITE_SUBSCRIPTION_CTL, {}, msgspec.json.encode(body))
        return service.SyncLiteSubscriptionResponse(status=status())
