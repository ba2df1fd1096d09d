"""The calls of RocketMQ's gRPC service: from bytes to a handler and back.

    name -> (type of request, type of response, handler)       one table for calls with one answer
    ReceiveMessage, PullMessage                                 answers as a stream
    Telemetry                                                   a stream in both directions

Every call is read, admitted and answered here; a handler gets a parsed request of an admitted client. What is refused,
wherever, becomes the status of the answer and one count.
Invariant: a call that reaches the proxy is answered with a status of the service, whatever its bytes are; a stream that
is not read ends with gRPC's RESOURCE_EXHAUSTED. Loop rule: on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from grpc_proxy.access import ClientAdmission
from grpc_proxy.acknowledging import Acknowledging
from grpc_proxy.clients import SLOW, GrpcClients
from grpc_proxy.http2.grpc_form import CallFault, StatusCode
from grpc_proxy.listening.call import Call, CallMethod, ClientLeft
from grpc_proxy.lite import LiteSubscriptionSync
from grpc_proxy.mapping.metadata import GrpcCaller, caller_of, shown_by
from grpc_proxy.mapping.statuses import CallRejected, Code, reason_name, status, status_of
from grpc_proxy.metrics import GrpcMetrics
from grpc_proxy.offsets import Offsets
from grpc_proxy.receiving import Receiving
from grpc_proxy.routes import Routes
from grpc_proxy.sending import Sending
from grpc_proxy.stubs import service
from remoting.protocol.errors import LightMQError
from runtime.logs import get_logger

NAME = "apache.rocketmq.v2.MessagingService"
MS_PER_S = 1_000
CALLERS_MAX = 10_000
"""Clients remembered as their metadata names them; beyond it all are read again."""
Answer = Callable[[GrpcCaller, Any], Awaitable[Any]]
Streamed = Callable[[GrpcCaller, Any, int | None, Callable[[Any], Awaitable[None]]], Awaitable[None]]


class MessagingService:
    """The calls, by name."""

    def __init__(
        self,
        admission: ClientAdmission,
        metrics: GrpcMetrics,
        *,
        clients: GrpcClients,
        routes: Routes,
        sending: Sending,
        receiving: Receiving,
        acknowledging: Acknowledging,
        offsets: Offsets,
        lite: LiteSubscriptionSync,
    ) -> None:
        self._admission = admission
        self._metrics = metrics
        self._clients = clients
        self._log = get_logger("grpc")
        self._callers: dict[tuple[bytes | str | None, ...], GrpcCaller] = {}
        self._streamed: Mapping[str, Streamed] = {"ReceiveMessage": receiving.receive, "PullMessage": offsets.pull}
        self._answers: Mapping[str, Answer] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": clients.heartbeat,
            "NotifyClientTermination": clients.terminate,
            "SendMessage": sending.send_message,
            "RecallMessage": sending.recall_message,
            "EndTransaction": sending.end_transaction,
            "AckMessage": acknowledging.ack_message,
            "ChangeInvisibleDuration": receiving.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": receiving.forward_to_dead_letters,
            "UpdateOffset": offsets.update_offset,
            "GetOffset": offsets.get_offset,
            "QueryOffset": offsets.query_offset,
            "SyncLiteSubscription": lite.sync,
        }

    def methods(self) -> dict[bytes, CallMethod]:
        """The table for a listener, by path."""
        table = {name: CallMethod(single=self._single(name)) for name in self._answers}
        table |= {name: CallMethod(several=self._several(name)) for name in self._streamed}
        table["Telemetry"] = CallMethod(stream=self._telemetry)
        return {f"/{NAME}/{name}".encode(): method for name, method in table.items()}

    def _single(self, name: str) -> Callable[[Call, bytes], Awaitable[bytes]]:
        """The call with one answer of this name."""
        answer, calls = self._answers[name], self._metrics.calls.child(name)
        asked, answered = getattr(service, f"{name}Request"), getattr(service, f"{name}Response")

        async def serve(call: Call, raw: bytes) -> bytes:
            calls.value += 1
            try:
                found = await answer(await self._admitted(call), parsed(asked, raw))
            except Exception as error:  # noqa: BLE001 - the client always gets a status
                found = answered(status=self._refused(error, name))
            return bytes(found.SerializeToString())

        return serve

    def _several(self, name: str) -> Callable[[Call, bytes], Awaitable[None]]:
        """The call of this name, whose answers are a stream."""
        answer, calls = self._streamed[name], self._metrics.calls.child(name)
        asked, answered = getattr(service, f"{name}Request"), getattr(service, f"{name}Response")

        async def serve(call: Call, raw: bytes) -> None:
            calls.value += 1

            async def send(message: Any) -> None:
                await call.write(message.SerializeToString())

            try:
                caller = await self._admitted(call)
                left_s = call.time_left_s()
                await answer(caller, parsed(asked, raw), None if left_s is None else int(left_s * MS_PER_S), send)
            except ClientLeft:
                raise
            except Exception as error:  # noqa: BLE001 - the client always gets a status
                await send(answered(status=self._refused(error, name)))

        return serve

    async def _telemetry(self, call: Call) -> None:
        self._metrics.calls.child("Telemetry").value += 1
        try:
            caller = await self._admitted(call)
        except LightMQError as error:
            refused = service.TelemetryCommand(status=self._refused(error, "Telemetry"))
            await call.write(refused.SerializeToString())
            return
        why = await self._clients.telemetry(caller, call, call.write)
        if why == SLOW:
            self._log.warning("stream_ended", client=caller.client_id, reason=why)
        if why:
            raise CallFault(StatusCode.RESOURCE_EXHAUSTED if why == SLOW else StatusCode.UNAVAILABLE, why, why)

    async def _admitted(self, call: Call) -> GrpcCaller:
        shown = shown_by(call.fields, call.host)
        caller = self._callers.get(shown)
        if caller is None:
            caller = caller_of(call.fields, call.host)
            if len(self._callers) >= CALLERS_MAX:
                self._callers.clear()
            self._callers[shown] = caller
        await self._admission.ask(caller)
        return caller

    def _refused(self, error: Exception, name: str) -> Any:
        """The status for what went wrong, counted; an error of our own is logged."""
        if isinstance(error, LightMQError):
            found = status_of(error)
        else:
            self._log.exception("call_failed", call=name)
            found = status(Code.INTERNAL_SERVER_ERROR, "the proxy failed; its log has the reason")
        self._metrics.refuse(reason_name(found.code))
        return found


def parsed(kind: Any, raw: bytes) -> Any:
    """Return the request in these bytes. CallRejected(BAD_REQUEST) when they are malformed."""
    try:
        return kind.FromString(raw)
    except Exception as error:  # each implementation of protobuf has errors of its own
        raise CallRejected(Code.BAD_REQUEST, f"the request is malformed: {error}") from error
