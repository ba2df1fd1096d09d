"""A sample of `lightmq top` as people see it; with real brokers it runs in `tests/processes`."""

from __future__ import annotations

from lightmq.cli.admin.top import LINES_MAX, text

ROW = {
    "broker": "broker-a", "messages_in_per_s": 1234.5, "messages_out_per_s": 0.0, "bytes_in_per_s": 2_000_000.0,
    "clients": 3, "sessions": 4, "topics": 5, "log_bytes": 1_500_000, "disk_free_bytes": 50, "disk_total_bytes": 200,
}  # fmt: skip


def test_brokers_groups_and_refusals() -> None:
    groups = [{"group": f"g{number}", "messages": 7, "seconds": 90.0} for number in range(LINES_MAX + 2)]
    refused = [{"reason": "rocketmq_mqtt_violations_total{keep_alive_timeout}", "total": 9.0, "per_s": 1.5}]
    failed = {"broker": "broker-b", "error": "it is gone\x1b"}
    shown = text({"time_ms": 0, "brokers": [ROW, failed], "groups": groups, "refused": refused})
    assert "1,234.5" in shown
    assert "2.0 MB" in shown
    assert "50 B (25 %)" in shown
    assert "broker-b does not answer: it is gone\\u001b" in shown
    assert "1 min 30 s" in shown
    assert "and 2 more groups" in shown
    assert "MQTT connections closed: silent for one and a half times its keep-alive  1.5" in shown
