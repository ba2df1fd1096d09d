"""What access control counts: who was let in, what was denied, which lines of its files are no use.

Invariant: every refusal of this room adds to a counter with its reason. Thread rule: written on the loop's thread only.
"""

from __future__ import annotations

from runtime.metrics import Registry


class AccessCounters:
    """Counters of authentication and authorization."""

    __slots__ = ("authentications", "denials", "password_file_problems", "reloads")

    def __init__(self, registry: Registry) -> None:
        self.authentications = registry.counter(
            "rocketmq_mqtt_authentications_total", "CONNECTs by the result of authentication", ("result", "method")
        )
        self.denials = registry.counter("rocketmq_mqtt_denials_total", "Actions not allowed", ("action", "reason"))
        self.reloads = registry.counter(
            "rocketmq_mqtt_access_reloads_total", "Times a file was read, by what came of it", ("file", "result")
        )
        self.password_file_problems = registry.counter(
            "rocketmq_mqtt_password_file_problems_total", "Unusable lines of the password file"
        )
