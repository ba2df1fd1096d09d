"""Codes and reasons: complete, distinct, in the standard's numbers."""

from __future__ import annotations

from mqtt_proxy.mqtt.reason_codes import CONNECT_CODE_NAMES, ConnectCode, PacketViolation, Reason


def test_connect_codes() -> None:
    """Table 3.1: 0 to 5, each with its name."""
    codes = [value for name, value in vars(ConnectCode).items() if not name.startswith("_")]
    assert sorted(codes) == list(range(6)) == sorted(CONNECT_CODE_NAMES)


def test_reasons_are_distinct_labels() -> None:
    """Metric labels: lower case, no blanks, no two the same."""
    reasons = [value for name, value in vars(Reason).items() if not name.startswith("_")]
    assert len(set(reasons)) == len(reasons)
    assert all(reason.replace("_", "").isalnum() and reason.islower() for reason in reasons)


def test_a_violation_says_both() -> None:
    """Reason for machines, detail for people."""
    violation = PacketViolation(Reason.QOS, "QoS 3")
    assert (violation.reason, violation.detail, str(violation)) == ("invalid_qos", "QoS 3", "invalid_qos: QoS 3")
