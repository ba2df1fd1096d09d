"""What an acknowledgement of a broker means, from the configuration it tells.

Invariant: nothing is promised for a broker that does not tell its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.replication.promise import DurabilityRule, promise


def promised(settings: Mapping[str, str], brokers: int) -> dict[str, str | None]:
    """`promise` and `warning` of a group of so many brokers whose master has these settings; None: not known."""
    try:
        rule = DurabilityRule(
            flush=settings["store.flush"],
            in_group=settings["replication.enabled"].lower() == "true",
            acknowledge=settings["replication.acknowledge"],
            count=int(settings["replication.in_sync_replicas"]),
            in_sync_min=int(settings["replication.in_sync_min"]),
        )
    except (KeyError, ValueError):
        return {"promise": None, "warning": None}
    found = promise(rule, brokers)
    return {"promise": found.text, "warning": found.warning or None}
