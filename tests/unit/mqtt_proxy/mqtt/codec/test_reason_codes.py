"""Codes and reasons: complete, distinct, with the standard's numbers."""

from __future__ import annotations

from pathlib import Path

from mqtt_proxy.mqtt.codec.reason_codes import (
    CLOSE_CODES,
    DISCONNECT_REASONS_OF_CLIENTS,
    REASONS_OF_PACKETS,
    VIOLATION_CODES,
    ConnectCode,
    PacketViolation,
    Reason,
    ReasonCode,
)


def test_connect_codes() -> None:
    """Table 3.1: 0 to 5."""
    codes = [value for name, value in vars(ConnectCode).items() if not name.startswith("_")]
    assert sorted(codes) == list(range(6))


def test_reasons_are_distinct_labels() -> None:
    """Metric labels: lower case, no spaces, no two the same."""
    reasons = [value for name, value in vars(Reason).items() if not name.startswith("_")]
    assert len(set(reasons)) == len(reasons)
    assert all(reason.replace("_", "").isalnum() and reason.islower() for reason in reasons)


def test_a_violation_has_reason_and_detail() -> None:
    """The reason for machines, the detail for people."""
    violation = PacketViolation(Reason.QOS, "QoS 3")
    assert (violation.reason, violation.detail, str(violation)) == ("invalid_qos", "QoS 3", "invalid_qos: QoS 3")


def test_the_page_of_errors_names_every_reason_with_its_code() -> None:
    """An operator finds there what a client gets."""
    page = (Path(__file__).resolve().parents[5] / "docs" / "errors.md").read_text()
    table = page.partition("## MQTT 5: reason codes")[2].partition("\n## ")[0]
    for reason, code in (VIOLATION_CODES | CLOSE_CODES).items():
        (row,) = [line for line in table.splitlines() if line.startswith(f"| 0x{code:02X} ")]
        assert f"`{reason}`" in row, (reason, hex(code))


def test_codes_of_packets() -> None:
    """Table 2-6: each packet has success, and every code of the table is used by some packet."""
    known = frozenset().union(*REASONS_OF_PACKETS.values())
    assert all(0 in codes for codes in REASONS_OF_PACKETS.values())
    assert {int(code) for code in ReasonCode} <= known
    assert known <= {int(code) for code in ReasonCode}
    assert REASONS_OF_PACKETS[14] >= DISCONNECT_REASONS_OF_CLIENTS
