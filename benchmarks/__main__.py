"""`make bench`: every benchmark with its own command, one after the other; figures are CPU per message, no verdict.

Run one alone with `python -m benchmarks NAME`; arguments after the name go to it.
"""

from __future__ import annotations

import runpy
import sys

BENCHMARKS = {
    "mqtt": "benchmarks.mqtt_load",
    "connections": "benchmarks.connections",
    "console": "benchmarks.console_cost",
    "telemetry": "benchmarks.telemetry_cost",
    "sessions": "benchmarks.offline_sessions",
    "storms": "benchmarks.connect_storms",
    "store": "benchmarks.store_append",
    "replica": "benchmarks.store_replica",
    "sustained": "benchmarks.store_sustained",
    "store_asyncio": "benchmarks.store_asyncio",
    "consume": "benchmarks.store_consume",
    "key_index": "benchmarks.key_index",
    "timers": "benchmarks.timers",
    "pop": "benchmarks.pop",
    "lite": "benchmarks.lite",
    "restart": "benchmarks.restart",
    "index": "benchmarks.index_read",
    "locks": "benchmarks.locks",
    "queues": "benchmarks.queue_memory",
    "state": "benchmarks.state_upkeep",
    "pause": "benchmarks.state_pause",
    "turns": "benchmarks.turns",
    "batch": "benchmarks.batch_records",
    "arrow": "benchmarks.gather_read",
    "replication": "benchmarks.replication_cost",
    "group": "benchmarks.group_load",
    "refetch": "benchmarks.refetch",
    "disk": "benchmarks.disk_cost",
    "requests": "benchmarks.broker_requests",
    "grpc": "benchmarks.grpc_calls",
    "rocketmq": "benchmarks.rocketmq_clients",
    "spark": "benchmarks.spark_read",
    "rows": "benchmarks.row_entries",
    "spark_write": "benchmarks.spark_write",
    "planning": "benchmarks.spark_planning",
    "spark_latency": "benchmarks.spark_latency",
    "spark_kafka": "benchmarks.spark_kafka",
    "range_readers": "benchmarks.range_readers",
    "decode": "benchmarks.decode_bodies",
    "demo": "benchmarks.demo_runs",
}


def main() -> int:
    """Run the named benchmark, or all of them."""
    name, *arguments = sys.argv[1:] or ["all"]
    if name != "all" and name not in BENCHMARKS:
        print(f"no benchmark '{name}'; there are: {', '.join(BENCHMARKS)}, all", file=sys.stderr)
        return 2
    for each in BENCHMARKS if name == "all" else [name]:
        print(f"== {each}", flush=True)
        sys.argv = [BENCHMARKS[each], *arguments]
        runpy.run_module(BENCHMARKS[each], run_name="__main__")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
