"""Admission of calls: the broker checks each client's signature, and its answer is kept for a second.

Clients sign nothing but the time of a call, so every call of a second has the same signature, and one question serves
all of them. The rights to topics and groups are checked by the broker with each request.
Invariant: no call is served whose client the broker has not admitted within `KEPT_NS`; the proxy knows no secret. Loop
rule: on the loop's thread.
"""

from __future__ import annotations

from collections import OrderedDict

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.statuses import CallRejected, Code
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode
from runtime.clock import Clock

KEPT_NS = 1_000_000_000
ADMITTED_MAX = 10_000
"""Admissions remembered at a time; the oldest is dropped first."""
Shown = tuple[str, str, str, bool]


class ClientAdmission:
    """Which clients the broker admits."""

    def __init__(self, brokers: BrokerGroups, clock: Clock) -> None:
        self._brokers = brokers
        self._clock = clock
        self._admitted: OrderedDict[Shown, int] = OrderedDict()

    async def ask(self, caller: GrpcCaller | None = None) -> None:
        """Have a client admitted; without one, the proxy itself. CallRejected(UNAUTHORIZED) when it is not."""
        shown: Shown = ("", "", "", True)
        if caller is not None:
            shown = caller.key, caller.date_time, caller.signature, caller.loopback
        now_ns = self._clock.monotonic_ns()
        known_ns = self._admitted.get(shown)
        if known_ns is not None and now_ns - known_ns < KEPT_NS:
            return
        key, date_time, signature, loopback = shown
        fields = {
            "clientKey": key, "clientTime": date_time, "clientSignature": signature,
            "clientLoopback": str(loopback).lower(),
        }  # fmt: skip
        try:
            answer = await self._brokers.request(None, RequestCode.ADMIT_CLIENT, fields)
        except Refused as refused:
            raise CallRejected(Code.UNAUTHORIZED, refused.remark) from refused
        if caller is None:
            self._brokers.learn(answer.fields["brokerName"])
        self._admitted[shown] = now_ns
        self._admitted.move_to_end(shown)
        if len(self._admitted) > ADMITTED_MAX:
            self._admitted.popitem(last=False)
