"""What the broker's administrators set for a consumer group: whether it consumes in order, how often it tries, and
whether it reads lite topics.

Kept for some seconds, because every receive needs it. Invariant: known only to clients that may consume with the group.
Loop rule: on the loop's thread.
"""

from __future__ import annotations

import msgspec

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.mapping.metadata import GrpcCaller
from remoting.protocol.bodies.pull_body import FROM_REPLICA_FIELD
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from runtime.clock import Clock

KEPT_NS = 5_000_000_000
GROUPS_MAX = 10_000
"""Groups remembered at a time; beyond it all are dropped."""
LITE_BIND_TOPIC, LITE_CLIENT_QUOTA, LITE_CLIENT_QUOTA_DEFAULT = "lite.bind.topic", "lite.sub.client.quota", 2_000


class GroupRules(msgspec.Struct, rename="camel"):
    """What the proxy reads of the answer to GET_SUBSCRIPTIONGROUP_CONFIG."""

    consume_message_orderly: bool = False
    retry_max_times: int = 16
    attributes: dict[str, str] = {}

    @property
    def lite_topic_parent(self) -> str:
        """The topic whose lite topics the group reads; empty for a group that reads none."""
        return self.attributes.get(LITE_BIND_TOPIC, "")

    @property
    def lite_quota(self) -> int:
        """Most lite topics of one client; -1 for any number."""
        return int(self.attributes.get(LITE_CLIENT_QUOTA, LITE_CLIENT_QUOTA_DEFAULT))


_decode = msgspec.json.Decoder(GroupRules).decode


class ConsumedGroups:
    """Consumer groups as the broker has them."""

    def __init__(self, brokers: BrokerGroups, clock: Clock) -> None:
        self._brokers = brokers
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[int, GroupRules]] = {}

    async def rules(self, caller: GrpcCaller, group: str) -> GroupRules:
        """The rules of a group for a client; a group that does not exist has the defaults. Raises LightMQError."""
        known = self._known.get((caller.key, group))
        if known is not None and self._clock.monotonic_ns() - known[0] < KEPT_NS:
            return known[1]
        try:
            asked = {"group": group, FROM_REPLICA_FIELD: "true"}
            answer = await self._brokers.request(caller, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, asked)
            found = _decode(answer.body)
        except Refused as refused:
            if refused.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            return GroupRules()
        except msgspec.MsgspecError as error:
            raise LightMQError(f"the broker's answer about the group {group!r} is malformed: {error}") from error
        if len(self._known) >= GROUPS_MAX:
            self._known.clear()
        self._known[caller.key, group] = self._clock.monotonic_ns(), found
        return found
