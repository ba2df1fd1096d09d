"""The counters of the gRPC proxy, declared once.

Invariant: every call that is refused and every stream that is ended has a counter with a reason here. Thread rule:
written on the event loop's thread only.
"""

from __future__ import annotations

from runtime.metrics import Registry


class GrpcMetrics:
    """What a gRPC proxy counts."""

    __slots__ = (
        "brokers", "calls", "clients", "connections", "dropped_commands", "ended_calls", "ended_connections",
        "ended_streams", "refused", "renewals", "renewed", "returned", "unreadable",
    )  # fmt: skip

    def __init__(self, registry: Registry) -> None:
        counter = registry.counter
        self.calls = counter("rocketmq_grpc_calls_total", "Calls of gRPC clients that were answered", ("method",))
        self.refused = counter(
            "rocketmq_grpc_refused_total", "Calls of gRPC clients, and parts of them, that were refused", ("reason",)
        )
        self.ended_streams = counter(
            "rocketmq_grpc_streams_ended_total", "Telemetry streams ended by the proxy", ("reason",)
        )
        self.ended_calls = counter(
            "rocketmq_grpc_calls_ended_total", "Calls that the proxy ended with a status of gRPC's own", ("reason",)
        )
        self.ended_connections = counter(
            "rocketmq_grpc_connections_ended_total", "Connections that the proxy refused or ended", ("reason",)
        )
        self.renewals = counter(
            "rocketmq_grpc_renewals_total", "Extensions of the invisible time of messages", ("result",)
        )
        self.returned = counter(
            "rocketmq_grpc_returned_messages_total", "Messages given back because their client did not take them"
        )
        self.dropped_commands = counter(
            "rocketmq_grpc_commands_dropped_total",
            "Commands of the broker for which no client was connected",
            ("command",),
        )
        self.unreadable = counter(
            "rocketmq_grpc_unreadable_messages_total", "Bodies that a gRPC client got compressed as they are stored"
        )

        self.brokers = registry.gauge("rocketmq_grpc_brokers", "Broker groups to which the gRPC proxy is connected")
        self.connections = registry.gauge("rocketmq_grpc_connections", "Connections of gRPC clients")
        self.clients = registry.gauge("rocketmq_grpc_clients", "gRPC clients with a telemetry stream")
        self.renewed = registry.gauge("rocketmq_grpc_renewed_messages", "Messages whose invisible time is extended")

    def refuse(self, reason: str, count: int = 1) -> None:
        """Add calls, or parts of one, that were refused for this reason."""
        self.refused.child(reason).value += count

    def end_call(self, reason: str) -> None:
        """Add a call that was ended by a rule of gRPC."""
        self.ended_calls.child(reason).value += 1

    def end_connection(self, reason: str) -> None:
        """Add a connection that was refused or ended."""
        self.ended_connections.child(reason).value += 1
