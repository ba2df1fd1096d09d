"""PullMessage, UpdateOffset, GetOffset and QueryOffset: consumption by queue and offset, without ownership.

A pull answers with a status, messages and the offset to continue at; it waits at the broker like a receive. A group
that pops the topic is refused. Invariant: an offset is stored when the call is answered. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.config import GrpcConfig
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping.incoming import incoming, plain_body
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.settings import expression_of
from grpc_proxy.mapping.statuses import CallRejected, Code, status
from grpc_proxy.mapping.values import group_of, ms_of, topic_of, wait_ms_of
from grpc_proxy.metrics import GrpcMetrics
from grpc_proxy.stubs import definition, service
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.records.stored_message import iter_stored
from remoting.transport.failures import checked

SUSPEND, SUBSCRIPTION = 0x2, 0x4
"""Bits of a pull's `sysFlag`: wait for a message; the filter is in the request."""
WITHOUT_MESSAGES = {
    ResponseCode.PULL_NOT_FOUND: Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY: Code.MESSAGE_NOT_FOUND,
    ResponseCode.PULL_OFFSET_MOVED: Code.ILLEGAL_OFFSET,
}
"""Answers to a pull that have only the offset to continue at."""
Policy = definition.QueryOffsetPolicy
ENDS = {Policy.BEGINNING: RequestCode.GET_MIN_OFFSET, Policy.END: RequestCode.GET_MAX_OFFSET}


class Offsets:
    """Reads queues by offset, and keeps the offsets of groups."""

    def __init__(self, brokers: BrokerGroups, config: GrpcConfig, metrics: GrpcMetrics) -> None:
        self._brokers = brokers
        self._config = config
        self._metrics = metrics

    async def pull(
        self, caller: GrpcCaller, request: Any, left_ms: int | None, send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Send what a queue has from an offset on. `left_ms`: until the client's deadline."""
        queue, margin_ms = request.message_queue, (left_ms or 0) // 2
        wait_ms = wait_ms_of(request, self._config.long_poll_ms_max, left_ms, margin_ms)
        kind, expression = expression_of(request.filter_expression)
        fields = {
            **self._place(queue, group_of(request.group)), "queueOffset": str(request.offset), "commitOffset": "0",
            "maxMsgNums": str(max(1, min(request.batch_size, self._config.limits.batch_max))), "subVersion": "0",
            "sysFlag": str(SUBSCRIPTION | (SUSPEND if wait_ms > 0 else 0)), "subscription": expression,
            "suspendTimeoutMillis": str(wait_ms), "expressionType": kind,
        }  # fmt: skip
        answer = await self._at(queue).answer(caller, RequestCode.PULL_MESSAGE, fields, wait_ms=wait_ms)
        found = WITHOUT_MESSAGES.get(answer.code)
        if found is None:
            checked(answer)
        await send(service.PullMessageResponse(status=status(Code.OK if found is None else found, answer.remark or "")))
        for stored in iter_stored(answer.body) if found is None else ():
            body, is_plain = plain_body(stored)
            self._metrics.unreadable.value += not is_plain
            message = incoming(stored, body, topic_of(queue.topic), queue.topic.resource_namespace)
            await send(service.PullMessageResponse(message=message))
        await send(service.PullMessageResponse(next_offset=int(answer.fields["nextBeginOffset"])))

    async def update_offset(self, caller: GrpcCaller, request: Any) -> Any:
        """Keep the offset at which a group continues in a queue."""
        fields = self._place(request.message_queue, group_of(request.group))
        if request.offset < 0:
            raise CallRejected(Code.ILLEGAL_OFFSET, f"the offset {request.offset} is negative")
        fields["commitOffset"] = str(request.offset)
        await self._at(request.message_queue).request(caller, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        return service.UpdateOffsetResponse(status=status())

    async def get_offset(self, caller: GrpcCaller, request: Any) -> Any:
        """The offset that a group has stored for a queue."""
        fields = self._place(request.message_queue, group_of(request.group)) | {"setZeroIfNotFound": "false"}
        answer = await self._at(request.message_queue).request(caller, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        return service.GetOffsetResponse(status=status(), offset=int(answer.fields["offset"]))

    async def query_offset(self, caller: GrpcCaller, request: Any) -> Any:
        """The first offset of a queue, the one behind its last, or that of a time."""
        fields = self._place(request.message_queue)
        code = ENDS.get(request.query_offset_policy)
        if code is None:
            code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            fields["timestamp"] = str(ms_of(request.timestamp))
        answer = await self._at(request.message_queue).request(caller, code, fields)
        return service.QueryOffsetResponse(status=status(), offset=int(answer.fields["offset"]))

    def _at(self, queue: Any) -> BrokerLink:
        """The broker group that has a queue."""
        return self._brokers.require(queue.broker.name, Code.BAD_REQUEST, "the queue")

    def _place(self, queue: Any, group: str = "") -> dict[str, str]:
        """The fields that name a queue, and a group."""
        if queue.id < 0:
            raise CallRejected(Code.BAD_REQUEST, f"a queue has a number from 0 on, not {queue.id}")
        fields = {"topic": topic_of(queue.topic), "queueId": str(queue.id)}
        return fields | {"consumerGroup": group} if group else fields
