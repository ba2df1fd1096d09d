"""What the front counts: sockets taken and refused, bytes, violations.

Invariant: every connection this room refuses or closes adds to a counter with its reason.
Thread rule: written on the loop's thread only.
"""

from __future__ import annotations

from runtime.metrics import Registry


class FrontCounters:
    """Counters of the listener and its connections."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "certificate_failures",
        "certificate_reloads",
        "connections",
        "handshake_failures",
        "opened",
        "reads_paused",
        "refused",
        "violations",
    )

    def __init__(self, registry: Registry) -> None:
        self.connections = registry.gauge("rocketmq_mqtt_connections", "Open MQTT sockets")
        self.opened = registry.counter("rocketmq_mqtt_sockets_opened_total", "MQTT sockets taken")
        self.refused = registry.counter(
            "rocketmq_mqtt_sockets_refused_total", "MQTT sockets closed at once because of a limit", ("reason",)
        )
        self.handshake_failures = registry.counter(
            "rocketmq_mqtt_handshakes_failed_total",
            "Sockets closed before MQTT began on them: in the PROXY header, TLS or the WebSocket handshake",
            ("reason",),
        )
        self.certificate_reloads = registry.counter(
            "rocketmq_mqtt_certificate_reloads_total", "Times a changed certificate was taken into use"
        )
        self.certificate_failures = registry.counter(
            "rocketmq_mqtt_certificate_failures_total", "Times a changed certificate was refused and the old one kept"
        )
        self.violations = registry.counter(
            "rocketmq_mqtt_violations_total",
            "Connections closed because the client broke a rule or a limit",
            ("reason",),
        )
        self.bytes_in = registry.counter("rocketmq_mqtt_socket_bytes_in_total", "Bytes read from MQTT sockets")
        self.bytes_out = registry.counter("rocketmq_mqtt_socket_bytes_out_total", "Bytes written to MQTT sockets")
        self.reads_paused = registry.counter(
            "rocketmq_mqtt_slow_readers_total", "Times a client was not read because it did not read its answers"
        )
