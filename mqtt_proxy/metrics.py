"""The proxy's counters, declared once, by subject.

What clients connect, publish and get is counted by the listener they came by (`tcp`, `tls`, `ws`, `wss`) and by their
version of MQTT (`3.1.1`, with 3.1, and `5`): a client has one `ClientCounters` for as long as it is connected.

Invariant: every path that drops, refuses or closes has a counter with a reason here and logs an event.
Thread rule: written on the event loop's thread only; plain integers on the hot path.
"""

from __future__ import annotations

from runtime.metrics import Counter, Histogram, Registry

LISTENER, CLIENT = ("listener",), ("listener", "protocol")
"""Labels of sockets, and of clients, whose version is known."""


class SessionCounters:
    """Connections with a session, and their wills."""

    __slots__ = ("_closed", "flow_requests", "opened", "refused", "taken_over", "will_failures", "wills")

    def __init__(self, registry: Registry) -> None:
        counter = registry.counter
        self.opened = counter("rocketmq_mqtt_connects_total", "Sessions opened for MQTT clients", CLIENT)
        self._closed = counter("rocketmq_mqtt_closes_total", "Connections of sessions that ended", ("reason",))
        self.refused = counter("rocketmq_mqtt_connects_refused_total", "CONNECTs refused", ("reason",))
        self.taken_over = counter(
            "rocketmq_mqtt_takeovers_total", "Connections ended because their client id came again"
        )
        self.flow_requests = counter("rocketmq_mqtt_flow_requests_total", "Requests that note steps of QoS 2")
        self.wills = counter("rocketmq_mqtt_wills_total", "Wills published")
        self.will_failures = counter("rocketmq_mqtt_wills_failed_total", "Wills the broker did not accept", ("reason",))

    def closed(self, reason: str) -> Counter:
        """Closes by their reason; only the part before a colon counts, the rest is detail."""
        return self._closed.child(reason.partition(":")[0])


class PublishCounters:
    """From a client's PUBLISH to the broker's confirmation."""

    __slots__ = (
        "acknowledge_s", "bytes_in", "confirmed", "pauses", "rate_pauses", "refused", "repeated", "requests",
    )  # fmt: skip

    def __init__(self, registry: Registry) -> None:
        counter = registry.counter
        self.confirmed = counter(
            "rocketmq_mqtt_messages_in_total", "Messages confirmed by the broker for publishers", CLIENT
        )
        self.acknowledge_s = registry.histogram(
            "rocketmq_mqtt_publish_acknowledge_seconds",
            "From receipt until confirmed; of each append request the message that waited longest",
            labels=CLIENT,
        )
        self.bytes_in = counter("rocketmq_mqtt_bytes_in_total", "Bytes of PUBLISH packets received")
        self.requests = counter("rocketmq_mqtt_append_requests_total", "Append requests sent to the broker")
        self.refused = counter("rocketmq_mqtt_publishes_refused_total", "Messages not accepted; see below", ("reason",))
        self.repeated = counter(
            "rocketmq_mqtt_publishes_repeated_total", "Messages sent again because the broker was lost"
        )
        self.pauses = counter("rocketmq_mqtt_publish_pauses_total", "Times publishers were not read for a while")
        self.rate_pauses = counter(
            "rocketmq_mqtt_rate_pauses_total", "Times a client was not read because of a publish quota", ("quota",)
        )


class DeliveryCounters:
    """From the broker's queues to the sockets of subscribers."""

    __slots__ = ("_skipped", "acknowledged", "delivery_s", "merged", "pulled", "pulls", "repeated", "retained", "sent")

    def __init__(self, registry: Registry) -> None:
        counter = registry.counter
        self.sent = counter("rocketmq_mqtt_messages_out_total", "Messages handed to subscribers' sockets", CLIENT)
        self.delivery_s = registry.histogram(
            "rocketmq_mqtt_delivery_seconds",
            "From storing a message until the proxy has it for its subscribers; one value for each notification",
        )
        self.repeated = counter("rocketmq_mqtt_redeliveries_total", "Messages sent again after a session resumed")
        self.retained = counter("rocketmq_mqtt_retained_out_total", "Retained messages sent on SUBSCRIBE")
        self.merged = counter(
            "rocketmq_mqtt_overlaps_merged_total", "Second copies spared by overlapping subscriptions of one session"
        )
        self.acknowledged = counter("rocketmq_mqtt_messages_acknowledged_total", "Deliveries acknowledged by clients")
        self._skipped = counter(
            "rocketmq_mqtt_messages_skipped_total", "Messages a session could no longer be given", ("reason",)
        )
        self.pulls = counter("rocketmq_mqtt_pull_requests_total", "Pull requests sent to the broker")
        self.pulled = counter("rocketmq_mqtt_pulled_records_total", "Records pulled from the broker")

    def skipped(self, reason: str) -> Counter:
        """Messages that a session missed, by reason: retention, queue deleted, log shorter, note full."""
        return self._skipped.child(reason)


class SubscriptionCounters:
    """Filters of connected clients."""

    __slots__ = ("open", "refused", "revoked", "shared_late")

    def __init__(self, registry: Registry) -> None:
        self.open = registry.gauge("rocketmq_mqtt_subscriptions", "Subscriptions of connected clients")
        self.refused = registry.counter(
            "rocketmq_mqtt_subscriptions_refused_total", "Filters refused in a SUBACK", ("reason",)
        )
        self.revoked = registry.counter(
            "rocketmq_mqtt_subscriptions_revoked_total", "Subscriptions ended because the rules no longer allow them"
        )
        self.shared_late = registry.counter(
            "rocketmq_mqtt_shared_late_total", "Messages of shared subscriptions that came for a session that had ended"
        )


class ClientCounters:
    """What is counted of clients of one version of MQTT that came by one listener."""

    __slots__ = ("acknowledge_s", "confirmed", "opened", "sent")

    def __init__(self, opened: Counter, confirmed: Counter, sent: Counter, acknowledge_s: Histogram) -> None:
        self.opened = opened
        self.confirmed = confirmed
        self.sent = sent
        self.acknowledge_s = acknowledge_s


class ProxyMetrics:
    """The proxy's counters; hot ones as attributes of a group, rare ones by reason."""

    __slots__ = ("_clients", "deliveries", "publishes", "registry", "sessions", "subscriptions")

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.sessions = SessionCounters(registry)
        self.publishes = PublishCounters(registry)
        self.deliveries = DeliveryCounters(registry)
        self.subscriptions = SubscriptionCounters(registry)
        self._clients: dict[tuple[str, str], ClientCounters] = {}

    def clients(self, listener: str, protocol: str) -> ClientCounters:
        """The counters of clients that came by this listener and speak this version of MQTT."""
        labels = (listener, protocol)
        found = self._clients.get(labels)
        if found is None:
            published = self.publishes
            found = self._clients[labels] = ClientCounters(
                self.sessions.opened.child(*labels),
                published.confirmed.child(*labels),
                self.deliveries.sent.child(*labels),
                published.acknowledge_s.child(*labels),
            )
        return found


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
        self.connections = registry.gauge("rocketmq_mqtt_connections", "Open MQTT sockets", LISTENER)
        self.opened = registry.counter("rocketmq_mqtt_sockets_opened_total", "MQTT sockets taken", LISTENER)
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


class AccessCounters:
    """Counters of authentication and authorization."""

    __slots__ = ("authentications", "denials", "password_file_problems", "reloads", "undecided")

    def __init__(self, registry: Registry) -> None:
        self.authentications = registry.counter(
            "rocketmq_mqtt_authentications_total", "CONNECTs by the result of authentication", ("result", "method")
        )
        self.undecided = registry.counter(
            "rocketmq_mqtt_authentications_undecided_total",
            "CONNECTs whose proof was not checked, by reason",
            ("reason", "method"),
        )
        self.denials = registry.counter("rocketmq_mqtt_denials_total", "Actions not allowed", ("action", "reason"))
        self.reloads = registry.counter(
            "rocketmq_mqtt_access_reloads_total", "Times a file was read, by what came of it", ("file", "result")
        )
        self.password_file_problems = registry.counter(
            "rocketmq_mqtt_password_file_problems_total", "Unusable lines of the password file"
        )
