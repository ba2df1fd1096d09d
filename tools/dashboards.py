"""Write the Grafana dashboards of deploy/monitoring/dashboards from the table below.

    python3 tools/dashboards.py [--check]

Each is a JSON file for Grafana 10 or newer that asks any Prometheus (`$datasource`) and can be narrowed to processes
(`$instance`). Edit the table, not the files: a test compares both. Invariant: same table, same bytes. Standard library
only.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "monitoring" / "dashboards"
COLUMNS, HEIGHT, A_ROW = 24, 8, 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WHERE = 'instance=~"$instance"'


@dataclass(frozen=True)
class Panel:
    """One chart: expressions by legend, `$w` standing for the chosen processes."""

    title: str
    unit: str
    lines: dict[str, str]
    kind: str = "timeseries"
    description: str = ""


def rate(metric: str, by: str = "") -> str:
    """Events a second, by process or by a label."""
    return f"sum by ({by or 'instance'}) (rate({metric}{{$w}}[$__rate_interval]))"


def quantiles(metric: str, title: str, description: str = "") -> Panel:
    """Median and high percentiles of a histogram over all chosen processes."""
    ranges = f"sum by (le) (rate({metric}_bucket{{$w}}[$__rate_interval]))"
    lines = {f"p{percent:g}": f"histogram_quantile({percent / 100:g}, {ranges})" for percent in (50, 95, 99)}
    return Panel(title, "s", lines, description=description)


BOARDS: dict[str, tuple[str, tuple[Panel, ...]]] = {
    "overview": ("LightMQ: overview", (
        Panel("Processes", "none", {"up": "sum(up{$w})", "down": "sum(1 - up{$w})"}, "stat"),
        Panel("Messages in", "cps", {"{{instance}}": rate("rocketmq_messages_in_total")}),
        Panel("Messages out", "cps", {"{{instance}}": rate("rocketmq_messages_out_total")}),
        quantiles("rocketmq_confirm_seconds", "From written to durable", "Flushed, and at the replicas needed"),
        Panel("Refused", "cps", {
            "store: {{reason}}": rate("rocketmq_requests_refused_total", "reason"),
            "publish: {{reason}}": rate("rocketmq_mqtt_publishes_refused_total", "reason"),
            "connect: {{reason}}": rate("rocketmq_mqtt_connects_refused_total", "reason"),
        }),
        Panel("CPU", "percentunit", {"{{instance}}": rate("process_cpu_seconds_total")}),
        Panel("Memory", "bytes", {"{{instance}}": "process_resident_memory_bytes{$w}"}),
        Panel("Open files", "none", {"{{instance}}": "process_open_fds{$w}"}),
        Panel("Versions", "none", {"{{version}}": "count by (version) (lightmq_build_info{$w})"}, "stat"),
        Panel("Spans of traces", "cps", {"{{outcome}}": rate("rocketmq_trace_spans_total", "outcome")}),
    )),
    "mqtt": ("LightMQ: MQTT", (
        Panel("Connections", "none", {"{{instance}} {{listener}}": "rocketmq_mqtt_connections{$w}"}),
        Panel("Connects and disconnects", "cps", {
            "connects": rate("rocketmq_mqtt_connects_total", "job"),
            "closed: {{reason}}": rate("rocketmq_mqtt_closes_total", "reason"),
        }),
        Panel("Sessions", "none", {
            "kept": "sum(rocketmq_mqtt_sessions_kept{$w})",
            "of absent clients": "sum(rocketmq_mqtt_sessions_offline{$w})",
        }),
        Panel("Messages", "cps", {
            "published, MQTT {{protocol}}": rate("rocketmq_mqtt_messages_in_total", "protocol"),
            "delivered": rate("rocketmq_mqtt_messages_out_total", "job"),
            "acknowledged": rate("rocketmq_mqtt_messages_acknowledged_total", "job"),
        }),
        quantiles("rocketmq_mqtt_publish_acknowledge_seconds", "From publish to acknowledgement"),
        quantiles("rocketmq_mqtt_delivery_seconds", "From stored to the subscribers' proxy"),
        Panel("Backlog of sessions", "none", {"messages": "sum(rocketmq_mqtt_session_backlog_messages{$w})"}),
        Panel("Skipped", "cps", {"{{reason}}": rate("rocketmq_mqtt_messages_skipped_total", "reason")}),
        Panel("Violations and denials", "cps", {
            "violation: {{reason}}": rate("rocketmq_mqtt_violations_total", "reason"),
            "denied: {{action}}": rate("rocketmq_mqtt_denials_total", "action"),
        }),
        Panel("Retained messages", "none", {"{{instance}}": "rocketmq_mqtt_retained_messages{$w}"}),
        Panel("Subscriptions", "none", {"{{instance}}": "rocketmq_mqtt_subscriptions{$w}"}),
        Panel("Socket bytes", "Bps", {
            "in": rate("rocketmq_mqtt_socket_bytes_in_total", "job"),
            "out": rate("rocketmq_mqtt_socket_bytes_out_total", "job"),
        }),
    )),
    "storage": ("LightMQ: storage", (
        Panel("Log kept", "bytes", {"{{instance}}": "rocketmq_storage_bytes{$w}"}),
        Panel("Disk free", "bytes", {"{{instance}}": "rocketmq_disk_free_bytes{$w}"}),
        Panel("Not yet flushed", "bytes", {"{{instance}}": "rocketmq_flush_behind_bytes{$w}"}),
        quantiles("rocketmq_append_seconds", "Append"),
        quantiles("rocketmq_flush_seconds", "Flush (fdatasync)"),
        Panel("Flushes", "cps", {"{{instance}}": rate("rocketmq_flush_seconds_count")}),
        Panel("Deleted by retention", "Bps", {"{{reason}}": rate("rocketmq_expired_bytes_total", "reason")}),
        Panel("Damaged", "bytes", {"{{instance}}": "rocketmq_quarantined_bytes{$w}"}),
        Panel("Checksum pass", "bytes", {"{{instance}}": "rocketmq_scrub_passed_bytes{$w}"}),
    )),
    "ha": ("LightMQ: high availability", (
        Panel("Role", "none", {"{{instance}} {{role}}": "rocketmq_replica_role{$w} == 1"}),
        Panel("In sync", "none", {"{{instance}}": "rocketmq_replica_in_sync{$w} > 0"}),
        Panel("Master epoch", "none", {"{{instance}}": "rocketmq_replica_epoch{$w}"}),
        Panel("Replica lag", "bytes", {"{{instance}}": "rocketmq_replica_lag_bytes{$w}"}),
        quantiles("rocketmq_replication_acknowledge_seconds", "From sent to acknowledged by a replica"),
        Panel("Waiting for replicas", "bytes", {"{{instance}}": "rocketmq_confirm_lag_bytes{$w}"}),
        Panel("Leading controller", "none", {"{{instance}}": "rocketmq_controller_leading{$w}"}),
        Panel("Groups without a master", "none", {"groups": "max(rocketmq_controller_groups_without_master{$w})"}),
        Panel("Elections", "cps", {
            "won": rate("rocketmq_controller_elections_won_total", "job"),
            "without a winner": rate("rocketmq_controller_elections_failed_total", "job"),
        }),
    )),
    "spark": ("LightMQ: Spark", (
        Panel("Rows", "cps", {"{{query}}": rate("rocketmq_spark_rows_total", "query")}),
        Panel("Lag", "none", {"{{query}}": "sum by (query) (rocketmq_spark_messages_behind{$w})"}),
        Panel("Last batch", "s", {"{{query}}": "rocketmq_spark_batch_seconds{$w}"}),
        Panel("Batches, 95th percentile", "s", {
            "{{query}}": "histogram_quantile(0.95, sum by (query, le) "
            "(rate(rocketmq_spark_batch_duration_seconds_bucket{$w}[$__rate_interval])))",
        }),
        Panel("Records to readers", "cps", {"{{instance}}": rate("rocketmq_messages_out_total")}),
        Panel("Reader processes", "none", {"{{instance}}": "rocketmq_range_readers{$w}"}),
        Panel("Sink commits", "cps", {"{{instance}}": rate("rocketmq_sink_commits_total")}),
    )),
    "rocketmq": ("LightMQ: RocketMQ clients", (
        Panel("Consumer lag", "none", {"{{consumer_group}} {{topic}}": "topk(20, rocketmq_consumer_lag_messages{$w})"}),
        Panel("POP in flight", "none", {"{{instance}}": "rocketmq_pop_in_flight{$w}"}),
        Panel("POP, time over", "cps", {"{{outcome}}": rate("rocketmq_pop_expired_total", "outcome")}),
        Panel("Delayed messages", "none", {"{{instance}}": "rocketmq_delayed_messages{$w}"}),
        quantiles("rocketmq_delayed_lateness_seconds", "Lateness of delayed messages"),
        Panel("Open transactions", "none", {"{{instance}}": "rocketmq_transactions{$w}"}),
        Panel("Requests", "cps", {
            "{{request}}": f"topk(12, {rate('rocketmq_request_handling_seconds_count', 'request')})",
        }),
        Panel("Loop time by request", "percentunit", {
            "{{request}}": f"topk(12, {rate('rocketmq_request_handling_seconds_sum', 'request')})",
        }),
        Panel("Not supported", "cps", {"{{code}}": rate("rocketmq_unsupported_requests_total", "code")}),
    )),
}  # fmt: skip


def panel(number: int, given: Panel) -> dict[str, Any]:
    """One panel at its place in the grid."""
    width = COLUMNS // A_ROW
    return {
        "id": number + 1,
        "type": given.kind,
        "title": given.title,
        "description": given.description,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": width, "x": number % A_ROW * width, "y": number // A_ROW * HEIGHT},
        "fieldConfig": {"defaults": {"unit": given.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": SOURCE,
                "expr": text.replace("$w", WHERE),
                "legendFormat": legend,
            }
            for at, (legend, text) in enumerate(given.lines.items())
        ],
    }


def board(name: str) -> str:
    """The JSON of one dashboard."""
    title, panels = BOARDS[name]
    instances = {
        "name": "instance", "label": "Process", "type": "query", "datasource": SOURCE, "refresh": 2, "multi": True,
        "includeAll": True, "allValue": ".*", "query": "label_values(lightmq_build_info, instance)",
    }  # fmt: skip
    found = {
        "uid": f"lightmq-{name}",
        "title": title,
        "tags": ["lightmq"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "title": "LightMQ", "tags": ["lightmq"], "asDropdown": True}],
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, instances]},
        "panels": [panel(number, each) for number, each in enumerate(panels)],
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the files, or say which differ."""
    parser = argparse.ArgumentParser(description="Write the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file differs from the table")
    is_check = parser.parse_args().check
    differing = []
    for name in BOARDS:
        path = FOLDER / f"{name}.json"
        if is_check and (not path.exists() or path.read_text() != board(name)):
            differing.append(path.name)
        elif not is_check:
            path.write_text(board(name))
    for name in differing:
        print(f"{name} differs from tools/dashboards.py", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
