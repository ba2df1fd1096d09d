"""Messages whose invisible time the proxy extends while their push consumer has them.

The consumer keeps the handle it got with the message; the proxy knows the handle of the present ownership, and puts it
in the place of the consumer's. It extends the time after half of it, as long as the client has its telemetry stream,
and at most `renew_s_max`. Nothing here is durable: after the end of a proxy the time of a message ends as it was last
set, and another consumer gets it.
Invariant: an acknowledgement waits for an extension under way, so it always has the present handle; a message beyond
`limits.renewed_max` is given without extensions. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.config import GrpcConfig
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping.incoming import ReceiptHandle
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.statuses import Code
from grpc_proxy.metrics import GrpcMetrics
from remoting import background
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from runtime.clock import Clock

PASS_S = 0.5
"""Pause between two passes over what is due."""
AT_ONCE_MAX = 64
"""Extensions under way at a time."""


def moved(handle: ReceiptHandle, answer: Command) -> ReceiptHandle:
    """Return the handle that a change of the time has made of another one."""
    fields = answer.fields
    return replace(handle, pop_ms=int(fields["popTime"]), invisible_ms=int(fields["invisibleTime"]))


@dataclass(slots=True)
class RenewedMessage:
    """One message that a push consumer has."""

    caller: GrpcCaller
    group: str
    topic: str
    handle: ReceiptHandle
    """Of the present ownership."""
    since_ms: int
    renewing: asyncio.Task[None] | None = None


class Renewal:
    """Extends the time of messages."""

    def __init__(
        self,
        brokers: BrokerGroups,
        config: GrpcConfig,
        clock: Clock,
        metrics: GrpcMetrics,
        is_here: Callable[[str], bool],
    ) -> None:
        self._brokers = brokers
        self._config = config
        self._clock = clock
        self._is_here = is_here
        self._count = metrics.renewals
        self._watched: dict[str, RenewedMessage] = {}
        self._due: list[tuple[int, str]] = []
        """Heap of (when to extend, handle as the client has it); entries of messages that are done are skipped."""
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._watched)

    def start(self) -> None:
        """Begin to extend what is due."""
        self._task = background.task(self._run(), "extends the time of given messages")

    async def stop(self) -> None:
        """Extend nothing any more."""
        tasks = [one.renewing for one in self._watched.values() if one.renewing is not None]
        tasks += [self._task] if self._task is not None else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watched.clear()

    def watch(self, caller: GrpcCaller, group: str, topic: str, handle: ReceiptHandle) -> None:
        """Extend the time of a message from now on."""
        if len(self._watched) >= self._config.limits.renewed_max:
            self._count.child("beyond_limit").value += 1
            return
        self._watched[str(handle)] = RenewedMessage(caller, group, topic, handle, self._clock.now_ms())
        self._plan(str(handle), handle)

    async def take(self, given: str, handle: ReceiptHandle) -> ReceiptHandle:
        """Return the present handle for one that a client gives, and extend its message no more."""
        found = self._watched.pop(given, None)
        if found is None:
            return handle
        if found.renewing is not None:
            await asyncio.gather(found.renewing, return_exceptions=True)
        return found.handle

    def _plan(self, given: str, handle: ReceiptHandle) -> None:
        heapq.heappush(self._due, (handle.pop_ms + handle.invisible_ms // 2, given))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PASS_S)
            self.renew_due()

    def renew_due(self) -> None:
        """Begin the extensions that are due, as many as may be under way at a time."""
        now_ms = self._clock.now_ms()
        while self._due and self._due[0][0] <= now_ms and self._under_way < AT_ONCE_MAX:
            _at, given = heapq.heappop(self._due)
            self._begin(given, now_ms)

    def _begin(self, given: str, now_ms: int) -> None:
        """Begin to extend one message, if its consumer is still there."""
        found = self._watched.get(given)
        if found is None:
            return
        if not self._is_here(found.caller.client_id):
            self._give_up(given, "client_gone")
        elif now_ms - found.since_ms > self._config.renew_s_max * 1_000:
            self._give_up(given, "too_long")
        else:
            self._under_way += 1
            found.renewing = asyncio.get_running_loop().create_task(self._renew(given, found))

    async def _renew(self, given: str, found: RenewedMessage) -> None:
        fields = found.handle.fields(found.group, found.topic)
        fields["invisibleTime"] = str(found.handle.invisible_ms)
        try:
            answer = await self._owner(found).request(found.caller, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        except Refused:
            self._give_up(given, "refused")
            return
        except LightMQError:
            heapq.heappush(self._due, (self._clock.now_ms() + int(PASS_S * 1_000), given))
            self._count.child("unanswered").value += 1
            return
        finally:
            found.renewing = None
            self._under_way -= 1
        found.handle = moved(found.handle, answer)
        self._count.child("extended").value += 1
        self._plan(given, found.handle)

    def _owner(self, found: RenewedMessage) -> BrokerLink:
        return self._brokers.require(found.handle.broker, Code.INVALID_RECEIPT_HANDLE, "the receipt handle")

    def _give_up(self, given: str, why: str) -> None:
        self._watched.pop(given, None)
        self._count.child(why).value += 1
